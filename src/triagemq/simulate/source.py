"""Publications in order of time: Poisson ones merged into one process, the others by a heap of next times.

A publication time is a whole number of nanoseconds from the start, so that a recorded run can be replayed exactly.
The simulator takes them block by block (`Generated`), those who publish for real when their time comes
(`PublicationStream`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel, step
from triagemq.scenario import ArrivalProcess, Floats, Integers, Scenario, SizeDistribution
from triagemq.simulate.endings import nanoseconds
from triagemq.simulate.random import Purpose, Seeds, alias_table, draw_alias, exponential, seeds_for, uniform
from triagemq.simulate.records import EVENT, Buffer, append, new_buffer
from triagemq.simulate.switches import packets_of

_ARRIVAL, _CHOICE, _SIZE = int(Purpose.ARRIVAL), int(Purpose.CHOICE), int(Purpose.SIZE)
_PERIODIC, _PARETO = int(ArrivalProcess.PERIODIC), int(ArrivalProcess.PARETO)
_EXPONENTIAL, _CONSTANT = int(SizeDistribution.EXPONENTIAL), int(SizeDistribution.CONSTANT)

# Places in Source.numbers.
_EVENTS, _DRAWS = 0, 1

_AT_ONCE = 4096
"""Events that a stream draws at a time."""


class Publishing(NamedTuple):
    """How events come about in one epoch: the merged Poisson process, and the law of every other publication."""

    poisson_row: Integers
    poisson_share: Floats
    poisson_alias: Integers
    poisson_rate: float
    process: Integers
    rate: Floats
    pareto_shape: Floats
    on_seconds: Floats
    off_seconds: Floats


class Sizes(NamedTuple):
    """The size of every publication's events; empirical ones as alias tables, one after the other."""

    distribution: Integers
    mean_bytes: Floats
    samples: Integers
    sample_first: NDArray[np.int64]
    sample_bytes: Floats
    sample_share: Floats
    sample_alias: Integers
    payload_bytes: float


class Source(NamedTuple):
    """Where the source stands: the next Poisson event, the next event of every other publication, numbers drawn."""

    next_poisson: Floats
    heap_time: Floats
    heap_row: Integers
    on_until: Floats
    numbers: NDArray[np.int64]


class Generated:
    """Publications drawn at random by the scenario's rates, processes and sizes.

    No event is larger than `largest_bytes` of its publication. Those that begin `at_once` publish their first event at
    time 0.
    """

    def __init__(
        self,
        scenario: Scenario,
        rate: Floats,
        seeds: Seeds,
        *,
        largest_bytes: Floats | None = None,
        at_once: NDArray[np.bool_] | None = None,
    ) -> None:
        self._scenario = scenario
        self._seeds = seeds
        self._sizes = sizes_of(scenario)
        self._law = publishing(scenario, rate)
        self._source = new_source(self._law, seeds)
        self._largest = largest_bytes if largest_bytes is not None and len(largest_bytes) else None
        if at_once is not None and at_once.any():
            self._source.heap_time[at_once[self._source.heap_row] & (self._source.heap_time < np.inf)] = 0.0
            sort_heap(self._source)

    def next_time(self) -> float:
        """When the next event is published; infinity if none is."""
        return next_publication(self._source)

    def publish(self, published: Buffer, most: int, until: float) -> None:
        """Add at most `most` events to a buffer that has room for them, those before `until` only."""
        first = int(published.filled[0])
        publish(self._law, self._sizes, self._seeds, self._source, published, most, until)
        if self._largest is not None:
            events: Any = published.records[first : int(published.filled[0])]
            size = np.minimum(events["size_bytes"], self._largest[events["publication"]])
            events["size_bytes"] = size
            events["packets"] = np.maximum(np.ceil(size / self._sizes.payload_bytes), 1)

    def change_rate(self, rate: Floats, now: float) -> None:
        """Go on with other rates from `now`."""
        before, self._law = self._law, publishing(self._scenario, rate)
        restart(self._law, before, self._seeds, self._source, now)


def publishing(scenario: Scenario, rate: Floats) -> Publishing:
    publications = scenario.publications
    process = publications.arrival_process.astype(np.int32)
    poisson = np.flatnonzero((process == ArrivalProcess.POISSON) & (rate > 0)).astype(np.int32)
    share, alias = alias_table(rate[poisson])
    return Publishing(
        poisson_row=poisson,
        poisson_share=share,
        poisson_alias=alias,
        poisson_rate=float(rate[poisson].sum()),
        process=process,
        rate=np.array(rate, dtype=np.float64),
        pareto_shape=np.array(publications.pareto_shape, dtype=np.float64),
        on_seconds=np.array(publications.on_seconds, dtype=np.float64),
        off_seconds=np.array(publications.off_seconds, dtype=np.float64),
    )


def sizes_of(scenario: Scenario) -> Sizes:
    publications, samples = scenario.publications, scenario.size_samples
    tables = [alias_table(weight) for weight in samples.weight]
    return Sizes(
        distribution=publications.size_distribution.astype(np.int32),
        mean_bytes=np.array(publications.size_bytes, dtype=np.float64),
        samples=np.array(publications.size_samples, dtype=np.int32),
        sample_first=np.cumsum([0, *(len(values) for values in samples.size_bytes)], dtype=np.int64),
        sample_bytes=np.concatenate([np.empty(0), *samples.size_bytes]),
        sample_share=np.concatenate([np.empty(0), *(share for share, _ in tables)]),
        sample_alias=np.concatenate([np.empty(0, dtype=np.int32), *(alias for _, alias in tables)]),
        payload_bytes=float(scenario.mtu_bytes - scenario.overhead_bytes),
    )


def new_source(law: Publishing, seeds: Seeds) -> Source:
    """A source at time 0, every publication somewhere in the middle of its life."""
    others = np.flatnonzero(law.process != ArrivalProcess.POISSON).astype(np.int32)
    source = Source(
        next_poisson=np.full(1, np.inf),
        heap_time=np.full(len(others), np.inf),
        heap_row=others,
        on_until=np.zeros(len(law.process)),
        numbers=np.zeros(2, dtype=np.int64),
    )
    restart(law, law._replace(rate=np.zeros_like(law.rate), poisson_rate=0.0), seeds, source, 0.0)
    return source


def restart(law: Publishing, before: Publishing, seeds: Seeds, source: Source, now: float) -> None:
    """Go on under a new law from `now`; a publication whose rate has changed starts afresh, in a random phase."""
    _start_changed(law, before.rate, before.poisson_rate, seeds, source, now)
    sort_heap(source)


def sort_heap(source: Source) -> None:
    """Put the next times in order; a sorted array is a heap."""
    order = np.argsort(source.heap_time, kind="stable")
    source.heap_time[:] = source.heap_time[order]
    source.heap_row[:] = source.heap_row[order]


@kernel
def next_publication(source: Source) -> float:
    """When the next event is published, in whole nanoseconds of a second; infinity if none is."""
    time = source.next_poisson[0]
    if len(source.heap_time) > 0:
        time = min(time, source.heap_time[0])
    return nanoseconds(time) * 1e-9 if time < np.inf else time


@kernel
def publish(
    law: Publishing,
    sizes: Sizes,
    seeds: Seeds,
    source: Source,
    published: Buffer,
    most: int,
    until: float,
) -> None:
    """Publish at most `most` events, those before `until` only."""
    others = len(source.heap_time)
    for _ in range(most):
        poisson = others == 0 or source.next_poisson[0] <= source.heap_time[0]
        time = source.next_poisson[0] if poisson else source.heap_time[0]
        if time == np.inf:
            return
        published_ns = nanoseconds(time)
        if published_ns * 1e-9 >= until:
            return
        number = source.numbers[_EVENTS]
        source.numbers[_EVENTS] = number + 1
        if poisson:
            place = draw_alias(
                law.poisson_share, law.poisson_alias, 0, len(law.poisson_row), uniform(seeds[_CHOICE], number)
            )
            publication = law.poisson_row[place]
            source.next_poisson[0] = time + _draw_exponential(seeds, source) / law.poisson_rate
        else:
            publication = source.heap_row[0]
            source.heap_time[0] = _next_time(law, seeds, source, publication, time)
            _sift_down(source.heap_time, source.heap_row)
        size_bytes = _draw_size(sizes, seeds[_SIZE], publication, number)
        event = published.records[append(published)]
        event.time = published_ns * 1e-9
        event.published_ns = published_ns
        event.event = number
        event.size_bytes = size_bytes
        event.publication = publication
        event.packets = packets_of(size_bytes, sizes.payload_bytes)


@step
def _draw_size(sizes: Sizes, seed: np.uint64, publication: int, number: int) -> float:
    kind = sizes.distribution[publication]
    if kind == _CONSTANT:
        return sizes.mean_bytes[publication]  # type: ignore[no-any-return]
    if kind == _EXPONENTIAL:
        return sizes.mean_bytes[publication] * exponential(seed, number)  # type: ignore[no-any-return]
    sample = sizes.samples[publication]
    first, last = sizes.sample_first[sample], sizes.sample_first[sample + 1]
    place = draw_alias(sizes.sample_share, sizes.sample_alias, first, last - first, uniform(seed, number))
    return sizes.sample_bytes[first + place]  # type: ignore[no-any-return]


@step
def _draw_uniform(seeds: Seeds, source: Source) -> float:
    draw = source.numbers[_DRAWS]
    source.numbers[_DRAWS] = draw + 1
    return uniform(seeds[_ARRIVAL], draw)


@step
def _draw_exponential(seeds: Seeds, source: Source) -> float:
    draw = source.numbers[_DRAWS]
    source.numbers[_DRAWS] = draw + 1
    return exponential(seeds[_ARRIVAL], draw)


@kernel
def _start_changed(
    law: Publishing,
    rate_before: Floats,
    poisson_rate_before: float,
    seeds: Seeds,
    source: Source,
    now: float,
) -> None:
    if law.poisson_rate != poisson_rate_before:
        source.next_poisson[0] = np.inf
        if law.poisson_rate > 0:
            source.next_poisson[0] = now + _draw_exponential(seeds, source) / law.poisson_rate
    for place in range(len(source.heap_row)):
        publication = source.heap_row[place]
        if law.rate[publication] == rate_before[publication]:
            continue
        source.heap_time[place] = np.inf
        if law.rate[publication] > 0:
            source.heap_time[place] = _first_time(law, seeds, source, publication, now)


@step
def _first_time(law: Publishing, seeds: Seeds, source: Source, publication: int, now: float) -> float:
    """The first event after `now` of a publication that has been going on for ever (its equilibrium residual)."""
    mean = 1.0 / law.rate[publication]
    process = law.process[publication]
    if process == _PERIODIC:
        return now + mean * _draw_uniform(seeds, source)  # type: ignore[no-any-return]
    if process == _PARETO:
        # The residual's density is P(interval > x) / mean: flat up to the smallest interval, then a tail.
        shape = law.pareto_shape[publication]
        smallest = mean * (shape - 1.0) / shape
        drawn = _draw_uniform(seeds, source)
        if drawn <= (shape - 1.0) / shape:
            return now + drawn * mean  # type: ignore[no-any-return]
        in_tail = max((1.0 - drawn) * shape, 1e-300)
        return now + smallest * in_tail ** (-1.0 / (shape - 1.0))  # type: ignore[no-any-return]
    on, off = law.on_seconds[publication], law.off_seconds[publication]
    if _draw_uniform(seeds, source) * (on + off) > on:
        now += off * _draw_exponential(seeds, source)
    source.on_until[publication] = now + on * _draw_exponential(seeds, source)
    return _next_time(law, seeds, source, publication, now)


@step
def _next_time(law: Publishing, seeds: Seeds, source: Source, publication: int, time: float) -> float:
    """The event after the one at `time`."""
    mean = 1.0 / law.rate[publication]
    process = law.process[publication]
    if process == _PERIODIC:
        return time + mean  # type: ignore[no-any-return]
    if process == _PARETO:
        shape = law.pareto_shape[publication]
        smallest = mean * (shape - 1.0) / shape
        return time + smallest * _draw_uniform(seeds, source) ** (-1.0 / shape)  # type: ignore[no-any-return]
    on, off = law.on_seconds[publication], law.off_seconds[publication]
    # Poisson in on-time, with the rate that makes the mean over on and off right.
    following = time + _draw_exponential(seeds, source) * mean * on / (on + off)
    while following > source.on_until[publication]:
        left_over = following - source.on_until[publication]
        begins = source.on_until[publication] + off * _draw_exponential(seeds, source)
        source.on_until[publication] = begins + on * _draw_exponential(seeds, source)
        following = begins + left_over
    return following  # type: ignore[no-any-return]


@step
def _sift_down(times: Floats, rows: Integers) -> None:
    count = len(times)
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= count:
            return
        if child + 1 < count and times[child + 1] < times[child]:
            child += 1
        if times[child] >= times[parent]:
            return
        times[child], times[parent] = times[parent], times[child]
        rows[child], rows[parent] = rows[parent], rows[child]
        parent = child


class PublicationStream:
    """Events in order of time, drawn on demand. `rates` are those of the publications from each time on, in order,
    and the rest is as in Generated.

    >>> from triagemq.scenario.building import building
    >>> events = PublicationStream(building(), seed=1).until(2.0)
    >>> bool((np.diff(events["published_ns"]) >= 0).all()), bool(events["published_ns"].max() < 2e9)
    (True, True)
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 0,
        rates: Sequence[tuple[float, Floats]] = (),
        largest_bytes: Floats | None = None,
        at_once: NDArray[np.bool_] | None = None,
    ) -> None:
        first = scenario.publications.rate_per_second
        self._changes = deque(rates)
        while self._changes and self._changes[0][0] <= 0:
            first = self._changes.popleft()[1]
        self._source = Generated(
            scenario,
            np.asarray(first, dtype=np.float64),
            seeds_for(seed, 0),
            largest_bytes=largest_bytes,
            at_once=at_once,
        )

    def until(self, seconds: float) -> NDArray[np.void]:
        """All events before this time that were not given before: `published_ns`, `publication`, `size_bytes`."""
        parts = []
        while self._changes and self._changes[0][0] < seconds:
            at_seconds, rate = self._changes.popleft()
            parts.append(self._drawn(at_seconds))
            self.change_rate(rate, at_seconds)
        return np.concatenate([*parts, self._drawn(seconds)])

    def _drawn(self, seconds: float) -> NDArray[np.void]:
        parts = []
        while self._source.next_time() < seconds:
            buffer = new_buffer(EVENT, _AT_ONCE)
            self._source.publish(buffer, _AT_ONCE, seconds)
            parts.append(buffer.records[: int(buffer.filled[0])])
        events = np.concatenate(parts) if parts else np.empty(0, dtype=EVENT)
        return events[["published_ns", "publication", "size_bytes"]]

    def change_rate(self, rate_per_second: Floats, now_seconds: float) -> None:
        """Go on with other rates from `now_seconds`; a publication whose rate stays is not disturbed."""
        self._source.change_rate(np.asarray(rate_per_second, dtype=np.float64), now_seconds)
