"""What pages show, gathered once a second for all of them: of live figures, forecasts and decisions.

Gathering begins when the first page is opened and ends when no page was open for a while; pages read `latest` and the
series, which reach back some minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.loop.figures import Live
from triagemq.coordinator.store.store import StoredDecision
from triagemq.coordinator.subscriptions import CapturedUtility
from triagemq.errors import TriageError
from triagemq.waiting import end

SERIES_SECONDS = 300
_TOGETHER_SECONDS = 5
"""Reports of subscribers come every few seconds: class figures are of so many seconds."""
_PATIENCE_SECONDS = 600.0
_DECISIONS = 60
_FIGURES_SECONDS = 3.0
OLD_SECONDS = 4.0
"""Figures that are older say so."""

Series = deque[float | None]


def _series() -> Series:
    return deque(maxlen=SERIES_SECONDS)


@dataclass(frozen=True, slots=True)
class ClassReading:
    """A priority class in the last seconds, and what was forecast for it; the 95th percentile is a typical second's."""

    priority_class: int
    offered_per_second: float
    sent_per_second: float
    received_per_second: float
    success_rate: float | None
    mean_latency_seconds: float | None
    max_latency_seconds: float | None
    p95_seconds: float | None
    forecast: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PortReading:
    """An output port in the last second; `tolerance` is the load up to which plans fill it."""

    name: str
    bandwidth_bps: float | None
    sent_bps: float
    load: float | None
    rho_offered: float | None
    rho_planned: float | None
    tolerance: float
    backlog_packets: int
    dropped_by_buffer_per_second: float


@dataclass(frozen=True, slots=True)
class UtilityReading:
    """Shares of the maximum: captured by what is reported, forecast for the plan, and forecast without triage."""

    captured: float | None = None
    planned: float | None = None
    without_triage: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What is so now. While no gateway answers, figures of traffic are those of `measured_at`."""

    at: float
    measured_at: float | None
    """When traffic was measured last, in Unix seconds; None if it never was."""
    health: Mapping[str, Any]
    generation: int = 0
    subscriptions: int = 0
    publications_per_second: float = 0.0
    sessions: int = 0
    utility: UtilityReading = UtilityReading()
    classes: Sequence[ClassReading] = ()
    ports: Sequence[PortReading] = ()
    decisions: Sequence[StoredDecision] = ()
    forecast: Mapping[str, Any] = field(default_factory=dict)

    def old_seconds(self, now: float) -> float | None:
        """How old the figures are, if that is more than it should be."""
        age = 0.0 if self.measured_at is None else now - self.measured_at
        return age if age > OLD_SECONDS else None


class Readings:
    """`look` says that a page is open; `latest` is the last reading, None before the first."""

    def __init__(self, coordinator: ControlPlane, began: float) -> None:
        self.coordinator = coordinator
        self.latest: Reading | None = None
        self.captured, self.published = _series(), _series()
        self.success: dict[int, Series] = {}
        self.loads: dict[str, Series] = {}
        self.queues: dict[str, deque[tuple[int, ...]]] = {}
        """By port, packets that waited in each class, second by second."""
        self._looked = began
        self._recent: deque[Sequence[Mapping[str, Any]]] = deque(maxlen=_TOGETHER_SECONDS)
        self._task: asyncio.Task[None] | None = None
        self._forecasting: asyncio.Task[None] | None = None
        self._untriaged: tuple[Decided | None, float | None] = None, None
        self._utility: tuple[Decided, CapturedUtility] | None = None
        self._decisions: Sequence[StoredDecision] = ()
        self._measured: Reading | None = None

    def look(self) -> None:
        """A page is open: gather, if that is not done already."""
        self._looked = time.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._gather())

    async def close(self) -> None:
        await end(self._task, self._forecasting)

    async def _gather(self) -> None:
        live: Live = self.coordinator.live
        queue = live.listen()
        try:
            self._decisions = await self._read_decisions()
            self._take(None)
            while time.monotonic() - self._looked < _PATIENCE_SECONDS:
                try:
                    async with asyncio.timeout(_FIGURES_SECONDS):
                        figures = await queue.get()
                except TimeoutError:
                    figures = {}
                if figures is None:
                    # It took too long, and was left out: from here on again.
                    queue = live.listen()
                    continue
                self._decisions = await self._read_decisions()
                self._take(figures or None)
        finally:
            live.leave(queue)

    async def _read_decisions(self) -> Sequence[StoredDecision]:
        try:
            return await asyncio.to_thread(self.coordinator.service.store.latest_decisions, _DECISIONS)
        except TriageError:
            return self._decisions

    def _take(self, figures: Mapping[str, Any] | None) -> None:
        coordinator, decided = self.coordinator, self.coordinator.runtime.decided
        self._forecast(decided)
        predicted = coordinator.forecasts.latest() or {}
        if figures is not None or self._measured is None:
            self._measured = self._figures(figures, decided, predicted)
        captured = self._measured.utility.captured
        planned = (predicted.get("utility") or {}).get("rate")
        self.latest = replace(
            self._measured,
            at=time.time(),
            health=coordinator.health(),
            generation=coordinator.runtime.generation,
            subscriptions=0 if decided is None else len(decided.scenario.subscriptions),
            utility=UtilityReading(captured, planned, self._untriaged[1]),
            decisions=self._decisions,
            forecast=predicted,
        )
        now = self.latest
        self.captured.append(None if figures is None else now.utility.captured)
        self.published.append(None if figures is None else now.publications_per_second)
        for row in now.classes:
            rate = None if figures is None else row.success_rate
            self.success.setdefault(row.priority_class, _series()).append(rate)
        for port in now.ports:
            self.loads.setdefault(port.name, _series()).append(None if figures is None else port.load)
        measured = coordinator.runtime.measuring.latest
        for name, counted in (measured.ports if measured is not None and figures else {}).items():
            waiting = tuple(queue.backlog_packets for queue in counted.queues)
            self.queues.setdefault(name, deque(maxlen=SERIES_SECONDS)).append(waiting)

    def _figures(
        self, figures: Mapping[str, Any] | None, decided: Decided | None, predicted: Mapping[str, Any]
    ) -> Reading:
        """What is measured once a second."""
        if figures is None:
            return Reading(at=time.time(), measured_at=None, health={})
        self._recent.append(figures["classes"])
        return Reading(
            at=time.time(),
            measured_at=time.time(),
            health={},
            publications_per_second=figures["publications_per_second"],
            sessions=figures["sessions"],
            utility=UtilityReading(self._captured(decided)),
            classes=_classes(self._recent, predicted),
            ports=[] if decided is None else _ports(figures["ports"], decided, predicted),
        )

    def _captured(self, decided: Decided | None) -> float | None:
        predicted = None if decided is None else self.coordinator.forecasts.predicted(decided)
        if (
            decided is not None
            and predicted is not None
            and (self._utility is None or self._utility[0] is not decided)
        ):
            self._utility = decided, CapturedUtility(decided, predicted)
        if self._utility is None:
            return None
        self._utility[1].look(self.coordinator.watch)
        return self._utility[1].rate

    def _forecast(self, decided: Decided | None) -> None:
        """What a plain exchange would capture: once for each plan, when there is time."""
        busy = self._forecasting is not None and not self._forecasting.done()
        if decided is not None and decided is not self._untriaged[0] and not busy:
            self._forecasting = asyncio.get_running_loop().create_task(self._without_triage(decided))

    async def _without_triage(self, decided: Decided) -> None:
        try:
            await self.coordinator.forecasts.of(decided)
            figures = await self.coordinator.forecasts.without_triage(decided)
            self._untriaged = decided, figures["utility"]["rate"]
        except TriageError:
            self._untriaged = decided, None


def _classes(
    recent: Sequence[Sequence[Mapping[str, Any]]], predicted: Mapping[str, Any]
) -> list[ClassReading]:
    """Sums over the last seconds; shares and means of these sums."""
    forecasts = {row["priority_class"]: row for row in predicted.get("classes", ())}
    seconds = max(sum(bool(rows) for rows in recent), 1)
    found = []
    for level in sorted({row["priority_class"] for rows in recent for row in rows}):
        rows = [row for each in recent for row in each if row["priority_class"] == level]

        def total(name: str, rows: Sequence[Mapping[str, Any]] = rows) -> float:
            return float(sum(row[name] for row in rows))

        offered, sent, received = (total(f"{name}_per_second") for name in ("offered", "sent", "received"))
        timed = [row for row in rows if row["mean_latency_seconds"] is not None]
        heard = sum(row["received_per_second"] for row in timed)
        tails = [row["p95_seconds"] for row in timed if row["p95_seconds"] is not None]
        found.append(
            ClassReading(
                priority_class=level,
                offered_per_second=offered / seconds,
                sent_per_second=sent / seconds,
                received_per_second=received / seconds,
                success_rate=min(sent / offered, 1.0) if offered else None,
                mean_latency_seconds=sum(
                    row["mean_latency_seconds"] * row["received_per_second"] for row in timed
                )
                / heard
                if heard
                else None,
                max_latency_seconds=max((row["max_latency_seconds"] for row in timed), default=None),
                p95_seconds=median(tails) if tails else None,
                forecast=forecasts.get(level, {}),
            )
        )
    return found


def _ports(
    rows: Sequence[Mapping[str, Any]], decided: Decided, predicted: Mapping[str, Any]
) -> list[PortReading]:
    planned = {row["port"]: row for row in predicted.get("ports", ())}
    tolerance = 1.0 - decided.plan.made_by.rho_tolerance
    return [
        PortReading(
            name=row["port"],
            bandwidth_bps=row["bandwidth_bps"],
            sent_bps=row["sent_bps"],
            load=row["load"],
            rho_offered=planned.get(row["port"], {}).get("rho_offered"),
            rho_planned=planned.get(row["port"], {}).get("rho_planned"),
            tolerance=tolerance,
            backlog_packets=row["backlog_packets"],
            dropped_by_buffer_per_second=row["dropped_by_buffer_per_second"],
        )
        for row in rows
    ]
