"""Publications that a trace recorded, for whoever publishes them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from triagemq.errors import TraceError
from triagemq.lab.generators import prototype, table2
from triagemq.lab.recordings import RecordedStream, recorded_at_hosts, recorded_seconds
from triagemq.scenario import Scenario
from triagemq.simulate.replay import recorded_publications
from triagemq.trace import Outcome, TraceWriter

BEGUN_NS = 1_800_000_000_000_000_000


def record(
    folder: Path,
    producer: str,
    published_ns: list[int],
    topic: list[int],
    publisher: list[int],
    copies: dict[str, list[int]] | None = None,
) -> Path:
    with TraceWriter(folder / "trace", scenario_text="", plan_text=None, producer=producer) as writer:
        writer.publications(
            {
                "publication_id": np.arange(len(topic)),
                "topic_id": np.array(topic),
                "publisher_id": np.array(publisher),
                "published_ns": np.array(published_ns),
                "size_bytes": 100 + np.arange(len(topic)),
            }
        )
        if copies is not None:
            writer.deliveries(copies)
        writer.finish(measured_from_ns=0)
    return folder / "trace"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return table2(seed=1)


def test_a_simulation_is_replayed_at_its_own_times(tmp_path: Path, scenario: Scenario) -> None:
    own = scenario.publications
    rows = [5, 0, 7]
    trace = record(
        tmp_path, "simulate", [700, 800, 900], own.topic[rows].tolist(), own.publisher[rows].tolist()
    )
    found = recorded_publications(trace, scenario)
    assert found["publication"].tolist() == rows
    assert found["published_ns"].tolist() == [700, 800, 900]
    assert found["size_bytes"].tolist() == [100, 101, 102]


def test_a_live_run_begins_with_its_first_event_and_anybody_may_have_published_it(
    tmp_path: Path, scenario: Scenario
) -> None:
    topics = scenario.publications.topic[[9, 4]].tolist()
    trace = record(tmp_path, "gateway", [BEGUN_NS + 2_500_000_000, BEGUN_NS], topics, [-1, -1])
    found = recorded_publications(trace, scenario)
    assert found["published_ns"].tolist() == [0, 2_500_000_000]
    assert scenario.publications.topic[found["publication"]].tolist() == topics[::-1]
    assert recorded_seconds(trace, scenario) == 3.0
    later = recorded_publications(trace, scenario, from_ns=BEGUN_NS + 1)
    assert later["published_ns"].tolist() == [2_499_999_999]


def test_events_come_in_order_and_each_once(tmp_path: Path, scenario: Scenario) -> None:
    topic = int(scenario.publications.topic[0])
    times = [3_000_000_000, 1_000_000_000, 2_000_000_000, 1_000_000_001]
    stream = RecordedStream(record(tmp_path, "simulate", times, [topic] * 4, [-1] * 4), scenario)
    assert stream.until(0.0).tolist() == []
    assert [event[0] for event in stream.until(2.0).tolist()] == [1_000_000_000, 1_000_000_001]
    assert stream.until(2.0).tolist() == []
    assert [event[2] for event in stream.until(1e9).tolist()] == [102, 100]
    assert stream.until(2e9).tolist() == []


def test_events_set_out_when_they_reached_their_first_queue(tmp_path: Path, scenario: Scenario) -> None:
    topic = int(scenario.publications.topic[0])
    copies = {
        "publication_id": [0, 0, 1, 3],
        "subscription_id": [0, 1, 0, 0],
        "subscriber_id": [0, 1, 0, 0],
        "topic_id": [topic] * 4,
        **dict.fromkeys(("flow_id", "priority_class", "dequeued_ns", "delivered_ns"), [-1] * 4),
        "published_ns": [1000, 1000, 2000, 4000],
        # The second event overtakes the first, the third got nowhere.
        "enqueued_ns": [2600, 2700, 2500, 4300],
        "size_bytes": [100] * 4,
        "outcome": [int(Outcome.lost_on_link)] * 4,
    }
    trace = record(tmp_path, "emulate", [1000, 2000, 3000, 4000], [topic] * 4, [-1] * 4, copies)
    found = recorded_at_hosts(trace, scenario, 1000)
    assert found["published_ns"].tolist() == [1000, 0, 2000, 3000]
    assert found["under_way_ns"].tolist() == [1500, 1600, 2500, 3300]


def test_the_trace_of_another_scenario_is_refused(tmp_path: Path, scenario: Scenario) -> None:
    trace = record(tmp_path, "simulate", [0], [int(scenario.publications.topic[0])], [10_000])
    with pytest.raises(TraceError, match="replay it with its own scenario"):
        recorded_publications(trace, scenario)
    trace = record(tmp_path / "other", "simulate", [0], [len(prototype().topics)], [-1])
    with pytest.raises(TraceError, match="replay it with its own scenario"):
        RecordedStream(trace, prototype())
