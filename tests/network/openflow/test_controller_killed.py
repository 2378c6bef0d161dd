"""A controller is killed and started again under load: no packet of an installed flow is lost, no rule changed."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

import pytest
from tests.network.openflow.lab import Lab, Traffic, eventually

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

BROKER, CLIENT, GROUP = "10.9.0.1", "10.9.0.2", "239.1.2.3"
PORTS = (2000, 2001, 2002)
PROGRAM = Path(__file__).with_name("controller_process.py")


class ControllerProcess:
    def __init__(self, lab: Lab) -> None:
        ports = ",".join(map(str, PORTS))
        words = [lab.switches.controller, "1/l12,2/l23,3/p-client", f"{BROKER},{CLIENT}", GROUP, ports]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def has_spoken(self) -> bool:
        assert self.process.poll() is None, "the controller has ended by itself"
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def changes(self) -> dict[str, int]:
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        line = self.process.stdout.readline()
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(line)  # type: ignore[no-any-return]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def test_no_packet_is_lost_and_no_rule_is_changed(lab: Lab) -> None:
    broker, client = lab.host("broker", f"{BROKER}/24"), lab.host("client", f"{CLIENT}/24")
    first, second = lab.link("l12", "l21"), lab.link("l23", "l32")
    lab.switches.add_switch("s1", 1, [broker, first[0]])
    lab.switches.add_switch("s2", 2, [first[1], second[0]])
    lab.switches.add_switch("s3", 3, [second[1], client])
    run = Traffic(
        lab.multicast_sender("broker", BROKER),
        {(GROUP, port): lab.member("client", CLIENT, GROUP, port) for port in PORTS},
    )
    controller = ControllerProcess(lab)
    try:
        # Hosts are found by what they say.
        for _ in range(1000):
            run.send(1, 5)
            run.receivers[GROUP, PORTS[0]].sendto(b"", (BROKER, 9))
            if controller.has_spoken():
                break
        assert controller.changes()["rules put"] > 0
        names = ("s1", "s2", "s3")
        for name in names:
            assert f"tp_dst={PORTS[-1]}" in str(lab.switches.dump_flows(name))
        eventually(lambda: run.under_way(run.receivers) == 0 or sent_again(run), "packets follow the rules")
        rules = {name: sorted(lab.switches.dump_flows(name)) for name in names}

        run.send(20, 200, lossless=run.receivers)
        controller.kill()
        run.send(100, 200, lossless=run.receivers)
        controller = ControllerProcess(lab)
        for _ in range(1000):
            run.send(10, 200, lossless=run.receivers)
            if controller.has_spoken():
                break
        changes = controller.changes()
        run.send(20, 200, lossless=run.receivers)
        eventually(run.all_came, "all came")
        assert changes == {"rules put": 0, "rules deleted": 0, "updates": 0}
        # To the last bit of their cookies.
        assert {name: sorted(lab.switches.dump_flows(name)) for name in names} == rules
    finally:
        controller.kill()


def sent_again(run: Traffic) -> bool:
    """Send to all, and forget what was sent before: it may have been lost when there were no rules."""
    run.forget()
    run.send(1, 5)
    return False
