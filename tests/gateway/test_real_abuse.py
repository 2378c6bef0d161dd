"""Random datagrams, many clients and what brokers do not take: a gateway neither ends, nor leaks, nor loses."""

from __future__ import annotations

import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.gateway.real import GatewayProcess, Mosquitto, Publisher, SnClient, ended

from triagemq.broker.process import find_mosquitto
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    Encapsulated,
    GwInfo,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SearchGw,
    SubAck,
    Subscribe,
    TopicIdType,
    Unsubscribe,
    WillMsg,
    WillMsgUpd,
    WillTopic,
    WillTopicUpd,
    encode,
)

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")

SEEDS = [
    encode(message)
    for message in (
        Connect("fuzz", 5),
        Connect("fuzz", 1, clean_session=True, will=True),
        WillTopic("w", qos=1),
        WillMsg(b"w"),
        WillTopicUpd("x"),
        WillMsgUpd(b"y"),
        Register(0, 1, "a/b"),
        RegAck(1, 1, ReturnCode.ACCEPTED),
        Publish(TopicIdType.NORMAL, 1, b"payload", qos=1, message_id=1),
        Publish(TopicIdType.NORMAL, 1, b"payload", qos=2, message_id=2),
        Publish(TopicIdType.SHORT, 0x6162, b"payload", qos=-1),
        PubAck(1, 1, ReturnCode.REJECTED_INVALID_TOPIC_ID),
        PubRec(1),
        PubRel(2),
        PubComp(1),
        Subscribe(TopicIdType.NORMAL, "a/#", 1, 2),
        Subscribe(TopicIdType.SHORT, "ab", 2, 1),
        Unsubscribe(TopicIdType.NORMAL, "a/#", 3),
        PingReq(),
        PingReq("fuzz"),
        Disconnect(),
        Disconnect(10),
        SearchGw(1),
        Encapsulated(b"node", Connect("inner", 5)),
        ConnAck(ReturnCode.ACCEPTED),
    )
]


def datagrams(count: int, seed: int) -> Iterator[bytes]:
    """A third valid, a third valid with a few octets changed, a third anything."""
    chance = random.Random(seed)
    for number in range(count):
        if number % 3 == 2:
            yield chance.randbytes(chance.randrange(40))
            continue
        datagram = bytearray(chance.choice(SEEDS))
        if number % 3 == 1:
            for _ in range(chance.randint(1, 3)):
                datagram[chance.randrange(len(datagram))] = chance.randrange(256)
            if chance.random() < 0.2:
                del datagram[chance.randrange(len(datagram)) :]
        yield bytes(datagram)


def storm(gateway: GatewayProcess, count: int, seed: int) -> None:
    """Send, never more than the gateway's socket can hold."""
    client = SnClient(gateway.port, "barrier")
    others = [SnClient(gateway.port, f"other{number}") for number in range(8)]
    for number, datagram in enumerate(datagrams(count, seed)):
        others[number % 8].socket.send(datagram)
        if number % 400 == 399:
            client.ask(SearchGw(), GwInfo, each=60.0)
            for other in others:
                _drain(other.socket)
    client.ask(SearchGw(), GwInfo, each=60.0)
    for one in (client, *others):
        one.end()


def _drain(sock: socket.socket) -> None:
    sock.setblocking(False)
    try:
        while True:
            sock.recv(65535)
    except (BlockingIOError, ConnectionRefusedError):
        return
    finally:
        sock.setblocking(True)


def _resident_bytes(gateway: GatewayProcess) -> int:
    pages = Path(f"/proc/{gateway.child.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def _abuse(tmp_path: Path, count: int) -> None:
    broker = Mosquitto(tmp_path / "broker")
    with ended(broker):
        gateway = GatewayProcess(tmp_path, "--broker", broker.url, "--state", str(tmp_path / "state"))
        client = SnClient(gateway.port, "bystander")
        with ended(gateway, client):
            client.connect(duration=0).subscribe("quiet", 1)
            half = count // 2
            storm(gateway, half, seed=1)
            before = gateway.counters()
            resident = _resident_bytes(gateway)
            storm(gateway, count - half, seed=2)
            after = gateway.counters()
            growth = _resident_bytes(gateway) - resident
            # Every datagram is counted: those of the storm, the barriers, and the two of the client.
            barriers = -(-half // 400) + -(-(count - half) // 400)
            assert count <= after["datagrams_in"] <= count + barriers + 2 + 2
            assert sum(after["rejected"].values()) > count // 4
            assert after["rejected"].keys() >= {"length_mismatch", "reserved_message_type", "truncated"}
            # A changed octet in the client id of a CONNECT makes another client, and that is all.
            assert after["sessions"] - before["sessions"] < count // 500 + 300
            assert "internal_error" not in after["rejected"]
            assert growth < 30e6, f"{growth / 1e6:.1f} MB more after {count - half} datagrams"
            publisher = Publisher(broker.port)
            publisher.publish("quiet", b"still here", 1)
            client.collect(30, 1)
            assert [message.payload for message in client.messages] == [b"still here"]
            publisher.end()


def test_hundred_thousand_random_datagrams_do_no_harm(tmp_path: Path) -> None:
    _abuse(tmp_path, 100_000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_million_random_datagrams_do_no_harm(tmp_path: Path) -> None:
    _abuse(tmp_path, 1_000_000)


def _crowd(tmp_path: Path, count: int, churn_seconds: float, churn_rate: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * count + 1000)), hard))
    broker = Mosquitto(tmp_path / "broker")
    with ended(broker):
        gateway = GatewayProcess(tmp_path, "--broker", broker.url)
        clients = [SnClient(gateway.port, f"client{number}") for number in range(count)]
        publisher = Publisher(broker.port)
        with ended(gateway, publisher, *clients):
            for start in range(0, count, 100):
                for client in clients[start : start + 100]:
                    client.send(Connect(client.client_id, 600))
                for client in clients[start : start + 100]:
                    _expect(client, ConnAck)
                    client.send(Subscribe(TopicIdType.NORMAL, "news", 1, 0))
                for client in clients[start : start + 100]:
                    _expect(client, SubAck)
            assert gateway.counters()["sessions"] == count
            _churn(gateway.port, churn_seconds, churn_rate)
            publisher.publish("news", b"hello")
            for client in clients:
                client.collect(30, 1)
                assert [message.payload for message in client.messages] == [b"hello"]
            counters = gateway.counters()
            assert counters["sessions"] == count
            assert counters["clients_lost"] == 0


def _expect(client: SnClient, kind: type) -> None:
    deadline = time.monotonic() + 30
    while not isinstance(client.receive(0.5), kind):
        assert time.monotonic() < deadline, f"{client.client_id} got no {kind.__name__}"


def _churn(port: int, seconds: float, rate: int) -> None:
    """Clients that come, subscribe, and leave again, `rate` of them a second."""
    visitors = [SnClient(port, f"visitor{number}") for number in range(50)]
    started = time.monotonic()
    visits = 0
    with ended(*visitors):
        while time.monotonic() - started < seconds:
            for visitor in visitors:
                visitor.send(Connect(visitor.client_id, 60, clean_session=True))
            for visitor in visitors:
                _expect(visitor, ConnAck)
                visitor.send(Subscribe(TopicIdType.NORMAL, f"own/{visitor.client_id}", 1, 1))
            for visitor in visitors:
                _expect(visitor, SubAck)
                visitor.send(Disconnect())
            for visitor in visitors:
                _expect(visitor, Disconnect)
            visits += len(visitors)
            time.sleep(max(0.0, started + visits / rate - time.monotonic()))
    assert visits >= 0.8 * rate * seconds, f"only {visits / seconds:.0f} visits a second"


def test_five_hundred_clients_while_others_come_and_go(tmp_path: Path) -> None:
    _crowd(tmp_path, 500, 4.0, 200)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_thousand_clients_while_five_hundred_a_second_come_and_go(tmp_path: Path) -> None:
    _crowd(tmp_path, 5000, 60.0, 500)


@pytest.mark.parametrize("topic", ["a\x01", "a\x9f", "a\uffff", "a/" * 200])
def test_topics_that_mosquitto_ends_connections_over_do_not_reach_it(tmp_path: Path, topic: str) -> None:
    octets = topic.encode()
    stand_in = "t" * len(octets)

    def attack(bad: SnClient) -> None:
        for message in (
            Register(0, 1, stand_in),
            Subscribe(TopicIdType.NORMAL, stand_in, 2, 1),
            Unsubscribe(TopicIdType.NORMAL, stand_in, 3),
            WillTopicUpd(stand_in, 1),
        ):
            bad.socket.send(encode(message).replace(stand_in.encode(), octets))
        # Nothing before the answer to this.
        bad.send(PingReq())
        assert bad.receive(5) == PingResp()

    _without_harm(tmp_path, attack)


def test_topics_of_mosquitto_itself_are_not_published_to(tmp_path: Path) -> None:
    def attack(bad: SnClient) -> None:
        topic_id = bad.register("$SYS/broker/uptime")
        for qos in (0, 1, 2):
            message = Publish(TopicIdType.NORMAL, topic_id, b"x", qos=qos, message_id=qos)
            assert bad.ask(message, PubAck).return_code is ReturnCode.REJECTED_NOT_SUPPORTED

    _without_harm(tmp_path, attack)


@pytest.mark.parametrize("client_id", ["a\x01b", "\x85", "\ufffe"])
def test_client_ids_that_mosquitto_does_not_take_in_a_property_do_no_harm(
    tmp_path: Path, client_id: str
) -> None:
    def attack(bad: SnClient) -> None:
        topic_id = bad.register("a")
        message = Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=1)
        assert bad.ask(message, PubAck).return_code is ReturnCode.ACCEPTED

    _without_harm(tmp_path, attack, client_id=client_id)


def test_qos_2_and_retained_messages_reach_a_mosquitto_that_takes_neither(tmp_path: Path) -> None:
    def attack(bad: SnClient) -> None:
        bad.subscribe("a", 2)
        topic_id = bad.register("a")
        for number in range(1, 61):
            payload = b"%d" % number
            message = Publish(
                TopicIdType.NORMAL, topic_id, payload, qos=2, message_id=number, retain=bool(number % 2)
            )
            bad.ask(message, PubRec)
            bad.ask(PubRel(number), PubComp)
        bad.collect(30, 60)
        assert {int(message.payload) for message in bad.messages} == set(range(1, 61))

    _without_harm(tmp_path, attack, broker="max_qos 1\nretain_available false\n")


def _without_harm(
    tmp_path: Path, attack: Callable[[SnClient], None], *, client_id: str = "bad", broker: str = ""
) -> None:
    """The connection to the broker stays, and others get their messages."""
    mosquitto = Mosquitto(tmp_path / "broker", extra=broker)
    with ended(mosquitto):
        gateway = GatewayProcess(tmp_path, "--broker", mosquitto.url)
        client, bad = SnClient(gateway.port, "bystander"), SnClient(gateway.port, client_id)
        publisher = Publisher(mosquitto.port)
        with ended(gateway, client, bad, publisher):
            client.connect().subscribe("quiet", 1)
            attack(bad.connect())
            publisher.publish("quiet", b"still here", 1)
            client.collect(30, 1)
            counters = gateway.counters()
            assert counters["broker_losses"] == 0
            assert [message.payload for message in client.messages] == [b"still here"]
