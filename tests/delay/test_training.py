"""Training: validation rows are later than training rows, runs are held out, and the grid is known."""

from __future__ import annotations

import numpy as np
import pytest
from tests.delay.feeds import queue_feed

from triagemq.delay.learning.training import (
    GRID,
    chosen_sets,
    held_out,
    learning_rows,
)
from triagemq.errors import ParameterError
from triagemq.lab.queue_delay import ReadErrors


def test_validation_rows_are_the_last_fifth_of_the_time_of_each_run() -> None:
    samples = queue_feed([100] * 100)
    rows = learning_rows(samples, np.append(np.arange(100.0), np.nan))
    assert rows.delay_seconds[rows.validates].min() == 81
    assert rows.delay_seconds[~rows.validates].max() == 80
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


def test_the_papers_sets_are_in_the_grid() -> None:
    assert [(each.max_depth, each.early_stopping_rounds, each.subsample) for each in GRID[:3]] == [
        (4, 30, 0.7),
        (6, 40, 0.7),
        (10, 50, 1.0),
    ]
    assert chosen_sets(None) == GRID
    with pytest.raises(ParameterError, match="'shi-4' is no set; there are shi-1, shi-2"):
        chosen_sets("shi-1,shi-4")
