"""What one subscriber wants, as columns over topics, and everyone's together as tables of a Scenario."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.asked import SubscriberIntent, SubscriptionIntent
from triagemq.errors import ParameterError
from triagemq.mqttsn.filters import TopicTree, has_wildcard
from triagemq.scenario import Floats, Integers, Subscribers, Subscriptions, UtilityShape
from triagemq.scenario.wildcards import filter_mistake

__all__ = ["Wanted", "wanted_by", "wanted_tables"]

COLUMNS = 7
"""Shape, weight, threshold, freshness, latency, separation, share: one row each in a subscriber's block."""


@dataclass(slots=True, eq=False)
class Wanted:
    """One subscriber's subscriptions: `terms` has one column per filter, `columns` the topics they stand for.

    `columns` is None while it has to be worked out: before the first scenario, and when a topic appears that one of the
    patterns matches. An exact name says more than a pattern; of several patterns the first holds.
    """

    name: str
    exact: tuple[str, ...]
    patterns: tuple[str, ...]
    terms: Floats
    columns: tuple[NDArray[np.int64], Floats] | None = None

    def expand(self, topics: TopicTree, number: Mapping[str, int]) -> None:
        """Work out `columns`, sorted by the topics' names."""
        term_of = {topic: term for term, topic in enumerate(self.exact)}
        for term, pattern in enumerate(self.patterns, start=len(self.exact)):
            for topic in topics.taken_in_by(pattern):
                term_of.setdefault(topic, term)
        chosen = sorted(term_of)
        self.columns = (
            np.array([number[topic] for topic in chosen], dtype=np.int64),
            self.terms[:, np.array([term_of[topic] for topic in chosen], dtype=np.int64)],
        )


def wanted_by(intent: SubscriberIntent) -> Wanted:
    """The intent of a subscriber, checked."""
    if intent.flows is not None and intent.flows < 1:
        raise ParameterError("flows", f"is {intent.flows}; a subscriber needs at least one connection")
    first: dict[str, SubscriptionIntent] = {}
    for each in intent.subscriptions:
        wrong = filter_mistake(each.topic_filter)
        if wrong is not None:
            raise ParameterError(f"subscription {each.topic_filter!r}", "; ".join(wrong))
        first.setdefault(each.topic_filter, each)
    exact = tuple(topic for topic in first if not has_wildcard(topic))
    patterns = tuple(topic for topic in first if has_wildcard(topic))
    terms = np.array([_terms(first[topic]) for topic in (*exact, *patterns)], dtype=np.float64)
    terms = np.ascontiguousarray(terms.reshape(-1, COLUMNS).T)
    _check(intent, (*exact, *patterns), terms)
    return Wanted(intent.name, exact, patterns, terms)


def _terms(intent: SubscriptionIntent) -> tuple[float, ...]:
    utility = intent.utility
    return (
        utility.shape,
        utility.weight,
        utility.threshold,
        *(
            math.inf if seconds is None else seconds
            for seconds in (
                utility.freshness_seconds,
                intent.max_latency_seconds,
                intent.max_separation_seconds,
            )
        ),
        intent.max_latency_share or 0.0,
    )


def _check(intent: SubscriberIntent, filters: Sequence[str], terms: Floats) -> None:
    shape, weight, threshold, *seconds, share = terms
    step = shape == UtilityShape.STEP
    for column, right, rule in (
        ("utility", np.isfinite(weight) & (weight >= 0), "a finite weight of at least 0"),
        (
            "utility",
            ~step | ((threshold > 0) & (threshold <= 1)),
            "a threshold above 0, at most 1, for a step",
        ),
        ("freshness_seconds", seconds[0] > 0, "a time above 0"),
        ("max_latency_seconds", seconds[1] > 0, "a time above 0"),
        ("max_separation_seconds", seconds[2] > 0, "a time above 0"),
        (
            "max_latency_share",
            (share == 0) | ((share > 0) & (share <= 1) & np.isfinite(seconds[1])),
            "a share above 0, at most 1, and max_latency_seconds",
        ),
    ):
        wrong = np.flatnonzero(~right)  # NaN compares false with everything
        if len(wrong):
            raise ParameterError(
                f"subscription {filters[wrong[0]]!r} of {intent.name!r}", f"{column} needs {rule}"
            )


def wanted_tables(
    names: Sequence[str],
    wanted: Sequence[Wanted],
    intents: Mapping[str, SubscriberIntent],
    network: Network,
    rank: Integers,
) -> tuple[Subscribers, Subscriptions]:
    """Subscribers in the given order, and their subscriptions of topics that have a rank: the topic's row."""
    pieces = [each.columns for each in wanted if each.columns is not None]
    numbers = np.concatenate([np.empty(0, dtype=np.int64), *(topics for topics, _ in pieces)])
    block = np.concatenate([np.empty((COLUMNS, 0)), *(terms for _, terms in pieces)], axis=1)
    owner = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(topics) for topics, _ in pieces])
    topic = rank[numbers]
    if (topic < 0).any():
        ranked = topic >= 0
        topic, owner, block = topic[ranked], owner[ranked], block[:, ranked]
    subscriptions = Subscriptions(
        subscriber=owner,
        topic=topic,
        utility_shape=block[0].astype(np.int8),
        utility_weight=block[1],
        utility_threshold=block[2],
        freshness_seconds=block[3],
        max_latency_seconds=block[4],
        max_separation_seconds=block[5],
        max_latency_share=block[6],
    )
    known = network.scenario.subscribers
    rows = np.array([network.subscriber_row.get(name, -1) for name in names], dtype=np.int64)
    ports = np.array([network.port_of(intents[name]) for name in names], dtype=np.int32)
    return (
        Subscribers(
            name=tuple(names),
            broker=np.append(known.broker, np.int32(0))[rows],
            port=ports,
            error_rate=network.error_rates(ports, np.append(known.error_rate, 0.0)[rows]),
            propagation_seconds=np.append(known.propagation_seconds, 0.0)[rows],
        ),
        subscriptions,
    )
