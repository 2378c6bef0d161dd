"""The classifier: an eBPF program that puts each packet of a port into a queue, drops by policy, and counts.

Attached with direct action to the HTB queueing discipline of a port (see queues.py). For each packet:

* MQTT-SN control messages of a flow (all but PUBLISH), everything marked DSCP CS6, and what a network needs to work
  (ARP and other protocols than IP, IPv6 neighbour discovery) go to the control queue and are never dropped.
* A PUBLISH of a flow goes to the queue of its class, unless it is dropped at random. One of QoS 1 or 2 is
  never dropped: the gateway has drawn for it already, once for all times that it is sent. It is known by its mark
  (DSCP AF31), which also shows on what is encrypted, or by itself where a switch has marked it anew.
* A PUBLISH of a flow that is managed at another port (further along its path) keeps its class, and is not dropped here.
* Everything else, TCP say, goes to the queue for unmanaged packets, which is served last.

Flows are known by destination address and UDP port, over IPv4 and IPv6, with and without an 802.1Q tag. A fragment
other than the first has no UDP port, and an IPv6 extension header hides it: such packets are unmanaged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from triagemq.datagrams import CONTROL_DSCP, SPARED_DSCP
from triagemq.mqttsn.codes import MessageType
from triagemq.network.linux.assembler import Assembler

__all__ = [
    "CONTROL",
    "COUNTER",
    "FLOW_KEY",
    "FLOW_POLICY",
    "IPV4_MAPPED",
    "QUEUES",
    "QUEUE_COUNTER",
    "QUEUE_MINOR",
    "QUEUE_RECORD",
    "UNMANAGED",
    "UNMANAGED_CONTROL",
    "ClassifierMaps",
    "classifier_program",
]

CONTROL = 0
"""The queue of control packets; class c has queue c + 1."""

UNMANAGED = 8
"""The queue of packets that belong to no flow."""

QUEUES = 9
QUEUE_MINOR = 0x10
"""Queue q is the HTB class with the minor number QUEUE_MINOR + q."""

FLOW_KEY = struct.Struct("=16sHH")
"""IPv6 address (or IPv4 mapped into it), UDP port in network order, nothing."""

IPV4_MAPPED = bytes(10) + b"\xff\xff"
"""What stands before an IPv4 address that is mapped into an IPv6 one."""

FLOW_POLICY = struct.Struct("=IxxxxIIQIxxxxIIQIxxxx")
"""The generation from which the second of two policies holds, then twice: port, queue, threshold of 2^32, counter.

A port of 0 means that there is no such flow.
"""
_BEFORE, _AFTER = 8, 32
_PORT, _QUEUE, _THRESHOLD, _COUNTER = 0, 4, 8, 16

COUNTER = struct.Struct("=QQQ")
"""Of one flow in one queue: PUBLISH packets that came, those dropped by policy, bytes that were passed on."""

QUEUE_COUNTER = struct.Struct("=QQ")
"""Of a queue of a port: packets and bytes put into it; of unmanaged control packets there is one more."""
UNMANAGED_CONTROL = 9
QUEUE_RECORD = 16 * QUEUE_COUNTER.size
"""Bytes for the counters of one port's queues; a power of two suits the verifier."""

_LOOKUP, _RANDOM, _LOAD_BYTES = 1, 7, 26
_SKB_LENGTH, _SKB_CLASS = 0, 72
_PASS, _DROP = 0, 2
# The marks as they stand in the octet of an IPv4 header, and what register 8 says of a packet that has them.
_IS_CONTROL, _IS_SPARED = 1, 2
_MARKS = ((CONTROL_DSCP << 2, _IS_CONTROL), (SPARED_DSCP << 2, _IS_SPARED))
# QoS in the flags of a PUBLISH.
_QOS, _QOS_1, _QOS_2 = 0x60, 0x20, 0x40

# The stack, as offsets from its end: what was read of the packet and later its marks, the key of the flow, a counter's
# number.
_READ, _KEY, _NUMBER = -64, -24, -4
_MARKED = _READ


@dataclass(frozen=True, slots=True)
class ClassifierMaps:
    """File descriptors of the maps of a data plane, which its ports share."""

    generation: int
    flows: int
    counters: int
    queues: int


def classifier_program(maps: ClassifierMaps, port: int) -> bytes:
    """The program for the port with this number (from 1 on).

    Register 6 holds the packet, 7 the place reached in it and later the policy, 8 its marks, 9 the queue.
    """
    a = Assembler()
    a.copy(6, 1)
    a.set(8, 0)
    _read_ethernet(a)
    _read_ipv4(a)
    _read_ipv6(a)
    _read_udp(a)
    _find_policy(a, maps)
    _follow_policy(a, maps, port)
    _unmanaged(a)
    _enqueue(a, maps, port)
    return a.program()


def _read(a: Assembler, count: int, otherwise: str) -> None:
    """Copy octets of the packet from where register 7 points to the stack."""
    a.copy(1, 6)
    a.copy(2, 7)
    a.copy(3, 10)
    a.compute(3, "+", _READ)
    a.set(4, count)
    a.call(_LOAD_BYTES)
    a.jump_if(0, "!=", 0, otherwise)


def _network_order(number: int) -> int:
    return struct.unpack("=H", struct.pack("!H", number))[0]  # type: ignore[no-any-return]


def _read_ethernet(a: Assembler) -> None:
    a.set(7, 0)
    _read(a, 14, "unmanaged")
    a.load(2, 9, 10, _READ + 12)
    a.set(7, 14)
    a.jump_if(9, "==", _network_order(0x8100), "tagged")
    a.jump_if(9, "!=", _network_order(0x88A8), "untagged")
    a.label("tagged")
    _read(a, 4, "unmanaged")
    a.load(2, 9, 10, _READ + 2)
    a.set(7, 18)
    a.label("untagged")
    a.jump_if(9, "==", _network_order(0x0800), "ipv4")
    a.jump_if(9, "==", _network_order(0x86DD), "ipv6")
    a.jump("network control")


def _read_ipv4(a: Assembler) -> None:
    a.label("ipv4")
    _read(a, 20, "unmanaged")
    a.load(1, 1, 10, _READ + 1)
    a.compute(1, "&", 0xFC)
    for octet, marked in _MARKS:
        a.jump_if(1, "!=", octet, f"ipv4 not {octet}")
        a.set(8, marked)
        a.label(f"ipv4 not {octet}")
    a.load(1, 1, 10, _READ + 9)
    a.jump_if(1, "!=", 17, "unmanaged")
    a.load(2, 1, 10, _READ + 6)
    a.compute(1, "&", _network_order(0x1FFF))
    a.jump_if(1, "!=", 0, "unmanaged")
    a.store_number(8, 10, _KEY, 0)
    a.store_number(2, 10, _KEY + 8, 0)
    a.store_number(2, 10, _KEY + 10, 0xFFFF)
    a.load(4, 1, 10, _READ + 16)
    a.store(4, 10, _KEY + 12, 1)
    a.load(1, 1, 10, _READ)
    a.compute(1, "&", 0x0F)
    a.compute(1, "<<", 2)
    a.compute_by(7, "+", 1)
    a.jump("udp")


def _read_ipv6(a: Assembler) -> None:
    a.label("ipv6")
    _read(a, 40, "unmanaged")
    # The traffic class lies across the first two octets.
    a.load(1, 1, 10, _READ)
    a.compute(1, "&", 0x0F)
    a.compute(1, "<<", 4)
    a.load(1, 2, 10, _READ + 1)
    a.compute(2, ">>", 4)
    a.compute_by(1, "|", 2)
    a.compute(1, "&", 0xFC)
    for octet, marked in _MARKS:
        a.jump_if(1, "!=", octet, f"ipv6 not {octet}")
        a.set(8, marked)
        a.label(f"ipv6 not {octet}")
    a.compute(7, "+", 40)
    a.load(1, 1, 10, _READ + 6)
    a.jump_if(1, "==", 17, "ipv6 udp")
    a.jump_if(1, "!=", 58, "unmanaged")
    _read(a, 1, "unmanaged")
    a.load(1, 1, 10, _READ)
    a.jump_if(1, "<", 133, "unmanaged")
    a.jump_if(1, "<=", 137, "network control")
    a.jump("unmanaged")
    a.label("ipv6 udp")
    for half in (0, 8):
        a.load(8, 1, 10, _READ + 24 + half)
        a.store(8, 10, _KEY + half, 1)


def _read_udp(a: Assembler) -> None:
    """The port, and whether the datagram is a PUBLISH: its type follows a length of one octet or (01) of three.

    The flags follow the type. What is too short to have any is no PUBLISH.
    """
    a.label("udp")
    _read(a, 8, "unmanaged")
    a.load(2, 1, 10, _READ + 2)
    a.store(2, 10, _KEY + 16, 1)
    a.store_number(2, 10, _KEY + 18, 0)
    a.compute(7, "+", 8)
    _read(a, 3, "not publish")
    a.load(1, 1, 10, _READ + 1)
    a.jump_if(1, "!=", MessageType.ENCAPSULATED, "message")
    # A forwarder's envelope has a length of one octet, and the message follows it.
    a.load(1, 2, 10, _READ)
    a.compute_by(7, "+", 2)
    _read(a, 3, "not publish")
    a.label("message")
    a.load(1, 1, 10, _READ)
    a.jump_if(1, "!=", 1, "short length")
    a.compute(7, "+", 2)
    _read(a, 3, "not publish")
    a.label("short length")
    a.load(1, 1, 10, _READ + 1)
    a.set(9, 0)
    a.jump_if(1, "!=", MessageType.PUBLISH, "not publish")
    a.load(1, 1, 10, _READ + 2)
    a.compute(1, "&", _QOS)
    a.jump_if(1, "==", _QOS_1, "acknowledged")
    a.jump_if(1, "!=", _QOS_2, "look up")
    a.label("acknowledged")
    a.compute(8, "|", _IS_SPARED)
    a.jump("look up")
    a.label("not publish")
    a.set(9, 1)


def _find_policy(a: Assembler, maps: ClassifierMaps) -> None:
    """Register 7 gets the policy that holds in the present generation."""
    a.label("look up")
    a.load_map(1, maps.flows)
    a.copy(2, 10)
    a.compute(2, "+", _KEY)
    a.call(_LOOKUP)
    a.jump_if(0, "==", 0, "unmanaged")
    a.load_value(1, maps.generation)
    a.load(4, 1, 1, 0)
    a.load(4, 2, 0, 0)
    a.copy(7, 0)
    a.compute(7, "+", _BEFORE)
    a.jump_if_by(2, ">", 1, "chosen")
    a.compute(7, "+", _AFTER - _BEFORE)
    a.label("chosen")
    a.load(4, 1, 7, _PORT)
    a.jump_if(1, "==", 0, "unmanaged")


def _follow_policy(a: Assembler, maps: ClassifierMaps, port: int) -> None:
    a.store(4, 10, _MARKED, 8)
    a.compute(8, "&", _IS_CONTROL)
    a.compute_by(8, "|", 9)
    a.set(9, CONTROL)
    a.jump_if(8, "!=", 0, "enqueue")
    a.load(4, 9, 7, _QUEUE)
    a.jump_if(1, "!=", port, "enqueue")
    a.load(4, 1, 7, _COUNTER)
    a.store(4, 10, _NUMBER, 1)
    a.load_map(1, maps.counters)
    a.copy(2, 10)
    a.compute(2, "+", _NUMBER)
    a.call(_LOOKUP)
    a.jump_if(0, "==", 0, "enqueue")
    a.copy(8, 0)
    a.set(1, 1)
    a.count(8, 0, 1)
    # What is left of the marks is that of a packet that is not to be dropped.
    a.load(4, 1, 10, _MARKED)
    a.jump_if(1, "!=", 0, "kept")
    a.load(8, 7, 7, _THRESHOLD)
    a.jump_if(7, "==", 0, "kept")
    a.call(_RANDOM)
    # The helper's number has 32 bits, the rest of the register is not promised.
    a.compute(0, "<<", 32)
    a.compute(0, ">>", 32)
    a.jump_if_by(0, ">=", 7, "kept")
    a.set(1, 1)
    a.count(8, 8, 1)
    a.set(0, _DROP)
    a.exit()
    a.label("kept")
    a.load(4, 1, 6, _SKB_LENGTH)
    a.count(8, 16, 1)
    a.jump("enqueue")


def _unmanaged(a: Assembler) -> None:
    """Packets of no flow; register 8 becomes the record of unmanaged control packets, or 0."""
    a.label("unmanaged")
    a.set(9, UNMANAGED)
    a.compute(8, "&", _IS_CONTROL)
    a.jump_if(8, "==", 0, "enqueue")
    a.label("network control")
    a.set(9, UNMANAGED_CONTROL)


def _enqueue(a: Assembler, maps: ClassifierMaps, port: int) -> None:
    """Count the packet in the record of its queue, and name the queue's class."""
    a.label("enqueue")
    a.compute(9, "&", 0x0F)
    a.store_number(4, 10, _NUMBER, port)
    a.load_map(1, maps.queues)
    a.copy(2, 10)
    a.compute(2, "+", _NUMBER)
    a.call(_LOOKUP)
    a.jump_if(0, "==", 0, "counted")
    a.copy(1, 9)
    a.compute(1, "<<", 4)
    a.compute_by(0, "+", 1)
    a.set(1, 1)
    a.count(0, 0, 1)
    a.load(4, 1, 6, _SKB_LENGTH)
    a.count(0, 8, 1)
    a.label("counted")
    a.jump_if(9, "<=", UNMANAGED, "named")
    a.set(9, CONTROL)
    a.label("named")
    a.compute(9, "+", QUEUE_MINOR)
    a.store(4, 6, _SKB_CLASS, 9)
    a.set(0, _PASS)
    a.exit()
