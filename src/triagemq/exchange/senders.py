"""How datagrams leave the gateway: from its socket, or through a data plane in the same process."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from triagemq.datagrams import AddressList, Datagrams, DatagramSender, Seal, Unsent
from triagemq.exchange.gateway.core import GatewayCore, SendControl, SendMany, SendPublish
from triagemq.exchange.gateway.delivery import transmitted
from triagemq.exchange.gateway.messages import Delivery, Publication, Subscription
from triagemq.exchange.gateway.sessions import Group, Session
from triagemq.plan import FlowKey, OutgoingPacket, Treatment
from triagemq.trace.schema import Outcome

if TYPE_CHECKING:
    from triagemq.plan import Egress, Fate


class Sender(Protocol):
    """Sends what the core wants sent, and tells it what became of it."""

    def control(self, action: SendControl) -> None:
        """Send anything but a PUBLISH."""

    def publish(self, action: SendPublish) -> None:
        """Send a PUBLISH to one client."""

    def publish_many(self, action: SendMany) -> None:
        """Send a PUBLISH to a group."""

    def flush(self) -> None:
        """That was all for now."""

    def rerank(self) -> None:
        """A new plan: what waits goes in the order that it wants, where that can be changed."""

    def close(self) -> None:
        """Stop sending."""


class SocketSender:
    """From the gateway's own socket. What the socket cannot take waits in the sender, control first, then by class.

    Control leaves by `control_socket`, if there is one: what others have waiting in queues of this machine fills only
    the other.
    `later` runs what follows from the fate of a datagram that had to wait, at the time that it is by then.
    """

    def __init__(
        self,
        core: GatewayCore,
        udp_socket: socket.socket,
        control_socket: socket.socket | None = None,
        *,
        most_waiting: int = 100_000,
        later: Callable[[Callable[[GatewayCore], None]], None] | None = None,
        seal: Seal | None = None,
    ) -> None:
        self._core = core
        self._family = udp_socket.family
        self._descriptor = udp_socket.fileno()
        # What is encrypted for each alone cannot go to all as one.
        self._as_one = seal is None
        self._later = later or (lambda settle: settle(core))
        self._sender = DatagramSender(
            udp_socket,
            control_socket,
            most_waiting=most_waiting,
            on_settled=self._settled_later,
            seal=seal,
            marks_classes=core.settings.marks_classes,
        )

    def control(self, action: SendControl) -> None:
        """With its mark, and before everything that waits."""
        endpoint, datagram, _ = action
        self._sender.control([(endpoint[:2], datagram)])

    def publish(self, action: SendPublish) -> None:
        """To one client."""
        session, delivery, datagram = action
        self._send(
            [(session.endpoint[:2], datagram)],
            lambda place: self._class_of(session, delivery.publication.topic),
            lambda place, outcome: transmitted(self._core, session, delivery, outcome, -1, -1),
        )

    def publish_many(self, action: SendMany) -> None:
        """To a group: one system call, if it has any number of members worth it."""
        group, publication, datagram, places = action
        core = self._core
        members = group.members
        begin = 0
        if places is not None:
            members = [members[place] for place in places]
        elif len(members) > 1 and self._as_one and not self._sender.data_waits:
            addresses = group.prepared
            if addresses is None:
                treatments = core.treatments(group, publication.topic) if core.settings.marks_classes else ()
                addresses = group.prepared = AddressList(
                    self._family,
                    [session.endpoint[:2] for session, _ in members],
                    [treatment.priority_class for treatment in treatments],
                )
            begin, problem = addresses.send(self._descriptor, datagram)
            if not problem:
                self._fanned_out(group, publication)
                return
        for session, subscription in members[:begin]:
            settle_copy(core, session, subscription, publication, Outcome.delivered)
        rest = members[begin:]
        if self._as_one or places is not None:
            # Slower: each has an outcome of its own.
            datagrams = [(session.endpoint[:2], datagram) for session, _ in rest]
        else:
            if group.prepared is None:
                group.prepared = [session.endpoint[:2] for session, _ in members]
            datagrams = [(address, datagram) for address in group.prepared]
        unsent = self._sender(datagrams, lambda place: self._class_of(rest[place][0], publication.topic))
        if begin == 0 and places is None and not unsent:
            self._fanned_out(group, publication)
            return
        self._settle(
            unsent,
            len(datagrams),
            lambda place, outcome: settle_copy(core, *rest[place], publication, outcome),
        )

    def _class_of(self, session: Session, topic: str) -> int:
        return self._core.settings.policy.treatment(session.client_id, topic).priority_class

    def _fanned_out(self, group: Group, publication: Publication) -> None:
        """All have been sent."""
        core = self._core
        core.counters.sent += len(group.members)
        core.counters.delivered += len(group.members)
        if core.observer is not None:
            core.observer.fanned_out(group, publication, core.now_ns)

    def flush(self) -> None:
        """Everything has gone out already."""

    def rerank(self) -> None:
        """What the socket could not take goes in the order of the new plan."""
        self._sender.rerank()

    def close(self) -> None:
        """What still waits is in flight for ever."""
        self._sender.close()

    def _send(
        self,
        datagrams: Datagrams,
        class_of: Callable[[int], int],
        settle: Callable[[int, Outcome], None],
    ) -> None:
        """Send, and settle each, by its place: now, or when it has left the socket."""
        self._settle(self._sender(datagrams, class_of), len(datagrams), settle)

    def _settle(self, some: Sequence[Unsent], count: int, settle: Callable[[int, Outcome], None]) -> None:
        unsent = {one.place: one for one in some}
        for place in range(count):
            one = unsent.get(place)
            if one is None:
                settle(place, Outcome.delivered)
            elif one.problem is None:
                one.token = settle
            else:
                settle(place, _outcome(one.problem))

    def _settled_later(self, some: Sequence[Unsent]) -> None:
        def settle(core: GatewayCore) -> None:
            for one in some:
                assert one.problem is not None
                one.token(one.place, _outcome(one.problem))

        self._later(settle)


def _outcome(problem: int) -> Outcome:
    """What the Trace says of a datagram that the kernel has taken (0), or has not."""
    if problem == 0:
        return Outcome.delivered
    if problem == errno.ENOBUFS:
        return Outcome.dropped_by_buffer
    return Outcome.in_flight if problem == errno.EAGAIN else Outcome.lost_on_link


def settle_copy(
    core: GatewayCore,
    session: Session,
    subscription: Subscription,
    publication: Publication,
    outcome: Outcome,
    times: tuple[int, int] = (-1, -1),
    flow: tuple[int, int] | None = None,
) -> None:
    """A QoS 0 copy that belongs to no Delivery; one is made only for the Trace."""
    delivered = outcome is Outcome.delivered
    core.counters.sent += delivered
    delivery = None
    if core.observer is not None and (times != (-1, -1) or flow is not None):
        delivery = Delivery(0, publication, subscription, 0, False, -1, flow=flow)
        delivery.enqueued_ns, delivery.dequeued_ns = times
    core.settle(session, subscription, publication, outcome, "" if delivered else "output port", delivery)


class PlaneSender:
    """Through a data plane, which paces and ranks; `settled` is the OnFate that it has to be given."""

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
        self._packets.append(OutgoingPacket(key, datagram, False, (session, delivery), treatment))

    def publish_many(self, action: SendMany) -> None:
        """To a group."""
        group, publication, datagram, places = action
        keys = group.prepared
        if keys is None:
            keys = group.prepared = [
                FlowKey(session.endpoint[0], session.endpoint[1]) for session, _ in group.members
            ]
        members, treatments = group.members, self._core.treatments(group, publication.topic)
        for place in range(len(members)) if places is None else places:
            member, treatment = members[place], treatments[place]
            token = (*member, (treatment.flow_id, treatment.priority_class)), publication
            self._packets.append(OutgoingPacket(keys[place], datagram, False, token, treatment))

    def rerank(self) -> None:
        """Have the data plane put what waits where the new plan wants it, if its queues are its own."""
        reclassify = getattr(self._plane, "reclassify", None)
        if reclassify is not None:
            reclassify(self._treatment_now)

    def _treatment_now(self, token: object) -> Treatment | None:
        """How a packet that still waits is to be treated by the orders of now."""
        assert isinstance(token, tuple)
        who, what = token
        if isinstance(what, Delivery):
            treatment = self._core.settings.policy.treatment(who.client_id, what.publication.topic)
            what.flow = treatment.flow_id, treatment.priority_class
            what.priority_class = treatment.priority_class
            return treatment
        return self._core.settings.policy.treatment(who[0].client_id, what.topic)

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

    def settled(self, fates: Sequence[Fate]) -> None:
        """What the data plane did with some packets."""
        core = self._core
        for token, outcome, enqueued_ns, dequeued_ns in fates:
            assert isinstance(token, tuple)
            who, what = token
            times = (-1 if enqueued_ns is None else enqueued_ns, -1 if dequeued_ns is None else dequeued_ns)
            if isinstance(what, Delivery):
                transmitted(core, who, what, outcome, *times)
            else:
                session, subscription, flow = who
                settle_copy(core, session, subscription, what, outcome, times, flow)
