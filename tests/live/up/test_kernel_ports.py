"""The loops beside the kernel's queues: whatever fails, the queues are put back, and what fails is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

import pytest

from triagemq.channel.link import GatewayLink
from triagemq.live.up import kernel_ports
from triagemq.live.up.kernel_ports import KernelPorts
from triagemq.plan.dataplane import Counters, FlowCounters, FlowKey, Instruction, PortCounters, QueueCounters

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
    """A gateway that counts the reports that it receives."""

    def __init__(self, answer: Callable[[], Coroutine[Any, Any, str]]) -> None:
        self._answer = answer
        self.reports = 0

    async def queues(self, ports: Mapping[str, object], *_: object) -> None:
        self.reports += 1
        await self._answer()

    async def news(self, *_: object) -> None:
        await asyncio.Event().wait()


async def answers() -> str:
    return "epoch"


async def hangs() -> str:
    await asyncio.Event().wait()
    return ""


async def fails() -> str:
    raise KeyError("an unforeseen fault")


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Queues:
    made = Queues()
    monkeypatch.setattr(kernel_ports, "LinuxDataPlane", lambda *_, **__: made)
    monkeypatch.setattr(kernel_ports, "_REPORT_SECONDS", 0.01)
    monkeypatch.setattr(kernel_ports, "_LAST_SECONDS", 0.1)
    return made


def ports(link: Link) -> KernelPorts:
    return KernelPorts(cast("GatewayLink", link), {"radio": "eth1"})


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
        made = ports(Link(answer))
        made.open([])
        queues.reading = reading
        await asyncio.sleep(0.05)
        await made.close()
        assert queues.closed

    run(work())


def test_a_loop_that_fails_says_so_and_goes_on(queues: Queues) -> None:
    async def work() -> None:
        link = Link(answers)
        made = ports(link)
        queues.reading = broken
        made.open([])
        while not made.problem:
            await asyncio.sleep(0.01)
        assert "the interface is gone" in made.problem
        queues.reading = lambda: COUNTED
        while made.problem or not link.reports:
            await asyncio.sleep(0.01)
        await made.close()
        assert made.counters == COUNTED

    run(work())
