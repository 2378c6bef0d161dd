"""What windows depend on, and events as Spark's state takes them: a row per block, topic and cell, with arrays.

Spark handles a row with arrays of a thousand events at the cost of a few single ones. A cell is the longest stretch of
time from which all windows can be put together. No Spark here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from triagemq.errors import ParameterError
from triagemq.pipeline.rate_windows import LONG_NS, Integers
from triagemq.trace.blocks import NEVER_NS

FOREVER_NS = 1 << 62
"""After every event: the time of a row that says that no more will come."""

_PAST_FOREVER_NS = FOREVER_NS + (FOREVER_NS >> 1)

EVENTS = pa.schema(
    [
        ("topic_id", pa.int32()),  # null where topics have only names, and in notes
        ("topic", pa.string()),  # null where topics have only numbers, and in notes
        ("published_at", pa.timestamp("us", "UTC")),  # of its latest event: what the watermark follows
        ("published_ns", pa.list_(pa.int64())),
        ("publication_ids", pa.list_(pa.int64())),
        ("size_bytes", pa.list_(pa.int32())),
        ("bytes", pa.int64()),  # the sum of size_bytes
        ("late", pa.int64()),  # events of the topic that are not in the row because they came too late
    ]
)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What the rows of a stream's table depend on, besides its events."""

    source: str
    window_seconds: float = 2.0
    slide_seconds: float = 1.0
    watermark_seconds: float = 2.0

    def __post_init__(self) -> None:
        for name in ("window_seconds", "slide_seconds", "watermark_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0 and (value > 0 or name == "watermark_seconds")):
                raise ParameterError(name, f"must be a positive number of seconds, is {value}")
            if abs(value * 1000 - round(value * 1000)) > 1e-6:
                raise ParameterError(name, f"must be whole milliseconds, is {value}")
        if self.window_ns % self.slide_ns:
            raise ParameterError("slide_seconds", "must go a whole number of times into window_seconds")

    @property
    def window_ns(self) -> int:
        """Length of the sliding windows."""
        return round(self.window_seconds * 1000) * 1_000_000

    @property
    def slide_ns(self) -> int:
        """From the beginning of one sliding window to that of the next."""
        return round(self.slide_seconds * 1000) * 1_000_000

    @property
    def delay_ns(self) -> int:
        """How far the watermark is behind the latest event."""
        return round(self.watermark_seconds * 1000) * 1_000_000

    @property
    def cell_ns(self) -> int:
        """Length of a cell.

        >>> StreamSettings("x", window_seconds=1.5, slide_seconds=0.3).cell_ns
        100000000
        """
        return math.gcd(self.slide_ns, LONG_NS)

    def needed_ns(self, closed_ns: int) -> int:
        """Cells from here on are part of windows that are not closed yet."""
        return min(closed_ns // LONG_NS * LONG_NS, closed_ns - self.window_ns)

    @property
    def open_ns(self) -> int:
        """For how long after an event windows with it may be open."""
        return max(self.window_ns, LONG_NS) + self.delay_ns + 2 * self.cell_ns


@dataclass(frozen=True, slots=True)
class Packing:
    """How long a cell is, how far an event may be behind the latest one of all blocks before its own, and names.

    Whether an event is late depends on the blocks before it and on nothing else, so that every reading of a trace says
    the same. Spark's watermark follows the batches: it is never ahead of that, and drops no event that is in time.
    """

    cell_ns: int
    delay_ns: int
    topics: Sequence[str] | None = None
    has_numbers: bool = True
    """Whether the numbers of topics mean anything beside their names."""

    def packed(
        self,
        topic: Integers,
        publication_id: Integers,
        published_ns: Integers,
        size_bytes: Integers,
        *,
        earlier_ns: int = NEVER_NS,
    ) -> pa.RecordBatch:
        """The events of one block, those of a row by their time; `topic` is a number of the scenario, or of `topics`.

        >>> columns = [np.array(values) for values in ([5, 2, 5], [10, 11, 12], [1, 2, 3], [64, 64, 80])]
        >>> packed = Packing(cell_ns=100, delay_ns=0).packed(*columns).to_pydict()
        >>> packed["topic_id"], packed["publication_ids"], packed["bytes"]
        ([2, 5], [[11], [10, 12]], [64, 144])
        """
        late = published_ns < earlier_ns - self.delay_ns
        late_topics, lates = np.unique(topic[late], return_counts=True)
        chosen = np.flatnonzero(~late)
        cell = published_ns // self.cell_ns
        chosen = chosen[np.lexsort((published_ns[chosen], cell[chosen], topic[chosen]))]
        first = np.ones(len(chosen), dtype=bool)
        first[1:] = np.logical_or(*(np.diff(values[chosen]) != 0 for values in (topic, cell)))
        starts = np.flatnonzero(first)
        ends = np.append(starts[1:], len(chosen))[: len(starts)]
        nothing = np.zeros(len(late_topics), dtype=np.int64)
        offsets = pa.array(np.concatenate([starts, [len(chosen)], nothing + len(chosen)]).astype(np.int32))
        lists = [
            pa.ListArray.from_arrays(offsets, pa.array(values[chosen].astype(kind)))
            for values, kind in ((published_ns, "i8"), (publication_id, "i8"), (size_bytes, "i4"))
        ]
        total = np.append(0, np.cumsum(size_bytes[chosen], dtype=np.int64))
        topics = np.concatenate([topic[chosen[starts]], late_topics])
        # What came too late is counted in the cell of the time at which it came.
        latest = np.concatenate([published_ns[chosen[ends - 1]], nothing + earlier_ns])
        return pa.RecordBatch.from_arrays(
            [
                *self._named(topics),
                pa.array(latest // 1000).cast(pa.timestamp("us", "UTC")),
                *lists,
                pa.array(np.concatenate([total[ends] - total[starts], nothing])),
                pa.array(np.concatenate([np.zeros(len(starts), dtype=np.int64), lates])),
            ],
            schema=EVENTS,
        )

    def _named(self, topic: Integers) -> tuple[pa.Array, pa.Array]:
        numbers = pa.array(topic.astype(np.int32)) if self.has_numbers else pa.nulls(len(topic), pa.int32())
        if self.topics is None:
            return numbers, pa.nulls(len(topic), pa.string())
        known = np.where((topic >= 0) & (topic < len(self.topics)), topic, len(self.topics))
        return numbers, pa.array([*self.topics, None], pa.string()).take(pa.array(known))


def note(published_ns: int, *, outage: Sequence[int] = (), lost: int = 0, queued: int = 0) -> pa.RecordBatch:
    """A row without a topic, about the stream itself: it is as late as this, and what is known of it.

    `published_ns` are the two ends of an outage, `late` counts messages that were lost, `bytes` those without a time.
    """
    row = dict.fromkeys(EVENTS.names) | {
        "published_ns": list(outage),
        "publication_ids": [],
        "size_bytes": [],
    }
    row |= {"published_at": published_ns // 1000, "bytes": queued, "late": lost}
    return pa.RecordBatch.from_pylist([row], EVENTS)


def end_notes() -> list[pa.RecordBatch]:
    """No event will come any more: the watermark passes all cells, that of FOREVER_NS too."""
    return [note(FOREVER_NS), note(_PAST_FOREVER_NS)]
