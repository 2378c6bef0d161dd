"""The queues of a port: an HTB queueing discipline with strict priorities, set up by netlink.

One class has the port's bandwidth; below it nine leaves borrow from it, each with a FIFO queue. Queue 0 (control
packets) has priority 0 and class c of a plan priority c + 1. Packets of no flow have a queue of their own, which shares
the last priority with class 6 and gets little of it while that class has packets.

* A leaf owns one byte per second, the least that HTB allows, and borrows the rest: only what is borrowed goes by
  priority.
* The bandwidth is that of the one class above, so that it changes in one step, with every packet in its place.
* Where classes have queue rates, their leaves own them, so that none waits for another; with borrowing they share what
  is left by their queue rates (quanta), without it their ceiling is the width. Control packets own what they are
  bounded to anyway (flow_table.py), and come on top of the queue rates.
* HTB lets a packet go when its budget is not negative, and charges it afterwards: a burst is needed only to make up for
  timers that ring late. A large one would let several small packets go at once after each idle moment.
"""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from triagemq.network.linux.netlink import (
    CREATE,
    REPLACE,
    Netlink,
    attribute,
    attributes,
    text_attribute,
)
from triagemq.network.linux.records import CONTROL, QUEUE_MINOR, QUEUES, UNMANAGED
from triagemq.plan.dataplane import QueueCounters

OUR_HANDLE = 0x74710000
"""The handle of a port's root queueing discipline: a number by which leftovers are known as ours."""

MOST_WAITING = 16_384
"""The longest queue: an infinite buffer is not to be had, and the kernel's memory is everybody's."""

_NEW_QDISC, _DELETE_QDISC, _GET_QDISC = 36, 37, 38
_NEW_CLASS, _GET_CLASS = 40, 42
_NEW_FILTER = 44
_KIND, _OPTIONS, _STATISTICS = 1, 2, 7
_ROOT = 0xFFFFFFFF
_MESSAGE = struct.Struct("=BxxxiIII")  # tcmsg: family, interface, handle, parent, info

_HTB_PARAMETERS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_HTB_OPTIONS = struct.Struct("=BBHhHI BBHhHI IIIII")  # tc_htb_opt
_HTB_GLOBAL = struct.Struct("=IIIII")  # tc_htb_glob
_ETHERNET = 1

_BPF_CLASS, _BPF_FILE, _BPF_NAME, _BPF_FLAGS = 3, 6, 7, 8
_DIRECT_ACTION = 1
_ALL_PROTOCOLS = 0x0300  # ETH_P_ALL in network order

_BASIC, _QUEUE, _PACKETS64 = 1, 3, 8

_PORT_CLASS = OUR_HANDLE | 1
_TICK_NS = 64
_MOST_BYTES_PER_SECOND = 100_000_000_000 // 8
# Timers ring some tens of microseconds late. On a fast port that is many packets, and more is made up for.
_LATENESS_NS, _LATENESS_WHEN_FAST_NS = 50_000, 500_000
_FAST_BYTES_PER_SECOND = 50_000_000 // 8
_LARGEST_PACKET_BYTES = 1514
_MOST_IN_TURN = 100.0
"""The kernel warns of larger quanta than 200,000 bytes."""


@dataclass(frozen=True, slots=True)
class RootQueue:
    """The root queueing discipline of an interface, as the kernel describes it."""

    kind: str
    handle: int

    @property
    def is_default(self) -> bool:
        """Whether the kernel put it there by itself, and would do so again."""
        return self.handle == 0

    @property
    def is_ours(self) -> bool:
        return self.handle == OUR_HANDLE and self.kind == "htb"


def root_queue(netlink: Netlink, interface: int) -> RootQueue:
    """What is at the root of an interface now."""
    found = RootQueue("noqueue", 0)
    for message, begin, end in netlink.dump(_GET_QDISC, _MESSAGE.pack(0, interface, 0, 0, 0)):
        _, index, handle, parent, _ = _MESSAGE.unpack_from(message, begin)
        if index == interface and parent == _ROOT:
            kinds = (
                message[first:last].rstrip(b"\0").decode()
                for kind, first, last in attributes(message, begin + _MESSAGE.size, end)
                if kind == _KIND
            )
            found = RootQueue(next(kinds, ""), handle)
    return found


def build_queues(netlink: Netlink, interface: int, bandwidth_bps: float, limit_packets: int) -> None:
    """Put the queues in the place of the root; until a classifier is attached, all packets are unmanaged."""
    glob = attribute(_HTB_INIT, _HTB_GLOBAL.pack(3, 10, QUEUE_MINOR + UNMANAGED, 0, 0))
    _request(netlink, _NEW_QDISC, CREATE | REPLACE, interface, OUR_HANDLE, _ROOT, "htb", glob)
    set_bandwidth(netlink, interface, bandwidth_bps)
    serve_by_priority(netlink, interface)
    set_limits(netlink, interface, limit_packets)


def set_bandwidth(netlink: Netlink, interface: int, bandwidth_bps: float) -> None:
    """Give the port a bandwidth, at once and with every packet in its place."""
    rate = _bytes_per_second(bandwidth_bps)
    _set_class(
        netlink,
        interface,
        _PORT_CLASS,
        OUR_HANDLE,
        rate=rate,
        ceil=rate,
        burst_ns=_made_up_for_ns(rate),
        priority=0,
        quantum=_LARGEST_PACKET_BYTES,
    )


def serve_by_priority(netlink: Netlink, interface: int) -> None:
    """Let the highest class that has packets go first; every packet stays in its place."""
    for queue in range(QUEUES):
        set_queue(netlink, interface, queue, min(queue, 7), packets_in_turn=1 if queue == UNMANAGED else 20)


def serve_by_queue_rates(
    netlink: Netlink,
    interface: int,
    bandwidth_bps: float,
    queue_rates_bps: Sequence[float],
    *,
    borrowing: bool,
    control_bps: float,
) -> None:
    """Give every class a width of the port's bandwidth, and control its own; every packet stays in its place."""
    port, control = _bytes_per_second(bandwidth_bps), _bytes_per_second(control_bps)
    narrowest = min(queue_rates_bps)
    for queue in range(QUEUES):
        if not 0 <= queue - 1 < len(queue_rates_bps) and queue != CONTROL:
            set_queue(netlink, interface, queue, 7, packets_in_turn=1)
            continue
        rate = control if queue == CONTROL else _bytes_per_second(queue_rates_bps[queue - 1])
        turns = 1.0 if queue == CONTROL else min(queue_rates_bps[queue - 1] / narrowest, _MOST_IN_TURN)
        _set_class(
            netlink,
            interface,
            OUR_HANDLE | QUEUE_MINOR + queue,
            _PORT_CLASS,
            rate=rate,
            ceil=port if borrowing or queue == CONTROL else rate,
            burst_ns=_made_up_for_ns(rate),
            priority=0 if queue == CONTROL else 1,
            quantum=round(_LARGEST_PACKET_BYTES * turns),
        )


def set_limits(netlink: Netlink, interface: int, limit_packets: int) -> None:
    """How many packets may wait in the queue of each class; control packets have all the room there is."""
    for queue in range(QUEUES):
        limit = MOST_WAITING if queue == 0 else limit_packets
        # A FIFO queue's options are bare, without an attribute inside.
        _request(
            netlink,
            _NEW_QDISC,
            CREATE | REPLACE,
            interface,
            OUR_HANDLE + ((1 + queue) << 16),
            OUR_HANDLE | QUEUE_MINOR + queue,
            "pfifo",
            struct.pack("=I", limit),
        )


def waiting_room(buffer_packets: float) -> int:
    """The limit of a queue for a buffer that counts the packet in transmission, which here waits no more.

    >>> waiting_room(100), waiting_room(1), waiting_room(math.inf)
    (99, 1, 16384)
    """
    return MOST_WAITING if math.isinf(buffer_packets) else min(max(1, int(buffer_packets) - 1), MOST_WAITING)


def attach_classifier(netlink: Netlink, interface: int, program: int, port: int) -> None:
    """Let a loaded program (a file descriptor) choose the queue of every packet. It finds the number of the port, less
    one, where it puts the class: the kernel begins with that of the filter."""
    begins_with = attribute(_BPF_CLASS, struct.pack("=I", OUR_HANDLE | port - 1))
    attach_program(netlink, interface, OUR_HANDLE, program, REPLACE, begins_with)


def attach_program(
    netlink: Netlink, interface: int, parent: int, program: int, flags: int = 0, options: bytes = b""
) -> None:
    """Let a loaded program decide about the packets of a queueing discipline."""
    options += (
        attribute(_BPF_FILE, struct.pack("=I", program))
        + text_attribute(_BPF_NAME, "triagemq")
        + attribute(_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION))
    )
    body = _MESSAGE.pack(0, interface, 1, parent, 1 << 16 | _ALL_PROTOCOLS)
    netlink.request(
        _NEW_FILTER, CREATE | flags, body + text_attribute(_KIND, "bpf") + attribute(_OPTIONS, options)
    )


def remove_queues(netlink: Netlink, interface: int) -> None:
    """Take the root away; the kernel puts its default there. What waited is lost."""
    try:
        netlink.request(_DELETE_QDISC, 0, _MESSAGE.pack(0, interface, OUR_HANDLE, _ROOT, 0))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
            raise


def queue_counters(netlink: Netlink, interface: int) -> list[QueueCounters]:
    """What the kernel has counted of each queue, by the queue's number: what left, was dropped, and waits."""
    found = [QueueCounters()] * QUEUES
    for message, begin, end in netlink.dump(_GET_CLASS, _MESSAGE.pack(0, interface, 0, 0, 0)):
        _, _, handle, _, _ = _MESSAGE.unpack_from(message, begin)
        queue = handle - OUR_HANDLE - QUEUE_MINOR
        if not 0 <= queue < QUEUES:
            continue
        bytes_out = packets = waiting = backlog = drops = 0
        for kind, first, last in attributes(message, begin + _MESSAGE.size, end):
            if kind == _STATISTICS:
                for inner, place, _ in attributes(message, first, last):
                    if inner == _BASIC:
                        bytes_out, packets = struct.unpack_from("=QI", message, place)
                    elif inner == _QUEUE:
                        waiting, backlog, drops = struct.unpack_from("=III", message, place)
                    elif inner == _PACKETS64:
                        (packets,) = struct.unpack_from("=Q", message, place)
        found[queue] = QueueCounters(
            bytes_out=bytes_out,
            packets_out=packets,
            drops=drops,
            backlog_bytes=backlog,
            backlog_packets=waiting,
        )
    return found


def _bytes_per_second(bits_per_second: float) -> int:
    return max(1, round(min(bits_per_second / 8, _MOST_BYTES_PER_SECOND)))


def _made_up_for_ns(bytes_per_second: int) -> int:
    return _LATENESS_NS if bytes_per_second < _FAST_BYTES_PER_SECOND else _LATENESS_WHEN_FAST_NS


def set_queue(netlink: Netlink, interface: int, queue: int, priority: int, packets_in_turn: int) -> None:
    """A queue borrows all the port has; those of one priority send so many packets in turn."""
    _set_class(
        netlink,
        interface,
        OUR_HANDLE | QUEUE_MINOR + queue,
        _PORT_CLASS,
        rate=1,
        ceil=_MOST_BYTES_PER_SECOND,
        burst_ns=0,
        priority=priority,
        quantum=_LARGEST_PACKET_BYTES * packets_in_turn,
    )


def _set_class(
    netlink: Netlink,
    interface: int,
    handle: int,
    parent: int,
    *,
    rate: int,
    ceil: int,
    burst_ns: int,
    priority: int,
    quantum: int,
) -> None:
    burst = max(1, burst_ns // _TICK_NS)
    small = [min(each, 0xFFFFFFFF) for each in (rate, ceil)]
    options = attribute(
        _HTB_PARAMETERS,
        _HTB_OPTIONS.pack(
            *(0, _ETHERNET, 0, 0, 0, small[0]),
            *(0, _ETHERNET, 0, 0, 0, small[1]),
            *(burst, max(burst, _LATENESS_NS // _TICK_NS), quantum, 0, priority),
        ),
    )
    options += attribute(_HTB_RATE64, struct.pack("=Q", rate)) + attribute(
        _HTB_CEIL64, struct.pack("=Q", ceil)
    )
    _request(netlink, _NEW_CLASS, CREATE, interface, handle, parent, "htb", options)


def _request(
    netlink: Netlink,
    message: int,
    flags: int,
    interface: int,
    handle: int,
    parent: int,
    kind: str,
    options: bytes,
) -> None:
    body = _MESSAGE.pack(0, interface, handle, parent, 0)
    netlink.request(message, flags, body + text_attribute(_KIND, kind) + attribute(_OPTIONS, options))
