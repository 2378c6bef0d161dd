"""What real switches get wrong when they are read: counters of different moments, and losses that nobody counts.

A controller far away does not get the bytes that came in and those that went out at the same time, and what a full
buffer dropped is among what came in (Shi et al., section 5), while the drops that a switch shows can lack some of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.samples import INTERVAL_SECONDS, Sample, Samples
from triagemq.errors import ParameterError


@dataclass(frozen=True, slots=True)
class ReadErrors:
    """How large the errors are. The defaults are those that experiments with read errors take.

    `skew_seconds`: what went out is read by up to so much earlier or later than what came in, evenly spread and
    anew for every sample. `hidden_drops`: the share of drops that the switch does not count as such.
    """

    skew_seconds: float = 0.02
    hidden_drops: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.skew_seconds < INTERVAL_SECONDS:
            raise ParameterError(
                "skew_seconds", f"is {self.skew_seconds:g}; must be 0 or more and below {INTERVAL_SECONDS:g}"
            )
        if not 0 <= self.hidden_drops <= 1:
            raise ParameterError("hidden_drops", f"is {self.hidden_drops:g}; must be in [0, 1]")


def disturbed(samples: Samples, errors: ReadErrors, seed: int) -> Samples:
    """The samples as a switch with these errors shows them; the same for the same seed.

    Between two samples counters grow evenly, as far as anybody knows. The backlog, where there is one, is read with
    what comes in: it is right.

    >>> samples = Samples.of({"sampled_ns": [0, 200_000_000, 400_000_000], "bytes_in": [0, 8000, 16000],
    ...     "packets_in": [0, 8, 16], "bytes_out": [0, 4000, 8000], "packets_out": [0, 4, 8], "drops": [0, 4, 8],
    ...     "width_bps": [160e3] * 3}, "openflow")
    >>> seen = disturbed(samples, ReadErrors(skew_seconds=0.1, hidden_drops=0.5), seed=1)
    >>> seen.bytes_in, seen.bytes_out, seen.drops
    (array([    0,  8000, 16000]), array([  47, 5801, 6576]), array([0, 2, 4]))
    """
    random = np.random.default_rng(seed)
    skew_ns = random.uniform(-1.0, 1.0, len(samples)) * errors.skew_seconds * 1e9
    # From the first on: nanoseconds since 1970 are more than a float holds.
    since_ns = (samples.sampled_ns - samples.sampled_ns[:1]).astype(np.float64)
    return replace(
        samples,
        bytes_out=_read_late(skew_ns, since_ns, samples.bytes_out),
        packets_out=_read_late(skew_ns, since_ns, samples.packets_out),
        drops=np.floor(samples.drops * (1.0 - errors.hidden_drops)).astype(np.int64),
    )


class Disturbance:
    """The same errors, sample by sample as they are read: what will come is taken to grow as it did.

    >>> reading = Disturbance(ReadErrors(skew_seconds=0.1, hidden_drops=0.5), seed=1)
    >>> for second in range(3):
    ...     read = reading.read(Sample(10**9 * second, 9000 * second, 0, 8000 * second, 0, 10 * second, 1e6))
    ...     print(read.bytes_out, read.drops)
    0 0
    8720 5
    15431 10
    """

    def __init__(self, errors: ReadErrors, seed: int | Sequence[int]) -> None:
        self._errors, self._random = errors, np.random.default_rng(seed)
        self._last: Sample | None = None

    def read(self, sample: Sample) -> Sample:
        """What the switch shows instead."""
        last, self._last = self._last, sample
        skew_ns = self._random.uniform(-1.0, 1.0) * self._errors.skew_seconds * 1e9
        ahead = 0.0 if last is None else skew_ns / (sample.sampled_ns - last.sampled_ns)
        before = sample if last is None else last
        return replace(
            sample,
            bytes_out=sample.bytes_out + int(ahead * (sample.bytes_out - before.bytes_out)),
            packets_out=sample.packets_out + int(ahead * (sample.packets_out - before.packets_out)),
            drops=int(sample.drops * (1.0 - self._errors.hidden_drops)),
        )


def _read_late(
    skew_ns: NDArray[np.float64], since_ns: NDArray[np.float64], counter: NDArray[np.int64]
) -> NDArray[np.int64]:
    if not len(counter):
        return counter
    return np.floor(np.interp(since_ns + skew_ns, since_ns, counter)).astype(np.int64)
