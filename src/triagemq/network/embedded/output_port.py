"""One output port: a transmitter, eight priority queues and one for control packets, a buffer with push-out.

No I/O and no clock: times are handed in. The packet in transmission has a known end, so a port needs no events: who
looks at it first lets it finish all that has ended by then (`finish`), the same way as the simulator's ports do. The
next transmission starts at the end of the one before, not when somebody looked: no time is lost.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from triagemq.network.embedded.window import Window
from triagemq.plan import FlowCounters, FlowKey, OutgoingPacket, PortCounters, QueueCounters, SetFlow, SetPort

PRIORITY_CLASSES = 8

NEVER = 1 << 63
"""When an idle port ends its transmission."""

# Control packets are queue 0 of a port, and class c is queue c + 1: the lowest bit of a set of queues is served first.
CONTROL = 0


class Flow:
    """What happens to the packets of one flow, and what has happened."""

    __slots__ = (
        "address",
        "drop_rate",
        "dropped_by_buffer",
        "dropped_by_policy",
        "flow_id",
        "key",
        "limited",
        "packets_in",
        "packets_out",
        "port",
        "queue",
        "removed",
        "window",
    )

    def __init__(self, key: FlowKey) -> None:
        self.key = key
        self.address = (key.address, key.udp_port)
        self.packets_in = self.dropped_by_policy = self.dropped_by_buffer = self.packets_out = 0
        self.limited = 0
        self.window: Window | None = None
        self.removed = False

    def configure(self, settings: SetFlow[FlowKey], port: OutputPort) -> None:
        """`port` is the one by which its class leaves."""
        self.flow_id = settings.flow_id
        self.port = port
        self.queue = settings.priority_class + 1
        self.drop_rate = settings.drop_rate

    @property
    def backlog_packets(self) -> int:
        gone = self.limited + self.dropped_by_policy + self.dropped_by_buffer + self.packets_out
        return self.packets_in - gone

    def counters(self) -> FlowCounters:
        return FlowCounters(
            self.flow_id,
            self.packets_in,
            self.dropped_by_policy,
            self.dropped_by_buffer,
            self.packets_out,
            self.packets_out,
            self.limited,
        )


class Queued(NamedTuple):
    """A packet at a port, with the queue it came to: a new plan does not move it."""

    packet: OutgoingPacket
    flow: Flow
    queue: int
    wire_bytes: int
    enqueued_ns: int


class OutputPort:
    """Call `finish` up to the present before anything else; `ends_ns` says whether there is a need to."""

    __slots__ = (
        "_buffer_packets",
        "_busy",
        "_bytes_dropped",
        "_bytes_in",
        "_bytes_out",
        "_drops",
        "_held",
        "_ns_per_byte",
        "_packets_in",
        "_packets_out",
        "_queues",
        "_reported",
        "_sending",
        "_width_bps",
        "ends_ns",
        "name",
        "scheduled",
    )

    def __init__(self, settings: SetPort) -> None:
        queues = PRIORITY_CLASSES + 1
        self.name = settings.port
        self.ends_ns = NEVER
        self.scheduled = False
        self._queues: tuple[deque[Queued], ...] = tuple(deque() for _ in range(queues))
        self._busy = 0
        # All but control, the one in transmission included.
        self._held = 0
        self._sending: Queued | None = None
        self._reported = 0
        self._packets_in, self._bytes_in = [0] * queues, [0] * queues
        self._packets_out, self._bytes_out = [0] * queues, [0] * queues
        self._drops, self._bytes_dropped = [0] * queues, [0] * queues
        self.configure(settings)

    def configure(self, settings: SetPort) -> None:
        """New settings: the bandwidth counts from the next transmission on, the buffer from the next arrival on."""
        self._ns_per_byte = 8e9 / settings.bandwidth_bps
        self._buffer_packets = settings.buffer_packets
        self._width_bps = None if settings.bandwidth_bps == float("inf") else round(settings.bandwidth_bps)
        # Classes that a new plan no longer has may still hold packets, and have counted.
        self._reported = max(self._reported, settings.classes)

    def part(self, priority_class: int) -> OutputPort:
        """By which a class leaves: all by the same."""
        return self

    def arrive(self, packet: Queued, dropped: list[Queued]) -> None:
        """Queue the packet, or drop it or one that it pushes out; `start` follows when all of the moment have come."""
        queue = packet.queue
        self._packets_in[queue] += 1
        self._bytes_in[queue] += packet.wire_bytes
        if queue != CONTROL:
            if self._held + 1 >= self._buffer_packets and self._is_full():
                if self._busy.bit_length() - 1 <= queue:
                    self._drop(packet, dropped)
                    return
                self._push_out(dropped)
            self._held += 1
        self._queues[queue].append(packet)
        self._busy |= 1 << queue

    def start(self, now_ns: int, sent: list[Queued], dropped: list[Queued]) -> None:
        """An idle port begins with the highest class that has come, as if it had ended something just now."""
        if self._sending is None:
            if self._busy & 1 << CONTROL and self._is_full():
                self._push_out(dropped)
            self.ends_ns = now_ns
            self.finish(now_ns, sent)

    def finish(self, now_ns: int, sent: list[Queued]) -> None:
        """Add everything to `sent` whose transmission has ended by now, in order, and start what follows it."""
        ends_ns = self.ends_ns
        while ends_ns <= now_ns:
            packet = self._sending
            if packet is not None:
                number = packet.queue
                self._packets_out[number] += 1
                self._bytes_out[number] += packet.wire_bytes
                if number != CONTROL:
                    self._held -= 1
                sent.append(packet)
            busy = self._busy
            if not busy:
                self._sending = None
                ends_ns = NEVER
                break
            bit = busy & -busy
            queue = self._queues[bit.bit_length() - 1]
            self._sending = packet = queue.popleft()
            if not queue:
                self._busy = busy ^ bit
            ends_ns += int(packet.wire_bytes * self._ns_per_byte + 0.5)
        self.ends_ns = ends_ns

    def empty(self) -> list[Queued]:
        """Take everything away that has not been sent, in the order in which it would have been."""
        left = [] if self._sending is None else [self._sending]
        for queue in self._queues:
            left += queue
            queue.clear()
        self._sending, self._busy, self._held, self.ends_ns = None, 0, 0, NEVER
        return left

    def counters(self) -> PortCounters:
        control, *queues = (self._queue_counters(queue) for queue in range(self._reported + 1))
        return PortCounters(tuple(queues), control)

    def _is_full(self) -> bool:
        """Has the buffer no place? The packet in transmission counts, of whatever kind; control that waits does not."""
        if self._sending is None:
            # Where nothing takes time, none of a moment waits behind another.
            return self._held >= self._buffer_packets and self._ns_per_byte > 0.0
        return self._held + (self._sending.queue == CONTROL) >= self._buffer_packets

    def _push_out(self, dropped: list[Queued]) -> None:
        """The newest packet of the lowest class that waits gives up its place."""
        lowest = self._busy.bit_length() - 1
        self._drop(self._queues[lowest].pop(), dropped)
        self._held -= 1
        if not self._queues[lowest]:
            self._busy ^= 1 << lowest

    def _drop(self, packet: Queued, dropped: list[Queued]) -> None:
        self._drops[packet.queue] += 1
        self._bytes_dropped[packet.queue] += packet.wire_bytes
        dropped.append(packet)

    def _queue_counters(self, queue: int) -> QueueCounters:
        packets_in, packets_out, drops = self._packets_in[queue], self._packets_out[queue], self._drops[queue]
        bytes_in, bytes_out = self._bytes_in[queue], self._bytes_out[queue]
        return QueueCounters(
            bytes_in=bytes_in,
            packets_in=packets_in,
            bytes_out=bytes_out,
            packets_out=packets_out,
            drops=drops,
            backlog_bytes=bytes_in - bytes_out - self._bytes_dropped[queue],
            backlog_packets=packets_in - packets_out - drops,
            width_bps=self._width_bps,
        )
