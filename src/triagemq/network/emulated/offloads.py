"""Switches off what network cards do for the kernel and a virtual link only pretends to do.

A frame without its checksum, or one of 64 kB that stands for forty, is fine between two kernels; Open vSwitch drops the
former, and queues that count packets would be wrong by the latter.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from triagemq.errors import NetworkError

__all__ = ["switch_offloads_off"]

ETHTOOL = 0x8946
SEND_CHECKSUM, SEGMENTATION, GENERIC_SEGMENTATION, GENERIC_RECEIVE = 0x17, 0x1F, 0x24, 0x2C
OFFLOADS = (SEND_CHECKSUM, SEGMENTATION, GENERIC_SEGMENTATION, GENERIC_RECEIVE)


def switch_offloads_off(channel: socket.socket, interface: str) -> None:
    """For an interface in the namespace in which the socket was opened."""
    for offload in OFFLOADS:
        value = array.array("I", [offload, 0])
        address, _ = value.buffer_info()
        request = struct.pack("16sP16x", interface.encode(), address)
        try:
            fcntl.ioctl(channel.fileno(), ETHTOOL, request)
        except OSError as error:
            raise NetworkError(f"the offloads of {interface} cannot be set: {error.strerror}") from None
