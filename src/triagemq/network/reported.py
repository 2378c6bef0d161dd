"""The data plane whose queues are somewhere behind it: it sends at once, and learns from reports what became of that.

A kernel port counts, for each flow, what came, what it limited and dropped for lack of room, and what left;
nobody sees which packets those were. Each report is therefore apportioned, in such a way that

* how many of a flow's packets have each outcome is what was counted (where flows share a class, what the classifier's
  ledger gave to each: linux/accounting.py);
* what is still in a queue has no fate: a queue is first in, first out, and the last to have come are those that wait;
* which of those that came between two reports were dropped is drawn at random;
* when a packet left is known to lie between two reports: where the queue was empty at both it is taken to have left as
  it came, else packets are spread evenly over the time between;
* what was sent and never counted was lost before the queue (a link that is down): `lost_on_link`;
* what goes to nobody's flow, or is sent in the moment before the queues know of a flow, goes last and is counted for
  nobody: it is delivered when the socket has taken it.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from triagemq.datagrams import DatagramSender, Unsent
from triagemq.network.state import PlanState
from triagemq.plan import (
    Counters,
    Fate,
    FlowCounters,
    FlowKey,
    Instruction,
    OnFate,
    OutgoingPacket,
    PortCounters,
)
from triagemq.trace import Outcome

UDP_HEADER_BYTES = 8

# A packet may be on its way to the queue while that is read.
_SLACK_NS = 50_000_000
# So long after a flow has gone from here its last report must have come.
_UNHEARD_NS = 2_000_000_000
# Without reports nobody can say what became of them.
_MOST_UNREPORTED = 100_000
_FRAGMENT_BYTES = 1480


class _Sent(NamedTuple):
    """A PUBLISH that the socket has taken."""

    packet: OutgoingPacket
    sent_ns: int
    packets: int


class _Line:
    """One flow: what was sent and not counted yet, what is in the queue, and the last report."""

    __slots__ = (
        "before",
        "before_ns",
        "by_buffer",
        "came",
        "copies_out",
        "left",
        "limited",
        "queued",
        "sent",
    )

    def __init__(self) -> None:
        self.sent: deque[_Sent] = deque()
        # None stands for a packet of somebody else.
        self.queued: deque[_Sent | None] = deque()
        self.before: FlowCounters | None = None
        self.before_ns = 0
        # Packets that were reported and not apportioned yet: datagrams may have several.
        self.came = self.limited = self.by_buffer = self.left = 0
        self.copies_out = 0


class ReportedDataPlane:
    """A DataPlane and an Egress. `report` is told what the queues have counted, and `settled_later` by the sender.

    A datagram has `overhead_bytes_per_packet` more in IP packets than it has here.
    """

    priority_classes: ClassVar[int] = 8

    def __init__(
        self,
        sender: DatagramSender,
        on_fate: OnFate,
        *,
        clock: Callable[[], int],
        seed: int | None = None,
        closing: Callable[[], None] = lambda: None,
        overhead_bytes_per_packet: int = UDP_HEADER_BYTES,
    ) -> None:
        self._sender, self._on_fate, self._clock, self._closing = sender, on_fate, clock, closing
        self._overhead_bytes = overhead_bytes_per_packet
        self._random = random.Random(seed)
        self._state = PlanState(self.priority_classes, replicated=True)
        self._lines: dict[FlowKey, _Line] = {}
        self._ports: Mapping[str, PortCounters] = {}
        self._flows: dict[FlowKey, FlowCounters] = {}
        self._closed = False

    def apply(self, instructions: Sequence[Instruction]) -> None:
        """Flows that are known here are counted there; their queues and drops are somebody else's."""
        self._state.commit(self._state.change(instructions))

    def counters(self, *, with_flows: bool = True) -> Counters:
        """As of the last report."""
        return Counters(self._ports, dict(self._flows) if with_flows else {})

    def send(self, packets: Sequence[OutgoingPacket]) -> None:
        now_ns = self._clock()
        control = [(_address(packet.key), packet.datagram) for packet in packets if packet.control]
        if control:
            self._sender.control(control)
        fates: list[Fate] = []
        data = [packet for packet in packets if not packet.control]
        classes = [self._class_of(packet) for packet in data]
        if classes != sorted(classes):
            # An idle port begins with what comes first. The copies of one event come so; those of several do not.
            data = [data[place] for place in sorted(range(len(data)), key=classes.__getitem__)]
        if data:
            self._send(data, now_ns, fates)
        if fates:
            self._on_fate(fates)

    def settled_later(self, some: Sequence[Unsent]) -> None:
        """What has become of datagrams that had to wait for room in the socket."""
        now_ns = self._clock()
        fates: list[Fate] = []
        for one in some:
            self._taken(one.token, one.problem, now_ns, fates)
        if fates:
            self._on_fate(fates)

    def report(
        self,
        ports: Mapping[str, PortCounters],
        flows: Mapping[FlowKey, FlowCounters],
        gone: Iterable[FlowKey],
        at_ns: int,
    ) -> None:
        """What was counted at a moment: by all ports, of the flows that have changed, and which are gone."""
        self._ports = ports
        fates: list[Fate] = []
        gone = set(gone)
        for key, now in flows.items():
            line = self._lines.setdefault(key, _Line())
            self._apportion(line, now, at_ns, fates, leaves=key in gone)
            self._flows[key] = replace(now, copies_out=line.copies_out)
        for key in gone:
            self._flows.pop(key, None)
            self._forget(key, at_ns, fates)
        for key, line in list(self._lines.items()):
            if key not in flows and line.sent:
                if key in self._flows:
                    # Nothing has changed there: what was sent in the meantime was not counted.
                    self._apportion(line, self._flows[key], at_ns, fates)
                elif key not in self._state.flows and line.sent[-1].sent_ns < at_ns - _UNHEARD_NS:
                    # It came and went between two reports.
                    self._forget(key, None, fates)
        if fates:
            self._on_fate(fates)

    def close(self) -> None:
        """What nobody has reported on is in flight."""
        if self._closed:
            return
        self._closed = True
        fates: list[Fate] = []
        for key in list(self._lines):
            self._forget(key, None, fates)
        self._on_fate(fates)
        self._closing()

    def _send(self, packets: Sequence[OutgoingPacket], now_ns: int, fates: list[Fate]) -> None:
        unsent = self._sender(
            [(_address(packet.key), packet.datagram) for packet in packets],
            lambda place: self._class_of(packets[place]),
        )
        not_sent = {one.place: one for one in unsent}
        for place, packet in enumerate(packets):
            one = not_sent.get(place)
            if one is not None and one.problem is None:
                one.token = packet
            else:
                self._taken(packet, 0 if one is None else one.problem, now_ns, fates)

    def _class_of(self, packet: OutgoingPacket) -> int:
        flow = self._state.flows.get(packet.key)
        return self.priority_classes if flow is None else flow.priority_class

    def _taken(self, packet: OutgoingPacket, problem: int | None, now_ns: int, fates: list[Fate]) -> None:
        """The socket has taken a packet (0), or has not."""
        if problem:
            outcome = Outcome.in_flight if problem == errno.EAGAIN else Outcome.lost_on_link
            _report(packet, outcome, None, None, fates)
        elif packet.key not in self._state.flows:
            # Nobody counts for whom it is; it goes last.
            _report(packet, Outcome.delivered, None, None, fates)
        else:
            line = self._lines.get(packet.key)
            if line is None:
                line = self._lines[packet.key] = _Line()
            fragments = -(-(len(packet.datagram) + self._overhead_bytes) // _FRAGMENT_BYTES)
            line.sent.append(_Sent(packet, now_ns, fragments))
            if len(line.sent) > _MOST_UNREPORTED:
                _settle(line.sent.popleft(), Outcome.in_flight, None, fates)

    def _apportion(
        self, line: _Line, now: FlowCounters, at_ns: int, fates: list[Fate], *, leaves: bool = False
    ) -> None:
        before = line.before
        # Before its queue has a flow, its packets are of no flow there, either.
        uncounted = Outcome.delivered if before is None else Outcome.lost_on_link
        if before is None or now.packets_in < before.packets_in:
            before = self._first_report(line, now, fates)
        line.came += now.packets_in - before.packets_in
        line.limited += now.limited - before.limited
        line.by_buffer += now.dropped_by_buffer - before.dropped_by_buffer
        line.left += now.packets_out - before.packets_out
        # What was sent before the queue was read and is not among those that came never did.
        missing = sum(one.packets for one in line.sent if one.sent_ns < at_ns - _SLACK_NS) - line.came
        # Of a flow that leaves it is the last ones, sent when the queue had the flow no more: they are left over.
        while not leaves and line.sent and missing >= line.sent[0].packets:
            missing -= line.sent[0].packets
            _settle(line.sent.popleft(), uncounted, None, fates)
        came: list[_Sent] = []
        while line.sent and line.came >= line.sent[0].packets:
            came.append(line.sent.popleft())
            line.came -= came[-1].packets
        if not line.sent:
            line.came = 0
        self._drop(line, came, fates)
        was_empty = before.backlog_packets == 0 == now.backlog_packets
        self._let_leave(line, at_ns, was_empty, fates)
        if now.backlog_packets == 0:
            # By the queue's own count nothing waits.
            for one in line.queued:
                _settle(one, Outcome.lost_on_link, None, fates)
            line.queued.clear()
        line.before, line.before_ns = now, at_ns

    def _first_report(self, line: _Line, now: FlowCounters, fates: list[Fate]) -> FlowCounters:
        """What counts as the report before: nothing, unless the queues have counted for another before us."""
        for one in line.queued:
            _settle(one, Outcome.in_flight, None, fates)
        line.queued.clear()
        line.came = line.limited = line.by_buffer = line.left = 0
        sent = sum(one.packets for one in line.sent)
        if now.packets_in <= sent:
            return FlowCounters(now.flow_id)
        # Of ours the last may be waiting, behind others'; what became of the first of them nobody knows.
        waiting = now.backlog_packets
        line.queued.extend([None] * max(0, waiting - sent))
        while line.sent and sent > waiting:
            sent -= line.sent[0].packets
            _settle(line.sent.popleft(), Outcome.in_flight, None, fates)
        line.queued.extend(line.sent)
        line.sent.clear()
        return now

    def _drop(self, line: _Line, came: Sequence[_Sent], fates: list[Fate]) -> None:
        """Draw which of those that came were dropped; the others are in the queue."""
        outcomes: dict[int, Outcome] = {}
        order = list(range(len(came)))
        if line.limited or line.by_buffer:
            self._random.shuffle(order)
        for place in order:
            one = came[place]
            if line.limited >= one.packets:
                line.limited -= one.packets
                outcomes[place] = Outcome.limited
            elif line.by_buffer >= one.packets:
                line.by_buffer -= one.packets
                outcomes[place] = Outcome.dropped_by_buffer
        for place, one in enumerate(came):
            if place in outcomes:
                _settle(one, outcomes[place], None, fates)
            else:
                line.queued.append(one)
        # More than came: a queue lost what it held.
        while line.queued and line.by_buffer >= _packets(line.queued[0]):
            line.by_buffer -= _packets(line.queued[0])
            _settle(line.queued.popleft(), Outcome.dropped_by_buffer, None, fates)

    def _let_leave(self, line: _Line, at_ns: int, was_empty: bool, fates: list[Fate]) -> None:
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
                _settle(one, Outcome.delivered, left_ns, fates)
                line.copies_out += 1

    def _forget(self, key: FlowKey, gone_ns: int | None, fates: list[Fate]) -> None:
        """A flow is gone when its last packet has left (plan/dataplane.py); of what was not reported nobody knows."""
        line = self._lines.pop(key, None)
        if line is not None:
            for one in line.queued:
                _settle(one, Outcome.in_flight if gone_ns is None else Outcome.delivered, gone_ns, fates)
            for one in line.sent:
                _settle(one, Outcome.in_flight, None, fates)


def _settle(one: _Sent | None, outcome: Outcome, left_ns: int | None, fates: list[Fate]) -> None:
    if one is not None:
        _report(one.packet, outcome, one.sent_ns, left_ns, fates)


def _report(
    packet: OutgoingPacket, outcome: Outcome, came_ns: int | None, left_ns: int | None, fates: list[Fate]
) -> None:
    if packet.token is not None:
        fates.append((packet.token, outcome, came_ns, left_ns))


def _packets(one: _Sent | None) -> int:
    return 1 if one is None else one.packets


def _address(key: FlowKey) -> tuple[str, int]:
    return key.address, key.udp_port
