"""Balancing of a live campus: what gateways measure in, moves of clients out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from triagemq.coordinator.decide.placement import (
    ClientMove,
    ClusterBalance,
    GatewayLoad,
    Placements,
    Site,
    whole_subscribers,
)
from triagemq.coordinator.intents.registry import Key
from triagemq.plan.balancing.detection import LoadReport, Migration
from triagemq.plan.clusters import BrokerClusters, Metric
from triagemq.plan.dataplane import FlowCounters
from triagemq.scenario import Scenario, load
from triagemq.scenario.model import Brokers

CAMPUS = load(Path(__file__).parents[3] / "examples" / "campus.yaml")
RATES = dict(zip(CAMPUS.topics.name, [4.0, 20.0, 20.0, 20.0, 20.0], strict=True))


def placements_of(scenario: Scenario) -> dict[Key, str]:
    sites = [Site(name) for name in scenario.brokers.name]
    placements = Placements.of_scenario(scenario)
    for name in scenario.subscribers.name:
        placements.of(("subscriber", name), sites)
    for name in scenario.publishers.name:
        placements.of(("publisher", name), sites)
    return dict(placements)


def loads_with(**matched: float) -> dict[str, GatewayLoad]:
    return {name: GatewayLoad(1e4, matched.get(name, 50.0), 1e4, {}, {}, 1.0) for name in CAMPUS.brokers.name}


def moves_of(
    balance: ClusterBalance, loads: dict[str, GatewayLoad], now: float, burst: float = 1.0
) -> list[ClientMove]:
    published = CAMPUS.publications
    is_of_labs = np.array([topic.startswith("labs") for topic in CAMPUS.topics.name])[published.topic]
    rates = np.array([RATES[CAMPUS.topics.name[topic]] for topic in published.topic.tolist()])
    rates = rates / np.bincount(published.topic)[published.topic] * np.where(is_of_labs, burst, 1.0)
    scenario = replace(CAMPUS, publications=replace(published, rate_per_second=rates))
    return balance.moves(scenario, placements_of(CAMPUS), loads, now)


def test_nobody_moves_while_brokers_have_room() -> None:
    balance = ClusterBalance()
    assert [moves_of(balance, loads_with(), now) for now in range(5)] == [[]] * 5


def test_clients_leave_a_broker_that_has_too_much_to_match_for_one_that_has_room() -> None:
    balance = ClusterBalance()
    assert not moves_of(balance, loads_with(), 0.0)
    found = moves_of(balance, loads_with(labs=290.0), 1.0, burst=6.0)
    assert found
    assert {(each.source, each.target) for each in found} == {("labs", "hall")}
    assert {each.why for each in found} == {"at labs matching use is 96.7%"}
    # One balancing at a time: until those are there, nobody else goes.
    assert not moves_of(balance, loads_with(labs=290.0), 2.0, burst=6.0)


def test_a_move_is_over_when_its_clients_have_come_and_the_old_gateway_serves_them_no_more() -> None:
    balance = ClusterBalance()
    moves_of(balance, loads_with(), 0.0)
    found = moves_of(balance, loads_with(labs=290.0), 1.0, burst=6.0)
    there = {f"{each.key[1]}~0": FlowCounters(1) for each in found}
    loads = loads_with(labs=290.0)
    loads["hall"] = replace(loads["hall"], flows=there)
    loads["labs"] = replace(loads["labs"], flows=there)
    assert not moves_of(balance, loads, 2.0, burst=6.0)
    assert balance._moving
    loads["labs"] = replace(loads["labs"], flows={})
    moves_of(balance, loads, 3.0)
    assert not balance._moving


def test_ways_between_brokers_are_those_that_were_measured() -> None:
    balance, loads = ClusterBalance(), loads_with()
    loads["hall"] = replace(loads["hall"], broker_seconds={"library": 0.25, "labs": 9.0})
    moves_of(balance, loads, 0.0)
    assert balance._clusters is not None
    names = CAMPUS.brokers.name
    measured = dict(zip(names, balance._clusters.delay_seconds[0].tolist(), strict=True))
    assert measured["hall"] == 0.25
    assert measured["labs"] < 0.25


def test_ways_of_clients_are_those_that_their_own_gateway_measured() -> None:
    balance, loads = ClusterBalance(), loads_with()
    name, publisher = "hall-crew-1", "alarm-panel"
    loads["hall"] = replace(loads["hall"], client_seconds={f"{name}~0": 0.2, publisher: 9.0})
    loads["library"] = replace(loads["library"], client_seconds={f"{name}~0": 9.0, publisher: 0.1})
    moves_of(balance, loads, 0.0)
    clusters = balance._clusters
    assert clusters is not None
    assert clusters.subscriber_seconds[CAMPUS.subscribers.name.index(name)] == 0.2
    assert clusters.publisher_seconds[CAMPUS.publishers.name.index(publisher)] == 0.1
    assert np.count_nonzero(clusters.subscriber_seconds) == 1


def test_subscribers_go_with_all_that_they_want_and_only_so_many_as_the_target_takes() -> None:
    wanted, names = CAMPUS.subscriptions, CAMPUS.subscribers.name
    crews = [names.index("labs-crew-1"), names.index("labs-crew-2")]
    gas = CAMPUS.topics.name.index("labs/gas")
    rows = np.flatnonzero((wanted.topic == gas) & np.isin(wanted.subscriber, crews)).astype(np.int32)
    brokers, hall = CAMPUS.brokers, CAMPUS.brokers.name.index("hall")
    rate = CAMPUS.publications.rate_per_second

    def gone_with(uplink_bps: float) -> list[int]:
        uplinks = brokers.uplink_bps.copy()
        uplinks[hall] = uplink_bps
        clusters = BrokerClusters.of(CAMPUS.with_tables(brokers=replace(brokers, uplink_bps=uplinks)))
        many, none = len(wanted), np.zeros(len(wanted))
        report = LoadReport(
            0.0,
            clusters.stated,
            np.ones(many, dtype=bool),
            clusters.use(clusters.stated),
            np.zeros(3),
            rate,
            none,
            none,
        )
        found, after = whole_subscribers(
            clusters, report, Migration(1, 0.0, 0, hall, Metric.MATCHING, "", rows)
        )
        assert (after.use[:, hall] <= 0.98).all()
        moved = np.isin(wanted.subscriber, found)
        assert (after.placement.subscriptions[moved] == hall).all()
        return found

    # Of 149 octets each, four alarms a second and 40 other events: what the two of the hall want, and one more crew.
    bps = 8 * 149 * 44
    assert gone_with(4 * bps / 0.97) == crews
    assert gone_with(3 * bps / 0.97) == crews[:1]
    assert gone_with(2 * bps / 0.97) == []


def test_without_clusters_nobody_is_balanced() -> None:
    brokers = CAMPUS.brokers
    plain = replace(
        CAMPUS,
        brokers=replace(brokers, cluster=("",) * 3, head=np.zeros(3, dtype=np.int8)),
    )
    assert isinstance(plain.brokers, Brokers)
    placements = placements_of(plain)
    loads = loads_with(labs=1e6)
    assert not ClusterBalance().moves(plain, placements, loads, 0.0)


def test_clients_of_a_dead_broker_stay_in_their_cluster_and_with_their_kind() -> None:
    placements = Placements({("subscriber", "ff-7"): "east-edge"})
    sites = [
        Site("east-head", "", "east", True),
        Site("east-edge", "", "east"),
        Site("east-other", "", "east"),
        Site("west-edge", "", "west"),
    ]
    assert placements.of(("subscriber", "ff-7"), sites) == "east-edge"
    assert placements.of(("publisher", "sensor"), sites) == "east-head"
    sites[1] = replace(sites[1], problem="it is away")
    assert placements.evacuations(sites) == [(("subscriber", "ff-7"), "east-other")]
