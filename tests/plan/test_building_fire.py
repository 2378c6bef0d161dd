"""The example that everybody starts with: what a person would call vital arrives, and what does not is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from triagemq.cli.terminal import print_starved
from triagemq.forecast import forecast, starved
from triagemq.mqttsn.filters import TopicTree
from triagemq.plan import Plan, plan
from triagemq.scenario import Scenario, load

EXAMPLE = Path(__file__).parents[2] / "examples" / "building-fire.yaml"

CREW = ("fire-fighter-1", "fire-fighter-2", "fire-fighter-3", "fire-fighter-4")
VITAL = {
    "commander": ("+/+/smoke", "floor-2/+/carbon-monoxide", "crew/+/air-supply", "crew/+/location"),
    "medic": ("crew/+/heart-rate", "crew/+/air-supply", "crew/+/location"),
    "pump-operator": ("command/orders", "building/water-pressure"),
    **dict.fromkeys(CREW, ("command/orders", "floor-2/+/smoke", "floor-2/+/carbon-monoxide", "crew/+/+")),
    **dict.fromkeys(
        ("warden-1", "warden-2", "warden-3"), ("building/evacuation", "+/+/smoke", "+/+/occupancy")
    ),
    "facility-manager": ("building/#", "+/+/smoke"),
    "security-desk": ("building/evacuation", "building/elevators", "+/+/occupancy"),
}
"""What may not be missing: where it burns, where the crew is and how it breathes, orders, water, and the evacuation."""


@pytest.fixture(scope="module")
def fire() -> tuple[Scenario, Plan]:
    scenario = load(EXAMPLE)
    return scenario, plan(scenario)


def _rows(scenario: Scenario, subscriber: str, pattern: str) -> list[int]:
    wanted = scenario.subscriptions
    meant = set(TopicTree(scenario.topics.name).names_matching(pattern))
    return [
        row
        for row in range(len(wanted))
        if scenario.subscribers.name[wanted.subscriber[row]] == subscriber
        and scenario.topics.name[wanted.topic[row]] in meant
    ]


@pytest.mark.parametrize("subscriber", VITAL)
def test_every_vital_subscription_gets_its_place(fire: tuple[Scenario, Plan], subscriber: str) -> None:
    scenario, made = fire
    success = forecast(scenario, made, formulas=True).success
    for pattern in VITAL[subscriber]:
        rows = _rows(scenario, subscriber, pattern)
        assert rows, f"{subscriber} does not want {pattern}"
        for row in rows:
            # At 20 readings a second a third still is more than one every quarter of a second.
            topic = scenario.topics.name[scenario.subscriptions.topic[row]]
            assert success[row] > 0.25, f"{subscriber} gets {success[row]:.1%} of {topic}"


def test_every_subscription_that_gets_nothing_is_named(
    fire: tuple[Scenario, Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, made = fire
    keep, wanted = made.subscription_keep, scenario.subscriptions
    expected = {
        (scenario.subscribers.name[wanted.subscriber[row]], scenario.topics.name[wanted.topic[row]])
        for row in range(len(wanted))
        if keep[row] == 0
    }
    found = starved(scenario, made)
    assert expected
    assert {(each["subscriber"], each["topic"]) for each in found} == expected
    print_starved(found)
    lines = capsys.readouterr().out.splitlines()
    named = [line.strip().split(": ") for line in lines if line.startswith(" ")]
    assert {(who, topic) for who, topics in named for topic in topics.split(", ")} == expected
    reasons = [line for line in lines if not line.startswith(" ")]
    assert all("times what it can carry, and the room is worth more" in line for line in reasons)
