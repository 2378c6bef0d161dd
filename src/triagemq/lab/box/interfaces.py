"""The interfaces of a box: requests to the kernel that make and change them, sent many at a time, and what they need.

A box knows all numbers in advance, so that a hundred hosts are a handful of system calls. Numbers are those of
include/uapi/linux/if_link.h, if_addr.h, neighbour.h and pkt_sched.h.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from triagemq.errors import NetworkError
from triagemq.lab.box.layout import ETHERNET_MTU, End
from triagemq.network.linux.netlink import (
    CREATE,
    EXCLUSIVE,
    GET_LINK,
    LINK_MESSAGE,
    REPLACE,
    Netlink,
    attribute,
    attributes,
    text_attribute,
)

_UP = 1
_NESTED = 0x8000
_NEW_LINK, _SET_LINK, _NEW_ADDRESS, _NEW_NEIGHBOUR, _DELETE_NEIGHBOUR, _NEW_QUEUE = 16, 19, 20, 28, 29, 36
_NEW_GROUP, _DELETE_GROUP = 84, 85
_PERMANENT, _STATIC = 0x80, 0x40
_TO_MASTER = 0x04
_NO_DUPLICATE_DETECTION = 0x02
_LLDP = 1 << 14
"""Bit of the bridge's mask for 01:80:c2:00:00:0e: LLDP passes, so that a controller finds links through it."""

_MAC, _NAME, _MTU, _MASTER, _MEMBER, _INFORMATION, _NAMESPACE = 1, 3, 4, 10, 12 | _NESTED, 18, 28
_INFORMATION_KIND, _INFORMATION_DATA, _PEER = 1, 2, 1
_BRIDGE_AGEING, _BRIDGE_SPANNING_TREE, _BRIDGE_PASSES, _BRIDGE_SNOOPING = 4, 5, 9, 23
_BRIDGE_ROUTER, _BRIDGE_QUERIER, _BRIDGE_QUERIES, _BRIDGE_ANSWERS = 22, 25, 33, 34
_LEARNS, _FLOODS_UNKNOWN, _TO_ROUTERS, _FLOODS_MULTICAST, _FLOODS_BROADCAST = 8, 9, 25, 27, 30
_GROUP_MESSAGE = struct.Struct("=BxxxI")  # br_port_msg: family, bridge
_GROUP_ENTRY = struct.Struct("=IBBH4s12x2sxx")  # br_mdb_entry: member, state, flags, vlan, address, protocol
_GROUP, _IPV4 = 1, b"\x08\x00"
_GROUP_STAYS = 1
_MOMENT, _HOUR = 10, 360_000
"""In hundredths of a second. Less than ten are none to whoever hears the question: it then waits for ten seconds."""
_ADDRESS_MESSAGE = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix, flags, scope, index
_ADDRESS, _LOCAL = 1, 2
_NEIGHBOUR_MESSAGE = struct.Struct("=BxxxiHBx")  # ndmsg: family, index, state, flags
_DESTINATION, _LINK_ADDRESS = 1, 2
_QUEUE_MESSAGE = struct.Struct("=BxxxiIII")  # tcmsg: family, index, handle, parent, info
_KIND, _OPTIONS, _BUCKET, _BURST = 1, 2, 1, 6
_BUCKET_OPTIONS = struct.Struct("=BBHhHI 12x III")  # tc_tbf_qopt: rate, no peak rate, limit, buffer, mtu
_ETHERNET = 1

_MOST_SECONDS = 30.0
_OPERATION, _MEMBER_DATA, _MEMBER_STATE = 16, 5, 1
_OPERATES, _FORWARDS = 6, 3

_ETHTOOL = 0x8946
_SEND_CHECKSUM, _SEGMENTATION, _GENERIC_SEGMENTATION, _GENERIC_RECEIVE = 0x17, 0x1F, 0x24, 0x2C


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """What the kernel is asked for, in its form and in words; errors that mean that it was so already are none."""

    kind: int
    flags: int
    body: bytes
    words: str
    may_fail_with: frozenset[int] = frozenset()


def send_requests(netlink: Netlink, requests: Sequence[KernelRequest]) -> None:
    """Carry out requests in order; NetworkError names the first that fails. Those after it may have been done."""
    answers = netlink.request_all([(each.kind, each.flags, each.body) for each in requests])
    for request, error in zip(requests, answers, strict=True):
        if error is not None and error.errno not in request.may_fail_with:
            why = "it needs root" if error.errno == errno.EPERM else os.strerror(error.errno or 0)
            raise NetworkError(f"the kernel would not {request.words}: {why}")


def add_bridge(
    name: str, index: int, mac: str, *, passes_lldp: bool, knows_groups: bool = False
) -> KernelRequest:
    """One that `knows_groups` sends what is for a multicast group to the members that are told, and to no others."""
    data = _number(_BRIDGE_SPANNING_TREE, 0) + _octet(_BRIDGE_SNOOPING, knows_groups)
    data += _number(_BRIDGE_AGEING, 0)
    if knows_groups:
        data += _octet(_BRIDGE_ROUTER, 0) + _long(_BRIDGE_QUERIES, _HOUR) + _long(_BRIDGE_ANSWERS, _MOMENT)
    if passes_lldp:
        data += attribute(_BRIDGE_PASSES, struct.pack("=H", _LLDP))
    body = (
        LINK_MESSAGE.pack(0, 0, index, _UP, _UP) + text_attribute(_NAME, name) + attribute(_MAC, _octets(mac))
    )
    return KernelRequest(_NEW_LINK, CREATE | EXCLUSIVE, body + _information("bridge", data), f"make {name}")


def go_by_groups(name: str, index: int) -> KernelRequest:
    """A bridge goes by the groups it was told only where somebody asks for members from time to time: itself."""
    body = LINK_MESSAGE.pack(0, 0, index, 0, 0)
    return KernelRequest(
        _NEW_LINK, 0, body + _information("bridge", _octet(_BRIDGE_QUERIER, 1)), f"let {name} go by groups"
    )


def set_group(bridge: int, interface: str, member: int, group: str, *, present: bool) -> KernelRequest:
    """Let a bridge send what is for a multicast group by one of its members too, or no longer."""
    entry = _GROUP_ENTRY.pack(member, _GROUP_STAYS, 0, 0, socket.inet_aton(group), _IPV4)
    body = _GROUP_MESSAGE.pack(socket.AF_BRIDGE, bridge) + attribute(_GROUP, entry)
    if present:
        return KernelRequest(_NEW_GROUP, CREATE | REPLACE, body, f"send {group} by {interface}")
    gone = frozenset({errno.ENOENT, errno.EINVAL})
    return KernelRequest(_DELETE_GROUP, 0, body, f"send {group} no longer by {interface}", gone)


def add_veth(
    near: End, far: End, *, far_namespace: int | None = None, mtu_bytes: int = ETHERNET_MTU
) -> KernelRequest:
    """A pair of interfaces; the far one in the namespace of a file descriptor, if given."""

    def described(end: End) -> bytes:
        name, mac = text_attribute(_NAME, end.interface), attribute(_MAC, _octets(end.mac))
        return LINK_MESSAGE.pack(0, 0, end.index, 0, 0) + name + mac + _number(_MTU, mtu_bytes)

    peer = described(far) + (b"" if far_namespace is None else _number(_NAMESPACE, far_namespace))
    body = described(near) + _information("veth", attribute(_PEER, peer))
    return KernelRequest(_NEW_LINK, CREATE | EXCLUSIVE, body, f"join {near.interface} and {far.interface}")


def set_link(name: str, index: int, *, up: bool, master: int | None = None) -> KernelRequest:
    body = LINK_MESSAGE.pack(0, 0, index, _UP if up else 0, _UP)
    body += b"" if master is None else _number(_MASTER, master)
    return KernelRequest(_NEW_LINK, 0, body, f"set {name} {'up' if up else 'down'}")


def set_member(
    name: str, index: int, *, floods_unknown: bool, floods_broadcast: bool, knows_groups: bool = False
) -> KernelRequest:
    """How a bridge treats a member: it never learns from it, and floods to it what it is allowed to."""
    settings = (
        _octet(_LEARNS, 0)
        + _octet(_FLOODS_UNKNOWN, floods_unknown)
        + (_octet(_TO_ROUTERS, 0) if knows_groups else b"")
        + _octet(_FLOODS_MULTICAST, floods_broadcast and not knows_groups)
        + _octet(_FLOODS_BROADCAST, floods_broadcast)
    )
    body = LINK_MESSAGE.pack(socket.AF_BRIDGE, 0, index, 0, 0) + attribute(_MEMBER, settings)
    return KernelRequest(_SET_LINK, 0, body, f"set up {name}")


def add_address(name: str, index: int, address: str, prefix: int) -> KernelRequest:
    family, packed = _packed(address)
    sixth = family == socket.AF_INET6
    body = _ADDRESS_MESSAGE.pack(family, prefix, _NO_DUPLICATE_DETECTION if sixth else 0, 0, index)
    body += (b"" if sixth else attribute(_LOCAL, packed)) + attribute(_ADDRESS, packed)
    return KernelRequest(_NEW_ADDRESS, CREATE | EXCLUSIVE, body, f"give {name} the address {address}")


def neighbour(index: int, address: str, mac: str) -> KernelRequest:
    """Who has an address, for good: nothing is asked on the wire, and so no answer is lost there."""
    family, packed = _packed(address)
    body = _NEIGHBOUR_MESSAGE.pack(family, index, _PERMANENT, 0)
    body += attribute(_DESTINATION, packed) + attribute(_LINK_ADDRESS, _octets(mac))
    return KernelRequest(_NEW_NEIGHBOUR, CREATE | REPLACE, body, f"say where {address} is")


def set_forwarding(interface: str, index: int, mac: str, *, present: bool) -> KernelRequest:
    """Let a bridge send frames to a MAC address by one member, or no longer by it."""
    body = _NEIGHBOUR_MESSAGE.pack(socket.AF_BRIDGE, index, _STATIC, _TO_MASTER)
    body += attribute(_LINK_ADDRESS, _octets(mac))
    if present:
        return KernelRequest(_NEW_NEIGHBOUR, CREATE | REPLACE, body, f"send {mac} by {interface}")
    # Setting the entry at another member of the same bridge moves it: then it is gone from here already.
    gone = frozenset({errno.ENOENT})
    return KernelRequest(_DELETE_NEIGHBOUR, 0, body, f"send {mac} no longer by {interface}", gone)


def add_fifo(name: str, index: int, bandwidth_bps: float, lateness_seconds: float = 0.0) -> KernelRequest:
    """A token bucket of one frame before a long FIFO: what an unmanaged switch does to its traffic.

    Timers ring late: the bucket holds what is sent in `lateness_seconds` more, which makes up for it.
    """
    rate, limit = max(1, round(bandwidth_bps / 8)), 4 * 1024 * 1024
    burst = 1600 + round(rate * lateness_seconds)
    bucket = _BUCKET_OPTIONS.pack(0, _ETHERNET, 0, 0, 0, rate, limit, 0, 0)
    body = _QUEUE_MESSAGE.pack(0, index, 0x10000, 0xFFFFFFFF, 0) + text_attribute(_KIND, "tbf")
    body += attribute(_OPTIONS, attribute(_BUCKET, bucket) + _number(_BURST, burst))
    return KernelRequest(_NEW_QUEUE, CREATE | EXCLUSIVE, body, f"give {name} a queue")


def _information(kind: str, data: bytes) -> bytes:
    return attribute(
        _INFORMATION, text_attribute(_INFORMATION_KIND, kind) + attribute(_INFORMATION_DATA, data)
    )


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def _long(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=Q", value))


def _octet(kind: int, value: int) -> bytes:
    return attribute(kind, bytes([value]))


def _octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _packed(address: str) -> tuple[int, bytes]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.inet_pton(family, address)


def await_links(namespace: str, members: Mapping[int, str], others: Mapping[int, str]) -> None:
    """Until bridges forward to their members, and the other interfaces are up; each by its number with its name.

    The kernel notices some time after the call that both ends of a link are up.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    with closing(Netlink(namespace)) as netlink:
        while True:
            up, forwarding = _states(netlink)
            slow = [name for index, name in members.items() if index not in up & forwarding]
            slow += [name for index, name in others.items() if index not in up]
            if not slow:
                return
            if time.monotonic() > deadline:
                raise NetworkError(f"the link of {slow[0]} did not come up in {_MOST_SECONDS:g} seconds")
            time.sleep(0.005)


def _states(netlink: Netlink) -> tuple[set[int], set[int]]:
    """The interfaces that are up, and those that a bridge forwards to."""
    up, forwarding = set(), set()
    for message, begin, end in netlink.dump(GET_LINK, LINK_MESSAGE.pack(0, 0, 0, 0, 0)):
        _, _, index, _, _ = LINK_MESSAGE.unpack_from(message, begin)
        for kind, first, last in attributes(message, begin + LINK_MESSAGE.size, end):
            if kind == _OPERATION and message[first] == _OPERATES:
                up.add(index)
            elif kind == _INFORMATION and _member_state(message, first, last) == _FORWARDS:
                forwarding.add(index)
    return up, forwarding


def _member_state(message: bytes, begin: int, end: int) -> int | None:
    for kind, first, last in attributes(message, begin, end):
        if kind == _MEMBER_DATA:
            for inner, value, _ in attributes(message, first, last):
                if inner == _MEMBER_STATE:
                    return message[value]
    return None


def switch_offloads_off(interface: str) -> None:
    """Switch off, at an interface of the present namespace, what virtual links only pretend to do for the kernel.

    A frame without its checksum, or one of 64 kB that stands for forty, is fine between two kernels; Open vSwitch drops
    the former, and queues that count packets would be wrong by the latter.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for offload in (_SEND_CHECKSUM, _SEGMENTATION, _GENERIC_SEGMENTATION, _GENERIC_RECEIVE):
            value = array.array("I", [offload, 0])
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
            try:
                fcntl.ioctl(channel.fileno(), _ETHTOOL, request)
            except OSError as error:
                raise NetworkError(f"the offloads of {interface} cannot be set: {error.strerror}") from None
