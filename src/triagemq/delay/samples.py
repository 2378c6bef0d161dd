"""The input of estimators: the counters of one queue, read every 200 ms, and the length of the queue by them.

Counters are totals, as switches show them. Those of what comes in count all that was offered, with what the buffer
then dropped: packets_in = packets_out + drops + backlog. Dropped bytes are not counted; `Increments` works them out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError

INTERVAL_SECONDS = 0.2
"""Between two samples: the papers' monitoring period, and the window that delays are means over."""

_COUNTED = ("bytes_in", "packets_in", "bytes_out", "packets_out", "drops")
_BACKLOG = ("backlog_bytes", "backlog_packets")

COUNTER_SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"openflow": _COUNTED, "linux": (*_COUNTED, *_BACKLOG)}
)
"""The counters of a queue by kind of switch: OpenFlow has no queue length, the Linux kernel has."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one queue at one moment; the backlog is None where the switch does not show it.

    `width_bps` is the bandwidth the queue can count on; infinite where there is no limit.
    """

    sampled_ns: int
    bytes_in: int
    packets_in: int
    bytes_out: int
    packets_out: int
    drops: int
    width_bps: float
    backlog_bytes: int | None = None
    backlog_packets: int | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one queue in order of time, as columns.

    >>> samples = Samples.of({"sampled_ns": [0, 200_000_000], "bytes_in": [0, 3000], "packets_in": [0, 3],
    ...     "bytes_out": [0, 1000], "packets_out": [0, 1], "drops": [0, 0], "width_bps": [8e6, 8e6]}, "openflow")
    >>> [(sample.bytes_in, sample.backlog_bytes) for sample in samples]
    [(0, None), (3000, None)]
    """

    sampled_ns: NDArray[np.int64]
    bytes_in: NDArray[np.int64]
    packets_in: NDArray[np.int64]
    bytes_out: NDArray[np.int64]
    packets_out: NDArray[np.int64]
    drops: NDArray[np.int64]
    width_bps: NDArray[np.float64]
    backlog_bytes: NDArray[np.int64] | None = None
    backlog_packets: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Any], counters: str) -> Samples:
        """The columns of one queue, as far as the set of counters has them; a width of -1 is no limit."""
        known = check_counters(counters)
        missing = [name for name in ("sampled_ns", *known, "width_bps") if name not in columns]
        if missing:
            raise ParameterError("columns", f"lack {', '.join(missing)}, which the set {counters!r} has")
        width = np.asarray(columns["width_bps"], np.float64)
        width = np.where(width == -1, np.inf, width)
        if not (width > 0).all():
            raise ParameterError(
                "width_bps", "holds what is not above 0; a queue without bandwidth sends nothing"
            )
        integers = {name: np.asarray(columns[name], np.int64) for name in ("sampled_ns", *known)}
        if (np.diff(integers["sampled_ns"]) <= 0).any():
            raise ParameterError("sampled_ns", "does not grow: samples of one queue come in order of time")
        return cls(width_bps=width, **integers)

    @property
    def counters(self) -> str:
        """The name of the set of counters that these are of."""
        return "openflow" if self.backlog_bytes is None else "linux"

    def __len__(self) -> int:
        return len(self.sampled_ns)

    def __iter__(self) -> Iterator[Sample]:
        columns = [getattr(self, field.name) for field in fields(self)]
        given = [column.tolist() for column in columns if column is not None]
        return (Sample(*row) for row in zip(*given, strict=True))

    def take(self, rows: Any) -> Samples:
        """Some of the rows: a mask, a slice or row numbers; the others are samples that got lost."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: column[rows] for name, column in columns.items() if column is not None})


class ReadErrorModel(Protocol):
    """How a switch is read wrongly: at other moments, or without some losses."""

    def disturbed(self, samples: Samples, seed: int) -> Samples:
        """The samples as they are read; the same for the same seed."""

    def as_json(self) -> dict[str, float]:
        """JSON, for the description of a model."""


def check_counters(counters: str) -> tuple[str, ...]:
    """The counters of a set.

    >>> check_counters("sflow")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: counters: 'sflow' is no set of counters; there are openflow, linux
    """
    if counters not in COUNTER_SETS:
        raise ParameterError(
            "counters", f"{counters!r} is no set of counters; there are {', '.join(COUNTER_SETS)}"
        )
    return COUNTER_SETS[counters]


@dataclass(frozen=True, slots=True)
class Increment:
    """The increments since the sample before. `restarted`: the switch was, and its queue began empty."""

    seconds: float
    bytes_in: int
    packets_in: int
    bytes_out: int
    packets_out: int
    drops: int
    dropped_bytes: float
    restarted: bool

    @property
    def silent(self) -> bool:
        """Nothing came and nothing went: a queue that can count on its width holds nothing then."""
        return self.packets_in == 0 and self.packets_out == 0


class Increments:
    """Turns samples into increments. A sample that is not later than the one before is none.

    What came in never falls but for a restart: then all counters show what they have gained. What went out may fall
    alone, since it may be read a little earlier than the last time: then it has gained nothing.

    >>> increments = Increments()
    >>> increments.after(Sample(0, 500, 5, 400, 4, 0, 8e6)) is None
    True
    >>> gained = increments.after(Sample(200_000_000, 1500, 15, 1000, 10, 2, 8e6))
    >>> gained.bytes_in, gained.bytes_out, gained.dropped_bytes
    (1000, 600, 200.0)
    >>> increments.after(Sample(400_000_000, 300, 3, 100, 1, 0, 8e6)).bytes_in
    300
    """

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._packet_bytes = 0.0

    def after(self, sample: Sample) -> Increment | None:
        """The increments with this sample; None for the first one."""
        last = self._last
        if last is None:
            self._last = sample
            return None
        if sample.sampled_ns <= last.sampled_ns:
            return None
        restarted = sample.bytes_in < last.bytes_in or sample.packets_in < last.packets_in
        base = Sample(last.sampled_ns, 0, 0, 0, 0, 0, last.width_bps) if restarted else last
        # The highest seen is what the next gains on: else it would gain once more what was there already.
        self._last = replace(
            sample,
            bytes_out=max(sample.bytes_out, base.bytes_out),
            packets_out=max(sample.packets_out, base.packets_out),
            drops=max(sample.drops, base.drops),
        )
        bytes_in, packets_in = sample.bytes_in - base.bytes_in, sample.packets_in - base.packets_in
        if packets_in:
            self._packet_bytes = bytes_in / packets_in
        drops = self._last.drops - base.drops
        return Increment(
            seconds=(sample.sampled_ns - last.sampled_ns) * 1e-9,
            bytes_in=bytes_in,
            packets_in=packets_in,
            bytes_out=self._last.bytes_out - base.bytes_out,
            packets_out=self._last.packets_out - base.packets_out,
            drops=drops,
            dropped_bytes=drops * self._packet_bytes,
            restarted=restarted,
        )


SMOOTHING = 0.5
"""w of the papers' (4), which they do not print: a change is half seen after one sample."""

IDLE_SECONDS = 1.0
"""Over which a queue is looked at: reads of different moments differ by much in 200 ms, and by little in this."""

IDLE_SHARE = 0.9
"""A queue that sent less of its width than this was empty at some moment. The rest is for packets that are not sent
whole yet, and for counters that are not read at the same moment."""

READ_SHARE = 0.2
"""A queue that was idle does not begin with less than this of what a window can send. Counters read 20 ms too early and
then too late differ by as much, and would make a queue of nothing wherever one is held at zero."""


class _Window(NamedTuple):
    seconds: float
    accepted_bytes: float
    sent_bytes: float
    could_send_bytes: float


class QueueLength:
    """qLen += dEnQ - dDeQ - dDrops: (7) of Shi et al. with what it lacks.

    Losses are taken off as far as the switch counts them, and a queue never holds less than nothing. What could not be
    known (uncounted losses, the queue before the first sample) is forgotten as soon as the queue is seen idle:
    nothing came and nothing went, or it sent for a second clearly less than its width, which a queue that holds
    something does not do. It never holds more than its buffer, where that is known.

    >>> from triagemq.delay.samples import Increments
    >>> from triagemq.delay.samples import Sample
    >>> increments, queue = Increments(), QueueLength()
    >>> for sample in (Sample(0, 0, 0, 0, 0, 0, 40e3), Sample(200_000_000, 9000, 9, 1000, 1, 5, 40e3)):
    ...     gained = increments.after(sample)
    ...     if gained:
    ...         queue.add(gained, sample.width_bps)
    >>> queue.bytes
    3000.0
    """

    def __init__(self, buffer_bytes: float = math.inf) -> None:
        self.bytes = 0.0
        self.was_idle = False
        """Whether it was empty at some moment of the last second."""
        self._buffer_bytes = buffer_bytes
        self._width_bps = math.inf
        self._recent: deque[_Window] = deque()

    def add(self, gained: Increment, width_bps: float) -> None:
        """Count a window, at the end of which the queue has this width."""
        if gained.restarted or gained.silent:
            self.bytes = 0.0
            self._recent.clear()
        # The width of a window is the smaller of those at its ends: it may have changed at any moment between.
        could_send = min(self._width_bps, width_bps) * gained.seconds / 8.0
        self._width_bps = width_bps
        accepted = gained.bytes_in - gained.dropped_bytes
        self._recent.append(_Window(gained.seconds, accepted, gained.bytes_out, could_send))
        while sum(window.seconds for window in self._recent) - self._recent[0].seconds >= IDLE_SECONDS - 1e-6:
            self._recent.popleft()
        self.was_idle = self._was_idle()
        if self.was_idle:
            # It was empty in one of these windows, and what it holds has come since.
            self.bytes = 0.0
            for window in self._recent:
                more = window.accepted_bytes - window.sent_bytes
                if self.bytes > 0.0 or more > READ_SHARE * window.could_send_bytes:
                    self._count(more)
        else:
            self._count(accepted - gained.bytes_out)

    def _count(self, more_bytes: float) -> None:
        self.bytes = min(max(0.0, self.bytes + more_bytes), self._buffer_bytes)

    def _was_idle(self) -> bool:
        seconds, _, sent, could_send = (sum(column) for column in zip(*self._recent, strict=True))
        return bool(seconds >= IDLE_SECONDS - 1e-6 and sent < IDLE_SHARE * could_send)


class QueueDifference:
    """All that came less all that went and was dropped: `red` with drops, freed of uncounted losses.

    Errors of reading do not add up in it as they do in `QueueLength`, and where nothing is lost it is exact. Losses
    that are not counted stay in it. There are such only where there are losses: after some, it begins anew with the
    length of `QueueLength` as soon as the queue is seen idle. It never exceeds the buffer, where that is known.

    >>> from triagemq.delay.samples import Increments
    >>> from triagemq.delay.samples import Sample
    >>> increments, queue, held = Increments(), QueueLength(), QueueDifference(buffer_bytes=4000.0)
    >>> for sample in (Sample(0, 0, 0, 0, 0, 0, 40e3), Sample(200_000_000, 9000, 9, 1000, 1, 2, 40e3)):
    ...     gained = increments.after(sample)
    ...     if gained:
    ...         queue.add(gained, sample.width_bps)
    ...         held.add(gained, sample, queue)
    >>> held.bytes
    4000.0
    """

    def __init__(self, buffer_bytes: float = math.inf) -> None:
        self.bytes = 0.0
        self.difference_bytes = 0.0
        """The same, but for what counters read at different moments put below zero: errors that means are free of."""
        self._buffer_bytes = buffer_bytes
        self._uncounted_bytes = 0.0
        self._may_miss_losses = True

    def add(self, gained: Increment, sample: Sample, queue: QueueLength) -> None:
        """Count a window that `queue` has counted already."""
        packet_bytes = sample.bytes_in / sample.packets_in if sample.packets_in else 0.0
        difference = sample.bytes_in - sample.bytes_out - sample.drops * packet_bytes
        self._may_miss_losses = (self._may_miss_losses and sample.drops > 0) or gained.drops > 0
        if gained.restarted:
            self._uncounted_bytes = 0.0
        if gained.silent or (self._may_miss_losses and queue.was_idle):
            self._uncounted_bytes = difference - queue.bytes
            self._may_miss_losses = False
        held = difference - self._uncounted_bytes
        self._uncounted_bytes += max(0.0, held - self._buffer_bytes)
        self.difference_bytes = min(held, self._buffer_bytes)
        self.bytes = max(0.0, self.difference_bytes)
