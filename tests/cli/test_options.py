"""One word, one option, one exit code in all commands: what a user learns once holds everywhere."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from triagemq import __version__, progress
from triagemq.cli import doctor, pipeline, terminal
from triagemq.cli.app import app
from triagemq.cli.main import run
from triagemq.lab.generators import table2
from triagemq.pipeline.streaming import StreamProgress
from triagemq.programs import find_program
from triagemq.scenario import loads, save


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Every command by its whole name."""

    def below(name: str, group: TyperGroup) -> Iterator[tuple[str, TyperCommand]]:
        for word, each in group.commands.items():
            whole = f"{name} {word}".strip()
            if isinstance(each, TyperGroup):
                yield from below(whole, each)
            else:
                assert isinstance(each, TyperCommand)
                yield whole, each

    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    yield from below("", root)


COMMANDS = dict(commands())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("options")
    save(table2(seed=1, subscribers=2), place / "t2.yaml")
    (place / "empty").mkdir()
    return place


def test_results_go_to_out_in_every_command() -> None:
    words = {
        name: {word for option in each.params for word in option.opts} for name, each in COMMANDS.items()
    }
    assert not [name for name, own in words.items() if "--output" in own]
    assert {name for name, own in words.items() if "--out" in own} >= {
        "plan", "generate building", "reproduce", "sweep", "demo", "pipeline run", "pipeline stream"
    }  # fmt: skip
    assert not [name for name, own in words.items() if ("--out" in own) != ("-o" in own)]


@pytest.mark.parametrize("name", ["plan", "forecast", "simulate", "up", "emulate"])
def test_help_says_which_algorithms_are_used_unless_told(name: str) -> None:
    said = {option.opts[0]: getattr(option, "help", "") for option in COMMANDS[name].params}
    assert "greedy (default)" in said["--priorities"]
    assert "optimal (default)" in said["--drops"]


@pytest.mark.parametrize(
    "line",
    [
        "plan t2.yaml --drops sometimes",
        "plan t2.yaml --priorities sometimes",
        "plan t2.yaml --flows sometimes",
        "plan t2.yaml --scope sometimes",
        "plan t2.yaml --rho-tolerance 7",
        "plan t2.yaml --classes 0",
        "plan t2.yaml --explain nobody nothing",
        "plan t2.yaml --diff nowhere.json",
        "plan t2.yaml --out x.txt",
        "plan nowhere.yaml",
        "forecast t2.yaml --plan nowhere.json",
        "forecast t2.yaml --plan nowhere.json --drops flat",
        "simulate t2.yaml --warmup 3",
        "simulate t2.yaml --replay nowhere",
        "generate table2 --sizes sometimes",
        "generate building --floors 0",
        "generate building --out x.txt",
        "reproduce nobody",
        "reproduce priodex 99",
        "sweep t2.yaml --vary drops=sometimes",
        "pipeline run nowhere --out tables",
        "pipeline show nowhere",
        "pipeline scenario nowhere --out y.yaml",
        "pipeline stream nowhere --out tables",
        "pipeline stream t2.yaml --out tables",
        "up --dataplane sometimes",
        "up --gateway here",
        "up --broker here",
        "up --broker mqtt://hall --broker-ca t2.yaml",
        "up --broker mqtts://hall --broker-ca t2.yaml",
        "up --broker mqtts://hall --broker-ca nowhere.pem",
        "up --broker mqtt://hall --mqtt 127.0.0.1:1883",
        "up --mqtt here",
        "up --keep-trace sometimes",
        "emulate t2.yaml --dataplane sometimes",
        "gateway --mode sometimes",
        "gateway --broker-ca nowhere.pem",
        "token list",
        "token revoke 4f --file nowhere",
        "pub -t a -m b --gateway here",
        "sub -t a#b --gateway 127.0.0.1:1",
    ],
)
def test_what_cannot_be_is_said_and_ends_with_2(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = set(folder.iterdir())
    assert run(line.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err
    assert "s3cret" not in said.err
    assert set(folder.iterdir()) == before


def test_messages_stay_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "triagemq", "plan", "floor:fire:3"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("triage: floor:fire:3: ")


def test_the_version_and_completion_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"triage {__version__}\n"
    # It is for the shell that asks.
    asked = (
        f"{shlex.quote(sys.executable)} -c 'from triagemq.cli import main; main()' --show-completion; exit $?"
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "complete -o" in done.stdout


@pytest.mark.parametrize("what", ["table2", "building", "prototype"])
def test_a_generated_scenario_is_one_json_object(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", what, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["out"] is None
    scenario = loads(json.dumps(printed["document"]))
    file = tmp_path / "scenario.yaml"
    assert run(["generate", what, "--json", "--out", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    written = json.loads(captured.out)
    assert written["out"] == str(file)
    assert "document" not in written
    assert loads(file.read_text()).fingerprint == scenario.fingerprint
    for key in ("topics", "publishers", "publications", "subscribers", "subscriptions"):
        assert written[key] == printed[key] == len(getattr(scenario, key))


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("pipeline run empty --out tables", "plotly"),
        ("sweep t2.yaml --vary rho=1 --out swept", "pyspark"),
        ("reproduce priodex 9a --out plots", "matplotlib"),
        ("demo --out shown", "plotly"),
    ],
)
def test_a_missing_extra_is_said_before_any_work(
    line: str, package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    before = set(folder.iterdir())
    assert run(line.split()) == 1
    assert f"this needs the package {package!r}; install it with: pip install" in capsys.readouterr().err
    assert set(folder.iterdir()) == before


def test_the_doctor_finds_servers_outside_the_path_and_cuts_nothing_to_be_copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(doctor, "CHECKS", (doctor._program("ld.so-of-nobody", "a-package", "nothing"),))
    monkeypatch.setattr(doctor, "_kernel", list)
    assert run(["doctor"]) == 0
    assert "for ld.so-of-nobody: apt-get install a-package\n" in capsys.readouterr().out
    server = next(each for each in sorted(Path("/usr/sbin").iterdir()) if os.access(each, os.X_OK))
    assert doctor._program(server.name, "a-package", "nothing")().found == str(server)


def test_open_vswitch_needs_no_path_to_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = doctor._open_vswitch()
    assert found.fine or "ovs-vswitchd" in found.found, "what is there is found"
    assert found.fine == (find_program("ovs-vswitchd") is not None)


def test_a_stream_says_without_a_terminal_how_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    with terminal.progress_bar("stream", None) as show:
        show(0.0, "starting Spark")
        time.sleep(0.1)
        show(0.0, pipeline._stream_line(StreamProgress(1200, 40, 600.0, 1.5)))
        time.sleep(0.1)
    said = capsys.readouterr().err
    assert "stream: after 0 s, starting Spark\n" in said
    assert "stream: after 0 s, 1,200 events, 600/s, 40 windows, lag 1.5 s\n" in said
    with terminal.progress_bar("stream", None, quiet=True):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
