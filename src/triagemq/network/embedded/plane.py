"""The embedded data plane: paced strict-priority output ports inside the gateway's process, without privileges.

A packet leaves at the end of its transmission, so that a latency measured at the subscriber holds it. On a wake-up
everything leaves whose transmission has ended by then, in one batch; the ports' own time does not depend on when
that was (see output_port.py), so that a late wake-up delays packets and never lowers the bandwidth. The packets of one
call come to their ports at the same moment: an idle port starts with the highest class among them. A packet counts as
come when it is handed over.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import heapq
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol

from triagemq.clock import unix_clock
from triagemq.datagrams import Datagrams, Unsent
from triagemq.errors import PlanError
from triagemq.network.embedded.output_port import (
    NEVER,
    PRIORITY_CLASSES,
    Dropped,
    Flow,
    OutputPort,
    Queued,
)
from triagemq.network.embedded.queue_rates import Port, kind_of, new_port
from triagemq.network.state import PlanState
from triagemq.plan.dataplane import (
    Counters,
    FlowKey,
    Instruction,
    OnTransmitted,
    OutgoingPacket,
    SetFlow,
    SetPort,
    TransmitOutcome,
    Treatment,
    UnmanagedCounters,
)
from triagemq.trace import Outcome

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOSE_ON_EXEC = 0o4000 | 0o2000000
_EARLIER_NS = 25_000


class Alarm(Protocol):
    """Calls the callback it was made with; one time at most is set."""

    def set(self, delay_ns: int) -> None:
        """Ring once in `delay_ns` from now instead of at the time set before; 0 or less is as soon as possible."""

    def close(self) -> None:
        """Never ring again."""


class _Seconds(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSetting(ctypes.Structure):
    _fields_ = (("interval", _Seconds), ("value", _Seconds))


class TimerAlarm:
    """A timer descriptor in the set of readers of the running event loop."""

    def __init__(self, callback: Callable[[], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._settime = library.timerfd_settime
        self._loop, self._callback = asyncio.get_running_loop(), callback
        self._rings_ns = 0
        self._setting = _TimerSetting()
        self._value = self._setting.value
        self._pointer = ctypes.byref(self._setting)
        self._descriptor: int = library.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOSE_ON_EXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop.add_reader(self._descriptor, self._ring)

    def set(self, delay_ns: int) -> None:
        self._rings_ns = time.monotonic_ns() + delay_ns
        # A setting of 0 would stop the timer.
        self._value.seconds, self._value.nanoseconds = divmod(max(delay_ns - _EARLIER_NS, 1), 1_000_000_000)
        if self._settime(self._descriptor, 0, self._pointer, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _ring(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # Set anew between the wake-up and now.
            return
        while time.monotonic_ns() < self._rings_ns:
            pass
        self._callback()


class SendDatagrams(Protocol):
    """Sends datagrams in the given order and never blocks; returns those that it could not send at once, if any.

    `class_of` gives the priority class of the one at a place of the list.
    """

    def __call__(
        self, datagrams: Datagrams, class_of: Callable[[int], int], /
    ) -> Sequence[Unsent] | None: ...


UDP_OVER_ETHERNET_BYTES = 20 + 8 + 14
"""What IPv4, UDP and Ethernet add to a datagram on the wire."""

# Wake-ups cost some 20 microseconds each: on a fast port several packets share one.
_WAKE_UPS_APART_NS = 200_000


class EmbeddedDataPlane:
    """A DataPlane and an Egress. Made and used inside one running event loop, unless `alarm` says otherwise.

    `clock` gives nanoseconds and never goes back; hand in the one that stamps the rest of the trace. A datagram
    takes `overhead_bytes_per_packet` more on the wire than it has, so that its size is the scenario's. `alarm` makes
    the Alarm that calls back; tests put virtual time there. `control_sender` takes the control packets, where they are
    to leave with a mark, before all others of the moment. What a sender returns as waiting it must report to
    `settled_later` in the end; `closing` is called last, to make it do so.
    """

    priority_classes: ClassVar[int] = PRIORITY_CLASSES

    def __init__(
        self,
        sender: SendDatagrams,
        on_transmitted: OnTransmitted | None = None,
        *,
        clock: Callable[[], int] | None = None,
        alarm: Callable[[Callable[[], None]], Alarm] = TimerAlarm,
        control_sender: Callable[[Datagrams], object] | None = None,
        closing: Callable[[], None] = lambda: None,
        overhead_bytes_per_packet: int = UDP_OVER_ETHERNET_BYTES,
        wake_ups_apart_ns: int = _WAKE_UPS_APART_NS,
    ) -> None:
        self._sender, self._on_transmitted = sender, on_transmitted
        self._control_sender, self._closing = control_sender, closing
        self._clock = unix_clock() if clock is None else clock
        self._overhead_bytes = overhead_bytes_per_packet
        self._wake_ups_apart_ns = wake_ups_apart_ns
        self._state = PlanState(PRIORITY_CLASSES)
        self._ports: dict[str, Port] = {}
        self._flows: dict[FlowKey, Flow] = {}
        # Removed, but with packets that are still to be sent.
        self._draining_ports: dict[str, Port] = {}
        self._unmanaged_packets = self._unmanaged_control_packets = self._unmanaged_bytes = 0
        # One entry per busy port, with a time at or before the end of its transmission. The number breaks ties.
        self._due: list[tuple[int, int, OutputPort]] = []
        self._entries = 0
        self._woken_ns = -(1 << 62)
        self._wake_ns = NEVER
        # Some packets leave by connections.
        self._has_connections = False
        self._closed = False
        self._alarm = alarm(self._wake)

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self._require_open()
        change = self._state.change(instructions)
        self._check_kinds(change.ports.values())
        # What ended before now did so under the old plan.
        now_ns = self._clock()
        sent, dropped = self._finish(now_ns)
        for set_port in change.ports.values():
            if set_port is not None:
                self._set_port(set_port)
        for (key, _), set_flow in change.flows.items():
            if set_flow is not None:
                self._set_flow(set_flow)
            else:
                self._flows.pop(key, None)
        for name, set_port in change.ports.items():
            if set_port is None and name in self._ports:
                port = self._ports.pop(name)
                if port.ends_ns != NEVER:
                    self._draining_ports[name] = port
        self._state.commit(change)
        self._hand_over(sent, dropped, [], now_ns)

    def send(self, packets: Sequence[OutgoingPacket]) -> None:
        self._require_open()
        now_ns = self._clock()
        flows, overhead_bytes = self._flows, self._overhead_bytes
        sent: list[Queued] = []
        dropped: Dropped = []
        outcomes: list[TransmitOutcome] = []
        unmanaged: list[OutgoingPacket] = []
        # They all come at this moment: a port that was idle starts with the highest class, whichever is seen first.
        idle: dict[OutputPort, None] = {}
        for packet in packets:
            flow = flows.get(packet.key)
            if flow is None:
                unmanaged.append(packet)
                continue
            port, worth = flow.port, 0.0
            if packet.connection is None:
                wire_bytes = len(packet.datagram) + overhead_bytes
            else:
                wire_bytes = len(packet.datagram) + packet.overhead_bytes
                self._has_connections = True
            if packet.control:
                queue = 0
            else:
                flow.packets_in += 1
                treatment = packet.treatment
                queue = flow.queue
                if treatment is not None:
                    priority_class, worth = treatment.priority_class, treatment.worth
                    if priority_class + 1 != queue:
                        queue, port = priority_class + 1, flow.whole_port.part(priority_class)
            if port.ends_ns <= now_ns:
                port.finish(now_ns, sent, dropped)
            if port.ends_ns == NEVER:
                idle[port] = None
            port.arrive(Queued(packet, flow, queue, wire_bytes, now_ns, worth), dropped)
        self._start(idle, now_ns, sent, dropped)
        if unmanaged:
            self._pass_unmanaged(unmanaged, outcomes)
        self._hand_over(sent, dropped, outcomes, now_ns)

    def reclassify(self, treatment_of: Callable[[object], Treatment | None]) -> None:
        """Put what waits where a new plan wants it, by what packets have for a token.

        Queues with queue rates have buffers of their own: a packet for a full one stays where it is.
        """
        now_ns = self._clock()
        sent, dropped = self._finish(now_ns)
        for port in self._ports.values():
            port.reclassify(
                lambda queued: None if queued.packet.token is None else treatment_of(queued.packet.token)
            )
            self._start(port.parts, now_ns, sent, dropped)
        self._hand_over(sent, dropped, [], now_ns)

    def _start(self, ports: Iterable[OutputPort], now_ns: int, sent: list[Queued], dropped: Dropped) -> None:
        """Let idle ports send what has come to them."""
        for port in ports:
            port.start(now_ns, sent, dropped)
            if not port.scheduled and port.ends_ns != NEVER:
                port.scheduled = True
                self._schedule(port)

    def counters(self, *, with_flows: bool = True) -> Counters:
        """What has been counted until now; ports alone are quicker than tens of thousands of flows."""
        if not self._closed:
            # Wake-ups come later than transmissions end; what has ended does not keep its port busy.
            self._wake()
        return Counters(
            ports={
                name: port.counters()
                for ports in (self._ports, self._draining_ports)
                for name, port in ports.items()
            },
            flows={key: flow.counters() for key, flow in self._flows.items()} if with_flows else {},
            unmanaged=UnmanagedCounters(
                self._unmanaged_packets, self._unmanaged_control_packets, self._unmanaged_bytes
            ),
        )

    def close(self) -> None:
        """Stop pacing: control packets that wait are sent at once, the others end as `in_flight`."""
        if self._closed:
            return
        now_ns = self._clock()
        sent, dropped = self._finish(now_ns)
        self._closed = True
        self._alarm.close()
        outcomes: list[TransmitOutcome] = []
        for port in (*self._ports.values(), *self._draining_ports.values()):
            for queued in port.empty():
                if queued.packet.control:
                    sent.append(queued)
                elif queued.packet.token is not None:
                    outcomes.append((queued.packet.token, Outcome.in_flight, queued.enqueued_ns, None))
        self._due.clear()
        self._hand_over(sent, dropped, outcomes, now_ns)
        self._closing()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("this data plane has been closed")

    def _check_kinds(self, ports: Iterable[SetPort | None]) -> None:
        """What is left in a port that was removed cannot move to another kind of port."""
        for settings in ports:
            name = settings.port if settings is not None else ""
            port = self._draining_ports.get(name)
            if settings is not None and port is not None and type(port) is not kind_of(settings):
                raise PlanError(
                    f"port {name!r} was removed and still sends; only then can its queues have another discipline"
                )

    def _set_port(self, settings: SetPort) -> None:
        port = self._ports.get(settings.port) or self._draining_ports.pop(settings.port, None)
        if port is None:
            port = new_port(settings)
        else:
            port.configure(settings)
        self._ports[settings.port] = port

    def _set_flow(self, settings: SetFlow[FlowKey]) -> None:
        key = settings.key
        flow = self._flows.get(key) or Flow(key)
        flow.configure(settings, self._ports[settings.port])
        self._flows[key] = flow

    def _pass_unmanaged(self, packets: Sequence[OutgoingPacket], outcomes: list[TransmitOutcome]) -> None:
        marked = []
        for packet in packets:
            self._unmanaged_packets += 1
            own = packet.connection is not None
            self._unmanaged_bytes += len(packet.datagram) + (
                packet.overhead_bytes if own else self._overhead_bytes
            )
            if packet.connection is not None:
                packet.connection.transmit(packet)
                self._unmanaged_control_packets += packet.control
                if packet.token is not None and not packet.control:
                    outcomes.append((packet.token, Outcome.delivered, None, None))
            elif packet.control:
                self._unmanaged_control_packets += 1
                if self._control_sender is not None:
                    marked.append(packet)
        if marked:
            assert self._control_sender is not None
            self._control_sender([(_address(packet.key), packet.datagram) for packet in marked])
            packets = [packet for packet in packets if not packet.control]
        packets = [packet for packet in packets if packet.connection is None]
        if not packets:
            return
        # They have no class: after everything that has one.
        unsent = self._sender(
            [(_address(packet.key), packet.datagram) for packet in packets], lambda place: PRIORITY_CLASSES
        )
        not_sent = {one.place: one for one in unsent or ()}
        for place, packet in enumerate(packets):
            if packet.token is not None and not packet.control:
                self._report(packet.token, not_sent.get(place), None, None, outcomes)

    def _report(
        self,
        token: object,
        unsent: Unsent | None,
        enqueued_ns: int | None,
        dequeued_ns: int | None,
        outcomes: list[TransmitOutcome],
    ) -> None:
        """The fate of a packet that has left its port, now or as soon as it has left the socket."""
        if unsent is None:
            outcomes.append((token, Outcome.delivered, enqueued_ns, dequeued_ns))
        elif unsent.problem is None:
            unsent.token = (token, enqueued_ns, dequeued_ns)
        else:
            outcomes.append((token, Outcome.lost_on_link, enqueued_ns, dequeued_ns))

    def settled_later(self, some: Sequence[Unsent]) -> None:
        """What has become of datagrams that had to wait for room in a socket."""
        now_ns = self._clock()
        outcomes: list[TransmitOutcome] = []
        for one in some:
            token, enqueued_ns, dequeued_ns = one.token
            if one.problem == 0:
                outcomes.append(
                    (token, Outcome.delivered, enqueued_ns, None if dequeued_ns is None else now_ns)
                )
            elif one.problem == errno.EAGAIN:
                outcomes.append((token, Outcome.in_flight, enqueued_ns, None))
            else:
                outcomes.append((token, Outcome.lost_on_link, enqueued_ns, dequeued_ns))
        if self._on_transmitted is not None:
            self._on_transmitted(outcomes)

    def _send(self, sent: list[Queued]) -> Sequence[Unsent]:
        """Control first, where it has a sender of its own; what could not be sent has its place among `sent`."""
        places: Sequence[int] = range(len(sent))
        if self._has_connections:
            for queued in sent:
                if queued.packet.connection is not None:
                    queued.packet.connection.transmit(queued.packet)
            places = [place for place in places if sent[place].packet.connection is None]
        if self._control_sender is not None:
            control = [
                (sent[place].flow.address, sent[place].packet.datagram)
                for place in places
                if sent[place].packet.control
            ]
            if control:
                self._control_sender(control)
                places = [place for place in places if not sent[place].packet.control]
        if not places:
            return ()
        if len(places) < len(sent):
            sent = [sent[place] for place in places]
        unsent = self._sender(
            [(queued.flow.address, queued.packet.datagram) for queued in sent],
            lambda place: sent[place].queue - 1,
        )
        for one in unsent or ():
            one.place = places[one.place]
        return unsent or ()

    def _schedule(self, port: OutputPort) -> None:
        self._entries += 1
        heapq.heappush(self._due, (port.ends_ns, self._entries, port))

    def _set_alarm(self) -> None:
        if self._due:
            wake_ns = max(self._due[0][0], self._woken_ns + self._wake_ups_apart_ns)
            # An alarm that rings early is harmless; setting it for every packet would not be.
            if wake_ns < self._wake_ns:
                self._wake_ns = wake_ns
                self._alarm.set(wake_ns - self._clock())

    def _wake(self) -> None:
        now_ns = self._woken_ns = self._clock()
        self._wake_ns = NEVER
        self._hand_over(*self._finish(now_ns), [], now_ns)

    def _finish(self, now_ns: int) -> tuple[list[Queued], Dropped]:
        """Everything whose transmission has ended by now, port by port; and what had expired when its turn came."""
        sent: list[Queued] = []
        dropped: Dropped = []
        due = self._due
        while due and due[0][0] <= now_ns:
            _, number, port = due[0]
            if port.ends_ns <= now_ns:
                port.finish(now_ns, sent, dropped)
            if port.ends_ns != NEVER:
                heapq.heapreplace(due, (port.ends_ns, number, port))
            else:
                heapq.heappop(due)
                port.scheduled = False
                draining = self._draining_ports.get(port.name)
                if draining is not None and draining.ends_ns == NEVER:
                    del self._draining_ports[port.name]
        return sent, dropped

    def _hand_over(
        self, sent: list[Queued], dropped: Dropped, outcomes: list[TransmitOutcome], now_ns: int
    ) -> None:
        """Send, count and report. Last in every call: the receiver of a fate may call `send` again."""
        unsent: Sequence[Unsent] = ()
        try:
            if sent:
                unsent = self._send(sent)
        finally:
            self._set_alarm()
        for (packet, flow, _, _, enqueued_ns, _), outcome in dropped:
            flow.dropped_by_buffer += 1
            if packet.token is not None:
                outcomes.append((packet.token, outcome, enqueued_ns, None))
        not_sent = {one.place: one for one in unsent}
        for place, (packet, flow, _, _, enqueued_ns, _) in enumerate(sent):
            if not packet.control:
                flow.packets_out += 1
                if packet.token is not None:
                    if not not_sent:
                        outcomes.append((packet.token, Outcome.delivered, enqueued_ns, now_ns))
                    else:
                        self._report(packet.token, not_sent.get(place), enqueued_ns, now_ns, outcomes)
        if outcomes and self._on_transmitted is not None:
            self._on_transmitted(outcomes)


def _address(key: FlowKey) -> tuple[str, int]:
    return key.address, key.udp_port
