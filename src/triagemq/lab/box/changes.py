"""Plays the conditions of a scenario during a run: each at its time, by the part of the rig that it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.lab.box.box import Box
from triagemq.scenario import Scenario
from triagemq.scenario.conditions import Conditions, Situation, situations

_LOSING: tuple[Literal["port", "publisher", "subscriber"], ...] = ("port", "publisher", "subscriber")


class Actors(Protocol):
    """Who brings about what is not the box's own doing: those that run inside it, and the data plane."""

    async def set_publisher(self, name: str, *, works: bool) -> None:
        """Stop a publisher as if it had failed, or start it again."""

    async def set_subscriber(self, name: str, *, present: bool) -> None:
        """Let a subscriber join, or leave."""

    async def set_bandwidth(self, port: str, bandwidth_bps: float) -> None:
        """Change what a port can carry."""

    async def set_worth(self, situation: Situation) -> None:
        """Switch to the worth profile of a situation."""

    async def situation_changed(self, situation: Situation) -> None:
        """Everything of one moment has happened: time to look whether the plan still fits."""


async def play(
    scenario: Scenario,
    conditions: Conditions,
    actors: Actors,
    box: Box | None = None,
    *,
    sleep_until: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Bring about every condition at its time, counted from this call; ends with the last one.

    Links fail and return in the box, and lose packets there. With Open vSwitch its controller finds the other path; the
    box's own bridges are changed. `sleep_until` waits for a time of the run; another clock may be given.
    """
    wait = sleep_until or _run_clock()
    course = situations(scenario, conditions)
    before = _undisturbed(scenario)
    for situation in course:
        await wait(situation.at_seconds)
        if box is not None:
            _change_links(scenario, box, before, situation)
            _change_errors(scenario, box, before, situation)
        for row in _changed(before.bandwidth_bps, situation.bandwidth_bps):
            await actors.set_bandwidth(scenario.ports.name[row], float(situation.bandwidth_bps[row]))
        for row in _changed(before.publisher_works, situation.publisher_works):
            await actors.set_publisher(
                scenario.publishers.name[row], works=bool(situation.publisher_works[row])
            )
        for row in _changed(before.subscriber_present, situation.subscriber_present):
            name = scenario.subscribers.name[row]
            await actors.set_subscriber(name, present=bool(situation.subscriber_present[row]))
        if (before.utility_weight != situation.utility_weight).any():
            await actors.set_worth(situation)
        if situation is not course[0]:
            await actors.situation_changed(situation)
        before = situation


def _change_links(scenario: Scenario, box: Box, before: Situation, after: Situation) -> None:
    for row in _changed(before.link_up, after.link_up):
        box.set_link(scenario.ports.name[row], up=bool(after.link_up[row]))
    feeding = after.feeding_ports(scenario)
    if feeding != before.feeding_ports(scenario):
        box.feed_by(feeding)


def _change_errors(scenario: Scenario, box: Box, before: Situation, after: Situation) -> None:
    names = {
        "port": scenario.ports.name,
        "publisher": scenario.publishers.name,
        "subscriber": scenario.subscribers.name,
    }
    for of in _LOSING:
        rates = getattr(after, f"{of}_error")
        for row in _changed(getattr(before, f"{of}_error"), rates):
            box.set_error_rate(of, names[of][row], float(rates[row]))


def _undisturbed(scenario: Scenario) -> Situation:
    """How a run is set up: everyone there, every link up and without loss. What is not so at the start changes that."""
    (calm,) = situations(scenario, Conditions())
    return replace(calm, **{f"{of}_error": np.zeros_like(getattr(calm, f"{of}_error")) for of in _LOSING})


def _changed(before: NDArray[np.generic], after: NDArray[np.generic]) -> list[int]:
    return [int(row) for row in np.flatnonzero(before != after)]


def _run_clock() -> Callable[[float], Awaitable[None]]:
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def sleep_until(at_seconds: float) -> None:
        await asyncio.sleep(max(0.0, start + at_seconds - loop.time()))

    return sleep_until
