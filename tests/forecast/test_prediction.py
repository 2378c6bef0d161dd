"""Where no formula is known, a sample of events tells: surer than the formulas, the same every time, and said so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from triagemq.forecast import Reason, explanation, forecast, prediction
from triagemq.lab.generators import table2
from triagemq.plan import make_plan
from triagemq.scenario import Scenario, loads
from triagemq.simulate import simulate

TREE = """
name: a trunk as fast as what hangs below it
brokers: {b: {}}
switches: {x: {}, y: {fed_by: trunk}}
ports:
  trunk: {switch: x, bandwidth_bps: 20000}
  leaf: {switch: y, bandwidth_bps: 20000}
  other: {switch: x, bandwidth_bps: 40000}
publishers:
  a:
    publishes:
      smoke: {rate_per_second: 4, size_bytes: 100, sizes: constant}
      water: {rate_per_second: 6, size_bytes: 100}
subscribers:
  below: {port: leaf, subscribes: {smoke: log:5, water: log:1}}
  below too: {port: leaf, subscribes: {smoke: log:5}}
  beside: {port: other, subscribes: {smoke: log:5, water: log:1}}
"""


@pytest.fixture(scope="module")
def tree() -> Scenario:
    return loads(TREE)


def test_queues_in_a_row_are_sampled_and_then_true(tree: Scenario) -> None:
    plan = make_plan(tree, drops="none")
    formulas, best = forecast(tree, plan, formulas=True), forecast(tree, plan)
    below = tree.subscribers.port[tree.subscriptions.subscriber] == tree.ports.name.index("leaf")
    assert (formulas.reason[below] == Reason.TANDEM).all()
    assert best.sampled.tolist() == below.tolist()
    assert best.reason.tolist() == [0] * len(below)
    found = simulate(tree, plan, duration_seconds=100_000, replications=8, seed=5, percentiles=True)
    told = found.subscriptions
    assert best.latency_seconds == pytest.approx(told.mean_latency_seconds, rel=0.02)
    assert best.percentile_seconds(0.95) == pytest.approx(told.p95_seconds, rel=0.05)
    assert best.percentile_seconds(0.99) == pytest.approx(told.p99_seconds, rel=0.05)
    # The port beside shares nothing with them: formulas are what they were.
    assert best.latency_seconds[~below].tolist() == formulas.latency_seconds[~below].tolist()


def test_a_sample_is_the_same_at_every_call(tree: Scenario) -> None:
    plan = make_plan(tree, drops="none")
    first, second = (forecast(tree, plan, most_copies=100_000) for _ in range(2))
    assert first.latency_seconds.tolist() == second.latency_seconds.tolist()


def test_what_a_short_sample_leaves_in_doubt_is_flagged_with_the_error_that_is_left(tree: Scenario) -> None:
    plan = make_plan(tree, drops="none")
    short, long = (forecast(tree, plan, most_copies=copies) for copies in (3_000, 10**6))
    assert short.latency_error.max() > prediction.CLAIMED
    assert short.approximations
    assert long.latency_error.max() == 0.0
    none = forecast(tree, plan, formulas=True)
    assert not none.sampled.any()
    assert none.latency_error.tolist() == forecast(tree, plan, formulas=True).latency_error.tolist()


def test_where_formulas_hold_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_follow", lambda *_: pytest.fail("sampled"))
    scenario = table2(seed=2, subscribers=4, subscriptions=(20, 10))
    plan = make_plan(scenario)
    best, formulas = forecast(scenario, plan), forecast(scenario, plan, formulas=True)
    for name in ("success", "latency_seconds", "utility", "reason", "latency_error"):
        assert getattr(best, name).tolist() == getattr(formulas, name).tolist()


def test_an_overloaded_queue_stays_endless_whatever_a_sample_would_find() -> None:
    slow = loads(
        TREE.replace("leaf: {switch: y, bandwidth_bps: 20000}", "leaf: {switch: y, bandwidth_bps: 8000}")
    )
    plan = make_plan(slow, drops="none")
    best = forecast(slow, plan, most_copies=100_000)
    endless = np.isinf(forecast(slow, plan, formulas=True).latency_seconds)
    assert endless.any()
    assert np.isinf(best.latency_seconds[endless]).all()
    assert not best.sampled[endless].any()


def test_what_waits_behind_a_full_buffer_is_known_by_the_sample() -> None:
    full = loads(TREE.replace("bandwidth_bps: 40000}", "bandwidth_bps: 7000, buffer_packets: 10}"))
    plan = make_plan(full, drops="none")
    beside = full.subscribers.port[full.subscriptions.subscriber] == full.ports.name.index("other")
    best = forecast(full, plan)
    told = simulate(full, plan, duration_seconds=50_000, replications=4, seed=9).subscriptions
    assert best.sampled[beside].all()
    assert best.success[beside] == pytest.approx(told.success_rate[beside], rel=0.02)
    assert best.latency_seconds[beside] == pytest.approx(told.mean_latency_seconds[beside], rel=0.03)


def test_a_formula_that_promises_far_more_than_a_sample_sees_is_refuted_by_it() -> None:
    """Too few arrive for a good estimate, and its error says so."""
    starved = loads(
        TREE.replace(
            "other: {switch: x, bandwidth_bps: 40000}",
            "other: {switch: x, bandwidth_bps: 2600, buffer_packets: 10}",
        )
    )
    plan = make_plan(starved, drops="none")
    formulas = forecast(starved, plan, formulas=True)
    beside = starved.subscribers.port[starved.subscriptions.subscriber] == starved.ports.name.index("other")
    water = beside & (starved.subscriptions.topic == starved.topics.name.index("water"))
    told = simulate(starved, plan, duration_seconds=10**6, seed=9).subscriptions.success_rate[water]
    assert 1e-4 < told < 5e-3
    wrong = replace(
        formulas,
        success=np.where(water, 0.05, formulas.success),
        success_error=np.where(water, 0.5, formulas.success_error),
        latency_seconds=np.where(water, 1.0, formulas.latency_seconds),
        latency_error=np.where(water, 0.0, formulas.latency_error),
    )
    found = prediction._sampled(starved, plan, wrong, water, 8_000, None)
    assert 0 < found.success[water] < 0.02
    assert found.success_error[water] > 0.5


def test_an_explanation_says_that_it_is_from_a_sample(tree: Scenario) -> None:
    plan = make_plan(tree, drops="none")
    best = forecast(tree, plan, most_copies=10**6)
    below, beside = (
        explanation(tree, plan, who, "water", best)["explanation"] for who in ("below", "beside")
    )
    assert "from a sample of events" in below
    assert "sample" not in beside
