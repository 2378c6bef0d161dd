"""`triage emulate examples/building-campus.yaml`: figures beside simulation and forecast, and the Trace of them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from tests.live.machine import CAMPUS, TRIAGE, machine

from triagemq.lab.emulate.wire import wire_bytes
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.tables.queue_features import INTERVAL_NS
from triagemq.scenario import load, port_paths
from triagemq.trace import Trace

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

SECONDS = 6
SLOW = pytest.mark.slow
DATA_PLANES = ["linux", pytest.param("embedded", marks=SLOW), pytest.param("openflow", marks=SLOW)]


@dataclass(frozen=True)
class Run:
    """What the command said, and where it wrote."""

    figures: dict[str, Any]
    facts: dict[str, Any]
    trace: Trace
    folder: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def run(dataplane: str) -> Run:
        folder = tmp_path_factory.mktemp(dataplane)
        with machine() as alone:
            running = alone.start(
                *(TRIAGE, "emulate", str(CAMPUS), "--dataplane", dataplane),
                *("--for", str(SECONDS), "--trace", "trace", "--json"),
                folder=folder,
            )
            facts = running.ready()
            done = running.finish()
        assert done.returncode == 0, done.stderr
        return Run(json.loads(done.stdout), facts, Trace.open(folder / "trace"), folder)

    return run


@pytest.fixture(params=DATA_PLANES)
def run(runs: Any, request: pytest.FixtureRequest) -> Run:
    found = runs(request.param)
    assert isinstance(found, Run)
    return found


def test_the_keys_are_those_of_simulate_and_more(run: Run) -> None:
    simulated = run.figures["simulated"]
    of_the_program = {"wall_seconds", "compile_seconds", "replications", "precision_reached", "ports"}
    # A real run ends in time: nothing is drained or comes late.
    of_its_end = {"drained_seconds", "late_deliveries", "late_excluded"}
    assert set(simulated) - set(run.figures) == of_the_program | of_its_end
    assert set(run.figures["classes"][0]) >= set(simulated["classes"][0])
    assert set(run.figures["utility"]) >= {"achieved", "maximum", "rate", "rate_mean"}
    assert {"classes", "utility"} <= set(run.figures["forecast"])
    assert Path(run.figures["trace"]) == run.folder / "trace"


def test_success_is_as_planned(run: Run) -> None:
    planned = {row["priority_class"]: row["success_rate"] for row in run.figures["forecast"]["classes"]}
    assert len(run.figures["classes"]) == 7
    assert run.figures["classes"][0]["success_rate"] == 1.0
    for row in run.figures["classes"]:
        apart = abs(row["success_rate"] - planned[row["priority_class"]])
        # Of a short run the interval is wide: few seconds of bursts, and topics of different drop rates in a class.
        assert apart <= max(0.03, row["success_ci99"]), row


def test_success_is_that_of_the_same_events_simulated(run: Run) -> None:
    simulated = {row["priority_class"]: row for row in run.figures["simulated"]["classes"]}
    for row in run.figures["classes"]:
        twin = simulated[row["priority_class"]]
        # The same publications; what differs is which packets the two drop at random.
        chance = 4 * np.sqrt(0.25 / row["count"])
        assert row["success_rate"] == pytest.approx(twin["success_rate"], abs=max(0.03, chance))


def test_the_trace_adds_up(run: Run) -> None:
    scenario = load(CAMPUS)
    publications = run.trace.table("publications")
    deliveries = run.trace.table("deliveries")
    counts = run.trace.counts()
    assert run.figures["publications"] == publications.num_rows
    assert counts["delivered"] + counts["dropped_by_policy"] == deliveries.num_rows, counts
    assert counts["dropped_by_policy"] > 0
    subscribed = np.bincount(scenario.subscriptions.topic, minlength=len(scenario.topics))
    # A copy for every subscriber of the topic.
    assert deliveries.num_rows == subscribed[publications["topic_id"].to_numpy()].sum()
    arrived = deliveries.filter(pc.equal(deliveries["outcome"].cast("string"), "delivered"))
    assert pc.all(pc.greater(arrived["delivered_ns"], arrived["published_ns"])).as_py()
    assert run.trace.manifest is not None
    assert run.trace.manifest.producer == "emulate"
    assert run.trace.manifest.measured_from_ns == run.figures["measured_from_ns"]


def test_the_trace_has_decisions_and_samples_of_every_queue(run: Run) -> None:
    scenario = load(CAMPUS)
    samples = run.trace.table("queue_samples").to_pandas()
    assert set(zip(samples["port_id"], samples["queue"], strict=True)) >= {
        (port, queue) for port in range(len(scenario.ports)) for queue in range(7)
    }
    radio = samples[samples["port_id"] == scenario.ports.name.index("floor-radio")]
    last = radio.sort_values("sampled_ns").groupby("queue").last()
    deliveries = run.trace.table("deliveries", ["subscriber_id", "outcome"]).to_pandas()
    behind = np.flatnonzero(
        scenario.subscribers.port == scenario.ports.name.index("floor-radio")
    )  # who gets what this port sends
    arrived = deliveries[(deliveries["outcome"] == "delivered") & deliveries["subscriber_id"].isin(behind)]
    assert last["packets_out"].sum() == len(arrived)
    decisions = run.trace.table("decisions").to_pylist()
    assert any(row["kind"] == "replanned" for row in decisions)


@pytest.mark.parametrize("dataplane", ["linux", pytest.param("openflow", marks=SLOW)])
def test_every_copy_has_the_kernels_times_at_each_port_of_its_way(runs: Any, dataplane: str) -> None:
    run, scenario = runs(dataplane), load(CAMPUS)
    hops, deliveries = run.trace.table("hops").to_pandas(), run.trace.table("deliveries").to_pandas()
    arrived = deliveries[deliveries["outcome"] == "delivered"].set_index(
        ["publication_id", "subscription_id"]
    )
    copies = hops.sort_values("hop").groupby(["publication_id", "subscription_id"])
    ways = copies["port_id"].agg(tuple).loc[arrived.index]
    paths = port_paths(scenario)[scenario.subscribers.port[arrived["subscriber_id"]]]
    assert ways.tolist() == [tuple(path[path >= 0].tolist()) for path in paths]
    assert (arrived["enqueued_ns"] == copies["enqueued_ns"].first().loc[arrived.index]).all()
    assert (arrived["dequeued_ns"] == copies["dequeued_ns"].last().loc[arrived.index]).all()
    assert (hops["dequeued_ns"] >= hops["enqueued_ns"]).all()
    assert (arrived["enqueued_ns"] >= arrived["published_ns"]).all()
    # A virtual wire has a packet there at the start of its transmission, and it has left at the end. One clock stamps
    # what arrives, another what leaves; they are set side by side five times a second.
    last_bps = scenario.ports.bandwidth_bps[[way[-1] for way in ways]]
    transmission_ns = 8e9 * wire_bytes(arrived["size_bytes"].to_numpy()) / last_bps
    assert (arrived["dequeued_ns"] - transmission_ns <= arrived["delivered_ns"] + 1_000_000).all()
    samples = run.trace.table("queue_samples").to_pandas().sort_values("sampled_ns")
    sent = samples.groupby(["port_id", "queue"])["packets_out"].last()
    # Every event of this scenario fits into one packet, and not one that left a queue is missing.
    assert hops.groupby(["port_id", "queue"]).size().to_dict() == sent[sent > 0].to_dict()


@pytest.mark.slow
def test_the_pipeline_takes_the_trace(runs: Any) -> None:
    run = runs("linux")
    done = subprocess.run(
        [TRIAGE, "pipeline", "run", "trace", "--out", "tables", "--json"],
        cwd=run.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    features = Tables(run.folder / "tables").table("queue_features").to_pandas()
    hops = run.trace.table("hops").to_pandas()
    begun_ns = run.trace.table("queue_samples").to_pandas()["sampled_ns"].min()
    hops["seconds"] = (hops["dequeued_ns"] - hops["enqueued_ns"]) * 1e-9
    hops["window"] = (hops["enqueued_ns"] - begun_ns) // INTERVAL_NS
    features["window"] = (features["sampled_ns"] - begun_ns + INTERVAL_NS // 2) // INTERVAL_NS
    queue = ["port_id", "queue", "window"]
    measured = hops.groupby(queue)["seconds"].agg(["mean", "size"])
    rows = features.dropna(subset="next_packets").join(measured, on=queue)
    assert (rows["next_packets"] == rows["size"]).all()
    assert rows["next_queueing_delay_seconds"].tolist() == pytest.approx(rows["mean"].tolist(), rel=1e-6)
    # What came before the run was measured has no rows.
    counted = (hops["enqueued_ns"] >= run.trace.manifest.measured_from_ns).sum()
    assert rows.drop_duplicates(queue)["size"].sum() > 0.95 * counted
