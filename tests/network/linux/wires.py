"""A small real network: a host that sends, a switch namespace with a bridge, and a host that receives.

    sender eth0 ---- [from-sender  bridge  radio] ---- eth0 receiver
                                  [        cable] ---- eth1 receiver

Nothing speaks by itself (no IPv6, neighbours and the bridge's table are given), so that every packet is a test's.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from pathlib import Path

from pyroute2 import NetNS, netns

from triagemq.network.linux import Interface
from triagemq.network.linux.netlink import Netlink, attribute, in_namespace, text_attribute

_numbers = itertools.count()

CONFIGURED_HANDLE = 0xABCD0000

SENDER = "10.9.0.1"
RECEIVER = "10.9.0.2"
RECEIVER_ON_CABLE = "10.9.0.3"

_MACS = {"sender": "02:00:00:00:09:01", "radio": "02:00:00:00:09:02", "cable": "02:00:00:00:09:03"}

SO_RCVBUFFORCE = 33
"""More than the system's limit, so that no test loses packets at its receiver."""

# An entry of the bridge's own table (NTF_MASTER) that is not learned and not the bridge itself (NUD_NOARP).
_IN_BRIDGE = {"flags": 0x04, "state": 0x40}


class Wires:
    """Made by the constructor, removed by `close`."""

    def __init__(self) -> None:
        prefix = f"tq{os.getpid()}-{next(_numbers)}"
        self.sender, self.switch, self.receiver = (f"{prefix}-{each}" for each in ("s", "w", "r"))
        for name in (self.sender, self.switch, self.receiver):
            netns.create(name)
            in_namespace(name, _be_quiet)
        with NetNS(self.switch) as switch:
            switch.link("add", ifname="bridge", kind="bridge", br_mcast_snooping=0)
            bridge = switch.link_lookup(ifname="bridge")[0]
            switch.link("set", index=bridge, state="up")
            for port, host, device in (
                ("from-sender", self.sender, "eth0"),
                ("radio", self.receiver, "eth0"),
                ("cable", self.receiver, "eth1"),
            ):
                switch.link("add", ifname=port, kind="veth", peer={"ifname": device, "net_ns_fd": host})
                index = switch.link_lookup(ifname=port)[0]
                switch.link("set", index=index, master=bridge, state="up")
                switch.fdb("append", ifindex=index, lladdr=_MACS[port.removeprefix("from-")], **_IN_BRIDGE)
        _address(self.sender, "eth0", _MACS["sender"], SENDER)
        _address(self.receiver, "eth0", _MACS["radio"], RECEIVER)
        _address(self.receiver, "eth1", _MACS["cable"], RECEIVER_ON_CABLE)
        for host, device, address, where in (
            (self.sender, "eth0", RECEIVER, "radio"),
            (self.sender, "eth0", RECEIVER_ON_CABLE, "cable"),
            (self.receiver, "eth0", SENDER, "sender"),
        ):
            with NetNS(host) as inside:
                index = inside.link_lookup(ifname=device)[0]
                inside.neigh("replace", dst=address, lladdr=_MACS[where], ifindex=index, state=0x80)

    @property
    def interfaces(self) -> dict[str, Interface]:
        return {name: Interface(name, namespace=self.switch) for name in ("radio", "cable")}

    def sending_socket(self) -> socket.socket:
        made = in_namespace(self.sender, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind((SENDER, 0))
        return made

    def connection(self) -> tuple[socket.socket, socket.socket]:
        """TCP from the receiver to a listener of the sender; the two ends, the sender's with the port it listens on."""
        listener = in_namespace(self.sender, lambda: socket.create_server((SENDER, 0)))
        with listener:
            client = in_namespace(self.receiver, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            client.settimeout(20.0)
            client.connect(listener.getsockname())
            return client, listener.accept()[0]

    def receiving_socket(self, address: str = RECEIVER) -> socket.socket:
        made = in_namespace(self.receiver, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind((address, 0))
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        return made

    def tap(self) -> socket.socket:
        """Gets a copy of each IPv4 packet at the receiver of `radio`, from its IP header on, in the order they come."""
        made = in_namespace(self.receiver, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0))
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        made.bind(("eth0", 0x0800))
        made.setblocking(False)
        return made

    def close(self) -> None:
        for name in (self.sender, self.switch, self.receiver):
            netns.remove(name)


def count_waiting(receiver: socket.socket) -> int:
    """Take everything that has come to a socket; how many datagrams."""
    count = 0
    while True:
        try:
            receiver.recv(2048)
        except BlockingIOError:
            return count
        count += 1


def configure_root(netlink: Netlink, interface: int, kind: str, options: bytes) -> None:
    """A queueing discipline as an administrator puts it there (RTM_NEWQDISC, CREATE and EXCL)."""
    message = struct.pack("=BxxxiIII", 0, interface, CONFIGURED_HANDLE, 0xFFFFFFFF, 0)
    netlink.request(36, 0x600, message + text_attribute(1, kind) + attribute(2, options))


def _be_quiet() -> None:
    """No IPv6 autoconfiguration, and with it no packets that nobody sent."""
    for scope in ("all", "default"):
        switch = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if switch.exists():
            switch.write_text("1")


def _address(namespace: str, device: str, mac: str, ipv4: str) -> None:
    with NetNS(namespace) as host:
        host.link("set", index=1, state="up")
        index = host.link_lookup(ifname=device)[0]
        host.link("set", index=index, address=mac)
        host.addr("add", index=index, address=ipv4, prefixlen=24)
        host.link("set", index=index, state="up")
