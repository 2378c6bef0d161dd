"""Rows for a table: NumPy columns checked, copied in blocks, and turned into Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from triagemq.errors import TraceError
from triagemq.trace.schema import OUTCOME_TYPE, TABLES, Outcome

Columns: TypeAlias = Mapping[str, "npt.NDArray[Any] | Sequence[Any]"]
"""One array per column of a table. -1 stands for null in nullable integer columns, None in nullable text."""

# What one object of a text column costs besides its characters; an estimate is enough to bound a queue.
_OBJECT_BYTES = 64


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows of one table, checked, and owned by the writer alone."""

    table: str
    columns: Mapping[str, npt.NDArray[Any]]
    rows: int
    size_bytes: int


def blocks(table: str, columns: Columns, block_rows: int) -> Iterator[RowBlock]:
    """Check the columns (all of them, before the first block) and copy them block by block.

    A copy, so that a producer may fill the same arrays again at once; block by block, so that the memory
    needed does not grow with what is handed in.

    >>> import numpy as np
    >>> rows = {"publication_id": np.arange(5), "topic_id": [0] * 5, "publisher_id": [-1] * 5,
    ...         "published_ns": np.arange(5) * 10, "size_bytes": [100] * 5}
    >>> [block.rows for block in blocks("publications", rows, 2)]
    [2, 2, 1]
    """
    arrays, schema = _checked(table, columns), TABLES[table]
    rows = len(next(iter(arrays.values())))
    for start in range(0, rows, block_rows):
        part: dict[str, npt.NDArray[Any]] = {}
        size_bytes = 0
        for field in schema:
            view = arrays[field.name][start : start + block_rows]
            copied = view.astype(_numpy_type(field), order="C", copy=True)
            part[field.name] = copied
            size_bytes += copied.nbytes
            if field.type == pa.string():
                size_bytes += sum(_OBJECT_BYTES + len(text or "") for text in copied)
        yield RowBlock(table, part, len(copied), size_bytes)


def record_batch(block: RowBlock) -> pa.RecordBatch:
    """The block as Arrow, with nulls where a nullable column says -1 and names instead of outcome codes."""
    schema = TABLES[block.table]
    arrays = []
    for field in schema:
        values = block.columns[field.name]
        if field.type == OUTCOME_TYPE:
            codes = _integers(values, pa.int8())
            arrays.append(
                pa.DictionaryArray.from_arrays(codes, _texts([outcome.name for outcome in Outcome]))
            )
        elif field.type == pa.string():
            arrays.append(_texts(values))
        else:
            arrays.append(_integers(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
    is_text = field.type == pa.string()
    try:
        array = np.asarray(values, dtype=object) if is_text else np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise TraceError(f"{table}.{field.name}: not a column of numbers: {error}") from error
    if array.ndim != 1:
        raise TraceError(f"{table}.{field.name}: needs one dimension, has {array.ndim}")
    if is_text:
        for row, text in enumerate(array):
            if not (isinstance(text, str) or (text is None and field.nullable)):
                raise TraceError(f"{table}.{field.name}: row {row} is {type(text).__name__}, not text")
            if text is not None and not _is_unicode(text):
                raise TraceError(f"{table}.{field.name}: row {row} is not Unicode text: {text!r}")
        return array
    if len(array) == 0:
        return np.empty(0, dtype=_numpy_type(field))
    if array.dtype.kind not in "iu":
        raise TraceError(f"{table}.{field.name}: needs whole numbers, is {array.dtype}")
    _check_range(table, field, array)
    return array


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_range(table: str, field: pa.Field, array: npt.NDArray[Any]) -> None:
    if array.dtype.kind == "i":
        lowest = int(array.min())
        if lowest < (-1 if field.nullable else 0):
            allowed = "-1 (null) or more" if field.nullable else "0 or more"
            raise TraceError(f"{table}.{field.name}: holds {lowest}; it takes {allowed}")
    if field.type == OUTCOME_TYPE:
        limit = int(max(Outcome))
    elif np.can_cast(array.dtype, _numpy_type(field), "safe"):
        return
    else:
        limit = int(np.iinfo(_numpy_type(field)).max)
    highest = int(array.max())
    if highest > limit:
        raise TraceError(f"{table}.{field.name}: holds {highest}; it takes {limit} at most")


def _numpy_type(field: pa.Field) -> np.dtype[Any]:
    if field.type == OUTCOME_TYPE:
        return np.dtype(np.int8)
    if field.type == pa.string():
        return np.dtype(object)
    return np.dtype(np.int64 if field.type == pa.int64() else np.int32)
