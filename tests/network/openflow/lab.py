"""A small network for tests: namespaces as hosts, Open vSwitch in a namespace of its own, and queue boxes behind it."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from triagemq.lab.box import VirtualSwitches
from triagemq.lab.box.interfaces import switch_offloads_off
from triagemq.lab.box.journal import Journal
from triagemq.lab.box.namespaces import create_namespace, remove_namespace
from triagemq.network.linux.netlink import in_namespace

_NUMBER = struct.Struct("!I")


def ip(*lines: str, namespace: str | None = None) -> None:
    """Run `ip` with all lines at once."""
    command = ["ip", *(["-n", namespace] if namespace else []), "-batch", "-"]
    subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True, capture_output=True)


class AdministeredSwitches(VirtualSwitches):
    """Switches that somebody looks at and changes by hand."""

    def add_port(self, switch: str, interface: str) -> None:
        self.configure("add-port", switch, interface)
        self._require_port(interface)

    def remove_port(self, switch: str, interface: str) -> None:
        self.configure("del-port", switch, interface)

    def dump_flows(self, switch: str) -> list[str]:
        """The rules of a switch, as `ovs-ofctl` shows them, without their counters."""
        text = self._run("ovs-ofctl", "-O", "OpenFlow13", "--no-stats", "dump-flows", self.management(switch))
        return [line.strip() for line in text.splitlines() if "actions=" in line]

    def counts(self, switch: str) -> list[str]:
        """The rules of a switch with their counters."""
        return self._run("ovs-ofctl", "-O", "OpenFlow13", "dump-flows", self.management(switch)).splitlines()

    def dump_meters(self, switch: str) -> str:
        """The meters of a switch, as `ovs-ofctl` shows them."""
        return self._run("ovs-ofctl", "-O", "OpenFlow13", "dump-meters", self.management(switch))

    def change_rules(self, switch: str, *words: str) -> None:
        """Run `ovs-ofctl` with options and an order ("add-flow", a rule), as an administrator would."""
        *options, order, rule = words
        self._run("ovs-ofctl", "-O", "OpenFlow13", *options, order, self.management(switch), rule)


class Lab:
    """`name` is unique. Hosts are namespaces; `host` gives the interface that is to become a port of a switch."""

    def __init__(self, folder: Path) -> None:
        self.name = f"of{secrets.token_hex(3)}"
        self.journal = Journal(folder / "journal")
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self.close)
            self.namespace = self._make_namespace("sw")
            self.switches = AdministeredSwitches(self.journal, namespace=self.namespace)
            self._undo.callback(self.switches.close)
            self.switches.open()
            unfinished.pop_all()

    def close(self) -> None:
        self._undo.close()

    def _make_namespace(self, rest: str) -> str:
        name = f"{self.name}-{rest}"
        note = self.journal.note("namespace", name=name)
        self._undo.callback(self.journal.done, note)
        self._undo.callback(remove_namespace, name)
        create_namespace(name, ipv6=True)
        ip("link set lo up", namespace=name)
        return name

    def host(self, name: str, *addresses: str, queue_box: bool = False) -> str:
        """A host; with a queue box its port is behind a kernel bridge, on the interface `q-NAME`."""
        namespace = self._make_namespace(name)
        near = f"p-{name}"
        lines = [f"link add {near} type veth peer name eth0 netns {namespace}", f"link set {near} up"]
        if queue_box:
            lines = [
                f"link add b-{name} type bridge",
                f"link set b-{name} up",
                f"link add q-{name} type veth peer name eth0 netns {namespace}",
                f"link add {near} type veth peer name r-{name}",
                *(f"link set {each} master b-{name}" for each in (f"q-{name}", f"r-{name}")),
                *(f"link set {each} up" for each in (f"q-{name}", f"r-{name}", near)),
            ]
        ip(*lines, namespace=self.namespace)
        ip(
            *(f"addr add {each} dev eth0 {'nodad' if ':' in each else ''}" for each in addresses),
            "link set eth0 up",
            namespace=namespace,
        )
        self._offloads_off(namespace, "eth0")
        self._offloads_off(self.namespace, near)
        return near

    def link(self, one: str, other: str) -> tuple[str, str]:
        ip(
            f"link add {one} type veth peer name {other}",
            f"link set {one} up",
            f"link set {other} up",
            namespace=self.namespace,
        )
        self._offloads_off(self.namespace, one)
        self._offloads_off(self.namespace, other)
        return one, other

    def set_interface(self, interface: str, state: str) -> None:
        ip(f"link set {interface} {state}", namespace=self.namespace)

    def in_host(self, name: str, work: Callable[[], object]) -> object:
        return in_namespace(f"{self.name}-{name}", work)

    def udp(self, name: str, address: str, port: int) -> socket.socket:
        """A socket of a host."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = in_namespace(f"{self.name}-{name}", lambda: socket.socket(family, socket.SOCK_DGRAM))
        made.bind((address, port))
        made.setblocking(False)
        self._undo.callback(made.close)
        return made

    def multicast_sender(self, name: str, address: str) -> socket.socket:
        made = self.udp(name, address, 0)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        return made

    def member(self, name: str, address: str, group: str, port: int) -> socket.socket:
        """A socket of a host that gets what is sent to a group."""
        made = self.udp(name, "0.0.0.0", port)
        membership = socket.inet_aton(group) + socket.inet_aton(address)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        return made

    def _offloads_off(self, namespace: str, interface: str) -> None:
        in_namespace(namespace, lambda: switch_offloads_off(interface))


def eventually(check: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.02)


MOST_UNDER_WAY = 60
"""The sockets by which a switch in user space takes packets from its ports have room for some 250."""


class Traffic:
    """Numbered datagrams from one socket to others, at an even pace, and which of them came.

    `missing` are those that were sent and have not come.
    """

    def __init__(self, sender: socket.socket, receivers: Mapping[tuple[str, int], socket.socket]) -> None:
        self.sender, self.receivers = sender, receivers
        self.sent: dict[tuple[str, int], int] = dict.fromkeys(receivers, 0)
        self.arrived: dict[tuple[str, int], list[int]] = {key: [] for key in receivers}
        self.missing: dict[tuple[str, int], set[int]] = {key: set() for key in receivers}

    def send(
        self,
        count: int,
        packets_per_second: float = 500.0,
        *,
        lossless: Collection[tuple[str, int]] = (),
    ) -> None:
        """Send `count` to each, and receive meanwhile.

        Of `lossless` flows never more is under way than there is room for on this machine, however long a switch has to
        wait for a processor: what they lose is lost by the rules of switches.
        """
        for _ in range(count):
            for key in self.receivers:
                self.sender.sendto(_NUMBER.pack(self.sent[key]) + bytes(46), key)
                self.missing[key].add(self.sent[key])
                self.sent[key] += 1
            self.receive(1 / packets_per_second)
            eventually(lambda: self.under_way(lossless) <= MOST_UNDER_WAY, "what is under way arrives")

    def receive(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(list(self.receivers.values()), [], [], left)
            for key, receiver in self.receivers.items():
                if receiver in ready:
                    with contextlib.suppress(BlockingIOError):
                        while True:
                            number = _NUMBER.unpack_from(receiver.recv(2048))[0]
                            self.arrived[key].append(number)
                            self.missing[key].discard(number)
            if not ready and not left:
                return

    def under_way(self, keys: Collection[tuple[str, int]]) -> int:
        self.receive(0)
        return sum(len(self.missing[key]) for key in keys)

    def all_came(self) -> bool:
        return self.under_way(self.receivers) == 0

    def forget(self) -> None:
        """Nobody waits for what has not come until now."""
        for numbers in self.missing.values():
            numbers.clear()
