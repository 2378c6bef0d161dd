"""One output port: a transmitter, eight priority queues and one for control packets, a buffer with push-out.

No I/O and no clock: times are handed in. The packet in transmission has a known end, so a port needs no events: who
looks at it first lets it finish all that has ended by then (`finish`), as the simulator's ports do. The
next transmission starts at the end of the one before, not at the next look: no time is lost.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from triagemq.plan.dataplane import (
    FlowCounters,
    FlowKey,
    OutgoingPacket,
    PortCounters,
    QueueCounters,
    SetFlow,
    SetPort,
    Treatment,
)
from triagemq.trace.schema import Outcome

PRIORITY_CLASSES = 8

NEVER = 1 << 63
"""When an idle port ends its transmission."""

# Control packets are queue 0 of a port, and class c is queue c + 1: the lowest bit of a set of queues is served first.
CONTROL = 0

_NONE_WAITS = (CONTROL, 0.0)
"""The rank of the last packet that waits where none does: no packet has a higher one."""


class Flow:
    """What happens to the packets of one flow, and what has happened."""

    __slots__ = (
        "address",
        "dropped_by_buffer",
        "flow_id",
        "key",
        "packets_in",
        "packets_out",
        "port",
        "queue",
        "whole_port",
    )

    def __init__(self, key: FlowKey) -> None:
        self.key = key
        self.address = (key.address, key.udp_port)
        self.packets_in = self.dropped_by_buffer = self.packets_out = 0

    def configure(self, settings: SetFlow[FlowKey], whole_port: Divided) -> None:
        self.flow_id = settings.flow_id
        self.whole_port = whole_port
        self.port = whole_port.part(settings.priority_class)
        self.queue = settings.priority_class + 1

    def counters(self) -> FlowCounters:
        return FlowCounters(
            self.flow_id,
            self.packets_in,
            self.dropped_by_buffer,
            self.packets_out,
            self.packets_out,
        )


class Divided(Protocol):
    """A port of which each class may have a part of its own."""

    def part(self, priority_class: int) -> OutputPort: ...


class Queued(NamedTuple):
    """A packet at a port, with the queue in which it waits; one with a `worth` goes before those of its queue."""

    packet: OutgoingPacket
    flow: Flow
    queue: int
    wire_bytes: int
    enqueued_ns: int
    worth: float = 0.0


Dropped = list[tuple[Queued, Outcome]]
"""Packets that will not be sent, and why."""


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
        "_moved",
        "_newest",
        "_ns_per_byte",
        "_packets_in",
        "_packets_out",
        "_queues",
        "_reported",
        "_sending",
        "_unseen",
        "_unseen_count",
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
        # Packets of topics that were not seen before, the first to be sent last: by queue, worth and arrival.
        self._unseen: list[tuple[int, float, int, Queued]] = []
        self._unseen_count = 0
        # What is sent when the turn comes of the packet that was the first to wait with this key.
        self._newest: dict[Hashable, Queued] = {}
        # All but control, the one in transmission included.
        self._held = 0
        self._sending: Queued | None = None
        self._reported = 0
        self._packets_in, self._bytes_in = [0] * queues, [0] * queues
        self._packets_out, self._bytes_out = [0] * queues, [0] * queues
        self._drops, self._bytes_dropped = [0] * queues, [0] * queues
        # Packets and bytes that a new plan has brought here from other queues, less those that it took away.
        self._moved = [[0] * queues, [0] * queues]
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

    @property
    def parts(self) -> Sequence[OutputPort]:
        return (self,)

    def arrive(self, packet: Queued, dropped: Dropped) -> None:
        """Queue the packet, or drop it or one that it pushes out; `start` follows when all of the moment have come."""
        if packet.packet.waiting is not None and self._supersedes(packet, dropped):
            return
        queue = packet.queue
        self._packets_in[queue] += 1
        self._bytes_in[queue] += packet.wire_bytes
        if queue != CONTROL:
            if self._held + 1 >= self._buffer_packets and self._is_full():
                if (-queue, packet.worth) <= self._last_to_go():
                    self._drop(packet, Outcome.dropped_by_buffer, dropped)
                    return
                self._push_out(dropped)
            self._held += 1
        self._append(packet)

    def _supersedes(self, packet: Queued, dropped: Dropped) -> bool:
        """Whether the packet takes the place of an older one that waits, in the queue of that one."""
        terms = packet.packet.waiting
        older = None if terms is None else self._newest.get(terms.replaces)
        if older is None:
            return False
        queue = older.queue
        self._packets_in[queue] += 1
        self._bytes_in[queue] += packet.wire_bytes
        self._drop(older, Outcome.superseded, dropped)
        self._await_turn(packet._replace(queue=queue, worth=older.worth))
        return True

    def _await_turn(self, packet: Queued) -> None:
        terms = packet.packet.waiting
        if terms is not None and terms.replaces is not None:
            self._newest[terms.replaces] = packet

    def _whose_turn(self, packet: Queued) -> Queued:
        """What is sent, or dropped, at the turn of a packet."""
        terms = packet.packet.waiting
        return packet if terms is None else self._newest.pop(terms.replaces, packet)

    def _expires_ns(self, packet: Queued) -> int:
        """When that expires."""
        terms = packet.packet.waiting
        latest = terms and self._newest.get(terms.replaces, packet).packet.waiting
        return latest.expires_ns if latest else NEVER

    def _append(self, packet: Queued) -> None:
        if packet.packet.waiting is not None:
            self._await_turn(packet)
        if packet.worth > 0.0:
            self._unseen_count += 1
            insort(self._unseen, (-packet.queue, packet.worth, -self._unseen_count, packet))
        else:
            self._queues[packet.queue].append(packet)
            self._busy |= 1 << packet.queue

    def start(self, now_ns: int, sent: list[Queued], dropped: Dropped) -> None:
        """An idle port begins with the highest class that has come, as if it had ended something just now."""
        if self._sending is None:
            if self._busy & 1 << CONTROL and self._is_full():
                self._push_out(dropped)
            self.ends_ns = now_ns
            self.finish(now_ns, sent, dropped)

    def finish(self, now_ns: int, sent: list[Queued], dropped: Dropped) -> None:
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
            busy, unseen = self._busy, self._unseen
            if unseen and (not busy or -unseen[-1][0] < (busy & -busy).bit_length()):
                self._sending = packet = unseen.pop()[3]
            elif busy:
                bit = busy & -busy
                queue = self._queues[bit.bit_length() - 1]
                self._sending = packet = queue.popleft()
                if not queue:
                    self._busy = busy ^ bit
            else:
                self._sending = None
                ends_ns = NEVER
                break
            if packet.packet.waiting is not None:
                is_expired = self._expires_ns(packet) <= ends_ns
                self._sending = packet = self._whose_turn(packet)
                if is_expired:
                    self._sending = None
                    self._held -= 1
                    self._drop(packet, Outcome.expired, dropped)
                    continue
            ends_ns += int(packet.wire_bytes * self._ns_per_byte + 0.5)
        self.ends_ns = ends_ns

    def empty(self) -> list[Queued]:
        """Take everything away that has not been sent, in the order in which it would have been."""
        left = [] if self._sending is None else [self._sending]
        left += self._take_waiting()
        self._sending, self._held, self.ends_ns = None, 0, NEVER
        return left

    def _take_waiting(self) -> list[Queued]:
        unseen, waiting = self._unseen[::-1], list[Queued]()
        for number, queue in enumerate(self._queues):
            waiting += [packet for owner, _, _, packet in unseen if owner == -number]
            waiting += queue
            queue.clear()
        self._unseen.clear()
        self._busy = 0
        return [self._whose_turn(packet) for packet in waiting]

    def reclassify(
        self, treatment_of: Callable[[Queued], Treatment | None], whole: Divided | None = None
    ) -> None:
        """Put what waits where a new plan wants it; what is in transmission stays. None: as before.

        `whole` is the port that this is a part of. A packet for a part without room stays where it is.
        """
        for packet in self._take_waiting():
            now = None if packet.queue == CONTROL else treatment_of(packet)
            to = self if now is None or whole is None else whole.part(now.priority_class)
            if now is None or (to is not self and to._is_full()):
                self._append(packet)
                continue
            queue = now.priority_class + 1
            if queue != packet.queue:
                self._count_move(packet, queue, to)
            to._append(packet._replace(queue=queue, worth=now.worth))

    def _count_move(self, packet: Queued, queue: int, to: OutputPort) -> None:
        for before, after, amount in zip(self._moved, to._moved, (1, packet.wire_bytes), strict=True):
            before[packet.queue] -= amount
            after[queue] += amount
        self._held -= 1
        to._held += 1

    def counters(self) -> PortCounters:
        control, *queues = (self._queue_counters(queue) for queue in range(self._reported + 1))
        return PortCounters(tuple(queues), control)

    def _is_full(self) -> bool:
        """Has the buffer no place? The packet in transmission counts, of whatever kind; control that waits does not."""
        if self._sending is None:
            # Where nothing takes time, none of a moment waits behind another.
            return self._held >= self._buffer_packets and self._ns_per_byte > 0.0
        return self._held + (self._sending.queue == CONTROL) >= self._buffer_packets

    def _last_to_go(self) -> tuple[int, float]:
        """The rank of the last packet that waits, lower ones being later: its queue negated, and its worth."""
        lowest = self._busy.bit_length() - 1
        planned = (-lowest, 0.0) if lowest > CONTROL else _NONE_WAITS
        return min(planned, self._unseen[0][:2]) if self._unseen else planned

    def _push_out(self, dropped: Dropped) -> None:
        """The packet that would be sent last gives up its place."""
        queue, worth = self._last_to_go()
        if worth > 0.0:
            last = self._unseen.pop(0)[3]
        else:
            last = self._queues[-queue].pop()
            if not self._queues[-queue]:
                self._busy ^= 1 << -queue
        self._drop(self._whose_turn(last), Outcome.dropped_by_buffer, dropped)
        self._held -= 1

    def _drop(self, packet: Queued, outcome: Outcome, dropped: Dropped) -> None:
        self._drops[packet.queue] += 1
        self._bytes_dropped[packet.queue] += packet.wire_bytes
        dropped.append((packet, outcome))

    def _queue_counters(self, queue: int) -> QueueCounters:
        packets_in, packets_out, drops = self._packets_in[queue], self._packets_out[queue], self._drops[queue]
        bytes_in, bytes_out = self._bytes_in[queue], self._bytes_out[queue]
        return QueueCounters(
            bytes_in=bytes_in,
            packets_in=packets_in,
            bytes_out=bytes_out,
            packets_out=packets_out,
            drops=drops,
            backlog_bytes=bytes_in - bytes_out - self._bytes_dropped[queue] + self._moved[1][queue],
            backlog_packets=packets_in - packets_out - drops + self._moved[0][queue],
            width_bps=self._width_bps,
        )
