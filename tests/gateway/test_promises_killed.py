"""kill -9 of the coordinator or the controller amid a change of promises: what is admitted is kept at every moment.

What the switches do is read from them again and again. Each state is judged as stages are: what was admitted has all of
its copies and its limiter, and at every port all flows keep their deadlines with the levels that they have there.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.client.test_real_coordinator import CoordinatorProcess
from tests.coordinator.managed import ManagedProcess
from tests.coordinator.promising import WARD, planned_for, publisher, subscriber
from tests.gateway.real import Child, Mosquitto, ended
from tests.network.openflow.lab import Lab, eventually

from triagemq.broker.process import find_mosquitto
from triagemq.coordinator.decide.decide import PlannerSettings, Question, decide
from triagemq.errors import VirtualSwitchError
from triagemq.intents import Intent, PublisherIntent
from triagemq.network.openflow.rules import MARKS
from triagemq.plan.admission.ledger import Ledger
from triagemq.plan.admission.planning import ledger_of

pytestmark = [
    pytest.mark.needs_root("it makes namespaces of the network"),
    pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)"),
]

PROGRAM = Path(__file__).with_name("switches_process.py")
PORTS = {"screen": (1, "p-screen"), "over": (1, "l12"), "monitor": (2, "p-monitor")}
FIRST = (publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02))
SECOND = (publisher("alarm", "fire"), subscriber("doctor", "fire", 0.0064))
NURSE, DOCTOR = ("239.192.0.0", 17000), ("239.192.0.1", 17000)

State = dict[tuple[tuple[str, int], str], int]
"""By address and output port, the level of a copy."""


class Switches:
    """Two switches, and what they do."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        hosts = {
            name: lab.host(name, f"10.9.0.{number}/24")
            for number, name in enumerate(("bed", "screen", "monitor"), 1)
        }
        here, there = lab.link("l12", "l21")
        lab.switches.add_switch("s1", 1, [hosts["bed"], hosts["screen"], here])
        lab.switches.add_switch("s2", 2, [there, hosts["monitor"]])
        # Ports of a switch are numbered as they are named.
        self._port = {("s1", 2): "screen", ("s1", 3): "over", ("s2", 2): "monitor"}

    def read(self) -> tuple[State, set[tuple[str, int]]]:
        """The copies that are made, and what is limited where it enters."""
        copies: State = {}
        limited = set()
        for switch in ("s1", "s2"):
            for line in self._lab.switches.dump_flows(switch):
                found = re.search(r"nw_dst=(239[\d.]+),.*tp_dst=(\d+).* ?actions=(.*)", line)
                if found is None:
                    continue
                key = found[1], int(found[2])
                if "meter:" in line and switch == "s1":
                    limited.add(key)
                mark = 0
                for action in found[3].split(","):
                    if action.startswith("set_field:") and action.endswith("ip_dscp"):
                        mark = int(action.removeprefix("set_field:").partition("->")[0])
                    elif action.startswith("output:"):
                        port = self._port[switch, int(action.removeprefix("output:"))]
                        copies[key, port] = MARKS.index(mark)
        return copies, limited


class Judge:
    """Judges every state that the switches are found in, in a thread of its own."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches
        self.ledger, self._rows = _promised(*FIRST, *SECOND)
        self.states: list[State] = []
        self.problems: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Judge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ends.is_set():
            try:
                copies, limited = self._switches.read()
            except VirtualSwitchError:
                # A switch that has no time to answer is asked again.
                continue
            if not self.states or copies != self.states[-1]:
                self.states.append(copies)
                self.problems += self.judge(copies)
            # Each look at the switches takes two processes: time for others, too.
            self._ends.wait(0.01)
            if NURSE not in limited:
                self.problems.append("the nurse's topic is not limited")

    def judge(self, copies: State) -> list[str]:
        problems = [
            f"the nurse has no copy at {port}" for port in ("over", "monitor") if (NURSE, port) not in copies
        ]
        for link, flows in self.ledger.links.items():
            number = self.ledger.network.port(link)
            if number < 0:
                continue
            port = self.ledger.network.scenario.ports.name[number]
            there = [
                (row, copies[key, port])
                for key, row in self._rows_at(flows.publication)
                if (key, port) in copies
            ]
            some = flows.some(np.array([row for row, _ in there], dtype=np.int64))
            levels = np.array([level for _, level in there], dtype=np.int64)
            if len(levels) and not some.keeps(self.ledger.network.link(link), levels):
                problems.append(f"at {port} somebody is late with {levels} of {some.publication}")
        return problems

    def _rows_at(self, publication: Any) -> Iterator[tuple[tuple[str, int], int]]:
        for key, number in self._rows.items():
            rows = np.flatnonzero(publication == number)
            if len(rows):
                yield key, int(rows[0])


def _promised(*intents: Intent) -> tuple[Ledger, dict[tuple[str, int], int]]:
    """The promises as the coordinator admits them, and the publications of their addresses."""
    settings = PlannerSettings(priority_classes=7)
    first = decide(Question(planned_for(*FIRST), settings=settings))
    both = decide(Question(planned_for(*intents), settings=settings), first)
    scenario = both.scenario
    names = {
        f"{scenario.publishers.name[who]} {scenario.topics.name[topic]}": row
        for row, (who, topic) in enumerate(
            zip(scenario.publications.publisher.tolist(), scenario.publications.topic.tolist(), strict=True)
        )
    }
    addresses = both.orders.promised.addresses
    assert {(key.address, key.udp_port) for key in addresses.values()} == {NURSE, DOCTOR}
    return ledger_of(scenario, both.plan), {
        (key.address, key.udp_port): names[name] for name, key in addresses.items()
    }


class Here:
    """Everything that runs, and REST."""

    def __init__(self, coordinator: CoordinatorProcess, start_controller: Callable[[], Child]) -> None:
        self.coordinator = coordinator
        self._start_controller = start_controller
        self.controller = start_controller()

    def kill(self, victim: str) -> None:
        (self.coordinator if victim == "coordinator" else self.controller).kill()

    def start(self, victim: str) -> None:
        if victim == "coordinator":
            self.coordinator.start()
        else:
            self.controller = self._start_controller()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.coordinator.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, None

    def announce(self, intents: Sequence[Intent]) -> None:
        for intent in intents:
            kind = "publishers" if isinstance(intent, PublisherIntent) else "subscribers"
            # They are not heard of again, whoever is killed meanwhile.
            status, _ = self.ask(
                "PUT", f"/v1/{kind}/{intent.name}", intent.as_json() | {"lease_seconds": 3600}
            )
            assert status in (200, 201)

    def promised(self, name: str) -> bool:
        """Whether a subscriber has its promise, once its last word is in force."""
        status, answer = self.ask("GET", f"/v1/subscribers/{name}/promises?wait_seconds=30")
        return (
            status == 200
            and answer["in_force"]
            and [each["admitted"] for each in answer["promises"]] == [True]
        )


@contextlib.contextmanager
def everything(lab: Lab, directory: Path) -> Iterator[Here]:
    network = directory / "ward.yaml"
    network.write_text(WARD)
    with contextlib.ExitStack() as stack:
        broker = Mosquitto(directory / "broker")
        stack.enter_context(ended(broker))
        gateway = ManagedProcess(directory / "gateway", broker.url, dataplane="reported")
        stack.enter_context(ended(gateway))
        coordinator = CoordinatorProcess(
            directory,
            gateway,
            broker.url,
            access=False,
            network=str(network),
            planner={"priority_classes": 7},
        )
        stack.enter_context(ended(coordinator))

        def controller() -> Child:
            words = [str(PROGRAM), lab.switches.controller, str(gateway.socket), json.dumps(PORTS)]
            started = Child([sys.executable, *words], directory / "controller.log")
            assert json.loads(started.line(60.0))["ready"]
            return started

        here = Here(coordinator, controller)
        stack.callback(lambda: here.controller.end())
        yield here


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["coordinator", "controller"])
def test_every_admitted_bound_is_kept_whoever_is_killed_amid_a_change(tmp_path: Path, victim: str) -> None:
    chance = random.Random(16)
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(contextlib.closing(Lab(tmp_path)))
        switches = Switches(lab)
        here = stack.enter_context(everything(lab, tmp_path))
        here.announce(FIRST)
        eventually(lambda: here.promised("nurse"), "the first promise", 60)
        alone, _ = switches.read()
        assert {key for key, _ in alone} == {NURSE}
        here.announce(SECOND[:1])
        half_done = 0
        with Judge(switches) as judge:
            for number in range(10):
                joins = number % 2 == 0
                seen = len(judge.states)
                if joins:
                    here.announce(SECOND[1:])
                else:
                    assert here.ask("DELETE", "/v1/subscribers/doctor")[0] in (202, 204)
                # Amid it: something has changed, and more may be to come.
                eventually(lambda seen=seen: len(judge.states) > seen, "the change begins")
                threading.Event().wait(chance.uniform(0.0, 0.15))
                here.kill(victim)
                found = judge.states[-1]
                here.start(victim)
                if joins:
                    eventually(lambda: here.promised("doctor"), "the promise after the restart", 60)
                eventually(
                    lambda joins=joins: (
                        {port for key, port in judge.states[-1] if key == DOCTOR}
                        == ({"over", "monitor"} if joins else set())
                    ),
                    "the change is completed",
                    60,
                )
                half_done += found != judge.states[-1]
                assert here.promised("nurse")
                assert judge.problems == []
        # In some cases more was to come, and more states than those before and after were seen.
        assert half_done > 0
        assert len({str(sorted(state.items())) for state in judge.states}) > 2
