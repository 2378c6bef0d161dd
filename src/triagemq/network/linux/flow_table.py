"""The flows that the classifiers of a data plane know, changed all at once; and how much control packets may take.

Every flow has two policies and a generation from which the second holds. A new plan is first written beside the old
one, for the generation to come; then one number changes, and with it every flow. The cost is that of the flows that
change, whatever the number of those there are.

Control packets go first, and must not starve the first class of events. The exchange's own (answers to clients, REST,
handshakes) may use a quarter of a port's bandwidth, and a second's worth of that at once; what the network itself needs
(ARP, neighbour discovery), which any stranger can send, has a bound of its own: a sixteenth. Neither burst is less than
four full frames: on a slow port, too, a handshake goes through. What exceeds a bound is not dropped but goes last.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import PlanError
from triagemq.network.linux.bpf import ArrayMap, HashMap, PrefixMap, RecentMap, load_program
from triagemq.network.linux.classifier import classifier_program
from triagemq.network.linux.netlink import KernelLink, Netlink
from triagemq.network.linux.queues import attach_classifier
from triagemq.network.linux.records import (
    BOUND,
    BOUNDS,
    CLASSES,
    COPY_BITS,
    COPY_KEY,
    COUNTER,
    COUNTERS,
    FLOW_KEY,
    FLOW_POLICY,
    FRAGMENT_KEY,
    FRAGMENT_VERDICT,
    IPV4_MAPPED,
    LISTENER_KEY,
    QUEUE_RECORD,
    SOURCE_PLACE,
    WINDOW_RECORD,
    WINDOW_SETTINGS,
    ClassifierMaps,
)
from triagemq.plan import FlowKey, SetLimiter

OWN_SHARE, NETWORK_SHARE = 1 / 4, 1 / 16
_BURST_SECONDS = 1.0
_LEAST_BURST_BYTES = 4 * 1514
# The classifier multiplies in 64 bits; no port is so slow.
_LEAST_BYTES_PER_SECOND = 100.0

_NOW = struct.Struct("=IIIxxxx")
"""The generation, whether it is known where the exchange listens, and whether there are prefixes of topics' codes."""
_TRUSTED = struct.pack("=Q", 1)
_PROTOCOLS = {"udp": 17, "tcp": 6}
_MOST_LISTENERS = 64
_MOST_FRAGMENTED = 16_384
"""Datagrams whose fragments may be under way at one time."""


class TrustedAddress(NamedTuple):
    """Where a part of the exchange listens: an IP address in digits (0.0.0.0 and :: for all) and a port.

    What comes from there may be control; TCP that goes there is.
    """

    protocol: Literal["udp", "tcp"]
    address: str
    port: int


class FlowPolicy(NamedTuple):
    """What happens to a flow's packets: at which port, into which queue.

    `limiter` is the number of the flow's window, 0 if it has none. A multicast flow may be one `source`'s alone.
    """

    port: int
    queue: int
    counter: int
    limiter: int = 0
    source: bytes = bytes(16)


class PolicyChange(NamedTuple):
    """A flow by its packed key, and its policies before and after; None where there is no such flow."""

    packed_key: bytes
    before: FlowPolicy | None
    after: FlowPolicy | None


_NONE = FlowPolicy(0, 0, 0)


class ControlBound(NamedTuple):
    """So many bytes a second in the long run, and so many at once."""

    bytes_per_second: float
    burst_bytes: float

    @property
    def ns_per_byte(self) -> float:
        return 1e9 / self.bytes_per_second

    @property
    def burst_ns(self) -> int:
        """What the burst takes at this rate."""
        return round(self.burst_bytes * self.ns_per_byte)


def control_bounds(bandwidth_bps: float) -> tuple[ControlBound, ControlBound]:
    """Of the exchange's own control packets, and of the network's, at a port with this bandwidth.

    >>> own, network = control_bounds(2e6)
    >>> own, network
    (ControlBound(bytes_per_second=62500.0, burst_bytes=62500.0),
     ControlBound(bytes_per_second=15625.0, burst_bytes=15625.0))
    >>> control_bounds(20e3)[0]
    ControlBound(bytes_per_second=625.0, burst_bytes=6056)
    """
    own, network = (_bound(min(bandwidth_bps, 1e12) / 8 * share) for share in (OWN_SHARE, NETWORK_SHARE))
    return own, network


def _bound(bytes_per_second: float) -> ControlBound:
    rate = max(bytes_per_second, _LEAST_BYTES_PER_SECOND)
    return ControlBound(rate, max(rate * _BURST_SECONDS, _LEAST_BURST_BYTES))


def window_settings(limiter: SetLimiter) -> bytes:
    """A limiter as the classifier has it: whole bytes and whole ns. Windows are rounded down, all else up, so that
    no flow gets less than was promised. What is too much for 64 bits is far more than a port can send.

    >>> WINDOW_SETTINGS.unpack(window_settings(SetLimiter(FlowKey("::1", 1), 1500, 1e6, jitter_seconds=1e-4)))
    (1500, 1500000, 100000)
    """
    most, jitter_ns = (
        math.ceil(min(value, 2.0**62)) for value in (limiter.burst_bytes, limiter.jitter_seconds * 1e9)
    )
    return WINDOW_SETTINGS.pack(most, int(min(limiter.window_seconds * 1e9, 2.0**62)), jitter_ns)


def packed_key(key: FlowKey, port: int = 0) -> bytes:
    """A flow's key as the classifier builds it from a packet; a multicast one with the number of the port.

    >>> packed_key(FlowKey("10.0.0.1", 10000))[10:18].hex()
    'ffff0a0000012710'
    >>> packed_key(FlowKey("ff1e:8000::/18", 7400), 3)[8:12].hex()
    'ff1e8000'
    """
    address, _, length = key.address.partition("/")
    octets, udp_port = _octets(address), socket.htons(key.udp_port)
    if not key.is_multicast:
        return FLOW_KEY.pack(octets, udp_port)
    return COPY_KEY.pack(COPY_BITS + int(length or 128), port, udp_port, octets)


def _is_copy(packed: bytes) -> bool:
    return len(packed) == COPY_KEY.size


def _is_prefix(packed: bytes) -> bool:
    return _is_copy(packed) and int(COPY_KEY.unpack(packed)[0]) < COPY_BITS + 128


def packed_source(address: str) -> bytes:
    """The source of a flow, zeros for any."""
    return _octets(address) if address else bytes(16)


def _packed_listener(listener: TrustedAddress) -> bytes:
    protocol, address, port = listener
    octets = bytes(16) if address in ("0.0.0.0", "::") else _octets(address)
    return LISTENER_KEY.pack(octets, socket.htons(port), _PROTOCOLS[protocol])


def _octets(address: str) -> bytes:
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return IPV4_MAPPED + socket.inet_pton(socket.AF_INET, address)


class PortClassifier:
    """The classifier at one port, and the port's record."""

    def __init__(self, program: int, queues: ArrayMap, port: int) -> None:
        self.program = program
        self._queues, self._port, self._record = queues, port, port * QUEUE_RECORD

    def set_bandwidth(self, bandwidth_bps: float) -> None:
        """Of the port: control packets may use a share of it."""
        for place, bound in zip(BOUNDS, control_bounds(bandwidth_bps), strict=True):
            # What has been used up stays so.
            settings = BOUND.pack(0, round(bound.ns_per_byte * 2**16), bound.burst_ns)[8:]
            begin = self._record + place + 8
            self._queues.memory[begin : begin + len(settings)] = settings

    def set_classes(self, classes: int) -> None:
        """How many priority classes the port has, for packets whose mark says another."""
        begin = self._record + CLASSES
        self._queues.memory[begin : begin + 4] = struct.pack("=I", classes)

    def attach(self, netlink: Netlink, link: KernelLink) -> None:
        """Begin to choose queues for the packets that leave by an interface."""
        attach_classifier(netlink, link.index, self.program, self._port)


class FlowTable:
    """The maps of the classifier, and the program, which is loaded for the first port. `stage`, then `switch`, then
    `settle` or `take_back`."""

    def __init__(
        self,
        most_flows: int,
        most_counters: int,
        most_ports: int,
        most_limiters: int = 1,
        *,
        timed: bool = False,
    ) -> None:
        self._generation = ArrayMap(_NOW.size, 1)
        self._flows = HashMap(FLOW_KEY.size, FLOW_POLICY.size, most_flows)
        self._counters = ArrayMap(COUNTER.size, most_counters)
        self._queues = ArrayMap(QUEUE_RECORD, most_ports + 1)
        self._listeners = HashMap(LISTENER_KEY.size, len(_TRUSTED), _MOST_LISTENERS)
        self._fragments = RecentMap(FRAGMENT_KEY.size, FRAGMENT_VERDICT.size, _MOST_FRAGMENTED)
        self._limiters = ArrayMap(WINDOW_RECORD, most_limiters + 1)
        self._copies = PrefixMap(COPY_KEY.size, FLOW_POLICY.size, most_flows)
        self._program: int | None = None
        self._timed = timed
        self._most_flows = most_flows
        self._now = 0
        self._trusted: set[bytes] = set()
        self._prefixes: set[bytes] = set()
        self._staged: Sequence[PolicyChange] = ()

    @property
    def maps(self) -> ClassifierMaps:
        return ClassifierMaps(
            generation=self._generation.file,
            flows=self._flows.file,
            copies=self._copies.file,
            counters=self._counters.file,
            queues=self._queues.file,
            listeners=self._listeners.file,
            fragments=self._fragments.file,
            limiters=self._limiters.file,
        )

    def open_port(self, number: int) -> PortClassifier:
        """A classifier for the port that flows know by this number; its counters are zero."""
        if self._program is None:
            self._program = load_program(classifier_program(self.maps, timed=self._timed))
        self._queues.set(number, bytes(QUEUE_RECORD))
        return PortClassifier(self._program, self._queues, number)

    def trust(self, listeners: Sequence[TrustedAddress]) -> None:
        """Whose control packets alone are believed from now on."""
        wanted = {_packed_listener(each) for each in listeners}
        if len(wanted) > _MOST_LISTENERS:
            raise PlanError(f"an exchange may listen at {_MOST_LISTENERS} addresses, not at {len(wanted)}")
        self._listeners.delete(sorted(self._trusted - wanted))
        self._listeners.update([(key, _TRUSTED) for key in sorted(wanted)])
        self._trusted = wanted
        self._hold()

    def stage(self, changes: Sequence[PolicyChange]) -> None:
        """Write down what is to hold after `switch`."""
        self._staged = changes
        self._write(changes)

    def switch(self) -> None:
        """From now on what was staged holds, for every packet that comes; prefixes begin one by one before that."""
        self._set_prefixes((key, after) for key, _, after in self._staged)
        self._now += 1
        self._hold()

    def settle(self) -> None:
        """The change stays: flows that have gone leave the table."""
        self._delete([each.packed_key for each in self._staged if each.after is None])
        self._staged = ()

    def take_back(self, *, switched: bool) -> None:
        """What was staged is not to be; all flows have the policies they had."""
        staged, self._staged = self._staged, ()
        self._set_prefixes((key, before) for key, before, _ in staged)
        self._now -= switched
        self._hold()
        self._write([PolicyChange(key, before, before) for key, before, _ in staged if before is not None])
        self._delete([each.packed_key for each in staged if each.before is None])

    def flow_counters(self, count: int) -> NDArray[np.uint64]:
        """A row for each of the first counters: packets that came, bytes passed on, limited, foreign."""
        columns = COUNTER.size // 8
        found = np.frombuffer(self._counters.memory, np.uint64, count * columns)
        return found.reshape(count, columns)[:, :COUNTERS].copy()

    def forget_source(self, number: int) -> None:
        """A flow has another source: its place is where it first sends from."""
        begin = number * COUNTER.size + SOURCE_PLACE
        self._counters.memory[begin : begin + 8] = bytes(8)

    def queue_counters(self, port: int) -> NDArray[np.uint64]:
        """A row for each queue of a port: packets and bytes put into it."""
        return (
            np.frombuffer(self._queues.memory, np.uint64, QUEUE_RECORD // 8, port * QUEUE_RECORD)
            .reshape(-1, 2)
            .copy()
        )

    def open_window(self, number: int, settings: bytes) -> None:
        """An unused limiter (from 1 on) gets its settings; nothing has passed it."""
        self._limiters.set(number, settings.ljust(WINDOW_RECORD, b"\0"))

    def window(self, number: int) -> bytes:
        """The settings of a limiter."""
        begin = number * WINDOW_RECORD
        return self._limiters.memory[begin : begin + WINDOW_SETTINGS.size]

    def set_window(self, number: int, settings: bytes) -> None:
        """Change a limiter; it remembers what has passed."""
        begin = number * WINDOW_RECORD
        self._limiters.memory[begin : begin + len(settings)] = settings

    def reset_flow_counter(self, number: int) -> None:
        self._counters.set(number, bytes(COUNTER.size))

    def close(self) -> None:
        """Let go of what is held here; queues that are removed take their classifier with them."""
        if self._program is not None:
            os.close(self._program)
        for each in (
            self._generation,
            self._flows,
            self._counters,
            self._queues,
            self._listeners,
            self._fragments,
            self._limiters,
            self._copies,
        ):
            each.close()

    def _hold(self) -> None:
        self._generation.set(0, _NOW.pack(self._now, bool(self._trusted), bool(self._prefixes)))

    def _set_prefixes(self, policies: Iterable[tuple[bytes, FlowPolicy | None]]) -> None:
        """Prefixes of topics' codes, each in an instant: one that waits for its generation would hide a shorter one."""
        for key, policy in policies:
            if not _is_prefix(key):
                continue
            if policy is None:
                self._copies.delete([key])
                self._prefixes.discard(key)
            else:
                self._put(self._copies, [(key, FLOW_POLICY.pack(0, *_NONE, *policy))])
                self._prefixes.add(key)

    def _write(self, changes: Sequence[PolicyChange]) -> None:
        next_generation, pack = self._now + 1, FLOW_POLICY.pack
        policies = [
            (key, pack(next_generation, *(before or _NONE), *(after or _NONE)))
            for key, before, after in changes
            if not _is_prefix(key)
        ]
        self._put(self._flows, [each for each in policies if not _is_copy(each[0])])
        self._put(self._copies, [each for each in policies if _is_copy(each[0])])

    def _delete(self, keys: Sequence[bytes]) -> None:
        self._flows.delete([key for key in keys if not _is_copy(key)])
        self._copies.delete([key for key in keys if _is_copy(key)])

    def _put(self, table: HashMap, policies: Sequence[tuple[bytes, bytes]]) -> None:
        try:
            table.update(policies)
        except OSError as error:
            if error.errno in (errno.E2BIG, errno.ENOSPC):
                raise PlanError(
                    f"this data plane has room for {self._most_flows} flows; "
                    "give each subscriber fewer (planning: flows_per_subscriber)"
                ) from None
            raise


class LimiterWindows:
    """Numbers from 1 on. What was given back longest ago is used again first: a packet may just be counted there."""

    def __init__(self, table: FlowTable, most: int) -> None:
        self._table, self._most = table, most
        self._free: deque[int] = deque()
        self._used = 0

    def number(self, limiter: SetLimiter | None, before: int, undo: list[Callable[[], None]]) -> int:
        """The window for a flow whose window was `before`: that one with new terms, or another one; 0 for none."""
        if limiter is None:
            return 0
        settings = window_settings(limiter)
        if before:
            undo.append(partial(self._table.set_window, before, self._table.window(before)))
            self._table.set_window(before, settings)
            return before
        if self._used < self._most:
            self._used += 1
            number = self._used
        elif self._free:
            number = self._free.popleft()
        else:
            raise PlanError(f"this data plane has room for {self._most} limiters, and all are in use")
        undo.append(partial(self.give_back, number))
        self._table.open_window(number, settings)
        return number

    def give_back(self, number: int) -> None:
        """A window is no longer needed."""
        self._free.append(number)
