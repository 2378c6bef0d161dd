"""Conditions and backups in scenario files: read, checked like everything else, and laid out in time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from triagemq.errors import ScenarioError
from triagemq.scenario import load, load_with_conditions, loads, loads_with_conditions, save
from triagemq.scenario.conditions import (
    Condition,
    Conditions,
    situations,
)

TREE = """\
brokers: {hall: }
switches:
  core:
  annex:
  floor-1: {fed_by: trunk, backup: bypass}
  room-1: {fed_by: riser, backup: cable}
ports:
  trunk: {switch: core, bandwidth_bps: 1e6}
  bypass: {switch: annex, bandwidth_bps: 5e5}
  riser: {switch: floor-1, bandwidth_bps: 1e6}
  cable: {switch: core, bandwidth_bps: 1e5}
  radio: {switch: floor-1, bandwidth_bps: 320000}
  desk: {switch: room-1, bandwidth_bps: 320000}
publishers:
  sensor-1: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}
  7: {publishes: {door: {rate_per_second: 3, size_bytes: 60}}}
subscribers:
  engine: {port: radio, subscribes: {smoke: log:10}}
  clerk: {port: desk, subscribes: {smoke: log:1, door: log:1}}
"""
CONDITIONS = """\
conditions:
  - {at_seconds: 30, link: [core, floor-1], state: fails}
  - {at_seconds: 10, publisher: 7, state: fails}
  - {at_seconds: 5, subscriber: clerk, state: joins}
  - {at_seconds: 20, port: radio, bandwidth_bps: 160000}
  - {at_seconds: 40, link: [floor-1, core], state: returns}
  - {at_seconds: 40, publisher: 7, state: returns}
"""
INCIDENT = """\
worth_profiles:
  search: {smoke: 5}
  water: {"+": 2, smoke: 0.5}
conditions:
  - {at_seconds: 1, publisher: sensor-1, error_rate: 0.1}
  - {at_seconds: 2, subscriber: clerk, error_rate: 0.2}
  - {at_seconds: 3, port: trunk, error_rate: 0.3}
  - {at_seconds: 4, topic: "#", rate_factor: 3}
  - {at_seconds: 5, publisher: 7, topic: door, rate_per_second: 40}
  - {at_seconds: 6, worth_profile: search}
  - {at_seconds: 7, worth_profile: water}
  - {at_seconds: 8, worth_profile: usual}
"""


def test_conditions_are_read_in_order_of_time(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(TREE + CONDITIONS)
    assert load_with_conditions(file)[1] == Conditions(
        (
            Condition(5, subscriber="clerk", state="joins"),
            Condition(10, publisher="7", state="fails"),
            Condition(20, port="radio", bandwidth_bps=160000),
            Condition(30, link=("core", "floor-1"), state="fails"),
            Condition(40, link=("floor-1", "core"), state="returns"),
            Condition(40, publisher="7", state="returns"),
        ),
        {"floor-1": "bypass", "room-1": "cable"},
    )


def test_error_rates_rates_and_worth_may_change(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(TREE + INCIDENT)
    conditions = load_with_conditions(file)[1]
    assert conditions.timeline == (
        Condition(1, publisher="sensor-1", error_rate=0.1),
        Condition(2, subscriber="clerk", error_rate=0.2),
        Condition(3, port="trunk", error_rate=0.3),
        Condition(4, topic="#", rate_factor=3),
        Condition(5, topic="door", publisher="7", rate_per_second=40),
        Condition(6, worth_profile="search"),
        Condition(7, worth_profile="water"),
        Condition(8, worth_profile="usual"),
    )
    assert conditions.profiles == {"search": {"smoke": 5}, "water": {"+": 2, "smoke": 0.5}}
    scenario = load(file)
    course = situations(scenario, conditions)
    last = course[-1].network(scenario)
    lost = {
        name: dict(zip(table.name, table.error_rate.tolist(), strict=True))
        for name, table in (
            ("port", last.ports),
            ("publisher", last.publishers),
            ("subscriber", last.subscribers),
        )
    }
    assert (lost["publisher"]["sensor-1"], lost["subscriber"]["clerk"], lost["port"]["trunk"]) == (
        0.1,
        0.2,
        0.3,
    )
    assert sum(sum(each.values()) for each in lost.values()) == pytest.approx(0.6)
    # Publications are those of 7 on door, then of sensor-1 on smoke.
    assert [each.publication_rate(scenario).tolist() for each in course[3:6]] == [[3, 2], [9, 6], [40, 6]]
    assert last.publications.rate_per_second.tolist() == [40, 6]
    topics = [scenario.topics.name[row] for row in scenario.subscriptions.topic]
    assert topics == ["door", "smoke", "smoke"]
    assert [each.utility_weight.tolist() for each in course[5:]] == [
        [1, 1, 10],
        [1, 5, 50],
        [2, 0.5, 5],
        [1, 1, 10],
    ]


@pytest.mark.parametrize("text", [CONDITIONS, INCIDENT])
@pytest.mark.parametrize("name", ["saved.yaml", "saved"])
def test_what_is_saved_with_its_conditions_loads_to_the_same(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(TREE + text)
    scenario, conditions = load(file), load_with_conditions(file)[1]
    save(scenario, tmp_path / name, conditions=conditions)
    assert load_with_conditions(tmp_path / name)[1] == conditions
    assert load(tmp_path / name).fingerprint == scenario.fingerprint


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [
        ("error_rate: 0.1", "error_rate: 1", 5, "conditions.1.error_rate"),
        ("trunk, error_rate: 0.3", "trunk, rate_factor: 3", 7, "conditions.3.rate_factor"),
        ('"#", rate_factor: 3', '"#"', 8, "conditions.4.rate_per_second"),
        (
            "factor: 3",
            "factor: 3, rate_per_second: 1",
            8,
            "conditions.4.rate_factor",
        ),
        ('topic: "#"', "topic: smoek", 8, "conditions.4.topic"),
        ('topic: "#"', "topic: fire/#", 8, "conditions.4.topic"),
        ("topic: door", "topic: smoke", 9, "conditions.5.topic"),
        ("worth_profile: search", "worth_profile: serach", 10, "conditions.6.worth_profile"),
        ("search: {smoke: 5}", "search: {smoek: 5}", 2, "worth_profiles.search.smoek"),
        ("search: {smoke: 5}", "search: {smoke: much}", 2, "worth_profiles.search.smoke"),
        ("search: {smoke: 5}", "search: {smoke: -1}", 2, "worth_profiles.search.smoke"),
    ],
)
def test_an_error_in_what_may_change_is_named_with_its_line(
    old: str, new: str, line: int, field: str
) -> None:
    assert INCIDENT.count(old) == 1
    with pytest.raises(ScenarioError) as raised:
        loads(TREE + INCIDENT.replace(old, new))
    (problem,) = raised.value.problems
    assert (problem.line, problem.field) == (line + TREE.count("\n"), field)
    assert problem.what
    assert problem.fix


def test_a_file_without_conditions_has_none_and_a_directory_may_have_them(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(
        TREE.replace(", backup: bypass", "").replace(", backup: cable", "")
    )
    assert load_with_conditions(tmp_path)[1] == Conditions()
    (tmp_path / "scenario.yaml").write_text(TREE + CONDITIONS)
    assert len(load_with_conditions(tmp_path)[1].timeline) == 6


def test_conditions_change_neither_the_scenario_nor_its_fingerprint() -> None:
    bare = TREE.replace(", backup: bypass", "").replace(", backup: cable", "")
    assert loads(TREE + CONDITIONS).fingerprint == loads(bare).fingerprint


def test_situations_follow_each_other(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(TREE + CONDITIONS)
    scenario = load(file)
    course = situations(scenario, load_with_conditions(file)[1])
    assert [each.at_seconds for each in course] == [0, 5, 10, 20, 30, 40]
    clerk, radio = scenario.subscribers.name.index("clerk"), scenario.ports.name.index("radio")
    assert [bool(each.subscriber_present[clerk]) for each in course] == [False, True, True, True, True, True]
    assert [each.bandwidth_bps[radio] for each in course] == [320000] * 3 + [160000] * 3
    assert [each.publication_rate(scenario).tolist() for each in course[1:3]] == [[3, 2], [0, 2]]
    assert [int(each.active_subscriptions(scenario).sum()) for each in course[:2]] == [1, 3]
    feeding = [sorted(each.feeding_ports(scenario)) for each in course]
    assert feeding == [["riser", "trunk"]] * 4 + [["bypass", "riser"], ["riser", "trunk"]]
    changed = course[4].network(scenario)
    assert changed.ports.bandwidth_bps[radio] == 160000
    assert scenario.ports.bandwidth_bps[radio] == 320000
    fed = changed.switches.fed_by_port[changed.switches.name.index("floor-1")]
    assert changed.ports.name[fed] == "bypass"
    assert course[0].network(scenario).fingerprint == scenario.fingerprint


@pytest.mark.parametrize(
    ("down", "feeding", "cut_off"),
    [
        ([], ["riser", "trunk"], []),
        (["trunk"], ["bypass", "riser"], []),
        (["riser"], ["cable", "trunk"], []),
        (["trunk", "bypass"], ["cable"], ["floor-1"]),
        (["trunk", "bypass", "cable"], [], ["floor-1", "room-1"]),
        (["riser", "cable"], ["trunk"], ["room-1"]),
    ],
)
def test_switches_fall_back_on_their_backups(down: list[str], feeding: list[str], cut_off: list[str]) -> None:
    scenario = loads(TREE)
    backups = {"floor-1": "bypass", "room-1": "cable"}
    ends = {
        "trunk": ("core", "floor-1"),
        "bypass": ("floor-1", "annex"),
        "riser": ("floor-1", "room-1"),
        "cable": ("core", "room-1"),
    }
    failing = tuple(Condition(1, link=ends[port], state="fails") for port in down)
    now = situations(scenario, Conditions(failing, backups))[-1]
    assert sorted(now.feeding_ports(scenario)) == feeding
    assert [scenario.switches.name[row] for row in np.flatnonzero(~now.switch_reached)] == cut_off


@pytest.mark.parametrize(
    ("old", "new", "line", "field"),
    [
        ("port: radio", "port: radoi", 5, "conditions.4.port"),
        (
            "publisher: 7, state: fails",
            "publisher: 8, state: fails",
            3,
            "conditions.2.publisher",
        ),
        ("subscriber: clerk", "subscriber: clark", 4, "conditions.3.subscriber"),
        ("[core, floor-1]", "[core, floor-9]", 2, "conditions.1.link"),
        ("[core, floor-1]", "[annex, core]", 2, "conditions.1.link"),
        ("[core, floor-1]", "[core]", 2, "conditions.1.link"),
        ("[core, floor-1], state: fails", "[core, floor-1]", 2, "conditions.1.state"),
        ("clerk, state: joins", "clerk, state: fails", 4, "conditions.3.state"),
        ("clerk, state: joins", "clerk, state: jions", 4, "conditions.3.state"),
        ("radio, bandwidth_bps: 160000", "radio, state: fails", 5, "conditions.4.state"),
        ("radio, bandwidth_bps: 160000", "radio", 5, "conditions.4.bandwidth_bps"),
        ("bandwidth_bps: 160000", "bandwidth_bps: 0", 5, "conditions.4.bandwidth_bps"),
        ("at_seconds: 20, ", "", 5, "conditions.4.at_seconds"),
        ("at_seconds: 20", "at_seconds: -1", 5, "conditions.4.at_seconds"),
        ("at_seconds: 20", "at_second: 20", 5, "conditions.4.at_second"),
        ("port: radio, ", "port: radio, publisher: 7, ", 5, "conditions.4"),
        ("subscriber: clerk, ", "", 4, "conditions.3"),
    ],
)
def test_an_error_in_a_condition_is_named_with_its_line(old: str, new: str, line: int, field: str) -> None:
    assert CONDITIONS.count(old) == 1
    with pytest.raises(ScenarioError) as raised:
        loads(TREE + CONDITIONS.replace(old, new))
    (problem,) = raised.value.problems
    assert (problem.line, problem.field) == (line + TREE.count("\n"), field)
    assert problem.what
    assert problem.fix


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("backup: bypass", "backup: bypas", "there is no port 'bypas'"),
        ("backup: bypass", "backup: trunk", "as fed_by is"),
        ("backup: bypass", "backup: radio", "has the subscriber engine"),
        ("backup: bypass", "backup: riser", "feeds the switch room-1 already"),
        ("backup: cable", "backup: bypass", "is the backup of floor-1 already"),
        ("bypass: {switch: annex", "bypass: {switch: room-1", "is behind floor-1 itself"),
        ("{fed_by: trunk, backup: bypass}", "{backup: bypass}", "stands without fed_by"),
    ],
)
def test_a_backup_is_a_port_of_its_own(old: str, new: str, what: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        loads(TREE.replace(old, new))
    (problem,) = raised.value.problems
    assert what in problem.what
    assert problem.line in (5, 6)
    assert problem.field.endswith(".backup")


@pytest.mark.parametrize("text", ["conditions: 7", "conditions: {at_seconds: 5}", "conditions: [7]"])
def test_conditions_are_a_list_of_mappings(text: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        loads(f"{TREE}{text}\n")
    assert raised.value.problems[0].field.startswith("conditions")


def test_no_conditions_are_fine() -> None:
    loads(f"{TREE}conditions:\n")
    loads(f"{TREE}conditions: []\n")
    _, conditions = loads_with_conditions(f"{TREE}worth_profiles: {{search: , water: {{}}}}\n")
    assert conditions.profiles == {"search": {}, "water": {}}
