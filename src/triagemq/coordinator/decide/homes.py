"""Which gateway serves which client: as the scenario states, else one near by that placement chooses, or with few
clients. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from triagemq.coordinator.intents.registry import Key
from triagemq.intents import PUBLISHER
from triagemq.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway with its broker, and why nobody can be at home there now, if that is so.

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
"""Which of some gateways is to serve a client; None where that cannot be told."""


class Homes:
    """By kind and name of a client, the name of its gateway. `stated` is what a scenario says.

    >>> homes = Homes({("subscriber", "ff-7"): "north"})
    >>> sites = [Site("north"), Site("south")]
    >>> [homes.of(("subscriber", name), sites) for name in ("ff-7", "ff-8", "ff-9")]
    ['north', 'south', 'north']
    >>> [(key[1], where) for key, where in homes.fleeing([Site("north", "it is away"), Site("south")])]
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
    def of_scenario(cls, scenario: Scenario) -> Homes:
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
        """Has anything changed since this was asked last?"""
        changed, self._changed = self._changed, False
        return changed

    def fleeing(self, sites: Sequence[Site]) -> list[tuple[Key, str]]:
        """Those who are at home where nobody can be, and where each is to go; nobody if there is no other place."""
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
