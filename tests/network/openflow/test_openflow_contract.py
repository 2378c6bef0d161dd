"""Open vSwitch in front of the kernel's queues, both told the same, passes the contract suite."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyroute2 import NetNS
from tests.network.bench import Bench
from tests.network.contract import LimiterContract
from tests.network.linux.kernel_bench import KernelBench
from tests.network.linux.wires import RECEIVER, SENDER
from tests.network.openflow.beside import SwitchesAndQueues
from tests.network.openflow.lab import eventually

from triagemq.datagrams import Datagrams, DatagramSender, Unsent
from triagemq.lab.box import VirtualSwitches
from triagemq.lab.box.interfaces import switch_offloads_off
from triagemq.lab.box.journal import Journal
from triagemq.network.linux.netlink import in_namespace
from triagemq.network.openflow import OpenFlowSwitches
from triagemq.plan.dataplane import DataPlane

WINDOW_PACKETS = 150
"""So many may be on their way into the switch, which reads them from a small buffer of the kernel's."""


class InStep(DatagramSender):
    """Sends no faster than the switch passes packets on: what it misses is no business of the data plane."""

    def __init__(self, output: socket.socket, passed: Callable[[], int]) -> None:
        super().__init__(output)
        self._passed = passed
        self._sent = 0
        self._before = passed()

    def __call__(
        self, datagrams: Datagrams, class_of: Callable[[int], int] | None = None
    ) -> Sequence[Unsent]:
        self._wait(len(datagrams))
        return super().__call__(datagrams, class_of)

    def control(self, datagrams: Datagrams) -> Sequence[Unsent]:
        self._wait(len(datagrams))
        return super().control(datagrams)

    def _wait(self, more: int) -> None:
        self._sent += more
        deadline = time.monotonic() + 30
        while self._sent > WINDOW_PACKETS:
            passed = self._passed()
            self._sent -= passed - self._before
            self._before = passed
            if self._sent > WINDOW_PACKETS:
                assert time.monotonic() < deadline, "packets were lost on their way into the switch"
                time.sleep(0.0005)


class OpenFlowBench(KernelBench):
    """The wires of the linux bench, with a switch between the sender and the bridge that queues:

    sender eth0 ---- [from-sender  Open vSwitch  to-queues] ---- [from-switch  bridge  radio] ---- eth0 receiver
    """

    limits = False
    group = "239.1.2.3"

    def open_plane(self, journal_directory: Path) -> DataPlane:
        wires = self.wires
        with NetNS(wires.switch) as switch:
            switch.link("add", ifname="to-queues", kind="veth", peer={"ifname": "from-switch"})
            bridge, outside, out, back = (
                switch.link_lookup(ifname=name)[0]
                for name in ("bridge", "from-sender", "to-queues", "from-switch")
            )
            switch.link("set", index=outside, master=0)
            switch.link("set", index=out, state="up")
            switch.link("set", index=back, master=bridge, state="up")
        for namespace, name in (
            (wires.sender, "eth0"),
            (wires.receiver, "eth0"),
            (wires.switch, "from-switch"),
        ):
            in_namespace(namespace, lambda name=name: switch_offloads_off(name))  # type: ignore[misc]
        self.switches = VirtualSwitches(Journal(journal_directory), namespace=wires.switch)
        self.switches.open()
        places = dict.fromkeys(("radio", "cable"), (1, "to-queues"))
        self.rules = rules = OpenFlowSwitches([1], listen=[self.switches.controller], ports=places)
        plane = SwitchesAndQueues(rules, super().open_plane(journal_directory))
        self.switches.add_switch("hall", 1, ["from-sender", "to-queues"])
        rules.wait_until_ready()
        # Both hosts speak once, and are known from then on.
        eventually(
            lambda: self._speak() or {SENDER, RECEIVER} <= rules.network.hosts.keys(), "hosts are known"
        )
        self._sender = InStep(self._output, self._passed)
        return plane

    def _passed(self) -> int:
        """Packets that the switch has sent into the bridge, or cut."""
        return self._sent_on() + sum(
            flow.limited for switch in self.rules.counters().values() for flow in switch.flows.values()
        )

    def _sent_on(self) -> int:
        process = (self.switches.directory / "ovs-vswitchd.pid").read_text().strip()
        for line in Path(f"/proc/{process}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == "to-queues":
                return int(numbers.split()[9])
        raise AssertionError("the switch has lost its port")

    def close(self) -> None:
        self.plane.close()
        self.switches.close()
        super().close()

    def _settle(self) -> None:
        """Packets may still be inside the switch, where nobody sees them."""
        came = -1
        while came != (now := self._came()):
            came = now
            time.sleep(0.2)
        super()._settle()

    def _came(self) -> int:
        counters = self.plane.counters()
        control = sum(port.control.packets_in for port in counters.ports.values())
        return control + counters.unmanaged.packets + sum(flow.packets_in for flow in counters.flows.values())

    def _speak(self) -> None:
        self._output.sendto(b"", (RECEIVER, 9))
        with self.wires.receiving_socket() as speaker:
            speaker.sendto(b"", (SENDER, 9))
        time.sleep(0.05)


@pytest.mark.needs_root("it makes namespaces of the network")
class TestThroughOpenVSwitch(LimiterContract):
    follows_flows = False
    served_share = 0.95
    # Meters are token buckets, count whole kilobits, and begin full when they are changed.
    limits_by_windows = False
    limiter_precision_bytes_per_second = 125.0
    limiter_precision_bytes = 125.0
    # Open vSwitch decides anew on packets that it knows a moment after it has answered a barrier.
    former_plan_seconds = 0.3
    # As in the kernel; and packets take a tenth of a millisecond through the switch.
    latency_tolerance = 0.3

    @pytest.fixture
    def open_bench(self, tmp_path: Path) -> Iterator[Callable[[int], Bench]]:
        benches: list[Bench] = []

        def open_one(flows: int) -> Bench:
            benches.append(OpenFlowBench(flows, tmp_path))
            return benches[-1]

        yield open_one
        for bench in benches:
            bench.close()
