"""Conditions played during a run: in their order, by whom they concern, and in a real box for links."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.box.campuses import TWO_SWITCHES
from tests.lab.box.traffic import arrives

from triagemq.lab.box import Box, lay_out, new_run, play
from triagemq.lab.box.journal import Journal
from triagemq.scenario import load, load_with_conditions
from triagemq.scenario.conditions import Situation

FILE = (
    TWO_SWITCHES.replace("{fed_by: trunk}", "{fed_by: trunk, backup: trunk-2}").replace(
        "ports:\n", "ports:\n  trunk-2: {switch: core, bandwidth_bps: 5e5}\n"
    )
    + """
conditions:
  - {at_seconds: 1, link: [core, floor], state: fails}
  - {at_seconds: 2, port: radio, bandwidth_bps: 160000}
  - {at_seconds: 2, subscriber: engine-1, state: leaves}
  - {at_seconds: 3, publisher: smoke-1, state: fails}
  - {at_seconds: 4, publisher: smoke-1, state: returns}
  - {at_seconds: 4, link: [core, floor], state: returns}
  - {at_seconds: 5, subscriber: janitor, state: joins}
"""
)


@dataclass
class Log:
    """Actors that write down each change, and when."""

    now: float = 0.0
    changes: list[tuple[object, ...]] = field(default_factory=list)
    situations: list[Situation] = field(default_factory=list)

    async def set_publisher(self, name: str, *, works: bool) -> None:
        self.changes.append((self.now, name, works))

    async def set_subscriber(self, name: str, *, present: bool) -> None:
        self.changes.append((self.now, name, present))

    async def set_bandwidth(self, port: str, bandwidth_bps: float) -> None:
        self.changes.append((self.now, port, bandwidth_bps))

    async def set_worth(self, situation: Situation) -> None:
        self.changes.append((self.now, "worth", situation.utility_weight.tolist()))

    async def situation_changed(self, situation: Situation) -> None:
        self.changes.append((self.now, "changed"))
        self.situations.append(situation)

    async def sleep_until(self, at_seconds: float) -> None:
        self.now = at_seconds


def test_each_condition_comes_at_its_time_to_whom_it_concerns(tmp_path: Path) -> None:
    file = tmp_path / "campus.yaml"
    file.write_text(FILE)
    log = Log()
    asyncio.run(play(load(file), load_with_conditions(file)[1], log, sleep_until=log.sleep_until))
    assert log.changes == [
        (0, "janitor", False),
        (1, "changed"),
        (2, "radio", 160000),
        (2, "engine-1", False),
        (2, "changed"),
        (3, "smoke-1", False),
        (3, "changed"),
        (4, "smoke-1", True),
        (4, "changed"),
        (5, "janitor", True),
        (5, "changed"),
    ]
    assert [situation.at_seconds for situation in log.situations] == [1, 2, 3, 4, 5]


def test_links_lose_from_the_start_on_and_what_topics_are_worth_is_told_when_it_changes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "campus.yaml"
    file.write_text(
        TWO_SWITCHES.replace("janitor: {", "janitor: {error_rate: 0.2, ")
        + """
worth_profiles: {doors: {door: 3}}
conditions:
  - {at_seconds: 1, port: trunk, error_rate: 0.1}
  - {at_seconds: 2, worth_profile: doors}
  - {at_seconds: 3, subscriber: janitor, error_rate: 0}
  - {at_seconds: 4, topic: door, rate_factor: 2}
"""
    )
    log = Log()

    class Losing:
        def set_error_rate(self, of: str, name: str, error_rate: float) -> None:
            log.changes.append((log.now, of, name, error_rate))

    scenario = load(file)
    box: Any = Losing()
    asyncio.run(play(scenario, load_with_conditions(file)[1], log, box, sleep_until=log.sleep_until))
    doors = scenario.subscriptions.topic == scenario.topics.name.index("door")
    assert log.changes == [
        (0, "subscriber", "janitor", 0.2),
        (1, "port", "trunk", 0.1),
        (1, "changed"),
        (2, "worth", (np.where(doors, 3, 1) * scenario.subscriptions.utility_weight).tolist()),
        (2, "changed"),
        (3, "subscriber", "janitor", 0.0),
        (3, "changed"),
        (4, "changed"),
    ]


@pytest.mark.needs_root("it makes namespaces of the network")
def test_links_fail_and_return_in_the_box(tmp_path: Path) -> None:
    file = tmp_path / "campus.yaml"
    file.write_text(FILE)
    scenario, conditions = load(file), load_with_conditions(file)[1]
    layout = lay_out(scenario, new_run(), backups=conditions.backups)
    (broker,) = layout.brokers.values()
    commander = layout.subscribers["commander"]
    crossed = []

    class Prober(Log):
        async def situation_changed(self, situation: Situation) -> None:
            assert arrives(broker, commander)
            assert arrives(commander, broker)
            crossed.append(sorted(situation.feeding_ports(scenario)))

    log = Prober()
    with Box(layout, journal=Journal(tmp_path / "journal")) as box:
        asyncio.run(play(scenario, conditions, log, box, sleep_until=log.sleep_until))
    assert crossed == [["trunk-2"]] * 3 + [["trunk"]] * 2


def test_the_clock_of_a_run_is_real_time(tmp_path: Path) -> None:
    file = tmp_path / "campus.yaml"
    file.write_text(TWO_SWITCHES + "\nconditions: [{at_seconds: 0.2, port: radio, bandwidth_bps: 160000}]\n")
    log = Log()

    async def timed() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await play(load(file), load_with_conditions(file)[1], log)
        return loop.time() - start

    assert asyncio.run(timed()) >= 0.2
    assert [what for _, *what in log.changes] == [["radio", 160000.0], ["changed"]]
