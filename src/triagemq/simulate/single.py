"""One priority queue alone, fed by Poisson streams: what textbooks solve and other simulators can be compared with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.compiled import kernel, step
from triagemq.errors import ParameterError
from triagemq.scenario import Floats, Integers, Table
from triagemq.simulate.changes import MOST_CLASSES
from triagemq.simulate.endings import BATCHES, ratio
from triagemq.simulate.random import Purpose, Seeds, alias_table, draw_alias, exponential, seeds_for, uniform
from triagemq.simulate.records import leading_zeros, trailing_zeros
from triagemq.theory.interval import half_width

_ARRIVAL, _CHOICE, _SIZE = int(Purpose.ARRIVAL), int(Purpose.CHOICE), int(Purpose.SIZE)
_FIRST_RING = 256
_BLOCK = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class QueueResults(Table):
    """One row per class: customers after warm-up, the share served, and the mean time from arrival to departure.

    `mean_wait` ends when service starts. `ci95` is the half-width of the 95 % interval of `mean_sojourn`, by
    batch means.
    """

    priority_class: Integers
    customers: NDArray[np.int64]
    served: NDArray[np.int64]
    loss_rate: Floats
    mean_sojourn: Floats
    mean_wait: Floats
    ci95: Floats
    wall_seconds: Floats


class _Streams(NamedTuple):
    """Who arrives: streams merged into one Poisson process, an alias table to tell them apart."""

    rate: float
    share: Floats
    alias: Integers
    mean_service: Floats
    exponential: bool
    priority_class: Integers


class _Arrivals(NamedTuple):
    """A block of customers as they come: when, for how long, in which class."""

    time: Floats
    service: Floats
    priority_class: Integers


class _Waiting(NamedTuple):
    """Who waits: one ring per class of (arrival, service, number of the customer), and a bit per class in use.

    `clock` holds when the last customer came and when the server is free.
    """

    ring: NDArray[np.float64]
    head: NDArray[np.int64]
    length: NDArray[np.int64]
    busy_classes: NDArray[np.uint64]
    clock: NDArray[np.float64]


class _Measured(NamedTuple):
    """What is counted, per class and batch of customers: those served, their waits and services, those lost.

    Customers count from number `first` on; `batches_per_customer` says which batch one belongs to.
    """

    figures: NDArray[np.float64]
    first: int
    batches_per_customer: float


_SERVED, _WAITS, _SERVICES, _LOST = range(4)


def single_queue(
    arrival_rates: ArrayLike,
    mean_service: ArrayLike,
    scv: int,
    classes: ArrayLike,
    *,
    customers: int,
    seed: int = 0,
    replication: int = 0,
    buffer_packets: float = np.inf,
    warmup: float = 0.1,
) -> QueueResults:
    """A non-preemptive priority queue of Poisson streams: stream i arrives at arrival_rates[i], is served for
    mean_service[i] on average (exponentially if `scv` is 1, always the same if 0) and belongs to classes[i].

    With `buffer_packets` customers, the one in service included, an arrival of a higher class pushes out the newest of
    the lowest. The first `warmup` share of the customers does not count. Times are in the unit of `mean_service`.

    >>> found = single_queue([0.5], [1.0], 1, [0], customers=200_000)
    >>> bool(abs(found.mean_sojourn[0] - 2.0) < 3 * found.ci95[0])
    True
    """
    streams = _checked(arrival_rates, mean_service, scv, classes)
    if customers < 1:
        raise ParameterError("customers", f"is {customers}; must be 1 or more")
    if not 0 <= warmup < 1:
        raise ParameterError("warmup", f"is {warmup}; the share that does not count lies in [0, 1)")
    if not buffer_packets >= 1:
        raise ParameterError("buffer_packets", f"is {buffer_packets}; must be 1 or more")
    limit = int(min(buffer_packets, np.iinfo(np.int64).max // 2))
    seeds = seeds_for(seed, replication)
    first = int(warmup * customers)
    count = int(streams.priority_class.max()) + 1
    measured = _Measured(np.zeros((count, BATCHES, 4)), first, BATCHES / (customers - first))
    waiting = _new_waiting(count, _FIRST_RING)
    block = _Arrivals(np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK, dtype=np.int32))
    started = time.perf_counter()
    for begin in range(0, customers, _BLOCK):
        many = min(_BLOCK, customers - begin)
        _draw(streams, seeds, block, waiting.clock[0], begin, many)
        done = 0
        while (done := _serve(block, waiting, measured, begin, done, many, limit)) < many:
            waiting = _enlarged(waiting)
    _empty(waiting, measured)
    wall = time.perf_counter() - started
    return _results(np.unique(streams.priority_class), measured.figures, wall)


@kernel
def _draw(streams: _Streams, seeds: Seeds, block: _Arrivals, now: float, begin: int, many: int) -> None:
    """The next customers. Apart from serving them: draws run ahead where no queue decides what comes next."""
    gap, several = 1.0 / streams.rate, len(streams.share)
    for place in range(many):
        number = begin + place
        now += exponential(seeds[_ARRIVAL], number) * gap
        stream = draw_alias(streams.share, streams.alias, 0, several, uniform(seeds[_CHOICE], number))
        length = exponential(seeds[_SIZE], number) if streams.exponential else 1.0
        block.time[place] = now
        block.service[place] = length * streams.mean_service[stream]
        block.priority_class[place] = streams.priority_class[stream]


@kernel
def _serve(
    block: _Arrivals, waiting: _Waiting, measured: _Measured, begin: int, done: int, many: int, limit: int
) -> int:
    """Let customers of a block come in from place `done` on; returns the place at which a ring was full."""
    free_at = waiting.clock[1]
    busy = waiting.busy_classes[0]
    in_queue = waiting.length.sum()
    mask = waiting.ring.shape[1] - 1
    for place in range(done, many):
        arrival, service, level = block.time[place], block.service[place], block.priority_class[place]
        while in_queue > 0 and free_at <= arrival:
            free_at, busy = _start_next(waiting, measured, free_at, busy)
            in_queue -= 1
        number = begin + place
        if free_at <= arrival:
            _count(measured, level, number, 0.0, service)
            free_at = arrival + service
            continue
        if in_queue + 1 >= limit:
            lowest = 63 - leading_zeros(busy) if in_queue > 0 else -1
            if lowest <= level:
                _count_lost(measured, level, number)
                continue
            waiting.length[lowest] -= 1
            in_queue -= 1
            newest = waiting.head[lowest] + waiting.length[lowest]
            _count_lost(measured, lowest, waiting.ring[lowest, newest & mask, 2])
            if waiting.length[lowest] == 0:
                busy ^= np.uint64(1) << np.uint64(lowest)
        if waiting.length[level] > mask:
            many = place
            break
        row = waiting.ring[level, (waiting.head[level] + waiting.length[level]) & mask]
        row[0], row[1], row[2] = arrival, service, number
        waiting.length[level] += 1
        in_queue += 1
        busy |= np.uint64(1) << np.uint64(level)
    waiting.clock[0] = block.time[many - 1]
    waiting.clock[1] = free_at
    waiting.busy_classes[0] = busy
    return many


@kernel
def _empty(waiting: _Waiting, measured: _Measured) -> None:
    """Nobody comes any more: serve those who wait."""
    free_at, busy = waiting.clock[1], waiting.busy_classes[0]
    for _ in range(waiting.length.sum()):
        free_at, busy = _start_next(waiting, measured, free_at, busy)


@step
def _start_next(
    waiting: _Waiting, measured: _Measured, free_at: float, busy: np.uint64
) -> tuple[float, np.uint64]:
    """Serve the first of the highest class; returns when the server is free again, and the classes that wait."""
    level = trailing_zeros(busy)
    row = waiting.ring[level, waiting.head[level] & (waiting.ring.shape[1] - 1)]
    waiting.head[level] += 1
    waiting.length[level] -= 1
    if waiting.length[level] == 0:
        busy ^= np.uint64(1) << np.uint64(level)
    _count(measured, level, row[2], free_at - row[0], row[1])
    return free_at + row[1], busy


@step
def _count(measured: _Measured, level: int, number: float, wait: float, service: float) -> None:
    if number >= measured.first:
        figures = measured.figures[level, int((number - measured.first) * measured.batches_per_customer)]
        figures[_SERVED] += 1.0
        figures[_WAITS] += wait
        figures[_SERVICES] += service


@step
def _count_lost(measured: _Measured, level: int, number: float) -> None:
    if number >= measured.first:
        batch = int((number - measured.first) * measured.batches_per_customer)
        measured.figures[level, batch, _LOST] += 1.0


def _new_waiting(classes: int, places: int) -> _Waiting:
    return _Waiting(
        ring=np.empty((classes, places, 3)),
        head=np.zeros(classes, dtype=np.int64),
        length=np.zeros(classes, dtype=np.int64),
        busy_classes=np.zeros(1, dtype=np.uint64),
        clock=np.zeros(2),
    )


def _enlarged(waiting: _Waiting) -> _Waiting:
    """The same queue with rings of twice the size, unrolled to their beginning."""
    classes, places, _ = waiting.ring.shape
    larger = _new_waiting(classes, 2 * places)
    for level in range(classes):
        order = (waiting.head[level] + np.arange(places)) % places
        larger.ring[level, :places] = waiting.ring[level, order]
    larger.length[:] = waiting.length
    larger.busy_classes[:] = waiting.busy_classes
    larger.clock[:] = waiting.clock
    return larger


def _checked(arrival_rates: ArrayLike, mean_service: ArrayLike, scv: int, classes: ArrayLike) -> _Streams:
    rate = np.atleast_1d(np.asarray(arrival_rates, dtype=np.float64))
    service = np.broadcast_to(np.asarray(mean_service, dtype=np.float64), rate.shape).copy()
    priority_class = np.broadcast_to(np.asarray(classes, dtype=np.int32), rate.shape).copy()
    if scv not in (0, 1):
        raise ParameterError("scv", f"is {scv}; must be 0 (constant service) or 1 (exponential)")
    if rate.size == 0 or not (np.isfinite(rate).all() and (rate > 0).all()):
        raise ParameterError("arrival_rates", "must be finite and positive")
    if not (np.isfinite(service).all() and (service > 0).all()):
        raise ParameterError("mean_service", "must be finite and positive")
    if priority_class.min() < 0 or priority_class.max() >= MOST_CLASSES:
        raise ParameterError("classes", f"must be from 0 to {MOST_CLASSES - 1}")
    share, alias = alias_table(rate)
    return _Streams(float(rate.sum()), share, alias, service, scv == 1, priority_class)


def _results(rows: Integers, figures: Floats, wall: float) -> QueueResults:
    served, waits, services, lost = np.moveaxis(figures.sum(axis=1), 1, 0)
    some = np.maximum(served, 1)
    wait = np.where(served > 0, waits / some, np.nan)
    customers = served + lost
    in_batches = ratio(figures[rows, :, _WAITS] + figures[rows, :, _SERVICES], figures[rows, :, _SERVED])
    return QueueResults(
        priority_class=rows.astype(np.int32),
        customers=customers[rows].astype(np.int64),
        served=served[rows].astype(np.int64),
        loss_rate=(lost / np.maximum(customers, 1))[rows],
        mean_sojourn=(wait + services / some)[rows],
        mean_wait=wait[rows],
        ci95=half_width(in_batches),
        wall_seconds=np.full(len(rows), wall),
    )
