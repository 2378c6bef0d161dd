"""One live run of a scenario from start to figures: what `triage up FILE` and `triage demo` do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from triagemq.coordinator.channel.lines import ControlError
from triagemq.coordinator.channel.link import Measured as GatewayFigures
from triagemq.coordinator.decide.decide import PlannerSettings
from triagemq.live.up.comparison import Promise, promise
from triagemq.live.up.exchange import EMBEDDED_CLASSES, Exchange, ExchangeOptions
from triagemq.live.up.measured import Measured, load_reading, measure
from triagemq.live.up.watching import Seen, SoFar, Watch
from triagemq.plan import dump_plan
from triagemq.scenario import Scenario, load

__all__ = ["Glance", "LiveResult", "OnTick", "planner_settings", "run_live"]

MOST_DRAINING_SECONDS = 15.0
"""From the publishers' last event to the end: what waits in queues still goes out."""

_SETTLING_SECONDS = 0.5
_HURRIED_SECONDS = 0.3
"""The same where the user has ended the run and waits; what is still queued then is in flight."""

_LONGEST_WARM_UP_SECONDS = 5.0
_WARM_UP_SHARE = 0.1
_TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Glance:
    """A run that goes on: what the gateway has counted (None while it is away), and measurement beside forecast."""

    seen: Seen | None
    so_far: SoFar
    forecast: Promise


OnTick = Callable[[Exchange, Glance, float], None]
"""Called every second with the exchange, what can be seen of it, and the seconds since publishing began."""


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Measured beside forecast."""

    scenario: Scenario
    measured: Measured
    forecast: Promise
    restarts: dict[str, int]
    gone: list[str]
    """Why a process did not run any more at the end."""

    def as_json(self) -> dict[str, Any]:
        """The keys of `triage simulate --json` for what was measured; the forecast as `triage forecast --json`."""
        return {
            "scenario": self.scenario.name,
            **self.measured.as_json(),
            "forecast": {**self.forecast.figures, "classes": _forecast_classes(self.forecast)},
            "restarts": self.restarts,
        }


def planner_settings(options: ExchangeOptions) -> tuple[PlannerSettings, PlannerSettings]:
    """What the exchange plans with, and what it would plan with if there were triage."""
    triage = PlannerSettings(**options.planner, priority_classes=EMBEDDED_CLASSES)
    return (PlannerSettings.no_triage() if options.no_triage else triage), triage


async def run_live(
    options: ExchangeOptions,
    *,
    seconds: float | None,
    ended: asyncio.Event,
    on_ready: Callable[[Exchange], None] = lambda exchange: None,
    on_tick: OnTick = lambda exchange, glance, elapsed: None,
    on_problem: Callable[[str], None] = lambda words: None,
) -> LiveResult:
    """Start everything, let the scenario's clients work for so long or until `ended`, stop, and measure."""
    assert options.scenario is not None
    scenario = load(options.scenario)
    settings, triage = planner_settings(options)
    expected = promise(scenario, settings, triage)
    planned = replace(options, plan_text=dump_plan(expected.plan))
    async with Exchange(planned, ended, on_problem) as exchange:
        on_ready(exchange)
        begun_ns = await exchange.start_clients()
        loading = asyncio.get_running_loop().run_in_executor(None, load_reading)
        watch = Watch(exchange.link)
        so_far = SoFar(exchange.trace, scenario, expected.level)
        limit = float("inf") if seconds is None else seconds
        while not ended.is_set():
            elapsed = (time.time_ns() - begun_ns) * 1e-9
            left = limit - elapsed
            if left <= 0:
                break
            on_tick(exchange, Glance(await watch.look(), so_far, expected), elapsed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _TICK_SECONDS)):
                    await ended.wait()
        until_ns = time.time_ns()
        await exchange.stop_publishers()
        await _drained(exchange, _HURRIED_SECONDS if ended.is_set() else MOST_DRAINING_SECONDS)
        lasted_ns = max(0, until_ns - begun_ns)
        warm_up_ns = min(round(_LONGEST_WARM_UP_SECONDS * 1e9), round(_WARM_UP_SHARE * lasted_ns))
        from_ns = begun_ns + warm_up_ns
        try:
            await exchange.link.measured(from_ns, expected.level.tolist())
        except ControlError as error:
            on_problem(f"the trace does not say what is measured: {error}")
        restarts = exchange.restarts
    await loading
    measured = measure(
        exchange.trace, scenario, from_ns=from_ns, until_ns=until_ns, planned=expected.level, by_plan=True
    )
    return LiveResult(scenario, measured, expected, restarts, exchange.gone)


async def _drained(exchange: Exchange, most_seconds: float) -> None:
    """Wait until no port holds a packet any more, and not for longer than that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_seconds):
            waiting = True
            while waiting:
                await asyncio.sleep(_SETTLING_SECONDS)
                figures = await _figures(exchange)
                waiting = figures is None or any(
                    queue.backlog_packets for port in figures.ports.values() for queue in port.queues
                )


async def _figures(exchange: Exchange) -> GatewayFigures | None:
    """None while the gateway is away."""
    try:
        async with asyncio.timeout(2.0):
            return await exchange.link.measure(flows=False, topics=False)
    except (ControlError, TimeoutError, OSError):
        return None


def _forecast_classes(forecast: Promise) -> list[dict[str, Any]]:
    rows = {row["priority_class"]: row for row in forecast.figures["classes"]}
    return [{**rows.get(row["priority_class"], {}), **row} for row in forecast.by_level]
