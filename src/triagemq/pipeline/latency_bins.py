"""Histograms of many rows in the bins of `triagemq.trace.latency_bins`, as Arrow and tables hold them.

A histogram adds up over files, workers and runs, needs no sort, and takes the same space for ten deliveries or ten
billion. Percentiles that are computed from these bins, by the simulator too, are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from triagemq.trace.latency_bins import BINS

_COUNT_BITS = 48
_MOST_CELLS = 1 << 24
"""Of an array that counts in all bins of all rows at once."""


def packed_lists(row: Any, number: Any, count: Any, rows: int) -> pa.ListArray:
    """For each of so many rows its bins in order, packed; `count` of each entry, or 1 where it is None.

    >>> packed = packed_lists(np.array([1, 0, 1]), np.array([7, 9, 7]), None, 2)
    >>> [column.tolist() for column in unpacked_lists(packed)]
    [[0, 1], [9, 7], [1, 2]]
    """
    lowest = int(number.min(initial=BINS))
    width = max(1, int(number.max(initial=0)) - lowest + 1)
    code = row.astype(np.int64) * width + (number - lowest)
    if rows * width <= _MOST_CELLS:
        counted = np.bincount(code, count, rows * width)
        code = np.flatnonzero(counted)
        counted = counted[code]
    else:
        code, place = np.unique(code, return_inverse=True)
        counted = np.bincount(place, count)
    offsets = np.searchsorted(code, np.arange(rows + 1) * width).astype(np.int32)
    packed = ((code % width + lowest) << _COUNT_BITS) + counted.astype(np.int64)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(packed))


def unpacked_lists(lists: pa.ListArray) -> tuple[Any, Any, Any]:
    """Of every entry of such lists the row, the bin and the count."""
    packed = lists.flatten().to_numpy()
    row = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
    return row, packed >> _COUNT_BITS, packed & ((1 << _COUNT_BITS) - 1)


def percentile_bins(lists: pa.ListArray, shares: Sequence[float]) -> list[pa.Array]:
    """For each share and row the first bin up to which this share of the row's values lies; null if there are none."""
    row, number, count = unpacked_lists(lists)
    code = row * BINS + number
    if (np.diff(code) < 0).any():
        order = np.argsort(code)
        number, count = number[order], count[order]
    reached = np.append(0, np.cumsum(count))
    ends = reached[np.append(0, np.cumsum(lists.value_lengths().to_numpy()))]
    total = np.diff(ends)
    found = []
    for share in shares:
        place = np.searchsorted(reached, ends[:-1] + np.ceil(total * share).astype(np.int64)) - 1
        found.append(pa.array(np.append(number, 0)[place].astype(np.int32), mask=total == 0))
    return found
