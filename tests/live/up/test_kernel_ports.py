"""The loops beside the kernel's queues: whatever fails, the queues are put back, and what fails is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

import pytest

from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import ControlError
from triagemq.live.up import kernel_ports
from triagemq.live.up.kernel_ports import KernelPorts
from triagemq.plan import Counters, FlowCounters, FlowKey, Instruction, PortCounters, QueueCounters

KEY = FlowKey("10.0.0.1", 2000)
COUNTED = Counters({"radio": PortCounters((QueueCounters(),), QueueCounters())}, {KEY: FlowCounters(1, 7)})


class Queues:
    """In place of the kernel's; `counters` may fail."""

    def __init__(self) -> None:
        self.closed = False
        self.reading: Callable[[], Counters] = lambda: COUNTED

    def trust(self, listeners: Sequence[object]) -> None:
        pass

    def apply(self, instructions: Sequence[Instruction]) -> None:
        pass

    def counters(self) -> Counters:
        return self.reading()

    def close(self) -> None:
        self.closed = True


class Link:
    """A gateway that counts what it is told."""

    def __init__(self, answer: Callable[[], Coroutine[Any, Any, str]]) -> None:
        self._answer = answer
        self.told = 0

    async def queues(self, ports: Mapping[str, object], *_: object) -> tuple[str, dict[tuple[str, int], int]]:
        self.told += 1
        return await self._answer(), {}

    async def events(self) -> Any:
        await asyncio.Event().wait()
        yield None

    async def measure(self, **_: object) -> None:
        raise ControlError("not here")


async def answers() -> str:
    return "epoch"


async def hangs() -> str:
    await asyncio.Event().wait()
    return ""


async def fails() -> str:
    raise KeyError("a fault that nobody foresaw")


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Queues:
    made = Queues()
    monkeypatch.setattr(kernel_ports, "LinuxDataPlane", lambda *_, **__: made)
    monkeypatch.setattr(kernel_ports, "_REPORT_SECONDS", 0.01)
    monkeypatch.setattr(kernel_ports, "_LAST_SECONDS", 0.1)
    return made


def ports(**links: Link) -> KernelPorts:
    return KernelPorts(cast("dict[str, GatewayLink]", links), {"radio": "eth1"})


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def broken() -> Counters:
    raise OSError("the interface is gone")


@pytest.mark.parametrize("answer", [answers, fails, hangs])
@pytest.mark.parametrize("reading", [lambda: COUNTED, broken])
def test_queues_are_put_back_whatever_fails_at_the_end(
    queues: Queues,
    answer: Callable[[], Coroutine[Any, Any, str]],
    reading: Callable[[], Counters],
) -> None:
    async def work() -> None:
        made = ports(first=Link(answer))
        made.open([])
        queues.reading = reading
        await asyncio.sleep(0.05)
        await made.close()
        assert queues.closed

    run(work())


def test_a_loop_that_fails_says_so_and_goes_on(queues: Queues) -> None:
    async def work() -> None:
        link = Link(answers)
        made = ports(first=link)
        queues.reading = broken
        made.open([])
        while not made.problem:
            await asyncio.sleep(0.01)
        assert "the interface is gone" in made.problem
        queues.reading = lambda: COUNTED
        while made.problem or not link.told:
            await asyncio.sleep(0.01)
        await made.close()
        assert made.counters == COUNTED

    run(work())


def test_a_gateway_that_hangs_keeps_no_other_from_being_told(queues: Queues) -> None:
    async def work() -> None:
        hung, other = Link(hangs), Link(answers)
        made = ports(hung=hung, other=other)
        made.open([])
        while other.told < 10:
            await asyncio.sleep(0.01)
        assert hung.told == 1
        await made.close()
        assert queues.closed

    run(work())
