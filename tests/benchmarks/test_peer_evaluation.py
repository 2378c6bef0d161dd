"""What benchmarks/peers.py says of anybody's events is what TriageMQ's own figures say of the same ones."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from triagemq.lab.emulate.receipts import RECEIPT, SENT
from triagemq.live.figures import measure
from triagemq.scenario import Scenario, load
from triagemq.trace import Outcome, TraceWriter

ROOT = Path(__file__).parents[2]
BEGUN_NS, SECONDS = 1_800_000_000_000_000_000, 10.0
SHARED_FIGURES = ("priority_class", "count", "delivered", "success_rate", "p50_seconds", "p95_seconds")


@pytest.fixture
def evaluation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("peer_programs.evaluation")


@pytest.fixture
def scenario() -> Scenario:
    return load(ROOT / "examples" / "building-fire.yaml")


def events(scenario: Scenario, random: np.random.Generator) -> NDArray[np.void]:
    """Of every publication, at random times."""
    rows = [
        (int(publisher), int(topic), BEGUN_NS + int(at_ns), 100)
        for publisher, topic in zip(scenario.publications.publisher, scenario.publications.topic, strict=True)
        for at_ns in np.sort(random.integers(0, round(SECONDS * 1e9), 20))
    ]
    return np.array(rows, dtype=SENT)


def copies(scenario: Scenario, sent: NDArray[np.void], random: np.random.Generator) -> dict[str, Any]:
    """As a trace has them: two of three arrive, after some milliseconds or some seconds."""
    pairs = [
        (event, subscription)
        for event, topic in enumerate(sent["topic"].tolist())
        for subscription in np.flatnonzero(scenario.subscriptions.topic == topic).tolist()
    ]
    event, subscription = np.array(pairs, dtype=np.int64).T
    published_ns = sent["published_ns"][event]
    arrives = random.random(len(pairs)) < 2 / 3
    latency_ns = (random.exponential(1.0, len(pairs)) * 10 ** random.uniform(6, 9.5, len(pairs))).astype(
        np.int64
    )
    nothing = np.full(len(pairs), -1, dtype=np.int64)
    return {
        "publication_id": event,
        "subscription_id": subscription,
        "subscriber_id": scenario.subscriptions.subscriber[subscription].astype(np.int64),
        "topic_id": sent["topic"][event],
        "flow_id": nothing,
        "priority_class": nothing,
        "published_ns": published_ns,
        "enqueued_ns": published_ns,
        "dequeued_ns": np.where(arrives, published_ns, -1),
        "delivered_ns": np.where(arrives, published_ns + latency_ns, -1),
        "size_bytes": sent["size_bytes"][event],
        "outcome": np.where(arrives, int(Outcome.delivered), int(Outcome.lost_on_link)).astype(np.int8),
    }


def test_the_same_receipts_give_the_same_figures(
    evaluation: ModuleType, scenario: Scenario, tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    sent = events(scenario, random)
    rows = copies(scenario, sent, random)
    level = random.integers(0, 7, len(scenario.subscriptions))
    with TraceWriter(tmp_path / "trace", scenario_text="", plan_text=None, producer="emulate") as writer:
        writer.publications(
            {
                "publication_id": np.arange(len(sent)),
                "topic_id": sent["topic"],
                "publisher_id": sent["publisher"],
                "published_ns": sent["published_ns"],
                "size_bytes": sent["size_bytes"],
            }
        )
        writer.deliveries(rows)
        writer.finish(measured_from_ns=BEGUN_NS)
    own = measure(
        tmp_path / "trace",
        scenario,
        from_ns=BEGUN_NS,
        until_ns=BEGUN_NS + round(SECONDS * 1e9),
        planned=level,
        by_plan=True,
    )
    came = rows["delivered_ns"] >= 0
    receipts = np.empty(int(came.sum()), dtype=RECEIPT)
    for name, column in zip(
        RECEIPT.names, ("subscriber_id", "topic_id", "published_ns", "delivered_ns"), strict=True
    ):
        receipts[name] = rows[column][came]
    # What comes again, later, is no second delivery.
    again = receipts[:100].copy()
    again["received_ns"] += 1_000_000_000
    found = evaluation.evaluated(scenario, level, sent, np.concatenate([again, receipts]))
    assert found["utility"] == pytest.approx(own.utility)
    assert (found["copies"], found["delivered"]) == (own.copies, own.deliveries)
    assert found["classes"] == [{name: row[name] for name in SHARED_FIGURES} for row in own.classes]


def test_events_that_were_left_out_or_changed_are_noticed(evaluation: ModuleType) -> None:
    client = importlib.import_module("peer_programs.client")
    schedule = np.array([(0, 0, 0, 20), (10**9, 0, 0, 20), (5 * 10**9, 0, 0, 20)], dtype=client.SCHEDULE)
    sent = np.array([(0, 0, BEGUN_NS + 5, 20), (0, 0, BEGUN_NS + 10**9 + 7, 20)], dtype=SENT)
    kept = evaluation.as_scheduled(schedule, sent, BEGUN_NS, (10**9, 2 * 10**9))
    assert kept["published_ns"].tolist() == [BEGUN_NS + 10**9 + 7]
    with pytest.raises(ValueError, match="2 events were sent, and 3 were due"):
        evaluation.as_scheduled(schedule, sent, BEGUN_NS, (0, 6 * 10**9))
    with pytest.raises(ValueError, match="other events"):
        evaluation.as_scheduled(schedule, sent[1:], BEGUN_NS, (0, 10**9))
