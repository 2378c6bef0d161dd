"""The queues of a Trace, read errors of switches, and models that are grown in this process."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.delay.feeds import queue_feed

from triagemq.delay.learning.features import anchor_seconds
from triagemq.delay.learning.training import MOST_TREES, PAPER, LearningRows, learning_rows, together
from triagemq.delay.samples import COUNTER_SETS
from triagemq.errors import ParameterError
from triagemq.lab.queue_delay import (
    ReadErrors,
    best_of,
    by_queue,
    disturbed,
    errors_of,
    grow,
    model_of,
    of_trace,
    only,
    ranges_of,
)
from triagemq.trace import Trace, TraceWriter

DEPTH_2 = replace(PAPER[0], name="depth-2", max_depth=2, early_stopping_rounds=5)


def test_the_queues_of_a_trace_come_apart_in_order_of_time(tmp_path: Path) -> None:
    counted = {name: np.array([7, 3, 0, 5]) for name in COUNTER_SETS["linux"]}
    with TraceWriter(tmp_path, scenario_text="topics: []", plan_text=None, producer="test") as writer:
        writer.queue_samples(
            {
                "port_id": np.array([1, 0, 0, 1]),
                "queue": np.array([2, 0, 0, 2]),
                "sampled_ns": np.array([400, 400, 200, 200]),
                "width_bps": np.array([10_000, -1, -1, 20_000]),
                **counted,
            }
        )
        writer.finish(measured_from_ns=0)
    queues = of_trace(Trace.open(tmp_path), "linux")
    assert list(queues) == [(0, 0), (1, 2)]
    assert queues[1, 2].width_bps.tolist() == [20_000.0, 10_000.0]
    assert queues[0, 0].width_bps.tolist() == [math.inf, math.inf]
    assert queues[0, 0].backlog_bytes is not None
    assert queues[0, 0].backlog_bytes.tolist() == [0, 3]
    hidden = of_trace(Trace.open(tmp_path), "openflow")[1, 2]
    assert hidden.counters == "openflow"
    assert [(sample.bytes_in, sample.backlog_bytes) for sample in hidden] == [(5, None), (7, None)]


def test_a_trace_without_samples_has_no_queues() -> None:
    assert by_queue({name: [] for name in ("port_id", "queue", "sampled_ns", "width_bps")}, "openflow") == {}


def test_without_errors_samples_are_as_they_were() -> None:
    feed = queue_feed([300] * 10, buffer_packets=100)
    seen = disturbed(feed, ReadErrors(0.0, 0.0), seed=9)
    assert [*seen] == [*feed]


def test_errors_are_as_large_as_stated_and_repeat_with_their_seed() -> None:
    feed = queue_feed([300] * 500, buffer_packets=100)
    errors = ReadErrors(skew_seconds=0.05, hidden_drops=0.25)
    seen = disturbed(feed, errors, seed=4)
    # The queue sends a megabyte a second: bytes that are off are seconds that it was read early or late.
    off_seconds = (seen.bytes_out - feed.bytes_out)[1:-1] / 1e6
    assert np.abs(off_seconds).max() <= 0.05
    assert np.std(off_seconds) == pytest.approx(0.1 / math.sqrt(12), rel=0.05)
    assert seen.drops[-1] == math.floor(0.75 * feed.drops[-1])
    assert (seen.bytes_in == feed.bytes_in).all()
    assert [*disturbed(feed, errors, seed=4)] == [*seen]
    assert [*disturbed(feed, errors, seed=5)] != [*seen]


def test_impossible_errors_are_refused() -> None:
    with pytest.raises(ParameterError, match="skew_seconds"):
        ReadErrors(skew_seconds=0.2)
    with pytest.raises(ParameterError, match="hidden_drops"):
        ReadErrors(hidden_drops=1.5)


def _rows(runs: int = 6, windows: int = 200) -> LearningRows:
    random = np.random.default_rng(1)
    found: list[LearningRows] = []
    for _ in range(runs):
        samples = queue_feed(random.poisson(random.uniform(150, 230), windows), buffer_packets=500)
        assert samples.backlog_bytes is not None
        delay = np.append(8.0 * samples.backlog_bytes[1:] / samples.width_bps[1:] + 0.001, np.nan)
        found.append(
            learning_rows(only(samples, "openflow"), delay, errors=(ReadErrors(), None), seed=len(found))
        )
    return together(found, "openflow")


def test_growth_stops_early_and_only_trees_up_to_the_best_are_kept() -> None:
    rows = _rows()
    grown = grow(rows, "openflow", DEPTH_2)
    assert 0 < grown.trees < MOST_TREES
    kept = json.loads(grown.trees_json)["learner"]["gradient_booster"]["model"]["trees"]
    assert len(kept) == grown.trees
    # The error in the validation rows is what a model in use is off by, but for delays below zero.
    validated = errors_of(grown.trees_json, rows.take(rows.validates), "openflow")
    assert validated["mean_absolute_seconds"] == pytest.approx(grown.validation_seconds, rel=0.02)


def test_the_best_of_the_grid_is_nearer_than_the_anchor() -> None:
    rows = _rows()
    best, grid = best_of(rows, "openflow", (DEPTH_2, replace(DEPTH_2, name="one", max_depth=1)))
    assert best.validation_seconds == min(each.validation_seconds for each in grid)
    validation = rows.take(rows.validates)
    anchor = np.abs(anchor_seconds(validation.features, "openflow") - validation.delay_seconds).mean()
    assert best.validation_seconds < anchor
    model = model_of(best, grid, rows, "openflow", trained="today")
    assert model.about["trained"] == "today"
    assert [each["parameters"] for each in model.about["grid"]] == ["depth-2", "one"]
    assert str(model.ranges) == str(ranges_of(rows.features))


def test_too_few_rows_are_refused_in_one_line() -> None:
    with pytest.raises(ParameterError, match="too few, of 500 and 100; give longer runs"):
        best_of(_rows(runs=1, windows=50), "openflow")
