"""`triage pipeline train`: models from the tables of runs, on a real Spark."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from tests.pipeline.standalone import standalone

from triagemq.cli.pipeline import models as list_models
from triagemq.delay.estimators import make_estimator
from triagemq.delay.learning.models import model_folders, newest_model
from triagemq.delay.learning.training import MOST_TREES, chosen_sets
from triagemq.delay.samples import COUNTER_SETS
from triagemq.errors import ModelError, ParameterError
from triagemq.lab.papers.shi.network import WIDTHS_BPS, observe, shi_scenario
from triagemq.lab.queue_delay import ReadErrors, predict_rows
from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline.store import PublishedRun, TableStore
from triagemq.pipeline.train import train
from triagemq.plan import make_plan
from triagemq.scenario import ArrivalProcess, Scenario, dumps
from triagemq.simulate import simulate
from triagemq.trace import TraceWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = [
    (traffic, load)
    for traffic in (ArrivalProcess.POISSON, ArrivalProcess.PERIODIC)
    for load in (0.06, 0.08, 0.11)
]
"""How publications arrive, and how much of the paper's queue rates they would take."""


SECONDS = 16.0


def congested(traffic: ArrivalProcess, load: float) -> Scenario:
    """The paper's port at a tenth of its bandwidth."""
    scenario = shi_scenario([load * width / 8_000 for width in WIDTHS_BPS], traffic)
    return scenario.with_tables(ports=scenario.ports.with_bandwidths(0.1 * scenario.ports.bandwidth_bps))


def write_runs(folder: Path) -> list[Path]:
    """Their traces."""
    for number, (traffic, load) in enumerate(RUNS):
        known = congested(traffic, load)
        with TraceWriter(
            folder / f"{number}",
            producer="simulate",
            run_id=f"run-{number}",
            scenario_text=dumps(known),
            plan_text=None,
        ) as writer:
            plan = make_plan(known, drops="none")
            simulate(known, plan, duration_seconds=SECONDS, warmup=0.0, seed=number, sink=writer, threads=1)
            writer.finish(measured_from_ns=0)
    return [folder / f"{number}" for number in range(len(RUNS))]


@pytest.fixture(scope="module")
def learned_from(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two tables that training reads, as the pipeline publishes them; a slow test has it make them."""
    folder, published = tmp_path_factory.mktemp("learned") / "tables", {}
    with TableStore.open(folder, kind="run") as store:
        store.begin()
        for number, (traffic, load) in enumerate(RUNS):
            run_id, known = f"run-{number}", congested(traffic, load)
            rows = pa.concat_tables(
                pa.table(
                    {
                        "run_id": [run_id] * len(run.samples),
                        "port_id": np.zeros(len(run.samples), np.int32),
                        "queue": np.full(len(run.samples), queue, np.int32),
                        "sampled_ns": run.samples.sampled_ns,
                        **{name: getattr(run.samples, name) for name in COUNTER_SETS["linux"]},
                        "width_bps": run.samples.width_bps.astype(np.int64),
                        "next_queueing_delay_seconds": pa.array(run.next_delay_seconds, from_pandas=True),
                    }
                )
                for queue, run in observe(known, SECONDS, seed=number).items()
            )
            text = pa.table({"run_id": [run_id], "text": [dumps(known)]})
            files = {
                name: (store.write(name, table, run=number),)
                for name, table in (("queue_features", rows), ("scenarios", text))
            }
            published[run_id] = PublishedRun(f"of {run_id}", "test", len(rows), len(rows), 0, {}, files)
        store.publish(published)
    return folder


@pytest.fixture(scope="module")
def models(spark: SparkSession, learned_from: Path) -> Path:
    out = learned_from.parent / "models"
    (folder,) = train(
        learned_from,
        out,
        counters=("openflow",),
        read_errors=ReadErrors(),
        sets=chosen_sets("shi-1,absolute-6"),
    )
    assert folder.parent == out / "openflow"
    return out


def test_a_model_says_what_it_learned_from_and_how_good_it_is_by_kind_of_traffic(models: Path) -> None:
    model = newest_model(models, "openflow")
    about = model.about
    assert set(about["runs"]) == {f"run-{number}" for number in range(len(RUNS))}
    assert [each["parameters"] for each in about["grid"]] == ["shi-1", "absolute-6"]
    assert about["chosen"] == min(about["grid"], key=lambda each: each["validation_seconds"])
    assert all(0 < each["trees"] < MOST_TREES for each in about["grid"])
    parts = {(each["traffic"], each["part"]) for each in about["errors"]}
    assert parts == {(kind, part) for kind in ("periodic", "poisson") for part in ("test", "validation")}
    # With read errors and without, validation rows are the last fifth of the time of the other runs.
    assert about["rows"]["validation"] / sum(about["rows"].values()) == pytest.approx(0.2, abs=0.03)
    assert sum(np.isfinite(low) for low, _ in model.ranges) > 40
    make_estimator("guarded", "openflow", model=model)


def test_models_are_listed_and_a_damaged_one_is_named(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list_models(models, json=True)
    (listed,) = json.loads(capsys.readouterr().out)["models"]
    assert (listed["counters"], listed["in_force"]) == ("openflow", True)
    newer = models / "openflow" / "9999"
    shutil.copytree(model_folders(models)[0], newer)
    (newer / "trees.json").write_text("{}")
    try:
        with pytest.raises(ModelError, match=r"9999/trees\.json: damaged"):
            list_models(models, json=True)
        assert len(json.loads(capsys.readouterr().out)["models"]) == 1
    finally:
        shutil.rmtree(newer)


def test_what_cannot_be_learned_from_is_refused_in_one_line_and_the_old_model_stays(
    models: Path, tables: Tables, tmp_path: Path
) -> None:
    before = newest_model(models, "openflow").about
    with pytest.raises(ParameterError, match="too few, of 500 and 100"):
        train(tables.place, models, counters=("openflow",))
    with pytest.raises(ParameterError, match="no tables there"):
        train(tmp_path / "nothing", models)
    with TableStore.open(tmp_path / "empty", kind="run") as store:
        store.begin()
        store.publish({})
    with pytest.raises(ParameterError, match="has nothing in queue_features"):
        train(tmp_path / "empty", models)
    with pytest.raises(ParameterError, match="'sflow' is no set of counters"):
        train(tables.place, models, counters=("sflow",))
    assert newest_model(models, "openflow").about == before


KILLED = """
import os, signal, sys
from pathlib import Path
from triagemq.delay.learning.models import load_model, save_model

os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
old, new = map(Path, sys.argv[1:])
model = load_model(old)
trees_json = (old / "trees.json").read_bytes()
save_model(new, trees_json, counters=model.counters, ranges=model.ranges, about=model.about)
"""
"""A training writes nothing before its model, and that with its description last: there it is killed."""


def test_a_training_that_is_killed_leaves_no_half_model_and_the_old_one_in_force(models: Path) -> None:
    before, (old,) = newest_model(models, "openflow").about, model_folders(models)
    new = models / "openflow" / "9999"
    killed = subprocess.run([sys.executable, "-c", KILLED, old, new], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (new / "trees.json").exists()
    assert model_folders(models) == [old]
    assert newest_model(models, "openflow").about == before
    shutil.rmtree(new)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_cluster_of_two_workers_predicts_what_this_machine_does(tmp_path: Path) -> None:
    run_pipeline(write_runs(tmp_path / "traces"), tmp_path / "tables")
    arguments = ["pipeline", "train", str(tmp_path / "tables"), "--read-errors", "--workers", "2", "--json"]
    with standalone(tmp_path / "logs") as cluster:
        for name, master in (("here", "local[2]"), ("there", cluster.address)):
            command = [sys.executable, "-c", "from triagemq.cli import main; main()", *arguments]
            command += ["--out", str(tmp_path / name), "--master", master]
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            # Workers of xgboost say who they are; not here.
            assert {each["counters"] for each in json.loads(ended.stdout)["models"]} == set(COUNTER_SETS)
    for counters in COUNTER_SETS:
        here, there = (newest_model(tmp_path / name, counters) for name in ("here", "there"))
        ranges = np.nan_to_num(np.array(here.ranges))
        rows = np.random.default_rng(1).uniform(ranges[:, 0], ranges[:, 1], (10_000, len(ranges)))
        found, expected = (predict_rows(model.trees, rows.astype(np.float32)) for model in (there, here))
        assert found == pytest.approx(expected, abs=1e-4)
        assert len(here.trees.roots) > 5
