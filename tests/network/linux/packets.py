"""Ethernet frames octet by octet, and a classifier run on one of them without a network (BPF_PROG_TEST_RUN)."""

from __future__ import annotations

import ctypes
import ipaddress
import platform
import struct

from triagemq.network.linux import bpf

PASSED, DROPPED = 0, 2
CS6 = 48


def publish(length: int = 20, flags: int = 0) -> bytes:
    return bytes([length, 0x0C, flags]) + bytes(length - 3)


def long_publish(length: int = 400) -> bytes:
    return b"\x01" + length.to_bytes(2, "big") + b"\x0c" + bytes(length - 4)


def encapsulated(message: bytes) -> bytes:
    return bytes([4, 0xFE, 0, 7]) + message


def udp(udp_port: int, payload: bytes, *, source: int = 1883) -> bytes:
    return struct.pack("!HHHH", source, udp_port, 8 + len(payload), 0) + payload


def tcp(source: int, port: int) -> bytes:
    return struct.pack("!HH", source, port) + bytes(16)


def dtls(kind: int, length: int = 40) -> bytes:
    return bytes([kind, 0xFE, 0xFD]) + bytes(length - 3)


def ipv4(
    to: str,
    inner: bytes,
    *,
    protocol: int = 17,
    dscp: int = 0,
    options: bytes = b"",
    fragment: int = 0,
    number: int = 0,
    source: str = "10.0.0.1",
) -> bytes:
    words = 5 + len(options) // 4
    header = struct.pack(
        "!BBHHHBBH4s4s",
        0x40 | words,
        dscp << 2 | 1,  # with a bit of congestion notification, which is not the mark's
        words * 4 + len(inner),
        number,
        fragment,
        64,
        protocol,
        0,
        ipaddress.ip_address(source).packed,
        ipaddress.ip_address(to).packed,
    )
    return header + options + inner


def ipv6(to: str, inner: bytes, *, next_header: int = 17, dscp: int = 0) -> bytes:
    return (
        struct.pack("!IHBB", 6 << 28 | dscp << 22 | 0x12345, len(inner), next_header, 64)
        + ipaddress.ip_address("fd00::1").packed
        + ipaddress.ip_address(to).packed
        + inner
    )


def ipv6_fragment(to: str, inner: bytes, *, offset_and_more: int, number: int = 0) -> bytes:
    return ipv6(to, struct.pack("!BBHI", 17, 0, offset_and_more, number) + inner, next_header=44)


def frame(inner: bytes, *, tag: bool = False, kind: int | None = None) -> bytes:
    if kind is None:
        kind = 0x0800 if inner[0] >> 4 == 4 else 0x86DD
    between = struct.pack("!HH", 0x8100, 5) if tag else b""
    return bytes(12) + between + struct.pack("!H", kind) + inner


def run_program(program: int, packet: bytes) -> int:
    """What the program answers for a packet."""
    content = ctypes.create_string_buffer(packet, len(packet))
    arguments = ctypes.create_string_buffer(
        struct.pack("=IIIIQQII", program, 0, len(packet), 0, ctypes.addressof(content), 0, 0, 0), 80
    )
    number = bpf._SYSTEM_CALLS[platform.machine()]
    assert bpf._libc.syscall(number, 10, arguments, 80) == 0, ctypes.get_errno()
    return int(struct.unpack_from("=II", arguments.raw)[1])
