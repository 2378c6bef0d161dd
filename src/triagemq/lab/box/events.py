"""Which event a packet of a box carries, from its first octets: to whom it goes, and the time that it was published."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triagemq.mqttsn.timestamps import MARK

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
