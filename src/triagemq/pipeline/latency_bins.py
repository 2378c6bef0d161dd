"""The bins of `triagemq.trace.latency_bins` as Spark computes them.

A histogram adds up over files, workers and runs, needs no sort, and takes the same space for ten deliveries or ten
billion. Whoever computes percentiles from these bins, the simulator included, gets the same figures to the last bit.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (the name everybody uses for it)

from triagemq.trace.latency_bins import PARTS_PER_DOUBLING

COUNT_BITS = 48


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
    return F.shiftleft(bin_number.cast("bigint"), COUNT_BITS) + count


def unpacked_bin(packed: Column) -> tuple[Column, Column]:
    """The bin and the count."""
    return F.shiftright(packed, COUNT_BITS).cast("int"), packed.bitwiseAND(F.lit((1 << COUNT_BITS) - 1))


def percentile_bin(packed: Column, total: Column, share: float) -> Column:
    """The first bin up to which this share of the values lies; null if there are none.

    The walk counts down from the rank that is looked for; once it is reached, the bin is kept, as -1 - bin.
    """

    def step(state: Column, entry: Column) -> Column:
        left = state - entry.bitwiseAND(F.lit((1 << COUNT_BITS) - 1))
        found = -1 - F.shiftright(entry, COUNT_BITS)
        return F.when(state < 0, state).when(left <= 0, found).otherwise(left)

    rank = F.ceil(total * share).cast("bigint")
    return F.when(total > 0, -1 - F.aggregate(packed, rank, step)).cast("int")
