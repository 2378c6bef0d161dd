"""Ethernet frames that the controller sends and reads: link discovery, questions for hosts, and who speaks."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from triagemq.network.openflow.topology import PortId

_ETHERNET_BYTES = 14
_LINK_DISCOVERY = 0x88CC
# IEEE 802.1AB, "nearest bridge": an ordinary bridge between two switches keeps it, unless it is told to pass it on.
_GROUP = bytes.fromhex("0180c200000e")
_CONTROLLER_ETHERNET = bytes.fromhex("025452494147")
_CONTROLLER_LINK_LOCAL = ipaddress.IPv6Address("fe80::54:52ff:fe49:4147").packed
_ORGANISATION = b"TRI\x01"


class Speaker(NamedTuple):
    """Who sent a frame. `address` is None if the frame does not say which IP address that is."""

    ethernet: str
    address: str | None


def discovery_frame(at: PortId, nonce: bytes) -> bytes:
    """LLDP that says which port it left. The nonce is this controller's: frames of others are not believed."""
    values = (
        (1, b"\x07" + at.switch.to_bytes(8, "big")),
        (2, b"\x07" + str(at.port).encode()),
        (3, struct.pack("!H", 120)),
        (127, _ORGANISATION + nonce),
    )
    body = b"".join(struct.pack("!H", kind << 9 | len(value)) + value for kind, value in values)
    return _GROUP + _CONTROLLER_ETHERNET + struct.pack("!H", _LINK_DISCOVERY) + body + b"\x00\x00"


def read_discovery(frame: bytes, nonce: bytes) -> PortId | None:
    """The port that a frame of ours left; None if it is not one.

    >>> read_discovery(discovery_frame(PortId(7, 3), b"secret"), b"secret")
    PortId(switch=7, port=3)
    >>> read_discovery(discovery_frame(PortId(7, 3), b"secret"), b"others")
    """
    if not is_discovery(frame):
        return None
    values: dict[int, bytes] = {}
    offset = _ETHERNET_BYTES
    while offset + 2 <= len(frame):
        header = struct.unpack_from("!H", frame, offset)[0]
        kind, length = header >> 9, header & 0x1FF
        values[kind] = frame[offset + 2 : offset + 2 + length]
        if kind == 0:
            break
        offset += 2 + length
    chassis, port = values.get(1, b""), values.get(2, b"")
    if values.get(127) != _ORGANISATION + nonce or len(chassis) != 9 or not port[1:].isdigit():
        return None
    return PortId(int.from_bytes(chassis[1:], "big"), int(port[1:]))


def is_discovery(frame: bytes) -> bool:
    """Is it LLDP, whoever sent it?"""
    return len(frame) > _ETHERNET_BYTES and frame[12:14] == _LINK_DISCOVERY.to_bytes(2, "big")


def read_speaker(frame: bytes) -> Speaker | None:
    """Who sent a frame; None for what is no frame of a single host, and for our own.

    >>> read_speaker(bytes.fromhex("ffffffffffff 020000000002 0806 0001 0800 06 04 0001 020000000002 0a000002")
    ...     + bytes(10))
    Speaker(ethernet='02:00:00:00:00:02', address='10.0.0.2')
    """
    if len(frame) < _ETHERNET_BYTES:
        return None
    source = frame[6:12]
    if source[0] & 1 or not any(source) or source == _CONTROLLER_ETHERNET:
        return None
    kind = int.from_bytes(frame[12:14], "big")
    packed = b""
    if kind == 0x0806 and len(frame) >= 32 and frame[14:20] == b"\x00\x01\x08\x00\x06\x04":
        packed = frame[28:32]
    elif kind == 0x0800 and len(frame) >= 34 and frame[14] >> 4 == 4:
        packed = frame[26:30]
    elif kind == 0x86DD and len(frame) >= 54 and frame[14] >> 4 == 6:
        packed = frame[22:38]
    return Speaker(source.hex(":"), _one_host(packed))


def _one_host(packed: bytes) -> str | None:
    if not packed:
        return None
    address = ipaddress.ip_address(packed)
    if address.is_unspecified or address.is_multicast or address.is_loopback or packed == b"\xff" * 4:
        return None
    return str(address)


def arp_question(address: str) -> bytes:
    """Who has this IPv4 address? Asked without an address of our own, so that nobody remembers a wrong one."""
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + _CONTROLLER_ETHERNET + bytes(4) + bytes(6)
    return b"\xff" * 6 + _CONTROLLER_ETHERNET + b"\x08\x06" + body + ipaddress.IPv4Address(address).packed


def neighbour_question(address: str) -> bytes:
    """Who has this IPv6 address? (RFC 4861, section 4.3)"""
    target = ipaddress.IPv6Address(address).packed
    group = ipaddress.IPv6Address("ff02::1:ff00:0").packed[:13] + target[13:]
    message = b"\x87\x00\x00\x00" + bytes(4) + target + b"\x01\x01" + _CONTROLLER_ETHERNET
    pseudo = _CONTROLLER_LINK_LOCAL + group + struct.pack("!II", len(message), 58)
    total = sum(struct.unpack(f"!{(len(pseudo) + len(message)) // 2}H", pseudo + message))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    message = message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:]
    header = struct.pack("!IHBB", 6 << 28, len(message), 58, 255) + _CONTROLLER_LINK_LOCAL + group
    return b"\x33\x33" + group[12:] + _CONTROLLER_ETHERNET + b"\x86\xdd" + header + message
