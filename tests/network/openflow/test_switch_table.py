"""What is on one switch: meters that come and go with the rules that need them, and a switch that has none."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from tests.network.openflow.fake_switch import (
    BARRIER_REPLY,
    BARRIER_REQUEST,
    ERROR,
    MULTIPART_REPLY,
    MULTIPART_REQUEST,
    FakeSwitch,
    flow_entry,
    message,
    session,
)

from triagemq.errors import SwitchError
from triagemq.network.openflow import switch_table
from triagemq.network.openflow.rules import OutputAction, Put, RateLimit, Rule, matching
from triagemq.network.openflow.switch_table import SwitchTable

LIMITED = Rule(1, 300, matching(eth_type=0x0800), copies=(OutputAction(1),), limit=RateLimit(64, 12))
METER_MOD = 29
FLOWS, METERS, METER_FEATURES = 1, 10, 11


async def answer(
    switch: FakeSwitch, most_meters: int | None, contents: Mapping[int, bytes] = MappingProxyType({})
) -> None:
    """Answer what a table asks first: rules; so many meters, or an error for one that knows of none."""
    for _ in range(3 if most_meters is not None else 2):
        transaction, body = await switch.hear_kind(MULTIPART_REQUEST)
        (kind,) = struct.unpack_from("!H", body)
        if kind == METER_FEATURES and most_meters is None:
            switch.say(message(ERROR, struct.pack("!HH", 1, 2), transaction))
            continue
        content = contents.get(kind, b"")
        if kind == METER_FEATURES:
            content = struct.pack("!IIIBB2x", most_meters or 0, 0b10, 0b1101, 1, 0)
        switch.say(message(MULTIPART_REPLY, struct.pack("!HH4x", kind, 0) + content, transaction))


def described(meter: int, limit: RateLimit) -> bytes:
    """A meter as a switch describes it."""
    return struct.pack(
        "!HHIHHII4x", 24, 0b1101, meter, 1, 16, limit.kilobits_per_second, limit.burst_kilobits
    )


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


@pytest.mark.parametrize("most_meters", [0, None])
def test_a_switch_without_meters_is_named_when_a_flow_is_to_be_limited(most_meters: int | None) -> None:
    async def work() -> None:
        async with session() as (opened, switch, _, _):
            table = SwitchTable(opened)
            await asyncio.gather(table.read(), answer(switch, most_meters))
            with pytest.raises(SwitchError, match=r"switch 0000000000000007 refused .*it has no meters"):
                table.request(Put(7, LIMITED))

    run(work())


def test_a_switch_with_few_meters_gets_numbers_that_it_has() -> None:
    async def work() -> None:
        async with session() as (opened, switch, _, _):
            table = SwitchTable(opened)
            await asyncio.gather(table.read(), answer(switch, 4))
            table.request(Put(7, LIMITED))
            assert [each.meter for each in table.installed.values()] == [3]
            other = Rule(
                1, 300, matching(eth_type=0x86DD), copies=(OutputAction(1),), limit=RateLimit(64, 12)
            )
            table.request(Put(7, other))
            with pytest.raises(SwitchError, match="all its meters are in use"):
                table.request(Put(7, Rule(1, 300, (), copies=(OutputAction(1),), limit=RateLimit(64, 12))))

    run(work())


def test_a_meter_goes_a_while_after_its_rule_and_not_if_the_new_rule_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switch_table, "_RESTING_SECONDS", -1.0)
    wider = replace(LIMITED, limit=RateLimit(128, 12))
    assert LIMITED.limit is not None
    assert wider.limit is not None

    async def work() -> None:
        async with session() as (opened, switch, _, _):
            table = SwitchTable(opened)
            await asyncio.gather(table.read(), answer(switch, 4))
            table.request(Put(7, LIMITED))
            table.request(Put(7, wider))
            assert [each.meter for each in table.installed.values()] == [4]
            # The switch has kept the first rule, and has both meters.
            contents = {
                FLOWS: flow_entry(LIMITED, 0x7154_8000_0000_0001, 3),
                METERS: described(3, LIMITED.limit) + described(4, wider.limit),
            }
            await asyncio.gather(table.read(), answer(switch, 4, contents))
            assert table.rules == {LIMITED.key: LIMITED}

            async def deleted() -> list[int]:
                """The meters that are deleted until a barrier is asked for."""
                found = []
                while True:
                    kind, transaction, body = await switch.hear()
                    if kind == MULTIPART_REQUEST:
                        switch.say(message(MULTIPART_REPLY, struct.pack("!HH4x", 9, 0), transaction))
                    elif kind == METER_MOD:
                        found.append(struct.unpack_from("!HHI", body)[2])
                    elif kind == BARRIER_REQUEST:
                        switch.say(message(BARRIER_REPLY, b"", transaction))
                        return found

            gone, _ = await asyncio.gather(deleted(), table.drop_meters())
            assert gone == [4]

    run(work())
