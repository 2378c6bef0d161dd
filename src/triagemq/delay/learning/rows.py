"""What a model learns from: rows of features, the delay that came next, and which of them grow trees and which judge.

Runs are split in two ways. The last fifth of the time of a run judges: it stops the growing and chooses among
parameters. Some runs of each kind of traffic are held out altogether, and say how good the model is in the end. Nothing
is shuffled: neighbours in time are so alike that a model could know the one from the other.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.delay.learning.features import SwitchConstants, anchor_seconds, feature_names, feature_rows
from triagemq.delay.read_errors import ReadErrors, disturbed
from triagemq.delay.samples import Samples

JUDGING_SHARE = 0.2
"""Of the time of each run, the last part; and of the runs of each kind of traffic, those that are held out."""


@dataclass(frozen=True, slots=True, eq=False)
class LearningRows:
    """Features, the delay that came next, and whether the row judges instead of growing trees."""

    features: NDArray[np.float32]
    delay_seconds: NDArray[np.float64]
    judges: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.delay_seconds)

    def take(self, rows: NDArray[np.bool_]) -> LearningRows:
        """Some of the rows."""
        return LearningRows(self.features[rows], self.delay_seconds[rows], self.judges[rows])

    def columns(self, counters: str) -> dict[str, NDArray[Any]]:
        """All of it by name, each feature a column."""
        features = dict(zip(feature_names(counters), self.features.T.copy(), strict=True))
        known = {"judges": self.judges, "delay_seconds": self.delay_seconds}
        return {**known, "difference_seconds": self.differences(counters), **features}

    def differences(self, counters: str) -> NDArray[np.float64]:
        """What trees learn: by how much the delay differs from its anchor."""
        return self.delay_seconds - anchor_seconds(self.features, counters)


def learning_rows(
    samples: Samples,
    next_delay_seconds: ArrayLike,
    *,
    switch: SwitchConstants | None = None,
    errors: Sequence[ReadErrors | None] = (None,),
    seed: int = 0,
) -> LearningRows:
    """The rows of one queue in one run: those with features after which packets came, read with each of the errors.

    >>> samples = Samples.of({"sampled_ns": np.arange(6) * 200_000_000, "width_bps": [8e6] * 6,
    ...     **{name: np.arange(6) for name in ("bytes_in", "packets_in", "bytes_out", "packets_out", "drops")}},
    ...     "openflow")
    >>> rows = learning_rows(samples, [0.1, 0.1, 0.1, np.nan, 0.1, 0.1])
    >>> len(rows), rows.judges.tolist()
    (4, [False, False, False, True])
    """
    delay = np.asarray(next_delay_seconds, np.float64)
    known = np.isfinite(delay)
    # The first sample says nothing of what was gained.
    known[:1] = False
    seen = [samples if each is None else disturbed(samples, each, seed) for each in errors]
    found = [
        LearningRows(feature_rows(each, switch)[known], delay[known], judging(samples.sampled_ns)[known])
        for each in seen
    ]
    return together(found, samples.counters)


def together(rows: Sequence[LearningRows], counters: str) -> LearningRows:
    """The rows of several queues and runs as one."""
    empty = LearningRows(
        np.empty((0, len(feature_names(counters))), np.float32), np.empty(0), np.empty(0, np.bool_)
    )
    columns = ([getattr(each, field.name) for each in (empty, *rows)] for field in fields(LearningRows))
    return LearningRows(*(np.concatenate(each) for each in columns))


def judging(sampled_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each sample of a run is of the last part of its time."""
    if not len(sampled_ns):
        return np.empty(0, np.bool_)
    first, last = int(sampled_ns[0]), int(sampled_ns[-1])
    return np.asarray(sampled_ns - first > (1.0 - JUDGING_SHARE) * (last - first))


def held_out(kinds: Mapping[str, str]) -> frozenset[str]:
    """Of the runs of each kind of traffic a fifth, but at least one where there are two; the same for the same ids.

    >>> sorted(held_out({"a": "poisson", "b": "poisson", "c": "poisson", "d": "pareto"}))
    ['c']
    """
    runs = defaultdict(list)
    for run_id, kind in kinds.items():
        runs[kind].append(run_id)
    found: set[str] = set()
    for of_kind in runs.values():
        count = max(int(JUDGING_SHARE * len(of_kind)), int(len(of_kind) > 1))
        found.update(sorted(of_kind, key=lambda run_id: hashlib.sha256(run_id.encode()).digest())[:count])
    return frozenset(found)
