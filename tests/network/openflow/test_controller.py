"""The controller's listener with switches that the test plays: who is let in, and what a refused probe concerns."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.network.openflow.fake_switch import PACKET_IN, AnsweringSwitch, message, port

from triagemq.certificates import own_certificate
from triagemq.errors import NetworkError
from triagemq.network.openflow import SwitchTls, Timing
from triagemq.network.openflow.controller import Controller
from triagemq.network.openflow.rule_sets import LimitedFlow
from triagemq.network.openflow.session import SessionTimes
from triagemq.plan.dataplane import FlowKey, SetFlow

PACKET_OUT = 13
KEY = FlowKey("239.1.2.3", 2000)
QUICK = Timing(
    try_seconds=0.01,
    link_seconds=0.02,
    edge_seconds=0.02,
    ask_seconds=0.02,
    session=SessionTimes(answer_seconds=20, echo_seconds=0.3, silence_seconds=20),
)


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


@asynccontextmanager
async def controller(
    expected: Collection[int] = (7,), tls: SwitchTls | None = None, allowed: Collection[str] = ()
) -> AsyncIterator[Controller]:
    made = Controller(expected, ports={"radio": (7, "veth1")}, timing=QUICK, tls=tls, allowed=list(allowed))
    await made.open([("127.0.0.1", 0)])
    try:
        yield made
    finally:
        await made.close(keep_rules=True)


@asynccontextmanager
async def switch(
    made: Controller,
    datapath_id: int = 7,
    *,
    ports: bytes = b"",
    refused: Collection[int] = (),
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[AnsweringSwitch, asyncio.Task[None]]]:
    """A switch that answers, and the task that ends with its connection."""
    (place,) = made.server.listening
    assert isinstance(place, tuple)
    streams = await asyncio.open_connection(*place, ssl=context)
    played = AnsweringSwitch(*streams, datapath_id, ports, refused)
    running = asyncio.create_task(played.run())
    try:
        yield played, running
    finally:
        running.cancel()
        played.writer.close()


async def until_connected(made: Controller, switches: Collection[int] = (7,)) -> None:
    while made.connected != set(switches):
        await asyncio.sleep(0.01)


def test_a_switch_that_answers_is_not_displaced_by_one_with_its_datapath_id() -> None:
    async def work() -> None:
        async with controller() as made, switch(made) as (_, first):
            await until_connected(made)
            async with switch(made) as (_, second):
                await second
                assert made.session_errors == {"connected twice": 1}
            assert not first.done()
            assert made.connected == {7}

    run(work())


def test_a_switch_that_answers_no_more_is_replaced_when_it_comes_again() -> None:
    async def work() -> None:
        async with controller() as made, switch(made) as (hung, first):
            await until_connected(made)
            hung.hung = True
            async with switch(made) as (_, second):
                await first
                await until_connected(made)
                assert not second.done()
                assert made.session_errors == {"no answer": 1}

    run(work())


def test_a_switch_that_is_not_expected_is_not_let_in() -> None:
    async def work() -> None:
        async with controller() as made, switch(made, 8) as (_, running):
            await running
            assert made.session_errors == {"not expected": 1}
            assert not made.connected

    run(work())


def test_packets_of_a_connection_that_was_not_let_in_place_no_hosts() -> None:
    async def work() -> None:
        async with controller() as made, switch(made, ports=port(1)) as (_, _):
            await made.wait_until_ready(20)
            async with switch(made, ports=port(1)) as (stranger, second):
                frame = bytes.fromhex(
                    "ffffffffffff020000000099080600010800060400010200000000990a000063"
                ) + bytes(10)
                match = bytes.fromhex("0001000c8000000400000001") + bytes(4)
                body = (
                    bytes.fromhex("ffffffff") + len(frame).to_bytes(2, "big") + bytes(10) + match + bytes(2)
                )
                while not second.done():
                    stranger.say(message(PACKET_IN, body + frame))
                    await asyncio.sleep(0.005)
            assert not made.discovery.network.hosts

    run(work())


@pytest.mark.parametrize(
    ("allowed", "let_in"), [(["127.0.0.0/8"], True), (["::1", "127.0.0.1"], True), (["192.0.2.0/24"], False)]
)
def test_switches_connect_from_allowed_addresses_only(allowed: list[str], let_in: bool) -> None:
    async def work() -> None:
        async with controller(allowed=allowed) as made, switch(made) as (_, running):
            if let_in:
                await until_connected(made)
            else:
                await running
                assert made.server.refused == {"address not allowed": 1}
            assert not let_in or not running.done()

    run(work())


def test_with_tls_only_switches_with_a_certificate_of_the_authority_are_let_in(tmp_path: Path) -> None:
    ours, theirs, other = (own_certificate(tmp_path / name) for name in ("ours", "theirs", "other"))

    def context(of: tuple[Path, Path] | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=ours[0])
        if of is not None:
            made.load_cert_chain(*of)
        return made

    async def work() -> None:
        async with controller(tls=SwitchTls(*ours, authority=theirs[0])) as made:
            for stranger in (None, other):
                async with switch(made, context=context(stranger)) as (played, running):
                    await running
                    assert not played.heard
            assert not made.connected
            async with switch(made, context=context(theirs)):
                await until_connected(made)

    run(work())
    with pytest.raises(NetworkError, match="certificates for switches cannot be used"):
        SwitchTls(tmp_path / "none", ours[1], theirs[0]).context()


def test_a_refused_probe_rolls_no_plan_back_and_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with (
            controller() as made,
            switch(made, ports=port(1) + port(2), refused=[PACKET_OUT]) as (
                played,
                _,
            ),
        ):
            await made.wait_until_ready(20)
            flow = SetFlow(KEY, "radio", 0, 0, 0.0)
            for _ in range(20):
                # Between the probes, whose errors come meanwhile.
                await made.set_flows({KEY: (LimitedFlow(flow),)})
                await made.set_flows({KEY: ()})
            probes = played.heard[PACKET_OUT]
            while played.heard[PACKET_OUT] < probes + 50:
                await asyncio.sleep(0.01)
            session = made._tables[7].session
            assert all(each.answer is not None for each in session._requests.values())
            assert made.problem is None
            assert made.session_errors["error (bad request: bad port)"] >= 50

    run(work())
