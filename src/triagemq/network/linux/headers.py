"""How the classifier reads a packet: Ethernet, IPv4 or IPv6, TCP or UDP, and what kind of message is inside.

Parts of one program, assembled in the order of this file. What was read is left on the stack (`Stack`), in register 8
how the packet is marked, and in register 9 what each part says. The parts jump to labels of classifier.py
when they know enough: "unmanaged", "network control", "own control", "later fragment".
"""

from __future__ import annotations

import struct

from triagemq.datagrams import CLASS_DSCP, CONTROL_DSCP
from triagemq.mqttsn.codes import MessageType
from triagemq.network.linux.bpf import Assembler
from triagemq.network.linux.records import ClassifierMaps

_LOOKUP, _LOAD_BYTES = 1, 26
_SKB_INGRESS = 36
IS_CONTROL, CLASS_SHIFT = 1, 1
"""What register 8 says of a packet: whether it has the mark of control, and above that the queue of its class, if it
has the mark of one."""
# Marks as they stand in the octet of an IPv4 header.
_MARKS = {
    CONTROL_DSCP << 2: IS_CONTROL,
    **{dscp << 2: queue << CLASS_SHIFT for queue, dscp in enumerate(CLASS_DSCP, start=1)},
}
_ETHERNET = 14
_UDP, _TCP, _ICMPV6, _FRAGMENT_HEADER = 17, 6, 58, 44
# Records of DTLS begin with their type and a version, 1.2 or (in a first handshake) 1.0; MQTT-SN has no such octets:
# in the envelope that the second would announce, all but two bits of the third are zero.
_DTLS_VERSIONS, _APPLICATION_DATA = (0xFD, 0xFF), 23


class Stack:
    """What is where on the program's stack, as offsets from its end."""

    READ = -64
    """What was read of the packet last."""
    FRAME = READ + 2
    """The header of Ethernet, so that addresses behind it lie where programs may read them."""
    KEY = -24
    """The destination, as a flow's key or a listener's."""
    NUMBER = -4
    SOURCE = -88
    """The source, as a listener's key."""
    ANY = -112
    """A listener's key for all addresses."""
    COPY = ANY
    """The destination, as the key of a copy: it is looked up before any listener is."""
    FRAGMENT = -152
    IS_FIRST = -160
    """Not 0 if more fragments follow this first one."""
    VERDICT = -176
    """What is remembered of a first fragment."""
    TIME = -184
    PLACE = -200
    """Where the packet came in, and from which device."""
    PORT = -192
    """The number of the port that the packet leaves by."""


def _read(a: Assembler, count: int, otherwise: str, to: int = Stack.READ) -> None:
    """Copy octets of the packet from where register 7 points to the stack.

    Each costs a call into the kernel: most packets are read in two.
    """
    a.copy(1, 6)
    a.copy(2, 7)
    a.copy(3, 10)
    a.compute(3, "+", to)
    a.set(4, count)
    a.call(_LOAD_BYTES)
    a.jump_if(0, "!=", 0, otherwise)


def look_up(a: Assembler, table: int, key: int) -> None:
    """Register 0 gets the address of the value for a key on the stack, or 0."""
    a.load_map(1, table)
    a.copy(2, 10)
    a.compute(2, "+", key)
    a.call(_LOOKUP)


def network_order(number: int) -> int:
    """Two octets of a packet, as a program reads them."""
    return struct.unpack("=H", struct.pack("!H", number))[0]  # type: ignore[no-any-return]


def _read_place(a: Assembler) -> None:
    """The interface where the packet came in (0 for this host's own), and the device's Ethernet address."""
    a.load(4, 1, 6, _SKB_INGRESS)
    a.compute(1, "<<", 48)
    a.store(8, 10, Stack.PLACE, 1)
    a.load(4, 1, 10, Stack.FRAME + 6)
    a.store(4, 10, Stack.PLACE, 1)
    a.load(2, 1, 10, Stack.FRAME + 10)
    a.store(2, 10, Stack.PLACE + 4, 1)


def read_ethernet(a: Assembler) -> None:
    """The type, and the header of IPv4 behind it if that is what it has."""
    a.set(7, 0)
    _read(a, _ETHERNET + 20, "short frame", Stack.FRAME)
    _read_place(a)
    a.load(2, 9, 10, Stack.FRAME + 12)
    a.set(7, _ETHERNET)
    a.jump_if(9, "==", network_order(0x0800), "ipv4 read")
    a.jump("other frame")
    a.label("short frame")
    _read(a, _ETHERNET, "unmanaged", Stack.FRAME)
    _read_place(a)
    a.load(2, 9, 10, Stack.FRAME + 12)
    a.set(7, _ETHERNET)
    a.jump_if(9, "==", network_order(0x0800), "unmanaged")
    a.label("other frame")
    a.jump_if(9, "==", network_order(0x8100), "tagged")
    a.jump_if(9, "!=", network_order(0x88A8), "untagged")
    a.label("tagged")
    _read(a, 4, "unmanaged")
    a.load(2, 9, 10, Stack.READ + 2)
    a.set(7, 18)
    a.label("untagged")
    a.jump_if(9, "==", network_order(0x0800), "ipv4")
    a.jump_if(9, "==", network_order(0x86DD), "ipv6")
    a.jump("network control")


def _read_mark(a: Assembler, version: str) -> None:
    """From register 1, where the mark stands as in the octet of an IPv4 header."""
    for octet, marked in _MARKS.items():
        a.jump_if(1, "!=", octet, f"{version} not {octet}")
        a.set(8, marked)
        a.label(f"{version} not {octet}")


def read_ipv4(a: Assembler) -> None:
    a.label("ipv4")
    header = Stack.FRAME + _ETHERNET
    _read(a, 20, "unmanaged", header)
    a.label("ipv4 read")
    a.load(1, 1, 10, header + 1)
    a.compute(1, "&", 0xFC)
    _read_mark(a, "ipv4")
    for key, place in ((Stack.SOURCE, 12), (Stack.KEY, 16)):
        a.store_number(8, 10, key, 0)
        a.store_number(2, 10, key + 8, 0)
        a.store_number(2, 10, key + 10, 0xFFFF)
        a.load(4, 1, 10, header + place)
        a.store(4, 10, key + 12, 1)
    a.load(1, 9, 10, header + 9)
    a.load(1, 1, 10, header)
    a.compute(1, "&", 0x0F)
    a.compute(1, "<<", 2)
    a.compute_by(7, "+", 1)
    a.load(2, 1, 10, header + 4)
    a.store(4, 10, Stack.FRAGMENT + 32, 1)
    a.load(2, 1, 10, header + 6)
    a.copy(2, 1)
    a.compute(1, "&", network_order(0x1FFF))
    a.jump_if(1, "!=", 0, "later fragment")
    a.compute(2, "&", network_order(0x2000))
    a.store(8, 10, Stack.IS_FIRST, 2)
    a.jump("transport")


def read_ipv6(a: Assembler) -> None:
    a.label("ipv6")
    _read(a, 40, "unmanaged")
    # The traffic class lies across the first two octets.
    a.load(1, 1, 10, Stack.READ)
    a.compute(1, "&", 0x0F)
    a.compute(1, "<<", 4)
    a.load(1, 2, 10, Stack.READ + 1)
    a.compute(2, ">>", 4)
    a.compute_by(1, "|", 2)
    a.compute(1, "&", 0xFC)
    _read_mark(a, "ipv6")
    a.compute(7, "+", 40)
    for half in (0, 8):
        a.load(8, 1, 10, Stack.READ + 8 + half)
        a.store(8, 10, Stack.SOURCE + half, 1)
        a.load(8, 1, 10, Stack.READ + 24 + half)
        a.store(8, 10, Stack.KEY + half, 1)
    a.load(1, 9, 10, Stack.READ + 6)
    a.jump_if(9, "!=", _FRAGMENT_HEADER, "ipv6 whole")
    _read(a, 8, "unmanaged")
    a.compute(7, "+", 8)
    a.load(1, 9, 10, Stack.READ)
    a.load(4, 1, 10, Stack.READ + 4)
    a.store(4, 10, Stack.FRAGMENT + 32, 1)
    a.load(2, 1, 10, Stack.READ + 2)
    a.copy(2, 1)
    a.compute(1, "&", network_order(0xFFF8))
    a.jump_if(1, "!=", 0, "later fragment")
    a.compute(2, "&", network_order(0x0001))
    a.store(8, 10, Stack.IS_FIRST, 2)
    a.label("ipv6 whole")
    a.jump_if(9, "!=", _ICMPV6, "transport")
    _read(a, 1, "unmanaged")
    a.load(1, 1, 10, Stack.READ)
    a.jump_if(1, "<", 133, "unmanaged")
    a.jump_if(1, "<=", 137, "network control")
    a.jump("unmanaged")


def read_tcp(a: Assembler, maps: ClassifierMaps) -> None:
    """TCP is control if one of its ends is a listener of the exchange; register 9 holds the protocol."""
    a.label("transport")
    for key in (Stack.SOURCE, Stack.KEY):
        a.store(2, 10, key + 18, 9)
    a.jump_if(9, "==", _UDP, "udp")
    a.jump_if(9, "!=", _TCP, "unmanaged")
    _read(a, 4, "unmanaged")
    for key, place in ((Stack.SOURCE, 0), (Stack.KEY, 2)):
        a.load(2, 1, 10, Stack.READ + place)
        a.store(2, 10, key + 16, 1)
    for key, name in ((Stack.SOURCE, "from listener"), (Stack.KEY, "to listener")):
        find_listener(a, maps, key, name)
        a.jump_if(0, "!=", 0, "own control")
    a.jump("unmanaged")


def find_listener(a: Assembler, maps: ClassifierMaps, key: int, name: str) -> None:
    """Register 0 gets something other than 0 if the exchange listens there, at this address or at any."""
    look_up(a, maps.listeners, key)
    a.jump_if(0, "!=", 0, name)
    for half in (0, 8):
        a.store_number(8, 10, Stack.ANY + half, 0)
    a.load(4, 1, 10, key + 16)
    a.store(4, 10, Stack.ANY + 16, 1)
    look_up(a, maps.listeners, Stack.ANY)
    a.label(name)


def read_udp(a: Assembler) -> None:
    """The ports, and whether the datagram is a PUBLISH: its type follows a length of one octet or (01) of three.

    What is too short to have flags behind its type is no PUBLISH.
    """
    a.label("udp")
    message = Stack.READ + 8
    _read(a, 8 + 3, "short datagram")
    a.set(9, 0)
    a.jump("ports")
    a.label("short datagram")
    _read(a, 8, "unmanaged")
    a.set(9, 1)
    a.label("ports")
    for key, place in ((Stack.SOURCE, 0), (Stack.KEY, 2)):
        a.load(2, 1, 10, Stack.READ + place)
        a.store(2, 10, key + 16, 1)
    a.jump_if(9, "!=", 0, "not publish")
    a.compute(7, "+", 8)
    a.load(1, 1, 10, message + 1)
    a.jump_if(1, "!=", MessageType.ENCAPSULATED, "message")
    a.load(1, 1, 10, message + 2)
    for version in _DTLS_VERSIONS:
        a.jump_if(1, "==", version, "dtls")
    # A forwarder's envelope has a length of one octet, and the message follows it.
    a.load(1, 2, 10, message)
    a.compute_by(7, "+", 2)
    _read(a, 3, "not publish", message)
    a.label("message")
    a.load(1, 1, 10, message)
    a.jump_if(1, "!=", 1, "short length")
    a.compute(7, "+", 2)
    _read(a, 3, "not publish", message)
    a.label("short length")
    a.load(1, 1, 10, message + 1)
    a.set(9, 0)
    a.jump_if(1, "==", MessageType.PUBLISH, "look up")
    a.label("not publish")
    a.set(9, 1)
    a.jump("look up")
    a.label("dtls")
    a.load(1, 1, 10, message)
    a.set(9, 0)
    a.jump_if(1, "==", _APPLICATION_DATA, "look up")
    a.set(9, 1)
