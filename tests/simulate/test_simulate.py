"""simulate() as a user meets it: results, reproducibility, precision, traces, interruption, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triagemq.errors import ParameterError, PlanError
from triagemq.lab.generators import table2
from triagemq.scenario import SendingOrder
from triagemq.simulate import Change, simulate
from triagemq.trace import TABLES, Outcome


@pytest.fixture(scope="module")
def busy() -> Any:
    """Table 2 with small buffers, so that every kind of ending but the link errors occurs."""
    return table2(seed=1, buffer_packets=20)


def classes_of(scenario: Any) -> np.ndarray:
    return np.arange(len(scenario.subscriptions)) % 9


def figures(result: Any) -> dict[str, Any]:
    told = result.as_json()
    return {name: told[name] for name in told if name not in ("wall_seconds", "compile_seconds")}


def test_block_size_changes_nothing(busy: Any, plan_of: Any) -> None:
    plan = plan_of(busy, classes_of(busy), 0.2)
    results = [
        figures(simulate(busy, plan, publications=3_000, seed=2, block_events=size)) for size in (None, 1, 37)
    ]
    assert results[0] == results[1] == results[2]


def test_the_number_of_threads_changes_nothing(busy: Any, plan_of: Any) -> None:
    plan = plan_of(busy, classes_of(busy))
    results = [
        figures(simulate(busy, plan, publications=2_000, seed=2, replications=5, threads=threads))
        for threads in (1, 2, 4)
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 100), marks=pytest.mark.slow)])
def test_trees_are_the_same_whatever_the_blocks_and_threads(seeds: range, tree_of: Any, plan_of: Any) -> None:
    """Copies under way outgrow every buffer in large blocks, and none in small ones."""
    for seed in seeds:
        scenario = tree_of(seed)
        classes = np.random.default_rng(seed).integers(0, 4, len(scenario.subscriptions))
        plan = plan_of(scenario, classes, 0.1)
        first, *others = (
            figures(
                simulate(
                    scenario,
                    plan,
                    publications=400,
                    seed=seed,
                    replications=2,
                    block_events=block_events,
                    threads=threads,
                )
            )
            for block_events, threads in ((3, 1), (None, 2), (10_000, 3))
        )
        assert all(other == first for other in others), f"tree {seed}"


def test_seeds_and_replications_differ(busy: Any, plan_of: Any) -> None:
    plan = plan_of(busy)
    first, second = (simulate(busy, plan, publications=2_000, seed=seed) for seed in (1, 2))
    assert first.classes.mean_latency_seconds[0] != second.classes.mean_latency_seconds[0]
    both = simulate(busy, plan, publications=2_000, seed=1, replications=2)
    assert both.publications == 4_000
    assert both.classes.mean_latency_seconds[0] != first.classes.mean_latency_seconds[0]


def test_two_plans_see_the_same_publications(busy: Any, plan_of: Any, memory_sink: Any) -> None:
    sinks = [memory_sink(), memory_sink()]
    for sink, drop in zip(sinks, (0.0, 0.5), strict=True):
        simulate(busy, plan_of(busy, classes_of(busy), drop), publications=1_000, seed=3, sink=sink)
    first, second = (sink.table("publications") for sink in sinks)
    assert all((first[name] == second[name]).all() for name in first)


def test_every_copy_ends_once_and_counts_add_up(busy: Any, plan_of: Any, memory_sink: Any) -> None:
    sink = memory_sink()
    result = simulate(busy, plan_of(busy, classes_of(busy), 0.1), publications=4_000, warmup=0.0, sink=sink)
    rows, events = sink.table("deliveries"), sink.table("publications")
    pairs = rows["publication_id"] * len(busy.subscriptions) + rows["subscription_id"]
    assert len(np.unique(pairs)) == len(pairs)
    subscribed = np.bincount(busy.subscriptions.topic, minlength=len(busy.topics))
    assert len(pairs) == subscribed[events["topic_id"]].sum() == result.copies
    seen = set(rows["outcome"].tolist())
    assert seen == {Outcome.delivered, Outcome.dropped_by_policy, Outcome.dropped_by_buffer}
    assert result.subscriptions.count.sum() == result.classes.count.sum() == result.copies


def test_figures_are_those_of_the_trace(busy: Any, plan_of: Any, memory_sink: Any) -> None:
    sink = memory_sink()
    result = simulate(busy, plan_of(busy, classes_of(busy), 0.1), publications=4_000, sink=sink)
    rows = sink.table("deliveries")
    measured = rows["published_ns"] >= result.measured_from_ns
    assert 0 < measured.sum() < len(measured)
    for place, priority_class in enumerate(result.classes.priority_class):
        own = measured & (rows["priority_class"] == priority_class)
        delivered = own & (rows["outcome"] == Outcome.delivered)
        latency = rows["delivered_ns"][delivered] - rows["published_ns"][delivered]
        assert result.classes.count[place] == own.sum()
        assert result.classes.delivered[place] == delivered.sum()
        assert result.classes.mean_latency_seconds[place] == float(latency.sum()) / delivered.sum() * 1e-9
        assert result.classes.max_seconds[place] == latency.max() * 1e-9
        for share, found in ((0.5, result.classes.p50_seconds), (0.99, result.classes.p99_seconds)):
            exact = np.quantile(latency, share, method="inverted_cdf") * 1e-9
            assert found[place] == pytest.approx(exact, rel=1 / 128)
    for times, later in (("published_ns", "enqueued_ns"), ("enqueued_ns", "dequeued_ns")):
        known = (rows[later] >= 0) & (rows[times] >= 0)
        assert (rows[times][known] <= rows[later][known]).all()


def test_percentiles_of_subscriptions_are_those_of_the_trace(
    busy: Any, plan_of: Any, memory_sink: Any
) -> None:
    sink = memory_sink()
    plan = plan_of(busy, classes_of(busy))
    found = simulate(busy, plan, publications=4_000, warmup=0.0, percentiles=True, sink=sink).subscriptions
    rows = sink.table("deliveries")
    delivered = rows["outcome"] == Outcome.delivered
    latency = (rows["delivered_ns"] - rows["published_ns"])[delivered]
    for row in range(0, len(found), 100):
        own = latency[rows["subscription_id"][delivered] == row]
        for share, name in ((0.95, "p95_seconds"), (0.99, "p99_seconds")):
            exact = np.quantile(own, share, method="inverted_cdf") * 1e-9
            assert getattr(found, name)[row] == pytest.approx(exact, rel=1 / 64)
    both = simulate(busy, plan, publications=4_000, percentiles=True, replications=3, threads=1)
    assert (both.subscriptions.p95_ci95_seconds > 0).mean() > 0.8
    assert (both.classes.p99_ci95_seconds > 0).all()
    plain = simulate(busy, plan, publications=400, replications=2, threads=1)
    assert np.isnan(plain.subscriptions.p95_seconds).all()


def test_queue_samples_add_up(busy: Any, plan_of: Any, memory_sink: Any) -> None:
    sink = memory_sink()
    simulate(busy, plan_of(busy, classes_of(busy), 0.1), publications=12_000, sink=sink)
    rows = sink.table("queue_samples")
    assert set(np.diff(np.unique(rows["sampled_ns"]))) == {200_000_000}
    assert (rows["packets_in"] == rows["packets_out"] + rows["drops"] + rows["backlog_packets"]).all()
    at_once = np.unique(rows["sampled_ns"], return_counts=True)[1]
    assert (at_once == len(busy.ports) * 9).all()
    together = rows["backlog_packets"].reshape(-1, 9).sum(axis=1)
    assert together.max() <= 20
    # The first sample, from the deliveries: what has come by then, and what has left.
    deliveries = sink.table("deliveries")
    instant = int(rows["sampled_ns"].min())
    port = busy.subscribers.port[deliveries["subscriber_id"]]
    for row in np.flatnonzero(rows["sampled_ns"] == instant):
        own = (port == rows["port_id"][row]) & (deliveries["priority_class"] == rows["queue"][row])
        left = own & (deliveries["dequeued_ns"] >= 0) & (deliveries["dequeued_ns"] <= instant)
        assert rows["packets_out"][row] == left.sum()


def test_columns_are_those_of_the_trace_schema(busy: Any, plan_of: Any, memory_sink: Any) -> None:
    sink = memory_sink(with_hops=True)
    simulate(busy, plan_of(busy, classes_of(busy), 0.1), publications=3_000, sink=sink)
    for table in ("publications", "deliveries", "queue_samples", "hops"):
        assert list(sink.table(table)) == TABLES[table].names
    hops, rows = sink.table("hops"), sink.table("deliveries")
    assert len(hops["hop"]) == (rows["outcome"] != Outcome.dropped_by_policy).sum()


def test_a_trace_that_nobody_asked_for_changes_nothing(busy: Any, plan_of: Any, memory_sink: Any) -> None:
    plan = plan_of(busy, classes_of(busy), 0.1)
    told = [
        figures(simulate(busy, plan, publications=2_000, sink=sink)) for sink in (None, memory_sink(True))
    ]
    assert told[0] == told[1]


def test_results_are_plain_json(busy: Any, plan_of: Any) -> None:
    told = simulate(busy, plan_of(busy, 0, 1.0), publications=1_000).as_json()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["deliveries"] == 0
    assert told["classes"][0]["success_rate"] == 0.0
    assert told["classes"][0]["mean_latency_seconds"] is None
    assert told["utility"]["achieved"] == 0.0


def test_intervals_hold_the_truth(scenario_of: Any, plan_of: Any) -> None:
    """M/M/1 through the whole path: 95 % intervals, by batches and by replications, miss about one time in twenty."""
    scenario = scenario_of(rates=600.0, sizes=1000.0, size_distribution=0)
    plan, truth = plan_of(scenario), 1 / (1000 - 600)
    for replications, publications in ((1, 40_000), (10, 4_000)):
        missed = 0
        for seed in range(60):
            found = simulate(
                scenario, plan, publications=publications, replications=replications, seed=seed, threads=1
            ).classes
            missed += abs(found.mean_latency_seconds[0] - truth) > found.ci95_seconds[0]
        # Batches of a finite run are slightly correlated; ten in sixty would be 16 %.
        assert missed <= 9


def test_utilisation_is_that_of_the_load(scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of(rates=700.0, sizes=1000.0)
    found = simulate(scenario, plan_of(scenario), publications=200_000)
    assert found.ports.utilisation[0] == pytest.approx(0.7, abs=4 * 0.7 / np.sqrt(180_000))


def test_precision_adds_replications_until_it_is_reached(scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of(topics=2, rates=[300.0, 300.0], sizes=1000.0, size_distribution=0)
    found = simulate(scenario, plan_of(scenario, [0, 1]), publications=20_000, precision=0.02)
    assert found.precision_reached
    assert found.replications > 8
    assert (found.classes.ci95_seconds <= 0.02 * found.classes.mean_latency_seconds).all()


def test_precision_says_when_it_gives_up(
    scenario_of: Any, plan_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triagemq.simulate.run.MOST_REPLICATIONS", 16)
    scenario = scenario_of(rates=900.0, sizes=1000.0, size_distribution=0)
    found = simulate(scenario, plan_of(scenario), publications=500, precision=0.001)
    assert found.precision_reached is False
    assert found.replications == 16


@pytest.mark.parametrize("where", ["port", "lookup"])
def test_an_unstable_queue_is_drained_and_what_comes_late_is_no_success(
    where: str, scenario_of: Any, plan_of: Any
) -> None:
    """Twice the load, no buffer limit: everything arrives in the end, half of it after the last publication."""
    slow = {"port": {"bandwidth": 8e6}, "lookup": {"bandwidth": 8e8, "switch_rate": 1000.0}}
    scenario = scenario_of(rates=2000.0, sizes=1000.0, **slow[where])
    found = simulate(scenario, plan_of(scenario), publications=50_000, warmup=0.0, replications=2)
    assert found.deliveries == 100_000
    assert found.classes.max_seconds[0] == pytest.approx(25.0, rel=0.05)
    assert found.late_excluded
    assert found.drained_seconds == pytest.approx(25.0, rel=0.05)
    assert found.late_deliveries == found.classes.late[0] == found.subscriptions.late[0]
    assert found.subscriptions.success_rate[0] == pytest.approx(0.5, rel=0.05)
    assert found.classes.success_rate[0] == pytest.approx(1 - found.late_deliveries / 100_000)
    assert 0 < found.classes.success_ci95[0] < 0.2
    assert found.utility.rate == pytest.approx(np.log(1.5) / np.log(2), rel=0.05)
    counted = simulate(
        scenario, plan_of(scenario), publications=50_000, warmup=0.0, replications=2, late_counts=True
    )
    assert not counted.late_excluded
    assert counted.classes.success_rate[0] == 1.0
    assert counted.late_deliveries == found.late_deliveries


def test_the_last_copies_of_a_stable_run_are_a_success(scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of(rates=600.0, sizes=1000.0, subscriber_propagation=0.01)
    found = simulate(scenario, plan_of(scenario), publications=5_000)
    assert 0 < found.late_deliveries < 100
    assert not found.late_excluded
    assert found.classes.success_rate[0] == 1.0
    assert 0.01 < found.drained_seconds < 0.1


def test_a_port_that_sends_half_of_what_comes_is_busy_all_the_time(scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of(rates=2000.0, sizes=1000.0)
    found = simulate(scenario, plan_of(scenario), publications=50_000, warmup=0.0)
    assert found.ports.utilisation[0] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("extent", [{"publications": 30_000}, {"duration_seconds": 50.0}])
def test_a_port_behind_a_switch_that_is_too_slow_is_as_busy_as_what_the_switch_passes(
    scenario_of: Any, plan_of: Any, extent: dict[str, float]
) -> None:
    scenario = scenario_of(rates=600.0, sizes=1000.0, switch_rate=200.0)
    found = simulate(scenario, plan_of(scenario), **extent)
    assert found.ports.utilisation[0] == pytest.approx(0.2, rel=0.05)


def test_a_run_that_is_cut_off_leaves_copies_in_flight(scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of(rates=2000.0, sizes=1000.0)
    found = simulate(scenario, plan_of(scenario), duration_seconds=10.0, warmup=0.0)
    assert found.simulated_seconds == 10.0
    # The port sends 1000 a second whenever it is busy, which is nearly always; the last one may be on the wire.
    busy_seconds = found.ports.utilisation[0] * 10.0
    assert 0 <= busy_seconds * 1000 - found.deliveries <= 1
    assert busy_seconds > 9.9
    assert found.subscriptions.in_flight[0] == found.copies - found.deliveries


def test_fragments_take_their_overhead_and_arrive_together(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = scenario_of(sizes=2500.0, mtu=1040.0, overhead=40.0, bandwidth=8e6)
    sink = memory_sink()
    replay = {"published_ns": [0, 10_000_000], "publication": [0, 0], "size_bytes": [2500.0, 1000.0]}
    simulate(scenario, plan_of(scenario), replay=replay, warmup=0.0, sink=sink)
    rows = sink.table("deliveries")
    order = np.argsort(rows["publication_id"])
    latency = (rows["delivered_ns"] - rows["published_ns"])[order]
    assert latency.tolist() == [(2500 + 3 * 40) * 1000, 1040 * 1000]


@pytest.mark.parametrize("outbound_rate", [np.inf, 1e6], ids=["at once", "after a microsecond"])
@pytest.mark.parametrize(
    ("order", "transmissions"),
    [
        # Class 0 goes first, class 1 second, class 2 last.
        (SendingOrder.BY_CLASS, [1.0, 2.0, 3.0]),
        # Each is first a third of the time; the other two follow in the order of their classes.
        (SendingOrder.RANDOM, [(1 + 2 + 2) / 3, (2 + 1 + 3) / 3, (3 + 3 + 1) / 3]),
    ],
    ids=["by class", "random"],
)
def test_copies_of_one_event_come_to_an_idle_port_in_their_sending_order(
    order: SendingOrder, transmissions: list[float], outbound_rate: float, scenario_of: Any, plan_of: Any
) -> None:
    scenario = scenario_of(
        sizes=1000.0,
        bandwidth=8e6,
        outbound_rate=outbound_rate,
        subscriber_broker=(0, 0, 0),
        subscriber_port=(0, 0, 0),
        subscriptions=[(0, 0), (1, 0), (2, 0)],
        sending_order=order,
    )
    events = 3000
    replay = {
        "published_ns": np.arange(events) * 10_000_000,
        "publication": np.zeros(events, dtype=np.int64),
        "size_bytes": np.full(events, 1000.0),
    }
    found = simulate(scenario, plan_of(scenario, [2, 0, 1]), replay=replay, warmup=0.0)
    milliseconds = found.subscriptions.mean_latency_seconds[[1, 2, 0]] * 1000
    # A draw of thirds has a standard deviation below 1; outbound times are microseconds.
    tolerance = 0.002 + (0 if order is SendingOrder.BY_CLASS else 4 / np.sqrt(events))
    assert milliseconds == pytest.approx(transmissions, abs=tolerance)


def test_copies_of_one_class_take_turns_in_being_first(scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of(
        sizes=1000.0,
        bandwidth=8e6,
        subscriber_broker=(0,) * 4,
        subscriber_port=(0,) * 4,
        subscriptions=[(each, 0) for each in range(4)],
        rates=1.0,
    )
    found = simulate(scenario, plan_of(scenario), publications=4000, seed=3)
    milliseconds = found.subscriptions.mean_latency_seconds * 1000
    assert milliseconds == pytest.approx([2.5] * 4, abs=4 * np.sqrt(1.25 / 3600) + 0.01)


def test_a_fragment_lost_in_the_buffer_loses_the_event(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = scenario_of(mtu=1000.0, buffer=2.0)
    sink = memory_sink()
    replay = {"published_ns": [0, 10_000_000], "publication": [0, 0], "size_bytes": [2500.0, 2000.0]}
    simulate(scenario, plan_of(scenario), replay=replay, warmup=0.0, sink=sink)
    rows = sink.table("deliveries")
    assert rows["outcome"][np.argsort(rows["publication_id"])].tolist() == [
        Outcome.dropped_by_buffer,
        Outcome.delivered,
    ]


def test_subscriptions_that_leave_get_nothing_more(scenario_of: Any, plan_of: Any, memory_sink: Any) -> None:
    scenario = scenario_of(topics=2, rates=[500.0, 500.0], sizes=1000.0, subscriber_propagation=0.05)
    sink = memory_sink()
    leaving = Change(5.0, active_subscriptions=np.array([True, False]))
    simulate(scenario, plan_of(scenario), duration_seconds=10.0, warmup=0.0, changes=[leaving], sink=sink)
    rows = sink.table("deliveries")
    gone = rows["outcome"] == Outcome.subscriber_gone
    assert set(rows["subscription_id"][gone]) == {1}
    assert rows["published_ns"][rows["subscription_id"] == 1].max() < 5e9
    assert rows["published_ns"][gone].min() > 4.8e9
    delivered = (rows["outcome"] == Outcome.delivered) & (rows["subscription_id"] == 1)
    assert rows["delivered_ns"][delivered].max() < 5e9


def test_a_new_plan_is_recorded_with_its_reasons(scenario_of: Any, plan_of: Any, memory_sink: Any) -> None:
    from dataclasses import replace

    from triagemq.plan.model import Decision

    scenario = scenario_of(topics=2, rates=50.0)
    reason = Decision("drop_rate", "subscriber0000", "0", "0.5", "too much")
    later = replace(plan_of(scenario, [1, 0], 0.5), decisions=(reason,))
    sink = memory_sink()
    simulate(
        scenario,
        plan_of(scenario, [0, 1]),
        duration_seconds=4.0,
        changes=[Change(2.0, plan=later)],
        sink=sink,
    )
    assert sink.table("decisions")["decided_ns"].tolist() == [2_000_000_000]
    assert sink.table("decisions")["reason"].tolist() == ["too much"]
    rows = sink.table("deliveries")
    before = rows["published_ns"] < 2e9
    assert (rows["priority_class"][before] == rows["subscription_id"][before]).all()
    assert (rows["priority_class"][~before] == 1 - rows["subscription_id"][~before]).all()


def test_a_plan_for_another_scenario_is_refused(scenario_of: Any, plan_of: Any) -> None:
    scenario, other = scenario_of(rates=1.0), scenario_of(rates=2.0)
    with pytest.raises(PlanError, match="another scenario"):
        simulate(scenario, plan_of(other))
    with pytest.raises(PlanError, match="another scenario"):
        simulate(scenario, plan_of(scenario), changes=[Change(1.0, plan=plan_of(other))])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"publications": 0}, "publications"),
        ({"duration_seconds": -1.0}, "duration_seconds"),
        ({"warmup": 1.0}, "warmup"),
        ({"replications": 0}, "replications"),
        ({"precision": 0.0}, "precision"),
        ({"threads": 0}, "threads"),
        ({"block_events": 0}, "block_events"),
        ({"changes": [Change(1.0, bandwidth_bps=np.array([0.0]))]}, "bandwidth_bps"),
        ({"changes": [Change(1.0, publication_rate=np.array([1.0, 2.0]))]}, "publication_rate"),
        ({"changes": [Change(-1.0)]}, "at_seconds"),
    ],
)
def test_impossible_requests_are_refused(
    options: dict[str, Any], named: str, scenario_of: Any, plan_of: Any
) -> None:
    scenario = scenario_of()
    with pytest.raises(ParameterError, match=named):
        simulate(scenario, plan_of(scenario), **{"publications": 10, **options})


def test_more_classes_than_a_port_can_hold_are_refused(scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of()
    with pytest.raises(ParameterError, match="65 priority classes"):
        simulate(scenario, plan_of(scenario, 64), publications=10)


def test_all_64_classes_work(scenario_of: Any, plan_of: Any) -> None:
    scenario = scenario_of(topics=64, rates=20.0, sizes=1000.0, buffer=30.0)
    found = simulate(scenario, plan_of(scenario, np.arange(64)), publications=50_000)
    assert found.classes.priority_class.tolist() == list(range(64))
    assert found.classes.success_rate[0] == 1.0
    assert found.classes.success_rate[63] < 0.1


def test_a_trace_takes_one_replication(scenario_of: Any, plan_of: Any, memory_sink: Any) -> None:
    scenario = scenario_of()
    with pytest.raises(ParameterError, match="one replication"):
        simulate(scenario, plan_of(scenario), replications=2, sink=memory_sink())


def test_progress_grows_to_one(busy: Any, plan_of: Any) -> None:
    for options in ({}, {"replications": 3}):
        seen: list[float] = []
        simulate(busy, plan_of(busy), publications=20_000, progress=seen.append, **options)  # type: ignore[arg-type]
        assert seen == sorted(seen)
        assert seen[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("replications", [1, 4])
def test_an_interruption_stops_the_run(busy: Any, plan_of: Any, replications: int) -> None:
    def interrupt(share: float) -> None:
        if share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(busy, plan_of(busy), publications=10**9, replications=replications, progress=interrupt)


def test_a_sink_that_fails_stops_the_run(busy: Any, plan_of: Any, memory_sink: Any) -> None:
    class Full(memory_sink):  # type: ignore[misc]
        def deliveries(self, columns: Any) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        simulate(busy, plan_of(busy), publications=10**9, sink=Full())


def with_terms(scenario: Any, **columns: Any) -> Any:
    wanted = scenario.subscriptions
    stated = {
        name: np.full(len(wanted), value, getattr(wanted, name).dtype) for name, value in columns.items()
    }
    return scenario.with_tables(subscriptions=replace(wanted, **stated))


def test_a_fast_topic_is_thinned_evenly_to_its_rate_and_success_counts_what_was_wanted(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = scenario_of(publications=((0, 0),), subscriptions=((0, 0),))
    scenario = with_terms(scenario, max_rate_per_second=2.0)
    sink, times = memory_sink(), np.arange(1_000) * 20_000_000
    replay = {"published_ns": times, "publication": np.zeros(1_000, int), "size_bytes": np.full(1_000, 50.0)}
    result = simulate(scenario, plan_of(scenario), replay=replay, warmup=0.0, sink=sink)
    rows = sink.table("deliveries")
    enqueued = np.sort(rows["enqueued_ns"][rows["enqueued_ns"] >= 0])
    assert (np.diff(enqueued) == 500_000_000).all()
    assert len(enqueued) == 41
    assert result.subscriptions.thinned.tolist() == [1_000 - 41]
    assert result.subscriptions.success_rate.tolist() == [1.0]
    # What passes is the newest of its interval: the topic has an event every 20 ms.
    passed = rows["published_ns"][rows["enqueued_ns"] >= 0]
    assert (enqueued - np.sort(passed) <= 20_000_000).all()


def test_nothing_waits_behind_its_successor_and_nothing_old_is_sent(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    base = scenario_of(publications=((0, 0),), subscriptions=((0, 0),), bandwidth=8e3)
    times = np.sort(np.random.default_rng(3).integers(0, 20_000_000_000, 400))
    replay = {"published_ns": times, "publication": np.zeros(400, int), "size_bytes": np.full(400, 100.0)}
    newest = with_terms(base, newest_only=1)
    sink = memory_sink()
    result = simulate(newest, plan_of(newest), replay=replay, warmup=0.0, sink=sink)
    rows = sink.table("deliveries")
    order = np.argsort(rows["published_ns"])
    published, dequeued = rows["published_ns"][order], rows["dequeued_ns"][order]
    sent = dequeued[:-1] >= 0
    assert (dequeued[:-1][sent] <= published[1:][sent] + 2 * 100_000_000).all()
    assert result.subscriptions.superseded[0] == (~(dequeued >= 0)).sum() > 100
    assert result.subscriptions.success_rate.tolist() == [1.0]
    expiring = with_terms(base, expires_seconds=0.25)
    result = simulate(expiring, plan_of(expiring), replay=replay, warmup=0.0)
    lost = result.subscriptions
    assert lost.expired[0] > 100
    assert lost.success_rate[0] == pytest.approx(1 - lost.expired[0] / 400)
    assert result.classes.max_seconds[0] <= 0.35 + 1e-9
