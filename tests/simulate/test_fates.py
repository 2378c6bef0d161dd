"""A simulation that is told which copies were dropped and lost drops and loses those, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triagemq.errors import ParameterError
from triagemq.lab.recordings import recorded_losses, recording
from triagemq.scenario import Scenario
from triagemq.simulate import simulate
from triagemq.trace import Outcome, Trace, TraceWriter

DROPPED, LOST = int(Outcome.dropped_by_policy), int(Outcome.lost_on_link)


@pytest.fixture
def chances(scenario_of: Any) -> Scenario:
    """Two topics for two subscribers each, one of them behind a trunk; every kind of link loses."""
    return scenario_of(
        topics=2,
        rates=[300.0, 200.0],
        sizes=[500.0, 300.0],
        fed_by=(-1, 0),
        port_switch=(0, 1),
        bandwidth=[4e6, 1.2e6],
        port_error=[0.05, 0.0],
        publisher_error=0.1,
        inbound_rate=5_000.0,
        switch_rate=8_000.0,
        subscriber_broker=(0, 0),
        subscriber_port=(0, 1),
        subscriber_error=[0.1, 0.2],
        subscriptions=[(0, 0), (0, 1), (1, 0), (1, 1)],
    )


def recorded(folder: Path, scenario: Scenario, plan: Any, **asked: Any) -> Path:
    with TraceWriter(folder, scenario_text="", plan_text=None, producer="simulate") as writer:
        simulate(scenario, plan, sink=writer, warmup=0.0, **asked)
        writer.finish(measured_from_ns=0)
    return folder


def copies(path: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    rows = Trace.open(path).table("deliveries").to_pylist()
    return {(row["published_ns"], row["topic_id"], row["subscription_id"]): row for row in rows}


def test_the_same_copies_are_dropped_and_lost_whatever_is_drawn(
    tmp_path: Path, chances: Scenario, plan_of: Any
) -> None:
    plan = plan_of(chances, [0, 1, 0, 1], [0.0, 0.3, 0.1, 0.5])
    first = recorded(tmp_path / "first", chances, plan, publications=4_000, seed=1)
    happened = recording(first, chances)
    found = {
        seed: copies(
            recorded(
                tmp_path / f"again{seed}",
                chances,
                plan,
                replay=happened.publications,
                losses=happened.losses,
                seed=seed,
            )
        )
        for seed in (1, 2)
    }
    before = copies(first)
    assert {row["outcome"] for row in before.values()} == {"delivered", "dropped_by_policy", "lost_on_link"}
    for seed, after in found.items():
        assert after.keys() == before.keys()
        assert all(after[key]["outcome"] == row["outcome"] for key, row in before.items()), seed
    # Behind one port nothing is left to chance but what a seed decides; where a trunk loses, nobody knows which link it
    # was, and the queue behind the trunk is another one.
    straight = {key: row for key, row in before.items() if key[2] in (0, 1)}
    assert all(found[1][key] == row for key, row in straight.items())


def test_what_is_lost_on_a_link_has_taken_its_bandwidth_and_what_is_dropped_has_not(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = scenario_of(bandwidth=8e5, publisher_error=0.5, subscriber_error=0.5)
    plan = plan_of(scenario, [0], [0.5])
    replay = {
        "published_ns": np.zeros(4, np.int64),
        "publication": np.zeros(4, np.int32),
        "size_bytes": [100] * 4,
    }

    def latencies_ms(outcome: int, hop: int) -> list[float]:
        sink = memory_sink()
        table = {"event": [1], "subscription": [0], "outcome": [outcome], "hop": [hop]}
        losses = recorded_losses(scenario, replay["publication"], table)
        simulate(scenario, plan, replay=replay, losses=losses, warmup=0.0, sink=sink)
        rows = sink.table("deliveries")
        assert sorted(rows["outcome"].tolist()) == [0, 0, 0, outcome]
        return sorted((rows["delivered_ns"][rows["outcome"] == 0] * 1e-6).round(3).tolist())

    # A packet of 100 bytes takes a millisecond.
    assert latencies_ms(LOST, 0) == [1.0, 3.0, 4.0]
    assert latencies_ms(LOST, -1) == latencies_ms(DROPPED, -1) == [1.0, 2.0, 3.0]


def test_replications_beside_a_run_differ_in_nothing_that_was_recorded(
    tmp_path: Path, chances: Scenario, plan_of: Any
) -> None:
    plan = plan_of(chances, [0, 1, 0, 1], [0.0, 0.3, 0.1, 0.5])
    happened = recording(recorded(tmp_path / "run", chances, plan, publications=1_000), chances)
    drawn, told = (
        simulate(chances, plan, replay=happened.publications, losses=losses, replications=4)
        for losses in (None, happened.losses)
    )
    assert (told.classes.success_ci95 == 0).all()
    assert (drawn.classes.success_ci95 > 0).any()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"event": [7]}, "event must be from 0 to 0"),
        ({"subscription": [4]}, "subscription must be from 0 to 3"),
        ({"subscription": [1]}, "other topics"),
        ({"outcome": [int(Outcome.in_flight)]}, "outcome must be"),
        ({"hop": [1]}, "hop must be"),
        ({"hop": [0, 0]}, "unequal length"),
    ],
)
def test_fates_that_cannot_be_are_refused(
    chances: Scenario, plan_of: Any, changed: dict[str, Any], words: str
) -> None:
    plan = plan_of(chances, [0, 1, 0, 1])
    replay = {"published_ns": np.array([0]), "publication": np.array([0], np.int32), "size_bytes": [100]}
    table = {"event": [0], "subscription": [0], "outcome": [LOST], "hop": [0]}
    losses = recorded_losses(chances, replay["publication"], table)
    simulate(chances, plan, replay=replay, losses=losses)
    with pytest.raises(ParameterError, match=words):
        recorded_losses(chances, replay["publication"], table | changed)
    with pytest.raises(ParameterError, match="give replay"):
        simulate(chances, plan, publications=10, losses=losses)
