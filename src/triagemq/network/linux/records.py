"""What eBPF programs (programs.c) and this process share: the queues of a port by number, and the layout of maps."""

from __future__ import annotations

import struct
from pathlib import Path

from triagemq.plan.dataplane import LIMITER_PACKETS

PROGRAMS = Path(__file__).with_name("programs.o")
"""The compiled programs."""

CONTROL = 0
"""The queue of control packets; class c has queue c + 1."""

UNMANAGED = 8
"""The queue of packets that belong to no flow."""

QUEUES = 9
STAMP_SHIFT = 6
"""The time that packets of timed ports carry is in steps of 64 ns, so that its 32 bits last for 274 s."""

QUEUE_MINOR = 0x10
"""Queue q is the HTB class with the minor number QUEUE_MINOR + q."""

FLOW_KEY = struct.Struct("=16sHxx")
"""IPv6 address (or IPv4 mapped into it), and UDP port in network order."""

COPY_KEY = struct.Struct("=IHH16s")
"""Of a multicast address or a prefix of such: bits that count, number of the port by which copies leave, UDP port in
network order, address. The longest that fits is found."""
COPY_BITS = 32
"""What counts of every key of a copy: the ports."""

IPV4_MAPPED = bytes(10) + b"\xff\xff"
"""What stands before an IPv4 address that is mapped into an IPv6 one."""

FLOW_POLICY = struct.Struct("=IxxxxIIII16sIIII16s")
"""The generation from which the second of two policies holds, then twice: port, queue, counter, limiter,
source.

A port of 0 means that there is no such flow, a limiter of 0 that there is none, a source of zeros that it is any.
"""

COUNTER = struct.Struct("=QQQQQQ")
"""Of one flow in one queue: packets that came (but control), bytes that were passed on, packets that were
limited, and packets of others than its source; then the place of its source, and when it last sent (ns).

The place is the index of the interface where packets come in, and the device's Ethernet address behind it.
"""
COUNTERS, SOURCE_PLACE = 4, 4 * 8

WINDOW_SETTINGS = struct.Struct("=QQQ")
"""A limiter: the bytes that may pass in a window, its ns, and those of the jitter."""
WINDOW_STATE = struct.Struct("=QQ24x")
"""What programs alone write: bytes and packets that have ever passed."""
PASSED = struct.Struct("=QQ")
"""A packet that has passed: when as much may pass again (ns), and how many bytes had passed with it."""
WINDOW_RECORD = WINDOW_SETTINGS.size + WINDOW_STATE.size + LIMITER_PACKETS * PASSED.size

LISTENER_KEY = struct.Struct("=16sHH")
"""Where the exchange listens: address as above (all zero for any), port in network order, number of the protocol."""

FRAGMENT_KEY = struct.Struct("=16s16sII")
"""Source, destination, identification, number of the port."""

FRAGMENT_VERDICT = struct.Struct("=IIIxxxx")
"""What became of a first fragment: its queue, or one of those below; its flow's counter plus one, or 0; its limiter."""
LIMITED, DISCARDED = 14, 13

QUEUE_COUNTER = struct.Struct("=QQ")
"""Of a queue of a port: packets and bytes put into it; and of three kinds of packets that are among those of a queue.

Control packets of no flow (in the control queue), control packets beyond the port's bound, and packets that strangers
have marked as control (both in the queue of unmanaged packets).
"""
UNMANAGED_CONTROL, BEYOND_BOUND, UNTRUSTED_CS6 = 9, 10, 11

BOUND = struct.Struct("=QQQxxxxxxxx")
"""A bound of control packets: the time (ns) until which those that passed use it up, 2^-16 ns a byte, burst in ns."""
BOUNDS = (12 * QUEUE_COUNTER.size, 14 * QUEUE_COUNTER.size)
"""Where in a port's record the bound of the exchange's own control packets is, and that of the network's."""

MISMATCHED = 16
"""Where events are counted whose codes match no prefix at the port: packets and bytes."""

CLASSES = 17 * QUEUE_COUNTER.size
"""Where in a port's record the number of its classes is, which marks do not know."""

QUEUE_RECORD = 32 * QUEUE_COUNTER.size
"""Bytes for the counters and bounds of one port; a power of two suits the verifier."""
