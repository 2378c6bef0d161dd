"""Forecast beside simulation: what is judged, what is outside, and whether a forecast is as true as it claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triagemq.errors import ParameterError
from triagemq.forecast import REASONS, Reason, forecast
from triagemq.lab import fidelity
from triagemq.lab.fidelity import Figure, compare
from triagemq.plan import make_plan
from triagemq.scenario import loads

# Every topic has a port of its own: M/M/1 and M/D/1 queues, of which the forecast is exact.
SCENARIO = """
brokers: {hall: }
switches: {core: }
ports:
  first: {switch: core, bandwidth_bps: 80000}
  second: {switch: core, bandwidth_bps: 80000}
publishers:
  sensor:
    publishes:
      smoke: {rate_per_second: 40, size_bytes: 100}
      water: {rate_per_second: 60, size_bytes: 100, sizes: constant}
subscribers:
  commander: {port: first, subscribes: {smoke: log:10}}
  engine: {port: second, subscribes: {water: log:1}}
"""


@pytest.fixture(scope="module")
def scenario() -> Any:
    return loads(SCENARIO, "two queues")


@pytest.mark.parametrize("kind", ["subscription", "class"])
def test_an_exact_forecast_holds(scenario: Any, kind: Any) -> None:
    found = compare(
        scenario, make_plan(scenario), kind=kind, duration_seconds=2000.0, replications=8, seed=1, threads=1
    )
    assert found.holds
    assert found.counts() == {
        "cells": 2 if kind == "subscription" else 1,
        "judged": 2 if kind == "subscription" else 1,
        "flagged": 0,
        "outside_unflagged": 0,
        "outside_flagged": 0,
        "not_known": 0,
    }
    assert found.simulated_seconds == 16_000.0
    for row in found.rows():
        assert row["success"]["simulated"] > 0.999
        assert row["latency"]["error"] < 0.02
        assert 0 < row["latency"]["ci95"] < 0.02 * row["latency"]["simulated"]
        assert row["flag"] is None
        for name in ("p95", "p99"):
            assert row[name]["known"]
            assert row[name]["error"] < 0.1
    assert found.percentiles == ("p95", "p99")


def doubting(error: float, reason: Reason) -> Any:
    """A forecaster that is half as large again as the truth, and says so or not."""

    def wrong(scenario: Any, plan: Any, **_: Any) -> Any:
        right = forecast(scenario, plan, formulas=True)
        count = len(right.success)
        return replace(
            right,
            latency_seconds=1.5 * right.latency_seconds,
            reason=np.full(count, reason, dtype=np.int8),
            latency_error=np.full(count, error),
        )

    return wrong


@pytest.mark.parametrize("kind", ["subscription", "class"])
def test_a_wrong_figure_counts_against_the_forecast_unless_it_is_flagged(
    scenario: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(scenario)
    for error, reason in ((0.0, Reason.NONE), (0.5, Reason.BUFFER)):
        monkeypatch.setattr(fidelity, "forecast", doubting(error, reason))
        found = compare(scenario, plan, kind=kind, duration_seconds=200.0, replications=8, threads=1)
        told = found.counts()
        wrong, silent = ("outside_flagged", "outside_unflagged")[:: 1 if error else -1]
        assert told[wrong] == told["judged"] == len(found)
        assert told[silent] == 0
        assert found.holds == bool(error)
        assert all(row["flag"] == (REASONS[reason] or None) for row in found.rows())
        assert all(row["latency"]["error"] == pytest.approx(0.5, abs=0.15) for row in found.rows())


def test_figures_that_are_not_known_or_have_no_end_are_not_judged() -> None:
    figure = Figure(
        forecast=np.array([1.0, 1.0, np.inf, np.nan, 0.0, 0.5, 0.01]),
        simulated=np.array([2.0, 2.0, 5.0, np.nan, 0.0, 0.0, 0.0]),
        interval=np.array([0.6, 0.05, 0.1, np.nan, 0.0, 0.0, np.nan]),
        expected_error=np.zeros(7),
    )
    assert figure.comparable.tolist() == [False, True, False, False, True, True, False]
    assert figure.not_known.tolist() == [True, False, False, False, False, False, True]
    assert figure.outside.tolist() == [False, True, False, False, False, True, False]
    assert np.isnan(figure.error[[0, 2, 3, 6]]).all()
    # Of nothing, a forecast of something is wrong by all of itself.
    assert figure.error[[1, 4, 5]].tolist() == [0.5, 0.0, 1.0]


def test_a_difference_far_beyond_a_wide_interval_is_outside() -> None:
    figure = Figure(
        forecast=np.array([0.048, 0.028]),
        simulated=np.array([0.024, 0.024]),
        interval=np.array([0.005, 0.005]),
        expected_error=np.zeros(2),
    )
    assert figure.known.tolist() == [False, False]
    assert figure.outside.tolist() == [True, False]
    assert figure.not_known.tolist() == [False, True]


def test_an_interval_needs_two_runs(scenario: Any) -> None:
    with pytest.raises(ParameterError, match="2 or more"):
        compare(scenario, make_plan(scenario), replications=1)
