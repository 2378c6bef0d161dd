"""Bins of equal ratio for latencies, 64 to each doubling from 1 ns on: all percentiles use them.

The simulator's kernel counts in the same bins, and so do Spark's expressions in the pipeline, so that the terminal, a
table and a report have the same figures of the same deliveries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

PARTS_PER_DOUBLING: Final = 64
BINS: Final = 63 * PARTS_PER_DOUBLING + 1
"""Bin 0 is for latencies below 1 ns; the last ends where 64 bits do."""

_ROWS_AT_ONCE = 256
_COUNT_BITS = 48
_MOST_CELLS = 1 << 24
"""Of an array that counts in all bins of all rows at once."""

_MANTISSA_BITS = 46
_OFFSET = 1023 * PARTS_PER_DOUBLING


def bins_of(latency_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The exponent and the first six bits of the mantissa: bins of equal ratio without a logarithm.

    >>> bins_of(np.array([0, 1, 2, 3, 64, 65])).tolist()
    [0, 1, 65, 97, 385, 386]
    """
    numbered = (latency_ns.astype(np.float64).view(np.int64) >> _MANTISSA_BITS) - _OFFSET + 1
    return np.where(latency_ns < 1, 0, numbered)


def percentile_ns(histogram: NDArray[np.int64], share: float, longest_ns: int) -> float:
    """The latency that a share of the deliveries does not exceed, within half a bin (0.8 %); NaN if there are none.

    The middle of a bin may lie above everything in it, and no percentile above the longest latency.

    >>> percentile_ns(np.bincount(bins_of(np.array([1000, 2000])), minlength=BINS), 0.5, 2000)
    1004.0
    >>> percentile_ns(np.bincount(bins_of(np.array([1000, 2000])), minlength=BINS), 0.99, 2000)
    2000.0
    """
    return min(float(percentiles_ns(histogram[np.newaxis], share)[0]), float(longest_ns))


def percentiles_ns(histograms: NDArray[np.integer[Any]], share: float) -> NDArray[np.float64]:
    """The same of many histograms, one in a row; without their longest latencies, to half a bin.

    >>> percentiles_ns(np.bincount(bins_of(np.array([1000, 2000])), minlength=BINS)[np.newaxis], 0.5).tolist()
    [1004.0]
    """
    middles, found = bin_middles(), np.full(len(histograms), np.nan)
    for begin in range(0, len(histograms), _ROWS_AT_ONCE):
        counted = np.cumsum(histograms[begin : begin + _ROWS_AT_ONCE], axis=1, dtype=np.int64)
        total = counted[:, -1]
        place = (counted < share * total[:, np.newaxis]).sum(axis=1)
        found[begin : begin + len(total)] = np.where(total > 0, middles[np.minimum(place, BINS - 1)], np.nan)
    return found


def bin_middles() -> NDArray[np.float64]:
    """The value in the middle of each bin."""
    part = np.arange(BINS - 1)
    lower = 2.0 ** (part // PARTS_PER_DOUBLING) * (1 + (part % PARTS_PER_DOUBLING) / PARTS_PER_DOUBLING)
    width = 2.0 ** (part // PARTS_PER_DOUBLING) / PARTS_PER_DOUBLING
    return np.concatenate([[0.0], lower + width / 2])


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
