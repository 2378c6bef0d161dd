"""How long one prediction of queueing delay takes: flat trees walked by a kernel, beside xgboost in the same run.

The trees have the paper's best set of parameters, and are grown on the features of a busy queue, some of them missing.
The median of many single predictions counts; those for many rows are compared value by value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from measuring import finish, machine, options
from triagemq.delay.estimators import Learned
from triagemq.delay.learning.features import feature_names, feature_rows
from triagemq.delay.learning.models import DelayModel, Trees, read_trees
from triagemq.delay.samples import Samples
from triagemq.lab.queue_delay import predict_rows

COUNTERS = "linux"
PAPER = {"max_depth": 4, "eta": 0.1, "min_child_weight": 10, "subsample": 0.7, "colsample_bytree": 0.7}
"""The first row of Shi et al., Table 2, but for scale_pos_weight, which regression does not know."""

ROUNDS = 200
MISSING = 0.1
COMPARED_ROWS = 10_000


def main() -> None:
    arguments = options(__doc__).parse_args()
    found = measure(2_000 if arguments.quick else 20_000)
    finish(found, described(found), as_json=arguments.json)


def measure(times: int) -> dict[str, Any]:
    samples, delays = busy_queue(COMPARED_ROWS)
    rows = feature_rows(samples)
    random = np.random.default_rng(2)
    rows[random.random(rows.shape) < MISSING] = np.nan
    booster = xgboost.train(
        {**PAPER, "nthread": 1, "seed": 1}, xgboost.DMatrix(rows, label=delays), num_boost_round=ROUNDS
    )
    trees = read_trees(booster.save_raw("json"))
    differences = np.abs(predict_rows(trees, rows) - booster.inplace_predict(rows))
    booster.set_param({"nthread": 1})
    ours = median_seconds(trees.predict, rows, times)
    theirs = median_seconds(booster.inplace_predict, rows[:, np.newaxis], max(times // 20, 100))
    return {
        "machine": machine("triagemq", "numba", "numpy", "xgboost-cpu"),
        "trees": len(trees.roots),
        "nodes": len(trees.values),
        "features": len(feature_names(COUNTERS)),
        "compared_rows": len(rows),
        "missing_values": int(np.isnan(rows).sum()),
        "largest_difference": float(differences.max()),
        "median_seconds": ours,
        "xgboost_median_seconds": theirs,
        "times_faster": theirs / ours,
        "sample_to_delay_median_seconds": fed_seconds(trees, samples),
    }


def busy_queue(windows: int) -> tuple[Samples, NDArray[np.float64]]:
    """Samples of a queue whose load wanders about its width, and what each window's packets waited."""
    random = np.random.default_rng(1)
    load = 1.0 + 0.3 * np.sin(np.arange(windows) / 40) + random.normal(0, 0.1, windows)
    packets = random.poisson(np.maximum(load, 0.0) * 200)
    held, sent = 0, np.zeros(windows, np.int64)
    backlog = np.zeros(windows, np.int64)
    dropped = np.zeros(windows, np.int64)
    for window, came in enumerate(packets):
        sent[window] = min(held + came, 200)
        left = held + came - sent[window]
        held = backlog[window] = min(left, 900)
        dropped[window] = left - held
    columns = {
        "sampled_ns": np.arange(windows) * 200_000_000,
        "width_bps": np.full(windows, 8e6),
        "packets_in": np.cumsum(packets),
        "bytes_in": 1000 * np.cumsum(packets),
        "packets_out": np.cumsum(sent),
        "bytes_out": 1000 * np.cumsum(sent),
        "drops": np.cumsum(dropped),
        "backlog_packets": backlog,
        "backlog_bytes": 1000 * backlog,
    }
    return Samples.of(columns, COUNTERS), np.multiply(backlog, 1e-3, dtype=np.float64)


def median_seconds(predict: Callable[[Any], object], rows: NDArray[np.float32], times: int) -> float:
    predict(rows[0])
    taken = np.empty(times)
    for number in range(times):
        row = rows[number % len(rows)]
        started = time.perf_counter()
        predict(row)
        taken[number] = time.perf_counter() - started
    return float(np.median(taken))


def fed_seconds(trees: Trees, samples: Samples) -> float:
    """From a sample to the delay: increments, features, periods, trees."""
    estimator = Learned(DelayModel(COUNTERS, trees, (), {}))
    taken = []
    for sample in samples:
        started = time.perf_counter()
        estimator.feed(sample)
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def described(found: dict[str, Any]) -> list[str]:
    return [
        f"{found['trees']} trees, {found['nodes']} nodes, {found['features']} features",
        f"one prediction    {found['median_seconds'] * 1e6:8.2f} µs (median)",
        f"inplace_predict   {found['xgboost_median_seconds'] * 1e6:8.2f} µs, {found['times_faster']:.0f} times as long",
        f"sample to delay   {found['sample_to_delay_median_seconds'] * 1e6:8.2f} µs, with all features",
        f"largest difference over {found['compared_rows']} rows with {found['missing_values']} missing values: "
        f"{found['largest_difference']:.1e} s",
    ]


if __name__ == "__main__":
    main()
