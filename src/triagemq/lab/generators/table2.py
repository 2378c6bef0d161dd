"""The papers' simulated situation: Table 2 of PrioDeX (2021), as experiments.md reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.lab.generators import columns
from triagemq.lab.generators.columns import checked_range
from triagemq.scenario.building import checked_count, checked_number, numbered, random_streams
from triagemq.scenario.kinds import SendingOrder
from triagemq.scenario.model import Floats, PlanningSettings, Scenario

BANDWIDTH_BPS_PER_SUBSCRIBER = 8e6
"""The table's 80 Mbps are the total of ten subscribers (experiments.md)."""

DRAWS_PER_KIND = 5
"""Published topics, rates, sizes, subscribed topics, weights: a random stream each."""

Range = tuple[float, float]
Rows = NDArray[np.int64]
Value = TypeVar("Value")


def table2(
    *,
    seed: int = 0,
    subscribers: int = 10,
    publishers: int = 160,
    topics: tuple[int, int] = (140, 60),
    subscriptions: tuple[int, int] = (70, 42),
    topics_per_publisher: tuple[int, int] = (4, 4),
    rate_means: tuple[float, float] = (6, 4),
    rate_ranges: tuple[Range, Range] = ((4, 7), (3, 5)),
    size_means: tuple[float, float] = (110, 800),
    size_ranges: tuple[Range, Range] = ((90, 500), (500, 1100)),
    weight_means: tuple[float, float] = (0.5, 1.0),
    weight_ranges: tuple[Range, Range] = ((0.01, 2), (0.1, 4)),
    event_weight_factor: float = 1.0,
    freshness_seconds: float = np.inf,
    sizes: str = "exponential",
    bandwidth_bps: float | None = None,
    buffer_packets: float = np.inf,
    shared_port: bool = False,
    flows_per_subscriber: int = 9,
    priority_classes: int = 9,
    rho_tolerance: float = 0.1,
) -> Scenario:
    """Telemetry and event topics, published and subscribed at random (PrioDeX 6.1, Table 2).

    Pairs are (telemetry, event). Rates are drawn per publisher and topic, sizes per topic, weights per
    subscription: exponential with the given mean, redrawn while outside the range. `topics_per_publisher` and
    `subscriptions` count distinct topics, chosen uniformly; only published topics are subscribed to. Table 2
    prints no topics per publisher: 4 + 4 gives the papers' loads (experiments.md). `event_weight_factor`
    multiplies the weights of event topics (PrioDeX Fig. 8).

    `bandwidth_bps` is the bandwidth of every port. When left out it is 8 Mbit/s with a port per subscriber,
    and 8 Mbit/s times the subscribers with one `shared_port`.

    Every quantity of either kind has its own random stream, and rows are drawn whole before they are cut:
    with one seed, fewer subscriptions are a part of more, at the same weights, sizes and rates.

    >>> situation = table2(seed=1)
    >>> len(situation.topics), len(situation.publications), len(situation.subscriptions)
    (200, 1280, 1120)
    >>> situation.topics.name[0], situation.publishers.name[-1], situation.ports.name[-1]
    ('event-01', 'publisher-160', 'port-10')
    """
    publishers, subscribers = (
        checked_count("publishers", publishers),
        checked_count("subscribers", subscribers),
    )
    streams = random_streams(seed, 2 * DRAWS_PER_KIND)
    telemetry, event = (
        _draw(
            _Kind(
                name=name,
                topics=checked_count("topics", _of_pair("topics", topics, kind)),
                subscriptions=checked_count(
                    "subscriptions", _of_pair("subscriptions", subscriptions, kind), minimum=0
                ),
                topics_per_publisher=checked_count(
                    "topics_per_publisher", _of_pair("topics_per_publisher", topics_per_publisher, kind)
                ),
                rate=_Spread.checked("rate", rate_means, rate_ranges, kind),
                size=_Spread.checked("size", size_means, size_ranges, kind),
                weight=_Spread.checked("weight", weight_means, weight_ranges, kind),
            ),
            publishers,
            subscribers,
            streams[kind * DRAWS_PER_KIND :],
        )
        for kind, name in enumerate(("telemetry", "event"))
    )
    if len(telemetry.subscriber) + len(event.subscriber) == 0:
        raise ParameterError("subscriptions", "is (0, 0); write at least 1 for telemetry or for events")
    event_weight = event.weight * checked_number("event_weight_factor", event_weight_factor, zero=True)
    if bandwidth_bps is None:
        bandwidth_bps = BANDWIDTH_BPS_PER_SUBSCRIBER * (subscribers if shared_port else 1)
    return columns.one_switch_scenario(
        name="table2",
        # What the papers' simulators did.
        sending_order=SendingOrder.RANDOM,
        topics=numbered("telemetry", topics[0]) + numbered("event", topics[1]),
        ports=numbered("port", 1 if shared_port else subscribers),
        bandwidth_bps=checked_number("bandwidth_bps", bandwidth_bps),
        buffer_packets=checked_number("buffer_packets", buffer_packets, infinite=True),
        publishers=numbered("publisher", publishers),
        publications={
            "publisher": np.concatenate([telemetry.publisher, event.publisher]),
            "topic": np.concatenate([telemetry.published_topic, event.published_topic + topics[0]]),
            "rate_per_second": np.concatenate([telemetry.rate, event.rate]),
            "size_bytes": np.concatenate([telemetry.size, event.size]),
            "size_distribution": columns.checked_distribution("sizes", sizes),
        },
        subscribers=numbered("subscriber", subscribers),
        port=np.zeros(subscribers) if shared_port else np.arange(subscribers),
        subscriptions={
            "subscriber": np.concatenate([telemetry.subscriber, event.subscriber]),
            "topic": np.concatenate([telemetry.subscribed_topic, event.subscribed_topic + topics[0]]),
            "utility_weight": np.concatenate([telemetry.weight, event_weight]),
            "freshness_seconds": checked_number("freshness_seconds", freshness_seconds, infinite=True),
        },
        planning=PlanningSettings(
            flows_per_subscriber=checked_count("flows_per_subscriber", flows_per_subscriber),
            priority_classes=checked_count("priority_classes", priority_classes),
            rho_tolerance=checked_number("rho_tolerance", rho_tolerance, zero=True, below=1),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Spread:
    """An exponential distribution cut to a range."""

    mean: float
    low: float
    high: float

    @classmethod
    def checked(
        cls, quantity: str, means: tuple[float, float], ranges: tuple[Range, Range], kind: int
    ) -> _Spread:
        mean_name, range_name = f"{quantity}_means", f"{quantity}_ranges"
        # A weight may be 0, for a topic that is worth nothing; a rate or a size may not.
        low, high = checked_range(range_name, _of_pair(range_name, ranges, kind), zero=quantity == "weight")
        return cls(checked_number(mean_name, _of_pair(mean_name, means, kind)), low, high)

    def of(self, uniform: Floats) -> Floats:
        return columns.truncated_exponential(uniform, self.mean, self.low, self.high)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What Table 2 says of one kind of topic."""

    name: str
    topics: int
    subscriptions: int
    topics_per_publisher: int
    rate: _Spread
    size: _Spread
    weight: _Spread


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The publications and subscriptions of one kind, its topics counted from 0."""

    publisher: Rows
    published_topic: Rows
    rate: Floats
    size: Floats
    subscriber: Rows
    subscribed_topic: Rows
    weight: Floats


def _draw(kind: _Kind, publishers: int, subscribers: int, streams: list[np.random.Generator]) -> _Drawn:
    choice_of_publishers, rates, sizes, choice_of_subscribers, weights = streams[:DRAWS_PER_KIND]
    each = kind.topics_per_publisher
    if each > kind.topics:
        raise ParameterError(
            "topics_per_publisher",
            f"asks for {each} {kind.name} topics where there are {kind.topics}; write at most {kind.topics}, "
            "or more topics",
        )
    published_topic = _distinct(choice_of_publishers, publishers, kind.topics, each)
    published = np.unique(published_topic)
    if kind.subscriptions > len(published):
        raise ParameterError(
            "subscriptions",
            f"asks for {kind.subscriptions} {kind.name} topics where {len(published)} of {kind.topics} are "
            f"published; write at most {len(published)}, or more topics and publishers",
        )
    chosen = _distinct(choice_of_subscribers, subscribers, len(published), kind.subscriptions)
    return _Drawn(
        publisher=np.repeat(np.arange(publishers), each),
        published_topic=published_topic,
        rate=kind.rate.of(_uniform(rates, publishers, kind.topics, each)),
        size=kind.size.of(sizes.random(kind.topics))[published_topic],
        subscriber=np.repeat(np.arange(subscribers), kind.subscriptions),
        subscribed_topic=published[chosen],
        weight=kind.weight.of(_uniform(weights, subscribers, len(published), kind.subscriptions)),
    )


def _distinct(stream: np.random.Generator, rows: int, available: int, taken: int) -> Rows:
    """Row after row, `taken` different numbers below `available`: the head of a whole permutation."""
    return np.concatenate([stream.permutation(available)[:taken] for _ in range(rows)])


def _uniform(stream: np.random.Generator, rows: int, available: int, taken: int) -> Floats:
    """Row after row, `taken` uniform numbers: the head of as many as `_distinct` permutes."""
    return np.concatenate([stream.random(available)[:taken] for _ in range(rows)])


def _of_pair(parameter: str, pair: tuple[Value, Value], kind: int) -> Value:
    try:
        telemetry, event = pair
    except (TypeError, ValueError):
        raise ParameterError(parameter, f"is {pair!r}; write a pair, telemetry first, then events") from None
    return event if kind else telemetry
