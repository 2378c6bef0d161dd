"""Bad input, clients that do not read, and kills: their sender alone is harmed, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.front.paho_client import Paho, until
from tests.gateway.front.test_front_clients import Site
from tests.gateway.real import Publisher, ended

from triagemq.broker.process import find_mosquitto
from triagemq.mqtt.packets import (
    PacketStream,
    PacketType,
    encode_connect,
    encode_packet,
    encode_subscribe,
)

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    with ended(found):
        yield found


class Raw:
    """A client octet by octet."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(20.0)
        self._stream = PacketStream()
        self._packets: list[tuple[int, bytes]] = []

    def end(self) -> None:
        self.socket.close()

    def send(self, octets: bytes) -> Raw:
        self.socket.sendall(octets)
        return self

    def packet(self) -> tuple[int, bytes]:
        """The next one; the end of the connection is (0, b"")."""
        while not self._packets:
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = self.socket.recv(1 << 16)
            if not data:
                return 0, b""
            self._packets += self._stream.feed(data)
        return self._packets.pop(0)

    def connect(self, client_id: str, version: int = 5) -> Raw:
        self.send(encode_connect(version, client_id, clean=True, keep_alive_seconds=0))
        assert self.packet()[0] == PacketType.CONNACK << 4
        return self

    def subscribe(self, topic_filter: str) -> Raw:
        self.send(encode_subscribe(5, 1, topic_filter, 0))
        assert self.packet()[0] == PacketType.SUBACK << 4
        return self


def test_bad_input_is_counted_and_closed_with_its_reason_and_others_notice_nothing(site: Site) -> None:
    healthy = Paho(site.front, "healthy").connected().subscribe("alive", 1)
    publisher = Paho(site.broker.port, "publisher").connected()
    with ended(healthy, publisher):
        for octets in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff" * 50,
            encode_packet(PacketType.CONNECT << 4, b"\0\4MQTT\4"),
        ):
            stranger = Raw(site.front).send(octets)
            assert stranger.packet() == (0, b"")
            stranger.end()
        large = Raw(site.front).connect("large").send(b"\x30\xff\xff\xff\x7f")
        assert large.packet() == (PacketType.DISCONNECT << 4, b"\x95")
        assert large.packet() == (0, b"")
        broken = (
            Raw(site.front).connect("broken").send(encode_packet(PacketType.SUBSCRIBE << 4 | 2, b"\0\1\0"))
        )
        assert broken.packet() == (PacketType.DISCONNECT << 4, b"\x81")
        second = (
            Raw(site.front).connect("second").send(encode_connect(5, "x", clean=True, keep_alive_seconds=0))
        )
        assert second.packet() == (PacketType.DISCONNECT << 4, b"\x82")
        for each in (large, broken, second):
            each.end()
        publisher.publish("alive", b"yes", 1)
        assert healthy.take(1) == [b"yes"]
    rejected = site.gateway.counters()["rejected"]
    assert rejected["mqtt_packet_too_large"] == 1
    assert rejected["mqtt_no_connect"] == 2
    assert rejected["mqtt_unexpected_packet"] == 1
    assert sum(rejected.values()) == 6


def test_half_open_connections_are_limited_and_a_client_still_gets_in(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(1_020):
            stack.enter_context(socket.create_connection(("127.0.0.1", site.front)))
        stack.callback(Raw(site.front).connect("late").end)
        until(lambda: site.gateway.counters()["rejected"].get("mqtt_half_open", 0) >= 20)


def test_a_client_that_does_not_read_hinders_nobody_and_loses_its_lowest_class(site: Site) -> None:
    stopped = Raw(site.front, receive_buffer=4096).connect("stopped").subscribe("bulk/#")
    healthy = Paho(site.front, "healthy").connected().subscribe("alive", 1)
    publisher = Publisher(site.broker.port)
    with ended(stopped, healthy, publisher):
        for number in range(25_000):
            publisher.publish("bulk/x", b"%06d" % number + b"x" * 500)
            if number % 100 == 0:
                publisher.publish("alive", b"%d" % number)
        assert healthy.take(250) == [b"%d" % number for number in range(0, 25_000, 100)]
        until(lambda: site.gateway.counters()["undelivered"].get("dropped_by_buffer: buffer full", 0) > 0)
        # It reads again: the oldest of what was not dropped come in order.
        found = []
        while len(found) < 10_000:
            first, body = stopped.packet()
            assert first >> 4 == PacketType.PUBLISH
            found.append(int(body[9:15]))
        assert found == sorted(found)
        assert len(set(found)) == len(found)


def test_a_broker_that_is_away_is_said_so(site: Site) -> None:
    site.broker.kill()
    refused = Raw(site.front).send(encode_connect(5, "early", clean=True, keep_alive_seconds=0))
    with ended(refused):
        assert refused.packet() == (PacketType.CONNACK << 4, bytes((0, 0x88, 0)))
        assert refused.packet() == (0, b"")
    old = Raw(site.front).send(encode_connect(4, "early", clean=True, keep_alive_seconds=0))
    with ended(old):
        assert old.packet() == (PacketType.CONNACK << 4, bytes((0, 3)))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("killed", ["front", "broker"])
@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost_when_something_is_killed(
    site: Site, killed: str, qos: int, times: int
) -> None:
    subscriber = Paho(site.front, "sub", clean=False).connected().subscribe("safe", qos)
    # What a client does after a kill with what it had not finished is its own affair: paho may publish it anew.
    publisher = Paho(
        site.broker.port if (killed, qos) == ("front", 2) else site.front, "pub", clean=False
    ).connected()
    sent: dict[int, bytes] = {}
    with ended(subscriber, publisher):
        for round_number in range(times):
            for number in range(100):
                payload = b"%d-%d" % (round_number, number)
                sent[publisher.client.publish("safe", payload, qos).mid] = payload
            if killed == "front":
                site.gateway.kill()
                site.gateway.start()
            else:
                # What Mosquitto has acknowledged and not saved is lost with it, with or without a front.
                assert publisher.wait(lambda: publisher.published == set(sent))
                site.broker.save()
                time.sleep(0.2)
                site.broker.kill()
                site.broker.start()
        assert publisher.wait(lambda: publisher.published == set(sent))
        expected = set(sent.values())
        assert subscriber.wait(lambda: expected <= set(subscriber.payloads)), (
            f"lost: {sorted(expected - set(subscriber.payloads))[:9]}"
        )
        if qos == 2 and killed == "front":
            assert not [payload for payload, count in Counter(subscriber.payloads).items() if count > 1]
