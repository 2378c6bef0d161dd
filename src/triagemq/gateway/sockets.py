"""The gateway's UDP sockets: where it listens, what it receives, and how datagrams leave.

They leave from the socket, or through a data plane in the same process.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from triagemq.datagrams import EXPIRED, SUPERSEDED, AddressList, DatagramSender, Seal, Unsent
from triagemq.errors import GatewayError
from triagemq.gateway.core.broker_link import GatewayCore
from triagemq.gateway.core.delivery import transmitted
from triagemq.gateway.core.messages import Delivery
from triagemq.gateway.core.sessions import Copy, Group
from triagemq.gateway.core.state import SendControl, SendMany, SendPublish
from triagemq.plan.dataplane import NEVER_NS, FlowKey, OutgoingPacket, Treatment, WaitingTerms
from triagemq.trace.schema import Outcome

if TYPE_CHECKING:
    from triagemq.plan.dataplane import Egress, OnTransmitted, TransmitOutcome

_SOCKET_BUFFER_BYTES = 8 << 20
# What waits in queues of this machine counts against its sender: room for all that the queues of a port may hold (nine
# of 16,384 packets), so that their limits decide what has to go, and a starved class never stops an urgent one.
_SEND_BUFFER_BYTES = 256 << 20
# Linux's SO_SNDBUFFORCE and SO_RCVBUFFORCE, which Python does not name; elsewhere these numbers are refused.
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_DATAGRAMS_AT_ONCE = 256
_LARGEST_DATAGRAM = 65_535


def bind_udp(host: str, port: int, given_by: str = "--listen") -> socket.socket:
    """A socket that never blocks, with all the room the system gives; GatewayError if the address is not to be had.

    `given_by` is the option that says it.
    """
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setblocking(False)
        for option, forced, forced_bytes in (
            (socket.SO_RCVBUF, _RCVBUFFORCE, _SOCKET_BUFFER_BYTES),
            (socket.SO_SNDBUF, _SNDBUFFORCE, _SEND_BUFFER_BYTES),
        ):
            bound.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
            # Only root has more than a share of that.
            with contextlib.suppress(OSError):
                bound.setsockopt(socket.SOL_SOCKET, forced, forced_bytes)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise GatewayError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another {given_by} HOST:PORT"
        ) from error
    return bound


def received(udp_socket: socket.socket) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Datagrams that are there now, with their sender; not without end, for others want the event loop, too."""
    receive = udp_socket.recvfrom
    for _ in range(_DATAGRAMS_AT_ONCE):
        try:
            datagram, address = receive(_LARGEST_DATAGRAM)
        except OSError:
            # None left, or an error of an earlier datagram that is reported here; the socket itself is well.
            return
        # IPv6 addresses come with more than host and port.
        yield (address if len(address) == 2 else address[:2]), datagram


class SocketPlane:
    """An Egress without queues of its own: packets leave by the gateway's socket, in their order.

    What the socket cannot take waits in the sender, control first, then by class.
    """

    def __init__(
        self,
        udp_socket: socket.socket,
        on_transmitted: OnTransmitted,
        *,
        most_waiting: int = 100_000,
        seal: Seal | None = None,
        marks_classes: bool = False,
    ) -> None:
        self._on_transmitted = on_transmitted
        self._socket = udp_socket
        # Datagrams that are encrypted for each client cannot go to all as one.
        self._as_one = seal is None
        self._marks_classes = marks_classes
        self._sender = DatagramSender(
            udp_socket,
            most_waiting=most_waiting,
            on_settled=self._settled_later,
            seal=seal,
            marks_classes=marks_classes,
        )

    def send(self, packets: Sequence[OutgoingPacket]) -> None:
        """Take packets, control first; never blocks."""
        control = [packet for packet in packets if packet.control]
        if control:
            self._sender.control(_addressed(control))
            packets = [packet for packet in packets if not packet.control]
        if packets:
            self._send_data(packets)

    def _send_data(self, packets: Sequence[OutgoingPacket]) -> None:
        def class_of(place: int) -> int:
            treatment = packets[place].treatment
            return 0 if treatment is None else treatment.priority_class

        unsent = self._sender(_addressed(packets), class_of, lambda place: packets[place].waiting)
        outcomes = [(packet.token, Outcome.delivered, None, None) for packet in packets]
        for one in reversed(unsent):
            token, *_ = outcomes.pop(one.place) if one.problem is None else outcomes[one.place]
            if one.problem is None:
                one.token = token
            else:
                outcomes[one.place] = token, _outcome(one.problem), None, None
        self._on_transmitted(outcomes)

    def reclassify(self, treatment_of: Callable[[object], Treatment | None]) -> None:
        """Put what waits for the socket where a new plan wants it, by what packets have for a token."""

        def class_of(one: Unsent) -> int:
            treatment = treatment_of(one.token)
            return one.priority_class if treatment is None else treatment.priority_class

        self._sender.rerank(class_of)

    def send_to_all(self, group: Group, datagram: bytes, treatments: Sequence[Treatment]) -> int:
        """One system call for a group; how many of its members, from the first on, it has been sent to."""
        is_new = len(group.members) == 1 and group.keys is None
        if is_new or not self._as_one or self._sender.waiting:
            # What is laid out in memory for one recipient pays from the second message on.
            return 0
        if group.addresses is None:
            classes = [treatment.priority_class for treatment in treatments] if self._marks_classes else ()
            endpoints = [session.endpoint[:2] for session, _ in group.members]
            group.addresses = AddressList(self._socket.family, endpoints, classes)
        sent, _ = group.addresses.send(self._socket.fileno(), datagram)
        return sent

    def close(self) -> None:
        """What still waits is in flight for ever."""
        self._sender.close()

    def _settled_later(self, some: Sequence[Unsent]) -> None:
        self._on_transmitted([(one.token, _outcome(one.problem or 0), None, None) for one in some])


def _addressed(packets: Iterable[OutgoingPacket]) -> list[tuple[tuple[str, int], bytes]]:
    return [((packet.key.address, packet.key.udp_port), packet.datagram) for packet in packets]


_OUTCOMES = {
    0: Outcome.delivered,
    errno.ENOBUFS: Outcome.dropped_by_buffer,
    errno.EAGAIN: Outcome.in_flight,
    EXPIRED: Outcome.expired,
    SUPERSEDED: Outcome.superseded,
}


def _outcome(problem: int) -> Outcome:
    """What the Trace says of a datagram that the kernel has taken (0), or has not."""
    return _OUTCOMES.get(problem, Outcome.lost_on_link)


def settle_copy(
    core: GatewayCore,
    copy: Copy,
    outcome: Outcome,
    times: tuple[int, int] = (-1, -1),
    flow: tuple[int, int] | None = None,
) -> None:
    """A QoS 0 copy that belongs to no Delivery; one is made only for the Trace."""
    delivered = outcome is Outcome.delivered
    core.counters.sent += delivered
    delivery = None
    if core.observer is not None and (times != (-1, -1) or flow is not None):
        _, subscription, publication = copy
        delivery = Delivery(0, publication, subscription, 0, False, -1, flow=flow)
        delivery.enqueued_ns, delivery.dequeued_ns = times
    core.settle(copy, outcome, "" if delivered else "output port", delivery)


class StreamToken(ABC):
    """The token of a packet that leaves by a connection of its own."""

    __slots__ = ()

    @abstractmethod
    def settled(self, outcome: Outcome, enqueued_ns: int, dequeued_ns: int) -> None:
        """Its port has sent it, or has not; -1 where a time is not known."""

    @abstractmethod
    def treatment(self) -> Treatment:
        """By the plan of now."""


class Sender:
    """Through a data plane, which may pace and rank; `settled` is the OnFate that it has to be given."""

    def __init__(self, core: GatewayCore) -> None:
        self._core = core
        self._packets: list[OutgoingPacket] = []
        self._plane: Egress | None = None

    def attach(self, plane: Egress) -> None:
        """Send through this data plane from now on."""
        self._plane = plane

    def control(self, action: SendControl) -> None:
        """Marked as control: passes first, is never dropped."""
        endpoint, datagram, _ = action
        self._packets.append(OutgoingPacket(FlowKey(endpoint[0], endpoint[1]), datagram, True))

    def publish(self, action: SendPublish) -> None:
        """To one client."""
        session, delivery, datagram = action
        key = FlowKey(session.endpoint[0], session.endpoint[1])
        treatment = self._core.settings.policy.treatment(session.client_id, delivery.publication.topic)
        delivery.flow = treatment.flow_id, treatment.priority_class
        waiting = None
        if delivery.newest_only or delivery.expires_ns != NEVER_NS:
            # What has been sent before is not taken back.
            is_replaceable = delivery.newest_only and delivery.attempts == 1
            replaces = (session.client_id, delivery.publication.topic) if is_replaceable else None
            waiting = WaitingTerms(replaces, delivery.expires_ns)
        self._packets.append(OutgoingPacket(key, datagram, False, (session, delivery), treatment, waiting))

    def publish_many(self, action: SendMany) -> None:
        """To a group: as one datagram where there are no queues, and else each with an outcome of its own."""
        group, publication, datagram, places = action
        core, members, begin = self._core, group.members, 0
        treatments = core.treatments(group, publication.topic)
        if places is None and isinstance(self._plane, SocketPlane):
            self.flush()
            begin = self._plane.send_to_all(group, datagram, treatments)
            if begin == len(members):
                core.counters.sent += begin
                core.counters.delivered += begin
                if core.observer is not None:
                    core.observer.fanned_out(group, publication, core.now_ns)
                return
            for member in members[:begin]:
                settle_copy(core, (*member, publication), Outcome.delivered)
        if group.keys is None:
            group.keys = [FlowKey(session.endpoint[0], session.endpoint[1]) for session, _ in members]
        expires_ns = publication.expires_ns
        waiting = None if expires_ns == NEVER_NS else WaitingTerms(None, expires_ns)
        for place in range(begin, len(members)) if places is None else places:
            member, treatment = members[place], treatments[place]
            token = (*member, publication), (treatment.flow_id, treatment.priority_class)
            self._packets.append(
                OutgoingPacket(group.keys[place], datagram, False, token, treatment, waiting)
            )

    def rerank(self) -> None:
        """Have the data plane put what waits where the new plan wants it."""
        if self._plane is not None:
            self._plane.reclassify(self._treatment_now)

    def _treatment_now(self, token: object) -> Treatment | None:
        """How a packet that still waits is to be treated by the orders of now."""
        if not isinstance(token, tuple):
            assert isinstance(token, StreamToken)
            return token.treatment()
        first, second = token
        if not isinstance(second, Delivery):
            session, _, publication = first
            return self._core.settings.policy.treatment(session.client_id, publication.topic)
        treatment = self._core.settings.policy.treatment(first.client_id, second.publication.topic)
        second.flow = treatment.flow_id, treatment.priority_class
        second.priority_class = treatment.priority_class
        return treatment

    def flush(self) -> None:
        """Hand everything over at once."""
        if self._packets and self._plane is not None:
            packets, self._packets = self._packets, []
            self._plane.send(packets)

    def close(self) -> None:
        """The data plane ends with the gateway: what it still holds is in flight, and says so now."""
        close = getattr(self._plane, "close", None)
        if close is not None:
            close()

    def settled(self, outcomes: Sequence[TransmitOutcome]) -> None:
        """What the data plane did with some packets."""
        core = self._core
        for token, outcome, enqueued_ns, dequeued_ns in outcomes:
            times = (-1 if enqueued_ns is None else enqueued_ns, -1 if dequeued_ns is None else dequeued_ns)
            if not isinstance(token, tuple):
                assert isinstance(token, StreamToken)
                token.settled(outcome, *times)
                continue
            first, second = token
            if isinstance(second, Delivery):
                transmitted(core, first, second, outcome, *times)
            else:
                settle_copy(core, first, outcome, times, second)
