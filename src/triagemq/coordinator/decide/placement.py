"""Which gateway serves which client: as stated, else one near by that the rules of placement choose. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triagemq.coordinator.intents.registry import Key
from triagemq.errors import TriageError
from triagemq.intents import PUBLISHER, SUBSCRIBER
from triagemq.mqttsn.filters import matches
from triagemq.plan.campus import Campus, Metric, Placement
from triagemq.plan.placement import Newcomers
from triagemq.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway with its broker, and why no client can be at home there now, if that is so.

    In a `cluster` the head serves publishers, and the others subscribers.
    """

    name: str
    problem: str = ""
    cluster: str = ""
    head: bool = False

    def serves(self, kind: str) -> bool:
        """Whether it is for clients of a kind."""
        return not self.cluster or self.head == (kind == PUBLISHER)


@dataclass(frozen=True, slots=True)
class ClientMove:
    """A client leaves one gateway for another, and why."""

    key: Key
    source: str
    target: str
    why: str


_MOST_PREVIOUS = 100_000
"""Clients that are gone, of which is known where they were."""

PlaceClient = Callable[[Key, Sequence[str]], str | None]
"""Which of some gateways is to serve a client; None where that is not known."""


class Placements:
    """By kind and name of a client, the name of its gateway. `stated` is what a scenario says.

    >>> placements = Placements({("subscriber", "ff-7"): "north"})
    >>> sites = [Site("north"), Site("south")]
    >>> [placements.of(("subscriber", name), sites) for name in ("ff-7", "ff-8", "ff-9")]
    ['north', 'south', 'north']
    >>> [(key[1], where) for key, where in placements.evacuations([Site("north", "it is away"), Site("south")])]
    [('ff-7', 'south'), ('ff-9', 'south')]
    """

    def __init__(self, stated: Mapping[Key, str] | None = None) -> None:
        self._stated = stated or {}
        self._homes: dict[Key, str] = {}
        # Of clients that are gone: where a stored session may wait for them.
        self._previous: dict[Key, str] = {}
        self._changed = False
        self.placing: PlaceClient = lambda key, sites: None

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> Placements:
        """Where a scenario puts its clients."""
        brokers = scenario.brokers.name
        return cls(
            {
                (kind, name): brokers[broker]
                for kind, table in (("publisher", scenario.publishers), ("subscriber", scenario.subscribers))
                for name, broker in zip(table.name, table.broker.tolist(), strict=True)
            }
        )

    def __iter__(self) -> Iterator[tuple[Key, str]]:
        return iter(tuple(self._homes.items()))

    def of(self, key: Key, sites: Sequence[Site]) -> str:
        """The home of a client, which gets one if it has none."""
        if key not in self._homes:
            previous = self._previous.pop(key, None)
            is_there = any(site.name == previous and not site.problem for site in sites)
            self._homes[key] = (
                str(previous) if is_there else self._choice(key, sites, Counter(self._homes.values()))
            )
            self._changed = True
        return self._homes[key]

    def has(self, key: Key) -> bool:
        """Whether a client has a home."""
        return key in self._homes

    def move(self, key: Key, home: str) -> None:
        self._homes[key] = home
        self._changed = True

    def forget(self, key: Key) -> None:
        """A client is gone; if it comes again, its session may be where it was."""
        home = self._homes.pop(key, None)
        if home is not None:
            self._changed = True
            self.remember(key, home)

    def remember(self, key: Key, home: str) -> None:
        """A client that is away has a session there."""
        self._previous.pop(key, None)
        self._previous[key] = home
        if len(self._previous) > _MOST_PREVIOUS:
            del self._previous[next(iter(self._previous))]

    def take_changed(self) -> bool:
        """Has anything changed since the last call?"""
        changed, self._changed = self._changed, False
        return changed

    def evacuations(self, sites: Sequence[Site]) -> list[tuple[Key, str]]:
        """Clients at home where none can be, and where each is to go; none if there is no other place."""
        bad = {site.name for site in sites if site.problem}
        if not bad or len(bad) == len(sites):
            return []
        count = Counter(home for home in self._homes.values() if home not in bad)
        found = []
        for key, home in self._homes.items():
            if home in bad:
                found.append((key, self._choice(key, sites, count)))
                count[found[-1][1]] += 1
        return found

    def _choice(self, key: Key, sites: Sequence[Site], count: Counter[str]) -> str:
        """What is stated, else one of the same cluster: the one that placement chooses, or with the fewest clients."""
        good = [site for site in sites if not site.problem] or list(sites)
        stated = self._stated.get(key)
        if any(site.name == stated for site in good):
            return str(stated)
        near = self._homes.get(key, stated)
        clusters = {site.name: site.cluster for site in sites}
        fit = [site for site in good if site.serves(key[0])] or good
        beside = [site for site in fit if site.cluster == clusters.get(near or "", "")] or fit
        chosen = self.placing(key, [site.name for site in beside])
        return chosen or min(beside, key=lambda site: count[site.name]).name


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
        placements: Callable[[], Mapping[Key, str]],
        now: float,
    ) -> str | None:
        """Which of these sites serves a subscriber that wants these topics and filters; None without clusters of
        brokers with bandwidths, and for publishers."""
        if key[0] != SUBSCRIBER or scenario is None:
            return None
        if scenario is not self._scenario or now - self._made_at > FRESH_SECONDS:
            self._look(scenario, placements(), now)
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

    def _look(self, scenario: Scenario, placements: Mapping[Key, str], now: float) -> None:
        """Who is served where now."""
        self._scenario, self._made_at, self._campus = scenario, now, None
        try:
            campus = Campus.of(scenario)
        except TriageError:
            return
        rows = {name: row for row, name in enumerate(scenario.brokers.name)}
        at = [rows.get(placements.get((SUBSCRIBER, name), ""), -1) for name in scenario.subscribers.name]
        broker = np.array(at, dtype=np.int32)[scenario.subscriptions.subscriber]
        self._campus = campus
        self._arrivals = Newcomers(campus, Placement(broker, campus.stated.publications))
