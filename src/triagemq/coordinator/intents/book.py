"""All intents that are planned for, as columns that turn into a Scenario at once.

A subscriber's intent becomes columns when it is announced; a scenario concatenates them. So a change of one subscriber
among a million subscriptions costs one subscriber's work and some copying.

A topic's rate is the measured one where that contradicts what was announced (`Rates`), else the sum of what its
publishers announced. Publishers of one topic share its rate in proportion to what they announced. Topics that no client
announced belong to a publisher of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.client.coordinator import LimitedClaim
from triagemq.coordinator.decide.network import USUAL_SIZE_BYTES, Network
from triagemq.coordinator.intents.registry import Key
from triagemq.coordinator.policy.claims import Entitlement, budget_words
from triagemq.coordinator.rates import SILENT_EVENTS, DeclaredRate, Rates
from triagemq.intents import PUBLISHER, PublisherIntent, SubscriberIntent, SubscriptionIntent
from triagemq.mqttsn.filters import TopicTree, covers, has_wildcard
from triagemq.plan.dataplane import CopyTerms
from triagemq.scenario import (
    ArrivalProcess,
    Floats,
    Integers,
    Publications,
    Publishers,
    Scenario,
    SizeDistribution,
    Subscribers,
    Subscriptions,
    Topics,
    UtilityShape,
)
from triagemq.scenario.conditions import worth_factors
from triagemq.scenario.model import filled, with_columns
from triagemq.scenario.utility import maximum_utility

_LEAST_TOPICS = 1_000

UNANNOUNCED = "(unannounced)"
"""The publisher of topics that are measured and that no client has announced."""

LEAST_SIZE_BYTES = 1.0

MOST_PER_SECOND, MOST_BYTES = 1e9, 65_535.0
"""What is measured counts for no more than what may be announced."""

_HEAVY_DISPERSION = 100.0

PUBLISHED_TERMS = ("min_separation_seconds", "max_separation_seconds", "max_size_bytes")
"""What promises are made of. What a publisher says of them counts before what the scenario says."""

_LEAST_WEIGHT = 1e-30
"""What is worth less is worth nothing: planners divide by it."""

Rows = NDArray[np.int64]

Planned = PublisherIntent | Entitlement
"""What is planned for: a publisher as it says, a subscriber as the policy has it."""


class DeclaredColumns:
    """What publishers say of their topics, in the order of their names. NaN is what they leave to be measured."""

    def __init__(
        self, intents: Mapping[str, PublisherIntent], network: Network, number: Mapping[str, int]
    ) -> None:
        self.network_table = network.scenario.publications
        self.names = sorted(intents)
        said = [(owner, each) for owner, name in enumerate(self.names) for each in intents[name].publications]
        self.owner = np.array([owner for owner, _ in said], dtype=np.int64)
        self.topic = np.array([number[each.topic] for _, each in said], dtype=np.int64)
        # None becomes NaN.
        self.rate, self.size, *terms = (
            np.array([getattr(each, name) for _, each in said], dtype=np.float64)
            for name in ("rate_per_second", "size_bytes", *PUBLISHED_TERMS)
        )
        self.terms = np.array(terms)
        known = network.publication_row
        rows = [known.get((self.names[owner], each.topic), -1) for owner, each in said]
        self.row = np.array(rows, dtype=np.int64)


def declared_rates(said: DeclaredColumns, topics: Sequence[str]) -> dict[str, DeclaredRate]:
    """Per announced topic the sum of the rates and the mean size, None where a publisher leaves one to be measured."""
    count = len(topics)
    total = np.bincount(said.topic, said.rate, count)
    weight = np.where(total[said.topic] > 0, said.rate, 1.0)
    octets, events = (np.bincount(said.topic, each, count) for each in (said.size * weight, weight))
    dispersion, silence = np.ones(count), np.full(count, np.inf)
    for topic, row, rate in zip(said.topic.tolist(), said.row.tolist(), said.rate.tolist(), strict=True):
        found = _burstiness(said.network_table, row, rate)
        dispersion[topic], silence[topic] = max(dispersion[topic], found[0]), min(silence[topic], found[1])

    def known(value: float) -> float | None:
        return None if math.isnan(value) else float(value)

    return {
        topics[row]: DeclaredRate(
            known(total[row]), known(octets[row] / events[row]), float(dispersion[row]), float(silence[row])
        )
        for row in np.unique(said.topic).tolist()
    }


def _burstiness(table: Publications, row: int, rate: float) -> tuple[float, float]:
    """The index of dispersion of a publication's events over a long time, and the longest silence that is usual."""
    if row < 0 or not rate > 0:
        return 1.0, 0.0
    match ArrivalProcess(int(table.arrival_process[row])):
        case ArrivalProcess.ON_OFF:
            on, off = float(table.on_seconds[row]), float(table.off_seconds[row])
            # The rate jumps between rate (on + off) / on and 0; its covariance decays with time constant tau.
            tau = on * off / (on + off)
            return 1.0 + 2.0 * rate * off / on * tau, SILENT_EVENTS * (off + on / (on + off) / rate)
        case ArrivalProcess.PARETO:
            shape = float(table.pareto_shape[row])
            # Without a variance of gaps the index grows with time.
            dispersion = max(1.0, 1 / (shape * (shape - 2))) if shape > 2 else _HEAVY_DISPERSION
            return dispersion, (shape - 1) / shape * math.exp(SILENT_EVENTS / shape) / rate
    return 1.0, 0.0


def published(
    said: DeclaredColumns, network: Network, rates: Rates, number: Mapping[str, int]
) -> tuple[Publishers, Publications]:
    """All publications with a rate, by the numbers of their topics; `number` has every topic that is announced or
    measured."""
    names, owner, topic, row = said.names, said.owner, said.topic, said.row
    rate, size, terms = said.rate, said.size, said.terms
    # As in scenario files, who states the least separation alone publishes as often as it allows.
    rate = np.where(np.isnan(rate), 1 / terms[0], rate)
    count = len(number)
    measured_rate = np.minimum(_by_topic(rates.per_second, number), MOST_PER_SECOND)
    measured_size = np.minimum(_by_topic(rates.size_bytes, number), MOST_BYTES)
    alone = np.flatnonzero((measured_rate > 0) & (np.bincount(topic, minlength=count) == 0))
    if len(alone):
        owner = np.append(owner, np.full(len(alone), len(names)))
        names = [*names, UNANNOUNCED]
        topic, row = np.append(topic, alone), np.append(row, np.full(len(alone), -1))
        unsaid = np.full(len(alone), np.nan)
        rate, size = (np.append(column, unsaid) for column in (rate, size))
        terms = np.append(terms, np.tile(unsaid, (len(PUBLISHED_TERMS), 1)), axis=1)
    rate = _shared_rates(topic, rate, measured_rate, count)
    # What is promised goes past the gateway, which counts nothing of it.
    rate = np.where((rate <= 0) & (terms[0] > 0), 1 / terms[0], rate)
    size = _sizes(topic, rate, size, measured_size, count)
    live = np.flatnonzero(rate > 0)
    known = np.array([network.publisher_row.get(name, -1) for name in names], dtype=np.int64)
    publishers = with_columns(network.scenario.publishers, known, name=tuple(names))
    return publishers, _table(
        network, owner[live], topic[live], rate[live], size[live], row[live], terms[:, live]
    )


def _by_topic(values: Mapping[str, float], number: Mapping[str, int]) -> Floats:
    column = np.full(len(number), np.nan)
    for topic, value in values.items():
        if topic in number:
            column[number[topic]] = value
    return column


def _shared_rates(topic: Rows, rate: Floats, measured: Floats, count: int) -> Floats:
    """Each publication's part of its topic's rate; 0 where nothing is known of that."""
    said = np.where(np.isnan(rate), 0.0, rate)
    total = np.bincount(topic, said, minlength=count)
    sayers = np.bincount(topic, ~np.isnan(rate), minlength=count)
    # Who leaves the rate to be measured counts as the mean of those who do not.
    usual = np.divide(total, sayers, out=np.ones(count), where=total > 0)
    weight = np.where(np.isnan(rate) | (total[topic] <= 0), usual[topic], rate)
    shares = weight / np.bincount(topic, weight, minlength=count)[topic]
    return np.where(np.isnan(measured[topic]), said, measured[topic] * shares)


def _sizes(topic: Rows, rate: Floats, size: Floats, measured: Floats, count: int) -> Floats:
    """Each publication's size, scaled so that the topic's mean is the measured one where there is one."""
    known = np.where(np.isnan(size), measured[topic], size)
    # A message may be empty; its headers are not.
    known = np.maximum(np.where(np.isnan(known), USUAL_SIZE_BYTES, known), LEAST_SIZE_BYTES)
    load = np.bincount(topic, rate * known, minlength=count)
    events = np.bincount(topic, rate, minlength=count)
    mean = np.divide(load, events, out=np.ones(count), where=events > 0)
    factor = np.where(np.isnan(measured), 1.0, np.maximum(measured, LEAST_SIZE_BYTES) / mean)
    return np.asarray(known * factor[topic])


def _table(
    network: Network, owner: Rows, topic: Rows, rate: Floats, size: Floats, row: Rows, terms: Floats
) -> Publications:
    """The publications, with what the network's scenario says about those of the same names."""
    known = network.scenario.publications
    table = with_columns(
        known,
        row,
        publisher=owner.astype(np.int32),
        topic=topic.astype(np.int32),
        rate_per_second=rate,
        size_bytes=size,
    )
    said = dict(zip(PUBLISHED_TERMS, terms, strict=True))
    table = replace(
        table, **{term: np.where(np.isnan(new), getattr(table, term), new) for term, new in said.items()}
    )
    # Sizes that were seen hold only as long as their mean is right.
    mean = np.append(known.size_bytes, np.nan)[row]
    off = (table.size_distribution == SizeDistribution.EMPIRICAL) & ~np.isclose(size, mean, rtol=1e-6)
    return replace(
        table,
        size_distribution=np.where(off, np.int8(SizeDistribution.EXPONENTIAL), table.size_distribution),
        size_samples=np.where(off, np.int32(-1), table.size_samples),
    )


SUBSCRIBED_TERMS = (
    "utility_shape",
    "utility_weight",
    "utility_threshold",
    "freshness_seconds",
    "max_latency_seconds",
    "max_separation_seconds",
    "max_rate_per_second",
    "expires_seconds",
    "max_latency_share",
    "min_share",
    "guaranteed",
    "newest_only",
    "role_rank",
)
"""The scenario's columns about what is wanted: one row each in a subscriber's block."""

CLAIMED = len(SUBSCRIBED_TERMS)
"""The row behind these: 1 where the terms are the client's own claim, 0 where they are the operator's."""

_SHAPES = {shape.name.lower(): shape for shape in UtilityShape}


@dataclass(slots=True, eq=False)
class WantedColumns:
    """One subscriber's subscriptions: `terms` has one column per filter, `columns` the topics they stand for.

    `columns` is None while it has to be worked out: before the first scenario, and when a topic appears that one of the
    patterns matches. An exact name says more than a pattern; of several patterns the first holds.
    """

    entitled: Entitlement
    exact: tuple[str, ...]
    patterns: tuple[str, ...]
    terms: Floats
    copy_terms: Mapping[str, CopyTerms]
    columns: tuple[NDArray[np.int64], Floats] | None = None
    exact_numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def intent(self) -> SubscriberIntent:
        return self.entitled.intent

    def expand(self, topics: TopicTree, number: Mapping[str, int]) -> None:
        """Work out `columns`, sorted by the topics' names."""
        self.exact_numbers = np.array([number[topic] for topic in self.exact], dtype=np.int64)
        term_of = {topic: term for term, topic in enumerate(self.exact)}
        for term, pattern in enumerate(self.patterns, start=len(self.exact)):
            for topic in topics.names_matching(pattern):
                term_of.setdefault(topic, term)
        chosen = sorted(term_of)
        self.columns = (
            np.array([number[topic] for topic in chosen], dtype=np.int64),
            self.terms[:, np.array([term_of[topic] for topic in chosen], dtype=np.int64)],
        )

    def unseen(self, rank: Integers, scale: float, factors: Mapping[str, float]) -> dict[str, float]:
        """What topics without a rank are worth to it if all of them arrives, by filter; own claims times a scale, and
        together no more than the budget."""
        shape, weight = self.terms[:2]
        worth = np.where(shape == UtilityShape.LOG, np.log(2.0), 1.0) * weight
        places = np.flatnonzero(rank[self.exact_numbers] < 0)
        places = np.append(places, np.arange(len(self.exact), len(worth)))
        worth, claimed = worth[places], self.terms[CLAIMED][places] > 0
        total = float(worth[claimed].sum())
        worth[claimed] *= min(scale, self.entitled.budget / total) if total > 0 else 1.0
        filters = (*self.exact, *self.patterns)
        return {
            filters[place]: value * _phase_factor(filters[place], factors)
            for place, value in zip(places.tolist(), worth.tolist(), strict=True)
        }


def _phase_factor(topic_filter: str, factors: Mapping[str, float]) -> float:
    """That of a filter as a whole: its own, else the first that takes all of it in."""
    own = factors.get(topic_filter)
    return (
        next((each for one, each in factors.items() if covers(one, topic_filter)), 1.0)
        if own is None
        else own
    )


def columns_of(entitled: Entitlement) -> WantedColumns:
    """What a subscriber is entitled to, exact names first."""
    intent = entitled.intent
    wanted = sorted(intent.subscriptions, key=lambda each: has_wildcard(each.topic))
    exact = tuple(each.topic for each in wanted if not has_wildcard(each.topic))
    patterns = tuple(each.topic for each in wanted[len(exact) :])
    terms = np.array(
        [(*_terms(each, entitled.rank), each.topic not in entitled.granted) for each in wanted],
        dtype=np.float64,
    )
    terms = np.ascontiguousarray(terms.reshape(-1, 1 + len(SUBSCRIBED_TERMS)).T)
    return WantedColumns(entitled, exact, patterns, terms, copy_terms(intent))


def _terms(wanted: SubscriptionIntent, rank: int) -> tuple[float, ...]:
    """What it is worth, how late, rarely or often it may come, and the rank of its role, as the scenario's tables have
    it."""
    utility = wanted.utility
    return (
        _SHAPES[utility.shape],
        utility.weight,
        utility.threshold or 0.0,
        *(
            math.inf if seconds is None else seconds
            for seconds in (
                utility.freshness_seconds,
                wanted.max_latency_seconds,
                wanted.max_separation_seconds,
            )
        ),
        math.inf if wanted.max_rate_per_second is None else wanted.max_rate_per_second,
        math.inf if wanted.expires_seconds is None else wanted.expires_seconds,
        wanted.max_latency_share or 0.0,
        wanted.min_share or 0.0,
        wanted.guaranteed,
        wanted.newest_only,
        rank,
    )


def copy_terms(intent: SubscriberIntent) -> dict[str, CopyTerms]:
    """The terms that a gateway has to keep, by filter; where patterns have some, also of the filters that have none,
    since an exact name and an earlier pattern count before them.

    >>> wanted = [SubscriptionIntent("a"), SubscriptionIntent("b", newest_only=True), SubscriptionIntent("c")]
    >>> list(copy_terms(SubscriberIntent(tuple(wanted), name="ff-7")))
    ['b']
    """
    with_terms = [
        each
        for each in intent.subscriptions
        if each.max_rate_per_second is not None
        or each.newest_only
        or each.expires_seconds is not None
        or each.properties
    ]
    has_patterns = any(has_wildcard(each.topic) for each in with_terms)
    return {
        each.topic: CopyTerms(
            each.max_rate_per_second or math.inf,
            each.newest_only,
            each.expires_seconds or math.inf,
            each.properties,
        )
        for each in (intent.subscriptions if has_patterns else with_terms)
    }


def wanted_tables(
    wanted: Sequence[WantedColumns], network: Network, rank: Integers
) -> tuple[Subscribers, Subscriptions, Floats]:
    """Subscribers in the given order, their subscriptions of topics that have a rank (the topic's row), and the factor
    on each subscriber's own claims that keeps them within its budget."""
    names = tuple(each.intent.name for each in wanted)
    pieces = [each.columns for each in wanted if each.columns is not None]
    numbers = np.concatenate([np.empty(0, dtype=np.int64), *(topics for topics, _ in pieces)])
    block = np.concatenate(
        [np.empty((1 + len(SUBSCRIBED_TERMS), 0)), *(terms for _, terms in pieces)], axis=1
    )
    owner = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(topics) for topics, _ in pieces])
    topic = rank[numbers]
    if (topic < 0).any():
        ranked = topic >= 0
        topic, owner, block = topic[ranked], owner[ranked], block[:, ranked]
    rows = np.array([network.subscriber_row.get(name, -1) for name in names], dtype=np.int64)
    ports = np.array([network.port_of(each.intent) for each in wanted], dtype=np.int32)
    people = with_columns(network.scenario.subscribers, rows, name=names, port=ports)
    columns: dict[str, Any] = dict(zip(SUBSCRIBED_TERMS, block, strict=False))
    columns |= {
        name: columns[name].astype(np.int8) for name in ("utility_shape", "guaranteed", "newest_only")
    }
    subscriptions = filled(Subscriptions, len(owner), subscriber=owner, topic=topic, **columns)
    claims = maximum_utility(subscriptions) * block[CLAIMED]
    total = np.bincount(owner, claims, minlength=len(wanted))
    budgets = np.array([each.entitled.budget for each in wanted], dtype=np.float64)
    scale = np.divide(budgets, total, out=np.ones(len(wanted)), where=total > budgets)
    weight = subscriptions.utility_weight * np.where(block[CLAIMED] > 0, scale[owner], 1.0)
    weight[weight < _LEAST_WEIGHT] = 0.0
    subscriptions = replace(subscriptions, utility_weight=weight)
    people = replace(people, error_rate=network.error_rates(ports, people.error_rate))
    return people, subscriptions, scale


class IntentBook:
    """Publishers and subscribers by name. Whatever a subscriber claims, its claims are worth its budget at most.

    >>> from triagemq.intents import PublicationIntent, SubscriberIntent, SubscriptionIntent
    >>> book = IntentBook()
    >>> book.announce(PublisherIntent((PublicationIntent("floor/1/smoke", 2.0, 40.0),), name="room-1"))
    >>> book.announce(SubscriberIntent((SubscriptionIntent("floor/+/smoke"),), name="ff-7"))
    >>> scenario = book.scenario(Network.plain(), Rates())
    >>> scenario.topics.name, scenario.publications.rate_per_second.tolist(), len(scenario.subscriptions)
    (('floor/1/smoke',), [2.0], 1)
    """

    def __init__(self) -> None:
        self.scales: dict[str, float] = {}
        """By subscriber whose claims exceed its budget, the factor on them in the last `scenario`."""
        self._declared: dict[str, PublisherIntent] = {}
        # Subscribers of whose claims some are refused.
        self._refused: set[str] = set()
        self._wanted: dict[str, WantedColumns] = {}
        self._topic_number: dict[str, int] = {}
        self._topic_names: list[str] = []
        self._topics = TopicTree()
        self._look_at = _LEAST_TOPICS
        self._filters = TopicTree()
        self._users: dict[str, set[str]] = {}
        self._rank: Integers = np.empty(0, dtype=np.int32)
        self._declared_columns: DeclaredColumns | None = None

    def get(self, key: Key) -> Planned | None:
        """What was announced for a client."""
        kind, name = key
        if kind == PUBLISHER:
            return self._declared.get(name)
        columns = self._wanted.get(name)
        return None if columns is None else columns.entitled

    def announce(self, intent: Planned | SubscriberIntent) -> None:
        """Add a client, or put its new intent in place of its old one."""
        if isinstance(intent, PublisherIntent):
            self._declared[intent.name] = intent
            self._declared_columns = None
            self._know(each.topic for each in intent.publications)
            return
        entitled = intent if isinstance(intent, Entitlement) else Entitlement(intent)
        wanted, intent = columns_of(entitled), entitled.intent
        self.withdraw(intent.kind, intent.name)
        self._wanted[intent.name] = wanted
        if entitled.refused:
            self._refused.add(intent.name)
        self._know(wanted.exact)
        for pattern in wanted.patterns:
            if pattern not in self._users:
                self._users[pattern] = set()
                self._filters.add(pattern)
            self._users[pattern].add(intent.name)

    def withdraw(self, kind: str, name: str) -> bool:
        """Forget a publisher or subscriber; False if there is none of that name."""
        if kind == PUBLISHER:
            self._declared_columns = None
            return self._declared.pop(name, None) is not None
        wanted = self._wanted.pop(name, None)
        self._refused.discard(name)
        for pattern in wanted.patterns if wanted is not None else ():
            self._users[pattern].discard(name)
            if not self._users[pattern]:
                del self._users[pattern]
                self._filters.remove(pattern)
        return wanted is not None

    def limited(self) -> dict[str, tuple[LimitedClaim, ...]]:
        """By subscriber, whether its claims exceed its budget in the last `scenario`, and what of them is refused."""
        scaled = {
            name: (LimitedClaim("", budget_words(self._wanted[name].entitled)),) for name in self.scales
        }
        return scaled | {
            name: (*scaled.get(name, ()), *self._wanted[name].entitled.refused) for name in self._refused
        }

    def declared(self, network: Network) -> dict[str, DeclaredRate]:
        """What publishers say about every topic they publish, for `RateWatch.declare`."""
        return declared_rates(self._columns(network), self._topic_names)

    def listening(self) -> dict[str, frozenset[str]]:
        """The addresses at which subscribers take promised topics without a broker; only those who do."""
        intents = {name: each.intent for name, each in self._wanted.items()}
        return {name: frozenset(intent.listening) for name, intent in intents.items() if intent.listening}

    def sources(self) -> dict[str, str]:
        """The addresses from which publishers send what is promised; only of those who have said so."""
        addresses = {name: intent.source_address for name, intent in self._declared.items()}
        return {name: address for name, address in addresses.items() if address is not None}

    def scenario(
        self, network: Network, rates: Rates, factors: Mapping[str, float] | None = None
    ) -> Scenario:
        """What exists and is wanted now; `factors` are those of a phase on what topics are worth.

        Topics without a known rate are omitted, and subscribers behind a port that the network does
        not have, so that one of them does not keep the others from being planned for.
        """
        self._know(rates.per_second)
        self._forget_others(rates)
        said = self._columns(network)
        publishers, publications = published(said, network, rates, self._topic_number)
        # Canonical order is the order of names: the tables below are written in it from the start.
        in_order = sorted(np.unique(publications.topic).tolist(), key=self._topic_names.__getitem__)
        rank = np.full(len(self._topic_names), -1, dtype=np.int32)
        rank[in_order] = np.arange(len(in_order), dtype=np.int32)
        self._rank = rank
        wanted = self._reachable(network)
        for each in wanted:
            if each.columns is None:
                each.expand(self._topics, self._topic_number)
        subscribers, subscriptions, scale = wanted_tables(wanted, network, rank)
        self.scales = {wanted[row].intent.name: float(scale[row]) for row in np.flatnonzero(scale < 1)}
        if factors:
            by_number = worth_factors(factors, self._topic_number, self._topics)
            weight = subscriptions.utility_weight * by_number[in_order][subscriptions.topic]
            subscriptions = replace(subscriptions, utility_weight=weight)
        return network.scenario.with_tables(
            topics=Topics(tuple(self._topic_names[number] for number in in_order)),
            publishers=publishers,
            publications=replace(publications, topic=rank[publications.topic]),
            subscribers=subscribers,
            subscriptions=subscriptions,
        )

    def unseen(
        self, network: Network, factors: Mapping[str, float] | None = None
    ) -> dict[str, dict[str, float]]:
        """By subscriber and filter, what topics are worth that the last `scenario` does not have."""
        return {
            name: each.unseen(self._rank, self.scales.get(name, 1.0), factors or {})
            for each in self._reachable(network)
            for name in (each.intent.name,)
        }

    def terms(self, network: Network) -> dict[str, Mapping[str, CopyTerms]]:
        """By subscriber and filter, the terms that gateways have to keep; only of subscribers that have any."""
        return {each.intent.name: each.copy_terms for each in self._reachable(network) if each.copy_terms}

    def _columns(self, network: Network) -> DeclaredColumns:
        """What publishers say: the same as last time if none has said anything else."""
        known = self._declared_columns
        if known is None or known.network_table is not network.scenario.publications:
            known = DeclaredColumns(self._declared, network, self._topic_number)
            self._declared_columns = known
        return known

    def _reachable(self, network: Network) -> list[WantedColumns]:
        """The subscribers behind ports of the network, by name."""
        return [each for _, each in sorted(self._wanted.items()) if network.has_port(each.intent)]

    def _forget_others(self, rates: Rates) -> None:
        """Topics that are in no intent and have no rate go when there are many: numbers are then given anew."""
        if len(self._topic_names) < self._look_at:
            return
        needed = dict.fromkeys(rates.per_second)
        for intent in self._declared.values():
            needed |= dict.fromkeys(each.topic for each in intent.publications)
        for wanted in self._wanted.values():
            needed |= dict.fromkeys(wanted.exact)
        # So rarely that it costs little next to learning of them.
        self._look_at = max(2 * len(needed), _LEAST_TOPICS)
        if 2 * len(needed) > len(self._topic_names):
            return
        self._topic_names = [topic for topic in self._topic_names if topic in needed]
        self._topic_number = {topic: number for number, topic in enumerate(self._topic_names)}
        self._topics = TopicTree(self._topic_names)
        self._declared_columns = None
        for wanted in self._wanted.values():
            wanted.columns = None

    def _know(self, topics: Iterable[str]) -> None:
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
