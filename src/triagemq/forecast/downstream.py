"""From the home broker to the subscriber: outbound queue, managed switches, drops, output ports, last link.

The second half of PrioDeX eq. 10, one level of switches and their ports after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.model import ErrorEstimate, Reason
from triagemq.forecast.ports import AtPorts, Variability, by_queues, cross_ports, overlapped
from triagemq.forecast.promised import PromisedLoad
from triagemq.forecast.tandem import (
    OVERLAP_DOUBT,
    Lookup,
    Lookups,
    Spread,
    broker_outbound,
    lookups,
    meeting_bound,
)
from triagemq.forecast.upstream import Streams, TopicArrivals
from triagemq.plan.demands import Demand
from triagemq.plan.model import Plan
from triagemq.scenario import Floats, Integers, Scenario, SendingOrder, port_hops
from triagemq.theory import Cumulants, LatencyDistribution
from triagemq.theory.cumulants import ByRow

MOST_TOGETHER = 1 << 14
"""Ports are crossed by about so many copies at a time: what these need stays in the processor's cache."""

BORROWING_DOUBT = 0.5
"""The part of the time at a port whose queues borrow that may be wrong."""

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
    errors: ErrorEstimate,
    promised: PromisedLoad | None = None,
) -> Crossing:
    """Follow every subscription's copies from its home broker to its subscriber, and doubt what is rough on the way.

    `promised` is traffic that crosses ports, too.
    """
    path = _Path(scenario, plan, demanded, arrivals, errors, promised)
    hops = np.pad(port_hops(scenario), ((0, 0), (0, 1)), constant_values=-1)
    for hop in range(hops.shape[1] - 1):
        port = hops[demanded.port, hop]
        on = np.flatnonzero(port >= 0)
        switches = path.lookups(on, port[on], first=hop == 0)
        for some in _by_ports(port[on]):
            rows = on[some]
            behind = path.from_broker(rows) if hop == 0 else path.behind[rows]
            found = switches.look_up(some, behind.spread)
            further = hops[demanded.port[rows], hop + 1] >= 0
            path.cross(rows, port[rows], behind, found, further, first=hop == 0)
    subscriber = scenario.subscriptions.subscriber
    return Crossing(
        path.survival * demanded.whole_share,
        path.seconds + scenario.subscribers.propagation_seconds[subscriber],
        path.times,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Behind(ByRow):
    """Columns over copies: what lies behind them, as far as it matters to the queues ahead.

    `queued_seconds` is their time in the links, switches and ports that send one packet after the other.
    """

    elapsed: Cumulants
    spread: Spread
    queued_seconds: Floats

    @classmethod
    def room(cls, count: int) -> _Behind:
        """Columns for so many copies that are yet to come."""
        columns = [np.zeros(count) for _ in range(7)]
        return cls(Cumulants(*columns[:3]), Spread(*columns[3:6]), columns[6])


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
        errors: ErrorEstimate,
        promised: PromisedLoad | None,
    ) -> None:
        self._scenario, self._demanded, self._arrivals, self._errors = scenario, demanded, arrivals, errors
        self._class, self._keep = plan.subscription_class, plan.subscription_keep
        self._by_class = scenario.sending_order is SendingOrder.BY_CLASS
        self._promised = promised
        self._poisson = arrivals.poisson and promised is None
        self._broker = scenario.subscribers.broker[scenario.subscriptions.subscriber]
        self._batch = self._broker * np.int32(len(scenario.topics)) + scenario.subscriptions.topic
        self._notify_rate = arrivals.rate.reshape(-1)[self._batch]
        cell = self._broker, scenario.subscriptions.topic
        self._arriving = Streams(
            scenario.subscriptions.subscriber,
            self._notify_rate,
            *(column[cell] for column in (arrivals.ca2, arrivals.irregular, arrivals.streams)),
        )
        sent = broker_outbound(scenario, self._arriving)
        self.survival, self.seconds, self._apart = sent.share, sent.seconds, sent.apart_seconds
        errors.add(
            Reason.ARRIVALS,
            np.arange(len(self.seconds)),
            seconds=arrivals.doubtful_seconds[cell] + sent.doubtful_seconds,
        )
        self._packets_left = np.ones_like(self.seconds)
        self.times = LatencyDistribution.room(len(self.seconds))
        self.behind = _Behind.room(len(self.seconds))

    def from_broker(self, rows: Rows) -> _Behind:
        """What copies have behind them that leave their home broker's outbound queue."""
        arrivals, cell, nothing = self._arrivals, self._cell(rows), np.zeros(rows.size)
        return _Behind(
            arrivals.delay[cell] + Cumulants.exponential(self.seconds[rows]),
            Spread(nothing, nothing, self._apart[rows]),
            arrivals.queued_seconds[cell],
        )

    def lookups(self, rows: Rows, port: Integers, *, first: bool) -> Lookups:
        """The lookups of the switches before these ports."""
        packets = self._demanded.sizes.packets[rows]
        return lookups(
            self._scenario,
            port,
            self._batch[rows],
            # Only at the first switch do the packets of a copy come together.
            self._arriving.of(rows, 1.0 if first else packets),
            self.survival[rows] * self._packets_left[rows],
            packets if first else np.ones_like(packets),
            self._class[rows] if self._by_class and first else None,
        )

    def cross(
        self,
        rows: Rows,
        port: Integers,
        behind: _Behind,
        found: Lookup,
        further: NDArray[np.bool_],
        *,
        first: bool,
    ) -> None:
        """Pass the switch and these ports; those that go `further` also their link: a subscriber's own comes last.

        Drops are made at the `first` switch.
        """
        ports, arrivals, errors = self._scenario.ports, self._arrivals, self._errors
        self.survival[rows] *= found.share * self._keep[rows] if first else found.share
        cell = self._cell(rows)
        copies = self._at_ports(rows, port)
        variability = Variability(arrivals.ca2[cell], arrivals.streams[cell], arrivals.irregular[cell])
        crossing, spread, at = copies, found.spread, rows
        if self._promised is not None:
            crossing, load = self._promised.join(copies, int(port.min()))
            variability = load.with_variability(variability)
            at = np.append(rows, np.full(len(load), errors.unattributed))
            nothing = np.zeros(len(load))
            spread = Spread(*(np.append(each, nothing) for each in spread.columns))
        crossing = by_queues(crossing, ports, int(port.min()))
        copies = by_queues(copies, ports, int(port.min()))
        crossed = cross_ports(
            crossing,
            at,
            errors,
            random_order=not self._by_class,
            variability=None if self._poisson else variability,
        )
        together = overlapped(crossing, crossed, spread)[: rows.size] if first else np.zeros(rows.size)
        crossed = crossed.first(rows.size)
        errors.add(Reason.TANDEM, rows, seconds=found.doubtful + OVERLAP_DOUBT * together)
        errors.add(Reason.ARRIVALS, rows, seconds=found.irregular)
        # What queues before have spread waits less here, by no more than it waited there.
        left = np.where(np.isfinite(crossed.wait), np.maximum(crossed.wait - together, 0.0), 0.0)
        passed = 0.5 * np.minimum(left, behind.queued_seconds)
        errors.add(Reason.TANDEM, rows, seconds=passed)
        met = 0.5 * meeting_bound(
            copies.port,
            cell[1],
            cell[0],
            copies.priority_class,
            copies.rate,
            copies.present,
            copies.event_seconds,
        )
        errors.add(Reason.BROKERS, rows, seconds=met)
        waited = np.maximum(crossed.wait - together - passed, 0.0) + met
        taken = waited + copies.last_packet_seconds
        borrowing = ports.borrowing[port] > 0
        if borrowing.any():
            success = 1 - crossed.carried
            errors.add(
                Reason.BORROWING,
                rows[borrowing],
                seconds=BORROWING_DOUBT * taken[borrowing],
                success=BORROWING_DOUBT * success[borrowing],
            )
        times = crossed.law.with_mean(taken).after(behind.elapsed + Cumulants.exponential(found.seconds))
        self.survival[rows] *= crossed.carried
        self.seconds[rows] += found.seconds + taken
        self.times[rows] = times
        if further.any():
            spread = Spread(copies.event_seconds, 2.0 * crossed.others.ahead, np.zeros(rows.size))
            self.behind[rows] = _Behind(times.overall, spread, behind.queued_seconds + taken)
            self._packets_left[rows] *= np.where(further, 1 - ports.error_rate[port], 1.0)
            self.seconds[rows] += np.where(further, ports.propagation_seconds[port], 0.0)

    def _cell(self, rows: Rows) -> tuple[Integers, Integers]:
        """Home broker and topic: where the copies' events come from."""
        return self._broker[rows], self._scenario.subscriptions.topic[rows]

    def _at_ports(self, rows: NDArray[np.int64], port: Integers) -> AtPorts:
        """What comes to these ports, which are numbered from the first of them."""
        ports, arriving = self._scenario.ports, self.survival[rows] * self._packets_left[rows]
        sizes = self._demanded.sizes.of(rows)
        own = sizes if self._demanded.delivered is self._demanded.sizes else self._demanded.delivered.of(rows)
        lowest = port.min()
        bytes_per_second = ports.bandwidth_bps[port] / 8
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
            first_packet_seconds=own.first_packet_bytes / bytes_per_second,
            first_product=sizes.first_packet_product / bytes_per_second**2,
            single_packet_seconds=own.single_packet_bytes / bytes_per_second,
        )


def _by_ports(port: Integers) -> list[Rows]:
    """Copies in the order of their ports, cut where a port ends into parts of about `MOST_TOGETHER`."""
    ends = np.cumsum(np.bincount(port))
    cuts = np.searchsorted(ends, np.arange(MOST_TOGETHER, len(port), MOST_TOGETHER))
    parts = np.split(np.argsort(port, kind="stable"), np.unique(ends[cuts]))
    return [part for part in parts if part.size]
