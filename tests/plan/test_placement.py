"""Placement: one topic on one broker, correlated ones apart, the least used first, and deadlines respected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.clusters import campus_scenario

from triagemq.errors import ParameterError, PlanError
from triagemq.lab.clusters import ALL_PLACEMENTS
from triagemq.plan.clusters import BrokerClusters, Metric, Placement
from triagemq.plan.placement import Correlations, Newcomers, PlacementProblem, explain_placement, place
from triagemq.scenario import Scenario, loads


def brokers_of(scenario: Scenario, name: str, **options: object) -> dict[str, set[str]]:
    """By topic, the brokers that serve it."""
    served = place(scenario, name, known=ALL_PLACEMENTS, **options).placement.subscriptions  # type: ignore[arg-type]
    found: dict[str, set[str]] = {}
    for topic, broker in zip(scenario.subscriptions.topic.tolist(), served.tolist(), strict=True):
        found.setdefault(scenario.topics.name[topic], set()).add(scenario.brokers.name[broker])
    return found


@pytest.mark.parametrize("name", ["apart", "least_used", "round_robin", "random"])
def test_one_topic_has_one_broker_in_each_cluster(name: str) -> None:
    scenario = campus_scenario(
        edges=((8e6, 4e6), (8e6, 4e6, 2e6)), rates=[[5] * 12, [1] * 12], subscribers=[[3] * 12, [2] * 12]
    )
    for served in brokers_of(scenario, name, seed=3).values():
        assert len([each for each in served if each.startswith("c0")]) == 1
        assert len([each for each in served if each.startswith("c1")]) == 1


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), name=st.sampled_from(sorted(ALL_PLACEMENTS)))
def test_a_placement_is_the_same_again_and_uses_edges_of_the_cluster(seed: int, name: str) -> None:
    draw = np.random.default_rng(seed)
    scenario = campus_scenario(
        edges=((8e6, 4e6), (6e6, 2e6, 3e6)),
        rates=draw.uniform(1, 20, (2, 8)).tolist(),
        subscribers=draw.integers(0, 5, (2, 8)).tolist(),
    )
    first, again = (
        place(scenario, name, seed=seed, known=ALL_PLACEMENTS).placement.subscriptions for _ in range(2)
    )
    assert np.array_equal(first, again)
    clusters = BrokerClusters.of(scenario)
    assert clusters.edge[first].all()
    assert np.array_equal(clusters.cluster[first], clusters.cluster[clusters.stated.subscriptions])


def test_the_least_used_broker_is_judged_by_its_own_capacity() -> None:
    scenario = campus_scenario(edges=((9e6, 3e6),), rates=[[10] * 40], subscribers=[[1] * 40])
    placed = place(scenario, "least_used")
    use = placed.use[Metric.UPLINK, 1:]
    assert use[0] == pytest.approx(use[1], abs=0.05)
    assert placed.imbalance < 1.1 < place(scenario, "round_robin", known=ALL_PLACEMENTS).imbalance


def test_strongly_correlated_topics_are_kept_apart_and_others_are_not() -> None:
    scenario = campus_scenario(edges=((8e6, 8e6),), rates=[[40, 30, 20, 10]], subscribers=[[1] * 4])
    assert brokers_of(scenario, "apart")["t00"] == brokers_of(scenario, "apart")["t03"]
    for value, together in ((0.9, False), (0.4, True), (-0.9, True)):
        pairs = Correlations.between(scenario, [("t00", "t03", value), ("t01", "no such topic", 0.9)])
        found = brokers_of(scenario, "apart", correlations=pairs)
        assert (found["t00"] == found["t03"]) == together


def test_a_broker_from_which_events_come_too_late_serves_nobody() -> None:
    scenario = campus_scenario(
        edges=((1e6, 9e6),),
        rates=[[5, 5]],
        subscribers=[[2, 2]],
        max_latency_seconds=[0.1, 5.0],
        edge_seconds=[0.0, 0.3],
    )
    assert brokers_of(scenario, "apart") == {"t00": {"c0-e0"}, "t01": {"c0-e1"}}
    placed = place(scenario)
    assert "Too far for what a subscriber allows: c0-e1." in explain_placement(placed, 0)
    nowhere = campus_scenario(
        edges=((1e6, 9e6),),
        rates=[[5, 5]],
        subscribers=[[2, 2]],
        max_latency_seconds=[0.1, 5.0],
        edge_seconds=[0.3, 0.3],
    )
    assert [each.subject for each in place(nowhere).decisions] == ["t00"]


def test_a_topic_that_is_too_much_for_any_broker_is_split() -> None:
    scenario = campus_scenario(edges=((8e6, 8e6),), rates=[[125, 10]], subscribers=[[10, 1]])
    assert brokers_of(scenario, "apart") == {"t00": {"c0-e0", "c0-e1"}, "t01": {"c0-e0"}} or brokers_of(
        scenario, "apart"
    )["t00"] == {"c0-e0", "c0-e1"}
    assert place(scenario).use[Metric.UPLINK].max() < 0.9


def test_peer_begins_at_the_first_edge_and_moves_until_loads_are_alike() -> None:
    scenario = campus_scenario(edges=((8e6, 8e6, 8e6),), rates=[[10] * 20], subscribers=[[5] * 20])
    use = place(scenario, "peer", known=ALL_PLACEMENTS).use[Metric.UPLINK, 1:]
    assert use.max() - use.min() <= 0.1
    assert place(scenario, "stated").use[Metric.UPLINK, 2:].max() == 0


def test_a_scenario_without_clusters_is_refused_in_a_line() -> None:
    scenario = loads(
        """
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 320000}}
publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
"""
    )
    with pytest.raises(ParameterError, match="hall has no cluster; write cluster: NAME"):
        place(scenario)
    with pytest.raises(ParameterError, match="placement: 'appart' is unknown; did you mean 'apart'"):
        place(campus_scenario(rates=[[1]], subscribers=[[1]]), "appart")


def nowhere(problem: PlacementProblem) -> np.ndarray:
    """A placement of one's own that makes no sense: at the head."""
    return np.zeros(len(problem.bundle), dtype=np.int32)


def test_a_placement_of_ones_own_is_refused_where_it_makes_no_sense() -> None:
    scenario = campus_scenario(rates=[[1]], subscribers=[[1]])
    with pytest.raises(PlanError, match="put subscriptions where there is no edge broker"):
        place(scenario, f"{__name__}:nowhere")


def campus_of(*rates: float) -> BrokerClusters:
    """Two edges of 8 Mbit/s (rows 1 and 2), and topics of so many events of 1,000 bytes."""
    return BrokerClusters.of(campus_scenario(rates=[list(rates)], subscribers=[[1] * len(rates)]))


def arrivals(clusters: BrokerClusters, *brokers: int) -> Newcomers:
    return Newcomers(clusters, Placement(np.array(brokers, dtype=np.int32), clusters.stated.publications))


def test_one_goes_where_its_topics_come_already_as_long_as_that_stays_in_low() -> None:
    clusters = campus_of(200, 50)
    coming = arrivals(clusters, 1, 2)
    # 1.6 Mbit/s each: the first edge has 1.6, and takes three more below 7.2.
    assert [coming.take([0], [1, 2]) for _ in range(6)] == [1, 1, 1, 2, 2, 2]


def test_without_topics_or_with_new_ones_it_is_the_least_used() -> None:
    clusters = campus_of(200, 50, 10)
    coming = arrivals(clusters, 1, 2, -1)
    assert coming.take([], [1, 2]) == 2
    assert coming.take([2], [1, 2]) == 2


def test_whoever_comes_is_counted() -> None:
    clusters = campus_of(200, 50)
    coming = arrivals(clusters, -1, -1)
    homes = np.array([coming.take([topic], [1, 2]) for topic in (0, 1)], dtype=np.int32)
    assert sorted(homes.tolist()) == [1, 2]
    after = clusters.use(Placement(homes, clusters.stated.publications))
    assert coming._use[Metric.UPLINK] == pytest.approx(after[Metric.UPLINK])
