"""From the home broker to the subscriber: outbound queue, managed switches, drops, output ports, last link.

The second half of PrioDeX eq. 10. Copies of one publication reach a shared port together, so its waits follow the batch
model (theory.md section 2), not the papers' Poisson arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.doubts import Doubts, Reason
from triagemq.forecast.meeting import met_waits
from triagemq.forecast.switches import broker_outbound, look_up
from triagemq.forecast.tandem import (
    OVERLAP_DOUBT,
    BatchAt,
    Before,
    Spread,
    batch_at,
    overlap,
    passed_before,
    sharpness,
    slower,
)
from triagemq.forecast.upstream import TopicArrivals
from triagemq.plan import Demand, Plan
from triagemq.plan.demand import total_by
from triagemq.scenario import Floats, Integers, Scenario, SendingOrder, port_hops
from triagemq.theory import (
    Cumulants,
    FirstPackets,
    Times,
    finite_buffer_loss,
    finite_buffer_sojourn,
    fragmented_waits,
    fragmented_work,
    gg1_factor,
    mean_waits,
    merged_ca2,
    served_share,
    sojourn_times,
    split_ca2,
)
from triagemq.theory.ladder import build_ladder
from triagemq.theory.work_level import Batches, Work, copies_ahead

__all__ = ["Copies", "cross_network"]

NEGLIGIBLE = 1e-3
"""Copies that come within this share of the time at a port of each other come together."""


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Columns over subscriptions: the share of notifications that arrives, and how long they took on the way."""

    survival: Floats
    seconds: Floats
    times: Times


@dataclass(frozen=True, slots=True, eq=False)
class _AtPorts:
    """The copies that cross one level of output ports; columns over the crossing subscriptions.

    `own_event_seconds`, `last_packet_seconds` and the means of `first_packets` are of the events that will arrive.
    """

    port: Integers
    batch: Integers
    priority_class: Integers
    rate: Floats
    present: Floats
    ca2: Floats
    streams: Floats
    copies_scale: Floats
    event_seconds: Floats
    event_scv: Floats
    packets: Floats
    packet_square_seconds: Floats
    own_event_seconds: Floats
    last_packet_seconds: Floats
    first_packets: FirstPackets

    @property
    def load(self) -> Floats:
        return self.rate * self.event_seconds


def cross_network(
    scenario: Scenario, plan: Plan, asked: Demand, arrivals: TopicArrivals, doubts: Doubts
) -> Copies:
    """Follow every subscription's copies from its home broker to its subscriber, and doubt what is rough on the way."""
    subscribers, subscriptions, ports = scenario.subscribers, scenario.subscriptions, scenario.ports
    subscriber = subscriptions.subscriber
    broker = subscribers.broker[subscriber]
    cell = (broker, subscriptions.topic)
    notify_rate = arrivals.rate[cell]
    batch = broker * np.int32(len(scenario.topics)) + subscriptions.topic
    keep = plan.subscription_keep
    hops = port_hops(scenario)[asked.port]
    by_class = scenario.sending_order is SendingOrder.BY_CLASS
    survival, seconds, apart = broker_outbound(scenario, notify_rate)
    times = Times.of(Cumulants.exponential(seconds.copy()))
    spread = Spread(np.zeros_like(seconds), np.zeros_like(seconds), apart)
    before = Before(
        arrivals.queue_wait_seconds[cell],
        arrivals.queue_service_seconds[cell],
        arrivals.queue_load[cell],
        np.zeros_like(seconds),
    )
    # What queues and drops leave is counted in events, what links leave in packets: those of an event that lost one
    # still take their room.
    packets_left = np.ones(len(subscriptions))
    for hop in range(hops.shape[1]):
        on = np.flatnonzero(hops[:, hop] >= 0)
        port = hops[on, hop]
        # A million rows are not copied where they are the same.
        sizes = asked.sizes if on.size == len(subscriptions) else asked.sizes.of(on)
        own = sizes if asked.delivered is asked.sizes else asked.delivered.of(on)
        packets = sizes.packets
        looked_up = look_up(
            scenario,
            port,
            batch[on],
            # Only at the first switch do the packets of a copy come together.
            notify_rate[on] if hop == 0 else notify_rate[on] * packets,
            survival[on] * packets_left[on],
            packets if hop == 0 else np.ones_like(packets),
            spread.of(on),
            plan.subscription_class[on] if by_class and hop == 0 else None,
        )
        seconds[on] += looked_up.seconds
        survival[on] *= looked_up.share * keep[on] if hop == 0 else looked_up.share
        bytes_per_second = ports.bandwidth_bps[port] / 8
        at_ports = _AtPorts(
            port=port,
            batch=batch[on],
            priority_class=plan.subscription_class[on],
            rate=notify_rate[on] * survival[on] * packets_left[on],
            present=np.minimum(survival[on] * packets_left[on], 1.0),
            ca2=arrivals.ca2[cell][on],
            streams=arrivals.streams[cell][on],
            copies_scale=np.ones(on.size),
            event_seconds=sizes.event_bytes / bytes_per_second,
            event_scv=sizes.event_scv,
            packets=sizes.packets,
            packet_square_seconds=sizes.packet_square_bytes / bytes_per_second**2,
            own_event_seconds=own.event_bytes / bytes_per_second,
            last_packet_seconds=own.last_packet_bytes / bytes_per_second,
            first_packets=FirstPackets(
                mean=own.first_packet_bytes / bytes_per_second,
                product=sizes.first_packet_product / bytes_per_second**2,
                single=own.single_packet_bytes / bytes_per_second,
            ),
        )
        carried, waited, law = _cross_ports(scenario, at_ports, on, doubts, poisson=arrivals.poisson)
        batches = batch_at(port, batch[on], at_ports.present, at_ports.priority_class)
        together = (
            _overlap(at_ports, batches, looked_up.spread, waited, by_class=by_class)
            if hop == 0
            else np.zeros(on.size)
        )
        doubts.add(Reason.TANDEM, on, seconds=looked_up.doubtful + OVERLAP_DOUBT * together)
        passed, doubtful = passed_before(
            before.of(on),
            waited,
            batches,
            at_ports.event_seconds,
            *_load_and_variability(at_ports),
            copied=hop > 0,
        )
        doubts.add(Reason.TANDEM, on, seconds=doubtful)
        met, doubtful = met_waits(
            port,
            subscriptions.topic[on],
            broker[on],
            at_ports.priority_class,
            at_ports.rate,
            at_ports.present,
            arrivals.delay_seconds[cell][on],
            at_ports.event_seconds,
        )
        doubts.add(Reason.BROKERS, on, seconds=doubtful)
        waited = np.maximum(waited - together - passed, 0.0) + met
        before = slower(
            before, on, waited, at_ports.event_seconds, _load_and_variability(at_ports)[0], batches.ahead
        )
        spread = Spread(at_ports.event_seconds, 2.0 * batches.ahead, np.zeros(on.size)).placed(
            on, len(seconds)
        )
        survival[on] *= carried
        seconds[on] += waited + at_ports.last_packet_seconds
        port_times = law.with_mean(waited + at_ports.last_packet_seconds)
        times[on] = port_times.after(times[on].overall + Cumulants.exponential(looked_up.seconds))
        # The link of a trunk; a subscriber's own link comes last.
        further = hops[on, hop + 1] >= 0 if hop + 1 < hops.shape[1] else np.zeros(on.size, dtype=np.bool_)
        packets_left[on] *= np.where(further, 1 - ports.error_rate[port], 1.0)
        seconds[on] += np.where(further, ports.propagation_seconds[port], 0.0)
    survival *= asked.whole_share
    seconds += subscribers.propagation_seconds[subscriber]
    return Copies(survival, seconds, times)


def _load_and_variability(copies: _AtPorts) -> tuple[Floats, Floats]:
    """Per copy, its port's load and the squared coefficient of variation of all packets there."""
    ports = int(copies.port.max(initial=-1)) + 1
    rate = copies.rate * copies.packets
    load = total_by(copies.port, copies.load, ports)
    square = total_by(copies.port, rate * copies.packet_square_seconds, ports)
    total = total_by(copies.port, rate, ports)
    scv = np.divide(square * total, load**2, out=np.ones_like(load), where=load > 0) - 1.0
    return load[copies.port], np.maximum(scv, 0.0)[copies.port]


def _overlap(copies: _AtPorts, batches: BatchAt, spread: Spread, wait: Floats, *, by_class: bool) -> Floats:
    """How much of the wait for copies of the same event passes before they are at the port (tandem.py)."""
    late = spread.in_class_order(batches) if by_class else spread.at(batches.others, batches.tilt)
    if (late <= NEGLIGIBLE * (wait + copies.event_seconds)).all():
        return np.zeros_like(wait)
    ladder = build_ladder(copies.port.astype(np.int64), copies.priority_class.astype(np.int64))
    load = ladder.total(copies.load)
    busy = total_by(copies.port, copies.load, int(copies.port.max(initial=-1)) + 1)[copies.port]
    # At an idle port the first to come starts; of a packet of a lower class about a third is left when r comes.
    first = 0.0 if by_class else np.maximum(1.0 - busy, 0.0) / (batches.others + 1.0)
    begun = np.asarray(copies.first_packets.mean, dtype=np.float64) / 3.0
    own = batches.ahead * copies.event_seconds + first * (
        batches.lower * begun - batches.higher * copies.event_seconds
    )
    own /= np.maximum(1.0 - ladder.above(load)[ladder.step_of_row], 1e-9)
    single = fragmented_waits(
        copies.rate,
        copies.event_seconds,
        copies.event_scv,
        copies.rate * copies.packets,
        copies.packet_square_seconds,
        copies.last_packet_seconds,
        copies.priority_class,
        queues=copies.port,
        own_event_mean=copies.own_event_seconds,
    )
    whole = np.subtract(wait, single, out=np.zeros_like(wait), where=np.isfinite(wait))
    return overlap(late, own, np.maximum(whole, 0.0), sharpness(copies.event_scv))


def _cross_ports(
    scenario: Scenario, copies: _AtPorts, rows: NDArray[np.int64], doubts: Doubts, *, poisson: bool
) -> tuple[Floats, Floats, Times]:
    """Share carried, mean wait and, but for its mean, the law of the time at output ports with strict priorities."""
    ports = scenario.ports
    class_count = int(copies.priority_class.max(initial=0)) + 1
    shape = (len(ports), class_count)
    cell = copies.port.astype(np.int64) * class_count + copies.priority_class

    def by_class(values: Floats) -> Floats:
        return total_by(cell, values, shape[0] * shape[1]).reshape(shape)

    load = by_class(copies.load)
    packet_rate = by_class(copies.rate * copies.packets)
    finite = np.isfinite(ports.buffer_packets)
    carried = served_share(load)
    brought = fragmented_work(
        copies.rate,
        copies.event_seconds,
        copies.event_scv,
        copies.rate * copies.packets,
        copies.packet_square_seconds,
        copies.last_packet_seconds,
        copies.priority_class,
        batch_topics=copies.batch,
        keep=copies.present,
        queues=copies.port,
        copies_scale=copies.copies_scale,
        # Whoever sends by class sends class 0 first, and every queue on the way keeps that order.
        random_order=copies.first_packets if scenario.sending_order is SendingOrder.RANDOM else None,
        own_event_mean=copies.own_event_seconds,
    )
    wait = mean_waits(*brought)
    if finite.any():
        buffer = _buffer_for_batches(ports.buffer_packets, copies.port, *brought, load, packet_rate)
        carried[finite] = 1 - finite_buffer_loss(load[finite], buffer[finite])
    if not poisson:
        factor = _variability_factor(copies, load.sum(axis=1))[copies.port]
        # Regular and bursty streams that are pooled make up for each other in the factor, but not for every class.
        uneven = total_by(copies.port, copies.load * np.abs(copies.ca2 - 1.0), len(ports))
        uneven = np.divide(uneven, load.sum(axis=1), out=np.zeros_like(uneven), where=uneven > 0)[copies.port]
        doubts.add(Reason.ARRIVALS, rows, seconds=np.fmax(0.5 * np.abs(factor - 1.0), 0.12 * uneven) * wait)
        wait *= factor
    if finite.any():
        bounded = _bounded_by_buffer(ports.buffer_packets, copies, load, packet_rate, carried, wait)
        lost = 1 - carried.reshape(-1)[cell]
        # A wait that a buffer hardly bounds is that of an endless one.
        moved = np.subtract(bounded, wait, out=bounded.copy(), where=np.isfinite(wait))
        # Nor is one that would fill a good part of it.
        queued = wait * packet_rate.cumsum(axis=1).reshape(-1)[cell]
        times_larger = np.divide(
            ports.buffer_packets[copies.port], queued, out=np.full_like(queued, np.inf), where=queued > 0
        )
        filling = 0.3 * np.exp(-0.5 * times_larger) * np.where(np.isfinite(wait), wait, 0.0)
        doubts.add(Reason.BUFFER, rows, seconds=np.maximum(0.3 * np.abs(moved), filling), success=0.5 * lost)
        wait = bounded
    return carried.reshape(-1)[cell], wait, sojourn_times(*brought)


def _variability_factor(copies: _AtPorts, port_load: Floats) -> Floats:
    """Per port, Allen-Cunneen's factor with the variability of publications pooled by load (never of copies)."""
    key = copies.port.astype(np.int64) << 32 | copies.batch
    groups, group = np.unique(key, return_inverse=True)
    load = total_by(group, copies.load, len(groups))
    thinned = total_by(group, copies.load * (split_ca2(copies.ca2, copies.present) - 1.0), len(groups))
    ca2 = 1.0 + np.divide(thinned, load, out=np.zeros_like(load), where=load > 0)
    streams = total_by(group, copies.streams, len(groups)) / np.bincount(group)
    merged = merged_ca2(
        load, np.maximum(ca2, 0.0), np.minimum(port_load, 1.0), queues=groups >> 32, streams=streams
    )
    rate = total_by(copies.port, copies.rate * copies.packets, len(port_load))
    square = total_by(
        copies.port, copies.rate * copies.packets * copies.packet_square_seconds, len(port_load)
    )
    with_load = port_load > 0
    scv = np.divide(square * rate, port_load**2, out=np.ones_like(rate), where=with_load) - 1.0
    return gg1_factor(merged, np.maximum(scv, 0.0))


def _buffer_for_batches(
    buffer_packets: Floats,
    port: Integers,
    work: Work,
    batches: Batches,
    load: Floats,
    packet_rate: Floats,
) -> Floats:
    """The buffer that would lose as much if packets came one by one and with exponential sizes, as M/M/1/K has them.

    A queue's length falls off like exp(-2 (1 - rho) n / I) in heavy traffic, with I the second moment of the work that
    comes at once, per second, over load and mean packet: 2 for M/M/1, more for batches. K packets then are 2 K / I.
    """
    count = len(buffer_packets)
    together = work.second_moment + 2.0 * copies_ahead(batches) * work.copy_product
    squares = total_by(port, work.rates * together, count) * packet_rate.sum(axis=1)
    scale = np.divide(2.0 * load.sum(axis=1) ** 2, squares, out=np.ones(count), where=squares > 0)
    return np.asarray(np.maximum(buffer_packets * scale, 1.0))


def _bounded_by_buffer(
    buffer_packets: Floats,
    copies: _AtPorts,
    load: Floats,
    packet_rate: Floats,
    carried: Floats,
    wait: Floats,
) -> Floats:
    """Waits at ports that can hold only so many packets (theory.md section 2; an approximation).

    One class: M/M/1/K by Little's law, and below saturation only its ratio to M/M/1, so that the size distribution
    still counts. Several classes: none can hold more than the whole buffer, so its time is at most K over
    its throughput, which is about what the first unstable class takes; those below it are unknown.
    """
    sigma = np.cumsum(load, axis=1)
    total, rate = sigma[:, -1], packet_rate.sum(axis=1)
    finite = np.isfinite(buffer_packets)
    one_class = finite & ((load > 0).sum(axis=1) <= 1) & (total > 0)
    mean_packet = np.divide(total, rate, out=np.ones_like(total), where=rate > 0)
    fifo_wait = np.zeros(len(total))
    fifo_wait[one_class] = (
        finite_buffer_sojourn(total[one_class], buffer_packets[one_class], mean_packet[one_class])
        - mean_packet[one_class]
    )
    unbounded = np.where(total < 1, mean_packet * total / np.maximum(1 - total, 1e-300), np.inf)
    correction = np.divide(fifo_wait, unbounded, out=np.ones_like(total), where=(unbounded > 0) & (total < 1))
    throughput = packet_rate * carried
    ceiling = np.divide(
        np.where(finite, buffer_packets, np.inf)[:, None],
        throughput,
        out=np.full_like(throughput, np.inf),
        where=throughput > 0,
    )
    # Below the first class that does not fit, what little gets through waits for a time no formula here knows.
    starved = finite[:, None] & (np.pad(sigma, ((0, 0), (1, 0)))[:, :-1] >= 1)
    ceiling[starved] = np.nan
    port, level = copies.port, copies.priority_class
    longest = np.maximum(ceiling[port, level] - copies.last_packet_seconds, 0.0)
    many = np.where(starved[port, level], np.nan, np.fmin(wait, longest))
    single = np.where(total[port] < 1, wait * correction[port], fifo_wait[port])
    return np.where(one_class[port], single, np.where(finite[port], many, wait))
