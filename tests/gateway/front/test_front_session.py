"""One client and its connection to the broker, octet by octet, without sockets."""

from __future__ import annotations

from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.gateway.front.session import (
    Accepted,
    Acknowledged,
    Close,
    Copy,
    Dial,
    Event,
    FrontSession,
    SpeaksOld,
    ToBroker,
    ToClient,
)
from triagemq.mqtt import packets
from triagemq.mqtt.packets import PacketStream, PacketType, encode_acknowledgement, encode_packet
from triagemq.mqtt.translation import parse_connect

Kind = TypeVar("Kind")
CONNACK_4 = bytes.fromhex("20020000")


def of(kind: type[Kind], events: list[Event]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


def sent(events: list[Event]) -> list[tuple[int, bytes]]:
    """The packets for the broker."""
    return list(PacketStream().feed(b"".join(event.octets for event in of(ToBroker, events))))


def connect(version: int = 4, *, clean: bool = True, user: str | None = None) -> bytes:
    return packets.encode_connect(version, "panel", clean=clean, keep_alive_seconds=60, user=user)


def connack(*properties: tuple[int, object], code: int = 0) -> bytes:
    return encode_packet(PacketType.CONNACK << 4, bytes((0, code)) + packets.encode_properties(properties))


def connected(version: int = 4, *properties: tuple[int, object]) -> FrontSession:
    session = FrontSession()
    session.client_octets(connect(version))
    assert of(Accepted, session.broker_octets(connack(*properties))) == [Accepted("panel", False)]
    return session


def from_broker(topic: bytes, payload: bytes, qos: int = 0, packet_id: int = 0, version: int = 5) -> bytes:
    return packets.encode_publish(version, topic, payload, qos=qos, packet_id=packet_id)


@pytest.mark.parametrize("version", [4, 5])
def test_the_broker_is_asked_for_the_largest_window_whatever_the_client_speaks(version: int) -> None:
    session = FrontSession()
    events = session.client_octets(connect(version, user="lead"))
    assert isinstance(events[0], Dial)
    ((first, body),) = sent(events)
    request = parse_connect(body)
    assert first == PacketType.CONNECT << 4
    assert (request.version, request.receive_maximum, request.user) == (5, 0xFFFF, "lead")


@pytest.mark.parametrize(("clean", "expiry"), [(True, 0), (False, 0xFFFF_FFFF)])
def test_a_session_of_3_1_1_lasts_as_long_as_it_does_at_the_broker(clean: bool, expiry: int) -> None:
    ((_, body),) = sent(FrontSession().client_octets(connect(clean=clean)))
    request = parse_connect(body)
    assert dict(request.properties)[packets.SESSION_EXPIRY] == expiry
    assert bool(request.flags & 0x02) is clean


def test_a_client_of_3_1_1_gets_packets_of_3_1_1() -> None:
    session = FrontSession()
    session.client_octets(connect())
    assert of(ToClient, session.broker_octets(connack((packets.RECEIVE_MAXIMUM, 20)))) == [
        ToClient(CONNACK_4)
    ]
    session.client_octets(packets.encode_subscribe(4, 9, "a/#", 1))
    suback = encode_packet(PacketType.SUBACK << 4, bytes.fromhex("00090001"))
    assert of(ToClient, session.broker_octets(suback)) == [ToClient(bytes.fromhex("9003000901"))]
    (copy,) = of(Copy, session.broker_octets(from_broker(b"a/b", b"on", 1, 7)))
    assert copy.packet == packets.encode_publish(4, b"a/b", b"on", qos=1, packet_id=7)
    assert list(session.filters) == ["a/#"]


def test_the_broker_has_its_acknowledgement_when_the_client_has_given_it() -> None:
    session = connected(5)
    assert not sent(session.broker_octets(from_broker(b"a", b"x", 1, 7)))
    events = session.client_octets(encode_acknowledgement(PacketType.PUBACK, 7))
    assert sent(events) == [(PacketType.PUBACK << 4, b"\0\7")]
    assert of(Acknowledged, events) == [Acknowledged(7)]


def test_what_is_dropped_on_purpose_is_acknowledged_in_the_clients_place_at_qos_2_until_the_end() -> None:
    session = connected(4)
    (copy,) = of(Copy, session.broker_octets(from_broker(b"a", b"x", 2, 7)))
    assert sent(session.discard(copy.message)) == [(PacketType.PUBREC << 4, b"\0\7")]
    events = session.broker_octets(encode_acknowledgement(PacketType.PUBREL, 7))
    assert sent(events) == [(PacketType.PUBCOMP << 4, b"\0\7")]
    assert not of(ToClient, events)
    # The next message with this packet id is another one.
    session.broker_octets(from_broker(b"a", b"y", 2, 7))
    assert of(ToClient, session.broker_octets(encode_acknowledgement(PacketType.PUBREL, 7)))


def test_messages_beyond_what_a_broker_takes_at_once_wait_for_its_answers() -> None:
    session = connected(4, (packets.RECEIVE_MAXIMUM, 2))
    publish = [
        packets.encode_publish(4, b"a", b"%d" % number, qos=1, packet_id=number) for number in range(1, 5)
    ]
    events = session.client_octets(b"".join(publish) + packets.PING)
    assert [first >> 4 for first, _ in sent(events)] == [
        PacketType.PUBLISH,
        PacketType.PUBLISH,
        PacketType.PINGREQ,
    ]
    answered = session.broker_octets(encode_acknowledgement(PacketType.PUBACK, 1))
    assert [body[-1:] for _, body in sent(answered)] == [b"3"]


@pytest.mark.parametrize("answer", [bytes.fromhex("20020001"), connack(code=0x84)])
def test_a_broker_of_3_1_1_gets_3_1_1_and_what_the_client_has_said_meanwhile(answer: bytes) -> None:
    session = FrontSession()
    session.client_octets(connect() + packets.PING)
    events = session.broker_octets(answer)
    assert isinstance(events[0], Dial)
    ((_, body),) = sent(events)
    assert parse_connect(body).version == 4
    accepted = session.broker_octets(CONNACK_4)
    assert of(SpeaksOld, accepted)
    assert sent(accepted) == [(PacketType.PINGREQ << 4, b"")]


def test_a_broker_that_closes_when_it_sees_mqtt_5_is_tried_once_more() -> None:
    session = FrontSession()
    session.client_octets(connect())
    assert of(Dial, session.broker_lost())
    (close,) = of(Close, session.broker_lost())
    assert close.farewell == bytes.fromhex("20020003")


@pytest.mark.parametrize(("code", "expected"), [(0x86, 4), (0x87, 5), (0x85, 2), (0x97, 3)])
def test_a_refusal_reaches_the_client_in_its_own_words(code: int, expected: int) -> None:
    session = FrontSession()
    session.client_octets(connect())
    events = session.broker_octets(connack(code=code))
    assert of(ToClient, events) == [ToClient(bytes((0x20, 2, 0, expected)))]
    assert of(Close, events)


@pytest.mark.parametrize(
    "octets", [packets.PING, b"\x10\x03abc", b"\xff\xff\xff\xff\xff", b"\x30\xff\xff\xff\x7f"]
)
def test_a_client_that_does_not_begin_with_connect_is_closed(octets: bytes) -> None:
    assert of(Close, FrontSession().client_octets(octets))


def test_a_version_that_is_not_known_is_refused_in_words_that_every_client_knows() -> None:
    bridge = encode_packet(PacketType.CONNECT << 4, bytes.fromhex("00044d5154548402003c000167"))
    assert FrontSession().client_octets(bridge) == [Close("unknown_version", bytes.fromhex("20020001"))]


def test_a_packet_beyond_the_limit_is_refused_by_its_length() -> None:
    session = FrontSession(most_packet_bytes=1000)
    session.client_octets(connect(5))
    session.broker_octets(connack())
    (close,) = of(Close, session.client_octets(bytes.fromhex("30ffff03")))
    assert close == Close("packet_too_large", bytes.fromhex("e00195"))


def test_terms_stand_in_the_user_property_triage() -> None:
    session = connected(5)
    properties = packets.encode_properties([(packets.USER_PROPERTY, ("triage", "log:10"))])
    body = bytes.fromhex("0009") + properties + packets.encode_text("a/#") + b"\1"
    session.client_octets(encode_packet(PacketType.SUBSCRIBE << 4 | 2, body))
    session.broker_octets(encode_packet(PacketType.SUBACK << 4, bytes.fromhex("00090001")))
    assert session.filters["a/#"].intent == "log:10"
    session.client_octets(packets.encode_unsubscribe(5, 10, "a/#"))
    assert not session.filters


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_octets_of_any_kind_do_no_harm(client: bytes, broker: bytes) -> None:
    for session in (FrontSession(), connected(4), connected(5)):
        session.client_octets(client)
        session.broker_octets(broker)
        session.broker_lost()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_pieces_of_a_stream_make_the_same_packets(cuts: list[int]) -> None:
    stream = b"".join(
        from_broker(b"t/%d" % number, b"p" * number, number % 3, number + 1) for number in range(12)
    )
    whole = connected(4).broker_octets(stream)
    session, found, begin = connected(4), [], 0
    for cut in cuts:
        found += session.broker_octets(stream[begin : begin + cut])
        begin += cut
    found += session.broker_octets(stream[begin:])
    assert found == whole
