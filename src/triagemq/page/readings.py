"""What pages show, gathered once a second for all of them: of live figures, forecasts and decisions.

Gathering begins when the first page is opened and ends when no page was open for a while; pages read `latest` and the
series, which reach back some minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.loop.figures import Live
from triagemq.coordinator.store import StoredDecision
from triagemq.coordinator.subscriptions import CapturedUtility
from triagemq.errors import TriageError
from triagemq.waiting import end

SERIES_SECONDS = 300
_PATIENCE_SECONDS = 600.0
_DECISIONS = 60
_FIGURES_SECONDS = 3.0
OLD_SECONDS = 4.0
"""Figures that are older say so."""

Series = deque[float | None]


def _series() -> deque[Any]:
    return deque(maxlen=SERIES_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is so now. While no gateway answers, figures of traffic are those of `measured_at`.

    `captured`, `planned` and `without_triage` are shares of the maximum utility: by what is reported, forecast for the
    plan, and forecast without triage. Rows of `classes` and `ports` are those of `/v1/live`, with their forecast.
    """

    measured_at: float | None = None
    """When traffic was measured last, in Unix seconds; None if it never was."""
    health: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0
    subscriptions: int = 0
    publications_per_second: float = 0.0
    sessions: int = 0
    captured: float | None = None
    planned: float | None = None
    without_triage: float | None = None
    classes: Sequence[Mapping[str, Any]] = ()
    ports: Sequence[Mapping[str, Any]] = ()
    decisions: Sequence[StoredDecision] = ()

    def old_seconds(self, now: float) -> float | None:
        """How old the figures are, if that is more than it should be."""
        age = 0.0 if self.measured_at is None else now - self.measured_at
        return age if age > OLD_SECONDS else None


class Readings:
    """`look` says that a page is open; `latest` is the last reading, None before the first."""

    def __init__(self, coordinator: ControlPlane) -> None:
        self.coordinator = coordinator
        self.latest: Reading | None = None
        self.series: defaultdict[tuple[str, object], Series] = defaultdict(_series)
        """Second by second: utility and publications, success by class, load by port; None is unknown."""
        self.queues: defaultdict[str, deque[tuple[int, ...]]] = defaultdict(_series)
        """By port, packets that waited in each class, second by second."""
        self._looked = 0.0
        self._task: asyncio.Task[None] | None = None
        self._forecasting: asyncio.Task[None] | None = None
        self._untriaged: tuple[Decided | None, float | None] = None, None
        self._utility_of: Decided | None = None
        self._utility: CapturedUtility | None = None
        self._decisions: Sequence[StoredDecision] = ()
        self._measured = Reading()

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
                    # Too slow: the listener was dropped, and begins again.
                    queue = live.listen()
                    continue
                self._decisions = await self._read_decisions()
                self._take(figures or None)
        finally:
            live.leave(queue)

    async def _read_decisions(self) -> Sequence[StoredDecision]:
        try:
            store = self.coordinator.service.store
            return await asyncio.to_thread(store.decisions, limit=_DECISIONS, latest=True)
        except TriageError:
            return self._decisions

    def _take(self, figures: Mapping[str, Any] | None) -> None:
        coordinator, decided = self.coordinator, self.coordinator.runtime.decided
        self._forecast(decided)
        predicted = coordinator.forecasts.latest() or {}
        now = self._measured
        if figures is not None:
            forecasts = {row["priority_class"]: row for row in predicted.get("classes", ())}
            now = self._measured = Reading(
                measured_at=time.time(),
                publications_per_second=figures["publications_per_second"],
                sessions=figures["sessions"],
                captured=self._captured(decided),
                classes=[
                    {**row, "forecast": forecasts.get(row["priority_class"], {})}
                    for row in figures["classes"]
                ],
                ports=[] if decided is None else _ports(figures["ports"], decided, predicted),
            )
        now = self.latest = replace(
            now,
            health=coordinator.health(),
            generation=coordinator.runtime.generation,
            subscriptions=0 if decided is None else len(decided.scenario.subscriptions),
            planned=(predicted.get("utility") or {}).get("rate"),
            without_triage=self._untriaged[1],
            decisions=self._decisions,
        )
        seen: dict[tuple[str, object], float | None] = {
            ("utility", None): now.captured,
            ("published", None): now.publications_per_second,
            **{("class", row["priority_class"]): row["sent_share"] for row in now.classes},
            **{("port", row["port"]): row["load"] for row in now.ports},
        }
        for name, value in seen.items():
            self.series[name].append(None if figures is None else value)
        measured = coordinator.runtime.measuring.latest
        for port, counted in (measured.ports if measured is not None and figures else {}).items():
            self.queues[port].append(tuple(queue.backlog_packets for queue in counted.queues))

    def _captured(self, decided: Decided | None) -> float | None:
        predicted = None if decided is None else self.coordinator.forecasts.predicted(decided)
        if decided is not None and predicted is not None and self._utility_of is not decided:
            self._utility_of, self._utility = decided, CapturedUtility(decided, predicted)
        return None if self._utility is None else self._utility.look(self.coordinator.watch)

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


def _ports(
    rows: Sequence[Mapping[str, Any]], decided: Decided, predicted: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """With the load up to which plans fill them."""
    planned = {row["port"]: row for row in predicted.get("ports", ())}
    tolerance = 1.0 - decided.plan.made_by.rho_tolerance
    loads = dict.fromkeys(("rho_offered", "rho_planned"))
    return [{**loads, **planned.get(row["port"], {}), **row, "tolerance": tolerance} for row in rows]
