"""How fast the linux data plane is: packets through bridge, HTB and eBPF beside a plain bridge, plan changes, counters.

Two hosts and a switch are network namespaces of this machine. One process sends as fast as sendmmsg goes to 1,000 flows
in turn; what counts is what the receiving interface counts. Both ways alternate, and the best of each is taken. Needs
root.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyroute2 import NetNS, netns

from measuring import finish, machine, options
from triagemq.mqttsn import MessageType
from triagemq.network.linux import Interface, LinuxDataPlane
from triagemq.network.linux.netlink import in_namespace
from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort

FLOWS = 1000
PORTS = 100
DATAGRAM_BYTES = 100
# Nobody has this address: the receiver counts packets and throws them away.
DESTINATION = "10.9.0.77"
FIRST_UDP_PORT = 20_000
MAC = "02:00:00:00:09:77"

GOALS = {"ratio": 0.6, "thousand_flows_milliseconds": 20.0, "counters_milliseconds": 50.0}


def main() -> None:
    arguments = options(__doc__).parse_args()
    if os.geteuid() != 0:
        sys.exit("this benchmark needs root: it makes network namespaces")
    found = measure(arguments.quick)
    finish(found, described(found), as_json=arguments.json)


def measure(quick: bool) -> dict[str, Any]:
    seconds, rounds = (0.5, 3) if quick else (1.5, 7)
    return {
        "machine": machine("triagemq", "pyroute2", "numpy"),
        "datagram_bytes": DATAGRAM_BYTES,
        "flows": FLOWS,
        "forwarding": forwarding(seconds, rounds),
        "updates": updates(50 if quick else 300),
        "counters": counters(5 if quick else 30),
    }


# What is measured.


def forwarding(seconds: float, rounds: int) -> dict[str, float]:
    """Packets per second at the receiver, through a plain bridge and through the data plane's port."""
    with network() as (sender, switch, receiver):
        send = in_namespace(sender, sending)
        rates: dict[str, list[float]] = {"plain": [], "managed": []}
        for _ in range(rounds):
            rates["plain"].append(rate(send, receiver, seconds))
            plane = LinuxDataPlane({"radio": Interface("radio", switch)})
            try:
                plane.apply([SetPort("radio", 10e9, 1000, 7), *flows(0)])
                rates["managed"].append(rate(send, receiver, seconds))
            finally:
                plane.close()
    plain, managed = max(rates["plain"]), max(rates["managed"])
    return {
        "plain_packets_per_second": round(plain),
        "managed_packets_per_second": round(managed),
        "ratio": round(managed / plain, 3),
    }


def updates(tries: int) -> dict[str, dict[str, float]]:
    """Changing one flow of 1,000, and all of them, from the call of `apply` to its return."""
    with network() as (_, switch, _):
        plane = LinuxDataPlane({"radio": Interface("radio", switch)})
        try:
            plane.apply([SetPort("radio", 1e9, 1000, 7), *flows(0)])
            numbers = itertools.count(1)
            states = [flows(number) for number in range(10)]
            single = [state[:1] for state in states]
            one = timed(lambda: plane.apply(single[next(numbers) % 10]), tries)
            thousand = timed(lambda: plane.apply(states[next(numbers) % 10]), max(tries // 10, 5))
        finally:
            plane.close()
    return {"one_flow": one, "thousand_flows": thousand}


def counters(tries: int) -> dict[str, Any]:
    """Reading all queues of 100 ports, and of 1,000 flows on them."""
    name = f"tqbench{os.getpid()}-p"
    netns.create(name)
    try:
        with NetNS(name) as namespace:
            for number in range(PORTS):
                namespace.link("add", ifname=f"port{number}", kind="veth", peer=f"host{number}")
        names = [f"port{number}" for number in range(PORTS)]
        plane = LinuxDataPlane({each: Interface(each, name) for each in names})
        try:
            begin = time.perf_counter()
            plane.apply([SetPort(each, 1e6, 100, 7) for each in names])
            made = time.perf_counter() - begin
            plane.apply(flows(0, names))
            read = timed(plane.counters, tries)
        finally:
            plane.close()
    finally:
        netns.remove(name)
    return {
        "ports": PORTS,
        "flows": FLOWS,
        "reading": read,
        "making_the_ports_milliseconds": round(made * 1e3, 1),
    }


# How.


def flows(number: int, ports: list[str] | None = None) -> list[SetFlow[FlowKey]]:
    """All flows, in classes and with drop rates that differ from one number to the next; none drops much."""
    names = ports or ["radio"]
    return [
        SetFlow(
            FlowKey(DESTINATION, FIRST_UDP_PORT + flow),
            names[flow % len(names)],
            flow,
            (flow + number) % 7,
            0.001 * (number % 10),
        )
        for flow in range(FLOWS)
    ]


def timed(call: Callable[[], object], tries: int) -> dict[str, float]:
    """The median tells what a busy machine takes, the best what the work itself does."""
    taken = []
    for _ in range(tries):
        begin = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - begin))
    return {
        "best_milliseconds": round(min(taken), 3),
        "median_milliseconds": round(statistics.median(taken), 3),
    }


def rate(send: Callable[[], None], receiver: str, seconds: float) -> float:
    with NetNS(receiver) as host:
        before = received(host)
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            send()
        passed = time.perf_counter() - begin
        time.sleep(0.05)
        return (received(host) - before) / passed


def received(host: Any) -> int:
    link = next(link for link in host.get_links() if link.get_attr("IFLA_IFNAME") == "eth0")
    return int(link.get_attr("IFLA_STATS64")["rx_packets"])


def sending() -> Callable[[], None]:
    """A call that sends a PUBLISH to each of the flows, with headers made once."""
    output = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagram = ctypes.create_string_buffer(
        bytes([DATAGRAM_BYTES, MessageType.PUBLISH]) + bytes(DATAGRAM_BYTES - 2), DATAGRAM_BYTES
    )
    piece = ctypes.create_string_buffer(struct.pack("@PN", ctypes.addressof(datagram), DATAGRAM_BYTES))
    addresses = [
        ctypes.create_string_buffer(
            struct.pack("=HHH", socket.AF_INET, 0, 0)[:2]
            + struct.pack("!H", FIRST_UDP_PORT + flow)
            + socket.inet_aton(DESTINATION)
            + bytes(8),
            16,
        )
        for flow in range(FLOWS)
    ]
    messages = ctypes.create_string_buffer(
        b"".join(
            struct.pack(
                "@PIxxxxPNPNixxxxIxxxx", ctypes.addressof(to), 16, ctypes.addressof(piece), 1, 0, 0, 0, 0
            )
            for to in addresses
        )
    )
    libc = ctypes.CDLL(None, use_errno=True)
    size = struct.calcsize("@PIxxxxPNPNixxxxIxxxx")

    def send(keep: object = (datagram, piece, addresses)) -> None:
        # The kernel takes 1,024 at a time, or fewer if the socket's buffer is full.
        sent = 0
        while sent < FLOWS:
            count = libc.sendmmsg(
                output.fileno(), ctypes.byref(messages, sent * size), ctypes.c_uint(FLOWS - sent), 0
            )
            if count < 0:
                raise OSError(ctypes.get_errno(), "sendmmsg")
            sent += count

    return send


@contextmanager
def network() -> Iterator[tuple[str, str, str]]:
    """The namespaces of a sender, a switch with a bridge and its port `radio`, and a receiver behind that."""
    names = tuple(f"tqbench{os.getpid()}-{each}" for each in ("sender", "switch", "receiver"))
    sender, switch, receiver = names
    for name in names:
        netns.create(name)
    try:
        with NetNS(switch) as bridge_host:
            bridge_host.link("add", ifname="bridge", kind="bridge", br_mcast_snooping=0)
            bridge = bridge_host.link_lookup(ifname="bridge")[0]
            bridge_host.link("set", index=bridge, state="up")
            for port, host in (("sensors", sender), ("radio", receiver)):
                bridge_host.link("add", ifname=port, kind="veth", peer={"ifname": "eth0", "net_ns_fd": host})
                index = bridge_host.link_lookup(ifname=port)[0]
                bridge_host.link("set", index=index, master=bridge, state="up")
                if port == "radio":
                    # In the bridge's table (NTF_MASTER), and not learned (NUD_NOARP).
                    bridge_host.fdb("append", ifindex=index, lladdr=MAC, flags=0x04, state=0x40)
        with NetNS(receiver) as host:
            index = host.link_lookup(ifname="eth0")[0]
            host.link("set", index=index, address=MAC)
            host.link("set", index=index, state="up")
        with NetNS(sender) as host:
            index = host.link_lookup(ifname="eth0")[0]
            host.addr("add", index=index, address="10.9.0.1", prefixlen=16)
            host.link("set", index=index, state="up")
            host.neigh("replace", dst=DESTINATION, lladdr=MAC, ifindex=index, state=0x80)
        yield sender, switch, receiver
    finally:
        for name in names:
            netns.remove(name)


def described(found: dict[str, Any]) -> list[str]:
    through, changed, read = found["forwarding"], found["updates"], found["counters"]

    def times(each: dict[str, float]) -> str:
        return (
            f"{each['best_milliseconds']:>9.3f} ms at best, {each['median_milliseconds']:.3f} in the median"
        )

    return [
        f"packets of {found['datagram_bytes']} bytes of datagram, {found['flows']} flows in 7 classes",
        f"  plain bridge             {through['plain_packets_per_second']:>9,} packets/s",
        f"  bridge + HTB + eBPF      {through['managed_packets_per_second']:>9,} packets/s,"
        f" {through['ratio']:.2f} of it (goal {GOALS['ratio']})",
        f"  change of one flow       {times(changed['one_flow'])}",
        f"  change of 1,000 flows    {times(changed['thousand_flows'])}"
        f" (goal {GOALS['thousand_flows_milliseconds']:.0f})",
        f"  counters of {read['ports']} ports    {times(read['reading'])}"
        f" (goal {GOALS['counters_milliseconds']:.0f}), with {read['flows']} flows",
        f"  making {read['ports']} ports         {read['making_the_ports_milliseconds']:>9.1f} ms",
    ]


if __name__ == "__main__":
    main()
