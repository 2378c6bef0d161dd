"""Balancing: who is overloaded, who leaves first and for where, and what the state machine does not do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.plan.clusters import campus_scenario, report

from triagemq.lab.clusters.peer import Peer
from triagemq.plan.balancing.balancer import Balancer
from triagemq.plan.balancing.detection import (
    BalancingSettings,
    Completed,
    LoadState,
    LoadWatch,
    SmoothedRates,
    queue_threshold,
)
from triagemq.plan.balancing.selection import OtherEnds, QueueState, publisher_order, subscriber_order
from triagemq.plan.clusters import BrokerClusters, Metric, Placement
from triagemq.scenario import Floats, Scenario

R, B, L, N = OtherEnds.REMOTE, OtherEnds.BOTH, OtherEnds.LOCAL, OtherEnds.NONE


def burdened(**changes: object) -> Scenario:
    """Two edges of 8 Mbit/s; the first has two topics of 6 and 3 Mbit/s, and the second nothing."""
    options = {
        "edges": ((8e6, 8e6),),
        "rates": [[750, 375]],
        "subscribers": [[1, 1]],
        "max_latency_seconds": [1.0, 60.0],
    }
    return campus_scenario(**(options | changes))  # type: ignore[arg-type]


def placed(clusters: BrokerClusters, *edges: int) -> Placement:
    """Topic by topic, the number of the broker."""
    broker = np.array(edges, dtype=np.int32)[clusters.scenario.subscriptions.topic]
    return Placement(broker, clusters.stated.publications)


def waiting(clusters: BrokerClusters, *queues: float) -> Floats:
    return np.array(queues, dtype=np.float64)[clusters.scenario.subscriptions.topic]


def test_the_threshold_is_the_papers_with_the_interval_it_lacks() -> None:
    # 0.5 s at 181 events/s, less what comes in two seconds beyond what leaves.
    found = queue_threshold(np.array([0.5, np.inf]), np.array([200.0, 1.0]), np.array([181.0, 0.0]), 2.0)
    assert found.tolist() == [0.5 * 181 - 2 * 19, np.inf]


def test_rates_that_climb_are_followed_without_a_lag_and_steady_ones_stay() -> None:
    rates = SmoothedRates(2)
    for step in range(20):
        rates.add(np.array([100.0 + 10 * step, 50.0]))
    # Without a trend it would lag by a quarter of a step.
    assert rates.expected()[0] == pytest.approx(100 + 10 * 19, abs=0.5)
    assert rates.expected()[1] == pytest.approx(50.0)


def test_a_full_uplink_alone_is_no_overload_but_a_queue_that_endangers_a_deadline_is() -> None:
    clusters = BrokerClusters.of(burdened())
    watch = LoadWatch(clusters, BalancingSettings())
    full = report(clusters)
    assert full.use[Metric.UPLINK, 1] > 1
    assert watch.on_report(full).state.tolist() == [LoadState.LOW, LoadState.HIGH, LoadState.LOW]
    deep = replace(full, queue_events=waiting(clusters, 800.0, 0.0), at_seconds=2.0)
    seen = watch.on_report(deep)
    assert seen.state[1] == LoadState.OVERLOAD
    assert seen.metric[1] == Metric.QUEUE_DEPTH
    assert seen.deep.tolist() == [True, False]


@pytest.mark.parametrize("metric", [Metric.DOWNLINK, Metric.MATCHING])
def test_static_thresholds_hold_for_the_downlink_and_matching_of_an_edge(metric: Metric) -> None:
    clusters = BrokerClusters.of(burdened())
    for use, state in ((0.85, LoadState.LOW), (0.92, LoadState.HIGH), (0.96, LoadState.OVERLOAD)):
        seen = report(clusters, placed(clusters, 1, 1))
        seen.use[:] = 0.0
        seen.use[metric, 1] = use
        assert LoadWatch(clusters, BalancingSettings()).on_report(seen).state[1] == state


def test_publishers_leave_a_head_in_the_papers_order() -> None:
    ends = np.array([L, N, B, R], dtype=np.int32)
    same = np.ones(4)
    assert ends[publisher_order(Metric.DOWNLINK, ends, same)].tolist() == [N, R, B, L]
    assert ends[publisher_order(Metric.UPLINK, ends, same)].tolist() == [R, B, L, N]


def test_subscribers_leave_an_edge_in_the_order_of_table_4_and_those_that_may_wait_longest_first() -> None:
    ends = np.array([N, L, B, R], dtype=np.int32)
    queues, wait = np.zeros(4, dtype=np.int32), np.array([4.0, 1.0, 2.0, 3.0])
    for metric in (Metric.DOWNLINK, Metric.UPLINK):
        assert ends[subscriber_order(metric, ends, queues, wait)].tolist() == [R, B, L, N]
    # By matching, those without publishers leave first, and all others by their waits alone.
    assert ends[subscriber_order(Metric.MATCHING, ends, queues, wait)].tolist() == [N, R, B, L]
    states = np.array([QueueState.TOO_DEEP, QueueState.EMPTY, QueueState.WAITING, QueueState.EMPTY], np.int32)
    order = subscriber_order(Metric.QUEUE_DEPTH, ends, states, wait)
    assert order.tolist() == [3, 1, 2, 0]


def test_the_topic_that_can_wait_leaves_for_the_least_used_broker_in_low() -> None:
    clusters = BrokerClusters.of(
        burdened(
            edges=((8e6, 8e6, 8e6, 8e6),),
            rates=[[750, 375, 50, 930]],
            subscribers=[[1] * 4],
            max_latency_seconds=[1.0, 60.0, 60.0, 60.0],
        )
    )
    now = placed(clusters, 1, 1, 2, 4)
    (moved,) = Balancer(clusters).handle(report(clusters, now, queue_events=waiting(clusters, 800, 0, 0, 0)))
    assert moved.topics(clusters) == ["t01"]
    assert (moved.source, moved.target) == (1, 3)
    assert moved.reason == "queues are too deep for the deadlines of t00"


def test_only_a_broker_in_low_takes_clients_and_none_is_filled_beyond_what_it_can() -> None:
    clusters = BrokerClusters.of(
        burdened(rates=[[750, 375, 910]], subscribers=[[1] * 3], max_latency_seconds=[1.0, 60, 60])
    )
    seen = report(clusters, placed(clusters, 1, 1, 2), queue_events=waiting(clusters, 800, 0, 0))
    assert 0.9 < seen.use[Metric.UPLINK, 2] < 0.95
    assert Balancer(clusters).handle(seen) == ()
    # In LOW, but without room for all of a topic.
    clusters = BrokerClusters.of(
        burdened(rates=[[750, 375, 700]], subscribers=[[1] * 3], max_latency_seconds=[1.0, 60, 60])
    )
    seen = report(clusters, placed(clusters, 1, 1, 2), queue_events=waiting(clusters, 800, 0, 0))
    assert Balancer(clusters).handle(seen) == ()


def test_a_bundle_is_split_only_where_none_is_taken_as_a_whole() -> None:
    many = {"rates": [[100, 75]], "subscribers": [[10, 8]], "max_latency_seconds": [1.0, 60.0]}
    clusters = BrokerClusters.of(burdened(**many))
    (whole,) = Balancer(clusters).handle(report(clusters, queue_events=waiting(clusters, 100, 0)))
    assert len(whole.subscriptions) == 8
    clusters = BrokerClusters.of(burdened(**many, edges=((8e6, 4e6),)))
    (some,) = Balancer(clusters).handle(report(clusters, queue_events=waiting(clusters, 100, 0)))
    assert 0 < len(some.subscriptions) < 8


@pytest.mark.parametrize(
    ("edges", "places", "given"), [((8e6,) * 3, (1, 2, 3), 3), ((8e6,) * 2, (1, 2, 2), 1)]
)
def test_where_one_finds_no_room_brokers_in_low_make_some_for_each_other_or_give_back_less(
    edges: tuple[float, ...], places: tuple[int, ...], given: int
) -> None:
    # Subscribers of 4.8, 2 and 5 or 0.1 Mbit/s: e1 takes one of 4.8 if it gives one of 2, to e2 or to e0 itself.
    rates = [[600, 250, 625 if len(edges) == 3 else 12]]
    clusters = BrokerClusters.of(
        burdened(edges=(edges,), rates=rates, subscribers=[[2, 2, 1]], max_latency_seconds=[1.0, 60, 60])
    )
    now = placed(clusters, *places)
    moves = Balancer(clusters).handle(report(clusters, now, queue_events=waiting(clusters, 700, 0, 0)))
    assert [(each.source, each.target, each.topics(clusters)) for each in moves] == [
        (1, 2, ["t00"]),
        (2, given, ["t01"]),
    ]
    assert {each.balancing for each in moves} == {1}
    assert moves[1].reason == "room is needed, for c0-e0: queues are too deep for the deadlines of t00"
    broker = now.subscriptions.copy()
    for each in moves:
        broker[each.subscriptions] = each.target
    assert (clusters.use(Placement(broker, now.publications))[Metric.UPLINK, 1:] <= 0.98).all()


@pytest.mark.parametrize(("taken", "moved"), [(525, ["t03", "t04"]), (375, ["t03"])])
def test_a_broker_that_could_not_be_relieved_later_is_relieved_with_the_first(
    taken: int, moved: list[str]
) -> None:
    # e0 has 6 and 3, e1 7.7 and 0.4 Mbit/s, and its queues grow, too; e2 would be at 90 % with what e0 gives, or at 75.
    clusters = BrokerClusters.of(
        burdened(
            edges=((8e6,) * 3,),
            rates=[[750, 962, taken, 375, 50]],
            subscribers=[[1] * 5],
            max_latency_seconds=[1.0, 1.0, 60, 60, 60],
        )
    )
    now = placed(clusters, 1, 2, 3, 1, 2)
    moves = Balancer(clusters).handle(report(clusters, now, queue_events=waiting(clusters, 800, 1, 0, 0, 0)))
    assert [name for each in moves for name in each.topics(clusters)] == moved
    assert {each.target for each in moves} == {3}


def test_what_a_broker_has_only_just_taken_counts_before_it_is_measured() -> None:
    clusters = BrokerClusters.of(
        burdened(rates=[[750, 375, 700]], subscribers=[[1] * 3], max_latency_seconds=[1.0, 60, 60])
    )
    seen = report(clusters, placed(clusters, 1, 1, 2), queue_events=waiting(clusters, 800, 0, 0))
    seen.use[Metric.UPLINK, 2] = 0.3
    assert Balancer(clusters).handle(seen) == ()


@pytest.mark.parametrize("seed", range(20))
def test_no_target_is_ever_asked_for_more_than_it_has(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scenario = campus_scenario(
        edges=((8e6, 4e6, 6e6),),
        rates=[draw.uniform(5, 40, 12).tolist()],
        subscribers=[draw.integers(1, 6, 12).tolist()],
        max_latency_seconds=draw.uniform(0.5, 5, 12).tolist(),
    )
    clusters = BrokerClusters.of(scenario)
    broker = draw.choice([1, 1, 2, 3], len(scenario.topics)).astype(np.int32)[scenario.subscriptions.topic]
    now = Placement(broker, clusters.stated.publications)
    queues = np.where(broker == 1, 500.0, 0.0)
    before = clusters.use(now)[Metric.UPLINK]
    for each in Balancer(clusters).handle(report(clusters, now, queue_events=queues)):
        assert each.source == 1
        assert before[each.target] < 0.9
        broker[each.subscriptions] = each.target
    after = clusters.use(Placement(broker, now.publications))[Metric.UPLINK]
    assert (after[2:] <= np.maximum(before[2:], 0.98) + 1e-9).all()


def test_one_balancing_at_a_time_then_a_rest_and_who_has_moved_stays() -> None:
    clusters = BrokerClusters.of(
        burdened(rates=[[750, 375, 375]], subscribers=[[1] * 3], max_latency_seconds=[1.0, 60, 60])
    )
    settings = BalancingSettings(timeout_seconds=10, rest_seconds=5, stay_seconds=60)
    balancer = Balancer(clusters, settings)

    def at(seconds: float, *edges: int) -> list[str]:
        now = placed(clusters, *edges)
        seen = report(clusters, now, at_seconds=seconds, queue_events=waiting(clusters, 800, 0, 0))
        return [name for each in balancer.handle(seen) for name in each.topics(clusters)]

    first = at(1, 1, 1, 1)
    assert first == ["t01", "t02"]
    assert at(2, 1, 1, 1) == []
    assert balancer.handle(Completed(3.0, 1, 0.2)) == ()
    # Deep, but it shrinks; and when it grows, only the one that has not moved yet may leave.
    assert at(4, 1, 2, 2) == []
    assert at(5, 1, 1, 1) == ["t00"]
    assert at(61, 1, 1, 1) == first


def test_a_balancing_that_nobody_completes_is_over_after_its_time() -> None:
    clusters = BrokerClusters.of(burdened())
    balancer = Balancer(clusters, BalancingSettings(timeout_seconds=10, rest_seconds=0, stay_seconds=0))
    seen = report(clusters, queue_events=waiting(clusters, 800, 0))
    assert balancer.handle(seen)
    assert not balancer.handle(replace(seen, at_seconds=10.5))
    assert balancer.handle(replace(seen, at_seconds=11.5))


def test_what_balancing_costs_is_learned_from_what_it_has_cost() -> None:
    clusters = BrokerClusters.of(burdened())
    watch, seen = LoadWatch(clusters, BalancingSettings()), report(clusters)
    assert watch.on_report(seen).balancing_seconds[0] == 0
    watch.completed(Completed(1.0, 1, 0.4))
    watch.completed(Completed(2.0, 2, 0.8))
    assert watch.on_report(seen).balancing_seconds[0] == pytest.approx(0.3 * 0.8 + 0.7 * 0.4)


def test_other_clusters_are_asked_when_the_own_has_no_room() -> None:
    scenario = burdened(edges=((8e6,), (8e6,)), rates=[[750, 375], [0, 0]], subscribers=[[1, 1], [0, 0]])
    clusters = BrokerClusters.of(scenario)
    (moved,) = Balancer(clusters).handle(report(clusters, queue_events=waiting(clusters, 800, 0)))
    assert scenario.brokers.name[moved.target] == "c1-e0"


def test_publishers_with_remote_subscribers_leave_an_overloaded_head_first() -> None:
    # 1 Mbit/s each, to the own cluster, to the other, to both and to nobody; the head's uplink takes 3 of 4.
    scenario = campus_scenario(
        edges=((80e6,), (80e6,)),
        heads=(3.9e6, 80e6),
        rates=[[125, 125, 125, 125], [0] * 4],
        subscribers=[[1, 0, 1, 0], [0, 1, 1, 0]],
    )
    clusters = BrokerClusters.of(scenario)
    seen = report(clusters)
    assert seen.use[Metric.UPLINK, 0] == pytest.approx(4 / 3.9)
    moves = Balancer(clusters).handle(seen)
    assert [each.topics(clusters) for each in moves] == [["t01"]]
    assert not len(moves[0].subscriptions)
    assert scenario.brokers.name[moves[0].target] == "c1"


def test_peer_moves_for_a_difference_where_ours_sees_no_risk() -> None:
    clusters = BrokerClusters.of(burdened(rates=[[250, 250]]))
    seen = report(clusters)
    assert Balancer(clusters).handle(seen) == ()
    (moved,) = Peer(clusters).handle(seen)
    assert len(moved.subscriptions) == 1
    assert moved.reason == "uplink use is 50.0% beside 0.0%"
    even = report(clusters, placed(clusters, 1, 2))
    assert Peer(clusters).handle(even) == ()
