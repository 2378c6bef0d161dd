"""Open vSwitch between real hosts: its rules can be looked at, and it needs no controller to go on."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from tests.live.machine import CAMPUS, TRIAGE, Machine, machine, until

from triagemq.scenario import load
from triagemq.trace import Trace

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

CONTROLLER = "triagemq.lab.emulate.openflow_agent"
SECONDS = 9


def test_rules_are_visible_and_a_killed_controller_costs_no_packet(tmp_path: Path) -> None:
    with machine() as alone:
        running = alone.start(
            *(TRIAGE, "emulate", str(CAMPUS), "--dataplane", "openflow"),
            *("--for", str(SECONDS), "--trace", "trace", "--json"),
            folder=tmp_path,
        )
        facts = running.ready()
        assert set(facts["rules"]) == set(load(CAMPUS).switches.name)
        receipts = Path(facts["state"], "receipts")
        until(lambda: receipts.exists() and receipts.stat().st_size)
        # The first events are there before the whole plan is in force.
        rules = all_rules(alone, facts["rules"], tmp_path)
        time.sleep(0.5)
        while (later := all_rules(alone, facts["rules"], tmp_path)) != rules:
            rules = later
            time.sleep(0.5)
        pid = alone.pid_of(CONTROLLER)
        assert pid == facts["pids"]["controller"]
        alone.run("kill", "-9", str(pid), folder=tmp_path)
        until(lambda: alone.pid_of(CONTROLLER) not in (None, pid))
        # Also when it has found the switches again and taken up its work: not one rule is written anew.
        for _ in range(8):
            for name, lines in all_rules(alone, facts["rules"], tmp_path).items():
                assert sorted(set(lines) ^ set(rules[name])) == [], name
                assert lines == rules[name]
            time.sleep(0.5)
        done = running.finish()
    assert done.returncode == 0, done.stderr
    for name, lines in rules.items():
        # Hosts are reached by their address, and what claims an address enters where its host is. Classes have no
        # rules: the gateway marks its packets.
        assert any("dl_dst" in line and "output:" in line for line in lines), (name, lines)
        assert any("in_port" in line and "nw_src" in line for line in lines), (name, lines)
        assert not any("set_field" in line for line in lines), (name, lines)
    figures = json.loads(done.stdout)
    assert figures["classes"][0]["success_rate"] == 1.0
    # What the kernel's queues dropped by policy they counted; not one more is missing.
    counts = Trace.open(tmp_path / "trace").counts()
    assert counts["delivered"] > 1000
    assert {name for name, count in counts.items() if count} == {"delivered", "dropped_by_policy"}, counts


def all_rules(alone: Machine, commands: dict[str, str], folder: Path) -> dict[str, list[str]]:
    return {name: shown(alone, command, folder) for name, command in commands.items()}


def shown(alone: Machine, command: str, folder: Path) -> list[str]:
    """The rules of a switch, without what they have counted."""
    assert command.startswith("ovs-ofctl -O OpenFlow13 dump-flows unix:/")
    words = shlex.split(command)
    done = alone.run(words[0], "--no-stats", *words[1:], folder=folder)
    assert done.returncode == 0, done.stderr
    return sorted(line.strip() for line in done.stdout.splitlines() if "actions=" in line)
