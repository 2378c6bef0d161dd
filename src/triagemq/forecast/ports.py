"""Output ports with strict priorities: what share of the copies each serves, how long they wait, and by what law.

Copies of one publication reach a shared port together, so its waits follow the batch model (theory.md section 2), not
the papers' Poisson arrivals.

At a port whose queues have rates every class is a queue of its own. Partitioned, it is served at its width, and the
theory of one class holds as it stands. Where queues borrow, it is taken for a queue that is served at what it would get
if it always had something to send: its share of all that the others do not use (generalised processor sharing). That is
a simplification, and flagged: in truth a packet travels at the full rate once it is its turn, and what the others leave
comes and goes.

Copies that queues before have spread out wait less for each other: a queue serves the first while the others are still
on their way. With constant times the whole is the larger of the two, so the smaller is subtracted; with random times it
is less where the two are alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.model import ErrorEstimate, Reason
from triagemq.forecast.upstream import Streams, weighted
from triagemq.plan.demands import total_by
from triagemq.scenario import Discipline, Floats, Integers, OutputPorts
from triagemq.theory import (
    LatencyDistribution,
    Work,
    check_batches,
    finite_buffer_loss,
    finite_buffer_sojourn,
    mean_waits,
    served_share,
    sojourn_times,
)
from triagemq.theory.ladder import Ladder, build_ladder, combine_keys
from triagemq.theory.waits import CopyBatches, copies_ahead

NEGLIGIBLE = 1e-3
"""Copies that come within this share of the wait at a port of each other come together."""

OVERLAP_DOUBT = 0.25
"""The share of an overlap that may be wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class AtPorts:
    """The copies that cross some output ports; columns over the crossing subscriptions, but `buffer_packets` over
    the ports, which `port` numbers.

    `own_event_seconds` and `last_packet_seconds` are of the events that will arrive.
    """

    buffer_packets: Floats
    port: Integers
    batch: Integers
    priority_class: Integers
    rate: Floats
    present: Floats
    event_seconds: Floats
    event_scv: Floats
    packets: Floats
    packet_square_seconds: Floats
    own_event_seconds: Floats
    last_packet_seconds: Floats

    @property
    def load(self) -> Floats:
        return self.rate * self.event_seconds

    def by_port(self, values: Floats) -> Floats:
        """Values of copies added up, per port."""
        return total_by(self.port, values, len(self.buffer_packets))


@dataclass(frozen=True, slots=True, eq=False)
class Others:
    """Columns over copies: how many others of the same event come to a queue, of higher, the same and lower class."""

    higher: Floats
    same: Floats
    lower: Floats

    @property
    def count(self) -> Floats:
        return self.higher + self.same + self.lower

    @property
    def ahead(self) -> Floats:
        """How many go first: all of a higher class, and half of its own."""
        return self.higher + 0.5 * self.same


@dataclass(frozen=True, slots=True, eq=False)
class Crossed:
    """Columns over copies: share served, mean wait and, but for its mean, the law of the time at the port.

    `work` and `batches` are what the waits were computed from.
    """

    served: Floats
    wait: Floats
    law: LatencyDistribution
    others: Others
    work: Work
    batches: CopyBatches

    def overlap(self, late: Floats) -> Floats:
        """How much of the wait for copies of the same event passes before they are at the port, so `late`."""
        if not (late > NEGLIGIBLE * self.wait).any():
            return np.zeros_like(late)
        single = mean_waits(self.work, self.batches, together=False)
        batches = np.subtract(self.wait, single, out=np.zeros_like(late), where=np.isfinite(self.wait))
        return overlap(late, np.maximum(batches, 0.0))


def others_at(queue: Integers, batch: Integers, keep: Floats, classes: Integers | None = None) -> Others:
    """The others of every copy's batch, each there with probability `keep`; without `classes` all are of one."""
    level = np.zeros(len(queue), dtype=np.int64) if classes is None else classes.astype(np.int64)
    return others_in(
        build_ladder(combine_keys(queue.astype(np.int64), batch.astype(np.int64))[0], level), keep
    )


def others_in(batches: Ladder, keep: Floats) -> Others:
    """The same where a ladder has the classes of each batch."""
    present, step = batches.total(keep), batches.step_of_row
    return Others(
        batches.above(present)[step], np.maximum(present[step] - keep, 0.0), batches.below(present)[step]
    )


def overlap(late: Floats, wait: Floats) -> Floats:
    """Seconds of a `wait` for others of the same event that pass before a copy comes, so `late` after the first.

    >>> overlap(np.array([0.1, 9.0, 1.0]), np.ones(3)).round(2)
    array([0.1 , 0.99, 0.71])
    """
    smaller, larger = np.minimum(late, wait), np.maximum(late, wait)
    ratio = np.divide(smaller, larger, out=np.zeros_like(smaller), where=larger > 0)
    return np.asarray(smaller / np.sqrt(1.0 + ratio**2))


def cross_ports(
    copies: AtPorts, rows: NDArray[np.int64], errors: ErrorEstimate, arriving: Streams | None
) -> Crossed:
    """What becomes of copies at their ports; `rows` are their subscriptions, to doubt what is rough.

    `arriving` has the variability of their topics; None where all arrivals are Poisson.
    """
    class_count = int(copies.priority_class.max(initial=0)) + 1
    shape = (len(copies.buffer_packets), class_count)
    cell = copies.port.astype(np.int64) * class_count + copies.priority_class

    def by_class(values: Floats) -> Floats:
        return total_by(cell, values, shape[0] * shape[1]).reshape(shape)

    load = by_class(copies.load)
    packet_rate = by_class(copies.rate * copies.packets)
    work = Work(
        rates=copies.rate,
        mean=copies.event_seconds,
        second_moment=(1.0 + copies.event_scv) * copies.event_seconds**2,
        blocking=0.5 * copies.rate * copies.packets * copies.packet_square_seconds,
        own_mean=copies.own_event_seconds,
        before_last=np.maximum(copies.own_event_seconds - copies.last_packet_seconds, 0.0),
        packet_rates=copies.rate * copies.packets,
    )
    batches = check_batches(
        len(copies.rate), copies.priority_class, copies.batch, copies.present, copies.port
    )
    assert batches.together is not None
    served, wait = served_share(load), mean_waits(work, batches)
    finite = np.isfinite(copies.buffer_packets)
    if finite.any():
        buffer = _buffer_for_batches(copies, work, batches, load, packet_rate)
        served[finite] = 1 - finite_buffer_loss(load[finite], buffer[finite])
    if arriving is not None:
        factor, doubt = (each[copies.port] for each in _variability_factor(copies, arriving))
        errors.add(Reason.ARRIVALS, rows, seconds=doubt * wait)
        wait *= factor
    if finite.any():
        bounded = _bounded_by_buffer(copies, load, packet_rate, served, wait)
        lost = 1 - served.reshape(-1)[cell]
        # A wait that a buffer hardly bounds is that of an endless one.
        moved = np.subtract(bounded, wait, out=bounded.copy(), where=np.isfinite(wait))
        # Nor is one that would fill a good part of it.
        queued = wait * packet_rate.cumsum(axis=1).reshape(-1)[cell]
        times_larger = np.divide(
            copies.buffer_packets[copies.port], queued, out=np.full_like(queued, np.inf), where=queued > 0
        )
        filling = 0.3 * np.exp(-0.5 * times_larger) * np.where(np.isfinite(wait), wait, 0.0)
        errors.add(Reason.BUFFER, rows, seconds=np.maximum(0.3 * np.abs(moved), filling), success=0.5 * lost)
        wait = bounded
    return Crossed(
        served=served.reshape(-1)[cell],
        wait=wait,
        law=sojourn_times(work, batches),
        others=others_in(batches.together, copies.present),
        work=work,
        batches=batches,
    )


def _variability_factor(copies: AtPorts, arriving: Streams) -> tuple[Floats, Floats]:
    """Per port, Allen-Cunneen's factor with the variability of publications pooled by load (never of copies), and the
    part of a wait that may be wrong."""
    rate = copies.rate * copies.packets
    port_load, square = copies.by_port(copies.load), copies.by_port(rate * copies.packet_square_seconds)
    scv = np.divide(
        square * copies.by_port(rate), port_load**2, out=np.ones_like(port_load), where=port_load > 0
    )
    groups, first, group = np.unique(
        copies.port.astype(np.int64) << 32 | copies.batch, return_index=True, return_inverse=True
    )
    load = total_by(group, copies.load, len(groups))
    thinned = weighted(copies.load * copies.present, arriving.ca2 - 1.0)
    deviation = total_by(group, thinned, len(groups))
    pooled = 1.0 + np.divide(deviation, load, out=np.zeros_like(load), where=load > 0)
    streams = Streams(
        (groups >> 32).astype(np.int32), load, np.maximum(pooled, 0.0), arriving.publications[first]
    )
    return streams.factor(port_load, np.maximum(scv - 1.0, 0.0))


def _buffer_for_batches(
    copies: AtPorts, work: Work, batches: CopyBatches, load: Floats, packet_rate: Floats
) -> Floats:
    """The buffer that would lose as much if packets came one by one and with exponential sizes, as M/M/1/K has them.

    A queue's length falls off like exp(-2 (1 - rho) n / I) in heavy traffic, with I the second moment of the work that
    comes at once, per second, over load and mean packet: 2 for M/M/1, more for batches. K packets then are 2 K / I.
    """
    together = (1.0 + 2.0 * copies_ahead(batches)) * work.second_moment
    squares = copies.by_port(work.rates * together) * packet_rate.sum(axis=1)
    scale = np.divide(2.0 * load.sum(axis=1) ** 2, squares, out=np.ones_like(squares), where=squares > 0)
    return np.asarray(np.maximum(copies.buffer_packets * scale, 1.0))


def _bounded_by_buffer(
    copies: AtPorts, load: Floats, packet_rate: Floats, served: Floats, wait: Floats
) -> Floats:
    """Waits at ports that can hold only so many packets (theory.md section 2; an approximation).

    One class: M/M/1/K by Little's law, and below saturation only its ratio to M/M/1, so that the size distribution
    still counts. Several classes: none can hold more than the whole buffer, so its time is at most K over
    its throughput, which is about what the first unstable class takes; those below it are unknown.
    """
    sigma = np.cumsum(load, axis=1)
    total, rate = sigma[:, -1], packet_rate.sum(axis=1)
    buffer_packets = copies.buffer_packets
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
    throughput = packet_rate * served
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


def by_queues(copies: AtPorts, ports: OutputPorts, first_port: int) -> AtPorts:
    """The copies with a port of its own for each queue with a width, numbered behind the ports, as slow as it is."""
    count = len(copies.buffer_packets)
    numbers = range(first_port, first_port + count)
    has_queue_rates = ports.discipline[numbers] == Discipline.QUEUE_RATES
    if not has_queue_rates.any():
        return copies
    classes = max(len(ports.queue_rates_bps[number]) for number in numbers)
    share = np.ones((count, classes))
    for row in np.flatnonzero(has_queue_rates).tolist():
        share[row] = ports.queue_rates_bps[numbers[row]] / ports.bandwidth_bps[numbers[row]]
    in_width = has_queue_rates[copies.port]
    level = np.where(in_width, copies.priority_class, 0)
    borrowing = ports.borrowing[numbers] > 0
    if borrowing.any():
        cell = copies.port.astype(np.int64) * classes + level
        load = total_by(cell, np.where(in_width, copies.load, 0.0), count * classes).reshape(count, classes)
        share[borrowing] = available_share(share[borrowing], load[borrowing])
    first = count + (np.cumsum(has_queue_rates) - 1) * classes
    slower = np.where(in_width, 1 / share[copies.port, level], 1.0)
    port = np.where(in_width, first[copies.port] + level, copies.port).astype(copies.port.dtype)
    queues = np.repeat(copies.buffer_packets[has_queue_rates], classes)
    return replace(
        copies,
        port=port,
        buffer_packets=np.append(copies.buffer_packets, queues),
        event_seconds=copies.event_seconds * slower,
        own_event_seconds=copies.own_event_seconds * slower,
        last_packet_seconds=copies.last_packet_seconds * slower,
        packet_square_seconds=copies.packet_square_seconds * slower**2,
    )


def available_share(share: Floats, load: Floats) -> Floats:
    """What each queue of each port would get of the port if it always had something to send.

    The others get what they need, up to their part by their shares; what they leave is divided by shares again.

    >>> available_share(np.array([[0.5, 0.3, 0.2]]), np.array([[0.1, 0.9, 0.1]])).round(3).tolist()
    [[0.562, 0.8, 0.36]]
    """
    classes = share.shape[1]
    # Rows are ports and, of each, the queue that always sends; columns are all its queues.
    share = np.repeat(share[:, None, :], classes, axis=1)
    load = np.repeat(load[:, None, :], classes, axis=1)
    itself = np.eye(classes, dtype=bool)[None]
    content = np.zeros(share.shape, dtype=bool)
    for _ in range(classes):
        left = 1.0 - np.where(content, load, 0.0).sum(axis=2, keepdims=True)
        level = left / np.where(content, 0.0, share).sum(axis=2, keepdims=True)
        content = ~itself & (load <= share * level)
    return np.asarray((share * level).diagonal(axis1=1, axis2=2))
