"""The tables of a Trace: every column, its type, and what one row means; NumPy columns become rows of them.

Times are whole nanoseconds (`_ns`, int64) on one clock per run: simulated time from 0, or Unix time of a live
run. Numbers are never negative; a column marked nullable is null where the thing did not happen or is not
known. Ids are the row numbers of the scenario (topic, publisher, subscriber, subscription, port) and of the
plan (flow); what a run counts itself (publications) is int64, what a scenario lists is int32. Only signed
integers and strings are used: every Parquet reader, Spark's vectorised one included, takes them without
conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from triagemq.errors import TraceError

SCHEMA_VERSION = 1
"""Raised whenever a column changes its name, type or meaning; a reader refuses any version but its own."""


class Outcome(IntEnum):
    """The outcome of one copy of a publication for one subscription."""

    delivered = 0
    dropped_by_policy = 1
    dropped_by_buffer = 2
    limited = 3
    lost_on_link = 4
    subscriber_gone = 5
    in_flight = 6
    unacknowledged = 7
    """Sent as often as the protocol wants to a subscriber that is there, and never acknowledged: QoS 1 and 2 only."""

    thinned = 8
    """Beyond the rate that the subscription takes; a newer event of the same interval is sent."""

    expired = 9
    """Older than the subscription, or its publisher, wants it when its turn to be sent came."""

    superseded = 10
    """A newer event of the same topic took its place in a queue."""


NOT_WANTED = (Outcome.thinned, Outcome.superseded)
"""Copies in whose place the subscriber wants another: no loss, and outside of success rates."""


# Writers hand in the code of an Outcome, files hold its name: in Parquet this is an ordinary string column
# with a dictionary of few entries, so it costs bits per row, Spark and DuckDB show it as text, and pandas
# as a category.
OUTCOME_TYPE = pa.dictionary(pa.int8(), pa.string())


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _nullable(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=True)


# One row per event that a publisher handed to the network.
_PUBLICATIONS = pa.schema(
    [
        _required("publication_id", pa.int64()),
        _required("topic_id", pa.int32()),
        _nullable("publisher_id", pa.int32()),  # a foreign broker does not say who published
        _required("published_ns", pa.int64()),
        _required("size_bytes", pa.int32()),
    ]
)

# One row per publication and subscription that matches it, whatever became of that copy.
_DELIVERIES = pa.schema(
    [
        _required("publication_id", pa.int64()),
        _required("subscription_id", pa.int32()),
        _required("subscriber_id", pa.int32()),
        _required("topic_id", pa.int32()),
        _nullable("flow_id", pa.int32()),  # null where no plan covers the subscription
        _nullable("priority_class", pa.int32()),
        _required("published_ns", pa.int64()),
        _nullable("enqueued_ns", pa.int64()),  # at the first managed port
        _nullable("dequeued_ns", pa.int64()),  # from the last managed port
        _nullable("delivered_ns", pa.int64()),  # null unless the outcome is `delivered`
        _required("size_bytes", pa.int32()),
        _required("outcome", OUTCOME_TYPE),
    ]
)

# One row per delivery and managed port it came to; an option, because it multiplies the rows by the length of
# the path. Of emulated runs always, with those ports only that it left.
_HOPS = pa.schema(
    [
        _required("publication_id", pa.int64()),
        _required("subscription_id", pa.int32()),
        _required("hop", pa.int32()),  # 0 is the first managed port on the path
        _required("port_id", pa.int32()),
        _required("queue", pa.int32()),
        _nullable("enqueued_ns", pa.int64()),
        _nullable("dequeued_ns", pa.int64()),
        _required("outcome", OUTCOME_TYPE),  # at this hop: `delivered` means passed on
    ]
)

# One row per port, queue and sampling instant (every 200 ms). Counters count from the start of the run; the
# backlog is that of the instant.
_QUEUE_SAMPLES = pa.schema(
    [
        _required("port_id", pa.int32()),
        _required("queue", pa.int32()),
        _required("sampled_ns", pa.int64()),
        _required("bytes_in", pa.int64()),
        _required("packets_in", pa.int64()),
        _required("bytes_out", pa.int64()),
        _required("packets_out", pa.int64()),
        _required("drops", pa.int64()),
        _required("backlog_bytes", pa.int64()),
        _required("backlog_packets", pa.int64()),
        _nullable("width_bps", pa.int64()),  # bandwidth the queue may use; null where there is no limit
    ]
)

# One row per decision of a planner or of the control loop, in the words of the plan.
_DECISIONS = pa.schema(
    [
        _required("decided_ns", pa.int64()),
        _required("kind", pa.string()),
        _required("subject", pa.string()),
        _nullable("before", pa.string()),
        _nullable("after", pa.string()),
        _required("reason", pa.string()),
    ]
)

TABLES: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "publications": _PUBLICATIONS,
        "deliveries": _DELIVERIES,
        "hops": _HOPS,
        "queue_samples": _QUEUE_SAMPLES,
        "decisions": _DECISIONS,
    }
)
"""Table name to schema. `hops` is there only in runs that record them.

>>> TABLES["publications"].names
['publication_id', 'topic_id', 'publisher_id', 'published_ns', 'size_bytes']
>>> Outcome.dropped_by_buffer.name, int(Outcome.dropped_by_buffer)
('dropped_by_buffer', 2)
"""


def delta_columns(schema: pa.Schema) -> list[str]:
    """Columns stored as DELTA_BINARY_PACKED: the 64-bit ones, which are times and counters that mostly grow.

    Measured on deliveries with zstd level 1: 15 % smaller than plain and 10 % faster: zstd has less to do.
    BYTE_STREAM_SPLIT is another 12 % faster and 5 % larger, but only recent Sparks (4.3 does) read it.
    """
    return [field.name for field in schema if field.type == pa.int64()]


def dictionary_columns(schema: pa.Schema) -> list[str]:
    """Columns stored with a dictionary: text and outcomes. For ids it costs time and saves nothing."""
    return [field.name for field in schema if field.type in (OUTCOME_TYPE, pa.string())]


Columns: TypeAlias = Mapping[str, "npt.NDArray[Any] | Sequence[Any]"]
"""One array per column of a table. -1 stands for null in nullable integer columns, None in nullable text."""


def record_batches(table: str, columns: Columns, most_rows: int) -> Iterator[pa.RecordBatch]:
    """Check the columns (all of them, before the first batch) and copy them into Arrow, so many rows at a time.

    Nullable columns are null where they say -1, and outcomes have names instead of codes. A copy, so that a producer
    may fill the same arrays again at once; in batches, so that the memory needed does not grow with what is handed in.

    >>> import numpy as np
    >>> rows = {"publication_id": np.arange(5), "topic_id": [0] * 5, "publisher_id": [-1] * 5,
    ...         "published_ns": np.arange(5) * 10, "size_bytes": [100] * 5}
    >>> [batch.num_rows for batch in record_batches("publications", rows, 2)]
    [2, 2, 1]
    """
    arrays, schema = _checked(table, columns), TABLES[table]
    for start in range(0, len(next(iter(arrays.values()))), most_rows):
        made = [_arrow(field, arrays[field.name][start : start + most_rows]) for field in schema]
        yield pa.RecordBatch.from_arrays(made, schema=schema)


def _arrow(field: pa.Field, values: npt.NDArray[Any]) -> pa.Array:
    if field.type == pa.string():
        return _texts(values)
    copied = values.astype(_numpy_type(field), order="C", copy=True)
    if field.type == OUTCOME_TYPE:
        names = _texts([outcome.name for outcome in Outcome])
        return pa.DictionaryArray.from_arrays(_integers(copied, pa.int8()), names)
    return _integers(copied, field.type)


_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which no encoding can write."""


# These two build arrays from their buffers because `pa.array` imports pandas, which takes most of a second.
def _integers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    present = values >= 0
    return pa.Array.from_buffers(kind, len(values), [_validity(present), pa.py_buffer(values)])


def _texts(values: Iterable[str | None]) -> pa.Array:
    texts = [None if text is None else text.encode() for text in values]
    offsets = np.zeros(len(texts) + 1, dtype=np.int32)
    np.cumsum([len(text or b"") for text in texts], out=offsets[1:])
    present = np.array([text is not None for text in texts], dtype=bool)
    characters = pa.py_buffer(b"".join(text or b"" for text in texts))
    return pa.Array.from_buffers(
        pa.string(), len(texts), [_validity(present), pa.py_buffer(offsets), characters]
    )


def _validity(present: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def _checked(table: str, columns: Columns) -> dict[str, npt.NDArray[Any]]:
    schema = TABLES[table]
    missing = [name for name in schema.names if name not in columns]
    extra = [str(name) for name in columns if name not in schema.names]
    if missing or extra:
        problems = [f"missing {', '.join(missing)}"] if missing else []
        problems += [f"unknown {', '.join(extra)}"] if extra else []
        raise TraceError(f"{table}: columns do not fit the schema: {'; '.join(problems)}")
    arrays = {field.name: _array(table, field, columns[field.name]) for field in schema}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise TraceError(f"{table}: columns of unequal length: {lengths}")
    return arrays


def _array(table: str, field: pa.Field, values: Any) -> npt.NDArray[Any]:
    """The values as a NumPy array, not copied if they are one, once all of them fit the column."""
    column, is_text = f"{table}.{field.name}", field.type == pa.string()
    try:
        array = np.asarray(values, dtype=object if is_text else None)
    except (ValueError, TypeError, OverflowError) as error:
        raise TraceError(f"{column}: not a column of numbers: {error}") from error
    if array.ndim != 1:
        raise TraceError(f"{column}: needs one dimension, has {array.ndim}")
    if is_text:
        for row, text in enumerate(array):
            is_valid = (
                not _SURROGATE.search(text) if isinstance(text, str) else text is None and field.nullable
            )
            if not is_valid:
                raise TraceError(f"{column}: row {row} is {text!r}, not Unicode text")
    elif len(array) == 0:
        return np.empty(0, dtype=_numpy_type(field))
    elif array.dtype.kind not in "iu":
        raise TraceError(f"{column}: needs whole numbers, is {array.dtype}")
    else:
        lowest, highest = int(array.min()), int(array.max())
        least = -1 if field.nullable else 0
        most = max(Outcome) if field.type == OUTCOME_TYPE else np.iinfo(_numpy_type(field)).max
        if lowest < least or highest > most:
            null = " (null)" if field.nullable else ""
            raise TraceError(f"{column}: holds {lowest} to {highest}; it takes {least}{null} to {most:d}")
    return array


def _numpy_type(field: pa.Field) -> np.dtype[Any]:
    kind: type[Any] = (pa.int8() if field.type == OUTCOME_TYPE else field.type).to_pandas_dtype()
    return np.dtype(kind)
