"""`triage up --dataplane linux`: a gateway box whose subscribers are behind an interface that it already has."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.live.machine import TRIAGE, Machine, Running, machine, until

from triagemq.errors import ParameterError
from triagemq.live.up.kernel_ports import interfaces_of
from triagemq.trace import Trace, runs

GATEWAY = "192.168.77.1"
CREW = ("ip", "netns", "exec", "crew")


def wire(alone: Machine, folder: Path) -> None:
    """An interface eth1 of the machine, and a crew at its other end."""
    for words in (
        "ip netns add crew",
        "ip link add eth1 type veth peer name eth0 netns crew",
        f"ip address add {GATEWAY}/24 dev eth1",
        "ip link set eth1 up",
        "ip -n crew address add 192.168.77.2/24 dev eth0",
        "ip -n crew link set eth0 up",
        "ip -n crew link set lo up",
    ):
        done = alone.run(*words.split(), folder=folder)
        assert done.returncode == 0, (words, done.stderr)


def start(alone: Machine, folder: Path) -> Running:
    running = alone.start(
        *(TRIAGE, "up", "--dataplane", "linux", "--interface", "port=eth1", "--bandwidth", "320000"),
        *("--gateway", f"{GATEWAY}:10000", "--rest", f"{GATEWAY}:8080", "--insecure", "--access"),
        *("--state", "state", "--json"),
        folder=folder,
    )
    running.ready()
    until(lambda: any("htb" in line for line in alone.seen()["queues"]))
    return running


@pytest.mark.needs_root("it makes namespaces of the network")
def test_queues_of_the_kernel_follow_the_plan_and_go_at_the_end(tmp_path: Path) -> None:
    with machine() as alone:
        wire(alone, tmp_path)
        before = alone.seen()
        running = start(alone, tmp_path)
        token = alone.run(
            *(TRIAGE, "token", "create", "--state", "state", "--role", "publisher", "--role", "subscriber"),
            *("--publish", "#", "--subscribe", "#"),
            folder=tmp_path,
        ).stdout.strip()
        coordinator = ("--coordinator", f"http://{GATEWAY}:8080", "--timeout", "60", "--token", token)
        subscriber = alone.start(
            *CREW, TRIAGE, "sub", "-t", "smoke", "-u", "log:10", *coordinator, "-n", "20", folder=tmp_path
        )
        publisher = alone.start(
            *(TRIAGE, "pub", "-t", "smoke", "-r", "10", "-n", "300", *coordinator), folder=tmp_path
        )
        received = subscriber.finish()
        assert received.returncode == 0, received.stderr
        publisher.kill()
        running.signal(signal.SIGINT)
        done = running.finish()
        assert done.returncode == 0, done.stderr
        (port,) = json.loads(done.stdout)["ports"]
        assert port["port"] == "port"
        assert sum(row["packets_out"] for row in port["classes"]) >= 20
        assert port["control_packets"] > 0
        assert port["control_beyond_bound"] == port["strange_marks"] == 0
        # The live trace has what left the kernel's queues, and samples of them.
        found = runs(tmp_path / "state" / "trace")
        (trace,) = [Trace.open(path, allow_incomplete=True) for path in (*found.complete, *found.incomplete)]
        outcomes = Counter(trace.table("deliveries")["outcome"].to_pylist())
        # What was sent in the last moment before the subscriber left nobody has reported on.
        assert 15 <= outcomes["delivered"] <= sum(row["packets_out"] for row in port["classes"])
        assert set(outcomes) <= {"delivered", "in_flight", "subscriber_gone"}
        assert max(trace.table("queue_samples")["packets_out"].to_pylist()) >= 10
        assert alone.seen() == before


@pytest.mark.needs_root("it makes namespaces of the network")
@pytest.mark.slow
def test_after_a_kill_the_interface_is_put_back_by_restore(tmp_path: Path) -> None:
    with machine() as alone:
        wire(alone, tmp_path)
        before = alone.seen()
        running = start(alone, tmp_path)
        running.kill()
        assert alone.seen()["queues"] != before["queues"]
        restored = alone.run(TRIAGE, "network", "restore", folder=tmp_path)
        assert restored.stdout == "removed interface eth1: queues removed\n"
        until(lambda: not alone.seen()["processes"])
        assert alone.seen() == before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "port 'port' has none; add --interface port=INTERFACE"),
        (["port=eth9"], "this machine has no 'eth9'"),
        (["port"], "this machine has no ''"),
        (["radio=lo"], "there is no port 'radio'; there are port"),
        (["port=lo", "port=lo"], "each port has one interface"),
    ],
)
def test_interfaces_that_are_wrong_are_named(given: list[str], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        interfaces_of(["port"], given)
