"""What one subscriber wants, as columns over topics, and everyone's together as tables of a Scenario."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.network import Network
from triagemq.intents import SubscriberIntent, Wanted
from triagemq.mqttsn.filters import TopicTree, has_wildcard
from triagemq.scenario import Floats, Integers, Subscribers, Subscriptions, UtilityShape
from triagemq.scenario.model import with_columns

TERMS = (
    "utility_shape",
    "utility_weight",
    "utility_threshold",
    "freshness_seconds",
    "max_latency_seconds",
    "max_separation_seconds",
    "max_latency_share",
    "guaranteed",
)
"""The scenario's columns about what is wanted: one row each in a subscriber's block."""

_SHAPES = {shape.name.lower(): shape for shape in UtilityShape}


@dataclass(slots=True, eq=False)
class WantedColumns:
    """One subscriber's subscriptions: `terms` has one column per filter, `columns` the topics they stand for.

    `columns` is None while it has to be worked out: before the first scenario, and when a topic appears that one of the
    patterns matches. An exact name says more than a pattern; of several patterns the first holds.
    """

    name: str
    exact: tuple[str, ...]
    patterns: tuple[str, ...]
    terms: Floats
    columns: tuple[NDArray[np.int64], Floats] | None = None
    exact_numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def expand(self, topics: TopicTree, number: Mapping[str, int]) -> None:
        """Work out `columns`, sorted by the topics' names."""
        self.exact_numbers = np.array([number[topic] for topic in self.exact], dtype=np.int64)
        term_of = {topic: term for term, topic in enumerate(self.exact)}
        for term, pattern in enumerate(self.patterns, start=len(self.exact)):
            for topic in topics.taken_in_by(pattern):
                term_of.setdefault(topic, term)
        chosen = sorted(term_of)
        self.columns = (
            np.array([number[topic] for topic in chosen], dtype=np.int64),
            self.terms[:, np.array([term_of[topic] for topic in chosen], dtype=np.int64)],
        )

    def unseen(self, rank: Integers) -> dict[str, float]:
        """What topics without a rank are worth to it if all of them arrives, by filter."""
        shape, weight = self.terms[:2]
        worth = np.where(shape == UtilityShape.LOG, np.log(2.0), 1.0) * weight
        places = np.flatnonzero(rank[self.exact_numbers] < 0).tolist()
        found = {self.exact[place]: float(worth[place]) for place in places}
        return found | dict(zip(self.patterns, worth[len(self.exact) :].tolist(), strict=True))


def columns_of(intent: SubscriberIntent, most_worth: float = math.inf) -> WantedColumns:
    """The intent of a subscriber, exact names first; a topic is worth `most_worth` at most."""
    wanted = sorted(intent.subscriptions, key=lambda each: has_wildcard(each.topic))
    exact = tuple(each.topic for each in wanted if not has_wildcard(each.topic))
    patterns = tuple(each.topic for each in wanted[len(exact) :])
    terms = terms_of(wanted)
    weight = terms[TERMS.index("utility_weight")]
    np.minimum(weight, most_worth, out=weight)
    return WantedColumns(intent.name, exact, patterns, terms)


def terms_of(wanted: Sequence[Wanted]) -> Floats:
    """One column each: what it is worth, and how late or rarely it may come, as the scenario's tables have it."""
    terms = np.array([_terms(each) for each in wanted], dtype=np.float64)
    return np.ascontiguousarray(terms.reshape(-1, len(TERMS)).T)


def _terms(wanted: Wanted) -> tuple[float, ...]:
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
        wanted.max_latency_share or 0.0,
        wanted.guaranteed,
    )


def wanted_tables(
    names: Sequence[str],
    wanted: Sequence[WantedColumns],
    intents: Mapping[str, SubscriberIntent],
    network: Network,
    rank: Integers,
) -> tuple[Subscribers, Subscriptions]:
    """Subscribers in the given order, and their subscriptions of topics that have a rank: the topic's row."""
    pieces = [each.columns for each in wanted if each.columns is not None]
    numbers = np.concatenate([np.empty(0, dtype=np.int64), *(topics for topics, _ in pieces)])
    block = np.concatenate([np.empty((len(TERMS), 0)), *(terms for _, terms in pieces)], axis=1)
    owner = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(topics) for topics, _ in pieces])
    topic = rank[numbers]
    if (topic < 0).any():
        ranked = topic >= 0
        topic, owner, block = topic[ranked], owner[ranked], block[:, ranked]
    rows = np.array([network.subscriber_row.get(name, -1) for name in names], dtype=np.int64)
    ports = np.array([network.port_of(intents[name]) for name in names], dtype=np.int32)
    people = with_columns(network.scenario.subscribers, rows, name=tuple(names), port=ports)
    return (
        replace(people, error_rate=network.error_rates(ports, people.error_rate)),
        Subscriptions(subscriber=owner, topic=topic, **named_terms(block)),
    )


def named_terms(block: Floats) -> dict[str, Any]:
    """The rows of a block as the columns of a scenario's subscriptions."""
    columns: dict[str, Any] = dict(zip(TERMS, block, strict=True))
    return columns | {name: columns[name].astype(np.int8) for name in ("utility_shape", "guaranteed")}
