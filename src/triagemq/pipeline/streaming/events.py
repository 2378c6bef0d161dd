"""Events as they travel from a source to Spark's state: one row per block, topic and cell, with its events as arrays.

Spark handles a row with arrays of a thousand events at the cost of a few single ones. A cell is the longest stretch of
time from which all windows can be put together. No Spark here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from triagemq.pipeline.rate_windows import Integers
from triagemq.trace.blocks import NEVER_NS

FOREVER_NS = 1 << 62
"""After every event: the time of a row that says that no more will come."""

EVENTS = pa.schema(
    [
        ("topic_id", pa.int32()),  # null where topics have only names
        ("topic", pa.string()),  # null where topics have only numbers
        ("published_at", pa.timestamp("us", "UTC")),  # of its latest event: what the watermark follows
        ("published_ns", pa.list_(pa.int64())),
        ("publication_ids", pa.list_(pa.int64())),
        ("size_bytes", pa.list_(pa.int32())),
        ("bytes", pa.int64()),  # the sum of size_bytes
        ("late", pa.int64()),  # events of the topic that are not in the row because they came too late
    ]
)


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


def tick(published_ns: int) -> pa.RecordBatch:
    """A row without events: it is as late as this, and for ever, if no more will come."""
    row = dict.fromkeys(EVENTS.names) | {"published_ns": [], "publication_ids": [], "size_bytes": []}
    row |= {"published_at": published_ns // 1000, "bytes": 0, "late": 0}
    return pa.RecordBatch.from_pylist([row], EVENTS)
