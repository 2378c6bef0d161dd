"""Datagrams as a pcap file, and what tshark's MQTT-SN dissector makes of them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

GATEWAY_PORT = 1884
_LINKTYPE_RAW = 101
_LOOPBACK = bytes([127, 0, 0, 1])
_LARGEST_UDP_PAYLOAD = 65507


def tshark() -> str:
    """The path of tshark; without it the test fails where nothing may be skipped, and says what to install."""
    found = shutil.which("tshark")
    if found is None:
        advice = "tshark is not installed; install it with: apt-get install tshark"
        if os.environ.get("CI") == "true":
            pytest.fail(advice)
        pytest.skip(advice)
    return found


def dissect(datagrams: list[bytes], file: Path) -> list[dict[str, Any]]:
    """The protocol layers of each datagram, as tshark reads them from UDP over IPv4."""
    file.write_bytes(pcap(datagrams))
    command = [tshark(), "-n", "-r", str(file), "-d", f"udp.port=={GATEWAY_PORT},mqttsn"]
    finished = subprocess.run(
        [*command, "-T", "json", "--no-duplicate-keys"], capture_output=True, check=True, timeout=100
    )
    packets = json.loads(finished.stdout)
    assert len(packets) == len(datagrams)
    return [packet["_source"]["layers"] for packet in packets]


def malformed(tree: object) -> bool:
    """Did the dissector object to anything, at any depth?"""
    if isinstance(tree, dict):
        return "_ws.malformed" in tree or any(malformed(branch) for branch in tree.values())
    return isinstance(tree, list) and any(malformed(branch) for branch in tree)


def pcap(datagrams: list[bytes]) -> bytes:
    """A capture of these datagrams on their way to a gateway."""
    records = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 0x40000, _LINKTYPE_RAW)]
    for number, datagram in enumerate(datagrams):
        assert len(datagram) <= _LARGEST_UDP_PAYLOAD
        udp = struct.pack(">HHHH", 10000, GATEWAY_PORT, 8 + len(datagram), 0)
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(datagram), number & 0xFFFF, 0, 64, 17, 0)
        packet = ip + _LOOPBACK + _LOOPBACK + udp + datagram
        records.append(struct.pack("<IIII", number, 0, len(packet), len(packet)) + packet)
    return b"".join(records)
