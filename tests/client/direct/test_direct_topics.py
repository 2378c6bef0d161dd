"""Publishers and subscribers of direct topics: large and typed values, declarations that hold, and errors in words."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from dataclasses import dataclass

import pytest
from tests.ports import own_port

from triagemq.client import ClientError, ClosedError, TypedTopic
from triagemq.client.direct import (
    BlockingDirectPublisher,
    BlockingDirectSubscriber,
    DirectEvent,
    DirectPublisher,
    DirectSubscriber,
    NetworkSettings,
)
from triagemq.client.direct.wire import DirectMessage, packets_of, topic_mark
from triagemq.client.types import UInt16
from triagemq.errors import ParameterError

LOOPBACK = NetworkSettings(interface="lo")
TOPIC, GROUP = "ward/3/pulse", "239.1.2.3:7400"


@dataclass
class Pulse:
    bed: UInt16
    beats_per_minute: float


def group_address() -> str:
    return f"239.255.{secrets.randbelow(250)}.{secrets.randbelow(250)}:{own_port(kind=socket.SOCK_DGRAM)}"


def test_messages_larger_than_a_packet_come_whole_by_multicast() -> None:
    address = group_address()
    with (
        BlockingDirectSubscriber(TOPIC, address, network=LOOPBACK) as listener,
        BlockingDirectPublisher(TOPIC, address, max_size_bytes=20_000, network=LOOPBACK) as sender,
    ):
        for size in (0, 1, 1_400, 1_500, 20_000):
            payload = secrets.token_bytes(size)
            sender.publish(payload)
            event = listener.next(60)
            assert event is not None
            assert event.value == payload
            assert event.published_ns <= event.arrived_ns <= event.received_ns
        assert (listener.counters.received, listener.counters.missing) == (5, 0)
        assert (sender.counters.not_sent, sender.problem) == (0, "")
        assert listener.host_delay.count == sender.host_delay.count == 5


def test_values_of_a_typed_topic_for_asyncio() -> None:
    asyncio.run(_values_of_a_typed_topic_for_asyncio())


async def _values_of_a_typed_topic_for_asyncio() -> None:
    pulse, address = TypedTopic(TOPIC, Pulse), group_address()
    found: list[DirectEvent] = []

    def found_with_a_mistake(event: DirectEvent) -> None:
        found.append(event)
        raise RuntimeError("a mistake of the program costs no event")

    async with (
        DirectSubscriber(pulse, address, network=LOOPBACK) as listener,
        DirectSubscriber(pulse, address, network=LOOPBACK, on_event=found_with_a_mistake),
        DirectPublisher(pulse, address, network=LOOPBACK) as sender,
    ):
        for bed in range(20):
            await sender.publish(Pulse(bed, 61.5))
        events = [await listener.next(60) for _ in range(20)]
        assert [event.value for event in events if event] == [Pulse(bed, 61.5) for bed in range(20)]
        assert await listener.next(0.1) is None
        assert [event.number for event in found] == list(range(1, 21))
        with pytest.raises(ParameterError, match="bed"):
            await sender.publish(Pulse(70_000, 61.5))
    assert [event async for event in listener] == []


def test_a_publisher_does_not_hear_itself_and_keeps_to_what_it_has_declared() -> None:
    with BlockingDirectPublisher(
        TOPIC, group_address(), max_size_bytes=10, min_separation_seconds=0.02, network=LOOPBACK
    ) as sender:
        begun = time.monotonic()
        for _ in range(4):
            sender.publish(b"0123456789")
        assert time.monotonic() - begun >= 3 * 0.02
        assert sender.counters.held_back == 3
        with pytest.raises(ParameterError, match=r"has 11 bytes, .* has declared 10"):
            sender.publish(b"0123456789!")
        assert sender.counters.published == 4
    with pytest.raises(ClosedError, match="was closed"):
        sender.publish(b"")


def test_calls_that_overlap_keep_the_separation_and_their_order() -> None:
    asyncio.run(_calls_that_overlap_keep_the_separation_and_their_order())


async def _calls_that_overlap_keep_the_separation_and_their_order() -> None:
    address = group_address()
    async with (
        DirectSubscriber(TOPIC, address, network=LOOPBACK) as listener,
        DirectPublisher(
            TOPIC, address, max_size_bytes=10, min_separation_seconds=0.005, network=LOOPBACK
        ) as sender,
    ):
        await asyncio.gather(*(sender.publish(str(number).encode()) for number in range(10)))
        events = [await listener.next(60) for _ in range(10)]
        assert [event.value for event in events if event] == [str(number).encode() for number in range(10)]
        times = [event.published_ns for event in events if event]
        assert sender.counters.held_back == 9
        assert times == sorted(times)


def test_foreign_packets_and_values_of_another_type_are_counted() -> None:
    address = group_address()
    group, _, port = address.rpartition(":")
    with (
        BlockingDirectSubscriber(TypedTopic(TOPIC, "<d"), address, network=LOOPBACK) as listener,
        BlockingDirectPublisher(TypedTopic(TOPIC, "<d"), address, network=LOOPBACK) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        stranger.sendto(b"hello", (group, int(port)))
        for packet in packets_of(DirectMessage(1, 1, 0, bytes(5)), topic_mark(TOPIC), 1_000):
            stranger.sendto(packet, (group, int(port)))
        sender.publish((61.5,))
        event = listener.next(60)
        assert event is not None
        assert event.value == (61.5,)
        assert listener.counters.rejected == {"malformed": 1}
        assert listener.counters.undecodable == 1


def test_the_mark_of_its_level_is_on_every_packet() -> None:
    address = group_address()
    group, _, port = address.rpartition(":")
    receive_ttl = 12
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.settimeout(60)
        wire.bind((group, int(port)))
        wire.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        wire.setsockopt(socket.IPPROTO_IP, receive_ttl, 1)
        membership = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
        wire.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        network = NetworkSettings(interface="lo", dscp=46, hops=5)
        with BlockingDirectPublisher(TOPIC, address, max_size_bytes=10, network=network) as sender:
            sender.publish(b"x")
            _, beside, _, _ = wire.recvmsg(2_000, 200)
    found = {kind: value[0] for _, kind, value in beside}
    assert found == {socket.IP_TOS: 46 << 2, socket.IP_TTL: 5}


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((TOPIC, "10.0.0.1:7400"), {"max_size_bytes": 9}, "must be a multicast GROUP:PORT"),
        ((TOPIC, "239.1.2.3"), {"max_size_bytes": 9}, "must be HOST:PORT"),
        ((TOPIC, GROUP), {}, "must be declared"),
        ((TOPIC, GROUP), {"max_size_bytes": 0}, "must be from 1"),
        (("a/+", GROUP), {"max_size_bytes": 9}, "no topic name"),
        ((TOPIC, GROUP), {"max_size_bytes": 9, "min_separation_seconds": -1}, "min_separation_seconds"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, str], options: dict[str, float], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        BlockingDirectPublisher(*arguments, **options)


def test_settings_of_the_network_are_checked() -> None:
    for wrong in ({"dscp": 64}, {"hops": 0}, {"mtu_bytes": 100}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            NetworkSettings(**wrong)  # type: ignore[arg-type]
    nowhere = NetworkSettings(interface="no-such")
    with pytest.raises(ClientError, match="through no-such"):
        BlockingDirectSubscriber(TOPIC, GROUP, network=nowhere)
    with pytest.raises(ClientError, match="through no-such"):
        BlockingDirectPublisher(TOPIC, GROUP, max_size_bytes=9, network=nowhere)


def test_every_end_may_be_closed_again() -> None:
    options = {"network": LOOPBACK, "max_size_bytes": 10}

    async def scene() -> None:
        for end in (DirectPublisher(TOPIC, address, **options), DirectSubscriber(TOPIC, address, **options)):
            await end.close()
            await end.open()
            await end.close()
            await end.close()

    address = group_address()
    for kind in (BlockingDirectPublisher, BlockingDirectSubscriber):
        with kind(TOPIC, address, **options) as end:
            end.close()
        end.close()
    with BlockingDirectPublisher(TOPIC, address, **options) as sender:
        sender.publish(b"x")
    assert sender.counters.published == 1
    with pytest.raises(ClosedError):
        sender.publish(b"y")
    asyncio.run(scene())
