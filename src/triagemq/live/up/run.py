"""One live run of a scenario from its expected figures to the measured ones: `triage up FILE` and `triage demo`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from triagemq.channel.messages import ControlError
from triagemq.client.coordinator import Coordinator
from triagemq.coordinator.decide.decide import PlannerSettings, Question, decide
from triagemq.errors import CoordinatorError, OutputError
from triagemq.forecast import StoredForecast, figures_by_class, forecast, summary
from triagemq.live.figures import LiveFigures, measure
from triagemq.live.rig import HURRY_SECONDS, Rig, planner_settings
from triagemq.live.up.exchange import Exchange, ExchangeOptions
from triagemq.plan import Plan, dump_plan
from triagemq.scenario import Integers, Scenario, SendingOrder, load
from triagemq.trace import add_forecast, runs
from triagemq.waiting import is_set_within

_ANSWER_SECONDS = 2.0
_MOST_DRAINING_SECONDS = 15.0
"""From the publishers' last event to the end: what waits in queues still goes out."""
_HURRIED_SECONDS = 0.2
"""The same where the user has ended the run and waits; what is still queued then is in flight."""
_SETTLING_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_WARM_UP_SHARE = 0.1
_LONGEST_WARM_UP_SECONDS = 5.0


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

    @property
    def classes(self) -> list[dict[str, Any]]:
        """The figures of each class of the plan, with those of its level."""
        rows = {row["priority_class"]: row for row in self.figures["classes"]}
        return [{**rows.get(row["priority_class"], {}), **row} for row in self.by_level]

    def stored(self, scenario: Scenario) -> StoredForecast:
        """What is stored with the run's Trace."""
        return StoredForecast.of(forecast(*as_sent(scenario, self.plan)), self.level)


def expected_figures(
    scenario: Scenario, settings: PlannerSettings, triage: PlannerSettings
) -> PlannedFigures:
    """What a scenario can expect under `settings`, by the classes of `triage`.

    >>> from triagemq.scenario.building import building
    >>> settings = PlannerSettings()
    >>> made = expected_figures(building(), settings, settings)
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


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Measured figures, and those forecast."""

    scenario: Scenario
    measured: LiveFigures
    forecast: PlannedFigures
    restarts: dict[str, int]
    gone: list[str]
    """Why a process did not run any more at the end."""
    moved: list[dict[str, Any]] | None = None
    """Who went from where to where and why; None where there is one gateway."""

    def as_json(self) -> dict[str, Any]:
        """The keys of `triage simulate --json` for what was measured; the forecast as `triage forecast --json`."""
        return {
            "scenario": self.scenario.name,
            **self.measured.as_json(),
            "forecast": {**self.forecast.figures, "classes": self.forecast.classes},
            "restarts": self.restarts,
            **({} if self.moved is None else {"moved": self.moved}),
        }


async def run_live(
    options: ExchangeOptions,
    *,
    seconds: float | None,
    ended: asyncio.Event,
    on_ready: Callable[[Exchange], None] = lambda exchange: None,
    on_problem: Callable[[str], None] = lambda words: None,
) -> LiveResult:
    """Start everything, let the scenario's clients work for so long or until `ended`, stop, and measure."""
    assert options.scenario is not None
    scenario = load(options.scenario)
    settings, triage = planner_settings(options)
    expected = expected_figures(scenario, settings, triage)
    planned = replace(options, plan_text=dump_plan(expected.plan))
    # In a thread, and done before the clients start: at the end a user waits, and a first run compiles for a minute.
    forecasting = asyncio.get_running_loop().run_in_executor(None, lambda: expected.stored(scenario).dump())
    async with Exchange(planned, ended, on_problem) as exchange:
        on_ready(exchange)
        stored = await forecasting
        begun_ns = await exchange.start_clients()
        left = None if seconds is None else seconds + (begun_ns - time.time_ns()) * 1e-9
        await is_set_within(ended, left)
        until_ns = await stop_publishing(exchange, hurry=ended.is_set())
        from_ns = measured_from(begun_ns, until_ns)
        try:
            async with asyncio.timeout(HURRY_SECONDS if ended.is_set() else _ANSWER_SECONDS):
                for link in exchange.links.values():
                    await link.measured(from_ns, expected.level.tolist())
        except (ControlError, TimeoutError) as error:
            on_problem(f"the trace lacks the window of measurement: {error or 'a gateway does not answer'}")
        restarts = exchange.restarts
        moved = await _moved_clients(exchange.rest) if len(exchange.links) > 1 else None
    for run in (run for traces in exchange.traces for run in runs(traces).complete):
        try:
            add_forecast(run, stored)
        except OutputError as error:
            on_problem(str(error))
    measured = measure(
        exchange.traces, scenario, from_ns=from_ns, until_ns=until_ns, planned=expected.level, by_plan=True
    )
    return LiveResult(scenario, measured, expected, restarts, exchange.gone, moved)


async def _moved_clients(rest: str) -> list[dict[str, Any]]:
    """The decisions about clients that were sent to another gateway; the trace has those that are missing here."""
    coordinator, found = Coordinator(rest), []
    with contextlib.suppress(CoordinatorError):
        found = await moved_clients(coordinator)
    await coordinator.close()
    return [{name: each[name] for name in ("subject", "before", "after", "reason")} for each in found]


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
