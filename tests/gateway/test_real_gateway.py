"""The gateway as users run it: real Mosquitto, real UDP, TLS, passwords, access rules, the embedded broker."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from tests.gateway.real import GatewayProcess, Mosquitto, Publisher, SnClient, ended

from triagemq.broker.process import find_mosquitto
from triagemq.mqttsn import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    TopicIdType,
)

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


def test_messages_pass_both_ways_at_every_qos(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    with ended(broker):
        gateway = GatewayProcess(tmp_path, "--broker", broker.url)
        one, two = SnClient(gateway.port, "one"), SnClient(gateway.port, "two")
        with ended(gateway, one, two):
            assert gateway.ready["broker_reached"]
            one.connect().subscribe("floor/+", 2)
            two.connect().subscribe("floor/1", 1)
            topic_id = two.register("floor/1")
            two.ask(Publish(TopicIdType.NORMAL, topic_id, b"qos1", qos=1, message_id=7), PubAck)
            publisher = Publisher(broker.port)
            for qos in range(2):
                publisher.publish("floor/1", b"mqtt%d" % qos, qos)
            publisher.wait()
            one.collect(30, 3)
            two.collect(30, 3)
            assert [message.payload for message in one.messages] == [b"qos1", b"mqtt0", b"mqtt1"]
            assert [message.qos for message in two.messages] == [1, 0, 1]
            assert gateway.counters()["sessions"] == 2
            publisher.end()


def test_retained_and_overlapping_filters_are_right_with_mosquitto(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    with ended(broker):
        publisher = Publisher(broker.port)
        publisher.publish("floor/1", b"kept", 1, retain=True)
        publisher.wait()
        gateway = GatewayProcess(tmp_path, "--broker", broker.url)
        clients = [SnClient(gateway.port, f"client{number}") for number in range(4)]
        with ended(gateway, publisher, *clients):
            for client in clients:
                client.connect().subscribe("floor/1", 1)
                client.collect(0.3)
                assert [(message.payload, message.retain) for message in client.messages] == [(b"kept", True)]
            for topic_filter in ("floor/#", "+/1", "#"):
                clients[0].subscribe(topic_filter, 1)
            clients[0].collect(0.3)
            for client in clients:
                client.messages.clear()
            for number in range(50):
                publisher.publish("floor/1", b"%d" % number, 1)
            for client in clients:
                client.collect(1.0)
                assert [message.payload for message in client.messages] == [b"%d" % n for n in range(50)]


def test_tls_with_a_private_authority(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    extra = f"certfile {certificate}\nkeyfile {key}\n"
    broker = Mosquitto(tmp_path / "broker", extra)
    with ended(broker):
        good = GatewayProcess(
            tmp_path / "good", "--broker", f"mqtts://127.0.0.1:{broker.port}?ca={certificate}"
        )
        bad = GatewayProcess(tmp_path / "bad", "--broker", f"mqtts://127.0.0.1:{broker.port}")
        client = SnClient(good.port, "one")
        with ended(good, bad, client):
            assert good.ready["broker_reached"]
            assert not bad.ready["broker_reached"]
            client.connect().subscribe("a", 1)
            topic_id = client.register("a")
            client.ask(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=7), PubAck)
            client.collect(30, 1)
            assert [message.payload for message in client.messages] == [b"x"]


def test_gateway_without_a_broker_url_runs_one_and_restarts_it(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, "--state", str(tmp_path / "state"))
    client = SnClient(gateway.port, "one")
    with ended(gateway, client):
        assert gateway.ready["broker_reached"]
        client.connect().subscribe("a", 1)
        topic_id = client.register("a")
        client.ask(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=7), PubAck)
        client.collect(30, 1)
        assert [message.payload for message in client.messages] == [b"x"]
        assert client.ask(PingReq(), PingResp) == PingResp()
    counters = gateway.end() if gateway.child.process.poll() is None else {}
    assert counters == {}


def test_ctrl_c_ends_it_cleanly_and_tells_clients(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    with ended(broker):
        gateway = GatewayProcess(tmp_path, "--broker", broker.url)
        client = SnClient(gateway.port, "one")
        with ended(client):
            client.connect()
            started = time.monotonic()
            counters = gateway.end()
            assert time.monotonic() - started < 5
            assert gateway.child.process.returncode == 0
            assert counters["connects"] == 1
            assert client.receive(1.0) == Disconnect()
