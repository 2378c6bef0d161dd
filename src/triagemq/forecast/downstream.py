"""From the home broker to the subscriber: outbound queue, managed switches, drops, output ports, last link.

The second half of PrioDeX eq. 10, one level of switches and their ports after the other. For queues in a row no formula
is known but between bounds: the middle is taken, half the range is the error, and a sample says more (`prediction`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.model import ErrorEstimate, Reason
from triagemq.forecast.ports import (
    OVERLAP_DOUBT,
    AtPorts,
    Crossed,
    by_queues,
    cross_ports,
    others_at,
    overlap,
)
from triagemq.forecast.terms import Thinned
from triagemq.forecast.upstream import Streams, TopicArrivals, weighted
from triagemq.plan.demands import Demand, total_by
from triagemq.plan.model import Plan
from triagemq.scenario import Floats, Integers, Scenario, SendingOrder, port_hops
from triagemq.theory import Cumulants, LatencyDistribution, mm1_sojourn
from triagemq.theory.cumulants import ByRow

MOST_TOGETHER = 1 << 14
"""Ports are crossed by about so many copies at a time: what these need stays in the processor's cache."""

BORROWING_DOUBT = 0.5
"""The part of the time at a port whose queues borrow that may be wrong."""

_NEARLY_SATURATED = 1e-9

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """Columns over subscriptions: the share of notifications that arrives, and how long they took from the home broker.

    `times` is the law of the whole way from the publisher, but for constants.
    """

    survival: Floats
    seconds: Floats
    times: LatencyDistribution


def cross_network(
    scenario: Scenario,
    plan: Plan,
    demanded: Demand,
    arrivals: TopicArrivals,
    thinned: Thinned,
    errors: ErrorEstimate,
    promised_load: tuple[Floats, Floats],
) -> Crossing:
    """Follow every subscription's copies from its home broker to its subscriber, and doubt what is rough on the way.

    `promised_load` is the share of each port that promised traffic takes, and the mean wait for it.
    """
    path = _Path(scenario, plan, demanded, arrivals, thinned, errors, promised_load)
    hops = np.pad(port_hops(scenario), ((0, 0), (0, 1)), constant_values=-1)
    for hop in range(hops.shape[1] - 1):
        port = hops[demanded.port, hop]
        on = np.flatnonzero(port >= 0)
        path.look_up(on, port[on], first=hop == 0)
        for some in _by_ports(port[on]):
            rows = on[some]
            path.cross(rows, port[rows], hops[demanded.port[rows], hop + 1] >= 0, first=hop == 0)
    subscriber = scenario.subscriptions.subscriber
    return Crossing(
        path.survival * demanded.whole_share,
        path.seconds + scenario.subscribers.propagation_seconds[subscriber],
        path.times,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Behind(ByRow):
    """Columns over copies: what lies behind them, as far as it matters to the queues ahead.

    Copies of one event come one every `between_seconds`, of which `others` are other copies, and each `apart_seconds`
    late by itself. `queued_seconds` is their time in the links, switches and ports that send one after the other.
    """

    elapsed: Cumulants
    between_seconds: Floats
    others: Floats
    apart_seconds: Floats
    queued_seconds: Floats

    def late(self, others: Floats, ahead: Floats) -> Floats:
        """How long a copy comes after the first, where only these others of its event go, so many of them `ahead`."""
        between = self.between_seconds * (self.others + 2.0) / (others + 2.0)
        return ahead * between + weighted(others / (others + 1.0), self.apart_seconds)


class _Path:
    """Every subscription's copies on their way; columns over subscriptions.

    What queues and drops leave (`survival`) is counted in events, what links leave (`packets_left`) in packets: those
    of an event that lost one still take their room.
    """

    def __init__(
        self,
        scenario: Scenario,
        plan: Plan,
        demanded: Demand,
        arrivals: TopicArrivals,
        thinned: Thinned,
        errors: ErrorEstimate,
        promised_load: tuple[Floats, Floats],
    ) -> None:
        self._scenario, self._demanded, self._arrivals, self._errors = scenario, demanded, arrivals, errors
        self._class, self._keep = plan.subscription_class, plan.subscription_keep
        self._by_class = scenario.sending_order is SendingOrder.BY_CLASS
        self._promised_load, self._promised_wait = promised_load
        wanted = scenario.subscriptions
        self._cell = scenario.subscribers.broker[wanted.subscriber], wanted.topic
        self._batch = self._cell[0] * np.int32(len(scenario.topics)) + wanted.topic
        self._notify_rate = arrivals.rate[self._cell]
        self._arriving = Streams(
            wanted.subscriber, self._notify_rate, arrivals.ca2[self._cell], arrivals.publications[self._cell]
        )
        self._packets_left = np.ones(len(wanted))
        self.times = LatencyDistribution.room(len(wanted))
        self.survival, self.seconds, apart = self._leave_brokers()
        self.survival, self.seconds = self.survival * thinned.share, self.seconds + thinned.seconds
        nothing = np.zeros(len(wanted))
        self._behind = _Behind(
            arrivals.delay[self._cell] + Cumulants.exponential(self.seconds.copy()),
            nothing,
            nothing.copy(),
            apart,
            arrivals.queued_seconds[self._cell],
        )

    def _leave_brokers(self) -> tuple[Floats, Floats, Floats]:
        """One queue per subscriber at its home broker (PrioDeX eq. 14): share, time, and the part of it that copies of
        one event do not share. Copies that are sent together by class share their service."""
        scenario, subscriber = self._scenario, self._scenario.subscriptions.subscriber
        mu = scenario.brokers.outbound_rate_per_second[scenario.subscribers.broker]
        rate = total_by(subscriber, self._notify_rate, len(scenario.subscribers))
        waited, doubt = self._arriving.waits(
            mm1_sojourn(rate, mu) - 1 / mu, rate / mu, np.ones(len(rate)), poisson=self._arrivals.poisson
        )
        share, seconds = np.minimum(1.0, mu / np.maximum(rate, 1e-300)), 1 / mu + waited
        self._errors.add(
            Reason.ARRIVALS,
            np.arange(len(subscriber)),
            seconds=self._arrivals.doubtful_seconds[self._cell] + doubt[subscriber],
        )
        apart = waited if self._by_class else seconds
        return share[subscriber], seconds[subscriber], apart[subscriber]

    def look_up(self, rows: Rows, port: Integers, *, first: bool) -> None:
        """The lookups of the switches before these ports: all packets through a switch in one class.

        PrioDeX takes one flow's rate here; a switch serves the total, and looks up packets: those of a copy come
        together at the `first` switch, and go on when the last is looked up. Lookups are drawn one by one, so copies
        share none.
        """
        scenario, behind, count = self._scenario, self._behind[rows], len(self._scenario.switches)
        switch = scenario.ports.switch[port]
        packets = self._demanded.sizes.packets[rows]
        together = packets if first else np.ones_like(packets)
        service = together / scenario.switches.inbound_rate_per_second[switch]
        present = self.survival[rows] * self._packets_left[rows]
        others = others_at(
            switch,
            self._batch[rows],
            np.minimum(present, 1.0),
            self._class[rows] if self._by_class and first else None,
        )
        arriving = self._arriving[rows]
        events = arriving.rate * (1.0 if first else packets)
        busy = events * present * service
        load = total_by(switch, busy, count)
        # Half of the others of an event are before any of its copies, in the mean.
        work = 0.5 * busy * service * (1.0 + 1.0 / together), 0.5 * busy * service * others.count
        alone, batches = (
            np.divide(total_by(switch, each, count), 1.0 - load, out=np.full(count, np.inf), where=load < 1.0)
            for each in work
        )
        # One event's copies are one stream, however many there are.
        _, each = np.unique(switch.astype(np.int64) << 32 | self._batch[rows], return_index=True)
        streams = Streams(switch[each], events[each], arriving.ca2[each], arriving.publications[each])
        waited, doubt = streams.waits(alone + batches, load, np.ones(count), poisson=self._arrivals.poisson)
        own = others.ahead * service
        whole = np.where(load[switch] < 1.0, batches[switch] + own, 0.0)
        passed = overlap(behind.late(others.count, others.ahead), whole)
        seconds = waited[switch] + own - passed + service
        self._errors.add(Reason.TANDEM, rows, seconds=OVERLAP_DOUBT * passed)
        self._errors.add(Reason.ARRIVALS, rows, seconds=doubt[switch])
        spread = service / np.maximum(1.0 - load[switch], _NEARLY_SATURATED)
        self.survival[rows] *= np.minimum(1.0, 1.0 / np.maximum(load[switch], 1e-300))
        self.seconds[rows] += seconds
        self._behind[rows] = _Behind(
            behind.elapsed + Cumulants.exponential(seconds),
            np.maximum(spread, behind.between_seconds),
            np.maximum(others.count, behind.others),
            behind.apart_seconds,
            behind.queued_seconds,
        )

    def cross(self, rows: Rows, port: Integers, further: NDArray[np.bool_], *, first: bool) -> None:
        """Pass these ports; those that go `further` also their link: a subscriber's own comes last.

        Drops are made at the `first` switch.
        """
        ports, arrivals, errors, behind = (
            self._scenario.ports,
            self._arrivals,
            self._errors,
            self._behind[rows],
        )
        if first:
            self.survival[rows] *= self._keep[rows]
        copies = by_queues(self._at_ports(rows, port), ports, int(port.min()))
        crossed = cross_ports(copies, rows, errors, None if arrivals.poisson else self._arriving[rows])
        together = np.zeros(rows.size)
        if first:
            together = crossed.overlap(behind.late(crossed.others.count, crossed.others.ahead))
            errors.add(Reason.TANDEM, rows, seconds=OVERLAP_DOUBT * together)
        # What queues before have spread waits less here, by no more than it waited there.
        left = np.where(np.isfinite(crossed.wait), np.maximum(crossed.wait - together, 0.0), 0.0)
        passed = 0.5 * np.minimum(left, behind.queued_seconds)
        errors.add(Reason.TANDEM, rows, seconds=passed)
        met = self._add_meetings(rows, copies, crossed)
        waited = np.maximum(crossed.wait - together - passed, 0.0) + met + self._promised_wait[port]
        promised = self._promised_load[port]
        errors.add(Reason.ARRIVALS, rows, seconds=weighted(promised, waited))
        taken = waited + copies.last_packet_seconds * (1.0 - promised)
        borrowing = ports.borrowing[port] > 0
        if borrowing.any():
            errors.add(
                Reason.BORROWING,
                rows[borrowing],
                seconds=BORROWING_DOUBT * taken[borrowing],
                success=BORROWING_DOUBT * (1 - crossed.served)[borrowing],
            )
        times = crossed.law.with_mean(taken).after(behind.elapsed)
        self.survival[rows] *= crossed.served
        self.seconds[rows] += taken
        self.times[rows] = times
        if further.any():
            self._behind[rows] = _Behind(
                times.overall,
                copies.event_seconds,
                2.0 * crossed.others.ahead,
                np.zeros(rows.size),
                behind.queued_seconds + taken,
            )
            self._packets_left[rows] *= np.where(further, 1 - ports.error_rate[port], 1.0)
            self.seconds[rows] += np.where(further, ports.propagation_seconds[port], 0.0)

    def _add_meetings(self, rows: Rows, copies: AtPorts, crossed: Crossed) -> Floats:
        """Seconds that copies of the same event add that come to the port through other brokers: at any time, so half
        of the most that they can; and the doubt of it. In a random sending order, a first copy goes out of turn."""
        others, load = crossed.others, copies.by_port(copies.load)[copies.port]
        if not self._by_class:
            first = np.maximum(1.0 - load, 0.0) * (others.higher + others.lower) / (others.count + 1.0)
            self._errors.add(Reason.SENDING_ORDER, rows, seconds=first * copies.event_seconds)
        if len(self._scenario.brokers) == 1:
            return np.zeros(rows.size)
        every = others_at(copies.port, self._cell[1][rows], copies.present, copies.priority_class)
        more = every.higher + every.same - others.higher - others.same
        work = np.maximum(more, 0.0) * copies.event_seconds
        met = 0.5 * np.divide(work, 1.0 - load, out=np.zeros(rows.size), where=load < 1.0)
        self._errors.add(Reason.BROKERS, rows, seconds=met)
        return met

    def _at_ports(self, rows: Rows, port: Integers) -> AtPorts:
        """What comes to these ports, which are numbered from the first of them. Promised messages go first: they take a
        part of the bandwidth."""
        ports, arriving = self._scenario.ports, self.survival[rows] * self._packets_left[rows]
        sizes = self._demanded.sizes.of(rows)
        own = sizes if self._demanded.delivered is self._demanded.sizes else self._demanded.delivered.of(rows)
        lowest = port.min()
        left = np.maximum(1.0 - self._promised_load[port], _NEARLY_SATURATED)
        bytes_per_second = ports.bandwidth_bps[port] / 8 * left
        return AtPorts(
            buffer_packets=ports.buffer_packets[lowest : port.max() + 1],
            port=port - lowest,
            batch=self._batch[rows],
            priority_class=self._class[rows],
            rate=self._notify_rate[rows] * arriving,
            present=np.minimum(arriving, 1.0),
            event_seconds=sizes.event_bytes / bytes_per_second,
            event_scv=sizes.event_scv,
            packets=sizes.packets,
            packet_square_seconds=sizes.packet_square_bytes / bytes_per_second**2,
            own_event_seconds=own.event_bytes / bytes_per_second,
            last_packet_seconds=own.last_packet_bytes / bytes_per_second,
        )


def _by_ports(port: Integers) -> list[Rows]:
    """Copies in the order of their ports, cut where a port ends into parts of about `MOST_TOGETHER`."""
    ends = np.cumsum(np.bincount(port))
    cuts = np.searchsorted(ends, np.arange(MOST_TOGETHER, len(port), MOST_TOGETHER))
    parts = np.split(np.argsort(port, kind="stable"), np.unique(ends[cuts]))
    return [part for part in parts if part.size]
