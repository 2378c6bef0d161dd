"""Requests to the kernel's network, encoded by pyroute2 and sent many at a time.

One pyroute2 call waits for its answer, and looks up names; a box knows all numbers in advance, so that a hundred hosts
are a handful of system calls.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triagemq.errors import MissingDependencyError, NetworkError

__all__ = [
    "Request",
    "add_address",
    "add_bridge",
    "add_fifo",
    "add_veth",
    "neighbour",
    "open_netlink",
    "remove_link",
    "send_requests",
    "set_forwarding",
    "set_link",
    "set_member",
]

Message = Literal["link", "address", "neighbour", "queue"]

REQUEST, ACK, EXCLUSIVE, CREATE, REPLACE = 0x1, 0x4, 0x200, 0x400, 0x100
UP = 1
NESTED = 0x8000
NEW_LINK, DELETE_LINK, SET_LINK, NEW_ADDRESS, NEW_NEIGHBOUR, DELETE_NEIGHBOUR, NEW_QUEUE = (
    16,
    17,
    19,
    20,
    28,
    29,
    36,
)
PERMANENT, STATIC = 0x80, 0x40
TO_MASTER = 0x04
NO_DUPLICATE_DETECTION = 0x02
LLDP = 1 << 14
"""Bit of the bridge's mask for 01:80:c2:00:00:0e: LLDP passes, so that a controller finds links through it."""

HEADER = struct.Struct("=IHHII")
ERROR_CODE = struct.Struct("=i")
AT_ONCE = 16
"""Few enough that the answers fit into a receive buffer of the usual size."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: what it says, and in words what it does, for the error if it fails."""

    message: Message
    type: int
    flags: int
    fields: Mapping[str, Any]
    attributes: Sequence[tuple[Any, ...]]
    words: str
    may_fail_with: frozenset[int] = frozenset()


def add_bridge(name: str, index: int, mac: str, *, passes_lldp: bool) -> Request:
    data: list[tuple[str, Any]] = [
        ("IFLA_BR_STP_STATE", 0),
        ("IFLA_BR_MCAST_SNOOPING", 0),
        ("IFLA_BR_AGEING_TIME", 0),
    ]
    if passes_lldp:
        data.append(("IFLA_BR_GROUP_FWD_MASK", LLDP))
    information = [("IFLA_INFO_KIND", "bridge"), ("IFLA_INFO_DATA", {"attrs": data})]
    attributes = [
        ("IFLA_IFNAME", name),
        ("IFLA_ADDRESS", mac),
        ("IFLA_LINKINFO", {"attrs": information}),
    ]
    return _link(
        NEW_LINK, CREATE | EXCLUSIVE, {"index": index, "flags": UP, "change": UP}, attributes, f"make {name}"
    )


def add_veth(
    near: tuple[str, int, str],
    far: tuple[str, int, str],
    *,
    far_namespace: int | None = None,
    mtu: int = 1500,
) -> Request:
    """A pair of interfaces by (name, index, MAC); the far one in the namespace of a file descriptor, if given."""
    (name, index, mac), (far_name, far_index, far_mac) = near, far
    far_attributes: list[tuple[str, Any]] = [
        ("IFLA_IFNAME", far_name),
        ("IFLA_ADDRESS", far_mac),
        ("IFLA_MTU", mtu),
    ]
    if far_namespace is not None:
        far_attributes.append(("IFLA_NET_NS_FD", far_namespace))
    peer = {"index": far_index, "attrs": far_attributes}
    information = [
        ("IFLA_INFO_KIND", "veth"),
        ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]}),
    ]
    attributes = [
        ("IFLA_IFNAME", name),
        ("IFLA_ADDRESS", mac),
        ("IFLA_MTU", mtu),
        ("IFLA_LINKINFO", {"attrs": information}),
    ]
    return _link(NEW_LINK, CREATE | EXCLUSIVE, {"index": index}, attributes, f"join {name} and {far_name}")


def set_link(name: str, index: int, *, up: bool, master: int | None = None) -> Request:
    fields = {"index": index, "flags": UP if up else 0, "change": UP}
    attributes = [] if master is None else [("IFLA_MASTER", master)]
    return _link(NEW_LINK, 0, fields, attributes, f"set {name} {'up' if up else 'down'}")


def remove_link(name: str) -> Request:
    gone = frozenset({errno.ENODEV})
    words, attributes = f"remove {name}", [("IFLA_IFNAME", name)]
    return Request("link", DELETE_LINK, REQUEST | ACK, {"index": 0}, attributes, words, gone)


def set_member(name: str, index: int, *, floods_unknown: bool, floods_broadcast: bool) -> Request:
    """How a bridge treats a member: it never learns from it, and floods to it what it is allowed to."""
    settings = [
        ("IFLA_BRPORT_LEARNING", 0),
        ("IFLA_BRPORT_UNICAST_FLOOD", int(floods_unknown)),
        ("IFLA_BRPORT_MCAST_FLOOD", int(floods_broadcast)),
        ("IFLA_BRPORT_BCAST_FLOOD", int(floods_broadcast)),
    ]
    fields = {"family": socket.AF_BRIDGE, "index": index}
    return _link(SET_LINK, 0, fields, [("IFLA_PROTINFO", {"attrs": settings}, NESTED)], f"set up {name}")


def add_address(name: str, index: int, address: str, prefix: int) -> Request:
    sixth = ":" in address
    fields = {
        "family": socket.AF_INET6 if sixth else socket.AF_INET,
        "prefixlen": prefix,
        "index": index,
        "flags": NO_DUPLICATE_DETECTION if sixth else 0,
    }
    attributes = [("IFA_ADDRESS", address)] if sixth else [("IFA_LOCAL", address), ("IFA_ADDRESS", address)]
    words = f"give {name} the address {address}"
    return Request("address", NEW_ADDRESS, REQUEST | ACK | CREATE | EXCLUSIVE, fields, attributes, words)


def neighbour(index: int, address: str, mac: str) -> Request:
    """Who has an address, for good: nothing is asked on the wire, and so no answer is lost there."""
    fields = {
        "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
        "ifindex": index,
        "state": PERMANENT,
    }
    attributes = [("NDA_DST", address), ("NDA_LLADDR", mac)]
    flags = REQUEST | ACK | CREATE | REPLACE
    return Request("neighbour", NEW_NEIGHBOUR, flags, fields, attributes, f"say where {address} is")


def set_forwarding(interface: str, index: int, mac: str, *, present: bool) -> Request:
    """Let a bridge send frames to a MAC address by one member, or no longer by it."""
    fields = {"family": socket.AF_BRIDGE, "ifindex": index, "state": STATIC, "flags": TO_MASTER}
    attributes = [("NDA_LLADDR", mac)]
    if present:
        words, flags = f"send {mac} by {interface}", REQUEST | ACK | CREATE | REPLACE
        return Request("neighbour", NEW_NEIGHBOUR, flags, fields, attributes, words)
    # Setting the entry at another member of the same bridge moves it: then it is gone from here already.
    gone = frozenset({errno.ENOENT})
    words = f"send {mac} no longer by {interface}"
    return Request("neighbour", DELETE_NEIGHBOUR, REQUEST | ACK, fields, attributes, words, gone)


def add_fifo(name: str, index: int, bandwidth_bps: float) -> Request:
    """A token bucket of one frame before a long FIFO: what an unmanaged switch does to its traffic."""
    from pyroute2.netlink.rtnl.tcmsg import sched_tbf

    rate = max(1, round(bandwidth_bps / 8))
    options = sched_tbf.get_parameters({"rate": rate, "burst": 1600, "limit": 4 * 1024 * 1024})
    fields = {"index": index, "handle": 0x10000, "parent": 0xFFFFFFFF}
    attributes = [("TCA_KIND", "tbf"), ("TCA_OPTIONS", options)]
    flags = REQUEST | ACK | CREATE | EXCLUSIVE
    return Request("queue", NEW_QUEUE, flags, fields, attributes, f"give {name} a queue")


def _link(
    kind: int, flags: int, fields: Mapping[str, Any], attributes: Sequence[tuple[Any, ...]], words: str
) -> Request:
    return Request("link", kind, REQUEST | ACK | flags, fields, attributes, words)


def open_netlink() -> socket.socket:
    """A socket to the network of the calling thread's namespace."""
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    channel.bind((0, 0))
    return channel


def send_requests(channel: socket.socket, requests: Sequence[Request]) -> None:
    """Carry out requests in order; NetworkError names the first that fails. Those after it may have been done."""
    for start in range(0, len(requests), AT_ONCE):
        batch = requests[start : start + AT_ONCE]
        channel.send(b"".join(encoded(request, number) for number, request in enumerate(batch, start=1)))
        failures = _answers(channel, len(batch))
        for number, code in sorted(failures.items()):
            request = batch[number - 1]
            if code not in request.may_fail_with:
                why = "it needs root" if code == errno.EPERM else os.strerror(code)
                raise NetworkError(f"the kernel would not {request.words}: {why}")


def encoded(request: Request, number: int) -> bytes:
    message = _message_class(request.message)()
    for name, value in request.fields.items():
        message[name] = value
    message["attrs"] = list(request.attributes)
    message["header"]["type"] = request.type
    message["header"]["flags"] = request.flags
    message["header"]["sequence_number"] = number
    message.encode()
    return bytes(message.data)


def _message_class(kind: Message) -> Any:
    try:
        from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
        from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
        from pyroute2.netlink.rtnl.ndmsg import ndmsg
        from pyroute2.netlink.rtnl.tcmsg import tcmsg
    except ModuleNotFoundError:
        raise MissingDependencyError("pyroute2", "network") from None
    return {"link": ifinfmsg, "address": ifaddrmsg, "neighbour": ndmsg, "queue": tcmsg}[kind]


def _answers(channel: socket.socket, wanted: int) -> dict[int, int]:
    """One acknowledgement per request; those that failed with their error."""
    failures: dict[int, int] = {}
    while wanted > 0:
        data = channel.recv(1 << 16)
        offset = 0
        while offset < len(data):
            length, _, _, number, _ = HEADER.unpack_from(data, offset)
            code = -ERROR_CODE.unpack_from(data, offset + HEADER.size)[0]
            if code:
                failures[number] = code
            wanted -= 1
            offset += (length + 3) & ~3
    return failures
