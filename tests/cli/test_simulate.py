"""`triage simulate` and `triage validate` as a stranger runs them: figures, traces, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_commands import TRIAGE, run, run_json

from triagemq.errors import TraceError
from triagemq.lab.papers.midas.network import midas_scenario
from triagemq.scenario import Discipline, save
from triagemq.trace import Trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("simulate")
    run("generate", "table2", "--seed", "1", "-o", "t2.yaml", folder=place)
    return place


def test_figures_per_class_have_the_keys_that_scripts_use(folder: Path) -> None:
    result = run_json(
        "simulate", "t2.yaml", "--drops", "exponential", "--publications", "50000", folder=folder
    )
    assert {"publications", "deliveries", "wall_seconds", "classes", "utility"} <= set(result)
    assert result["publications"] == 50_000
    assert [row["priority_class"] for row in result["classes"]] == list(range(9))
    assert {"success_rate", "mean_latency_seconds", "ci95_seconds"} <= set(result["classes"][0])
    assert result["classes"][0]["success_rate"] == 1.0


def test_the_same_seed_gives_the_same_result_on_any_number_of_threads(folder: Path) -> None:
    runs = [
        run_json(
            "simulate", "t2.yaml", "--publications", "20000", "--replications", "4", "--threads", threads, "--full",
            folder=folder,
        )
        for threads in ("1", "3")
    ]  # fmt: skip
    for result in runs:
        for name in ("wall_seconds", "compile_seconds"):
            del result[name]
    assert runs[0] == runs[1]


def test_a_trace_says_what_the_simulation_says_and_replays_to_the_same(folder: Path) -> None:
    seen = run_json("simulate", "t2.yaml", "--publications", "20000", "--trace", "trace", folder=folder)
    trace = Trace.open(folder / "trace")
    counts = trace.counts(from_ns=seen["measured_from_ns"])
    assert counts["delivered"] == seen["deliveries"]
    assert sum(counts.values()) == seen["copies"]
    assert trace.table("publications", ["publication_id"]).num_rows == 20_000
    assert trace.plan_text is not None
    replayed = run_json("simulate", "t2.yaml", "--replay", "trace", folder=folder)
    assert replayed["publications"] == 20_000
    told = ("--recorded-losses", "--seed", "7", "--warmup", "0")
    again = run_json("simulate", "t2.yaml", "--replay", "trace", *told, folder=folder)
    assert again["deliveries"] == trace.counts()["delivered"] < again["copies"]


def test_a_plan_for_another_scenario_is_refused(folder: Path) -> None:
    run("generate", "table2", "--seed", "2", "-o", "other.yaml", folder=folder)
    run("plan", "other.yaml", "-o", "other.json", folder=folder)
    done = run("simulate", "t2.yaml", "--plan", "other.json", folder=folder)
    assert done.returncode == 1
    assert "another scenario" in done.stderr


def test_a_trace_directory_that_exists_is_refused_and_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    done = run("simulate", "t2.yaml", "--trace", str(tmp_path), folder=folder)
    assert done.returncode == 1
    assert "choose another" in done.stderr
    assert os.listdir(tmp_path) == ["precious"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB, which only root can make."""
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root; run `make test` as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up_ends_the_run_with_a_message(folder: Path, small_disk: Path) -> None:
    done = run(
        "simulate", "t2.yaml", "--publications", "500000", "--trace", str(small_disk / "run"), folder=folder
    )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(TraceError, match="interrupted"):
        Trace.open(small_disk / "run")


def test_control_c_leaves_no_half_valid_trace(folder: Path) -> None:
    command = [TRIAGE, "simulate", "t2.yaml", "--publications", "2000000000", "--trace", "stopped", "--json"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        # Once deliveries are being written, the simulation is under way.
        while not list((folder / "stopped" / "deliveries").glob("*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in errors
    with pytest.raises(TraceError, match="interrupted"):
        Trace.open(folder / "stopped")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--precision", "-1"), "precision"),
        (("--warmup", "2"), "warmup"),
        (("--for", "-3"), "duration"),
        (("--replay", "nowhere"), "nowhere"),
        (("--recorded-fates",), "--replay"),
    ],
)
def test_impossible_options_are_named(folder: Path, options: tuple[str, ...], words: str) -> None:
    done = run("simulate", "t2.yaml", *options, folder=folder)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_under_overload_it_says_that_the_queues_were_drained(folder: Path) -> None:
    plain = ("t2.yaml", "--priorities", "none", "--drops", "none")
    options = ("simulate", *plain, "--publications", "20000")
    done = run(*options, folder=folder)
    assert "the queues were drained for" in done.stdout
    found = run_json(*options, folder=folder)
    (only,) = found["classes"]
    assert found["late_excluded"] is True
    assert only["delivered"] == only["count"]
    assert only["success_rate"] == pytest.approx(1 - only["late"] / only["count"])
    predicted = run_json("forecast", *plain, folder=folder)["classes"][0]["success_rate"]
    assert only["success_rate"] == pytest.approx(predicted, abs=0.05)


def test_conditions_are_followed_unless_told_not_to(folder: Path) -> None:
    text = (folder / "t2.yaml").read_text()
    port = re.search(r"ports:\n  (\S+):", text)
    assert port is not None
    conditions = "worth_profiles:\n  none: {'#': 0}\nconditions:\n"
    conditions += f"  - {{at_seconds: 0, port: {port[1]}, bandwidth_bps: 1000}}\n"
    conditions += "  - {at_seconds: 5, worth_profile: none}\n"
    (folder / "narrow.yaml").write_text(text + conditions)
    options = ("--publications", "3000", "--trace")
    plain = run_json("simulate", "t2.yaml", *options, "plain", folder=folder)
    ignored = run_json("simulate", "narrow.yaml", "--no-conditions", *options, "ignored", folder=folder)
    followed = run_json("simulate", "narrow.yaml", *options, "followed", folder=folder)
    assert ignored["classes"] == plain["classes"]
    assert followed["utility"]["achieved"] < plain["utility"]["achieved"]
    assert [row["begins_seconds"] for row in followed["phases"]] == [0.0, 5.0]
    assert "worth_profiles:" in (Trace.open(folder / "followed").scenario_text or "")


def test_validate_puts_forecast_and_simulation_side_by_side(folder: Path) -> None:
    options = ("t2.yaml", "--drops", "exponential", "--for", "10", "--runs", "4")
    done = run("validate", *options, "--by", "class", folder=folder)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    last = re.fullmatch(
        r"(\d+) of 9 cells outside 2 % \+ interval: (\d+) flagged, (\d+) not", done.stdout.splitlines()[-1]
    )
    assert last is not None
    outside, flagged, silent = map(int, last.groups())
    assert outside == flagged + silent
    told = run("validate", *options, "--json", folder=folder)
    found = json.loads(told.stdout)
    assert told.returncode == (0 if found["holds"] else 1)
    assert len(found["cells"]) == found["counts"]["cells"] == 1120
    named = {"subscriber", "topic", "priority_class", "latency", "success", "p95", "p99", "flag", "sampled"}
    assert named == set(found["cells"][0])
    assert {"forecast", "simulated", "ci95", "error", "expected_error", "known", "outside"} == set(
        found["cells"][0]["latency"]
    )


def test_precision_runs_until_the_intervals_are_that_tight(folder: Path) -> None:
    run(
        "generate",
        "table2",
        "--subscriptions",
        "10,5",
        "--subscribers",
        "2",
        "-o",
        "light.yaml",
        folder=folder,
    )
    result = run_json(
        "simulate", "light.yaml", "--publications", "20000", "--precision", "0.02", folder=folder
    )
    assert result["precision_reached"] is True
    for row in result["classes"]:
        assert row["ci95_seconds"] <= 0.02 * row["mean_latency_seconds"]
    assert json.dumps(result, allow_nan=False)


def test_promises_are_shown_and_a_publisher_that_babbles_is_named(tmp_path: Path) -> None:
    save(midas_scenario(Discipline.PRIORITY), tmp_path / "midas.yaml")
    seen = run_json("simulate", "midas.yaml", "--for", "1", "--synchronised", folder=tmp_path)
    assert [row["topic"] for row in seen["promises"]] == ["T1", "T2", "T3"]
    for row in seen["promises"]:
        assert row["late"] == row["limited"] == row["lost"] == 0
        assert row["worst_latency_seconds"] <= row["bound_seconds"] <= row["max_latency_seconds"]
    babbling = ("simulate", "midas.yaml", "--for", "1", "--babbling", "P1", "--limiter", "window")
    shown = run(*babbling, "--trace", "trace", folder=tmp_path).stdout
    assert "worst latency" in shown
    assert "limited: P1 on T1" in shown
    decided = Trace.open(tmp_path / "trace").table("decisions", ["kind", "subject"]).to_pylist()
    assert {"kind": "limited", "subject": "P1 on T1"} in decided
    assert Trace.open(tmp_path / "trace").counts()["limited"] > 0
