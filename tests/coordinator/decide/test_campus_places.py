"""Who comes to a live campus, or has to leave a broker that died, is placed by what brokers have to do."""

from __future__ import annotations

import numpy as np
from tests.plan.clusters import campus_scenario

from triagemq.coordinator.decide.placement import FRESH_SECONDS, ClusterPlaces, Placements, Site
from triagemq.coordinator.intents.registry import Key, Record, Registry
from triagemq.intents import PublisherIntent, SubscriberIntent, SubscriptionIntent
from triagemq.scenario import Scenario

EDGES = ["c0-e0", "c0-e1"]


def choice(
    places: ClusterPlaces,
    scenario: Scenario,
    *filters: str,
    placements: dict[Key, str] | None = None,
    now: float = 0.0,
) -> str | None:
    return places.choice(filters, EDGES, scenario, placements or {}, now)


def clusters() -> tuple[Scenario, dict[Key, str]]:
    scenario = campus_scenario(rates=[[200, 50]], subscribers=[[1, 1]])
    return scenario, {
        ("subscriber", scenario.subscribers.name[0]): "c0-e0",
        ("subscriber", scenario.subscribers.name[1]): "c0-e1",
    }


def test_a_new_one_goes_where_its_topics_are_and_without_topics_to_the_least_used() -> None:
    scenario, placements = clusters()
    assert choice(ClusterPlaces(), scenario, "t00", placements=placements) == "c0-e0"
    assert choice(ClusterPlaces(), scenario, "+", placements=placements) == "c0-e0"
    assert choice(ClusterPlaces(), scenario, placements=placements) == "c0-e1"
    assert choice(ClusterPlaces(), scenario, "unknown", placements=placements) == "c0-e1"


def test_those_who_come_together_are_counted_and_after_a_second_the_load_is_looked_at_again() -> None:
    scenario, placements = clusters()
    places = ClusterPlaces()
    came = [choice(places, scenario, "t00", placements=placements) for _ in range(5)]
    assert came == 3 * ["c0-e0"] + 2 * ["c0-e1"]
    assert choice(places, scenario, "t00", placements=placements, now=2 * FRESH_SECONDS) == "c0-e0"


def test_nothing_is_said_without_capacities() -> None:
    endless = campus_scenario(rates=[[200, 50]], subscribers=[[1, 1]], edges=((np.inf, np.inf),))
    assert choice(ClusterPlaces(), endless, "t00", placements=clusters()[1]) is None


def test_newcomers_get_a_gateway_of_their_cluster_by_its_load_and_by_clients_without_a_plan() -> None:
    scenario, _ = clusters()
    registry = Registry()
    for name in ("new", "ff-1"):
        intent = SubscriberIntent((SubscriptionIntent("t00"),), name=name)
        registry.put(Record(intent, "", ""))
    placements = Placements({("subscriber", "ff-1"): "c0-e0"}, registry)
    sites = [
        Site("c0", "", "c0", True),
        Site("c0-e0", "", "c0"),
        Site("c0-e1", "", "c0"),
        Site("d0", "", "d0"),
    ]
    assert placements.of(("subscriber", "ff-1"), sites) == "c0-e0"
    assert placements.of(("subscriber", "other"), sites) == "c0-e1"
    placements.scenario = scenario
    assert placements.of(("subscriber", "new"), sites[1:3]) == "c0-e0"
    dead = [sites[0], Site("c0-e0", "it is away", "c0"), *sites[2:]]
    assert dict(placements.evacuations(dead))["subscriber", "ff-1"] == "c0-e1"


def test_publishers_are_placed_by_the_number_of_clients() -> None:
    scenario, _ = clusters()
    registry = Registry([Record(PublisherIntent((), name="new"), "", "")])
    placements = Placements(clients=registry)
    placements.scenario = scenario
    placements.move(("subscriber", "ff-1"), "c0-e0")
    assert placements.of(("publisher", "new"), [Site("c0-e0"), Site("c0-e1")]) == "c0-e1"
