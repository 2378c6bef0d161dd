"""The bins of `triagemq.trace.latency_bins` as Spark computes them.

A histogram adds up over files, workers and runs, needs no sort, and takes the same space for ten deliveries or ten
billion. Whoever computes percentiles from these bins, the simulator included, gets the same figures to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (the name everybody uses for it)

from triagemq.trace.latency_bins import BINS, PARTS_PER_DOUBLING

_COUNT_BITS = 48
_MOST_CELLS = 1 << 24
"""Of an array that counts in all bins of all rows at once."""


def bin_of(value: Column) -> Column:
    """The bin of a whole number: 0 for 0, else 64 for each doubling, divided evenly in between.

    Whole numbers only, so that the result does not depend on how a machine rounds. The exponent is how often the number
    can be halved: all bits below the highest are set and counted, since a logarithm would be a call out of Java.
    """
    positive = F.greatest(value, F.lit(1).cast("bigint"))
    bits = positive
    for places in (1, 2, 4, 8, 16, 32):
        bits = bits.bitwiseOR(F.shiftright(bits, places))
    exponent = F.bit_count(bits) - 1
    part = F.call_function("shiftright", F.shiftleft(positive, 6), exponent).cast("int")
    numbered = exponent * PARTS_PER_DOUBLING + part - (PARTS_PER_DOUBLING - 1)
    return F.when(value < 1, 0).otherwise(numbered).cast("int")


def bin_middle(bin_number: Column) -> Column:
    """The value in the middle of a bin."""
    part = bin_number - 1
    octave = F.floor(part / PARTS_PER_DOUBLING).cast("int")
    width = F.pow(F.lit(2.0), octave)
    lower = width * (1 + F.pmod(part, F.lit(PARTS_PER_DOUBLING)) / PARTS_PER_DOUBLING)
    return F.when(bin_number < 1, 0.0).otherwise(lower + width / PARTS_PER_DOUBLING / 2)


def packed_bin(bin_number: Column, count: Column) -> Column:
    """A bin and its count as one number: numbers are collected, sorted and walked over many times faster than pairs."""
    return F.shiftleft(bin_number.cast("bigint"), _COUNT_BITS) + count


def percentile_bin(packed: Column, total: Column, share: float) -> Column:
    """The first bin up to which this share of the values lies; null if there are none.

    The walk counts down from the rank that is looked for; once it is reached, the bin is kept, as -1 - bin.
    """

    def step(state: Column, entry: Column) -> Column:
        left = state - entry.bitwiseAND(F.lit((1 << _COUNT_BITS) - 1))
        found = -1 - F.shiftright(entry, _COUNT_BITS)
        return F.when(state < 0, state).when(left <= 0, found).otherwise(left)

    rank = F.ceil(total * share).cast("bigint")
    return F.when(total > 0, -1 - F.aggregate(packed, rank, step)).cast("int")


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
