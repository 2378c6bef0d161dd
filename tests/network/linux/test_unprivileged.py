"""Classifying by nftables keeps the contract's promises, and does so without root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.network.bench import Bench
from tests.network.contract import DataPlaneContract
from tests.network.linux.kernel_bench import NftablesBench

from triagemq.network.linux import capabilities


@pytest.mark.needs_root("it changes queues of the kernel")
class TestWithNftables(DataPlaneContract):
    served_share = 0.95

    # The queues are those of eBPF, and so are their order and their latencies: once in a while is enough.

    @pytest.mark.slow
    def test_overload_is_borne_by_the_lowest_classes(self, open_bench: Callable[[int], Bench]) -> None:
        super().test_overload_is_borne_by_the_lowest_classes(open_bench)

    @pytest.mark.slow
    def test_latency_is_that_of_the_simulator(self, open_bench: Callable[[int], Bench]) -> None:
        super().test_latency_is_that_of_the_simulator(open_bench)

    @pytest.fixture
    def open_bench(self, tmp_path: Path) -> Iterator[Callable[[int], Bench]]:
        benches: list[Bench] = []

        def open_one(flows: int) -> Bench:
            benches.append(NftablesBench(flows, tmp_path))
            return benches[-1]

        yield open_one
        for bench in benches:
            bench.close()


_INSIDE = """
import ctypes, os, sys
user = os.geteuid()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000 | 0x40000000) == 0, os.strerror(ctypes.get_errno())
with open("/proc/self/uid_map", "w") as file:
    file.write(f"0 {user} 1")

import json, socket
from pyroute2 import IPRoute
from triagemq.errors import NetworkError
from triagemq.network.linux import Interface, LinuxDataPlane, open_linux_data_plane
from triagemq.plan import FlowKey, SetFlow, SetPort

with IPRoute() as network:
    network.link("add", ifname="radio", kind="veth", peer="far")
    for name in ("radio", "far"):
        network.link("set", index=network.link_lookup(ifname=name)[0], state="up")
    index = network.link_lookup(ifname="radio")[0]
    network.addr("add", index=index, address="10.1.0.1", prefixlen=24)
    network.addr("add", index=index, address="fd01::1", prefixlen=64, flags=2)  # IFA_F_NODAD
    network.neigh("replace", dst="fd01::2", lladdr="02:00:00:00:00:02", ifindex=index, state=0x80)
    network.neigh("replace", dst="10.1.0.2", lladdr="02:00:00:00:00:02", ifindex=index, state=0x80)

interfaces = {"radio": Interface("radio")}
try:
    LinuxDataPlane(interfaces, journal_directory=sys.argv[1])
    refused = ""
except NetworkError as error:
    refused = str(error)
plane = open_linux_data_plane(interfaces, journal_directory=sys.argv[1])
over_ipv6 = SetFlow(FlowKey("fd01::2", 7), "radio", 300, 3, 0.0)
flows = [SetFlow(FlowKey("10.1.0.2", 1 + number), "radio", number, number % 7, 0.5) for number in range(300)]
plane.apply([SetPort("radio", 1e8, 100, 7), over_ipv6, *flows])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as output:
    for number in range(3000):
        output.sendto(bytes([20, 12]) + bytes(18), ("10.1.0.2", 1 + number % 300))
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as output:
    for _ in range(10):
        output.sendto(bytes([20, 12]) + bytes(18), ("fd01::2", 7))
        output.sendto(bytes([1, 1, 0, 12]) + bytes(252), ("fd01::2", 7))
        output.sendto(bytes([2, 23]), ("fd01::2", 7))
counters = plane.counters()
plane.close()
ipv6 = counters.flows.pop(over_ipv6.key)
print(json.dumps({
    "ipv6": [ipv6.packets_in, ipv6.packets_out],
    "refused": refused,
    "came": sum(flow.packets_in for flow in counters.flows.values()),
    "dropped": sum(flow.dropped_by_policy for flow in counters.flows.values()),
    "queued": sum(queue.packets_in for queue in counters.ports["radio"].queues),
}))
"""


def test_it_works_inside_a_user_namespace(tmp_path: Path) -> None:
    if os.geteuid() != 0 and (problem := capabilities().without_root):
        pytest.skip(f"needs namespaces of users, which this machine does not give to all: {problem}")
    ran = subprocess.run(
        [sys.executable, "-c", _INSIDE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert "eBPF" in found["refused"]
    assert found["came"] == 3000
    assert found["dropped"] / 3000 == pytest.approx(0.5, abs=0.05)
    assert found["ipv6"] == [20, 20]
    assert found["queued"] - 20 == 3000 - found["dropped"]
