"""What every subscription asks of the network before anything is decided: rates, sizes, link losses.

These are the lambda_notify, s and size of theory.md section 1, as columns over subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats, Integers, Scenario, SizeDistribution, broker_routes, port_paths
from triagemq.theory import FragmentSizes, fragment_sizes, fragment_sizes_from_values

__all__ = ["Demand", "WireSizes", "demand", "sum_by", "survival_to_port", "total_by", "wire_sizes"]

IntegerColumn = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class WireSizes:
    """Moments of events on the wire, overhead and fragmentation included.

    `event_*` are of the whole event; `packets` is the mean number of packets it travels as, `packet_square_bytes`
    the mean square of one packet's size, `last_packet_bytes` the mean size of the packet that completes it and
    `first_packet_bytes` of the one that begins it. `first_packet_product` is the mean product of the first packet and
    the whole event, `single_packet_bytes` the mean of the event where it is one packet, and 0 where it is several.
    """

    event_bytes: Floats
    event_square_bytes: Floats
    packets: Floats
    packet_square_bytes: Floats
    last_packet_bytes: Floats
    first_packet_bytes: Floats
    first_packet_product: Floats
    single_packet_bytes: Floats

    @property
    def event_scv(self) -> Floats:
        """Squared coefficient of variation of the event's size on the wire."""
        return np.maximum(self.event_square_bytes / self.event_bytes**2 - 1.0, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Columns over subscriptions.

    `published_rate` counts events on the topic at all publishers; `notify_rate` those that reach the subscriber's home
    broker; `ideal_success` is the share that would arrive with no drop and no full buffer.
    """

    published_rate: Floats
    notify_rate: Floats
    ideal_success: Floats
    sizes: WireSizes
    port: Integers

    @property
    def load_bytes_per_second(self) -> Floats:
        """What each subscription puts on its ports when nothing is dropped."""
        return self.notify_rate * self.sizes.event_bytes


def demand(scenario: Scenario) -> Demand:
    """Compute the demand of every subscription.

    >>> from triagemq.scenario.generators import table2
    >>> asked = demand(table2(seed=1))
    >>> bool((asked.notify_rate <= asked.published_rate).all())
    True
    """
    publications, publishers = scenario.publications, scenario.publishers
    subscribers, subscriptions = scenario.subscribers, scenario.subscriptions
    shape = (len(scenario.brokers), len(scenario.topics))
    home = publishers.broker[publications.publisher]
    reaching_home = publications.rate_per_second * (1 - publishers.error_rate[publications.publisher])
    # Rate of every topic at every broker: what enters anywhere, times what survives the links to that broker.
    entering = sum_by(home, publications.topic, shape, reaching_home)
    reach = broker_routes(scenario).reach
    at_broker = reach.T @ entering

    def mixed(values: Floats) -> Floats:
        """The mean over a topic's events at every broker, publishers mixed by the rates that reach it."""
        total = reach.T @ sum_by(home, publications.topic, shape, reaching_home * values)
        return np.divide(total, at_broker, out=np.ones_like(total), where=at_broker > 0)

    broker = subscribers.broker[subscriptions.subscriber]
    cell = (broker, subscriptions.topic)
    published = total_by(publications.topic, publications.rate_per_second, shape[1])
    own = wire_sizes(scenario)
    packets = mixed(own.packets)
    sizes = WireSizes(
        event_bytes=mixed(own.event_bytes)[cell],
        event_square_bytes=mixed(own.event_square_bytes)[cell],
        packets=packets[cell],
        packet_square_bytes=(mixed(own.packets * own.packet_square_bytes) / packets)[cell],
        last_packet_bytes=mixed(own.last_packet_bytes)[cell],
        first_packet_bytes=mixed(own.first_packet_bytes)[cell],
        first_packet_product=mixed(own.first_packet_product)[cell],
        single_packet_bytes=mixed(own.single_packet_bytes)[cell],
    )
    notify_rate = at_broker[cell]
    published_rate = published[subscriptions.topic]
    delivered = notify_rate * _survival_below_broker(scenario)[subscriptions.subscriber]
    return Demand(
        published_rate=published_rate,
        notify_rate=notify_rate,
        ideal_success=np.divide(
            delivered, published_rate, out=np.zeros_like(delivered), where=published_rate > 0
        ),
        sizes=sizes,
        port=subscribers.port[subscriptions.subscriber],
    )


def wire_sizes(scenario: Scenario) -> WireSizes:
    """Moments on the wire of every publication's events."""
    publications = scenario.publications
    columns = {field.name: np.zeros(len(publications)) for field in fields(FragmentSizes)}

    def put(rows: NDArray[np.bool_], sizes: FragmentSizes) -> None:
        for name, column in columns.items():
            column[rows] = getattr(sizes, name)

    mtu, overhead = scenario.mtu_bytes, scenario.overhead_bytes
    exponential = publications.size_distribution == SizeDistribution.EXPONENTIAL
    constant = publications.size_distribution == SizeDistribution.CONSTANT
    put(exponential, fragment_sizes(publications.size_bytes[exponential], "exponential", mtu, overhead))
    put(constant, fragment_sizes(publications.size_bytes[constant], "constant", mtu, overhead))
    for sample in range(len(scenario.size_samples)):
        values, weights = scenario.size_samples.size_bytes[sample], scenario.size_samples.weight[sample]
        put(
            publications.size_samples == sample,
            fragment_sizes_from_values(values, weights, mtu, overhead),
        )
    mean = columns["wire_bytes_mean"]
    return WireSizes(
        event_bytes=mean,
        event_square_bytes=mean**2 * (1 + columns["wire_bytes_scv"]),
        packets=columns["packets_per_event"],
        packet_square_bytes=columns["packet_bytes_second_moment"],
        last_packet_bytes=columns["last_packet_bytes_mean"],
        first_packet_bytes=columns["first_packet_bytes_mean"],
        first_packet_product=columns["first_packet_product"],
        single_packet_bytes=columns["single_packet_bytes"],
    )


def _survival_below_broker(scenario: Scenario) -> Floats:
    """Per subscriber, the share of packets that survives the links from its first switch to its device."""
    subscribers = scenario.subscribers
    return np.asarray(survival_to_port(scenario)[subscribers.port] * (1 - subscribers.error_rate))


def survival_to_port(scenario: Scenario) -> Floats:
    """Per port, the share of the packets sent towards it that survives the links of the ports before it."""
    before = port_paths(scenario)[:, :-1]
    return np.asarray(np.append(1 - scenario.ports.error_rate, 1.0)[before].prod(axis=1))


def total_by(index: IntegerColumn, values: Floats, count: int) -> Floats:
    """Values added up by the row of another table that they belong to."""
    return np.asarray(np.bincount(index, values, minlength=count), dtype=np.float64)


def sum_by(row: Integers, column: Integers, shape: tuple[int, int], values: Floats) -> Floats:
    """Values added up into the cells (row, column) of a matrix."""
    return total_by(row.astype(np.int64) * shape[1] + column, values, shape[0] * shape[1]).reshape(shape)
