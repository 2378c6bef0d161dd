"""Sweeps: what is varied, that Spark changes nothing, and that a killed sweep goes on where it was."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import typer
from scipy import stats
from typer.testing import CliRunner

from triagemq.errors import OutputError, ParameterError, PipelineError
from triagemq.lab.commands.sweep import sweep as sweep_command
from triagemq.lab.generators import table2
from triagemq.lab.sweep import jobs, parse_vary, run_sweep, sweep_summary
from triagemq.lab.sweep.cases import Case, simulate_cases
from triagemq.lab.sweep.jobs import StoredRows
from triagemq.lab.sweep.run import SCHEMA, SWEEP, VARIABLES, Point, planner_settings, varied_scenario
from triagemq.pipeline import Tables
from triagemq.pipeline.session import SparkOptions, spark_session
from triagemq.pipeline.store import Location, current_manifest
from triagemq.plan import make_plan
from triagemq.scenario import Scenario, loads, save
from triagemq.simulate import simulate

PUBLICATIONS = 3000
VARY = {"rho": (0.8, 1.6), "drops": ("flat", "optimal")}
SEEDS = 3

TWO_LEVELS = """
planning: {priority_classes: 2}
brokers: {hall: }
switches: {core: , floor: {fed_by: trunk}}
ports:
  trunk: {switch: core, bandwidth_bps: 1000000}
  radio: {switch: floor, bandwidth_bps: 320000, queues: 2}
  wifi: {switch: floor, bandwidth_bps: 500000}
  spare: {switch: floor, bandwidth_bps: 77000}
publishers:
  sensor:
    publishes: {smoke: {rate_per_second: 20, size_bytes: 60}, heat: {rate_per_second: 5, size_bytes: 90}}
subscribers:
  commander: {port: radio, subscribes: {smoke: log:10, heat: log:1}}
  engineer: {port: wifi, subscribes: {heat: log:2}}
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return table2(seed=1, subscribers=3, subscriptions=(20, 10))


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session(SparkOptions(master="local[2]")) as session:
        yield session


@pytest.fixture(scope="module")
def swept(scenario: Scenario, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    out = tmp_path_factory.mktemp("sweep") / "out"
    return out, run_sweep(scenario, VARY, SEEDS, publications=PUBLICATIONS, out=out)


def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(options: SparkOptions) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(jobs, "spark_session", refuse)


# What can be varied


def test_a_range_has_both_ends_and_steps_as_exact_as_they_are_written() -> None:
    values = parse_vary(["rho=0.5:2.0:0.1"])["rho"]
    assert values == tuple(number / 10 for number in range(5, 21))


def test_a_range_whose_step_does_not_meet_its_end_stops_before_it() -> None:
    assert parse_vary(["rho=1:2:0.4"])["rho"] == (1.0, 1.4, 1.8)


def test_lists_and_ranges_mix_and_equal_values_count_once() -> None:
    assert parse_vary(["buffer_packets=10:30:10,20,inf"])["buffer_packets"] == (10.0, 20.0, 30.0, math.inf)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rho", "should read NAME=VALUES"),
        ("rho=", "should read NAME=VALUES"),
        ("rhoo=1", "did you mean 'rho'"),
        ("subscribers=3", "cannot be varied"),
        ("rho=high", "not a number or a range"),
        ("rho=1,,2", "not a number or a range"),
        ("rho=1:2", "write FROM:TO:STEP"),
        ("rho=1:inf:1", "write FROM:TO:STEP"),
        ("rho=2:1:0.1", "ends before it begins"),
        ("rho=1:2:0", "step that is not above 0"),
        ("rho=1:2:-1", "step that is not above 0"),
        ("rho=1:2:1e-9", "more than 10,000 values"),
        ("rho=0", "greater than 0"),
        ("rho=nan", "finite"),
        ("rho=inf", "finite"),
        ("rho_tolerance=1", "less than 1"),
        ("classes=1.5", "valid integer"),
        ("classes=0", "greater than or equal to 1"),
        ("drops=flt", "did you mean 'flat'"),
        ("priorities=no_such_module:function", "cannot be imported"),
    ],
)
def test_a_wrong_variation_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        parse_vary([text])
    assert "\n" not in str(caught.value)


def test_a_variable_given_twice_and_two_that_set_the_same_are_refused() -> None:
    with pytest.raises(ParameterError, match="twice"):
        parse_vary(["rho=1", "rho=2"])
    with pytest.raises(ParameterError, match="both set the bandwidth"):
        parse_vary(["rho=1", "bandwidth_bps=1e6"])


def test_a_scenario_is_sent_once_however_many_tasks_there_are() -> None:
    context = Mock()
    sent = jobs._Scenarios(context)
    situations = [loads(TWO_LEVELS), loads(TWO_LEVELS)]
    points = [Point("two", situations[seed % 2], 100, seed) for seed in range(20)]
    packed = [sent.pack([point]) for point in points]
    assert context.broadcast.call_count == 2
    assert all(len(content) < 300 for content, _ in packed)
    assert all(len(scenarios) == 1 for _, scenarios in packed)


def test_rho_sets_the_offered_load_of_every_port_also_of_those_upstream() -> None:
    situation = loads(TWO_LEVELS)
    varied = varied_scenario(situation, {"rho": 1.3})
    offered = dict(zip(varied.ports.name, make_plan(varied).ports.rho_offered, strict=True))
    for port in ("trunk", "radio", "wifi"):
        assert offered[port] == pytest.approx(1.3, rel=1e-12)
    assert offered["spare"] == 0
    assert varied.ports.bandwidth_bps[varied.ports.name.index("spare")] == 77_000


def test_bandwidth_and_buffer_are_those_of_ports_with_subscribers() -> None:
    situation = loads(TWO_LEVELS)
    varied = varied_scenario(situation, {"bandwidth_bps": 2e5, "buffer_packets": 5.0})
    given = dict(zip(situation.ports.name, situation.ports.bandwidth_bps, strict=True))
    found = dict(zip(varied.ports.name, varied.ports.bandwidth_bps, strict=True))
    assert found == given | {"radio": 2e5, "wifi": 2e5}
    buffers = dict(zip(varied.ports.name, varied.ports.buffer_packets, strict=True))
    assert buffers == {"trunk": math.inf, "radio": 5.0, "wifi": 5.0, "spare": math.inf}


def test_rate_bandwidth_and_buffer_change_what_they_say_and_nothing_else(scenario: Scenario) -> None:
    varied = varied_scenario(scenario, {"rate": 2.0, "bandwidth_bps": 1e6, "buffer_packets": 50.0})
    np.testing.assert_array_equal(
        varied.publications.rate_per_second, 2 * scenario.publications.rate_per_second
    )
    assert set(varied.ports.bandwidth_bps) == {1e6}
    assert set(varied.ports.buffer_packets) == {50.0}
    assert varied_scenario(scenario, {"drops": "flat", "classes": 3}) is scenario
    assert planner_settings({"rho": 1.0, "drops": "flat", "classes": 3}) == {
        "drops": "flat",
        "priority_classes": 3,
    }


# What Spark gives


def test_every_row_equals_a_simulation_of_its_own_bit_for_bit(
    scenario: Scenario, swept: tuple[Path, pa.Table]
) -> None:
    results = swept[1]
    assert results.schema == SCHEMA
    rows = results.to_pylist()
    for rho in VARY["rho"]:
        for drops in VARY["drops"]:
            for seed in range(SEEDS):
                varied = varied_scenario(scenario, {"rho": rho})
                plan = make_plan(varied, drops=drops, seed=seed)
                direct = simulate(varied, plan, publications=PUBLICATIONS, seed=seed).as_json()
                own = [row for row in rows if (row["rho"], row["drops"], row["seed"]) == (rho, drops, seed)]
                assert [row["priority_class"] for row in own] == [
                    *(each["priority_class"] for each in direct["classes"]),
                    None,
                ]
                for row, expected in zip(own, direct["classes"], strict=False):
                    for name in ("count", "delivered", "success_rate", "mean_latency_seconds"):
                        assert row[name] == expected[name]
                    for name in ("p50", "p95", "p99", "max"):
                        assert row[name] == expected[f"{name}_seconds"]
                whole = own[-1]
                assert (whole["count"], whole["delivered"]) == (direct["copies"], direct["deliveries"])
                assert whole["utility"] == direct["utility"]["achieved"]
                assert whole["utility_rate"] == direct["utility"]["rate"]
                assert whole["utility_rate_mean"] == direct["utility"]["rate_mean"]
                assert whole["rho_offered"] == pytest.approx(rho, rel=1e-12)


def test_a_repeated_sweep_gives_the_same_table_without_spark(
    scenario: Scenario, swept: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_spark(monkeypatch)
    out, results = swept
    assert run_sweep(scenario, VARY, SEEDS, publications=PUBLICATIONS, out=out).equals(results)
    part = run_sweep(scenario, VARY | {"rho": 0.8}, [2], publications=PUBLICATIONS, out=out)
    assert set(part["rho"].to_pylist()) == {0.8}
    assert set(part["seed"].to_pylist()) == {2}


def test_a_wider_sweep_simulates_only_what_is_new(
    scenario: Scenario, swept: tuple[Path, pa.Table], spark: Any
) -> None:
    calls: list[tuple[int, int]] = []
    run_sweep(
        {"here": scenario},
        VARY | {"rho": (0.8, 1.2)},
        SEEDS,
        publications=PUBLICATIONS,
        out=swept[0],
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls[0] == (6, 12)
    assert calls[-1] == (12, 12)
    assert calls == sorted(calls)


def test_one_simulation_left_runs_the_same_way(scenario: Scenario, spark: Any, tmp_path: Path) -> None:
    results = run_sweep(scenario, {"drops": "flat"}, [7], publications=500, out=tmp_path)
    plan = make_plan(scenario, drops="flat", seed=7)
    expected = simulate(scenario, plan, publications=500, seed=7)
    assert results["delivered"].to_pylist()[-1] == expected.deliveries


def test_what_changes_a_result_is_simulated_again(
    swept: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_spark(monkeypatch)
    another = table2(seed=2, subscribers=3, subscriptions=(20, 10))
    with pytest.raises(AssertionError, match="Spark was started"):
        run_sweep(another, VARY, SEEDS, publications=PUBLICATIONS, out=swept[0])


def test_settings_that_cannot_be_simulated_are_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"classes=3, seed 0: .*'radio', which has 2 queues") as caught:
        run_sweep(loads(TWO_LEVELS), {"classes": (2, 3)}, publications=200, out=tmp_path)
    assert "\n" not in str(caught.value)


# Interrupted

CHILD = """
import sys
from triagemq.pipeline import SparkOptions
from triagemq.lab.sweep import run_sweep
from triagemq.lab.generators import table2
run_sweep(
    table2(seed=1, subscribers=3, subscriptions=(20, 10)), {"rho": [0.8, 1.6], "drops": ["flat", "optimal"]}, 8,
    publications=60_000, out=sys.argv[1], options=SparkOptions(master="local[2]"),
)
"""


def test_a_sweep_killed_at_work_continues_where_it_was(
    scenario: Scenario, spark: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(out)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 90
        while time.monotonic() < until and child.poll() is None:
            manifest = current_manifest(Location(out))
            if manifest is not None and manifest.runs:
                break
            time.sleep(0.01)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    part = next(out.glob("results/*/*/part-*"))
    (part.parent / "part-999999999.parquet").write_bytes(b"PAR1")
    calls: list[tuple[int, int]] = []
    resumed = run_sweep(
        scenario,
        VARY,
        8,
        publications=60_000,
        out=out,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert 0 < calls[0][0] < 32, "the sweep was to be killed in the middle"
    listed = {out / file.name for file in Tables(out).manifest.files("results")}
    assert set(out.rglob("part-*")) == listed
    undisturbed = run_sweep(scenario, VARY, 8, publications=60_000, out=tmp_path / "other")
    assert resumed.equals(undisturbed)


def test_a_damaged_part_is_named(tmp_path: Path, scenario: Scenario) -> None:
    with StoredRows.open(SWEEP, tmp_path) as results:
        results.add(SCHEMA.empty_table())
    next(tmp_path.rglob("part-*")).write_bytes(b"not a table")
    with pytest.raises(PipelineError, match=r"0.parquet: damaged"):
        run_sweep(scenario, VARY, out=tmp_path)


def test_two_sweeps_do_not_share_a_directory(tmp_path: Path, scenario: Scenario) -> None:
    with (
        StoredRows.open(SWEEP, tmp_path),
        pytest.raises(OutputError, match="another command is writing tables"),
    ):
        run_sweep(scenario, VARY, out=tmp_path)


@pytest.mark.parametrize("seeds", [0, [], [-1], [1.5]])
def test_seeds_are_whole_numbers_from_zero(seeds: Any, scenario: Scenario, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="seeds"):
        run_sweep(scenario, VARY, seeds, out=tmp_path)


# What is reported


def test_the_summary_has_the_mean_over_seeds_and_students_interval(swept: tuple[Path, pa.Table]) -> None:
    results = swept[1].to_pylist()
    summary = sweep_summary(swept[1]).to_pylist()
    assert len({(row["rho"], row["drops"], row["priority_class"]) for row in results}) == len(summary)
    for row in summary:
        keys = ("priority_class", *VARIABLES)
        same = [each["success_rate"] for each in results if all(each[key] == row[key] for key in keys)]
        assert row["seeds"] == len(same) == SEEDS
        assert row["success_rate"] == pytest.approx(np.mean(same), rel=1e-12)
        half_width = stats.t.ppf(0.975, SEEDS - 1) * np.std(same, ddof=1) / math.sqrt(SEEDS)
        assert row["success_rate_ci95"] == pytest.approx(half_width, rel=1e-9, abs=1e-15)


def test_one_seed_has_no_interval(swept: tuple[Path, pa.Table]) -> None:
    one = swept[1].filter(pa.compute.equal(swept[1]["seed"], 0))
    assert sweep_summary(one)["utility_rate_ci95"].null_count == sweep_summary(one).num_rows


@pytest.fixture
def command(scenario: Scenario, swept: tuple[Path, pa.Table], tmp_path: Path) -> list[str]:
    save(scenario, tmp_path / "t2.yaml")
    vary = ["--vary", "rho=0.8:1.6:0.8", "--vary", "drops=flat,optimal"]
    sizes = ["--seeds", str(SEEDS), "--publications", str(PUBLICATIONS)]
    return [str(tmp_path / "t2.yaml"), *vary, *sizes, "--out", str(swept[0])]


def triage(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(sweep_command)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})


def test_the_command_prints_one_json_object(
    command: list[str], swept: tuple[Path, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_spark(monkeypatch)
    done = triage(*command, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert (answer["simulations"], answer["simulated_now"]) == (12, 0)
    assert [(each["rho"], each["drops"]) for each in answer["settings"]] == [
        (0.8, "flat"),
        (0.8, "optimal"),
        (1.6, "flat"),
        (1.6, "optimal"),
    ]
    whole = [row for row in sweep_summary(swept[1]).to_pylist() if row["priority_class"] is None]
    assert [each["utility_rate"] for each in answer["settings"]] == [row["utility_rate"] for row in whole]
    assert {"priority_class", "success_rate", "success_rate_ci95"} <= set(answer["settings"][0]["classes"][0])


def test_the_command_prints_a_table_of_means(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    no_spark(monkeypatch)
    done = triage(*command)
    assert done.exit_code == 0, done.output
    assert "means over 3 seeds" in done.stdout
    assert "12 simulations, 0 of them now" in done.stdout


# Cases that are given as a whole


def test_cases_on_spark_give_what_this_process_gives_to_the_last_bit(
    scenario: Scenario, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        Case(scenario, make_plan(scenario, drops=drops), duration_seconds=5.0, seed=seed, replications=2)
        for seed in (1, 2)
        for drops in ("none", "optimal")
    ]
    told: list[tuple[int, int]] = []
    first = simulate_cases(cases[:2], out=tmp_path, progress=lambda *counts: told.append(counts))
    results = simulate_cases(cases, out=tmp_path, progress=lambda *counts: told.append(counts))
    assert told[0] == (0, 2)
    assert (2, 2) in told
    assert (2, 4) in told, "what is there is not simulated again"
    assert told[-1] == (4, 4)
    for found, case in zip(results, cases, strict=True):
        here = case.simulate()
        for column in fields(here):
            ours, theirs = getattr(here, column.name), getattr(found, column.name)
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes(), column.name
    assert [each.count.sum() for each in first] == [each.count.sum() for each in results[:2]]
    no_spark(monkeypatch)
    assert len(simulate_cases(cases, out=tmp_path)) == 4


def test_a_case_that_cannot_be_simulated_is_named(scenario: Scenario, spark: Any, tmp_path: Path) -> None:
    impossible = Case(scenario, make_plan(scenario), publications=-3, seed=7)
    with pytest.raises(PipelineError, match="seed 7: publications"):
        simulate_cases([impossible], out=tmp_path)
