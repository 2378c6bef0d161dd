"""Subscriptions for REST and the page: searched, sorted, page by page; planned, forecast and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

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


class SubscriptionQuery(BaseModel):
    """Which subscriptions to show: those of which subscriber or topic hold every word of `search`."""

    search: Annotated[str, Field(max_length=200)] = ""
    order: Order = "rank"
    descending: bool = False
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=1_000)] = 25


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


def subscription_page(
    coordinator: ControlPlane, decided: Decided, query: SubscriptionQuery
) -> SubscriptionPage:
    rows = _searched(decided, query.search.split())
    rows = _sorted(decided, coordinator.watch, rows, query.order, query.descending)
    chosen = rows[query.offset : query.offset + query.limit].tolist()
    predicted = coordinator.forecasts.predicted(decided)
    forecasts: Sequence[dict[str, Any] | None] = [None] * len(chosen)
    if predicted is not None:
        forecasts = subscription_rows(decided.scenario, decided.plan, predicted, chosen)
    views = [_view(decided, coordinator.watch, *each) for each in zip(chosen, forecasts, strict=True)]
    return SubscriptionPage(decided.orders.generation, len(rows), views)


def _searched(decided: Decided, words: Sequence[str]) -> NDArray[np.int64]:
    scenario, subscriptions = decided.scenario, decided.scenario.subscriptions
    found = np.ones(len(subscriptions), dtype=bool)
    for word in words:
        subscribers, topics = (
            np.array([word.lower() in name.lower() for name in names], dtype=bool)
            for names in (scenario.subscribers.name, scenario.topics.name)
        )
        found &= subscribers[subscriptions.subscriber] | topics[subscriptions.topic]
    return np.flatnonzero(found)


def _sorted(
    decided: Decided, watch: SubscriptionWatch, rows: NDArray[np.int64], order: Order, descending: bool
) -> NDArray[np.int64]:
    scenario, plan, subscriptions = decided.scenario, decided.plan, decided.scenario.subscriptions
    keys: list[NDArray[Any]]
    if order in _MEASURED:
        keys = [_measured(decided, watch, rows, order)]
    elif order == "rank":
        keys = [-plan.rank[rows], plan.subscription_class[rows]]
    else:
        columns: Mapping[str, NDArray[Any]] = {
            "subscriber": _alphabetical(scenario.subscribers.name)[subscriptions.subscriber],
            "topic": _alphabetical(scenario.topics.name)[subscriptions.topic],
            "weight": subscriptions.utility_weight,
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


def _alphabetical(names: Sequence[str]) -> NDArray[np.int64]:
    return np.unique(np.array(names, dtype=object), return_inverse=True)[1]


def names_of(decided: Decided, row: int) -> tuple[str, str]:
    """Subscriber and topic of a row of the scenario's subscriptions."""
    scenario = decided.scenario
    subscriptions = scenario.subscriptions
    subscriber, topic = subscriptions.subscriber[row], subscriptions.topic[row]
    return scenario.subscribers.name[subscriber], scenario.topics.name[topic]


def _view(
    decided: Decided, watch: SubscriptionWatch, row: int, forecast: dict[str, Any] | None
) -> SubscriptionView:
    subscriptions, plan = decided.scenario.subscriptions, decided.plan
    subscriber, topic = names_of(decided, row)
    latency, level = float(subscriptions.max_latency_seconds[row]), int(plan.subscription_class[row])
    measured = watch.figures(subscriber, topic)
    if measured is not None and measured.priority_class != level:
        # Its subscriber has not reported since the plan moved it.
        measured = None
    return SubscriptionView(
        subscriber=subscriber,
        topic=topic,
        utility=_utility(subscriptions, row),
        weight=float(subscriptions.utility_weight[row]),
        priority_class=level,
        drop_rate=float(1.0 - plan.subscription_keep[row]),
        promised=bool(plan.promised[row]),
        max_latency_seconds=latency if np.isfinite(latency) else None,
        max_latency_share=float(subscriptions.max_latency_share[row]) or None,
        measured=measured,
        forecast=forecast,
    )


def _utility(subscriptions: Subscriptions, row: int) -> str:
    """As it is written: log:10, step:3@0.8."""
    shape = UtilityShape(int(subscriptions.utility_shape[row]))
    threshold = f"@{subscriptions.utility_threshold[row]:g}" if shape is UtilityShape.STEP else ""
    return f"{shape.name.lower()}:{subscriptions.utility_weight[row]:g}{threshold}"


class CapturedUtility:
    """The utility that a plan captures, by the reports of subscribers; `look` takes in some rows each time."""

    def __init__(self, decided: Decided, predicted: Forecast) -> None:
        self._decided, self._predicted = decided, predicted
        self._success, self._latency = predicted.success.copy(), predicted.latency_seconds.copy()
        self._known = np.zeros(len(predicted.success), dtype=bool)
        self._next = 0

    def look(self, watch: SubscriptionWatch, most: int = 1_000) -> float | None:
        """The share of the maximum; None while subscriptions that hold half of it have no report yet.

        The forecast stands in for those without a report. Each call takes in the figures of the next subscriptions.
        """
        for row in range(self._next, min(self._next + most, len(self._known))):
            found = watch.figures(*names_of(self._decided, row))
            self._known[row] = found is not None and found.success_rate is not None
            if found is not None and found.success_rate is not None:
                self._success[row] = found.success_rate
                if found.mean_latency_seconds is not None:
                    self._latency[row] = found.mean_latency_seconds
        self._next = self._next + most if self._next + most < len(self._known) else 0
        predicted, known = self._predicted, self._known
        maximum = predicted.maximum_utility
        if not maximum.sum() or maximum[known].sum() < maximum.sum() / 2:
            return None
        subscriptions = self._decided.scenario.subscriptions
        measured = achieved_utility(subscriptions, self._success, self._latency, predicted.share_within)
        return float(np.where(known, measured, predicted.utility).sum() / maximum.sum())
