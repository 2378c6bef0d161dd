"""Traces made by hand, the tables a real Spark makes of them, and the figures that pandas gets from the same rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from tests.pipeline.exact import frame_of

from triagemq.pipeline import SparkOptions, Tables, run_pipeline, spark_session
from triagemq.scenario import dumps, loads
from triagemq.trace import Outcome, TraceWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCENARIO = """
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 400000}, wire: {switch: core, bandwidth_bps: 1000000}}
publishers:
  sensor-a: {publishes: {smoke: {rate_per_second: 20, size_bytes: 60}, heat: {rate_per_second: 10, size_bytes: 200}}}
  sensor-b: {publishes: {heat: {rate_per_second: 10, size_bytes: 200}, door: {rate_per_second: 5, size_bytes: 40}}}
subscribers:
  commander: {port: radio, subscribes: {smoke: log:10, heat: linear:2, door: step:3@0.8}}
  archive:
    port: wire
    subscribes: {smoke: {utility: {shape: log, weight: 1, freshness_seconds: 0.5}}, heat: log:1, door: log:1}
"""
MEASURED_FROM_NS = 2_000_000_000
SECONDS = 24

WriteTrace = Callable[..., Path]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests of this folder; commands that run in this process use it too."""
    with spark_session(SparkOptions(master="local[2]")) as session:
        yield session


@pytest.fixture(scope="session")
def write_trace() -> WriteTrace:
    """`write_trace(directory, seed=1, publications=600, run_id=None)`: a run of 24 s with every outcome."""
    return _write_trace


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with everything in it."""
    return _write_trace(tmp_path_factory.mktemp("trace") / "run", run_id="one")


@pytest.fixture(scope="session")
def tables(spark: SparkSession, trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The tables of that run, in a directory whose name Spark could take for a pattern or a URL."""
    out = tmp_path_factory.mktemp("tables") / "100 % of [these] tables"
    run_pipeline([trace], out)
    return Tables(out)


@pytest.fixture(scope="session")
def measured_deliveries(trace: Path) -> pd.DataFrame:
    """Deliveries that count, with their latency in whole ns."""
    rows = frame_of(trace, "deliveries")
    rows = rows[rows["published_ns"] >= MEASURED_FROM_NS].copy()
    rows["outcome"] = rows["outcome"].astype(str)
    rows["latency_ns"] = rows["delivered_ns"] - rows["published_ns"]
    return rows


@pytest.fixture(scope="session")
def measured_publications(trace: Path) -> pd.DataFrame:
    """Publications that count."""
    rows = frame_of(trace, "publications")
    return rows[rows["published_ns"] >= MEASURED_FROM_NS].copy()


@pytest.fixture(scope="session")
def binned_percentile() -> Callable[[list[int], float], float]:
    """The stated definition, written anew: the middle of the bin of the value at this rank, 64 bins a doubling, and
    never more than the longest."""

    def percentile(latencies_ns: list[int], share: float) -> float:
        value = sorted(latencies_ns)[max(1, math.ceil(share * len(latencies_ns))) - 1]
        width = 2.0 ** (value.bit_length() - 1) / 64
        return min(math.floor(value / width) * width + width / 2, max(latencies_ns)) * 1e-9

    return percentile


@pytest.fixture(scope="session")
def assert_same_tables() -> Callable[[Tables, Tables], None]:
    """Equal rows in any order; sums of floats may differ in their last digits with the order of the rows."""

    def rows_of(tables: Tables, name: str) -> list[dict[str, Any]]:
        rows = tables.records(name)

        def key(row: dict[str, Any]) -> str:
            return json.dumps(
                {k: v for k, v in row.items() if not isinstance(v, float | list)}, sort_keys=True
            )

        return sorted(rows, key=key)

    def compare(found: Tables, expected: Tables) -> None:
        assert found.rows == expected.rows
        for name in expected.rows:
            for row, other in zip(rows_of(found, name), rows_of(expected, name), strict=True):
                for column, value in other.items():
                    if isinstance(value, float):
                        assert row[column] == pytest.approx(value, rel=1e-9, abs=1e-12), (name, column)
                    elif isinstance(value, list):
                        order = [json.dumps(each) for each in value]
                        assert sorted(json.dumps(each) for each in row[column]) == sorted(order), (
                            name,
                            column,
                        )
                    elif column != "source" or name == "quarantine":
                        assert row[column] == value, (name, column)

    return compare


def _write_trace(
    directory: Path,
    *,
    seed: int = 1,
    publications: int = 600,
    run_id: str | None = None,
    damage: bool = False,
    sent_in: int | None = None,
    extra: dict[str, Any] | None = None,
    has_scenario: bool = True,
) -> Path:
    known = loads(SCENARIO)
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, SECONDS * 10**9, publications))
    which = random.integers(0, len(known.publications), publications)
    topic, publisher = known.publications.topic[which], known.publications.publisher[which]
    sizes = np.maximum(1, random.exponential(known.publications.size_bytes[which])).astype(np.int64)
    ids = np.arange(publications)
    event, subscription = np.nonzero(topic[:, None] == known.subscriptions.topic[None, :])
    priority_class = (subscription + (event % 7 == 0)) % 4
    latency = (random.exponential(2e6 * 3.0**priority_class) + 1e5).astype(np.int64)
    outcome = np.where(random.random(len(event)) < 0.8, 0, random.integers(0, len(Outcome), len(event)))
    published, delivered = times[event], outcome == Outcome.delivered
    published_topic = topic.copy()
    if damage:
        ids[10:13] = ids[9]
        published_topic[20:25] = 99
        latency[:4] = -500
    options: dict[str, Any] = {"producer": "test", "run_id": run_id, "rotate_rows": 997}
    text = dumps(known) if has_scenario else ""
    with TraceWriter(directory, scenario_text=text, plan_text=None, **options) as writer:
        writer.publications(
            {
                "publication_id": ids,
                "topic_id": published_topic,
                "publisher_id": publisher,
                "published_ns": times,
                "size_bytes": sizes,
            }
        )
        writer.deliveries(
            {
                "publication_id": event,
                "subscription_id": subscription,
                "subscriber_id": known.subscriptions.subscriber[subscription],
                "topic_id": topic[event],
                "flow_id": np.where(event % 5 == 0, -1, subscription),
                "priority_class": priority_class if sent_in is None else np.full(len(event), sent_in),
                "published_ns": published,
                "enqueued_ns": np.where(outcome == Outcome.dropped_by_policy, -1, published + 40_000),
                "dequeued_ns": np.where(
                    delivered, np.maximum(published + latency - 10_000, published + 40_000), -1
                ),
                "delivered_ns": np.where(delivered, published + latency, -1),
                "size_bytes": sizes[event],
                "outcome": outcome,
            }
        )
        writer.queue_samples(_samples(random))
        writer.finish(measured_from_ns=MEASURED_FROM_NS, extra=extra or {})
    return directory


def _samples(random: np.random.Generator) -> dict[str, Any]:
    """Two ports with two queues; packets come in bursts every 2 s."""
    count = SECONDS * 5
    series = []
    for port in range(2):
        for queue in range(2):
            instants = np.arange(1, count + 1) * 200_000_000
            packets = np.cumsum(random.poisson(3, count) + 40 * (np.arange(count) % 10 == port))
            series.append((np.full(count, port), np.full(count, queue), instants, packets))
    port_id, queue_number, instant, total = (np.concatenate(column) for column in zip(*series, strict=True))
    return {
        "port_id": port_id,
        "queue": queue_number,
        "sampled_ns": instant,
        "bytes_in": total * 100,
        "packets_in": total,
        "bytes_out": total * 99,
        "packets_out": total,
        "drops": total // 50,
        "backlog_bytes": (total % 7) * 100,
        "backlog_packets": total % 7,
        "width_bps": np.full(len(port_id), 400_000),
    }
