"""The commands as a stranger runs them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.forked import run_forked
from typer.main import get_command

from triagemq.cli.app import app
from triagemq.cli.main import run as run_command

TRIAGE = str(Path(sys.executable).parent / "triage")


def run(*arguments: str, folder: Path, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}
    return run_forked(arguments, folder, environment, seconds)


def run_json(*arguments: str, folder: Path) -> dict[str, Any]:
    done = run(*arguments, "--json", folder=folder)
    assert done.returncode == 0, done.stderr

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    result = json.loads(done.stdout, parse_constant=refuse)
    assert isinstance(result, dict)
    return result


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group of commands, with the words that call it."""
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*words, name))


def test_every_command_prints_its_help_with_every_text_in_brackets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 1000)
    known = dict(commands(get_command(app)))
    assert ("pipeline", "stream") in known
    for words, command in known.items():
        assert run_command([*words, "--help"]) == 0, words
        shown = capsys.readouterr().out
        for parameter in command.params:
            brackets = re.findall(r"\[[^\[\]]+\]", getattr(parameter, "help", None) or "")
            assert all(each in shown for each in brackets), (words, parameter.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scenarios")
    done = run("generate", "table2", "--seed", "1", "-o", "t2.yaml", folder=place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize("drops", ["flat", "linear", "exponential", "optimal"])
def test_every_drop_policy_plans_every_port_at_its_capacity(folder: Path, drops: str) -> None:
    result = run_json("plan", "t2.yaml", "--priorities", "greedy", "--drops", drops, folder=folder)
    for port in result["ports"]:
        assert port["rho_planned"] == pytest.approx(0.9, abs=1e-9)
        assert port["rho_offered"] == pytest.approx(1.67, abs=0.3)
    assert {"priority_class", "flows", "success_rate", "mean_latency_seconds", "drop_rate"} <= set(
        result["classes"][0]
    )
    assert {"achieved", "maximum", "rate", "rate_mean"} <= set(result["utility"])


@pytest.mark.parametrize("drops", ["linear", "exponential"])
@pytest.mark.parametrize("share", [3, 30])
def test_capacity_is_met_even_when_class_zero_alone_does_not_fit(
    tmp_path: Path, drops: str, share: int
) -> None:
    run(
        "generate",
        "table2",
        "--seed",
        "1",
        "--bandwidth-bps",
        str(8e6 / share),
        "-o",
        "t.yaml",
        folder=tmp_path,
    )
    result = run_json("plan", "t.yaml", "--drops", drops, folder=tmp_path)
    assert [port["rho_planned"] for port in result["ports"]] == pytest.approx([0.9] * 10, abs=1e-9)
    if share == 30:
        assert any(decision["kind"] == "class_zero_dropped" for decision in result["decisions"])


def test_instructions_say_what_each_subscription_gets(folder: Path) -> None:
    found = run_json("plan", "t2.yaml", "--instructions", folder=folder)
    ports = found["ports"]
    assert all(port["classes"] == 8 and port["bandwidth_bps"] > 0 for port in ports.values())
    assert all(flow["port"] in ports for flow in found["flows"].values())
    assert {name.partition("~")[0] for name in found["flows"]} == set(found["topics"])
    treatments = [each for topics in found["topics"].values() for each in topics.values()]
    assert all(0 <= level < 8 and 0 <= drop_rate <= 1 for level, drop_rate in treatments)
    planned = run_json("plan", "t2.yaml", "--classes", "8", folder=folder)["classes"]
    assert len(treatments) == sum(row["subscriptions"] for row in planned)
    refused = run("plan", "t2.yaml", "--instructions", "--out", "x.json", folder=folder)
    assert refused.returncode == 2
    assert "goes without --out" in refused.stderr


def test_instructions_name_copies_and_limiters_of_what_is_promised(tmp_path: Path) -> None:
    subscribes = "subscribes: {pulse: {max_latency_seconds: 0.02, guaranteed: true}}"
    publishes = "publishes: {pulse: {min_separation_seconds: 0.02, max_size_bytes: 1000, size_bytes: 900}}"
    scenario = "\n".join(
        (
            "{name: Ward, overhead_bytes: 66, mtu_bytes: 1500, fragmentation: true, brokers: {hall: {}},",
            " switches: {bed: {}, desk: {}},",
            " ports: {over: {switch: bed, bandwidth_bps: 10 Mbit/s, to: desk},",
            "         monitor: {switch: desk, bandwidth_bps: 10 Mbit/s}},",
            f" publishers: {{ecg: {{access: bed, access_bps: 10 Mbit/s, {publishes}}}}},",
            f" subscribers: {{nurse: {{port: monitor, {subscribes}}}}}}}",
        )
    )
    (tmp_path / "ward.yaml").write_text(scenario)
    found = run_json("plan", "ward.yaml", "--instructions", folder=tmp_path)
    copies, (limiter,) = found["copies"].values(), found["limiters"].values()
    assert {(each["port"], each["priority_class"]) for each in copies} == {("over", 0), ("monitor", 0)}
    assert list(found["promised"].values()) == ["ecg pulse"]
    assert limiter["port"] == "over"
    # A message with its overhead, and one of these every separation.
    assert limiter["burst_bytes"] >= 1066
    assert limiter["rate_bytes_per_second"] == pytest.approx(1066 / 0.02)


def test_a_saved_plan_gives_the_forecast_it_was_made_with(folder: Path) -> None:
    run("plan", "t2.yaml", "--drops", "linear", "-o", "plan.json", folder=folder)
    from_file = run_json("forecast", "t2.yaml", "--plan", "plan.json", folder=folder)
    made_now = run_json("forecast", "t2.yaml", "--drops", "linear", folder=folder)
    assert from_file == made_now


def test_a_plan_and_planning_options_contradict_each_other(folder: Path) -> None:
    run("plan", "t2.yaml", "-o", "plan.json", folder=folder)
    done = run("forecast", "t2.yaml", "--plan", "plan.json", "--drops", "flat", folder=folder)
    assert done.returncode == 2
    assert "either the file or the options" in done.stderr


def test_full_forecasts_list_every_subscription(folder: Path) -> None:
    result = run_json("forecast", "t2.yaml", "--full", folder=folder)
    assert len(result["subscriptions"]) == 1120


def test_an_explanation_names_the_reasons(folder: Path) -> None:
    names = run_json("forecast", "t2.yaml", "--full", folder=folder)["subscriptions"][0]
    done = run("plan", "t2.yaml", "--explain", names["subscriber"], names["topic"], folder=folder)
    assert done.returncode == 0
    for word in ("Rank", "Flow", "Class", "Drop rate"):
        assert word in done.stdout


def test_mistakes_in_a_scenario_end_with_exit_code_2_and_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("name: wrong\nports: {p: {bandwith_bps: 3}}\n")
    done = run("check", "wrong.yaml", folder=tmp_path)
    assert done.returncode == 2
    assert "wrong.yaml:2: ports.p.bandwith_bps" in done.stderr
    assert "Traceback" not in done.stderr
    assert run("plan", "wrong.yaml", folder=tmp_path).returncode == 2
    problems = json.loads(run("check", "wrong.yaml", "--json", folder=tmp_path).stdout)
    assert problems["valid"] is False
    assert any(each["line"] == 2 and "bandwith_bps" in each["field"] for each in problems["problems"])


def test_errors_are_one_line_and_debug_shows_the_traceback(folder: Path) -> None:
    done = run("plan", "t2.yaml", "--drops", "sometimes", folder=folder)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "sometimes" in done.stderr
    assert "Traceback" in run("plan", "t2.yaml", "--drops", "sometimes", "--debug", folder=folder).stderr


def test_bad_pairs_and_ranges_say_what_to_write(tmp_path: Path) -> None:
    for option, value in (
        ("--topics", "140"),
        ("--subscriptions", "7,many"),
        ("--topics", "1.5,3"),
        ("--rate-ranges", "4,7"),
    ):
        done = run("generate", "table2", option, value, folder=tmp_path)
        assert done.returncode == 2
        assert option in done.stderr
        assert "write" in done.stderr


def test_generated_scenarios_are_printed_when_no_file_is_named(tmp_path: Path) -> None:
    done = run("generate", "building", folder=tmp_path)
    (tmp_path / "fire.yaml").write_text(done.stdout)
    assert run("check", "fire.yaml", folder=tmp_path).returncode == 0
    assert run("generate", "prototype", "-o", "prototype", folder=tmp_path).returncode == 0
    assert (tmp_path / "prototype" / "subscriptions.parquet").exists()
    assert run("check", "prototype", folder=tmp_path).returncode == 0


def test_a_closed_pipe_is_not_an_error(folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {TRIAGE} forecast t2.yaml --full --json | head -1"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_control_c_ends_a_command_with_130(folder: Path) -> None:
    code = "import os, signal, sys; sys.argv = 'triage simulate t2.yaml --publications 500000000'.split()\n"
    code += "from triagemq.cli import main\n"
    code += "signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))\n"
    code += "signal.setitimer(signal.ITIMER_REAL, 0.3)\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("triagemq.cli.app", {"numpy", "pydantic", "numba"}),
        # A gateway follows instructions; who makes plans has the formulas and their compiler.
        ("triagemq.gateway.process", {"numba", "scipy", "triagemq.theory", "triagemq.scenario"}),
    ],
    ids=["help", "gateway"],
)
def test_what_starts_often_loads_nothing_heavy(module: str, heavy: set[str]) -> None:
    code = (
        f"import sys, {module}; getattr({module}, 'app', None); print(sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
