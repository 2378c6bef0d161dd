"""What live runs of both kinds have in common: what their plan promises, their seconds, and the end of publishing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from triagemq.client.coordinator import Coordinator
from triagemq.coordinator.decide.decide import NO_SWITCHES, PlannerSettings, Question, decide
from triagemq.forecast import StoredForecast, figures_by_class, forecast, summary
from triagemq.live.rig import Rig, RigOptions
from triagemq.plan import Plan
from triagemq.scenario import Integers, Scenario, SendingOrder
from triagemq.waiting import end, is_set_within

_TICK_SECONDS = 1.0
_MOST_DRAINING_SECONDS = 15.0
"""From the publishers' last event to the end: what waits in queues still goes out."""
_HURRIED_SECONDS = 0.2
"""The same where the user has ended the run and waits; what is still queued then is in flight."""
_SETTLING_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_WARM_UP_SHARE = 0.1
_LONGEST_WARM_UP_SECONDS = 5.0


def planner_settings(options: RigOptions) -> tuple[PlannerSettings, PlannerSettings]:
    """What the rig plans with, and what it would plan with if there were triage."""
    reason = "" if options.promises else NO_SWITCHES
    triage = PlannerSettings(**options.planner, priority_classes=options.classes, no_promises=reason)
    return (PlannerSettings.no_triage() if options.no_triage else triage), triage


@dataclass(frozen=True, slots=True, eq=False)
class PlannedFigures:
    """The plan that an exchange makes of a whole scenario, and its forecast as `triage forecast --json` has it.

    `level` is the class that triage gives each subscription, also where there is no triage: the same groups, with and
    without. `by_level` are success, latency and flag of these.
    """

    plan: Plan
    level: Integers
    figures: dict[str, Any]
    by_level: list[dict[str, Any]]

    def stored(self, scenario: Scenario) -> StoredForecast:
        """What is put beside the run's Trace."""
        return StoredForecast.of(forecast(*as_sent(scenario, self.plan)), self.level)


def promise(scenario: Scenario, settings: PlannerSettings, triage: PlannerSettings) -> PlannedFigures:
    """What `settings` promise, by the classes of `triage`.

    >>> from triagemq.scenario.building import building
    >>> settings = PlannerSettings()
    >>> made = promise(building(), settings, settings)
    >>> made.by_level[0]["success_rate"] > made.by_level[-1]["success_rate"]
    True
    """
    plan = decide(Question(scenario, settings=settings)).plan
    level = plan.subscription_class
    if triage != settings:
        level = decide(Question(scenario, settings=triage)).plan.subscription_class
    predicted = forecast(*as_sent(scenario, plan), formulas=True)
    return PlannedFigures(
        plan=plan,
        level=level,
        figures=summary(scenario, plan, predicted),
        by_level=figures_by_class(predicted, level),
    )


def as_sent(scenario: Scenario, plan: Plan) -> tuple[Scenario, Plan]:
    """A scenario and its plan as an exchange carries them out: copies of one event leave the gateway by class, whatever
    order the scenario states for others."""
    sent = replace(scenario, sending_order=SendingOrder.BY_CLASS)
    return sent, replace(plan, scenario_fingerprint=sent.fingerprint)


async def let_run(
    begun_ns: int,
    seconds: float | None,
    ended: asyncio.Event,
    on_tick: Callable[[float], Coroutine[Any, Any, None]],
) -> None:
    """Until so many seconds after the first event, or until `ended`; `on_tick` hears every second how many it are."""
    loop = asyncio.get_running_loop()
    while not ended.is_set():
        elapsed = (time.time_ns() - begun_ns) * 1e-9
        left = float("inf") if seconds is None else seconds - elapsed
        if left <= 0:
            return
        # A gateway that hangs must not delay the end.
        ticking, ending = loop.create_task(on_tick(elapsed)), loop.create_task(ended.wait())
        await asyncio.wait({ticking, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ticking.done():
            ticking.result()
        await end(ticking, ending)
        await is_set_within(ended, min(left, _TICK_SECONDS))


async def stop_publishing(rig: Rig, *, hurry: bool) -> int:
    """End the publishers, and wait until the queues are empty, though not for ever; when it was, in Unix ns."""
    until_ns = time.time_ns()
    await rig.stop("publishers", hurry=hurry)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HURRIED_SECONDS if hurry else _MOST_DRAINING_SECONDS):
            await asyncio.sleep(_SETTLING_SECONDS)
            while await rig.is_draining():
                await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.sleep(_LOOK_SECONDS)
    return until_ns


def measured_from(begun_ns: int, until_ns: int) -> int:
    """Where the warm-up of a run ends.

    >>> measured_from(0, round(20e9)), measured_from(0, round(100e9))
    (2000000000, 5000000000)
    """
    lasted_ns = max(0, until_ns - begun_ns)
    return begun_ns + min(round(_LONGEST_WARM_UP_SECONDS * 1e9), round(_WARM_UP_SHARE * lasted_ns))


async def moved_clients(coordinator: Coordinator) -> list[dict[str, Any]]:
    """The decisions about clients that were sent to another gateway, oldest first."""
    found: list[dict[str, Any]] = []
    after, page = -1, dict[str, Any](last=0)
    while page["last"] != after:
        after = page["last"]
        page = await coordinator.ask("GET", f"/v1/decisions?limit=1000&after={after}")
        found += [each for each in page["decisions"] if each["kind"] == "moved"]
    return found
