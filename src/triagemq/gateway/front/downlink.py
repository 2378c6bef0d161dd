"""What waits for one MQTT client, and what of it is in its output port. No sockets, no clock.

A copy goes to the port at once, where it waits among the copies of all others by its class. It waits here

* while the client does not read: then better classes overtake, and where there are too many the lowest goes first;
* behind a packet of its class that is in the port already: what comes meanwhile goes together in the next one, and with
  one header, as far as the port sends it in a few milliseconds;
* at QoS 1 and 2 within the client's window; what the port has no room for comes back and is offered again: only
  messages at QoS 0 are lost;
* while a message is on its way that is larger than a segment. MQTT is a stream of octets, so that a better class
  overtakes between packets only; what is left of that message goes in the best class that waits behind it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from triagemq.gateway.core.messages import Publication
from triagemq.gateway.front.session import Copy
from triagemq.gateway.sockets import StreamToken
from triagemq.plan.dataplane import NEVER_NS, FlowKey, OutgoingPacket, StreamEnd, Treatment, WaitingTerms
from triagemq.trace.schema import Outcome

MTU_BYTES = 1448
"""The payload of a TCP segment on Ethernet, with time stamps."""
HEADER_BYTES = 14 + 20 + 32
"""What Ethernet, IPv4 and TCP with time stamps add to a segment, and what a segment that only acknowledges has."""

_MOST_IN_PORT = 1
"""Packets of one class, at QoS 0 and above each: what comes meanwhile goes together in the next one."""
_FEW_WAITING = 8
_CONTROL = Treatment(0)


@dataclass(slots=True, eq=False)
class Waiting:
    """A copy with its treatment."""

    copy: Copy
    publication: Publication
    treatment: Treatment
    number: int
    offered_ns: int = -1
    newest_only: bool = False
    expires_ns: int = NEVER_NS

    @property
    def qos(self) -> int:
        return self.copy.message.qos

    @property
    def queue(self) -> tuple[int, bool]:
        """Its class, and whether it is at QoS 0."""
        return self.treatment.priority_class, not self.copy.message.qos

    @property
    def is_plain(self) -> bool:
        """Has it no terms by which it waits?"""
        return not self.newest_only and self.expires_ns == NEVER_NS

    def heed(self) -> None:
        """Wait by the terms of its subscription. What a client has just asked for is no newer event."""
        terms = self.treatment.terms
        self.newest_only = terms is not None and terms.newest_only and not self.copy.message.retain
        self.expires_ns = self.publication.expires_by(terms)


@dataclass(slots=True, eq=False)
class Segment(StreamToken):
    """A copy, or a part of a large one, in the output port: the token of its packet."""

    downlink: Downlink
    waiting: Waiting
    priority_class: int
    begin: int
    end: int
    others: list[Waiting] = field(default_factory=list)
    """Copies that go in the same packet."""

    @property
    def copies(self) -> list[Waiting]:
        return [self.waiting, *self.others]

    @property
    def is_last(self) -> bool:
        return self.end == len(self.waiting.copy.packet)

    def settled(self, outcome: Outcome, enqueued_ns: int, dequeued_ns: int) -> None:
        """Its port has sent it, or has not."""
        self.downlink.settled(self, outcome, enqueued_ns, dequeued_ns)

    def treatment(self) -> Treatment:
        """By the plan of now."""
        for waiting in self.copies:
            self.downlink.classify(waiting)
        return min((each.treatment for each in self.copies), key=lambda each: each.priority_class)


class DownlinkOwner(StreamEnd, Protocol):
    """What a downlink needs of its surroundings. The octets of a packet that is transmitted come from `take`."""

    @property
    def now_ns(self) -> int: ...

    def send(self, packet: OutgoingPacket) -> None:
        """Into the output port."""

    def settle(self, waiting: Waiting, outcome: Outcome, enqueued_ns: int, dequeued_ns: int) -> None:
        """A copy has left, or never will: by its terms, or at QoS 0 for want of room. At QoS 1 and 2 the client has not
        acknowledged it yet."""

    def treatment(self, topic: str) -> Treatment:
        """By the plan of now."""

    def try_again_soon(self) -> None:
        """Call `Downlink.resume` in a moment."""


class Downlink:
    """`control` and `offer` bring packets, `settled` says what became of them; `is_blocked` is the client's fault."""

    def __init__(
        self,
        owner: DownlinkOwner,
        key: FlowKey,
        *,
        most_waiting: Callable[[], float] = lambda: 10_000,
        most_bytes: int = 16 << 20,
        segment_bytes: Callable[[], int] = lambda: MTU_BYTES,
        packed_bytes: Callable[[], int] = lambda: MTU_BYTES,
    ) -> None:
        self.is_blocked = False
        self.is_closed = False
        self.in_flight: set[int] = set()
        """Packet ids of messages at QoS 1 and 2 that have gone to the port, until the client acknowledges them."""
        self.window = 0xFFFF
        self.waiting_bytes = 0
        self._owner = owner
        self._key = key
        self._most_waiting, self._most_bytes = most_waiting, most_bytes
        self._segment_bytes, self._packed_bytes = segment_bytes, packed_bytes
        # By class, and whether the QoS is 0.
        self._queues: dict[tuple[int, bool], deque[Waiting]] = {}
        self._at_qos_0 = self._offered = 0
        # Packets in the port, by queue.
        self._in_port: Counter[tuple[int, bool]] = Counter()
        # Of topics of which only the newest message is wanted, what waits here, and how many are in the port.
        self._newest: dict[str, Waiting] = {}
        self._replaceable: Counter[str] = Counter()
        # Queues that the port had no room for.
        self._refused: set[tuple[int, bool]] = set()
        # The message of which a part is on its way, and what leaves the port meanwhile.
        self._partial: Waiting | None = None
        self._behind: list[bytes] = []
        # A further part of it that the port had no room for.
        self._without_room: Segment | None = None

    @property
    def is_amid_message(self) -> bool:
        """Has the client a part of a message?"""
        return self._partial is not None

    @property
    def is_overfull(self) -> bool:
        """Is there more than may wait, and none of it may be dropped?"""
        return self.waiting_bytes > 4 * self._most_bytes

    def control(self, octets: bytes) -> None:
        """A packet that goes first."""
        self._owner.send(self._packet(octets, None, _CONTROL))

    def offer(self, copy: Copy, publication: Publication, treatment: Treatment) -> None:
        """A copy, to the port if it is its turn."""
        self._offered += 1
        waiting = Waiting(copy, publication, treatment, self._offered, self._owner.now_ns)
        if treatment.terms is not None or publication.expires_ns != NEVER_NS:
            waiting.heed()
            if waiting.newest_only and self._takes_place(waiting):
                return
        self._append(waiting)
        if self._at_qos_0 > _FEW_WAITING and not waiting.qos:
            self._make_room()
        if waiting.newest_only or self._in_port[waiting.queue] < _MOST_IN_PORT:
            self.pump()

    def acknowledged(self, packet_id: int) -> None:
        """The client has a message."""
        self.in_flight.discard(packet_id)

    def resume(self) -> None:
        """Try again what the port had no room for."""
        self._refused.clear()
        segment, self._without_room = self._without_room, None
        if segment is not None:
            self._send_segment(segment.waiting, segment.begin)
        self.pump()

    def rerank(self) -> None:
        """A new plan is in force."""
        waiting = [one for queue in self._queues.values() for one in queue]
        waiting.sort(key=lambda one: one.number)
        self._queues.clear()
        self._newest.clear()
        self._at_qos_0 = self.waiting_bytes = 0
        for one in waiting:
            self.classify(one)
            self._append(one)
        self.pump()

    def classify(self, waiting: Waiting) -> None:
        """The treatment of a copy by the plan of now."""
        waiting.treatment = self._owner.treatment(waiting.copy.topic)
        waiting.heed()

    def pump(self) -> None:
        """Send to the port what may go there."""
        while self._partial is None and not self.is_blocked and (copies := self._next()):
            first, *others = copies
            self._in_port[first.queue] += 1
            if first.newest_only:
                self._replaceable[first.copy.topic] += 1
            self.in_flight.update(each.copy.message.packet_id for each in copies if each.qos)
            self._send_segment(first, 0, others)

    def take(self, packet: OutgoingPacket) -> bytes:
        """The octets to be written now that a packet has left its port; what would part a message comes after it."""
        segment = packet.token
        if self._partial is None or (isinstance(segment, Segment) and segment.waiting is self._partial):
            if isinstance(segment, Segment) and segment.is_last and self._partial is not None:
                self._partial = None
                behind, self._behind = b"".join(self._behind), []
                return packet.datagram + behind
            return packet.datagram
        self._behind.append(packet.datagram)
        return b""

    def settled(self, segment: Segment, outcome: Outcome, enqueued_ns: int, dequeued_ns: int) -> None:
        """What has become of a segment."""
        if outcome is Outcome.dropped_by_buffer and not self.is_closed:
            self._come_back(segment)
            return
        if not segment.is_last and outcome is Outcome.delivered:
            self._send_segment(segment.waiting, segment.end)
            return
        self._left_port(segment)
        for waiting in segment.copies:
            if waiting.qos and outcome is not Outcome.delivered:
                self.in_flight.discard(waiting.copy.message.packet_id)
            times = (-1, -1) if enqueued_ns < 0 else (waiting.offered_ns, dequeued_ns)
            self._owner.settle(waiting, outcome, *times)
        self._refused.clear()
        self.pump()

    def _left_port(self, segment: Segment) -> None:
        waiting = segment.waiting
        self._in_port[segment.priority_class, not waiting.qos] -= 1
        if self._replaceable.get(waiting.copy.topic):
            self._replaceable[waiting.copy.topic] -= 1

    def close(self) -> list[Waiting]:
        """The client is gone: what has not gone to the port."""
        self.is_closed = True
        left = [waiting for queue in self._queues.values() for waiting in queue]
        self._queues.clear()
        return left

    # What waits.

    def _append(self, waiting: Waiting) -> None:
        queue = self._queues.setdefault(waiting.queue, deque())
        # What comes back from the port was offered before all that waits, but for some that came back, too.
        before = []
        while queue and queue[-1].number > waiting.number and queue[0].number < waiting.number:
            before.append(queue.popleft())
        if queue and queue[0].number > waiting.number:
            queue.appendleft(waiting)
            queue.extendleft(reversed(before))
        else:
            queue.append(waiting)
        if waiting.newest_only:
            self._newest[waiting.copy.topic] = waiting
        self._at_qos_0 += not waiting.qos
        self.waiting_bytes += len(waiting.copy.packet)

    def _takes_place(self, newer: Waiting) -> bool:
        """Does a message take the place of an older one that waits here?"""
        held = self._newest.get(newer.copy.topic)
        if held is None or bool(held.qos) != bool(newer.qos):
            return False
        older = replace(held)
        self.waiting_bytes += len(newer.copy.packet) - len(older.copy.packet)
        held.copy, held.publication, held.expires_ns = newer.copy, newer.publication, newer.expires_ns
        self._owner.settle(older, Outcome.superseded, -1, -1)
        return True

    def _taken(self, key: tuple[int, bool], waiting: Waiting) -> Waiting:
        if not self._queues[key]:
            del self._queues[key]
        if self._newest.get(waiting.copy.topic) is waiting:
            del self._newest[waiting.copy.topic]
        self._at_qos_0 -= not waiting.qos
        self.waiting_bytes -= len(waiting.copy.packet)
        return waiting

    def _next(self) -> list[Waiting]:
        """What may go now, of the best class: several small copies go in one packet."""
        for key in sorted(self._queues):
            while (queue := self._queues.get(key)) and self._may_go(key, queue[0]):
                first = self._taken(key, queue.popleft())
                if first.expires_ns <= self._owner.now_ns:
                    self._owner.settle(first, Outcome.expired, -1, -1)
                    continue
                copies = [first]
                left = self._packed_bytes() - len(first.copy.packet)
                while queue and first.is_plain and queue[0].is_plain and self._is_in_window(queue[0], copies):
                    left -= len(queue[0].copy.packet)
                    if left < 0:
                        break
                    copies.append(self._taken(key, queue.popleft()))
                return copies
        return []

    def _may_go(self, key: tuple[int, bool], first: Waiting) -> bool:
        if key in self._refused or not self._is_in_window(first, ()):
            return False
        # What takes the place of an older one there needs none of its own.
        return self._in_port[key] < _MOST_IN_PORT or self._replaceable[first.copy.topic] > 0

    def _is_in_window(self, waiting: Waiting, before: Sequence[Waiting]) -> bool:
        return not waiting.qos or len(self.in_flight) + len(before) < self.window

    def _make_room(self) -> None:
        """The newest of the lowest class at QoS 0 goes where there is too much."""
        while self._at_qos_0 > self._most_waiting() or (
            self._at_qos_0 and self.waiting_bytes > self._most_bytes
        ):
            key = max(key for key in self._queues if key[1])
            dropped = self._taken(key, self._queues[key].pop())
            self._owner.settle(dropped, Outcome.dropped_by_buffer, -1, -1)

    # The port.

    def _send_segment(self, waiting: Waiting, begin: int, others: Sequence[Waiting] = ()) -> None:
        packet = waiting.copy.packet
        end = min(len(packet), begin + max(MTU_BYTES, self._segment_bytes()))
        treatment = waiting.treatment
        level = treatment.priority_class
        if end - begin < len(packet):
            self._partial = waiting
            best = min((key[0] for key in self._queues), default=level)
            if best < level:
                treatment = treatment._replace(priority_class=best, worth=0.0)
        segment = Segment(self, waiting, level, begin, end, [*others])
        octets = b"".join([packet[begin:end], *(each.copy.packet for each in others)])
        self._owner.send(self._packet(octets, segment, treatment))

    def _come_back(self, segment: Segment) -> None:
        """The port had no room. What else it refuses now comes back before anything goes there again."""
        self._owner.try_again_soon()
        if segment.begin:
            # Its beginning is with the client already.
            self._without_room = segment
            return
        self._left_port(segment)
        if segment.waiting is self._partial:
            self._partial = None
        for waiting in segment.copies:
            if waiting.qos:
                self.in_flight.discard(waiting.copy.message.packet_id)
                self._append(waiting)
                self._refused.add(waiting.queue)
            else:
                self._owner.settle(waiting, Outcome.dropped_by_buffer, waiting.offered_ns, -1)

    def _packet(self, octets: bytes, token: Segment | None, treatment: Treatment) -> OutgoingPacket:
        qos, terms = 0, None
        if token is not None:
            waiting = token.waiting
            qos = waiting.qos
            if len(octets) == len(waiting.copy.packet) and not waiting.is_plain:
                replaces = (self._key, waiting.copy.topic) if waiting.newest_only else None
                terms = WaitingTerms(replaces, waiting.expires_ns)
        # Of several answers of a client an empty segment acknowledges most together.
        answers = qos if token is not None and token.is_last else 0
        segments = -(-len(octets) // MTU_BYTES) + answers
        return OutgoingPacket(
            self._key,
            octets,
            token is None,
            token,
            None if token is None else treatment,
            terms,
            connection=self._owner,
            overhead_bytes=segments * HEADER_BYTES,
        )
