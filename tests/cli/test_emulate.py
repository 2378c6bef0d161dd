"""`triage emulate` and `triage network` where something is missing or wrong: one line that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from tests.cli.test_commands import TRIAGE, run, run_json

from triagemq.cli.doctor import doctor

CAMPUS = str(Path(__file__).parents[2] / "examples" / "building-campus.yaml")
WITHOUT_ROOT = (
    (shutil.which("setpriv") or "setpriv", "--bounding-set=-sys_admin,-net_admin,-bpf", "--inh-caps=-all")
    if os.geteuid() == 0
    else ()
)


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = done.stderr.splitlines()
    assert done.stdout == ""
    return line


def test_without_root_it_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*WITHOUT_ROOT, TRIAGE, "emulate", CAMPUS],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert only_line(done) == (
        "triage: a network in a box needs root (making a namespace: Operation not permitted); "
        "run it with sudo, or run the scenario without a box: triage up FILE"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs_root("others are refused before it looks")
def test_without_open_vswitch_it_says_how_to_get_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [TRIAGE, "emulate", CAMPUS, "--dataplane", "openflow"],
        cwd=tmp_path, env=os.environ | {"PATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ovs-vsctl" in only_line(done)
    assert only_line(done).endswith("install it with: apt install openvswitch-switch")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_data_plane_is_refused(tmp_path: Path) -> None:
    done = run("emulate", CAMPUS, "--dataplane", "windows", folder=tmp_path)
    assert done.returncode == 2
    assert only_line(done) == "triage: dataplane: is 'windows'; it is one of linux, openflow, embedded"


@pytest.mark.needs_root("others are refused before it looks")
@pytest.mark.parametrize("option", ["--state", "--trace"])
def test_what_an_earlier_run_wrote_is_not_mixed_with_this_one(tmp_path: Path, option: str) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "receipts").write_bytes(b"x")
    done = run("emulate", CAMPUS, option, "before", folder=tmp_path)
    assert done.returncode in (1, 2)
    assert "not empty" in only_line(done)
    assert (tmp_path / "before" / "receipts").read_bytes() == b"x"


@pytest.mark.needs_root("others are refused before it looks")
def test_a_replay_needs_a_trace(tmp_path: Path) -> None:
    done = run("emulate", CAMPUS, "--replay", "nowhere", folder=tmp_path)
    assert done.returncode == 2
    assert "nowhere: there is no such directory" in only_line(done)


@pytest.mark.needs_root("only root may do all of it")
def test_the_doctor_knows_what_the_kernel_and_open_vswitch_can_do(tmp_path: Path) -> None:
    findings = {each["needs"]: each for each in run_json("doctor", folder=tmp_path)["findings"]}
    assert findings["network namespaces"]["fine"]
    assert findings["kernel queues with eBPF"]["fine"]
    assert findings["Open vSwitch"]["fine"]


def test_the_doctor_says_what_is_missing_without_root_and_open_vswitch(tmp_path: Path) -> None:
    done = subprocess.run(
        [*WITHOUT_ROOT, TRIAGE, "doctor"],
        cwd=tmp_path, env=os.environ | {"PATH": "/nowhere", "COLUMNS": "200"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "apt install openvswitch-switch" in done.stdout
    assert "run it as root" in done.stdout


def test_a_missing_group_is_installed_from_the_package_or_from_a_checkout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("triagemq.cli.doctor.version", missing)
    doctor()
    said = "for triagemq[lab]: pip install 'triagemq[lab]' (in a checkout: pip install '.[lab]')"
    assert said in capsys.readouterr().out.splitlines()
