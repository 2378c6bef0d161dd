"""What one task does with its topics' events: late and duplicate ones are counted, the rest becomes panes.

A pane is the shortest stretch of time from which all windows can be put together. One is made when the watermark
has passed its end, so it is whole and its figures do not depend on the batches that its events came in. Events of
younger panes are kept as they are: the next batch needs their times for the gaps, and their ids to recognise
duplicates. No Spark here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from triagemq.pipeline.streaming.events import Events, Integers, unpacked

__all__ = ["COUNT", "KEPT", "PANE", "REDUCED", "REDUCED_SCHEMA", "Reduction", "reduced"]

PANE, KEPT, COUNT = 0, 1, 2
REDUCED_SCHEMA = """
    kind            tinyint  COMMENT '0: a pane, 1: an event kept for the next batch, 2: counts of a topic',
    run             int,
    topic_id        int,
    time_ns         bigint   COMMENT 'where the pane begins; published_ns of a kept event',
    events          bigint   COMMENT 'in the pane; accepted ones of the topic in this batch',
    bytes           bigint,
    first_ns        bigint   COMMENT 'first and last event of a pane, squared gaps between them in seconds',
    last_ns         bigint,
    gap_squares     double,
    publication_id  bigint   COMMENT 'of a kept event',
    late            bigint   COMMENT 'counts of the topic in this batch',
    duplicates      bigint
"""
REDUCED = pa.schema(
    [
        ("kind", pa.int8()),
        ("run", pa.int32()),
        ("topic_id", pa.int32()),
        ("time_ns", pa.int64()),
        ("events", pa.int64()),
        ("bytes", pa.int64()),
        ("first_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("gap_squares", pa.float64()),
        ("publication_id", pa.int64()),
        ("late", pa.int64()),
        ("duplicates", pa.int64()),
    ]
)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a task must know: the length of a pane, how late an event may be, what is closed.

    `closed_ns[run]` is a whole number of panes that the watermark has passed.
    """

    pane_ns: int
    delay_ns: int
    closed_ns: Mapping[int, int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As Spark calls it: all events of some topics, in any order."""
        arrived = list(batches)
        if arrived:
            yield from reduced(pa.Table.from_batches(arrived), self).to_batches()


def reduced(rows: pa.Table, how: Reduction) -> pa.Table:
    """Panes, kept events and counts of whole topics, as `REDUCED_SCHEMA` says.

    >>> from triagemq.pipeline.streaming.events import EVENTS, NEVER_NS
    >>> rows = pa.table([[0], [0], [NEVER_NS], [7], [[1, 2, 2, 3]], [[10, 130, 130, 250]], [[5] * 4]], schema=EVENTS)
    >>> found = reduced(rows, Reduction(pane_ns=100, delay_ns=50, closed_ns={0: 200}))
    >>> found.select(["kind", "time_ns", "events", "duplicates"]).to_pylist()
    [{'kind': 0, 'time_ns': 0, 'events': 1, 'duplicates': 0}, {'kind': 0, 'time_ns': 100, 'events': 1, 'duplicates': 0},
    {'kind': 1, 'time_ns': 250, 'events': 1, 'duplicates': 0}, {'kind': 2, 'time_ns': 0, 'events': 3, 'duplicates': 1}]
    """
    events = unpacked(rows)
    watermark_ns = events.earlier_ns - how.delay_ns
    late = events.published_ns < watermark_ns
    duplicate = _duplicates(events, watermark_ns, late)
    new = events.first_row >= 0
    accepted = ~(late | duplicate)
    closed = events.published_ns < _by_run(how.closed_ns, events.run)
    kept = accepted & ~closed
    return pa.concat_tables(
        [
            _panes(events, accepted & closed, how.pane_ns),
            _table(
                KEPT,
                run=events.run[kept],
                topic_id=events.topic_id[kept],
                time_ns=events.published_ns[kept],
                events=np.ones(int(kept.sum()), np.int64),
                bytes=events.size_bytes[kept],
                publication_id=events.publication_id[kept],
            ),
            _counts(events.run[new], events.topic_id[new], late[new], duplicate[new]),
        ]
    )


def _duplicates(events: Events, watermark_ns: Integers, late: Mask) -> Mask:
    """Events whose id an earlier event of the topic has that the watermark had not passed when they came.

    The last condition makes the answer the same whatever batches the two came in: older ids are forgotten.
    """
    ids = events.publication_id
    duplicate = np.zeros(len(ids), dtype=bool)
    in_order = np.sort(ids)
    repeated = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    if not len(repeated):
        return duplicate
    suspects = np.flatnonzero(~late & np.isin(ids, repeated))
    keys = [values[suspects] for values in (ids, events.topic_id, events.run)]
    order = np.lexsort((events.first_row[suspects], *keys))
    suspects = suspects[order]
    follows = np.zeros(len(suspects), dtype=bool)
    follows[1:] = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    # One after the other within an id, all ids at once: each copy is compared with the last accepted one.
    starts = np.flatnonzero(~follows)
    copies = np.diff(np.append(starts, len(suspects)))
    accepted = suspects[starts]
    for copy in range(1, int(copies.max(initial=1))):
        there = np.flatnonzero(copies > copy)
        candidate = suspects[starts[there] + copy]
        known = events.published_ns[accepted[there]] >= watermark_ns[candidate]
        duplicate[candidate[known]] = True
        accepted[there[~known]] = candidate[~known]
    return duplicate


def _panes(events: Events, chosen: Mask, pane_ns: int) -> pa.Table:
    run, topic, published_ns = (
        values[chosen] for values in (events.run, events.topic_id, events.published_ns)
    )
    order = np.lexsort((published_ns, topic, run))
    run, topic, published_ns = run[order], topic[order], published_ns[order]
    size_bytes = events.size_bytes[chosen][order].astype(np.int64)
    begins_ns = published_ns // pane_ns * pane_ns
    first = np.ones(len(run), dtype=bool)
    first[1:] = (run[1:] != run[:-1]) | (topic[1:] != topic[:-1]) | (begins_ns[1:] != begins_ns[:-1])
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(run))[: len(starts)]
    gaps = np.zeros(len(run))
    gaps[1:] = np.diff(published_ns) * 1e-9
    gaps[starts] = 0.0
    return _table(
        PANE,
        run=run[starts],
        topic_id=topic[starts],
        time_ns=begins_ns[starts],
        events=ends - starts,
        bytes=_sums(size_bytes, starts),
        first_ns=published_ns[starts],
        last_ns=published_ns[ends - 1],
        gap_squares=_sums(gaps * gaps, starts),
    )


def _counts(run: Integers, topic: Integers, late: Mask, duplicate: Mask) -> pa.Table:
    order = np.lexsort((topic, run))
    run, topic, late, duplicate = run[order], topic[order], late[order], duplicate[order]
    first = np.ones(len(run), dtype=bool)
    first[1:] = (run[1:] != run[:-1]) | (topic[1:] != topic[:-1])
    starts = np.flatnonzero(first)
    lates, duplicates = (_sums(each.astype(np.int64), starts) for each in (late, duplicate))
    rows = np.diff(np.append(starts, len(run)))
    return _table(
        COUNT,
        run=run[starts],
        topic_id=topic[starts],
        events=rows - lates - duplicates,
        late=lates,
        duplicates=duplicates,
    )


def _sums(values: npt.NDArray[np.generic], starts: Integers) -> npt.NDArray[np.generic]:
    # reduceat cannot be asked for no sums at all.
    return np.add.reduceat(values, starts) if len(starts) else values[:0]


def _by_run(values: Mapping[int, int], run: Integers) -> Integers:
    table = np.zeros(max(values, default=-1) + 1, dtype=np.int64)
    table[list(values)] = list(values.values())
    return table[run]


def _table(kind: int, **columns: npt.NDArray[np.generic]) -> pa.Table:
    rows = len(columns["run"])
    filled = {name: columns.get(name, np.zeros(rows, np.int8)) for name in REDUCED.names}
    filled["kind"] = np.full(rows, kind, np.int8)
    arrays = [pa.array(filled[field.name].astype(field.type.to_pandas_dtype())) for field in REDUCED]
    return pa.Table.from_arrays(arrays, schema=REDUCED)
