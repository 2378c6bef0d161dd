"""What estimators are fed: the counters of one queue, read every 200 ms, made from the queue_samples of a Trace.

Counters are totals, as switches show them. Those of what comes in count all that was offered, with what the buffer
then dropped: packets_in = packets_out + drops + backlog. Dropped bytes are not counted; `increments` works them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError

if TYPE_CHECKING:
    pass


INTERVAL_SECONDS = 0.2
"""Between two samples: the papers' monitoring period, and the window that delays are means over."""

_COUNTED = ("bytes_in", "packets_in", "bytes_out", "packets_out", "drops")
_BACKLOG = ("backlog_bytes", "backlog_packets")

COUNTER_SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"openflow": _COUNTED, "linux": (*_COUNTED, *_BACKLOG)}
)
"""What kinds of switches show of a queue: OpenFlow has no queue length, the Linux kernel has."""


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

    def only(self, counters: str) -> Samples:
        """As a switch with this set of counters shows them."""
        if "backlog_bytes" in check_counters(counters):
            return self
        return replace(self, backlog_bytes=None, backlog_packets=None)

    def take(self, rows: Any) -> Samples:
        """Some of the rows: a mask, a slice or row numbers; the others are samples that got lost."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: column[rows] for name, column in columns.items() if column is not None})


class ReadErrorModel(Protocol):
    """How a switch is read wrongly: at other moments, or without some losses."""

    def disturbed(self, samples: Samples, seed: int) -> Samples:
        """The samples as they are read; the same for the same seed."""

    def reader(self, seed: Sequence[int]) -> Callable[[Sample], Sample]:
        """What changes the samples of one queue as they are read, one after the other."""

    def as_json(self) -> dict[str, float]:
        """As models store what they were trained with."""


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
    """What was counted since the sample before. `restarted`: the switch was, and its queue began empty."""

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
        """What was gained with this sample; None for the first one."""
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
