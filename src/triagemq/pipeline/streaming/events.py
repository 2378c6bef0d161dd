"""Events as they travel from the source to the tasks: one row per block and topic, with its events as arrays.

Spark handles a row with arrays of a thousand events at the cost of a few single ones. No Spark here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["EVENTS", "EVENTS_SCHEMA", "NEVER_NS", "Events", "Integers", "packed", "unpacked"]

NEVER_NS = -(1 << 62)
"""Before every event."""

EVENTS_SCHEMA = """
    run              int            COMMENT 'number of the run, in the order in which runs were found',
    first_row        bigint         COMMENT 'how many events of the run stand before the block',
    earlier_ns       bigint         COMMENT 'the latest published_ns of all blocks of the run before this one',
    topic_id         int,
    publication_ids  array<bigint>  COMMENT 'of the events of the topic in the block, in their order',
    published_ns     array<bigint>,
    size_bytes       array<int>
"""
EVENTS = pa.schema(
    [
        ("run", pa.int32()),
        ("first_row", pa.int64()),
        ("earlier_ns", pa.int64()),
        ("topic_id", pa.int32()),
        ("publication_ids", pa.list_(pa.int64())),
        ("published_ns", pa.list_(pa.int64())),
        ("size_bytes", pa.list_(pa.int32())),
    ]
)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Events:
    """Events one by one, as columns. `first_row` and then the order here is the order in which they came."""

    run: Integers
    first_row: Integers
    earlier_ns: Integers
    topic_id: Integers
    publication_id: Integers
    published_ns: Integers
    size_bytes: Integers

    def __len__(self) -> int:
        return len(self.run)


def packed(
    run: Integers,
    topic_id: Integers,
    publication_id: Integers,
    published_ns: Integers,
    size_bytes: Integers,
    *,
    first_row: int,
    earlier_ns: int,
) -> pa.RecordBatch:
    """Events of one block as one row per run and topic; their order within it stays.

    >>> columns = [np.array(values) for values in ([0] * 3, [5, 2, 5], [10, 11, 12], [1, 2, 3], [64, 64, 80])]
    >>> packed(*columns, first_row=0, earlier_ns=NEVER_NS).to_pydict()["publication_ids"]
    [[11], [10, 12]]
    """
    order = np.lexsort((topic_id, run))
    run, topic_id = run[order], topic_id[order]
    first = np.ones(len(run), dtype=bool)
    first[1:] = (run[1:] != run[:-1]) | (topic_id[1:] != topic_id[:-1])
    starts = np.flatnonzero(first)
    offsets = pa.array(np.append(starts, len(run)).astype(np.int32))
    lists = [
        pa.ListArray.from_arrays(offsets, pa.array(values[order].astype(kind)))
        for values, kind in ((publication_id, np.int64), (published_ns, np.int64), (size_bytes, np.int32))
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(run[starts].astype(np.int32)),
            pa.array(np.full(len(starts), first_row, np.int64)),
            pa.array(np.full(len(starts), earlier_ns, np.int64)),
            pa.array(topic_id[starts].astype(np.int32)),
            *lists,
        ],
        schema=EVENTS,
    )


def unpacked(rows: pa.Table) -> Events:
    """The events one by one."""
    rows = rows.combine_chunks()
    lengths = np.diff(_list(rows, "published_ns").offsets.to_numpy())
    repeated = [
        np.repeat(rows.column(name).to_numpy(), lengths)
        for name in ("run", "first_row", "earlier_ns", "topic_id")
    ]
    return Events(
        *repeated,
        *(
            _list(rows, name).flatten().to_numpy()
            for name in ("publication_ids", "published_ns", "size_bytes")
        ),
    )


def _list(rows: pa.Table, name: str) -> pa.ListArray:
    chunks = rows.column(name).chunks
    return chunks[0] if chunks else pa.array([], EVENTS.field(name).type)
