"""A client that nobody announces and that says nothing is prioritised by the operator's policy, in every phase."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.real import SnClient
from tests.live.up.exchanging import LONG_SECONDS, TRIAGE, Up, ask
from tests.live.up.test_plain_client import SCENARIO

POLICY = """
roles:
  command: {budget: 400, rank: 0}
  visitor: {budget: 5, rank: 9}
clients:
  - {id: "panel *", address: 127.0.0.0/8, role: command, port: radio,
     subscriptions: {alarm: log:50, "#": log:1}}
  - {id: "*", role: visitor}
phases:
  drill: {alarm: 0, pressure: 100}
"""


def rows(url: str, name: str) -> dict[str, dict[str, Any]]:
    """What is planned of a client, by topic."""
    try:
        found = ask(url, f"/v1/subscriptions?search={name}")["subscriptions"]
    except OSError:
        return {}
    return {row["topic"]: row for row in found}


def until(what: Callable[[], bool], client: SnClient) -> float:
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < LONG_SECONDS, "waited in vain"
        client.collect(0.1)
    return time.monotonic() - begun


def test_a_plain_client_that_was_not_announced_is_prioritised_by_the_policy(tmp_path: Path) -> None:
    scenario, policy = tmp_path / "plain.yaml", tmp_path / "policy.yaml"
    scenario.write_text(SCENARIO)
    policy.write_text(POLICY)
    with Up(tmp_path / "up", "--policy", str(policy), "--state", "state", file=scenario) as running:
        ready = running.ready()
        url = ready["coordinator"]
        client = SnClient(int(ready["gateway"].rpartition(":")[2]), "panel 7").connect(clean=True)
        try:
            ids = {client.subscribe(topic).topic_id: topic for topic in ("alarm", "pressure")}
            until(lambda: rows(url, "panel").keys() == {"alarm", "pressure"}, client)
            until(lambda: rows(url, "panel")["pressure"]["drop_rate"] > 0.05, client)
            found = rows(url, "panel")
            assert [found[topic]["weight"] for topic in ("alarm", "pressure")] == [50.0, 1.0]
            assert found["alarm"]["drop_rate"] == 0.0
            assert found["alarm"]["priority_class"] < found["pressure"]["priority_class"]
            client.collect(1.0)
            client.messages.clear()
            client.collect(4.0)
            came = [ids[message.topic_id] for message in client.messages]
            # All alarms, and of the pressures the share that is planned: 20 and 150 are published in a second.
            share = came.count("pressure") / came.count("alarm") * 20 / 150
            assert abs(share - (1.0 - found["pressure"]["drop_rate"])) < 0.1
            command = [*TRIAGE, "phase", "drill", "--coordinator", url, "--json"]
            switched = subprocess.run(command, capture_output=True, check=True, timeout=LONG_SECONDS)
            assert json.loads(switched.stdout)["phase"] == "drill"
            until(lambda: rows(url, "panel")["pressure"]["weight"] == 100.0, client)
            assert rows(url, "panel")["alarm"]["weight"] == 0.0
        finally:
            client.end()
        # With a clean session it wants nothing any more.
        leaver = SnClient(int(ready["gateway"].rpartition(":")[2]), "panel 7").connect(clean=True)
        until(lambda: not rows(url, "panel"), leaver)
        leaver.end()


@pytest.mark.slow
def test_policy_and_phase_survive_a_restart_of_everything_until_another_is_given(tmp_path: Path) -> None:
    scenario, policy = tmp_path / "plain.yaml", tmp_path / "policy.yaml"
    scenario.write_text(SCENARIO)
    policy.write_text(POLICY)
    options = ("--policy", str(policy), "--state", str(tmp_path / "state"))
    with Up(tmp_path / "up", *options, file=scenario) as running:
        command = [*TRIAGE, "phase", "drill", "--coordinator", running.ready()["coordinator"]]
        subprocess.run(command, capture_output=True, check=True, timeout=LONG_SECONDS)
    with Up(tmp_path / "again", *options[2:], file=scenario) as running:
        url = running.ready()["coordinator"]
        assert ask(url, "/v1/phase")["phase"] == "drill"
        assert "panel *" in ask(url, "/v1/policy")["policy"]
    policy.write_text(POLICY.replace("drill", "fire"))
    with Up(tmp_path / "other", *options, file=scenario) as running:
        while '"ready"' not in running.errors():
            time.sleep(0.1)
        first, second = running.errors().splitlines()[:2]
        assert first.startswith("the policy takes the place of the stored one, which was that of triage up")
        assert ask(json.loads(second)["coordinator"], "/v1/phase")["phases"] == ["usual", "fire"]
