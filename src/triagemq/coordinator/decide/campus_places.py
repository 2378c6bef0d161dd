"""Where a subscriber is to be served that comes to a live campus, or whose broker has died: by the planner's rules of
placement, from what is planned with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from triagemq.coordinator.intents.registry import Key
from triagemq.errors import TriageError
from triagemq.intents import SUBSCRIBER
from triagemq.mqttsn.filters import matches
from triagemq.plan.campus import Campus, Metric, Placement
from triagemq.plan.placement import Newcomers
from triagemq.scenario import Scenario

LINKS = (Metric.DOWNLINK, Metric.UPLINK)

FRESH_SECONDS = 1.0
"""How long those who come are counted beside the same load: many come at once, and it is measured every second."""


class CampusPlaces:
    """Knows the load of a campus for a moment, and counts those who have come since."""

    def __init__(self) -> None:
        self._made_at = -np.inf
        self._scenario: Scenario | None = None
        self._campus: Campus | None = None
        self._arrivals: Newcomers | None = None

    def choice(
        self,
        key: Key,
        wanted: Iterable[str],
        sites: Sequence[str],
        scenario: Scenario | None,
        homes: Callable[[], Mapping[Key, str]],
        now: float,
    ) -> str | None:
        """Which of these sites serves a subscriber that wants these topics and filters; None without clusters of
        brokers with bandwidths, and for publishers."""
        if key[0] != SUBSCRIBER or scenario is None:
            return None
        if scenario is not self._scenario or now - self._made_at > FRESH_SECONDS:
            self._look(scenario, homes(), now)
        campus, arrivals = self._campus, self._arrivals
        rows = {name: row for row, name in enumerate(scenario.brokers.name)}
        brokers = [rows[site] for site in sites if site in rows]
        if campus is None or arrivals is None or len(brokers) != len(sites):
            return None
        if not np.isfinite(campus.capacity[np.ix_(LINKS, brokers)]).any():
            return None
        filters = tuple(wanted)
        topics = [
            row
            for row, name in enumerate(scenario.topics.name)
            if any(matches(each, name) for each in filters)
        ]
        return scenario.brokers.name[arrivals.take(topics, brokers)]

    def _look(self, scenario: Scenario, homes: Mapping[Key, str], now: float) -> None:
        """Who is served where now."""
        self._scenario, self._made_at, self._campus = scenario, now, None
        try:
            campus = Campus.of(scenario)
        except TriageError:
            return
        rows = {name: row for row, name in enumerate(scenario.brokers.name)}
        at = [rows.get(homes.get((SUBSCRIBER, name), ""), -1) for name in scenario.subscribers.name]
        broker = np.array(at, dtype=np.int32)[scenario.subscriptions.subscriber]
        self._campus = campus
        self._arrivals = Newcomers(campus, Placement(broker, campus.stated.publications))
