"""What is to be promised: publications and guaranteed subscriptions that match, as messages on the links of a network.

A promise is requested for one publication and one guaranteed subscription to its topic, if the publication's largest
separation is not above the subscription's (MIDAS II). A message crosses the publisher's access link and then output
ports, as packets; promises of one publication are one flow, which is replicated where their paths part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import cached_property
from itertools import islice

import numpy as np

from triagemq.plan.admission.links import PromiseLink
from triagemq.plan.dataplane import LIMITER_PACKETS
from triagemq.scenario import (
    Discipline,
    Floats,
    Integers,
    LimiterKind,
    Scenario,
    SizeDistribution,
    direct_paths,
    switch_links,
)
from triagemq.scenario.model import Codes
from triagemq.scenario.routes import SwitchLinks

Path = tuple[int, ...]

CONTROL_BYTES, CONTROL_SEPARATION_SECONDS = 128.0, 0.1
"""What the control of the network may send over any link, above all promises: an ARP, IGMP or LLDP packet of at most
this size with its headers, and not more often. Discovery and keep-alives send one a second; that leaves room for nine
answers."""

MOST_BPS = 1e15
"""Links without a stated rate count as this fast: an octet takes no time that matters, but some."""

UTILITY_QUEUES, CONTROL_QUEUES = 1, 1
"""Queues of a port that no level takes."""

METER_BYTES = 125.0
"""Meters of OpenFlow switches count whole kilobits: so much more they may hold, and let through in a second."""

SHORT_PACKETS = 4
"""So many packets of shorter messages a limiter remembers, with those of the largest."""

MOST_PATHS = 4
"""Paths that are tried, the shortest first."""


@dataclass(frozen=True, slots=True)
class PromisedMessage:
    """The largest message of a publication, with the overhead of its packets: full ones and a last, shorter one."""

    packets: int
    wire_bytes: float
    packet_bytes: float

    @classmethod
    def of(cls, size_bytes: float, packet_bytes: float, overhead_bytes: float) -> PromisedMessage:
        """
        >>> PromisedMessage.of(4000.0, 1500.0, 100.0)
        PromisedMessage(packets=3, wire_bytes=4300.0, packet_bytes=1500.0)
        """
        packets = max(1, math.ceil(size_bytes / (packet_bytes - overhead_bytes)))
        wire_bytes = size_bytes + packets * overhead_bytes
        return cls(packets, wire_bytes, packet_bytes if packets > 1 else wire_bytes)


@dataclass(frozen=True, slots=True)
class PromiseRequest:
    """One promise to be decided on. `separation_seconds` is what the limiter at the first switch enforces."""

    publication: int
    subscription: int
    publisher: int
    message: PromisedMessage
    separation_seconds: float
    max_latency_seconds: float

    @property
    def key(self) -> tuple[int, int]:
        return self.publication, self.subscription


@dataclass(frozen=True, slots=True)
class PromisePath:
    """A path for a promise: its links, the access link first, and what lies behind each of them.

    `multiplexing_seconds` is what the next switch may take at most, `fixed_seconds` all of these and the propagation.
    """

    links: tuple[int, ...]
    switches: tuple[int, ...]
    multiplexing_seconds: Floats
    fixed_seconds: float


class PromiseNetwork:
    """A scenario as links: its output ports by their rows, and the access link of every publisher behind them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.port_count = len(scenario.ports)
        self._paths: dict[tuple[int, int], tuple[Path, ...]] = {}
        self._links: dict[int, PromiseLink] = {}

    def access_link(self, publisher: int) -> int:
        return self.port_count + publisher

    def port(self, link: int) -> int:
        """The output port that a link is, -1 for access links."""
        return link if link < self.port_count else -1

    def has_buckets(self, switch: int) -> bool:
        """Whether the limiters of a switch are token buckets."""
        return bool(self.scenario.switches.limiter[switch] == LimiterKind.BUCKET)

    def limiter_jitter(self, request: PromiseRequest, switch: int) -> tuple[float, float]:
        """How much sooner than messages come a limiter may let others through: by what it has to hold besides them, so
        that it cuts no publisher whose host or link pauses for a moment, nor where it is filled in steps, and by what
        may come out besides that."""
        tolerance = float(self.scenario.switches.limiter_tolerance_seconds[switch])
        if not self.has_buckets(switch):
            return tolerance, 0.0
        step = float(self.scenario.switches.limiter_step_seconds[switch])
        return step + tolerance, step + METER_BYTES * request.separation_seconds / request.message.wire_bytes

    def link(self, number: int) -> PromiseLink:
        """What promises need to know of a link."""
        if number not in self._links:
            self._links[number] = self._made(number)
        return self._links[number]

    def _made(self, number: int) -> PromiseLink:
        scenario, ports = self.scenario, self.scenario.ports
        if number >= len(ports):
            publisher = number - len(ports)
            rate = min(float(scenario.publishers.access_bps[publisher]), MOST_BPS) / 8
            name = f"the access link of {scenario.publishers.name[publisher]}"
            # Utility traffic leaves the publisher by its unmanaged switch or its link to the broker.
            return PromiseLink(
                name, rate, 1, 0.0, CONTROL_BYTES / rate, CONTROL_SEPARATION_SECONDS, in_order=True
            )
        rate = min(float(ports.bandwidth_bps[number]), MOST_BPS) / 8
        return PromiseLink(
            f"port {ports.name[number]}",
            rate,
            self.most_levels,
            self.longest_utility_packet / rate,
            CONTROL_BYTES / rate,
            CONTROL_SEPARATION_SECONDS,
            in_order=False,
        )

    @cached_property
    def most_levels(self) -> int:
        """Levels that every port has room for: a class means the same at all of them."""
        queues = self.scenario.ports.queues[self.scenario.ports.queues > 0]
        return int(queues.min(initial=2**31 - 1)) - UTILITY_QUEUES - CONTROL_QUEUES

    @cached_property
    def longest_utility_packet(self) -> float:
        """Octets of the longest packet that a level may have to wait for; infinite where none is the longest.

        Not only of the traffic that there is: what comes later is not to break a promise. What is refused a promise
        comes as utility traffic if it is worth anything so.
        """
        scenario, publications = self.scenario, self.scenario.publications
        largest = float(scenario.switches.packet_bytes.max(initial=0.0))
        if math.isfinite(scenario.mtu_bytes):
            return max(largest, scenario.mtu_bytes)
        served = np.zeros(len(scenario.topics), dtype=np.bool_)
        wanted = scenario.subscriptions
        served[wanted.topic[(wanted.guaranteed == 0) | (wanted.utility_weight > 0)]] = True
        for row in np.flatnonzero(served[publications.topic]).tolist():
            kind, sample = publications.size_distribution[row], publications.size_samples[row]
            if sample >= 0:
                size = float(scenario.size_samples.size_bytes[sample].max())
            elif kind == SizeDistribution.CONSTANT:
                size = float(publications.size_bytes[row])
            else:
                return math.inf
            largest = max(largest, size + scenario.overhead_bytes)
        return largest

    def paths(self, publisher: int, subscriber: int) -> Iterator[PromisePath]:
        """The paths from a publisher to a subscriber, the shortest first."""
        scenario = self.scenario
        between = (
            int(scenario.publishers.access_switch[publisher]),
            int(scenario.subscribers.port[subscriber]),
        )
        if between not in self._paths:
            found = direct_paths(scenario, publisher, subscriber, self._switch_links)
            self._paths[between] = tuple(islice(found, MOST_PATHS))
        for path in self._paths[between]:
            yield self.path_over(path, publisher, subscriber)

    @cached_property
    def _switch_links(self) -> SwitchLinks:
        return switch_links(self.scenario)

    def leads(self, path: Path, publisher: int, subscriber: int) -> bool:
        """Whether there is this path from a publisher to a subscriber."""
        scenario = self.scenario
        switch = int(scenario.publishers.access_switch[publisher])
        for port in path[:-1]:
            switch = dict(self._switch_links.leaving[switch]).get(port, -1) if switch >= 0 else -1
        last = path[-1]
        return bool(
            last == scenario.subscribers.port[subscriber]
            and switch == scenario.ports.switch[last]
            and scenario.ports.discipline[last] == Discipline.PRIORITY
        )

    def path_over(self, path: Path, publisher: int, subscriber: int) -> PromisePath:
        """A path with all that lies on it."""
        scenario, ports = self.scenario, self.scenario.ports
        switches = tuple(int(ports.switch[port]) for port in path)
        # Behind the access link and behind every port but the last lies a switch.
        multiplexing = np.append(scenario.switches.multiplexing_seconds[list(switches)], 0.0)
        wires = (
            float(scenario.publishers.propagation_seconds[publisher])
            + float(ports.propagation_seconds[list(path[:-1])].sum())
            + float(scenario.subscribers.propagation_seconds[subscriber])
        )
        links = (self.access_link(publisher), *path)
        return PromisePath(links, switches, multiplexing, wires + float(multiplexing.sum()))


def matching(scenario: Scenario) -> tuple[Integers, Integers, Codes]:
    """Publications and guaranteed subscriptions of the same topics; and which of these pairs match (MIDAS II)."""
    wanted, published = scenario.subscriptions, scenario.publications
    rows = np.flatnonzero(wanted.guaranteed)
    by_topic = np.argsort(published.topic, kind="stable")
    count = np.bincount(published.topic, minlength=len(scenario.topics))
    first = np.cumsum(count) - count
    several = count[wanted.topic[rows]]
    subscription = np.repeat(rows, several)
    place = np.arange(len(subscription)) - np.repeat(np.cumsum(several) - several, several)
    publication = by_topic[first[wanted.topic[subscription]] + place]
    often = published.max_separation_seconds[publication] <= wanted.max_separation_seconds[subscription]
    return publication.astype(np.int32), subscription.astype(np.int32), often.astype(np.int8)


def promise_request(scenario: Scenario, publication: int, subscription: int) -> PromiseRequest | str:
    """The promise to be decided on, or what is missing to state it."""
    published, publishers = scenario.publications, scenario.publishers
    publisher = int(published.publisher[publication])
    who = f"publisher {publishers.name[publisher]}"
    size, separation, latency = (
        float(published.max_size_bytes[publication]),
        float(published.min_separation_seconds[publication]),
        float(scenario.subscriptions.max_latency_seconds[subscription]),
    )
    switch = int(publishers.access_switch[publisher])
    if switch < 0:
        return f"{who} is plugged into no managed switch; state its access"
    if not math.isfinite(size):
        return f"{who} does not state the max_size_bytes of its messages"
    if not separation > 0:
        rate = min(float(publishers.access_bps[publisher]), MOST_BPS) / 8
        return (
            f"{who} does not state a min_separation_seconds above 0; its access link alone needs "
            f"{round_up(size / rate):.4g} s"
        )
    if not math.isfinite(latency):
        return "no max_latency_seconds is stated"
    packet, overhead = float(scenario.switches.packet_bytes[switch]), scenario.overhead_bytes
    if packet <= overhead:
        return f"packets of {packet:.6g} octets hold nothing but their overhead of {overhead:.6g}"
    message = PromisedMessage.of(size, packet, overhead)
    most = LIMITER_PACKETS - SHORT_PACKETS
    if message.packets > most and scenario.switches.limiter[switch] == LimiterKind.WINDOW:
        return (
            f"a message of {who} has {message.packets} packets, and limiters count {most}; with a max_size_bytes of "
            f"{most * (packet - overhead):.0f} it could be promised"
        )
    # A limiter is set so much higher that it cuts no publisher, and may then let through as much more.
    slack = 1.0 + float(scenario.switches.limiter_precision[switch])
    counted = separation / slack**2
    if scenario.switches.limiter[switch] == LimiterKind.BUCKET:
        counted = message.wire_bytes / (message.wire_bytes / counted + METER_BYTES * slack)
    return PromiseRequest(
        publication,
        subscription,
        publisher,
        message,
        counted,
        latency,
    )


def round_up(seconds: float) -> float:
    """The number of four digits next above: what is offered can be read, written and requested again.

    >>> round_up(0.00123412), round_up(2.0)
    (0.001235, 2.0)
    """
    if not math.isfinite(seconds):
        return seconds
    return float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(repr(float(seconds))))
