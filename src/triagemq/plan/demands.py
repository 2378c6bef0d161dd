"""What every subscription asks of the network before anything is decided: rates, sizes, link losses.

These are the lambda_notify, s and size of theory.md section 1, as columns over subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.scenario import (
    ArrivalProcess,
    Floats,
    Integers,
    Scenario,
    SizeDistribution,
    Subscriptions,
    UtilityShape,
    broker_routes,
    port_paths,
)
from triagemq.theory import FragmentSizes, fragment_sizes, fragment_sizes_from_values, thinned_rate

IntegerColumn = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class WireSizes:
    """Moments of events on the wire, overhead and fragmentation included.

    `event_*` are of the whole event; `packets` is the mean number of packets it travels as, `packet_square_bytes`
    the mean square of one packet's size, `last_packet_bytes` the mean size of the packet that completes it.

    Where links lose packets, they are of the events that keep all of theirs; `survival` is the share of those.
    """

    event_bytes: Floats
    event_square_bytes: Floats
    packets: Floats
    packet_square_bytes: Floats
    last_packet_bytes: Floats
    survival: Floats

    @property
    def event_scv(self) -> Floats:
        """Squared coefficient of variation of the event's size on the wire."""
        return np.maximum(self.event_square_bytes / self.event_bytes**2 - 1.0, 0.0)

    def of(self, rows: IntegerColumn) -> WireSizes:
        """The same columns over other rows."""
        return WireSizes(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Columns over subscriptions.

    `published_rate` counts events on the topic at all publishers; `notify_rate` those that reach the subscriber's home
    broker; `ideal_success` is the share that would arrive with no drop and no full buffer. What is thinned to a
    subscription's `max_rate_per_second` is in neither rate. `sizes` are those of the
    events at the home broker, `delivered` those of the events that arrive: the links below spare the smaller ones.
    """

    published_rate: Floats
    notify_rate: Floats
    ideal_success: Floats
    sizes: WireSizes
    delivered: WireSizes
    port: Integers

    @property
    def load_bytes_per_second(self) -> Floats:
        """What each subscription puts on its ports when nothing is dropped."""
        return self.notify_rate * self.sizes.event_bytes

    @property
    def whole_share(self) -> Floats:
        """Share of the events at the home broker that the links below it leave whole."""
        whole = self.ideal_success * self.published_rate
        return np.divide(whole, self.notify_rate, out=np.zeros_like(whole), where=self.notify_rate > 0)


def demand(scenario: Scenario) -> Demand:
    """Compute the demand of every subscription.

    >>> from triagemq.scenario.building import building
    >>> demanded = demand(building())
    >>> bool((demanded.notify_rate <= demanded.published_rate).all())
    True
    """
    publications, subscriptions = scenario.publications, scenario.subscriptions
    subscribers = scenario.subscribers
    cell = subscribers.broker[subscriptions.subscriber] * np.int64(len(scenario.topics)) + subscriptions.topic
    rate_at_broker, sizes_at_broker = _at_brokers(scenario)
    notify_rate, sizes = rate_at_broker[cell], sizes_at_broker.of(cell)
    published = total_by(publications.topic, publications.rate_per_second, len(scenario.topics))
    published_rate = published[subscriptions.topic]
    below = _survival_below_broker(scenario)[subscriptions.subscriber]
    arriving, delivered = notify_rate * below, sizes
    if (sizes.packets > 1.0).any() and (below < 1.0).any():
        arriving, delivered = _whole_at_subscribers(scenario, cell, below)
    if np.isfinite(subscriptions.max_rate_per_second).any():
        passing = _thinned(scenario, notify_rate)
        share = np.divide(passing, notify_rate, out=np.ones_like(passing), where=notify_rate > 0)
        published_rate = published_rate - (notify_rate - passing)
        notify_rate, arriving = passing, arriving * share
    return Demand(
        published_rate=published_rate,
        notify_rate=notify_rate,
        ideal_success=np.divide(arriving, published_rate, out=np.zeros_like(below), where=published_rate > 0),
        sizes=sizes,
        delivered=delivered,
        port=subscribers.port[subscriptions.subscriber],
    )


def _thinned(scenario: Scenario, notify_rate: Floats) -> Floats:
    """What passes of each subscription's events: exact where all of them are Poisson, else at most so many."""
    wanted, publications = scenario.subscriptions, scenario.publications
    regular = np.zeros(len(scenario.topics), dtype=np.bool_)
    regular[publications.topic[publications.arrival_process != ArrivalProcess.POISSON]] = True
    passing = np.minimum(notify_rate, wanted.max_rate_per_second)
    limited = np.flatnonzero(np.isfinite(wanted.max_rate_per_second) & ~regular[wanted.topic])
    passing[limited] = thinned_rate(notify_rate[limited], wanted.max_rate_per_second[limited])
    return passing


def minimum_shares(scenario: Scenario, demanded: Demand) -> Floats:
    """The least share of each subscription's events that shall arrive: its minimum, and one event in its separation."""
    wanted = scenario.subscriptions
    rate = demanded.published_rate
    one_event = np.divide(1.0 / wanted.max_separation_seconds, rate, out=np.zeros_like(rate), where=rate > 0)
    return np.maximum(wanted.min_share, np.minimum(one_event, 1.0))


def wire_sizes(
    scenario: Scenario, rows: IntegerColumn | None = None, packet_survival: Floats | None = None
) -> WireSizes:
    """Moments on the wire of the events of these publications (all of them), one element each.

    `packet_survival` is the share of packets that the links of the path do not lose. An event is whole if none of its
    packets is lost, so what survives is smaller than what was sent.
    """
    publications = scenario.publications
    rows = np.arange(len(publications)) if rows is None else rows
    survives = np.ones(len(rows)) if packet_survival is None else packet_survival
    columns = {field.name: np.zeros(len(rows)) for field in fields(FragmentSizes)}

    def put(chosen: NDArray[np.bool_], sizes: FragmentSizes) -> None:
        for name, column in columns.items():
            column[chosen] = getattr(sizes, name)

    mtu, overhead = scenario.mtu_bytes, scenario.overhead_bytes
    distribution, size = publications.size_distribution[rows], publications.size_bytes[rows]
    exponential, constant = (
        distribution == kind for kind in (SizeDistribution.EXPONENTIAL, SizeDistribution.CONSTANT)
    )
    put(exponential, fragment_sizes(size[exponential], "exponential", mtu, overhead, survives[exponential]))
    put(constant, fragment_sizes(size[constant], "constant", mtu, overhead, survives[constant]))
    for sample in range(len(scenario.size_samples)):
        values, weights = scenario.size_samples.size_bytes[sample], scenario.size_samples.weight[sample]
        drawn = publications.size_samples[rows] == sample
        for each in np.unique(survives[drawn]):
            sizes = fragment_sizes_from_values(values, weights, mtu, overhead, float(each))
            put(drawn & (survives == each), sizes)
    mean = columns["wire_bytes_mean"]
    return WireSizes(
        event_bytes=mean,
        event_square_bytes=mean**2 * (1 + columns["wire_bytes_scv"]),
        packets=columns["packets_per_event"],
        packet_square_bytes=columns["packet_bytes_second_moment"],
        last_packet_bytes=columns["last_packet_bytes_mean"],
        survival=columns["survival"],
    )


def survival_to_brokers(scenario: Scenario) -> Floats:
    """The share of packets that the links from every publication (a column) to every broker (a row) do not lose."""
    publishers, publisher = scenario.publishers, scenario.publications.publisher
    reach = broker_routes(scenario).reach[publishers.broker[publisher]].T
    return np.asarray((1 - publishers.error_rate[publisher]) * reach)


class _Mixture:
    """Events of several publications put together, cell by cell, in proportion to their rates."""

    def __init__(self, cells: int) -> None:
        self._rate, self._packets = np.zeros(cells), np.zeros(cells)
        self._sums = {field.name: np.zeros(cells) for field in fields(WireSizes)}

    def add(self, cell: IntegerColumn, rate: Floats, sizes: WireSizes) -> None:
        count = len(self._rate)
        packets = rate * sizes.packets
        self._rate += total_by(cell, rate, count)
        self._packets += total_by(cell, packets, count)
        for name, column in self._sums.items():
            # The mean square of a packet is a mean over packets, all else over events.
            weight = packets if name == "packet_square_bytes" else rate
            column += total_by(cell, weight * getattr(sizes, name), count)

    def result(self) -> tuple[Floats, WireSizes]:
        """The rate in every cell, and the means; 1 where nothing comes."""

        def mean(name: str) -> Floats:
            weight = self._packets if name == "packet_square_bytes" else self._rate
            return np.divide(self._sums[name], weight, out=np.ones_like(weight), where=weight > 0)

        return self._rate, WireSizes(**{name: mean(name) for name in self._sums})


def _at_brokers(scenario: Scenario) -> tuple[Floats, WireSizes]:
    """Rate and sizes of every topic at every broker; broker * topics + topic is the cell."""
    publications, topics = scenario.publications, len(scenario.topics)
    found = _Mixture(len(scenario.brokers) * topics)
    for broker, survives in enumerate(survival_to_brokers(scenario)):
        sizes = wire_sizes(scenario, packet_survival=survives)
        found.add(broker * topics + publications.topic, publications.rate_per_second * sizes.survival, sizes)
    return found.result()


def _whole_at_subscribers(
    scenario: Scenario, cell: NDArray[np.int64], below: Floats
) -> tuple[Floats, WireSizes]:
    """Rate and sizes of the whole events that would arrive without drops: an event is lost with any of its packets.

    `below` is the share of packets that survives the links below the home broker. Subscriptions of one broker, topic
    and share are alike and visited once.
    """
    publications, topics = scenario.publications, len(scenario.topics)
    shares, share = np.unique(below, return_inverse=True)
    kinds, kind = np.unique(cell * len(shares) + share, return_inverse=True)
    broker, topic = np.divmod(kinds // len(shares), topics)
    survives, to_brokers = shares[kinds % len(shares)], survival_to_brokers(scenario)
    by_topic = np.argsort(publications.topic, kind="stable")
    count = np.bincount(publications.topic, minlength=topics)
    first = np.cumsum(count) - count
    found = _Mixture(len(kinds))
    for number in range(int(count.max(initial=0))):
        those = np.flatnonzero(count[topic] > number)
        publication = by_topic[first[topic[those]] + number]
        sizes = wire_sizes(scenario, publication, survives[those] * to_brokers[broker[those], publication])
        found.add(those, publications.rate_per_second[publication] * sizes.survival, sizes)
    rate, mixed = found.result()
    return rate[kind], mixed.of(kind)


def _survival_below_broker(scenario: Scenario) -> Floats:
    """Per subscriber, the share of packets that survives the links from its first switch to its device."""
    subscribers = scenario.subscribers
    return np.asarray(survival_to_port(scenario)[subscribers.port] * (1 - subscribers.error_rate))


def survival_to_port(scenario: Scenario) -> Floats:
    """Per port, the share of the packets sent towards it that survives the links of the ports before it."""
    before = port_paths(scenario)[:, :-1]
    return np.asarray(np.append(1 - scenario.ports.error_rate, 1.0)[before].prod(axis=1))


def copy_rate(scenario: Scenario) -> float:
    """Copies a second that all publications make, one for every subscription to their topics, before any is lost."""
    published, topics = scenario.publications, len(scenario.topics)
    subscribed = np.bincount(scenario.subscriptions.topic, minlength=topics)
    return float((published.rate_per_second * subscribed[published.topic]).sum())


def total_by(index: IntegerColumn, values: Floats, count: int) -> Floats:
    """Values added up by the row of another table that they belong to."""
    return np.asarray(np.bincount(index, values, minlength=count), dtype=np.float64)


def sum_by(row: Integers, column: Integers, shape: tuple[int, int], values: Floats) -> Floats:
    """Values added up into the cells (row, column) of a matrix."""
    return total_by(row.astype(np.int64) * shape[1] + column, values, shape[0] * shape[1]).reshape(shape)


DEVIATIONS = 1.6449
"""Standard deviations between what is planned and the threshold: 95 of 100 periods reach it."""


def success_needed(threshold: ArrayLike, events: ArrayLike) -> Floats:
    """The x that is DEVIATIONS * sqrt(x (1 - x) / events) above the threshold (Wilson's bound of a share).

    >>> [round(float(share), 3) for share in success_needed(0.8, [10, 1000, np.inf])]
    [0.931, 0.82, 0.8]
    >>> float(success_needed(1.0, 10))
    1.0
    """
    share = np.asarray(threshold, dtype=np.float64)
    spread = DEVIATIONS**2 / np.asarray(events, dtype=np.float64)
    middle = share + spread / 2
    return np.asarray((middle + np.sqrt(spread * (share * (1 - share) + spread / 4))) / (1 + spread))


def step_targets(scenario: Scenario, demanded: Demand) -> Floats:
    """Per subscription, the success rate to plan so that its step is reached; the threshold of those without a step.

    Where the links let less arrive than that, but as much as the threshold, all of it is the target.
    """
    threshold = scenario.subscriptions.utility_threshold
    stepped = (scenario.subscriptions.utility_shape == UtilityShape.STEP) & (threshold > 0)
    reachable = np.maximum(demanded.ideal_success, threshold)
    needed = np.minimum(success_needed(threshold, _events(scenario, demanded)), reachable)
    return np.where(stepped, needed, threshold)


def with_margin(scenario: Scenario, demanded: Demand) -> Subscriptions:
    """The subscriptions as drops are planned for them: steps at their targets, worth what is to be expected there.

    A step that even an undropped flow reaches in some periods only is worth its share of them.
    """
    wanted = scenario.subscriptions
    if not (wanted.utility_shape == UtilityShape.STEP).any():
        return wanted
    target, weight = step_targets(scenario, demanded), wanted.utility_weight.copy()
    events = _events(scenario, demanded)
    short = np.flatnonzero(
        (target > wanted.utility_threshold) & (success_needed(wanted.utility_threshold, events) > target)
    )
    if len(short):
        # 0.1 s to import, which few scenarios need.
        from scipy.special import ndtr

        share = target[short]
        deviation = np.sqrt(share * (1 - share) / events[short])
        weight[short] *= ndtr((share - wanted.utility_threshold[short]) / deviation)
    return replace(wanted, utility_threshold=target, utility_weight=weight)


def _events(scenario: Scenario, demanded: Demand) -> Floats:
    """Per subscription, the events of the period in which its success is judged."""
    return np.maximum(demanded.published_rate * scenario.planning.judged_over_seconds, 1e-9)
