"""What estimators are fed: the counters of one queue, read every 200 ms, made from the queue_samples of a Trace.

Counters are totals, as switches show them. Those of what comes in count all that was offered, with what the buffer
then dropped: packets_in = packets_out + drops + backlog. Dropped bytes are not counted; `increments` works them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.trace import Columns, Trace

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


def by_queue(queue_samples: Columns, counters: str) -> dict[tuple[int, int], Samples]:
    """The samples of each queue, by port_id and queue, from the columns of the Trace's table.

    >>> columns = {"port_id": [0, 0, 0], "queue": [0, 1, 0], "sampled_ns": [200, 0, 0], "width_bps": [-1, 8, -1],
    ...     **{name: [2, 1, 0] for name in COUNTER_SETS["linux"]}}
    >>> queues = by_queue(columns, "linux")
    >>> queues[0, 0].bytes_in, queues[0, 0].width_bps, len(queues[0, 1])
    (array([0, 2]), array([inf, inf]), 1)
    """
    arrays = {name: np.asarray(values) for name, values in queue_samples.items()}
    order = np.lexsort((arrays["sampled_ns"], arrays["queue"], arrays["port_id"]))
    ports, queues = arrays["port_id"][order], arrays["queue"][order]
    starts = np.flatnonzero((np.diff(ports) != 0) | (np.diff(queues) != 0)) + 1
    return {
        (int(arrays["port_id"][rows[0]]), int(arrays["queue"][rows[0]])): Samples.of(
            {name: values[rows] for name, values in arrays.items()}, counters
        )
        for rows in np.split(order, starts)
        if len(rows)
    }


def of_trace(trace: Trace, counters: str) -> dict[tuple[int, int], Samples]:
    """The samples of each queue of a run."""
    table = trace.table(
        "queue_samples", ["port_id", "queue", "sampled_ns", *check_counters(counters), "width_bps"]
    )
    columns = {
        name: table.column(name).combine_chunks().fill_null(-1).to_numpy() for name in table.column_names
    }
    return by_queue(columns, counters)
