"""The network in a box as peers find it: the links and buffers of the scenario, and ports that nobody manages.

A port sends what is marked with a class selector (DSCP CS7 first, CS1 last) by strict priority, a queue for each, as
an ordinary switch with DiffServ does, and everything else by one FIFO. The queues are those of TriageMQ's linux data
plane, with as much room.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from peer_programs.settings import dscp_of
from triagemq.lab.box import Box, Host, Layout, lay_out, new_run
from triagemq.network.linux.netlink import Netlink
from triagemq.network.linux.queues import OUR_HANDLE, build_queues, waiting_room
from triagemq.network.linux.records import QUEUE_MINOR
from triagemq.programs import find_program
from triagemq.scenario import Scenario

CLASSES = 7
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@contextmanager
def unmanaged_network(scenario: Scenario) -> Iterator[Box]:
    """A box until the end, whatever ends it."""
    with Box(lay_out(scenario, new_run())) as box:
        buffer, bandwidth = scenario.ports.buffer_packets, scenario.ports.bandwidth_bps
        with closing(Netlink(box.layout.switch_namespace)) as netlink:
            for port in box.layout.ports:
                row = scenario.ports.name.index(port.name)
                build_queues(netlink, port.index, float(bandwidth[row]), waiting_room(float(buffer[row])))
        _batch("tc", box.layout.switch_namespace, _filters(box.layout))
        # Brokers are known to everyone; who has none sends from publisher to subscriber.
        (publishers,) = {host.namespace: host for host in box.layout.publishers.values()}.values()
        for host in box.layout.subscribers.values():
            _batch("ip", host.namespace, [_neighbour(host, publishers)])
        known = (_neighbour(publishers, host) for host in box.layout.subscribers.values())
        _batch("ip", publishers.namespace, known)
        yield box


def carried_bytes(layout: Layout) -> int:
    """What has left all ports, with its headers, since the box was made."""
    command = [_program("ip"), "-n", layout.switch_namespace, "-s", "-j", "link", "show"]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    ports = {port.interface for port in layout.ports}
    return sum(each["stats64"]["tx"]["bytes"] for each in json.loads(printed) if each["ifname"] in ports)


def processor_seconds(processes: Iterable[int]) -> float:
    """What processes have taken so far; those that have ended are not counted."""
    total = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_SECOND


def _filters(layout: Layout) -> Iterator[str]:
    handle = f"{OUR_HANDLE >> 16:x}"
    for port in layout.ports:
        for level in range(CLASSES):
            yield (
                f"filter add dev {port.interface} parent {handle}: protocol ip prio 1 u32 "
                f"match ip dsfield {dscp_of(level):#x} 0xfc flowid {handle}:{QUEUE_MINOR + 1 + level:x}"
            )


def _neighbour(host: Host, other: Host) -> str:
    return f"neigh replace {other.ipv4} lladdr {other.mac} dev {host.interface} nud permanent"


def _batch(program: str, namespace: str, lines: Iterable[str]) -> None:
    command = [_program(program), "-n", namespace, "-batch", "-"]
    subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True)


def _program(name: str) -> str:
    return find_program(name) or name
