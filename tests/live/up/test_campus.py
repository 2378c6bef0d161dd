"""`triage up examples/campus.yaml`: three brokers on one machine, and a burst on one of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.live.up.exchanging import LONG_SECONDS, TRIAGE

CAMPUS = Path(__file__).parents[3] / "examples" / "campus.yaml"
ANYWHERE = ["--gateway", "127.0.0.1:0", "--rest", "127.0.0.1:0", "--json"]

pytestmark = pytest.mark.slow


def run(state: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [*TRIAGE, "up", str(CAMPUS), *ANYWHERE, "--state", str(state), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=5 * LONG_SECONDS, check=False)


def test_crews_leave_a_broker_with_a_burst_and_class_0_is_not_harmed(tmp_path: Path) -> None:
    ended = run(tmp_path / "state", "--for", "30")
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    first = figures["classes"][0]
    assert (first["priority_class"], first["success_rate"]) == (0, 1.0)
    assert figures["moved"]
    for each in figures["moved"]:
        assert (each["before"], each["after"]) == ("gateway labs", "gateway hall")
        assert each["reason"].startswith("at labs ")


def test_tokens_and_encryption_hold_for_all_gateways(tmp_path: Path) -> None:
    ended = run(tmp_path / "state", "--for", "5", "--access", "--dtls")
    assert ended.returncode == 0, ended.stderr
    assert "mqttsns://" in ended.stderr
    assert (tmp_path / "state" / "sites" / "labs" / "gateway.token").stat().st_mode & 0o077 == 0
    assert all(each["success_rate"] == 1.0 for each in json.loads(ended.stdout)["classes"])


def test_control_of_the_kernels_queues_is_for_one_gateway(tmp_path: Path) -> None:
    ended = run(tmp_path / "state", "--dataplane", "linux", "--control", "idm")
    assert ended.returncode != 0
    assert (
        "with linux is for one gateway, and this scenario has several brokers; leave it out" in ended.stderr
    )


def test_a_broker_that_cannot_be_reached_is_said_in_a_line_and_the_others_serve_all(tmp_path: Path) -> None:
    ended = run(tmp_path / "state", "--for", "5", "--peer-broker", "labs=mqtt://127.0.0.1:9")
    assert ended.returncode == 0, ended.stderr
    said = [line for line in ended.stderr.splitlines() if line.startswith("triage: ")]
    assert len(said) == 1
    assert "the broker at 127.0.0.1:9 cannot be reached" in said[0]
    assert all(each["success_rate"] == 1.0 for each in json.loads(ended.stdout)["classes"])


def test_a_broker_that_the_scenario_does_not_have_is_refused(tmp_path: Path) -> None:
    ended = run(tmp_path / "state", "--peer-broker", "attic=mqtt://127.0.0.1:9")
    assert ended.returncode != 0
    assert "'attic' is no other broker of the scenario; there are: labs, library" in ended.stderr
