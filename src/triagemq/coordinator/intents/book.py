"""All intents that are in force, as columns that turn into a Scenario at once.

What one client announces is worked out when it announces it; a scenario puts the pieces together, whatever their
number. So a change of one subscriber among a million subscriptions costs one subscriber's work and some copying.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.columns import (
    DeclaredColumns,
    DeclaredRate,
    Published,
    WantedColumns,
    columns_of,
    declared_columns,
    declared_rates,
    published,
    wanted_tables,
)
from triagemq.coordinator.rates import Rates
from triagemq.intents import PUBLISHER, Intent, PublisherIntent, SubscriberIntent
from triagemq.mqttsn.filters import TopicTree, has_wildcard
from triagemq.scenario import Integers, Scenario, Topics

_LEAST_TOPICS = 1_000


class IntentBook:
    """Publishers and subscribers by name. Whatever a subscriber claims, a topic is worth `most_worth` to it at most.

    >>> from triagemq.intents import Declared, Wanted
    >>> book = IntentBook()
    >>> book.announce(PublisherIntent((Declared("floor/1/smoke", 2.0, 40.0),), name="room-1"))
    >>> book.announce(SubscriberIntent((Wanted("floor/+/smoke"),), name="ff-7"))
    >>> scenario = book.scenario(Network.plain(), Rates())
    >>> scenario.topics.name, scenario.publications.rate_per_second.tolist(), len(scenario.subscriptions)
    (('floor/1/smoke',), [2.0], 1)
    """

    def __init__(self, most_worth: float = math.inf) -> None:
        self._most_worth = most_worth
        self._subscribers: dict[str, SubscriberIntent] = {}
        self._announced: dict[str, DeclaredColumns] = {}
        self._sources: dict[str, str] = {}
        self._wanted: dict[str, WantedColumns] = {}
        self._topic_number: dict[str, int] = {}
        self._topic_names: list[str] = []
        self._topics = TopicTree()
        self._look_at = _LEAST_TOPICS
        self._filters = TopicTree()
        self._users: dict[str, set[str]] = {}
        self._rank: Integers = np.empty(0, dtype=np.int32)
        self._published: tuple[tuple[Network, Rates, int], Published] | None = None

    def announce(self, intent: Intent) -> None:
        """Add a client, or put its new intent in place of its old one."""
        if isinstance(intent, PublisherIntent):
            pieces = declared_columns(intent)
            self._announced[intent.name] = pieces
            self._sources.pop(intent.name, None)
            if intent.source_address is not None:
                self._sources[intent.name] = intent.source_address
            self._published = None
            self._know(pieces.topics)
            return
        wanted = columns_of(intent, self._most_worth)
        self.withdraw(intent.kind, intent.name)
        self._subscribers[intent.name] = intent
        self._wanted[intent.name] = wanted
        self._know(wanted.exact)
        for pattern in wanted.patterns:
            if pattern not in self._users:
                self._users[pattern] = set()
                self._filters.add(pattern)
            self._users[pattern].add(intent.name)

    def withdraw(self, kind: str, name: str) -> bool:
        """Forget a publisher or subscriber; False if there is none of that name."""
        if kind == PUBLISHER:
            self._published = None
            self._sources.pop(name, None)
            return self._announced.pop(name, None) is not None
        wanted = self._wanted.pop(name, None)
        for pattern in wanted.patterns if wanted is not None else ():
            self._users[pattern].discard(name)
            if not self._users[pattern]:
                del self._users[pattern]
                self._filters.remove(pattern)
        return self._subscribers.pop(name, None) is not None

    def declared(self, network: Network) -> dict[str, DeclaredRate]:
        """What publishers say about every topic they publish, for `RateWatch.declare`."""
        return declared_rates(self._announced, network)

    def listening(self) -> dict[str, frozenset[str]]:
        """The addresses at which subscribers take promised topics without a broker; only those who do."""
        return {name: frozenset(each.listening) for name, each in self._subscribers.items() if each.listening}

    def sources(self) -> dict[str, str]:
        """The addresses from which publishers send what is promised; only of those who have said so."""
        return dict(self._sources)

    def scenario(self, network: Network, rates: Rates) -> Scenario:
        """What exists and is wanted now.

        Topics of which no rate is known are left out until one is, and subscribers behind a port that the network does
        not have, so that one that is wrong does not keep the others from being planned for.
        """
        self._know(rates.per_second)
        self._forget_others(rates)
        events = self._publications(network, rates)
        # Canonical order is the order of names: the tables below are written in it from the start.
        in_order = sorted(events.live.tolist(), key=self._topic_names.__getitem__)
        rank = np.full(len(self._topic_names), -1, dtype=np.int32)
        rank[in_order] = np.arange(len(in_order), dtype=np.int32)
        self._rank = rank
        names = self._names(network)
        for name in names:
            if self._wanted[name].columns is None:
                self._wanted[name].expand(self._topics, self._topic_number)
        subscribers, subscriptions = wanted_tables(
            names, [self._wanted[name] for name in names], self._subscribers, network, rank
        )
        return network.scenario.with_tables(
            topics=Topics(tuple(self._topic_names[number] for number in in_order)),
            publishers=events.publishers,
            publications=events.publications(rank),
            subscribers=subscribers,
            subscriptions=subscriptions,
        )

    def unseen(self, network: Network) -> dict[str, dict[str, float]]:
        """By subscriber and filter, what topics are worth that the last `scenario` does not have."""
        return {name: self._wanted[name].unseen(self._rank) for name in self._names(network)}

    def _publications(self, network: Network, rates: Rates) -> Published:
        """What is published: the same as last time if only subscribers have changed."""
        asked = (network, rates, len(self._topic_names))
        if self._published is None or self._published[0] != asked:
            self._published = asked, published(self._announced, network, rates, self._topic_number)
        return self._published[1]

    def _names(self, network: Network) -> list[str]:
        return sorted(name for name, intent in self._subscribers.items() if network.has_port(intent))

    def _forget_others(self, rates: Rates) -> None:
        """Topics that are in no intent and have no rate go when there are many: numbers are then given anew."""
        if len(self._topic_names) < self._look_at:
            return
        needed = dict.fromkeys(rates.per_second)
        for pieces in self._announced.values():
            needed |= dict.fromkeys(pieces.topics)
        for wanted in self._wanted.values():
            needed |= dict.fromkeys(wanted.exact)
        # So rarely that it costs little beside what it took to learn of them.
        self._look_at = max(2 * len(needed), _LEAST_TOPICS)
        if 2 * len(needed) > len(self._topic_names):
            return
        self._topic_names = [topic for topic in self._topic_names if topic in needed]
        self._topic_number = {topic: number for number, topic in enumerate(self._topic_names)}
        self._topics = TopicTree(self._topic_names)
        self._published = None
        for wanted in self._wanted.values():
            wanted.columns = None

    def _know(self, topics: Mapping[str, object] | tuple[str, ...]) -> None:
        """Number topics that are new, and have the patterns that match one expanded anew."""
        for topic in topics:
            if topic in self._topic_number or has_wildcard(topic):
                continue
            self._topic_number[topic] = len(self._topic_names)
            self._topic_names.append(topic)
            self._topics.add(topic)
            for pattern in self._filters.filters_matching(topic):
                for name in self._users[pattern]:
                    self._wanted[name].columns = None
