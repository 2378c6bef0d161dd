"""`triage topics carry`: events by the codes of their topics, at ports of this machine and of OpenFlow switches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.openflow.lab import Lab, eventually, ip

from triagemq.cli.topics import carry
from triagemq.errors import TriageError
from triagemq.topic_codes import CodeBook, save_book

TRIAGE = str(Path(sys.executable).parent / "triage")
TOPICS = ["building/floor1/smoke", "building/floor2/smoke", "garden/gate"]
WANTED = ["east=building/floor1/#", "west=building/#@3"]
HOSTS = ("publisher", "east", "west")


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    book = CodeBook()
    book.add(TOPICS)
    book.add_type("alarm")
    save_book(book, tmp_path / "codes.json")
    return tmp_path / "codes.json"


class Hall:
    """A publisher and two hosts, at a bridge or at an Open vSwitch, and commands that run there."""

    def __init__(self, lab: Lab, codes: Path) -> None:
        self._lab, self.codes = lab, codes
        self.ports = [lab.host(name, f"fd00::{number}/64") for number, name in enumerate(HOSTS, 1)]
        for name in HOSTS:
            ip("route add multicast ff00::/8 dev eth0 table local", namespace=f"{lab.name}-{name}")

    def start(self, where: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["ip", "netns", "exec", f"{self._lab.name}-{where}", TRIAGE, *words],
            cwd=self.codes.parent,
            env=os.environ | {"TRIAGE_STATE": str(self.codes.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def carry(self, *words: str) -> subprocess.Popen[str]:
        carrying = self.start("sw", "topics", "carry", *WANTED, "--codes", str(self.codes), "--json", *words)
        assert carrying.stderr is not None
        assert carrying.stderr.readline().startswith("triage: carrying")
        return carrying

    def publish(self, topic: str, count: int, event_type: str) -> None:
        words = ("--codes", str(self.codes), "--type", event_type)
        sent = self.start("publisher", "pub", "-t", topic, "-m", "x" * 50, "-n", str(count), *words)
        said, complaint = sent.communicate(timeout=60)
        assert sent.returncode == 0, said + complaint


def ended(carrying: subprocess.Popen[str]) -> dict[str, Any]:
    carrying.terminate()
    said, complaint = carrying.communicate(timeout=60)
    assert carrying.returncode == 0, complaint
    found = json.loads(said)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


@pytest.fixture
def hall(lab: Lab, codes: Path) -> Hall:
    return Hall(lab, codes)


@pytest.mark.needs_root("it makes namespaces of the network")
def test_ports_of_this_machine_carry_events_by_prefix(lab: Lab, hall: Hall) -> None:
    lines = ["link add bridge type bridge mcast_snooping 0", "link set bridge up"]
    ip(*lines, *(f"link set {each} master bridge" for each in hall.ports), namespace=lab.namespace)
    words = ("--interface", "east=p-east", "--interface", "west=p-west")
    carrying = hall.carry(*words, "--bandwidth", "1000000")
    listening = ("--codes", str(hall.codes), "--type", "alarm", "-n", "3", "--json")
    subscribed = hall.start("east", "sub", "-t", TOPICS[0], *listening, "--for", "30")
    joined = f"{lab.name}-east"
    while (
        "ff1e:"
        not in subprocess.run(
            ["ip", "-n", joined, "maddr", "show", "dev", "eth0"], capture_output=True, text=True, check=True
        ).stdout
    ):
        assert subscribed.poll() is None
    hall.publish(TOPICS[0], 3, "alarm")
    hall.publish(TOPICS[1], 2, "")
    hall.publish(TOPICS[2], 4, "")
    said, complaint = subscribed.communicate(timeout=60)
    assert subscribed.returncode == 0, complaint
    assert [json.loads(line)["number"] for line in said.splitlines() if "number" in line] == [1, 2, 3]
    found = ended(carrying)
    assert [row["events"] for row in found["routes"]] == [3, 5]
    assert found["discarded"] == {"east": 6, "west": 4}
    assert [row["priority_class"] for row in found["routes"]] == [0, 3]


def of_events(lab: Lab) -> list[str]:
    return [word for line in lab.switches.counts("s1") if "ipv6_dst=ff1e:" in line for word in line.split()]


@pytest.mark.needs_root("it makes namespaces of the network")
def test_switches_carry_events_by_prefix(lab: Lab, hall: Hall) -> None:
    lab.switches.add_switch("s1", 1, hall.ports)
    words = ("--interface", "east=1/p-east", "--interface", "west=1/p-west")
    carrying = hall.carry(*words, "--openflow", lab.switches.controller)
    hall.publish(TOPICS[0], 3, "alarm")
    hall.publish(TOPICS[2], 4, "")
    flows = [line for line in lab.switches.dump_flows("s1") if "ipv6_dst=ff1e:" in line]
    marked = "set_field:46->ip_dscp,output:2,set_field:24->ip_dscp,output:3"
    assert any("ipv6_dst=ff1e:a000::/20" in line and marked in line for line in flows), flows
    # Open vSwitch adds its counters up now and then.
    eventually(
        lambda: {"n_packets=3", "n_packets=4"} <= {word.strip(",") for word in of_events(lab)},
        "all is counted",
    )
    found = ended(carrying)
    assert [row["events"] for row in found["routes"]] == [3, 0]
    assert found["discarded"] == {"0000000000000001": 4}


@pytest.mark.parametrize(
    ("wanted", "openflow", "said"),
    [
        ("floor1", None, "'floor1' is not PORT=FILTER, as radio=building/floor1/#"),
        ("east=cellar/#", None, "'cellar' has no code: below '' there is building, garden, not 'cellar'"),
        ("east=building/+", None, "'building/+' is no subtree: + takes one level only"),
        ("east=building/#", None, "there is no port 'west'; there are east"),
        ("west=building/#", "tcp:127.0.0.1:0", "'west=lo' is not PORT=DATAPATH/NAME, as radio=1/eth3"),
        (
            "east=building/#",
            "tcp:0.0.0.0:6653",
            "--openflow: 0.0.0.0 is reached from other machines: add --tls-certificate, --tls-key and --switch-ca",
        ),
    ],
)
def test_what_cannot_be_carried_is_said_in_a_line(
    codes: Path, wanted: str, openflow: str | None, said: str
) -> None:
    with pytest.raises(TriageError, match=re.escape(said)):
        carry([wanted], ["west=lo"], codes, openflow=openflow)
