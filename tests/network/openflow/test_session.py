"""A session with a switch that the test plays: handshake, answers, errors, liveness, nonsense."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Coroutine

import pytest
from tests.network.openflow.fake_switch import (
    BARRIER_REPLY,
    BARRIER_REQUEST,
    ECHO_REPLY,
    ECHO_REQUEST,
    ERROR,
    HELLO,
    MULTIPART_REPLY,
    MULTIPART_REQUEST,
    PACKET_IN,
    PORT_STATUS,
    Told,
    connection,
    message,
    port,
    session,
)

from triagemq.errors import SessionClosedError, SwitchError
from triagemq.network.openflow import encoding
from triagemq.network.openflow.decoding import PacketIn, PortDescription
from triagemq.network.openflow.rules import OutputAction, Rule, matching
from triagemq.network.openflow.session import SessionTimes, SwitchSession


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def until(check: object) -> None:
    while not check():  # type: ignore[operator]
        await asyncio.sleep(0.01)


RULE = Rule(1, 300, matching(udp_dst=2000, eth_type=0x0800, ip_proto=17), copies=(OutputAction(1, 46),))


def test_the_handshake_learns_the_switch_and_its_ports() -> None:
    async def work() -> None:
        async with session(ports=port(1) + port(2, up=False)) as (opened, _, _, _):
            assert opened.datapath_id == 7
            assert opened.ports == {
                1: PortDescription(1, "veth1", True),
                2: PortDescription(2, "veth2", False),
            }

    run(work())


def test_a_barrier_names_what_was_refused() -> None:
    async def work() -> None:
        async with session() as (opened, switch, _, _):
            opened.send(encoding.flow_mod(RULE, 1, None), f"the rule {RULE}")
            opened.send(encoding.flow_mod(RULE, 2, None), "another")
            waiting = asyncio.create_task(opened.barrier())
            transaction, _ = await switch.hear_kind(14)
            switch.say(message(ERROR, struct.pack("!HH", 5, 1), transaction))
            transaction, _ = await switch.hear_kind(BARRIER_REQUEST)
            switch.say(message(BARRIER_REPLY, transaction=transaction))
            with pytest.raises(
                SwitchError,
                match=r"switch 0000000000000007 refused the rule \[table 1 .*udp_dst=2000\] "
                r"\(flow mod failed: table full\)",
            ):
                await waiting
            waiting = asyncio.create_task(opened.barrier())
            transaction, _ = await switch.hear_kind(BARRIER_REQUEST)
            switch.say(message(BARRIER_REPLY, transaction=transaction))
            await waiting

    run(work())


def test_statistics_come_in_parts() -> None:
    async def work() -> None:
        async with session() as (opened, switch, _, _):
            waiting = asyncio.create_task(opened.parts(encoding.REQUEST_METER_COUNTS, "counters"))
            transaction, _ = await switch.hear_kind(MULTIPART_REQUEST)
            for flags, body in ((1, b"one"), (1, b"two"), (0, b"three")):
                switch.say(message(MULTIPART_REPLY, struct.pack("!HH4x", 4, flags) + body, transaction))
            assert await waiting == [b"one", b"two", b"three"]
            waiting = asyncio.create_task(opened.parts(encoding.REQUEST_METER_COUNTS, "counters"))
            transaction, _ = await switch.hear_kind(MULTIPART_REQUEST)
            switch.say(message(ERROR, struct.pack("!HH", 1, 2), transaction))
            with pytest.raises(SwitchError, match=r"the request for counters \(bad request: bad multipart\)"):
                await waiting

    run(work())


def test_news_is_passed_on() -> None:
    async def work() -> None:
        async with session(ports=port(1)) as (opened, switch, told, _):
            match = b"\x00\x01\x00\x0c\x80\x00\x00\x04\x00\x00\x00\x05" + bytes(4)
            body = struct.pack("!IHBBQ", 0xFFFFFFFF, 3, 0, 0, 99) + match + bytes(2) + b"abc"
            # Octet by octet: what is not complete waits.
            for octet in message(PACKET_IN, body):
                switch.say(bytes([octet]))
                await switch.writer.drain()
            switch.say(message(PORT_STATUS, b"\x02" + bytes(7) + port(1, up=False)))
            switch.say(message(PORT_STATUS, b"\x01" + bytes(7) + port(1)))
            await until(lambda: len(told.ports) == 2)
            assert told.packets == [PacketIn(5, 99, b"abc")]
            assert [(gone, each.up) for gone, each in told.ports] == [(False, False), (True, True)]
            assert opened.ports == {}

    run(work())


def test_echoes_go_both_ways() -> None:
    async def work() -> None:
        async with session() as (_, switch, _, counters):
            switch.say(message(ECHO_REQUEST, b"are you there", 77))
            assert await switch.hear_kind(ECHO_REPLY) == (77, b"are you there")
            transaction, _ = await switch.hear_kind(ECHO_REQUEST)
            switch.say(message(ECHO_REPLY, transaction=transaction))
            assert not counters

    run(work())


def test_a_silent_switch_is_given_up() -> None:
    async def work() -> None:
        times = SessionTimes(answer_seconds=30, echo_seconds=0.05, silence_seconds=0.3)
        async with session(times=times) as (opened, _, told, counters):
            await opened.ended.wait()
            assert counters == {"silent": 1}
            assert told.ends == 1
            with pytest.raises(SessionClosedError):
                await opened.barrier()
            with pytest.raises(SessionClosedError):
                opened.send(encoding.REQUEST_PORTS, "ports")

    run(work())


def test_whoever_waits_learns_of_the_end() -> None:
    async def work() -> None:
        async with session() as (opened, switch, _, counters):
            waiting = asyncio.create_task(opened.barrier())
            await switch.hear_kind(BARRIER_REQUEST)
            switch.writer.close()
            with pytest.raises(SessionClosedError):
                await waiting
            assert counters == {"lost": 1}

    run(work())


@pytest.mark.parametrize(
    "octets",
    [
        message(BARRIER_REPLY, version=1),
        b"\x04\x0a\x00\x04\x00\x00\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        message(PACKET_IN, b"short"),
        message(PACKET_IN, bytes(16) + b"\x00\x01\xff\xff" + bytes(40)),
        message(PORT_STATUS, bytes(5)),
        message(MULTIPART_REPLY, b"x"),
        message(ERROR, b""),
    ],
)
def test_nonsense_ends_the_connection_and_is_counted(octets: bytes) -> None:
    async def work() -> None:
        async with session() as (opened, switch, told, counters):
            switch.say(octets)
            await opened.ended.wait()
            assert counters == {"nonsense": 1}
            assert told.ends == 1

    run(work())


@pytest.mark.parametrize(
    "octets",
    [
        b"\x00" * 64,
        message(HELLO, version=1),
        message(HELLO, struct.pack("!HHI", 1, 8, 1 << 6), version=6),
        message(HELLO, struct.pack("!HHI", 1, 0, 0)),
        message(ERROR, struct.pack("!HH", 0, 0)),
        message(HELLO) + message(6, b"short", 2),
        b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(2000),
    ],
)
def test_who_cannot_shake_hands_is_not_let_in(octets: bytes) -> None:
    async def work() -> None:
        async with connection() as (streams, switch):
            counters, told = Counter[str](), Told()
            opening = asyncio.create_task(SwitchSession(*streams, told, counters, SessionTimes()).open())
            switch.say(octets)
            switch.writer.write_eof()
            with pytest.raises(SessionClosedError):
                await opening
            assert counters.total() == 1
            assert told.ends == 0

    run(work())


@pytest.mark.parametrize(
    ("octets", "offered"),
    [
        (message(HELLO, version=1, transaction=5), "0x01"),
        (message(HELLO, struct.pack("!HHI", 1, 8, 1 << 6), version=6, transaction=5), "0x06"),
        (message(HELLO, struct.pack("!HHI", 1, 8, 0), transaction=5), "none"),
    ],
)
def test_a_switch_without_a_common_version_is_told_hello_failed(octets: bytes, offered: str) -> None:
    async def work() -> None:
        async with connection() as (streams, switch):
            counters = Counter[str]()
            opening = asyncio.create_task(SwitchSession(*streams, Told(), counters).open())
            switch.say(octets)
            transaction, body = await switch.hear_kind(ERROR)
            assert (transaction, body[:4]) == (5, struct.pack("!HH", 0, 0))
            assert (
                body[4:].decode("ascii")
                == f"this controller speaks OpenFlow 1.3 (0x04), the switch offers {offered}"
            )
            assert await switch.reader.read() == b""
            with pytest.raises(SessionClosedError):
                await opening
            assert counters == {"incompatible version": 1}

    run(work())


def test_a_newer_switch_that_also_speaks_1_3_is_let_in() -> None:
    async def work() -> None:
        async with connection() as (streams, switch):
            switch.say(message(HELLO, struct.pack("!HHI", 1, 8, 1 << 4 | 1 << 6), version=6))

            async def rest() -> None:
                transaction, _ = await switch.hear_kind(5)
                switch.say(message(6, struct.pack("!QIBB2xII", 9, 0, 254, 0, 0, 0), transaction))
                transaction, _ = await switch.hear_kind(MULTIPART_REQUEST)
                switch.say(message(MULTIPART_REPLY, struct.pack("!HH4x", 13, 0), transaction))

            opened, _ = await asyncio.gather(SwitchSession(*streams, Told(), Counter[str]()).open(), rest())
            assert opened.name == "0000000000000009"
            opened.close()

    run(work())
