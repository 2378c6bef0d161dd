"""Thinned, superseded and expired copies: formulas, and samples where no formula is known, against runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triagemq.forecast import forecast
from triagemq.forecast.model import REASONS, Reason
from triagemq.plan import make_plan
from triagemq.scenario import Scenario, loads
from triagemq.simulate import simulate

HALL = """
brokers: {{hall: }}
switches: {{core: }}
ports: {{radio: {{switch: core, bandwidth_bps: {bandwidth}}}}}
publishers:
  room:
    publishes:
      fast: {{rate_per_second: 50, size_bytes: 100}}
      slow: {{rate_per_second: 10, size_bytes: 100}}
subscribers:
  chief: {{port: radio, subscribes: {{fast: {{utility: log:10{fast}}}, slow: {{utility: log:5{slow}}}}}}}
"""


def hall(bandwidth: float, fast: str = "", slow: str = "") -> Scenario:
    return loads(HALL.format(bandwidth=bandwidth, fast=fast, slow=slow))


def measured(scenario: Scenario) -> tuple[Any, Any]:
    plan = make_plan(scenario, drops="none")
    return plan, simulate(scenario, plan, duration_seconds=4_000, replications=4, seed=5).subscriptions


@pytest.mark.parametrize("most", [2.0, 20.0, 100.0])
def test_by_formula_thinning_has_the_rate_and_the_time_held_back_of_a_run(most: float) -> None:
    scenario = hall(1e7, fast=f", max_rate_per_second: {most}")
    plan, found = measured(scenario)
    predicted = forecast(scenario, plan, formulas=True)
    wanted = (found.count - found.thinned) / found.count * [50, 10]
    np.testing.assert_allclose(predicted.published_rate, wanted, rtol=0.01)
    np.testing.assert_allclose(predicted.success, found.success_rate, rtol=0.005)
    np.testing.assert_allclose(predicted.latency_seconds, found.mean_latency_seconds, rtol=0.02)


def test_by_formula_few_copies_expire_as_the_tail_of_the_wait_says() -> None:
    scenario = hall(8e4, fast=", expires_seconds: 0.08", slow=", expires_seconds: 0.3")
    plan, found = measured(scenario)
    predicted = forecast(scenario, plan, formulas=True)
    lost = found.expired / found.count
    assert 0.005 < lost[0] < 0.05
    np.testing.assert_allclose(1 - predicted.success, lost, rtol=0.2, atol=0.001)


@pytest.mark.parametrize(
    ("bandwidth", "fast", "slow"),
    [
        (6e4, ", newest_only: true", ""),
        (3e4, ", newest_only: true", ", newest_only: true"),
        (4e4, ", expires_seconds: 0.2", ", expires_seconds: 0.4"),
        (4e4, ", max_rate_per_second: 20, expires_seconds: 0.3", ", newest_only: true"),
        (4e4, "", ", expires_seconds: 0.4"),
    ],
)
def test_what_no_formula_knows_is_sampled_and_as_in_a_run(bandwidth: float, fast: str, slow: str) -> None:
    scenario = hall(bandwidth, fast, slow)
    plan, found = measured(scenario)
    predicted = forecast(scenario, plan)
    known = predicted.sampled
    assert known.any()
    wanted = found.count - found.thinned - found.superseded
    rates = wanted / found.count * [50, 10]
    np.testing.assert_allclose(predicted.success[known], found.success_rate[known], rtol=0.02, atol=0.005)
    np.testing.assert_allclose(predicted.latency_seconds[known], found.mean_latency_seconds[known], rtol=0.03)
    np.testing.assert_allclose(predicted.published_rate[known], rates[known], rtol=0.02)


def test_without_a_sample_the_reason_is_given() -> None:
    scenario = hall(4e4, ", newest_only: true")
    predicted = forecast(scenario, make_plan(scenario, drops="none"), formulas=True)
    assert REASONS[Reason.TERMS] in predicted.approximations
    assert not np.isinf(predicted.latency_seconds).any()
