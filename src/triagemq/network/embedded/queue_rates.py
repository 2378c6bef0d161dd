"""Output ports whose queues have rates: a transmitter for each class, or one that queues share by their queue rates.

Every class has a buffer of its own, and what comes to a full one is dropped. Control packets go before all others of
the transmitter that their flow has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from triagemq.network.embedded.output_port import CONTROL, NEVER, Divided, Dropped, OutputPort, Queued
from triagemq.plan.dataplane import PortCounters, QueueCounters, SetPort, Treatment
from triagemq.trace.schema import Outcome


class PartitionedPort:
    """A port in parts: each class has an output port of its own, as fast as it is wide."""

    def __init__(self, settings: SetPort) -> None:
        self.name = settings.port
        self._parts: list[OutputPort] = []
        self.configure(settings)

    def configure(self, settings: SetPort) -> None:
        """New queue rates count from the next transmission on; what waits stays. Parts that have been stay, too."""
        self._settings = settings
        for priority_class, width_bps in enumerate(settings.queue_rates_bps):
            own = SetPort(self.name, width_bps, settings.buffer_packets, priority_class + 1)
            if priority_class < len(self._parts):
                self._parts[priority_class].configure(own)
            else:
                self._parts.append(OutputPort(own))

    def part(self, priority_class: int) -> OutputPort:
        return self._parts[priority_class]

    @property
    def parts(self) -> Sequence[OutputPort]:
        return self._parts

    def reclassify(self, treatment_of: Callable[[Queued], Treatment | None]) -> None:
        """Put what waits into the part of its class by a new plan, as far as there is room."""
        for part in self._parts:
            part.reclassify(treatment_of, self)

    @property
    def ends_ns(self) -> int:
        """When the first of its transmissions ends; NEVER where nothing is sent."""
        return min(part.ends_ns for part in self._parts)

    def empty(self) -> list[Queued]:
        return [queued for part in self._parts for queued in part.empty()]

    def counters(self) -> PortCounters:
        counted = [part.counters() for part in self._parts]
        control = QueueCounters(width_bps=round(self._settings.bandwidth_bps))
        for each in counted:
            control = control.plus(each.control)
        return PortCounters(tuple(each.queues[number] for number, each in enumerate(counted)), control)


class BorrowingPort(OutputPort):
    """One transmitter: the packet goes first that would be done first if each queue sent at its width, counted from the
    packet that was sent last (self-clocked fair queueing, as the simulator has it)."""

    __slots__ = ("_queue_rates_bps", "_seconds_per_byte", "_sent_tag", "_tags")

    def __init__(self, settings: SetPort) -> None:
        self._sent_tag = 0.0
        self._tags: dict[int, float] = {}
        super().__init__(settings)

    def configure(self, settings: SetPort) -> None:
        super().configure(settings)
        self._queue_rates_bps = dict(enumerate(settings.queue_rates_bps, start=CONTROL + 1))
        self._seconds_per_byte = {queue: 8 / width for queue, width in self._queue_rates_bps.items()}

    def arrive(self, packet: Queued, dropped: Dropped) -> None:
        if packet.packet.waiting is not None and self._supersedes(packet, dropped):
            return
        queue = packet.queue
        self._packets_in[queue] += 1
        self._bytes_in[queue] += packet.wire_bytes
        waiting = self._queues[queue]
        if queue != CONTROL:
            if not self._has_room(queue):
                self._drop(packet, Outcome.dropped_by_buffer, dropped)
                return
            if not waiting:
                self._tag(packet)
        self._await_turn(packet)
        waiting.append(packet)
        self._busy |= 1 << queue

    def start(self, now_ns: int, sent: list[Queued], dropped: Dropped) -> None:
        if self._sending is None:
            self.ends_ns = now_ns
            self.finish(now_ns, sent, dropped)

    def finish(self, now_ns: int, sent: list[Queued], dropped: Dropped) -> None:
        while self.ends_ns <= now_ns:
            if (packet := self._sending) is not None:
                self._packets_out[packet.queue] += 1
                self._bytes_out[packet.queue] += packet.wire_bytes
                sent.append(packet)
            self._drop_expired(dropped)
            if not self._busy:
                self._sending = None
                self.ends_ns = NEVER
                return
            self._sending = packet = self._take_next()
            self.ends_ns += int(packet.wire_bytes * self._ns_per_byte + 0.5)

    def reclassify(
        self, treatment_of: Callable[[Queued], Treatment | None], whole: Divided | None = None
    ) -> None:
        """Put what waits into the queue of its class by a new plan, as far as there is room; each queue goes on with
        the share of the bandwidth that it has had."""
        began = {
            number: self._tags[number] - self._seconds(waiting[0])
            for number, waiting in enumerate(self._queues)
            if waiting and number != CONTROL
        }
        for number in began:
            waiting = self._queues[number]
            for _ in range(len(waiting)):
                packet = self._whose_turn(waiting.popleft())
                now = treatment_of(packet)
                queue = number if now is None else now.priority_class + 1
                if queue != number and self._has_room(queue):
                    self._count_move(packet, queue, self)
                    packet = packet._replace(queue=queue)
                self._await_turn(packet)
                self._queues[packet.queue].append(packet)
        self._busy &= 1 << CONTROL
        for number, waiting in enumerate(self._queues):
            if waiting and number != CONTROL:
                self._busy |= 1 << number
                begins = began.get(number, max(self._sent_tag, self._tags.get(number, 0.0)))
                self._tags[number] = begins + self._seconds(waiting[0])
            elif number in began:
                self._tags[number] = began[number]

    def _has_room(self, queue: int) -> bool:
        on_wire = self._sending is not None and self._sending.queue == queue
        return len(self._queues[queue]) + on_wire < self._buffer_packets

    def _take_next(self) -> Queued:
        number = CONTROL
        if not self._queues[CONTROL]:
            number = min(
                (each for each in self._tags if self._queues[each]), key=lambda each: (self._tags[each], each)
            )
        waiting = self._queues[number]
        packet = waiting.popleft()
        if not waiting:
            self._busy ^= 1 << number
        if number != CONTROL:
            self._sent_tag = self._tags[number]
            if waiting:
                self._tag(waiting[0])
        return self._whose_turn(packet)

    def _drop_expired(self, dropped: Dropped) -> None:
        """Those that are first in their queues: they take nothing of its share of the bandwidth."""
        for number, tag in self._tags.items():
            waiting = self._queues[number]
            while waiting and self._expires_ns(waiting[0]) <= self.ends_ns:
                began = tag - self._seconds(waiting[0])
                self._drop(self._whose_turn(waiting.popleft()), Outcome.expired, dropped)
                tag = began + self._seconds(waiting[0]) if waiting else began
                self._tags[number] = tag
                if not waiting:
                    self._busy ^= 1 << number

    def _tag(self, packet: Queued) -> None:
        """When a packet that is now the first of its queue would be done at the queue's width."""
        begins = max(self._sent_tag, self._tags.get(packet.queue, 0.0))
        self._tags[packet.queue] = begins + self._seconds(packet)

    def _seconds(self, packet: Queued) -> float:
        """What a packet takes at its queue's width; in a class that a new plan no longer has, at the port's."""
        return packet.wire_bytes * self._seconds_per_byte.get(packet.queue, self._ns_per_byte * 1e-9)

    def _queue_counters(self, queue: int) -> QueueCounters:
        counted = super()._queue_counters(queue)
        width_bps = self._queue_rates_bps.get(queue)
        return counted if width_bps is None else replace(counted, width_bps=round(width_bps))


Port = OutputPort | PartitionedPort


def new_port(settings: SetPort) -> Port:
    """A port that serves as the settings say."""
    return kind_of(settings)(settings)


def kind_of(settings: SetPort) -> type[OutputPort] | type[PartitionedPort]:
    if not settings.queue_rates_bps:
        return OutputPort
    return BorrowingPort if settings.borrowing else PartitionedPort
