"""Links that lose packets at random: an eBPF program where a link's packets arrive, which lets a share of them go.

A packet is lost when it has crossed the link: it has taken its bandwidth, and arrives nowhere. What is
lost are packets, whatever they carry, and each by a draw of its own. The share is a number in memory that the program
reads, so that it changes at once and without a word to the kernel. It all goes with the namespaces.

The program keeps the beginning of every packet that it loses: it identifies the event.
"""

from __future__ import annotations

import errno
import math
import os
import struct
from contextlib import closing
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.lab.box.layout import End
from triagemq.mqttsn.timestamps import MARK
from triagemq.network.linux.bpf import ArrayMap, BpfMap, compiled_program, load_program
from triagemq.network.linux.netlink import CREATE, EXCLUSIVE, Netlink, text_attribute
from triagemq.network.linux.queues import attach_program

PACKET_EVENT = np.dtype(
    [
        ("address", np.uint32),
        ("published_ns", np.int64),
        ("identification", np.uint16),
        ("later_fragment", np.bool_),
    ]
)
"""The IPv4 address a packet goes to, the time its event carries, or -1 for none, and of which datagram it is a part.

Of an event in fragments only the first has the time.
"""

# Ethernet and IPv4 without options before UDP; in MQTT-SN a payload follows seven octets, or nine in a long message.
_IPV4, _WITHOUT_OPTIONS, _UDP = 0x0800, 0x45, 17
_MESSAGE_BEGINS, _LONG = 14 + 20 + 8, 1
_FRAGMENT_OFFSET = 0x1FFF


def packet_events(beginnings: NDArray[np.uint8]) -> NDArray[np.void]:
    """A row of PACKET_EVENT for each row of at least 64 octets.

    >>> from triagemq.mqttsn import TopicIdType, encode_publish
    >>> from triagemq.mqttsn.timestamps import stamp_payload
    >>> message = encode_publish(TopicIdType.NORMAL, 7, stamp_payload(b"fire", 1_700))
    >>> headers = bytes(12) + b"\\x08\\x00" + bytes([0x45, *bytes(8), 17, *bytes(6), 10, 0, 0, 9]) + bytes(8)
    >>> packets = np.frombuffer((headers + message)[:64] + bytes(64), np.uint8).reshape(2, 64)
    >>> packet_events(packets)["published_ns"].tolist(), hex(packet_events(packets)["address"][0])
    ([1700, -1], '0xa000009')
    """
    found = np.zeros(len(beginnings), PACKET_EVENT)
    found["address"] = _number(beginnings, 30, ">u4")
    found["identification"] = _number(beginnings, 18, ">u2")
    of_udp = (
        (_number(beginnings, 12, ">u2") == _IPV4)
        & (beginnings[:, 14] == _WITHOUT_OPTIONS)
        & (beginnings[:, 23] == _UDP)
    )
    found["later_fragment"] = of_udp & ((_number(beginnings, 20, ">u2") & _FRAGMENT_OFFSET) != 0)
    short, long = (_published_ns(beginnings, _MESSAGE_BEGINS + head) for head in (7, 9))
    published_ns = np.where(beginnings[:, _MESSAGE_BEGINS] == _LONG, long, short)
    found["published_ns"] = np.where(of_udp & ~found["later_fragment"], published_ns, -1)
    return found


def _published_ns(rows: NDArray[np.uint8], place: int) -> NDArray[np.int64]:
    times = _number(rows, place + 4, ">u8")
    return np.where((_number(rows, place, ">u4") == MARK) & (times >= 0), times, -1)


def _number(rows: NDArray[np.uint8], place: int, kind: str) -> NDArray[np.int64]:
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(rows[:, place : place + size]).view(kind)[:, 0].astype(np.int64)


_PROGRAMS = Path(__file__).with_name("losing.o")
_SHARE = struct.Struct("=Q")
_STORED_BYTES, _MOST_STORED = 64, 1 << 14
_FIRST_IN_FIRST_OUT, _LOOK_UP_AND_DELETE = 22, 21  # include/uapi/linux/bpf.h
_NEW_QDISC, _QDISC_KIND = 36, 1
_ARRIVAL, _ARRIVAL_HANDLE = 0xFFFFFFF1, 0xFFFF0000  # TC_H_INGRESS, and what its filters belong to
_QDISC_MESSAGE = struct.Struct("=BxxxiIII")


class LostEvent(NamedTuple):
    """An event by the time it carries, and for whom it was when it was lost."""

    address: str
    published_ns: int


def together(*error_rates: float) -> float:
    """The share lost on a path of several links, each of which loses its own.

    >>> together(0.5, 0.2)
    0.6
    """
    return 1 - math.prod(1 - each for each in error_rates)


class QueueMap(BpfMap):
    """Values that programs put in themselves, to be taken out in that order."""

    def __init__(self, value_bytes: int, entries: int) -> None:
        super().__init__(_FIRST_IN_FIRST_OUT, 0, value_bytes, entries, 0)

    def take(self) -> list[bytes]:
        """Take out all there are."""
        found: list[bytes] = []
        while len(found) < self.entries:
            try:
                self.command(_LOOK_UP_AND_DELETE, b"")
            except OSError as error:
                if error.errno == errno.ENOENT:
                    break
                raise
            found.append(self.value.raw)
        return found


class Losses:
    """By the end of a link at which packets arrive, the share of them that is lost there."""

    def __init__(self) -> None:
        self._shares: dict[End, ArrayMap] = {}
        self._lost: QueueMap | None = None

    def set(self, end: End, share: float) -> None:
        """Lose this share from now on. Nothing is attached to a link that has never lost anything."""
        if end not in self._shares:
            if share <= 0:
                return
            self._lost = self._lost or QueueMap(_STORED_BYTES, _MOST_STORED)
            self._shares[end] = _attach(end, self._lost)
        _SHARE.pack_into(self._shares[end].memory, 0, min(1 << 32, round(share * (1 << 32))))

    def lost_events(self) -> list[LostEvent]:
        """Those that were lost since the last call. If too many were, the earliest are not known any more.

        Of an event in fragments only the first identifies it.
        """
        frames = b"" if self._lost is None else b"".join(self._lost.take())
        events = packet_events(np.frombuffer(frames, np.uint8).reshape(-1, _STORED_BYTES))
        return [
            LostEvent(str(IPv4Address(address)), published_ns)
            for address, published_ns in events[["address", "published_ns"]].tolist()
            if published_ns >= 0
        ]

    def close(self) -> None:
        """Forget the shares; the kernel forgets them with the interfaces."""
        while self._shares:
            self._shares.popitem()[1].close()
        if self._lost is not None:
            self._lost.close()
            self._lost = None


def attach_at_arrival(netlink: Netlink, interface: int, program: int) -> None:
    """Let a loaded program decide about every packet that comes in at an interface which has no such program yet."""
    body = _QDISC_MESSAGE.pack(0, interface, _ARRIVAL_HANDLE, _ARRIVAL, 0)
    netlink.request(_NEW_QDISC, CREATE | EXCLUSIVE, body + text_attribute(_QDISC_KIND, "ingress"))
    attach_program(netlink, interface, _ARRIVAL_HANDLE, program)


def _attach(end: End, lost: QueueMap) -> ArrayMap:
    share = ArrayMap(_SHARE.size, 1)
    try:
        program = load_program(compiled_program(_PROGRAMS, "tc/lose", {"share": share, "lost": lost}))
        try:
            with closing(Netlink(end.namespace)) as netlink:
                attach_at_arrival(netlink, end.index, program)
        finally:
            os.close(program)
    except BaseException:
        share.close()
        raise
    return share
