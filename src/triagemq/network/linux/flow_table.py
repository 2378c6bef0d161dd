"""The flows that the classifiers of a data plane know, changed all at once; and how much control packets may take.

Every flow has two policies and a generation from which the second holds. A new plan is first written next to the old
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
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import PlanError
from triagemq.network.linux.bpf import (
    ArrayMap,
    BpfMap,
    HashMap,
    PrefixMap,
    RecentMap,
    compiled_program,
    load_program,
)
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
    PROGRAMS,
    QUEUE_RECORD,
    SOURCE_PLACE,
    WINDOW_RECORD,
    WINDOW_SETTINGS,
)
from triagemq.plan.dataplane import FlowKey, SetLimiter

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
"""Datagrams whose fragments may be in transit at one time."""


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


class FlowTable:
    """The maps of the classifier, and the program, which is loaded for the first port. `stage`, then `switch`, then
    `settle` or `take_back`."""

    def __init__(
        self,
        most_flows: int,
        most_ports: int,
        most_limiters: int = 1,
        *,
        timed: bool = False,
    ) -> None:
        self._generation = ArrayMap(_NOW.size, 1)
        self._flows = HashMap(FLOW_KEY.size, FLOW_POLICY.size, most_flows)
        # Twice as many: a flow that goes needs its counter for a moment longer.
        self.counters = RecordNumbers("counters", 2 * most_flows)
        self._counters = ArrayMap(COUNTER.size, 2 * most_flows)
        self.limiters = RecordNumbers("limiters", most_limiters, first=1)
        self._queues = ArrayMap(QUEUE_RECORD, most_ports + 1)
        self._listeners = HashMap(LISTENER_KEY.size, len(_TRUSTED), _MOST_LISTENERS)
        self._fragments = RecentMap(FRAGMENT_KEY.size, FRAGMENT_VERDICT.size, _MOST_FRAGMENTED)
        self._limiters = ArrayMap(WINDOW_RECORD, most_limiters + 1)
        self._copies = PrefixMap(COPY_KEY.size, FLOW_POLICY.size, most_flows)
        self._maps: dict[str, BpfMap] = {
            "generation": self._generation,
            "flows": self._flows,
            "counters": self._counters,
            "ports": self._queues,
            "listeners": self._listeners,
            "fragments": self._fragments,
            "limiters": self._limiters,
            "copies": self._copies,
        }
        """By their names in programs.c."""
        self._program: int | None = None
        self._timed = timed
        self._most_flows = most_flows
        self._now = 0
        self._trusted: set[bytes] = set()
        self._prefixes: set[bytes] = set()
        self._staged: Sequence[PolicyChange] = ()

    def open_port(self, number: int, bandwidth_bps: float, classes: int) -> None:
        """A port that flows know by this number; its counters are zero."""
        self._queues.set(number, bytes(QUEUE_RECORD))
        self.set_port(number, bandwidth_bps, classes)

    def set_port(self, number: int, bandwidth_bps: float, classes: int) -> None:
        """Control packets may use a share of the bandwidth; packets whose mark says another class go to the last."""
        record, memory = number * QUEUE_RECORD, self._queues.memory
        for place, bound in zip(BOUNDS, control_bounds(bandwidth_bps), strict=True):
            # What has been used up stays so.
            settings = BOUND.pack(0, round(bound.ns_per_byte * 2**16), bound.burst_ns)[8:]
            memory[record + place + 8 : record + place + 8 + len(settings)] = settings
        memory[record + CLASSES : record + CLASSES + 4] = struct.pack("=I", classes)

    @property
    def program(self) -> int:
        """The classifier for all ports, loaded when it is needed first."""
        if self._program is None:
            section = "tc/timed_classifier" if self._timed else "tc/classifier"
            self._program = load_program(compiled_program(PROGRAMS, section, self._maps))
        return self._program

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

    def flow_counters(self) -> NDArray[np.uint64]:
        """A row for each counter that was used: packets that came, bytes passed on, limited, foreign."""
        columns, count = COUNTER.size // 8, self.counters.used
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
        """A limiter gets its settings; nothing has passed it."""
        self._limiters.set(number, settings.ljust(WINDOW_RECORD, b"\0"))

    def window(self, number: int) -> bytes:
        """The settings of a limiter."""
        begin = number * WINDOW_RECORD
        return self._limiters.memory[begin : begin + WINDOW_SETTINGS.size]

    def set_window(self, number: int, settings: bytes) -> None:
        """Change a limiter; it remembers what has passed."""
        begin = number * WINDOW_RECORD
        self._limiters.memory[begin : begin + len(settings)] = settings

    def take_counter(self) -> int:
        """The number of a counter that is zero."""
        number = self.counters.take()
        self._counters.set(number, bytes(COUNTER.size))
        return number

    def close(self) -> None:
        """Let go of what is held here; queues that are removed take their classifier with them."""
        if self._program is not None:
            os.close(self._program)
        for each in self._maps.values():
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


class RecordNumbers:
    """RecordNumbers of records in a map. One that was given back rests: a packet may just be counted there."""

    _RESTING = 64

    def __init__(self, what: str, most: int, first: int = 0) -> None:
        self.used = first
        self._what, self._most, self._end = what, most, first + most
        self._free: deque[int] = deque()

    def take(self) -> int:
        """A number that nothing has."""
        if len(self._free) > self._RESTING or (self._free and self.used == self._end):
            return self._free.popleft()
        if self.used == self._end:
            raise PlanError(f"this data plane has room for {self._most} {self._what}, and all are in use")
        self.used += 1
        return self.used - 1

    def give_back(self, number: int) -> None:
        """Nothing has it any more."""
        self._free.append(number)
