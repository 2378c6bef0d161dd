"""The data plane whose queues are somewhere behind it: it sends at once, and learns from reports what became of that.

Each copy bears the mark of its class and waits in the queue of that class at its port. A queue counts what came, what
it had no room for and what left; it does not say which packets those were. Each report is apportioned, so that

* how many of a queue's packets have each outcome is what was counted; what others put into the same queue has a place
  among ours, evenly;
* what is still in a queue has no fate: a queue is first in, first out, and the last to have come are those that wait;
* which of those that came between two reports were dropped is drawn at random;
* when a packet left is known to lie between two reports: where the queue was empty at both it is taken to have left as
  it came, else packets are spread evenly over the time between;
* what was sent and never counted was lost before the queue (a link that is down): `lost_on_link`;
* what has no flow goes last and is not counted: it is delivered when the socket has taken it.

Nothing in such a queue can be replaced. So of packets with one key (`WaitingTerms.replaces`) there is one in a queue
that has a backlog, and the newest of the others waits here until that one has a fate.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from triagemq.datagrams import EXPIRED, SUPERSEDED, DatagramSender, Unsent
from triagemq.network.state import PlanState
from triagemq.plan.dataplane import (
    Counters,
    FlowCounters,
    FlowKey,
    Instruction,
    OnTransmitted,
    OutgoingPacket,
    PortCounters,
    QueueCounters,
    TransmitOutcome,
    Treatment,
)
from triagemq.trace import Outcome

UDP_HEADER_BYTES = 8

# A packet may be in transit to the queue while that is read.
_SLACK_NS = 50_000_000
# So long after a port has gone its last report must have come.
_UNHEARD_NS = 2_000_000_000
# Without reports it is unknown what became of them.
_MOST_UNREPORTED = 100_000
_FRAGMENT_BYTES = 1480
_UNSENT = {errno.EAGAIN: Outcome.in_flight, EXPIRED: Outcome.expired, SUPERSEDED: Outcome.superseded}

QueueKey = tuple[str, int]
"""A port, and a class of it."""


class _Sent(NamedTuple):
    """A PUBLISH that the socket has taken."""

    packet: OutgoingPacket
    sent_ns: int
    packets: int


class _Line:
    """One queue: what was sent and not counted yet, what is in the queue, and the last report."""

    __slots__ = ("before", "before_ns", "by_buffer", "came", "left", "queued", "sent")

    def __init__(self) -> None:
        self.sent: deque[_Sent] = deque()
        # None stands for a packet of another sender.
        self.queued: deque[_Sent | None] = deque()
        self.before: QueueCounters | None = None
        self.before_ns = 0
        # Packets that were reported and not apportioned yet: datagrams may have several.
        self.came = self.by_buffer = self.left = 0


class _Copies:
    """What has become of one client's copies."""

    __slots__ = ("dropped", "left", "sent")

    def __init__(self) -> None:
        self.sent = self.dropped = self.left = 0


class ReportedDataPlane:
    """A DataPlane and an Egress. `report` gets what the queues have counted, `settled_later` comes from the sender,
    which has to mark classes.

    A datagram has `overhead_bytes_per_packet` more in IP packets than it has here.
    """

    priority_classes: ClassVar[int] = 8

    def __init__(
        self,
        sender: DatagramSender,
        on_transmitted: OnTransmitted,
        *,
        clock: Callable[[], int],
        seed: int | None = None,
        overhead_bytes_per_packet: int = UDP_HEADER_BYTES,
    ) -> None:
        self._sender, self._on_transmitted, self._clock = sender, on_transmitted, clock
        self._overhead_bytes = overhead_bytes_per_packet
        self._random = random.Random(seed)
        self._state = PlanState(self.priority_classes, replicated=True)
        self._lines: dict[QueueKey, _Line] = {}
        self._ports: Mapping[str, PortCounters] = {}
        self._copies: dict[FlowKey, _Copies] = {}
        self._promised: Mapping[FlowKey, FlowCounters] = {}
        # By key: the last packet that was sent and has no fate, the newest that waits for that, and what may go now.
        self._queued: dict[Hashable, OutgoingPacket] = {}
        self._held: dict[Hashable, OutgoingPacket] = {}
        self._released: list[OutgoingPacket] = []
        self._closed = False

    def apply(self, instructions: Sequence[Instruction]) -> None:
        """Flows that are known here are counted here; their queues are elsewhere."""
        change = self._state.change(instructions)
        self._state.commit(change)
        for (key, _), flow in change.flows.items():
            if flow is None:
                self._copies.pop(key, None)

    def counters(self, *, with_flows: bool = True) -> Counters:
        """Of ports and what is promised as of the last report."""
        if not with_flows:
            return Counters(self._ports)
        flows = dict(self._promised)
        for key, copies in self._copies.items():
            flow_id = self._state.flows[key, ""].flow_id
            flows[key] = FlowCounters(flow_id, copies.sent, copies.dropped, copies.left, copies.left)
        return Counters(self._ports, flows)

    def send(self, packets: Sequence[OutgoingPacket]) -> None:
        now_ns = self._clock()
        control = [(_address(packet.key), packet.datagram) for packet in packets if packet.control]
        if control:
            self._sender.control(control)
        outcomes: list[TransmitOutcome] = []
        data = [
            packet
            for packet in packets
            if not packet.control and (packet.waiting is None or self._goes_now(packet, now_ns, outcomes))
        ]
        classes = [self._class_of(packet) for packet in data]
        if classes != sorted(classes):
            # An idle port begins with what comes first. The copies of one event come so; those of several do not.
            order = sorted(range(len(data)), key=classes.__getitem__)
            data, classes = [data[place] for place in order], sorted(classes)
        if data:
            unsent = self._sender(
                [(_address(packet.key), packet.datagram) for packet in data],
                classes.__getitem__,
                lambda place: data[place].waiting,
            )
            not_sent = {one.place: one for one in unsent}
            for place, packet in enumerate(data):
                one = not_sent.get(place)
                if one is not None and one.problem is None:
                    one.token = packet
                else:
                    self._taken(packet, 0 if one is None else one.problem, now_ns, outcomes)
        if outcomes:
            self._on_transmitted(outcomes)

    def reclassify(self, treatment_of: Callable[[object], Treatment | None]) -> None:
        """What waits for the socket leaves with the mark of a new plan, and is counted in the queue of that."""

        def class_of(one: Unsent) -> int:
            packet: OutgoingPacket = one.token
            if packet.token is not None:
                packet.treatment = treatment_of(packet.token)
            return self._class_of(packet)

        self._sender.rerank(class_of)
        for packet in self._held.values():
            packet.treatment = treatment_of(packet.token)

    def settled_later(self, some: Sequence[Unsent]) -> None:
        """What has become of datagrams that had to wait for room in the socket."""
        now_ns = self._clock()
        outcomes: list[TransmitOutcome] = []
        for one in some:
            self._taken(one.token, one.problem, now_ns, outcomes)
        if outcomes:
            self._on_transmitted(outcomes)

    def report(
        self,
        ports: Mapping[str, PortCounters],
        flows: Mapping[FlowKey, FlowCounters],
        at_ns: int,
    ) -> None:
        """What was counted at a moment: by all ports, and of all promised flows."""
        self._ports, self._promised = ports, flows
        outcomes: list[TransmitOutcome] = []
        for name, port in ports.items():
            for level, queue in enumerate(port.queues):
                line = self._lines.setdefault((name, level), _Line())
                self._apportion(line, queue, at_ns, outcomes)
        for queue_key, line in list(self._lines.items()):
            waits = bool(line.sent) and not line.queued and line.sent[-1].sent_ns >= at_ns - _UNHEARD_NS
            if queue_key[0] not in ports and not waits:
                # A port is gone when its last packet has left (plan/dataplane.py).
                self._forget(queue_key, at_ns, outcomes)
        if outcomes:
            self._on_transmitted(outcomes)
        if self._released:
            released, self._released = self._released, []
            self.send(released)

    def close(self) -> None:
        """What was not reported is in flight."""
        if self._closed:
            return
        self._closed = True
        outcomes: list[TransmitOutcome] = []
        for key in list(self._lines):
            self._forget(key, None, outcomes)
        for packet in (*self._held.values(), *self._released):
            _report(packet, Outcome.in_flight, None, None, outcomes)
        self._on_transmitted(outcomes)
        self._sender.close()

    def _goes_now(self, packet: OutgoingPacket, now_ns: int, outcomes: list[TransmitOutcome]) -> bool:
        """Whether a packet with terms is sent now, or waits here, or never is."""
        terms, flow = packet.waiting, self._state.flows.get((packet.key, ""))
        if terms is None or terms.expires_ns <= now_ns:
            _report(packet, Outcome.expired, None, None, outcomes)
            return False
        if flow is None or terms.replaces not in self._queued:
            return True
        line = self._lines.get((flow.port, self._class_of(packet)))
        if line is None or line.before is None or not line.before.backlog_packets:
            return True
        older = self._held.get(terms.replaces)
        self._held[terms.replaces] = packet
        if older is not None:
            _report(older, Outcome.superseded, None, None, outcomes)
        return False

    def _class_of(self, packet: OutgoingPacket) -> int:
        """The class of the queue for a packet; a packet without a flow has no class and no mark."""
        flow = self._state.flows.get((packet.key, ""))
        if flow is None:
            return self.priority_classes
        wanted = flow.priority_class if packet.treatment is None else packet.treatment.priority_class
        return min(wanted, self._state.ports[flow.port].classes - 1)

    def _taken(
        self, packet: OutgoingPacket, problem: int | None, now_ns: int, outcomes: list[TransmitOutcome]
    ) -> None:
        """The socket has taken a packet (0), or has not."""
        flow = self._state.flows.get((packet.key, ""))
        if problem:
            _report(packet, _UNSENT.get(problem, Outcome.lost_on_link), None, None, outcomes)
        elif flow is None:
            # It is not counted, and goes last.
            _report(packet, Outcome.delivered, None, None, outcomes)
        else:
            key = flow.port, self._class_of(packet)
            line = self._lines.setdefault(key, _Line())
            fragments = -(-(len(packet.datagram) + self._overhead_bytes) // _FRAGMENT_BYTES)
            self._copies.setdefault(packet.key, _Copies()).sent += 1
            line.sent.append(_Sent(packet, now_ns, fragments))
            if packet.waiting is not None and packet.waiting.replaces is not None:
                self._queued[packet.waiting.replaces] = packet
            if len(line.sent) > _MOST_UNREPORTED:
                self._settle(line.sent.popleft(), Outcome.in_flight, None, outcomes)

    def _apportion(
        self, line: _Line, now: QueueCounters, at_ns: int, outcomes: list[TransmitOutcome]
    ) -> None:
        before = line.before
        # Before its port is there, packets go by no queue.
        uncounted = Outcome.delivered if before is None else Outcome.lost_on_link
        if before is None or now.packets_in < before.packets_in:
            before = self._first_report(line, now, outcomes)
        line.came += now.packets_in - before.packets_in
        line.by_buffer += now.drops - before.drops
        line.left += now.packets_out - before.packets_out
        # What was sent before the queue was read and is not among those that came never did.
        missing = sum(one.packets for one in line.sent if one.sent_ns < at_ns - _SLACK_NS) - line.came
        while line.sent and missing >= line.sent[0].packets:
            missing -= line.sent[0].packets
            self._settle(line.sent.popleft(), uncounted, None, outcomes)
        came: list[_Sent] = []
        while line.sent and line.came >= line.sent[0].packets:
            came.append(line.sent.popleft())
            line.came -= came[-1].packets
        others = 0
        if not line.sent:
            others, line.came = line.came, 0
        self._drop(line, _mixed(came, others), outcomes)
        was_empty = before.backlog_packets == 0 == now.backlog_packets
        self._let_leave(line, at_ns, was_empty, outcomes)
        if now.backlog_packets == 0:
            # By the queue's own count nothing waits.
            for one in line.queued:
                self._settle(one, Outcome.lost_on_link, None, outcomes)
            line.queued.clear()
        line.before, line.before_ns = now, at_ns

    def _first_report(
        self, line: _Line, now: QueueCounters, outcomes: list[TransmitOutcome]
    ) -> QueueCounters:
        """What counts as the report before: nothing, unless the queues have counted for another before us."""
        for one in line.queued:
            self._settle(one, Outcome.in_flight, None, outcomes)
        line.queued.clear()
        line.came = line.by_buffer = line.left = 0
        sent = sum(one.packets for one in line.sent)
        if now.packets_in <= sent:
            return QueueCounters()
        # Of ours the last may be waiting, behind others'; what became of the first of them is unknown.
        waiting = now.backlog_packets
        line.queued.extend([None] * max(0, waiting - sent))
        while line.sent and sent > waiting:
            sent -= line.sent[0].packets
            self._settle(line.sent.popleft(), Outcome.in_flight, None, outcomes)
        line.queued.extend(line.sent)
        line.sent.clear()
        return now

    def _drop(self, line: _Line, came: Sequence[_Sent | None], outcomes: list[TransmitOutcome]) -> None:
        """Draw which of those that came were dropped; the others are in the queue."""
        dropped: set[int] = set()
        if line.by_buffer:
            order = list(range(len(came)))
            self._random.shuffle(order)
            for place in order:
                if line.by_buffer >= (packets := _packets(came[place])):
                    line.by_buffer -= packets
                    dropped.add(place)
        for place, one in enumerate(came):
            if place in dropped:
                self._settle(one, Outcome.dropped_by_buffer, None, outcomes)
            else:
                line.queued.append(one)
        # More than came: a queue lost what it held.
        while line.queued and line.by_buffer >= _packets(line.queued[0]):
            line.by_buffer -= _packets(line.queued[0])
            self._settle(line.queued.popleft(), Outcome.dropped_by_buffer, None, outcomes)

    def _let_leave(self, line: _Line, at_ns: int, was_empty: bool, outcomes: list[TransmitOutcome]) -> None:
        leaving: list[_Sent | None] = []
        while line.queued and line.left >= _packets(line.queued[0]):
            line.left -= _packets(line.queued[0])
            leaving.append(line.queued.popleft())
        if not line.queued:
            line.left = 0
        begin_ns = line.before_ns or at_ns
        for number, one in enumerate(leaving, 1):
            if one is not None:
                spread_ns = begin_ns + (at_ns - begin_ns) * number // len(leaving)
                left_ns = one.sent_ns if was_empty else max(one.sent_ns, spread_ns)
                self._settle(one, Outcome.delivered, left_ns, outcomes)

    def _forget(self, key: QueueKey, gone_ns: int | None, outcomes: list[TransmitOutcome]) -> None:
        """A queue is gone, and with it what waited; what was not reported is unknown."""
        line = self._lines.pop(key)
        for one in line.queued:
            self._settle(one, Outcome.in_flight if gone_ns is None else Outcome.delivered, gone_ns, outcomes)
        for one in line.sent:
            self._settle(one, Outcome.in_flight, None, outcomes)

    def _settle(
        self, one: _Sent | None, outcome: Outcome, left_ns: int | None, outcomes: list[TransmitOutcome]
    ) -> None:
        if one is None:
            return
        copies = self._copies.get(one.packet.key)
        if copies is not None:
            if outcome is Outcome.dropped_by_buffer:
                copies.dropped += 1
            else:
                copies.left += 1
        terms = one.packet.waiting
        if terms is not None and self._queued.get(terms.replaces) is one.packet:
            del self._queued[terms.replaces]
            if terms.replaces in self._held:
                self._released.append(self._held.pop(terms.replaces))
        _report(one.packet, outcome, one.sent_ns, left_ns, outcomes)


def _mixed(ours: Sequence[_Sent], others: int) -> Sequence[_Sent | None]:
    """Packets that came, with those of others evenly among them.

    >>> packets = [_Sent(OutgoingPacket(FlowKey("::1", 1), b"", False), 0, 1)] * 2
    >>> [one is None for one in _mixed(packets, 3)]
    [False, True, False, True, True]
    """
    if not others:
        return ours
    found: list[_Sent | None] = [] if ours else [None] * others
    given = 0
    for number, one in enumerate(ours, 1):
        due = others * number // len(ours)
        found += [one, *[None] * (due - given)]
        given = due
    return found


def _report(
    packet: OutgoingPacket,
    outcome: Outcome,
    came_ns: int | None,
    left_ns: int | None,
    outcomes: list[TransmitOutcome],
) -> None:
    if packet.token is not None:
        outcomes.append((packet.token, outcome, came_ns, left_ns))


def _packets(one: _Sent | None) -> int:
    return 1 if one is None else one.packets


def _address(key: FlowKey) -> tuple[str, int]:
    return key.address, key.udp_port
