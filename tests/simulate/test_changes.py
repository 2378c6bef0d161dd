"""A simulation follows the conditions of its scenario, with the plan that each of them calls for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triagemq.plan import make_plan
from triagemq.scenario import load, load_with_conditions
from triagemq.simulate import simulate
from triagemq.simulate.changes import condition_changes

# Smoke and water are offered 1.6 times what the radio carries; either alone fits.
FIRE = """
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 80000}}
publishers:
  sensor: {publishes: {smoke: {rate_per_second: 80, size_bytes: 100, sizes: constant}}}
  pump: {publishes: {water: {rate_per_second: 80, size_bytes: 100, sizes: constant}}}
subscribers:
  commander: {port: radio, subscribes: {smoke: linear:10, water: linear:1}}
worth_profiles:
  water-first: {water: 100}
"""


@pytest.fixture
def fire(tmp_path: Path) -> Any:
    def follow(*conditions: str, **options: Any) -> tuple[Any, Any]:
        file = tmp_path / "fire.yaml"
        lines = "".join(f"  - {{{each}}}\n" for each in conditions)
        file.write_text(f"{FIRE}conditions:\n{lines}")
        scenario = load(file)
        changes = condition_changes(scenario, load_with_conditions(file)[1], make_plan)
        plan = make_plan(scenario)
        return changes, simulate(
            scenario, plan, duration_seconds=100.0, warmup=0.0, changes=changes, threads=1, **options
        )

    return follow


def test_without_conditions_nothing_changes(fire: Any) -> None:
    changes, found = fire()
    assert changes == ()
    assert len(found.phases) == 0


def test_rates_and_errors_follow_the_conditions(fire: Any, memory_sink: Any) -> None:
    sink = memory_sink()
    fire(
        "at_seconds: 20, topic: smoke, rate_factor: 0.25",
        "at_seconds: 40, subscriber: commander, error_rate: 0.5",
        "at_seconds: 60, publisher: sensor, error_rate: 0.9",
        "at_seconds: 60, subscriber: commander, error_rate: 0",
        "at_seconds: 80, publisher: sensor, topic: smoke, rate_per_second: 120",
        sink=sink,
    )
    events, copies = sink.table("publications"), sink.table("deliveries")

    def by_twenty(times: Any) -> np.ndarray:
        return np.histogram(times * 1e-9, bins=5, range=(0.0, 100.0))[0] / 20

    smoke = events["topic_id"] == 0
    assert by_twenty(events["published_ns"][smoke]) == pytest.approx([80, 20, 20, 20, 120], rel=0.2)
    assert by_twenty(events["published_ns"][~smoke]) == pytest.approx([80] * 5, rel=0.2)
    lost = copies["outcome"] == 4
    own = copies["topic_id"] == 0
    shares = by_twenty(copies["published_ns"][lost & own]) / by_twenty(copies["published_ns"][own])
    assert shares == pytest.approx([0, 0, 0.5, 0.9, 0.9], abs=0.1)


def test_another_worth_profile_is_planned_for_and_judged_by(fire: Any) -> None:
    changes, found = fire("at_seconds: 50, worth_profile: water-first")
    keep = [change.plan.subscription_keep.tolist() for change in changes]
    assert keep[0] == pytest.approx(keep[1][::-1])
    assert keep[0][0] == 1.0
    assert keep[0][1] < 0.3
    assert found.phases.begins_seconds.tolist() == [0.0, 50.0]
    # Smoke, or water, arrives whole, and is worth ten elevenths, or ten elevenths of a hundred and ten.
    kept = keep[0][1]
    assert found.phases.utility_rate == pytest.approx([(10 + kept) / 11, (100 + 10 * kept) / 110], abs=0.03)
    assert found.phases.utility == pytest.approx([10 + kept, 100 + 10 * kept], rel=0.05)
    assert found.utility.achieved == pytest.approx(found.phases.utility.mean())
    # Judged by the file's own worth, the second half would be lost.
    assert found.subscriptions.success_rate == pytest.approx([(1 + kept) / 2] * 2, abs=0.05)


def test_the_plan_of_the_start_may_stay(tmp_path: Path, fire: Any) -> None:
    fire("at_seconds: 50, worth_profile: water-first")
    file = tmp_path / "fire.yaml"
    kept = condition_changes(load(file), load_with_conditions(file)[1], None, until_seconds=50.0)
    assert [(change.at_seconds, change.plan) for change in kept] == [(0.0, None)]


def test_results_do_not_depend_on_blocks_when_conditions_change_everything(fire: Any) -> None:
    everything = (
        "at_seconds: 20, topic: '#', rate_factor: 0.5",
        "at_seconds: 40, port: radio, bandwidth_bps: 40000",
        "at_seconds: 60, worth_profile: water-first",
        "at_seconds: 80, subscriber: commander, error_rate: 0.2",
    )
    told = []
    for block_events in (None, 1, 50):
        report = fire(*everything, block_events=block_events)[1].as_json()
        told.append({key: report[key] for key in report if key not in ("wall_seconds", "compile_seconds")})
    assert told[0] == told[1] == told[2]
