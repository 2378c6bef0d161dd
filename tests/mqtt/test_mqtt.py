"""The MQTT client: packets cut anywhere, QoS over lost connections, limits of the broker, both versions."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.memory_broker import MemoryBroker
from tests.gateway.real import GatewayProcess, Mosquitto, Publisher, SnClient, ended

from triagemq.broker.address import BrokerAddress
from triagemq.broker.process import find_mosquitto
from triagemq.errors import MqttError
from triagemq.mqtt.connection import MqttConnection
from triagemq.mqtt.packets import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MAXIMUM_PACKET_SIZE,
    MESSAGE_EXPIRY,
    RESPONSE_TOPIC,
    SERVER_KEEP_ALIVE,
    SUBSCRIPTION_IDENTIFIER,
    ConnectAnswer,
    Message,
    PacketStream,
    PacketType,
    PublishProperties,
    encode_connect,
    encode_length,
    encode_properties,
    encode_publish,
    parse_connack,
    parse_properties,
    parse_publish,
)
from triagemq.mqtt.session import Login, MqttOwner, MqttSession, Packet


class Recorder(MqttOwner):
    """An owner that remembers."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, int]] = []
        self.published: list[tuple[object, int]] = []
        self.refusals: list[int] = []
        self.connections: list[bool] = []

    def mqtt_connected(self, session: MqttSession, answer: ConnectAnswer) -> None:
        self.connections.append(answer.session_present)

    def mqtt_refused(self, session: MqttSession, answer: ConnectAnswer) -> None:
        self.refusals.append(answer.code)

    def mqtt_message(self, session: MqttSession, message: Message) -> None:
        self.messages.append((message.payload, message.qos))

    def mqtt_published(self, session: MqttSession, packet: Packet, code: int) -> None:
        self.published.append((packet.token, code))


def connected(broker: MemoryBroker, *, clean: bool = False) -> tuple[Recorder, MqttSession]:
    recorder = Recorder()
    session = MqttSession(recorder, Login("me", session_expiry_seconds=0 if clean else 3600))
    broker.connect(session)
    settle(broker)
    return recorder, session


def settle(broker: MemoryBroker, pieces: int = 1 << 30) -> None:
    while broker.exchange(pieces):
        pass


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 2)), max_size=20),
    st.lists(st.integers(1, 50), min_size=1, max_size=50),
    st.sampled_from([4, 5]),
)
def test_stream_gives_the_same_packets_however_it_is_cut(
    messages: list[tuple[bytes, int]], cuts: list[int], version: int
) -> None:
    octets = b"".join(
        encode_publish(version, b"topic", payload, qos=qos, packet_id=7 if qos else 0)
        for payload, qos in messages
    )
    stream = PacketStream()
    found = []
    position = number = 0
    while position < len(octets):
        size = cuts[number % len(cuts)]
        for first, body in stream.feed(octets[position : position + size]):
            message = parse_publish(version, first, body)
            found.append((message.payload, message.qos))
        position += size
        number += 1
    assert found == messages


properties = st.fixed_dictionaries(
    {},
    optional={
        MESSAGE_EXPIRY: st.integers(0, 0xFFFF_FFFF),
        CONTENT_TYPE: st.text("a/\u00e9", max_size=3).map(str.encode),
        RESPONSE_TOPIC: st.text("a/", max_size=3).map(str.encode),
        CORRELATION_DATA: st.binary(max_size=3),
        # Payload Format Indicator.
        0x01: st.integers(0, 1),
    },
)


@given(properties, st.lists(st.integers(1, 0x0FFF_FFFF), max_size=2), st.randoms())
def test_what_mqtt_5_says_of_a_message_is_read_in_any_order(
    given: dict[int, Any], identifiers: list[int], random: Random
) -> None:
    said = [*given.items(), *((SUBSCRIPTION_IDENTIFIER, each) for each in identifiers)]
    random.shuffle(said)
    body = b"\0\1a" + encode_properties(said) + b"payload"
    message = parse_publish(5, PacketType.PUBLISH << 4, body)
    assert (message.topic, message.payload) == (b"a", b"payload")
    assert sorted(message.identifiers) == sorted(identifiers)
    assert message.properties == PublishProperties(
        given.get(MESSAGE_EXPIRY),
        given.get(CONTENT_TYPE, b"").decode(),
        given.get(RESPONSE_TOPIC, b"").decode(),
        given.get(CORRELATION_DATA, b""),
    )
    with pytest.raises(MqttError):
        parse_publish(5, PacketType.PUBLISH << 4, b"\0\1a\3")


def test_large_packet_in_many_pieces_is_not_copied_for_each() -> None:
    octets = encode_publish(4, b"t", bytes(2_000_000))
    stream = PacketStream()
    found = [
        packet for start in range(0, len(octets), 500) for packet in stream.feed(octets[start : start + 500])
    ]
    assert len(found) == 1


@given(st.integers(0, 268_435_455))
def test_lengths_survive_the_way_there_and_back(length: int) -> None:
    found, position = parse_properties(encode_properties([(0x0B, length)]), 0)
    assert found == [(0x0B, length)]
    assert position == 2 + len(encode_length(length))


@given(st.binary(max_size=60), st.integers(0, 255), st.sampled_from([4, 5]))
def test_no_octets_of_a_broker_cause_anything_but_an_mqtt_error(
    octets: bytes, first: int, version: int
) -> None:
    session = MqttSession(Recorder(), Login("me"), version=version)
    session.opened()
    for data in (b"\x20\x02\x00\x00" if version == 4 else b"\x20\x03\x00\x00\x00", bytes((first,)) + octets):
        try:
            session.receive(data)
        except MqttError:
            return


@pytest.mark.parametrize(("asked", "keeps"), [(None, 60), (5, 5), (0, 60)])
def test_a_broker_may_ask_for_another_keep_alive(asked: int | None, keeps: int) -> None:
    session = MqttSession(Recorder(), Login("me", keep_alive_seconds=60))
    session.opened()
    body = b"\0\0" + encode_properties([] if asked is None else [(SERVER_KEEP_ALIVE, asked)])
    session.receive(b"\x20" + encode_length(len(body)) + body)
    assert session.keep_alive_seconds == keeps


@pytest.mark.parametrize("version", [4, 5])
def test_qos_1_and_2_are_finished_over_a_lost_connection(version: int) -> None:
    broker = MemoryBroker(versions=(version,))
    recorder = Recorder()
    session = MqttSession(recorder, Login("me", session_expiry_seconds=3600), version=version)
    broker.connect(session)
    settle(broker)
    broker.holds_acknowledgements = True
    session.publish(Packet(b"a", b"1", 1, False, token="one"))
    session.publish(Packet(b"a", b"2", 2, False, token="two"))
    settle(broker)
    broker.lose(session)
    session.publish(Packet(b"a", b"3", 1, False, token="three"))
    assert not session.publish(Packet(b"a", b"4", 0, False))
    broker.holds_acknowledgements = False
    broker.connect(session)
    settle(broker)
    assert sorted(recorder.published) == [("one", 0), ("three", 0), ("two", 0)]
    assert session.backlog == 0
    # QoS 1 may come twice, QoS 2 may not.
    assert [payload for _, payload, _, _ in broker.published] == [b"1", b"2", b"1", b"3"]


def test_qos_2_from_the_broker_is_reported_once_over_a_lost_connection() -> None:
    broker = MemoryBroker()
    recorder, session = connected(broker)
    session.subscribe("a", 2, identifier=None)
    settle(broker)
    broker.publish("a", b"x", 2)
    # The message arrives, our PUBREC does not.
    broker._connections[0].session.receive(bytes(broker._connections[0].output))
    broker.lose(session)
    broker.connect(session)
    settle(broker)
    assert recorder.messages == [(b"x", 2)]
    assert recorder.connections == [False, True]
    assert not session.receiving


def _publish(packet_id: int, payload: bytes, *, dup: bool = False) -> bytes:
    return encode_publish(5, b"a", payload, qos=2, packet_id=packet_id, dup=dup)


def test_a_broker_that_was_killed_may_use_packet_ids_again_that_are_not_finished() -> None:
    recorder = Recorder()
    session = MqttSession(recorder, Login("me", session_expiry_seconds=3600))
    for boot in ("first", "second", "second"):
        session.closed()
        session.opened(boot)
        session.receive(b"\x20\x03\x01\x00\x00")
        # The last one has a memory of its own that is older, too: what comes without DUP is new.
        session.receive(_publish(2, boot.encode()))
        session.receive(_publish(2, boot.encode(), dup=True))
    assert [payload for payload, _ in recorder.messages] == [b"first", b"second", b"second"]


@pytest.mark.parametrize("boot", ["", "first"])
def test_a_new_message_under_a_packet_id_that_is_free_is_new_also_when_it_comes_with_dup(boot: str) -> None:
    recorder = Recorder()
    session = MqttSession(recorder, Login("me", session_expiry_seconds=3600))
    for dup in (False, True, True):
        # Each is equal to the one before. Of the later ones the first copy was lost with its connection.
        session.closed()
        session.opened(boot)
        session.receive(b"\x20\x03\x01\x00\x00" + _publish(1, b"alarm", dup=dup))
        session.closed()
        session.opened(boot)
        session.receive(b"\x20\x03\x01\x00\x00" + _publish(1, b"alarm", dup=True) + b"\x62\x02\x00\x01")
    assert [payload for payload, _ in recorder.messages] == [b"alarm"] * 3


def test_what_a_killed_broker_had_acknowledged_is_sent_again() -> None:
    session = MqttSession(Recorder(), Login("me", session_expiry_seconds=3600))
    session.opened("first")
    session.receive(b"\x20\x03\x01\x00\x00")
    session.publish(Packet(b"a", b"x", 2, False, token="one"))
    session.receive(b"\x50\x02\x00\x01")
    for boot, present, expected in (
        ("first", True, PacketType.PUBREL),
        ("second", True, PacketType.PUBLISH),
        ("second", False, PacketType.PUBLISH),
    ):
        session.closed()
        session.opened(boot)
        session.take_output()
        session.receive(bytes((0x20, 3, present, 0, 0)))
        assert {first >> 4 for first, _ in PacketStream().feed(session.take_output())} == {expected}


def test_receive_maximum_of_the_broker_is_kept() -> None:
    recorder = Recorder()
    session = MqttSession(recorder, Login("me"))
    session.opened()
    properties = encode_properties([(0x21, 2)])
    session.receive(bytes((0x20, 2 + len(properties), 0, 0)) + properties)
    session.output.clear()
    for number in range(5):
        session.publish(Packet(b"a", b"%d" % number, 1, False, token=number))
    assert len(list(PacketStream().feed(bytes(session.output)))) == 2
    session.output.clear()
    session.receive(b"\x40\x02\x00\x01")
    assert recorder.published == [(0, 0)]
    assert [body[-1:] for _, body in PacketStream().feed(bytes(session.output))] == [b"2"]


def test_maximum_packet_size_is_said_and_that_of_the_broker_is_kept() -> None:
    recorder = Recorder()
    session = MqttSession(recorder, Login("me"))
    session.opened()
    ((_, connect),) = PacketStream().feed(bytes(session.output))
    assert dict(parse_properties(connect, 10)[0])[MAXIMUM_PACKET_SIZE] == 1 << 20
    properties = encode_properties([(MAXIMUM_PACKET_SIZE, 100)])
    session.receive(bytes((0x20, 2 + len(properties), 0, 0)) + properties)
    session.output.clear()
    assert not session.publish(Packet(b"a", bytes(100), 0, False))
    for qos in (1, 2):
        session.publish(Packet(b"a", bytes(100), qos, False, token=qos))
    assert recorder.published == [(1, 0x95), (2, 0x95)]
    assert not session.output
    assert session.publish(Packet(b"a", bytes(90), 0, False))
    session.publish(Packet(b"a", bytes(90), 1, False))
    assert len(list(PacketStream().feed(bytes(session.output)))) == 2
    assert session.backlog == 1


def test_broker_of_3_1_1_is_recognised_by_its_refusal_and_by_its_closing() -> None:
    recorder = Recorder()
    session = MqttSession(recorder, Login("me"))
    session.opened()
    with pytest.raises(MqttError, match="MQTT 5"):
        session.receive(b"\x20\x02\x00\x01")
    session.closed()
    assert session.version == 4
    session.opened()
    session.receive(b"\x20\x02\x00\x00")
    assert session.connected
    session.closed()
    assert session.version == 4
    assert recorder.refusals == []


def test_refusal_is_reported_with_its_reason() -> None:
    answer = parse_connack(5, b"\0\x87" + encode_properties([(0x1F, b"not you")]))
    assert (answer.code, answer.reason) == (0x87, "not you")


def test_connect_carries_user_and_password() -> None:
    packet = encode_connect(4, "me", clean=True, keep_alive_seconds=1, user="u", password="p")
    assert packet[9] == 0xC2
    assert packet.endswith(b"\0\2me\0\1u\0\1p")


class CuttingProxy(threading.Thread):
    """Between gateway and broker: passes octets on, in pieces of every size from 1 on."""

    def __init__(self, broker_port: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._broker_port = broker_port
        self._sockets: list[socket.socket] = [self._listener]

    def run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._broker_port))
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        size = 0
        try:
            while data := source.recv(65536):
                position = 0
                while position < len(data):
                    size = size % 130 + 1
                    target.sendall(data[position : position + size])
                    position += size
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def end(self) -> None:
        for one in self._sockets:
            one.close()


def test_what_a_broker_sent_in_the_moment_in_which_it_died_is_reported() -> None:
    async def run() -> list[tuple[bytes, int]]:
        loop = asyncio.get_running_loop()
        recorder, gone = Recorder(), asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)

            def changed(connection: MqttConnection) -> None:
                if not connection.session.connected:
                    gone.set()
                elif recorder.messages == [(b"first", 1)] and broker.fileno() >= 0:
                    # Killed with octets unread, and so without a farewell: what we write to it now fails.
                    broker.sendall(encode_publish(5, b"a", b"second", qos=1, packet_id=2))
                    broker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    broker.close()
                connection.flush()

            session = MqttSession(recorder, Login("me", session_expiry_seconds=3600))
            address = BrokerAddress.parse(f"mqtt://127.0.0.1:{listener.getsockname()[1]}")
            connection = MqttConnection(address, session, before=lambda: None, changed=changed)
            task = loop.create_task(connection.run())
            broker, _ = await loop.sock_accept(listener)
            await loop.sock_recv(broker, 4096)
            broker.setblocking(True)
            broker.sendall(b"\x20\x03\x00\x00\x00" + encode_publish(5, b"a", b"first", qos=1, packet_id=1))
            async with asyncio.timeout(60):
                await gone.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return recorder.messages

    assert asyncio.run(run()) == [(b"first", 1), (b"second", 1)]


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_tcp_that_is_cut_everywhere_loses_nothing(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "broker")
    proxy = CuttingProxy(broker.port)
    proxy.start()
    gateway = GatewayProcess(tmp_path, "--broker", f"mqtt://127.0.0.1:{proxy.port}")
    client = SnClient(gateway.port, "one")
    publisher = Publisher(broker.port)
    things: tuple[Any, ...] = (gateway, client, publisher, proxy, broker)
    with ended(*things):
        client.connect().subscribe("a/#", 1)
        for number in range(2000):
            publisher.publish(f"a/{number % 7}", b"%d" % number + b"x" * (number % 200), 1)
        publisher.wait()
        client.collect(20, 2000)
        assert sorted(int(message.payload.rstrip(b"x")) for message in client.messages) == list(range(2000))


def test_qos_2_that_the_broker_holds_is_only_released_after_a_restart() -> None:
    broker = MemoryBroker()
    held: list[object] = []
    recorder, session = connected(broker)
    recorder.mqtt_released = lambda session, packet: held.append(packet.token)  # type: ignore[method-assign]
    session.publish(Packet(b"a", b"x", 2, False, token="first", packet_id=7))
    settle(broker)
    assert held == ["first"]
    # Killed after PUBREL: the broker has finished, and a PUBLISH under that packet id would be a new message.
    broker.lose(session)
    recorder, session = connected(broker)
    session.publish(Packet(b"a", b"x", 2, False, token="again", packet_id=7, released=True))
    settle(broker)
    assert recorder.published == [("again", 0)]
    assert [payload for _, payload, _, _ in broker.published] == [b"x"]
