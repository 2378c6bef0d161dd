"""Learning: what judges is later than what is learned from, growing stops, and the best of the grid is taken."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.delay.feeds import queue_feed

from triagemq.delay.learning.features import anchor_seconds
from triagemq.delay.learning.training import (
    GRID,
    MOST_TREES,
    PAPER,
    LearningRows,
    chosen_sets,
    held_out,
    learning_rows,
    together,
)
from triagemq.errors import ParameterError
from triagemq.lab.queue_delay import ReadErrors, best_of, errors_of, grow, model_of, ranges_of

DEPTH_2 = replace(PAPER[0], name="depth-2", max_depth=2, early_stopping_rounds=5)


def _rows(runs: int = 6, windows: int = 200) -> LearningRows:
    random = np.random.default_rng(1)
    found: list[LearningRows] = []
    for _ in range(runs):
        samples = queue_feed(random.poisson(random.uniform(150, 230), windows), buffer_packets=500)
        assert samples.backlog_bytes is not None
        delay = np.append(8.0 * samples.backlog_bytes[1:] / samples.width_bps[1:] + 0.001, np.nan)
        found.append(
            learning_rows(samples.only("openflow"), delay, errors=(ReadErrors(), None), seed=len(found))
        )
    return together(found, "openflow")


def test_rows_that_judge_are_the_last_fifth_of_the_time_of_each_run() -> None:
    samples = queue_feed([100] * 100)
    rows = learning_rows(samples, np.append(np.arange(100.0), np.nan))
    assert rows.delay_seconds[rows.judges].min() == 81
    assert rows.delay_seconds[~rows.judges].max() == 80
    assert len(rows) == 99  # the first has no features, after the last nothing is known


def test_read_errors_change_what_is_seen_and_not_what_is_true() -> None:
    samples = queue_feed(np.random.default_rng(1).poisson(190, 50), "openflow")
    delay = np.full(51, 0.1)
    clean = learning_rows(samples, delay)
    both = learning_rows(samples, delay, errors=(None, ReadErrors()), seed=3)
    assert np.array_equal(both.features[:50], clean.features, equal_nan=True)
    assert not np.array_equal(both.features[50:], clean.features, equal_nan=True)
    assert both.delay_seconds.tolist() == [0.1] * 100


def test_some_runs_of_each_kind_are_held_out_whatever_the_order() -> None:
    kinds = {f"run-{number}": ("poisson", "pareto")[number % 2] for number in range(20)}
    found = held_out(kinds)
    assert sorted(kinds[run] for run in found) == ["pareto", "pareto", "poisson", "poisson"]
    assert held_out(dict(reversed(kinds.items()))) == found
    assert held_out({"alone": "poisson"}) == frozenset()


def test_growing_stops_early_and_only_trees_up_to_the_best_are_kept() -> None:
    rows = _rows()
    grown = grow(rows, "openflow", DEPTH_2)
    assert 0 < grown.trees < MOST_TREES
    kept = json.loads(grown.trees_json)["learner"]["gradient_booster"]["model"]["trees"]
    assert len(kept) == grown.trees
    # What the judging rows said of it is what a model in use is off by, but for delays below zero.
    judged = errors_of(grown.trees_json, rows.take(rows.judges), "openflow")
    assert judged["mean_absolute_seconds"] == pytest.approx(grown.judged_seconds, rel=0.02)


def test_the_best_of_the_grid_is_nearer_than_the_anchor() -> None:
    rows = _rows()
    best, grid = best_of(rows, "openflow", (DEPTH_2, replace(DEPTH_2, name="one", max_depth=1)))
    assert best.judged_seconds == min(each.judged_seconds for each in grid)
    judges = rows.take(rows.judges)
    anchor = np.abs(anchor_seconds(judges.features, "openflow") - judges.delay_seconds).mean()
    assert best.judged_seconds < anchor
    model = model_of(best, grid, rows, "openflow", trained="today")
    assert model.about["trained"] == "today"
    assert [each["parameters"] for each in model.about["grid"]] == ["depth-2", "one"]
    assert str(model.ranges) == str(ranges_of(rows.features))


def test_the_papers_sets_are_in_the_grid() -> None:
    assert [(each.max_depth, each.early_stopping_rounds, each.subsample) for each in GRID[:3]] == [
        (4, 30, 0.7),
        (6, 40, 0.7),
        (10, 50, 1.0),
    ]
    assert chosen_sets(None) == GRID
    with pytest.raises(ParameterError, match="'shi-4' is no set; there are shi-1, shi-2"):
        chosen_sets("shi-1,shi-4")


def test_too_few_rows_are_refused_in_one_line() -> None:
    with pytest.raises(ParameterError, match="too few, of 500 and 100; give longer runs"):
        best_of(_rows(runs=1, windows=50), "openflow")
