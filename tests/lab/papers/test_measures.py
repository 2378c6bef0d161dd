"""The measures and baselines that the experiments rest on."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.variance import within_class_variance

from triagemq.errors import ParameterError
from triagemq.forecast import forecast, summary
from triagemq.lab.generators import table2
from triagemq.lab.papers.class_variance import lloyd, paper_variances
from triagemq.lab.papers.paper_model import paper_latency
from triagemq.lab.papers.runs import class_figures, forecast_figures
from triagemq.lab.papers.utility_gains import TIME_CONSTANTS, scan_freshness
from triagemq.plan import PriorityProblem, make_plan
from triagemq.scenario.building import building


@pytest.mark.parametrize("drops", ["none", "exponential"])
def test_class_figures_are_those_of_the_forecast_summary(drops: str) -> None:
    scenario = table2(seed=2, buffer_packets=2000)
    plan = make_plan(scenario, drops=drops)
    predicted = forecast(scenario, plan, formulas=True)
    figures = forecast_figures([plan.subscription_class], [predicted])
    for row in summary(scenario, plan, predicted)["classes"]:
        level = row["priority_class"]
        assert figures.success[level] == pytest.approx(row["success_rate"])
        expected = row["mean_latency_seconds"]
        assert figures.latency_seconds[level] == pytest.approx(
            np.nan if expected is None else expected, nan_ok=True
        )


def test_latency_is_weighted_by_what_arrives_and_unknown_where_nothing_does() -> None:
    level = np.array([0, 0, 1], dtype=np.int32)
    figures = class_figures(
        level, np.array([4.0, 4.0, 2.0]), np.array([3.0, 1.0, 0.0]), np.array([1.0, 5.0, np.nan])
    )
    assert figures.success.tolist() == [0.5, 0.0]
    assert figures.latency_seconds[0] == 2.0
    assert np.isnan(figures.latency_seconds[1])


def test_the_papers_model_equals_the_forecast_where_all_sizes_of_a_class_are_alike() -> None:
    scenario = table2(
        seed=3,
        size_means=(200, 200),
        size_ranges=((199.999, 200.001), (199.999, 200.001)),
        subscriptions=(70, 42),
    )
    plan = make_plan(scenario, drops="exponential")
    ours = forecast(scenario, plan, formulas=True).latency_seconds
    # A few microseconds remain: the paper leaves the batches at the switch's inbound queue out.
    assert np.allclose(paper_latency(scenario, plan), ours, rtol=1e-3, atol=5e-6)


def test_the_papers_model_is_lower_where_sizes_differ() -> None:
    scenario = table2(seed=3)
    plan = make_plan(scenario, drops="exponential")
    ratio = paper_latency(scenario, plan) / forecast(scenario, plan, formulas=True).latency_seconds
    assert ratio.min() > 0.6
    assert ratio.max() < 1


def test_the_papers_model_has_no_bound_for_an_overloaded_class() -> None:
    scenario = table2(seed=3)
    plan = make_plan(scenario, drops="none")
    latency = paper_latency(scenario, plan)
    assert np.isinf(latency[plan.subscription_class == 8]).all()
    assert np.isfinite(latency[plan.subscription_class == 0]).all()


def test_the_papers_model_is_refused_for_what_the_paper_does_not_model() -> None:
    scenario = building(seed=1)
    with pytest.raises(ParameterError, match="one broker and one managed switch"):
        paper_latency(scenario, make_plan(scenario))


def test_variances_agree_with_the_planner_and_with_the_printed_equations() -> None:
    random = np.random.default_rng(4)
    values, labels = (
        random.random((6, 20)),
        np.stack([random.permutation(20) % 5 for _ in range(6)]).astype(np.int32),
    )
    plain, weighted, between = paper_variances(values, labels, 5)
    for row in range(len(values)):
        assert plain[row] == pytest.approx(within_class_variance(values[row], labels[row]))
        classes = [values[row][labels[row] == level] for level in range(5)]
        shares = [len(each) / 20 for each in classes]
        assert weighted[row] == pytest.approx(
            sum(
                ((each - each.mean()) ** 2).sum() * share for each, share in zip(classes, shares, strict=True)
            )
        )
        assert between[row] == pytest.approx(
            sum(
                (values[row].mean() - each.mean()) ** 2 * share
                for each, share in zip(classes, shares, strict=True)
            )
        )


def test_lloyd_puts_every_value_into_the_class_of_the_nearest_mean() -> None:
    values = np.random.default_rng(5).random(70)
    labels = lloyd(PriorityProblem(values, np.zeros(70, dtype=np.int32), priority_classes=6, seed=1))
    present = np.unique(labels)
    means = np.array([values[labels == level].mean() for level in present])
    assert (np.diff(means) < 0).all(), "class 0 holds the highest values"
    nearest = present[np.abs(values[:, np.newaxis] - means).argmin(axis=1)]
    assert (nearest == labels).all()


def test_a_time_constant_that_gives_both_printed_gains_is_found() -> None:
    none = np.exp(-0.9 / TIME_CONSTANTS) * 0.6
    target = 37
    fresh = np.full((len(TIME_CONSTANTS), 1), 1.94 * none[target])
    scan = scan_freshness(("policy",), np.full(len(TIME_CONSTANTS), 1.94 / 1.42 * none[target]), none, fresh)
    assert scan.nearest() == (target, 0)
    assert scan.as_json()["gain_over_no_priorities"] == pytest.approx(0.94)
