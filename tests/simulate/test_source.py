"""What is published: rates and variability of every arrival process, sizes of every distribution, replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triagemq.errors import ParameterError
from triagemq.lab.generators import table2
from triagemq.scenario import ArrivalProcess, SizeDistribution, SizeSamples
from triagemq.simulate import Change, simulate
from triagemq.simulate.source import PublicationStream


def published(scenario: Any, plan: Any, sink: Any, **options: Any) -> dict[str, np.ndarray]:
    simulate(scenario, plan, sink=sink, **options)
    return sink.table("publications")


def dispersion(times_seconds: np.ndarray, window: float) -> tuple[float, float]:
    """The variance of counts in windows over their mean, and its standard error (normal approximation)."""
    windows = int(times_seconds[-1] / window)
    counts = np.histogram(times_seconds, bins=windows, range=(0, windows * window))[0]
    return counts.var(ddof=1) / counts.mean(), counts.var(ddof=1) / counts.mean() * np.sqrt(2 / windows)


def test_poisson_publications_have_their_rates(scenario_of: Any, plan_of: Any, memory_sink: Any) -> None:
    rates = np.array([5.0, 20.0, 75.0])
    scenario = scenario_of(topics=3, rates=rates)
    count = 200_000
    rows = published(scenario, plan_of(scenario), memory_sink(), publications=count)
    seen = np.bincount(rows["topic_id"], minlength=3)
    share = rates / rates.sum()
    assert (np.abs(seen - count * share) < 4 * np.sqrt(count * share * (1 - share))).all()
    seconds = rows["published_ns"] * 1e-9
    assert seconds[-1] == pytest.approx(count / rates.sum(), abs=4 * np.sqrt(count) / rates.sum())
    found, error = dispersion(seconds, 1.0)
    assert found == pytest.approx(1.0, abs=4 * error)
    gaps = np.diff(seconds)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=4 / np.sqrt(count))


def test_periodic_publications_tick(scenario_of: Any, plan_of: Any, memory_sink: Any) -> None:
    scenario = scenario_of(topics=2, rates=[10.0, 25.0], arrival_process=ArrivalProcess.PERIODIC)
    rows = published(scenario, plan_of(scenario), memory_sink(), publications=7_000)
    phases = []
    for topic, period_ns in ((0, 100_000_000), (1, 40_000_000)):
        times = rows["published_ns"][rows["topic_id"] == topic]
        assert np.abs(np.diff(times) - period_ns).max() <= 1
        phases.append(times[0] / period_ns)
        assert 0 <= phases[-1] <= 1
    assert abs(len(times) - 5_000) <= 1
    assert phases[0] != phases[1]


def test_pareto_publications_have_their_mean_and_tail(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    shape, rate, count = 3.5, 8.0, 200_000
    scenario = scenario_of(rates=rate, arrival_process=ArrivalProcess.PARETO, pareto_shape=shape)
    rows = published(scenario, plan_of(scenario), memory_sink(), publications=count)
    gaps = np.diff(rows["published_ns"]) * 1e-9
    smallest = (shape - 1) / (shape * rate)
    assert gaps.min() == pytest.approx(smallest, rel=1e-3)
    deviation = np.sqrt(1 / (shape * (shape - 2))) / rate
    assert gaps.mean() == pytest.approx(1 / rate, abs=4 * deviation / np.sqrt(count))
    beyond = (gaps > 2 * smallest).mean()
    assert beyond == pytest.approx(2.0**-shape, abs=4 * np.sqrt(2.0**-shape / count))


def test_many_pareto_publications_start_in_equilibrium(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    """As many events come early as late: no publication starts with its first interval at time 0."""
    topics, rate = 2000, 1.0
    scenario = scenario_of(topics=topics, rates=rate, arrival_process=ArrivalProcess.PARETO, pareto_shape=2.5)
    rows = published(scenario, plan_of(scenario), memory_sink(), duration_seconds=3.0)
    early = np.histogram(rows["published_ns"] * 1e-9, bins=6, range=(0, 3))[0]
    assert (np.abs(early - topics * rate * 0.5) < 4 * np.sqrt(topics * rate * 0.5)).all()


def test_on_off_publications_have_their_rate_and_burstiness(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    rate, on, off = 20.0, 0.5, 1.5
    scenario = scenario_of(rates=rate, arrival_process=ArrivalProcess.ON_OFF, on_seconds=on, off_seconds=off)
    count = 400_000
    rows = published(scenario, plan_of(scenario), memory_sink(), publications=count)
    seconds = rows["published_ns"] * 1e-9
    # Variance of counts over long windows per mean: 1 + 2 rate off^2 / (on + off), as for any interrupted Poisson.
    limit = 1 + 2 * rate * off**2 / (on + off)
    assert seconds[-1] == pytest.approx(count / rate, abs=4 * np.sqrt(count * limit) / rate)
    found, error = dispersion(seconds, 200.0)
    assert found == pytest.approx(limit, abs=4 * error)


def test_changed_rates_take_effect(scenario_of: Any, plan_of: Any, memory_sink: Any) -> None:
    scenario = scenario_of(
        topics=2, rates=[100.0, 50.0], arrival_process=[ArrivalProcess.POISSON, ArrivalProcess.PERIODIC]
    )
    changes = [
        Change(100.0, publication_rate=np.array([300.0, 0.0])),
        Change(200.0, publication_rate=np.array([0.0, 20.0])),
    ]
    rows = published(
        scenario, plan_of(scenario), memory_sink(), duration_seconds=300.0, changes=changes, warmup=0.0
    )
    seconds = rows["published_ns"] * 1e-9
    counts = [
        np.histogram(seconds[rows["topic_id"] == topic], bins=[0, 100, 200, 300])[0] for topic in (0, 1)
    ]
    expected = np.array([10_000, 30_000, 0])
    assert (np.abs(counts[0] - expected) <= 4 * np.sqrt(expected)).all()
    assert (np.abs(counts[1] - [5_000, 0, 2_000]) <= 1).all()


def test_sizes_follow_their_distributions(scenario_of: Any, plan_of: Any, memory_sink: Any) -> None:
    kinds = [SizeDistribution.EXPONENTIAL, SizeDistribution.CONSTANT, SizeDistribution.EMPIRICAL]
    samples = SizeSamples((np.array([10.0, 100.0, 1000.0]),), (np.array([5.0, 3.0, 2.0]),))
    scenario = scenario_of(
        topics=3,
        sizes=[5000.0, 70.0, 235.0],
        size_distribution=kinds,
        size_samples=[-1, -1, 0],
        samples=samples,
    )
    rows = published(scenario, plan_of(scenario), memory_sink(), publications=300_000)
    exponential, constant, empirical = (rows["size_bytes"][rows["topic_id"] == topic] for topic in range(3))
    many = len(exponential)
    assert exponential.mean() == pytest.approx(5000, abs=4 * 5000 / np.sqrt(many))
    assert exponential.std() == pytest.approx(5000, rel=4 * np.sqrt(2 / many))
    assert (exponential > 10_000).mean() == pytest.approx(np.exp(-2), abs=4 * np.sqrt(np.exp(-2) / many))
    assert set(constant) == {70}
    for size, share in ((10, 0.5), (100, 0.3), (1000, 0.2)):
        found = (empirical == size).mean()
        assert found == pytest.approx(share, abs=4 * np.sqrt(share / len(empirical)))


def test_a_replayed_event_sets_out_when_it_is_under_way_and_is_late_by_that(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = scenario_of(bandwidth=8e5)
    sink = memory_sink()
    replay = {
        "published_ns": np.array([5_000_000, 0]),
        "under_way_ns": np.array([6_000_000, 9_000_000]),
        "publication": np.array([0, 0]),
        "size_bytes": np.array([100, 100]),
    }
    simulate(scenario, plan_of(scenario, [0]), replay=replay, warmup=0.0, sink=sink)
    rows = sink.table("deliveries")
    order = np.argsort(rows["enqueued_ns"])
    assert rows["published_ns"][order].tolist() == [5_000_000, 0]
    assert np.allclose(rows["enqueued_ns"][order], [6e6, 9e6], atol=1e4)
    # A packet of 100 bytes takes a millisecond.
    assert np.allclose(rows["delivered_ns"][order], [7e6, 10e6], atol=1e4)
    with pytest.raises(ParameterError, match="under_way_ns"):
        simulate(scenario, plan_of(scenario, [0]), replay=replay | {"under_way_ns": np.array([0, 9_000_000])})


def test_a_stream_changes_its_rates_when_it_is_time() -> None:
    scenario = table2(seed=1)
    usual = scenario.publications.rate_per_second
    course = [(0.0, usual), (10.0, 3 * usual), (20.0, 0 * usual)]
    stream = PublicationStream(scenario, seed=1, rates=course)
    times = np.concatenate([stream.until(seconds)["published_ns"] for seconds in (7.0, 13.0, 40.0)]) * 1e-9
    assert (np.diff(times) >= 0).all()
    assert times.max() < 20
    expected = 10 * usual.sum() * np.array([1, 3])
    assert np.abs(np.histogram(times, [0, 10, 20])[0] - expected).max() < 5 * np.sqrt(expected.max())


def test_a_replay_of_a_run_is_the_run(scenario_of: Any, plan_of: Any, memory_sink: Any) -> None:
    scenario = scenario_of(
        topics=3, rates=[400.0, 300.0, 100.0], sizes=[900.0, 500.0, 100.0], switch_rate=2000.0, buffer=8.0
    )
    plan = plan_of(scenario, [0, 1, 2], [0.0, 0.1, 0.2])
    first, again = memory_sink(), memory_sink()
    simulate(scenario, plan, publications=5_000, seed=4, sink=first)
    rows = first.table("publications")
    # One publisher: the topic is the row of Publications.
    replay = {
        "published_ns": rows["published_ns"],
        "publication": rows["topic_id"],
        "size_bytes": rows["size_bytes"],
    }
    simulate(scenario, plan, replay=replay, seed=4, sink=again)
    for table in ("publications", "deliveries"):
        before, after = first.table(table), again.table(table)
        order = [
            np.lexsort((part.get("subscription_id"), part["publication_id"]))
            if table == "deliveries"
            else np.argsort(part["publication_id"])
            for part in (before, after)
        ]
        for name in before:
            assert (before[name][order[0]] == after[name][order[1]]).all(), (table, name)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"published_ns": [1], "publication": [0]}, "size_bytes"),
        ({"published_ns": [2, 1], "publication": [0, 0], "size_bytes": [1, 1]}, "order of time"),
        ({"published_ns": [1], "publication": [9], "size_bytes": [1]}, "publication must be"),
        ({"published_ns": [1.5], "publication": [0], "size_bytes": [1]}, "whole numbers"),
        ({"published_ns": [1], "publication": [0], "size_bytes": [np.nan]}, "size_bytes"),
        ({"published_ns": [], "publication": [], "size_bytes": []}, "no rows"),
    ],
)
def test_a_bad_replay_is_refused(table: Any, said: str, scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of()
    with pytest.raises(ParameterError, match=said):
        simulate(scenario, plan_of(scenario), replay=table)
