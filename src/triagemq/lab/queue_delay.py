"""Queueing delay in experiments: further estimators, read errors of switches, and models grown in this process.

The estimators are those of the paper, and `model`: the wait by queueing theory from the rate, sizes and burstiness that
are measured, and by overload that lasts. It needs no counter of departures but to see that a queue borrows, so that
reads of different moments do not matter.

Rows, parameters and choice of these models are those of `triage pipeline train`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.estimators import ESTIMATORS, Estimator, drained_seconds
from triagemq.delay.learning.features import anchor_seconds, feature_names
from triagemq.delay.learning.models import DelayModel, Trees, read_trees
from triagemq.delay.learning.training import (
    EVAL_METRIC,
    GRID,
    MOST_TREES,
    Grown,
    LearningRows,
    ParameterSet,
    check_enough,
    grown_of,
)
from triagemq.delay.samples import (
    INTERVAL_SECONDS,
    SMOOTHING,
    Increment,
    Increments,
    Sample,
    Samples,
    check_counters,
)
from triagemq.errors import ModelError, ParameterError
from triagemq.theory import gg1_factor, priority_waits

if TYPE_CHECKING:
    from triagemq.trace import Columns, Trace


class _AverageQueue:
    """Delay from the mean of what a queue holds: (4) with (6)."""

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        if not 0 < smoothing <= 1:
            raise ParameterError("smoothing", f"is {smoothing:g}; must be above 0 and at most 1")
        self._smoothing = smoothing
        self._average_bytes = 0.0
        self._width_bps = float("inf")

    def _average(self, queue_bytes: float) -> None:
        self._average_bytes += self._smoothing * (queue_bytes - self._average_bytes)

    @property
    def now_seconds(self) -> float:
        return drained_seconds(self._average_bytes, self._width_bps)

    @property
    def next_seconds(self) -> float:
        return self.now_seconds


class Red(_AverageQueue):
    """avgQ = (1 - w) avgQ + w (enQ - deQ), delay = avgQ / width: (4) to (6).

    Its errors are the point of comparing it: what the buffer ever dropped counts as queued for good, and so does what
    the two counters differ by since they were read at different moments.

    >>> red = Red(smoothing=1.0)
    >>> red.feed(Sample(0, bytes_in=5000, packets_in=5, bytes_out=1000, packets_out=1, drops=3, width_bps=8e6))
    >>> red.now_seconds  # of the 4000 bytes that did not go out, the buffer dropped 3000
    0.004
    """

    def feed(self, sample: Sample) -> None:
        self._average(sample.bytes_in - sample.bytes_out)
        self._width_bps = sample.width_bps


class PaperIncrementalDifference(_AverageQueue):
    """qLen = dEnQ - dDeQ + qLen, then as `red`: (7) with (4) and (6).

    The sum of increments is what `red` has, less what both counters showed in the first sample: losses still add up. It
    stays for the comparison; `idm` is what the method should be. A switch that was restarted is
    the one thing that is treated better than in print: its queue is empty then.

    >>> printed = PaperIncrementalDifference(smoothing=1.0)
    >>> printed.feed(Sample(0, 5000, 5, 1000, 1, drops=3, width_bps=8e6))
    >>> printed.now_seconds
    0.0
    >>> printed.feed(Sample(200_000_000, 9000, 9, 3000, 3, drops=4, width_bps=8e6))
    >>> printed.now_seconds  # 2000 bytes more, of which the buffer dropped 1000
    0.002
    """

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        super().__init__(smoothing)
        self._increments = Increments()
        self._queue_bytes = 0.0

    def feed(self, sample: Sample) -> None:
        self._width_bps = sample.width_bps
        gained = self._increments.after(sample)
        if gained is None:
            return
        if gained.restarted:
            self._queue_bytes = 0.0
        self._queue_bytes += gained.bytes_in - gained.bytes_out
        self._average(self._queue_bytes)


SPAN = 25
"""Windows that rate, sizes and burstiness are taken from: 5 s."""


class QueueingModel:
    """The larger of two delays: that of chance, and that of overload.

    Chance: the G/G/1 wait (docs/background/theory.md), at the width's service rate. The variability of arrivals is the
    index of dispersion of packets per window, that of sizes what bytes per window vary by beyond their packets. Near
    full load this wait takes forever to build up. In a window of t seconds chance builds up sqrt(2 v t / pi), with v
    the variance of work that comes per second (Brownian motion held above zero), and no more is assumed: what takes
    longer than a window is seen, and is overload.

    Overload: bytes that came, without those dropped, less what the width can send, never below zero.

    >>> model = QueueingModel()
    >>> for second in range(30):  # 1.5 times the width for a second, then 0.75 times
    ...     packets = 150 * min(second, 1) + 75 * max(second - 1, 0)
    ...     model.feed(Sample(10**9 * second, 1000 * packets, packets, 0, 0, 0, width_bps=800e3))
    ...     if second == 1:
    ...         print(round(model.now_seconds, 3))
    0.5
    >>> model.now_seconds < 0.01
    True
    """

    def __init__(self, buffer_bytes: float = math.inf) -> None:
        self._buffer_bytes = buffer_bytes
        self._increments = Increments()
        self._recent: deque[Increment] = deque(maxlen=SPAN)
        self._overload_bytes = 0.0
        self._chance_seconds = 0.0
        self._width_bps = math.inf

    def feed(self, sample: Sample) -> None:
        self._width_bps = sample.width_bps
        gained = self._increments.after(sample)
        if gained is None:
            return
        if gained.restarted:
            self._recent.clear()
            self._overload_bytes = 0.0
        self._recent.append(gained)
        # A queue that sends more than its width has borrowed it.
        sent = max(sample.width_bps * gained.seconds / 8.0, gained.bytes_out)
        left = self._overload_bytes + gained.bytes_in - gained.dropped_bytes - sent
        self._overload_bytes = min(max(0.0, left), self._buffer_bytes)
        self._chance_seconds = 0.0 if gained.silent else _chance_seconds(self._recent, sample.width_bps)

    @property
    def now_seconds(self) -> float:
        delay = max(drained_seconds(self._overload_bytes, self._width_bps), self._chance_seconds)
        return min(delay, drained_seconds(self._buffer_bytes, self._width_bps))

    @property
    def next_seconds(self) -> float:
        return self.now_seconds


def _chance_seconds(windows: deque[Increment], width_bps: float) -> float:
    seconds = sum(window.seconds for window in windows)
    packets = sum(window.packets_in for window in windows)
    size_bytes = sum(window.bytes_in for window in windows)
    if packets == 0 or size_bytes == 0 or math.isinf(width_bps):
        return 0.0
    rate, mean_bytes = packets / seconds, size_bytes / packets
    service = 8.0 * mean_bytes / width_bps
    # One degree of freedom goes to each mean. A window of several intervals (lost samples) counts as what it is.
    freedom = max(len(windows) - 1, 1)
    ca2 = sum((w.packets_in - rate * w.seconds) ** 2 / (rate * w.seconds) for w in windows) / freedom
    cs2 = sum((w.bytes_in - mean_bytes * w.packets_in) ** 2 / w.packets_in for w in windows if w.packets_in)
    cs2 /= freedom * mean_bytes**2
    wait = float(priority_waits([rate], service, cs2, [0])[0]) * float(gg1_factor(ca2, cs2))
    built_up = math.sqrt(2.0 * rate * service**2 * (ca2 + cs2) * INTERVAL_SECONDS / math.pi)
    return min(wait, built_up)


EVERY_ESTIMATOR: Mapping[str, Callable[..., Estimator]] = MappingProxyType(
    {"red": Red, "idm-paper": PaperIncrementalDifference, **ESTIMATORS, "model": QueueingModel}
)
"""Those of the product and of experiments, by name."""


def only(samples: Samples, counters: str) -> Samples:
    """The samples of a switch with this set of counters."""
    if "backlog_bytes" in check_counters(counters):
        return samples
    return replace(samples, backlog_bytes=None, backlog_packets=None)


def by_queue(queue_samples: Columns, counters: str) -> dict[tuple[int, int], Samples]:
    """The samples of each queue, by port_id and queue, from the columns of the Trace's table.

    >>> from triagemq.delay.samples import COUNTER_SETS
    >>> columns = {"port_id": [0, 0, 0], "queue": [0, 1, 0], "sampled_ns": [200, 0, 0], "width_bps": [-1, 8, -1],
    ...     **{name: [2, 1, 0] for name in COUNTER_SETS["linux"]}}
    >>> queues = by_queue(columns, "linux")
    >>> queues[0, 0].bytes_in, queues[0, 0].width_bps, len(queues[0, 1])
    (array([0, 2]), array([inf, inf]), 1)
    """
    arrays = {name: np.asarray(values) for name, values in queue_samples.items()}
    order = np.lexsort((arrays["sampled_ns"], arrays["queue"], arrays["port_id"]))
    ports, queues = arrays["port_id"][order], arrays["queue"][order]
    starts = np.flatnonzero((np.diff(ports) != 0) | (np.diff(queues) != 0)) + 1
    return {
        (int(arrays["port_id"][rows[0]]), int(arrays["queue"][rows[0]])): Samples.of(
            {name: values[rows] for name, values in arrays.items()}, counters
        )
        for rows in np.split(order, starts)
        if len(rows)
    }


def of_trace(trace: Trace, counters: str) -> dict[tuple[int, int], Samples]:
    """The samples of each queue of a run."""
    table = trace.table(
        "queue_samples", ["port_id", "queue", "sampled_ns", *check_counters(counters), "width_bps"]
    )
    columns = {
        name: table.column(name).combine_chunks().fill_null(-1).to_numpy() for name in table.column_names
    }
    return by_queue(columns, counters)


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

    def disturbed(self, samples: Samples, seed: int) -> Samples:
        """The samples as a switch with these errors shows them; the same for the same seed."""
        return disturbed(samples, self, seed)

    def reader(self, seed: Sequence[int]) -> Callable[[Sample], Sample]:
        """The same, sample by sample as they are read."""
        return Disturbance(self, seed).read

    def as_json(self) -> dict[str, float]:
        """As models store what they were trained with."""
        return asdict(self)


def disturbed(samples: Samples, errors: ReadErrors, seed: int) -> Samples:
    """The samples as a switch with these errors shows them; the same for the same seed.

    Between two samples counters grow evenly, for all that is known. The backlog, where there is one, is read with
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


def grow(
    rows: LearningRows, counters: str, parameters: ParameterSet, *, seed: int = 0, metric: str = EVAL_METRIC
) -> Grown:
    """Trees of these parameters, as many as the validation rows found useful by xgboost's `metric`."""
    import xgboost

    training, validation = (
        (each.features, each.differences(counters))
        for each in (rows.take(~rows.validates), rows.take(rows.validates))
    )
    names = list(feature_names(counters))
    matrix = xgboost.QuantileDMatrix(training[0], label=training[1], feature_names=names)
    validates = xgboost.QuantileDMatrix(validation[0], label=validation[1], feature_names=names, ref=matrix)
    booster = xgboost.train(
        {**parameters.options(seed), "eval_metric": metric},
        matrix,
        MOST_TREES,
        evals=[(validates, "validation")],
        early_stopping_rounds=parameters.early_stopping_rounds,
        verbose_eval=False,
    )
    return grown_of(booster, parameters)


def best_of(
    rows: LearningRows,
    counters: str,
    sets: Sequence[ParameterSet] = GRID,
    *,
    seed: int = 0,
    on_grown: Callable[[], None] = lambda: None,
) -> tuple[Grown, tuple[Grown, ...]]:
    """The best of the grid by the validation rows, and all of it."""
    validation = int(rows.validates.sum())
    check_enough(len(rows) - validation, validation)
    found = []
    for parameters in sets:
        found.append(grow(rows, counters, parameters, seed=seed))
        on_grown()
    return min(found, key=lambda each: each.validation_seconds), tuple(found)


def predict_rows(trees: Trees, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The predictions for many rows."""
    if rows.ndim != 2 or rows.shape[1] != trees.features:
        raise ModelError(f"rows have the shape {rows.shape}; the trees take {trees.features} features")
    return np.array([trees.predict(row) for row in np.ascontiguousarray(rows, np.float32)], np.float32)


def predicted_seconds(trees: Trees, features: NDArray[np.float32], counters: str) -> NDArray[np.float64]:
    """The delay that follows on each row: as a model in use says it."""
    predicted = anchor_seconds(features, counters).astype(np.float64) + predict_rows(trees, features)
    return np.maximum(0.0, predicted)


def errors_of(trees_json: bytes, rows: LearningRows, counters: str) -> dict[str, float]:
    """How far a model is from the truth in some rows: mean absolute and root mean square, in seconds."""
    difference = predicted_seconds(read_trees(trees_json), rows.features, counters) - rows.delay_seconds
    return {
        "rows": len(rows),
        "mean_absolute_seconds": float(np.abs(difference).mean()) if len(rows) else float("nan"),
        "root_mean_square_seconds": float(np.sqrt((difference**2).mean())) if len(rows) else float("nan"),
    }


def ranges_of(features: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
    """The smallest and the largest value of every feature; NaN of one that was never known."""
    known = np.isfinite(features)
    smallest = np.where(known, features, np.inf).min(axis=0, initial=np.inf)
    largest = np.where(known, features, -np.inf).max(axis=0, initial=-np.inf)
    return tuple(
        (float(low), float(high)) if low <= high else (float("nan"), float("nan"))
        for low, high in zip(smallest, largest, strict=True)
    )


def model_of(
    best: Grown, grid: Sequence[Grown], rows: LearningRows, counters: str, **facts: Any
) -> DelayModel:
    """The best of a grid as a model; `facts` are written with it."""
    about = {**facts, "chosen": best.as_json(), "grid": [each.as_json() for each in grid]}
    return DelayModel(counters, read_trees(best.trees_json), ranges_of(rows.features), about)
