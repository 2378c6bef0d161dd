"""Output ports with strict priorities: what share of the copies each carries, how long they wait, and by what law.

Copies of one publication reach a shared port together, so its waits follow the batch model (theory.md section 2), not
the papers' Poisson arrivals.

At a port whose queues have widths every class is a queue of its own. Partitioned, it is served at its width, and the
theory of one class holds as it stands. Where queues borrow, it is taken for a queue that is served at what it would get
if it always had something to send: its share of all that the others do not use (generalised processor sharing). That is
a simplification, and flagged: in truth a packet travels at the full rate once it is its turn, and what the others leave
comes and goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.model import ErrorEstimate, Reason
from triagemq.forecast.tandem import BatchAt, Spread, batch_of, overlap, sharpness
from triagemq.forecast.upstream import arrivals_doubt
from triagemq.plan.demands import total_by
from triagemq.scenario import Discipline, Floats, Integers, OutputPorts
from triagemq.theory import (
    FirstPackets,
    LatencyDistribution,
    finite_buffer_loss,
    finite_buffer_sojourn,
    fragmented_work,
    gg1_factor,
    mean_waits,
    merged_ca2,
    served_share,
    sojourn_times,
    split_ca2,
)
from triagemq.theory.waits import CopyBatches, Work, copies_ahead

NEGLIGIBLE = 1e-3
"""Copies that come within this share of the time at a port of each other come together."""


@dataclass(frozen=True, slots=True, eq=False)
class AtPorts:
    """The copies that cross some output ports; columns over the crossing subscriptions, but `buffer_packets` over
    the ports, which `port` numbers.

    `own_event_seconds`, `last_packet_seconds`, `first_packet_seconds` and `single_packet_seconds` (FirstPackets) are of
    the events that will arrive.
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
    first_packet_seconds: Floats
    first_product: Floats
    single_packet_seconds: Floats

    @property
    def load(self) -> Floats:
        return self.rate * self.event_seconds

    @property
    def first_packets(self) -> FirstPackets:
        return FirstPackets(self.first_packet_seconds, self.first_product, self.single_packet_seconds)

    def with_columns(self, change: Callable[[str, Any], Any]) -> AtPorts:
        """Each column of copies changed, by its name and its values."""
        return replace(self, **{name: change(name, getattr(self, name)) for name in COPY_COLUMNS})

    def by_port(self, values: Floats) -> Floats:
        """Values of copies added up, per port."""
        return total_by(self.port, values, len(self.buffer_packets))


COPY_COLUMNS = tuple(each.name for each in fields(AtPorts) if each.name != "buffer_packets")
TIMES = (
    "event_seconds",
    "own_event_seconds",
    "last_packet_seconds",
    "first_packet_seconds",
    "single_packet_seconds",
)
SQUARES = ("packet_square_seconds", "first_product")


@dataclass(frozen=True, slots=True, eq=False)
class Variability:
    """Columns over copies: what is known of the arrivals of their topics (TopicArrivals)."""

    ca2: Floats
    streams: Floats
    irregular: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Crossed:
    """Columns over copies: share carried, mean wait and, but for its mean, the law of the time at the port.

    `others` are the copies that come along; `port_load` is the load of the port. `work` and `batches` are what the
    waits were computed from.
    """

    carried: Floats
    wait: Floats
    law: LatencyDistribution
    others: BatchAt
    port_load: Floats
    work: Work
    batches: CopyBatches

    def first(self, count: int) -> Crossed:
        """Of so many copies, the first ones; of the others only the waits they cause are wanted."""
        if count == len(self.wait):
            return self
        some = slice(count)
        return replace(
            self,
            carried=self.carried[some],
            wait=self.wait[some],
            law=self.law[some],
            others=self.others[some],
            port_load=self.port_load[some],
        )


def cross_ports(
    copies: AtPorts,
    rows: NDArray[np.int64],
    errors: ErrorEstimate,
    *,
    random_order: bool,
    variability: Variability | None,
) -> Crossed:
    """What becomes of copies at their ports; `rows` are their subscriptions, to doubt what is rough.

    `variability` is None where all arrivals are Poisson.
    """
    class_count = int(copies.priority_class.max(initial=0)) + 1
    shape = (len(copies.buffer_packets), class_count)
    cell = copies.port.astype(np.int64) * class_count + copies.priority_class

    def by_class(values: Floats) -> Floats:
        return total_by(cell, values, shape[0] * shape[1]).reshape(shape)

    load = by_class(copies.load)
    packet_rate = by_class(copies.rate * copies.packets)
    port_load, port_scv = _load_and_variability(copies)
    work, batches = fragmented_work(
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
        # A gateway that sends by class sends class 0 first, and every queue on the way keeps that order.
        random_order=copies.first_packets if random_order else None,
        own_event_mean=copies.own_event_seconds,
    )
    carried, wait = served_share(load), mean_waits(work, batches)
    finite = np.isfinite(copies.buffer_packets)
    if finite.any():
        buffer = _buffer_for_batches(copies, work, batches, load, packet_rate)
        carried[finite] = 1 - finite_buffer_loss(load[finite], buffer[finite])
    if variability is not None:
        factor, alone = _variability_factor(copies, variability, port_load, port_scv)
        # Regular and bursty streams that are pooled make up for each other in the factor, but not for every class.
        uneven = copies.by_port(copies.load * variability.irregular)
        uneven = np.divide(uneven, port_load, out=np.zeros_like(uneven), where=uneven > 0)
        doubtful = arrivals_doubt(factor, uneven, alone)
        errors.add(Reason.ARRIVALS, rows, seconds=doubtful[copies.port] * wait)
        wait *= factor[copies.port]
    if finite.any():
        bounded = _bounded_by_buffer(copies, load, packet_rate, carried, wait)
        lost = 1 - carried.reshape(-1)[cell]
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
        carried=carried.reshape(-1)[cell],
        wait=wait,
        law=sojourn_times(work, batches),
        others=batch_of(batches),
        port_load=port_load[copies.port],
        work=work,
        batches=batches,
    )


def overlapped(copies: AtPorts, crossed: Crossed, spread: Spread) -> Floats:
    """How much of the wait for copies of the same event passes before they are at the port (tandem.py)."""
    others, ladder = crossed.others, crossed.batches.ladder
    random_order = crossed.batches.random_order
    late = spread.at(others.others, others.tilt) if random_order else spread.in_class_order(others)
    apart = late > NEGLIGIBLE * (crossed.wait + copies.event_seconds)
    if not apart.any():
        return np.zeros_like(late)
    # At an idle port the first to come starts; of a packet of a lower class about a third is left when r comes.
    first = np.maximum(1.0 - crossed.port_load, 0.0) / (others.others + 1.0) if random_order else 0.0
    begun = copies.first_packet_seconds / 3.0
    own = others.ahead * copies.event_seconds + first * (
        others.lower * begun - others.higher * copies.event_seconds
    )
    own /= np.maximum(1.0 - ladder.above(ladder.total(copies.load))[ladder.step_of_row], 1e-9)
    single = mean_waits(crossed.work, crossed.batches, together=False)
    whole = np.subtract(crossed.wait, single, out=np.zeros_like(late), where=np.isfinite(crossed.wait))
    found = overlap(late, own, np.maximum(whole, 0.0), sharpness(copies.event_scv))
    # A port's waits do not depend on what goes on at others.
    return np.where(copies.by_port(apart.astype(np.float64))[copies.port] > 0, found, 0.0)


def _load_and_variability(copies: AtPorts) -> tuple[Floats, Floats]:
    """Per port, its load and the squared coefficient of variation of all packets there."""
    rate = copies.rate * copies.packets
    load, total = copies.by_port(copies.load), copies.by_port(rate)
    square = copies.by_port(rate * copies.packet_square_seconds)
    scv = np.divide(square * total, load**2, out=np.ones_like(load), where=load > 0) - 1.0
    return load, np.maximum(scv, 0.0)


def _variability_factor(
    copies: AtPorts, variability: Variability, port_load: Floats, port_scv: Floats
) -> tuple[Floats, Floats]:
    """Per port, Allen-Cunneen's factor with the variability of publications pooled by load (never of copies).

    And how much one stream is alone there: 1 if it is, 1/n if n share the port evenly.
    """
    key = copies.port.astype(np.int64) << 32 | copies.batch
    groups, group = np.unique(key, return_inverse=True)
    load = total_by(group, copies.load, len(groups))
    thinned = total_by(group, copies.load * (split_ca2(variability.ca2, copies.present) - 1.0), len(groups))
    pooled = 1.0 + np.divide(thinned, load, out=np.zeros_like(load), where=load > 0)
    behind = total_by(group, variability.streams, len(groups)) / np.bincount(group)
    port = groups >> 32
    merged = merged_ca2(
        load, np.maximum(pooled, 0.0), np.minimum(port_load, 1.0), queues=port, streams=behind
    )
    squares = total_by(port, load**2 / behind, len(port_load))
    alone = np.divide(squares, port_load**2, out=np.zeros_like(squares), where=port_load > 0)
    return gg1_factor(merged, port_scv), alone


def _buffer_for_batches(
    copies: AtPorts, work: Work, batches: CopyBatches, load: Floats, packet_rate: Floats
) -> Floats:
    """The buffer that would lose as much if packets came one by one and with exponential sizes, as M/M/1/K has them.

    A queue's length falls off like exp(-2 (1 - rho) n / I) in heavy traffic, with I the second moment of the work that
    comes at once, per second, over load and mean packet: 2 for M/M/1, more for batches. K packets then are 2 K / I.
    """
    together = work.second_moment + 2.0 * copies_ahead(batches) * work.copy_product
    squares = copies.by_port(work.rates * together) * packet_rate.sum(axis=1)
    scale = np.divide(2.0 * load.sum(axis=1) ** 2, squares, out=np.ones_like(squares), where=squares > 0)
    return np.asarray(np.maximum(copies.buffer_packets * scale, 1.0))


def _bounded_by_buffer(
    copies: AtPorts, load: Floats, packet_rate: Floats, carried: Floats, wait: Floats
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


def by_queues(copies: AtPorts, ports: OutputPorts, first_port: int) -> AtPorts:
    """The copies with a port of its own for each queue with a width, numbered behind the ports, as slow as it is."""
    count = len(copies.buffer_packets)
    numbers = range(first_port, first_port + count)
    has_widths = ports.discipline[numbers] == Discipline.WIDTHS
    if not has_widths.any():
        return copies
    classes = max(len(ports.widths_bps[number]) for number in numbers)
    share = np.ones((count, classes))
    for row in np.flatnonzero(has_widths).tolist():
        share[row] = ports.widths_bps[numbers[row]] / ports.bandwidth_bps[numbers[row]]
    here = has_widths[copies.port]
    level = np.where(here, copies.priority_class, 0)
    borrowing = ports.borrowing[numbers] > 0
    if borrowing.any():
        cell = copies.port.astype(np.int64) * classes + level
        load = total_by(cell, np.where(here, copies.load, 0.0), count * classes).reshape(count, classes)
        share[borrowing] = available_share(share[borrowing], load[borrowing])
    first = count + (np.cumsum(has_widths) - 1) * classes
    slower = np.where(here, 1 / share[copies.port, level], 1.0)
    port = np.where(here, first[copies.port] + level, copies.port).astype(copies.port.dtype)
    powers = dict.fromkeys(TIMES, slower) | dict.fromkeys(SQUARES, slower**2)
    queued = copies.with_columns(lambda name, values: values * powers[name] if name in powers else values)
    queues = np.repeat(copies.buffer_packets[has_widths], classes)
    return replace(queued, port=port, buffer_packets=np.append(copies.buffer_packets, queues))


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
