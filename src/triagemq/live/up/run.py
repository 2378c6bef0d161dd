"""One live run of a scenario from start to figures: what `triage up FILE` and `triage demo` do.

While it runs it is watched class by class: packets by its gateway's counters, the rest by its Trace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from triagemq.client.coordinator import Coordinator
from triagemq.coordinator.channel.handle import merged
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import ControlError, Measured
from triagemq.coordinator.loop.figures import Traffic, class_traffic
from triagemq.errors import CoordinatorError, OutputError, TraceError
from triagemq.live.figures import (
    BySubscription,
    LiveFigures,
    by_subscription,
    copies_in,
    load_reading,
    measure,
    of_scenario,
    utility_figures,
)
from triagemq.live.processes import HURRY_SECONDS
from triagemq.live.run import (
    PlannedFigures,
    let_run,
    measured_from,
    moved_clients,
    planner_settings,
    promise,
    stop_publishing,
)
from triagemq.live.up.exchange import Exchange, ExchangeOptions
from triagemq.plan import dump_plan
from triagemq.scenario import Integers, Scenario, load
from triagemq.trace import Trace, add_forecast, runs

_ANSWER_SECONDS = 2.0
_COLUMNS = ["subscription_id", "published_ns", "delivered_ns", "outcome"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A gateway at one instant: its plan, its clients, the messages that have come to it, and packets by class."""

    generation: int
    clients: int
    messages: int
    traffic: Mapping[int, Traffic]
    """Since the watch began."""
    waiting: Mapping[int, int]


class Watch:
    """Asks the gateways every now and then, and adds up."""

    def __init__(self, links: Mapping[str, GatewayLink]) -> None:
        self._links = links
        self._before: Measured | None = None
        self._traffic: dict[int, Traffic] = {}

    async def look(self) -> Snapshot | None:
        """None while a gateway is away."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                several = {
                    name: await link.measure(flows=False, topics=False) for name, link in self._links.items()
                }
                now = merged(several, several, {}, time.time_ns())
        except (ControlError, TimeoutError, OSError):
            return None
        before = now if self._before is None else self._before
        for level, row in class_traffic(before, now).items():
            self._traffic.setdefault(level, Traffic()).add(*astuple(row))
        self._before = now
        waiting: dict[int, int] = {}
        for port in now.ports.values():
            for level, queue in enumerate(port.queues):
                waiting[level] = waiting.get(level, 0) + queue.backlog_packets
        return Snapshot(
            generation=now.generation,
            clients=now.sessions,
            messages=int(now.counters["broker_messages"]),
            traffic=self._traffic,
            waiting=waiting,
        )


@dataclass(slots=True)
class SoFar:
    """Latency by class and utility of a scenario's run that goes on: of its Trace, as far as that is on disk.

    `planned` is the class that triage gives each subscription, by which its copies are counted.
    """

    directories: Sequence[Path]
    scenario: Scenario
    planned: Integers
    latency: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By class, copies that were delivered and the sum of their latencies in seconds."""
    _read: set[Path] = field(default_factory=set)
    _counted: BySubscription | None = None

    def mean_latency_seconds(self, level: int) -> float | None:
        """Of what was delivered in a class; None if nothing was."""
        delivered, seconds = self.latency.get(level, (0, 0.0))
        return seconds / delivered if delivered else None

    @property
    def utility(self) -> dict[str, float | None] | None:
        """Of everything so far; None before there is anything."""
        return None if self._counted is None else utility_figures(self.scenario, self._counted)

    def look(self) -> None:
        """Take in the files that are new."""
        found = [runs(each) for each in self.directories if each.is_dir()]
        for run in (run for each in found for run in (*each.complete, *each.incomplete)):
            try:
                parts = Trace.open(run, allow_incomplete=True).parts["deliveries"]
                for part in parts:
                    if part not in self._read:
                        self._add(pq.read_table(part, columns=_COLUMNS))
                        self._read.add(part)
            except (TraceError, OSError, pa.ArrowException):
                # It is just being finished; the next look finds it.
                continue

    def _add(self, rows: pa.Table) -> None:
        subscription, _, delivered, latency_ns = copies_in(of_scenario(rows, self.scenario))
        counted = by_subscription(self.scenario, subscription, delivered, latency_ns)
        if len(subscription):
            self._counted = counted if self._counted is None else self._counted + counted
        label = self.planned[subscription]
        for level in np.unique(label[delivered]).tolist():
            chosen = delivered & (label == level)
            copies, total = self.latency.get(level, (0, 0.0))
            self.latency[level] = copies + int(chosen.sum()), total + float(latency_ns[chosen].sum()) * 1e-9


@dataclass(frozen=True, slots=True)
class Glance:
    """A run that goes on: what the gateway has counted (None while it is away), and measurement beside forecast."""

    seen: Snapshot | None
    so_far: SoFar
    forecast: PlannedFigures


OnTick = Callable[[Exchange, Glance, float], None]
"""Called every second with the exchange, what can be seen of it, and the seconds since publishing began."""


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Measured beside forecast."""

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
            "forecast": {**self.forecast.figures, "classes": _forecast_classes(self.forecast)},
            "restarts": self.restarts,
            **({} if self.moved is None else {"moved": self.moved}),
        }


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
        watch = Watch(exchange.links)
        so_far = SoFar(exchange.traces, scenario, expected.level)

        async def tick(elapsed: float) -> None:
            on_tick(exchange, Glance(await watch.look(), so_far, expected), elapsed)

        await let_run(begun_ns, seconds, ended, tick)
        until_ns = await stop_publishing(exchange, hurry=ended.is_set())
        from_ns = measured_from(begun_ns, until_ns)
        try:
            async with asyncio.timeout(HURRY_SECONDS if ended.is_set() else _ANSWER_SECONDS):
                for link in exchange.links.values():
                    await link.measured(from_ns, expected.level.tolist())
        except (ControlError, TimeoutError) as error:
            on_problem(f"the trace does not say what is measured: {error or 'a gateway does not answer'}")
        restarts = exchange.restarts
        moved = await _moved(exchange.rest) if len(exchange.links) > 1 else None
    await loading
    stored = expected.stored(scenario).dump()
    for run in (run for traces in exchange.traces for run in runs(traces).complete):
        try:
            add_forecast(run, stored)
        except OutputError as error:
            on_problem(str(error))
    measured = measure(
        exchange.traces, scenario, from_ns=from_ns, until_ns=until_ns, planned=expected.level, by_plan=True
    )
    return LiveResult(scenario, measured, expected, restarts, exchange.gone, moved)


async def _moved(rest: str) -> list[dict[str, Any]]:
    """The decisions about clients that were sent to another gateway."""
    coordinator = Coordinator(rest)
    found: list[dict[str, Any]] = []
    try:
        found = await moved_clients(coordinator)
    except CoordinatorError:
        # What is known of it is in the trace.
        pass
    finally:
        await coordinator.close()
    return [{name: each[name] for name in ("subject", "before", "after", "reason")} for each in found]


def _forecast_classes(forecast: PlannedFigures) -> list[dict[str, Any]]:
    rows = {row["priority_class"]: row for row in forecast.figures["classes"]}
    return [{**rows.get(row["priority_class"], {}), **row} for row in forecast.by_level]
