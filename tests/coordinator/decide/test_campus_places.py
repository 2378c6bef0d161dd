"""Who comes to a live campus, or has to leave a broker that died, is placed by what brokers have to do."""

from __future__ import annotations

import numpy as np
from tests.plan.campuses import campus_scenario

from triagemq.coordinator.decide.placement import FRESH_SECONDS, CampusPlaces, Placements, Site
from triagemq.coordinator.intents.registry import Key
from triagemq.scenario import Scenario

EDGES = ["c0-e0", "c0-e1"]


def choice(
    places: CampusPlaces,
    scenario: Scenario | None,
    *wanted: str,
    placements: dict[Key, str] | None = None,
    kind: str = "subscriber",
    now: float = 0.0,
) -> str | None:
    return places.choice((kind, "new"), wanted, EDGES, scenario, lambda: placements or {}, now)


def campus() -> tuple[Scenario, dict[Key, str]]:
    scenario = campus_scenario(rates=[[200, 50]], subscribers=[[1, 1]])
    return scenario, {
        ("subscriber", scenario.subscribers.name[0]): "c0-e0",
        ("subscriber", scenario.subscribers.name[1]): "c0-e1",
    }


def test_a_new_one_goes_where_its_topics_are_and_without_topics_to_the_least_used() -> None:
    scenario, placements = campus()
    assert choice(CampusPlaces(), scenario, "t00", placements=placements) == "c0-e0"
    assert choice(CampusPlaces(), scenario, "+", placements=placements) == "c0-e0"
    assert choice(CampusPlaces(), scenario, placements=placements) == "c0-e1"
    assert choice(CampusPlaces(), scenario, "unknown", placements=placements) == "c0-e1"


def test_those_who_come_together_are_counted_and_after_a_second_the_load_is_looked_at_again() -> None:
    scenario, placements = campus()
    places = CampusPlaces()
    came = [choice(places, scenario, "t00", placements=placements) for _ in range(5)]
    assert came == 3 * ["c0-e0"] + 2 * ["c0-e1"]
    assert choice(places, scenario, "t00", placements=placements, now=2 * FRESH_SECONDS) == "c0-e0"


def test_nothing_is_said_of_publishers_or_without_clusters_and_capacities() -> None:
    scenario, placements = campus()
    assert choice(CampusPlaces(), scenario, "t00", placements=placements, kind="publisher") is None
    assert choice(CampusPlaces(), None, "t00", placements=placements) is None
    endless = campus_scenario(rates=[[200, 50]], subscribers=[[1, 1]], edges=((np.inf, np.inf),))
    assert choice(CampusPlaces(), endless, "t00", placements=placements) is None


def test_homes_ask_for_a_place_within_the_cluster_and_count_clients_if_there_is_none() -> None:
    placements = Placements({("subscriber", "ff-1"): "e0"})
    sites = [
        Site("h", "", "north", True),
        Site("e0", "", "north"),
        Site("e1", "", "north"),
        Site("f0", "", "south"),
    ]
    asked: list[list[str]] = []

    def placing(key: Key, names: list[str]) -> str | None:
        asked.append(list(names))
        return "e1" if key[1] == "ff-1" else None

    placements.placing = placing  # type: ignore[assignment]
    assert placements.of(("subscriber", "ff-1"), sites) == "e0"
    dead = [Site("h", "", "north", True), Site("e0", "it is away", "north"), *sites[2:]]
    assert placements.evacuations(dead) == [(("subscriber", "ff-1"), "e1")]
    assert asked == [["e1"]]
