"""Subscriptions as people look at them: searched, sorted, a page at a time; planned, forecast and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.loop.figures import SubscriptionFigures, SubscriptionWatch
from triagemq.forecast import Forecast, subscription_rows
from triagemq.scenario import Subscriptions, UtilityShape
from triagemq.scenario.utility import achieved_utility

Order = Literal[
    "rank",
    "subscriber",
    "topic",
    "weight",
    "priority_class",
    "drop_rate",
    "delivered_per_second",
    "success_rate",
    "p95_seconds",
]
"""By what subscriptions are sorted; the rank of the plan begins with the class that is served first."""

_MEASURED = ("delivered_per_second", "success_rate", "p95_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionView:
    """One subscription. `forecast` is its row of `triage forecast --full`, None until the plan is forecast."""

    subscriber: str
    topic: str
    utility: str
    weight: float
    priority_class: int
    drop_rate: float
    promised: bool
    max_latency_seconds: float | None
    max_latency_share: float | None
    measured: SubscriptionFigures | None
    forecast: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class SubscriptionPage:
    """Some of `total` subscriptions that were searched for."""

    generation: int
    total: int
    subscriptions: list[SubscriptionView]


async def subscription_page(
    here: ControlPlane,
    decided: Decided,
    *,
    search: str = "",
    order: Order = "rank",
    descending: bool = False,
    offset: int = 0,
    limit: int = 25,
) -> SubscriptionPage:
    """Those of which subscriber or topic hold every word of `search`."""
    rows = _searched(decided, search.split())
    rows = _sorted(decided, here.watch, rows, order, descending)
    chosen = rows[offset : offset + limit]
    predicted = here.forecasts.predicted(decided)
    forecasts: Sequence[dict[str, Any] | None] = (
        [None] * len(chosen)
        if predicted is None
        else subscription_rows(decided.scenario, decided.plan, predicted, chosen.tolist())
    )
    views = [
        _view(decided, here.watch, row, each) for row, each in zip(chosen.tolist(), forecasts, strict=True)
    ]
    return SubscriptionPage(decided.orders.generation, len(rows), views)


def _searched(decided: Decided, words: Sequence[str]) -> NDArray[np.int64]:
    scenario, wanted = decided.scenario, decided.scenario.subscriptions
    found = np.ones(len(wanted), dtype=bool)
    for word in words:
        people, topics = (
            np.array([word.lower() in name.lower() for name in names], dtype=bool)
            for names in (scenario.subscribers.name, scenario.topics.name)
        )
        found &= people[wanted.subscriber] | topics[wanted.topic]
    return np.flatnonzero(found)


def _sorted(
    decided: Decided, watch: SubscriptionWatch, rows: NDArray[np.int64], order: Order, descending: bool
) -> NDArray[np.int64]:
    scenario, plan, wanted = decided.scenario, decided.plan, decided.scenario.subscriptions
    keys: list[NDArray[Any]]
    if order in _MEASURED:
        keys = [_measured(decided, watch, rows, order)]
    elif order == "rank":
        keys = [-plan.rank[rows], plan.subscription_class[rows]]
    else:
        columns: Mapping[str, NDArray[Any]] = {
            "subscriber": _places(scenario.subscribers.name)[wanted.subscriber],
            "topic": _places(scenario.topics.name)[wanted.topic],
            "weight": wanted.utility_weight,
            "priority_class": plan.subscription_class,
            "drop_rate": 1.0 - plan.subscription_keep,
        }
        keys = [columns[order][rows]]
    placed = np.lexsort([-each for each in keys] if descending else keys)
    return rows[placed]


def _measured(
    decided: Decided, watch: SubscriptionWatch, rows: NDArray[np.int64], figure: str
) -> NDArray[np.float64]:
    """What is not known comes last, whatever the direction: NaN does."""
    found = (watch.figures(*names_of(decided, row)) for row in rows.tolist())
    values = (None if each is None else getattr(each, figure) for each in found)
    return np.array([np.nan if value is None else value for value in values])


def _places(names: Sequence[str]) -> NDArray[np.int64]:
    places = np.empty(len(names), dtype=np.int64)
    places[np.argsort(np.array(names, dtype=object), kind="stable")] = np.arange(len(names))
    return places


def names_of(decided: Decided, row: int) -> tuple[str, str]:
    """Subscriber and topic of a row of the scenario's subscriptions."""
    scenario = decided.scenario
    wanted = scenario.subscriptions
    return scenario.subscribers.name[wanted.subscriber[row]], scenario.topics.name[wanted.topic[row]]


def _view(
    decided: Decided, watch: SubscriptionWatch, row: int, forecast: dict[str, Any] | None
) -> SubscriptionView:
    wanted, plan = decided.scenario.subscriptions, decided.plan
    subscriber, topic = names_of(decided, row)
    latency, level = float(wanted.max_latency_seconds[row]), int(plan.subscription_class[row])
    measured = watch.figures(subscriber, topic)
    if measured is not None and measured.priority_class != level:
        # Its subscriber has not reported since the plan moved it.
        measured = None
    return SubscriptionView(
        subscriber=subscriber,
        topic=topic,
        utility=_utility(wanted, row),
        weight=float(wanted.utility_weight[row]),
        priority_class=level,
        drop_rate=float(1.0 - plan.subscription_keep[row]),
        promised=bool(plan.promised[row]),
        max_latency_seconds=latency if np.isfinite(latency) else None,
        max_latency_share=float(wanted.max_latency_share[row]) or None,
        measured=measured,
        forecast=forecast,
    )


def _utility(wanted: Subscriptions, row: int) -> str:
    """As it is written: log:10, step:3@0.8."""
    shape = UtilityShape(int(wanted.utility_shape[row]))
    threshold = f"@{wanted.utility_threshold[row]:g}" if shape is UtilityShape.STEP else ""
    return f"{shape.name.lower()}:{wanted.utility_weight[row]:g}{threshold}"


class CapturedUtility:
    """The utility that a plan has captured of late, by what subscribers report; some rows are looked at each time."""

    def __init__(self, decided: Decided, predicted: Forecast) -> None:
        self._decided, self._predicted = decided, predicted
        self._success, self._latency = predicted.success.copy(), predicted.latency_seconds.copy()
        self._known = np.zeros(len(predicted.success), dtype=bool)
        self._next = 0

    def look(self, watch: SubscriptionWatch, most: int = 1_000) -> None:
        """Take in the figures of the next subscriptions, from the first on again when all have had their turn."""
        count = len(self._known)
        for row in range(self._next, min(self._next + most, count)):
            found = watch.figures(*names_of(self._decided, row))
            self._known[row] = known = found is not None and found.success_rate is not None
            if known and found is not None and found.success_rate is not None:
                self._success[row] = found.success_rate
                if found.mean_latency_seconds is not None:
                    self._latency[row] = found.mean_latency_seconds
        self._next = 0 if self._next + most >= count else self._next + most

    @property
    def rate(self) -> float | None:
        """The share of the maximum; None while subscriptions that hold half of it have no report yet.

        Of others that have none the forecast stands in.
        """
        predicted, known = self._predicted, self._known
        maximum = predicted.maximum_utility
        if not maximum.sum() or maximum[known].sum() < maximum.sum() / 2:
            return None
        wanted = self._decided.scenario.subscriptions
        measured = achieved_utility(wanted, self._success, self._latency, predicted.share_within)
        return float(np.where(known, measured, predicted.utility).sum() / maximum.sum())
