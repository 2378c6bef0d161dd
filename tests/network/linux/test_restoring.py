"""Killed processes: what they leave keeps working, can be taken over, and can be undone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.network.linux.wires import CONFIGURED_HANDLE, RECEIVER, Wires, configure_root, count_waiting

from triagemq.network.linux import LinuxDataPlane
from triagemq.network.linux.netlink import Netlink, in_namespace, interface_index
from triagemq.network.linux.port import restore_queues
from triagemq.network.linux.queues import RootQueue, remove_queues, root_queue
from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")

_RUN = """
import sys, time
from triagemq.network.linux import Interface, LinuxDataPlane
from triagemq.plan.dataplane import FlowKey, SetFlow, SetLimiter, SetPort
(udp_port,) = sys.argv[1:]
plane = LinuxDataPlane({"radio": Interface("radio")})
key = FlowKey("10.9.0.2", int(udp_port))
plane.apply([SetPort("radio", 1e8, 100, 2), SetFlow(key, "radio", 0, 0, 0.0), SetLimiter(key, 50 * 142, 1.0)])
print("ready", flush=True)
time.sleep(600)
"""
PUBLISH = bytes([100, 0x0C]) + bytes(98)


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires()
    yield made
    made.close()


@contextmanager
def run(wires: Wires, udp_port: int = 9) -> Iterator[subprocess.Popen[str]]:
    """A process that manages the port `radio`; killed at the end at the latest."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", wires.switch, sys.executable, "-c", _RUN, str(udp_port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def restore(wires: Wires) -> tuple[list[str], list[str]]:
    done = in_namespace(wires.switch, restore_queues)
    assert done.failed == []
    return done.removed, done.in_use


def root(wires: Wires) -> RootQueue:
    netlink = Netlink(wires.switch)
    try:
        return root_queue(netlink, interface_index(netlink, "radio"))
    finally:
        netlink.close()


def test_what_a_killed_run_left_is_undone_once(wires: Wires) -> None:
    with run(wires) as process:
        assert root(wires).is_ours
        assert restore(wires) == ([], ["radio"])
        assert root(wires).is_ours, "a living run keeps its queues"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert restore(wires) == (["radio"], [])
    assert root(wires).is_default
    assert restore(wires) == ([], [])


def test_the_last_plan_outlives_its_process(wires: Wires) -> None:
    with wires.sending_socket() as output, wires.receiving_socket() as receiver:
        with run(wires, receiver.getsockname()[1]):
            pass
        for _ in range(1000):
            output.sendto(PUBLISH, receiver.getsockname())
        assert count_waiting(receiver) == 50
    restore(wires)


def test_a_new_run_takes_over_from_a_killed_one(wires: Wires) -> None:
    with wires.sending_socket() as output, wires.receiving_socket() as receiver:
        key = FlowKey(RECEIVER, receiver.getsockname()[1])
        with run(wires, key.udp_port):
            pass
        plane = LinuxDataPlane(wires.interfaces)
        try:
            for _ in range(100):
                output.sendto(PUBLISH, receiver.getsockname())
            before = count_waiting(receiver)
            plane.apply([SetPort("radio", 1e8, 100, 2), SetFlow(key, "radio", 0, 1, 0.0)])
            assert restore(wires) == ([], ["radio"])
            for _ in range(100):
                output.sendto(PUBLISH, receiver.getsockname())
            counters = plane.counters()
            assert count_waiting(receiver) == 100
            assert 0 < before < 100
            assert counters.flows[key].packets_out == counters.ports["radio"].queues[1].packets_out == 100
            assert counters.ports["radio"].queues[0].packets_in == 0
        finally:
            plane.close()
    assert root(wires).is_default
    assert restore(wires) == ([], [])


def test_what_an_administrator_changed_since_is_left_alone(wires: Wires) -> None:
    with run(wires):
        pass
    netlink = Netlink(wires.switch)
    index = interface_index(netlink, "radio")
    remove_queues(netlink, index)
    configure_root(netlink, index, "pfifo", b"\x2a\0\0\0")
    netlink.close()
    assert restore(wires) == ([], [])
    assert root(wires).handle == CONFIGURED_HANDLE
