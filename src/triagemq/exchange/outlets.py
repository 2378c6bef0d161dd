"""How datagrams leave the gateway, and how they do so without a data plane: directly from its socket."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from triagemq.datagrams import AddressList, Datagrams, DatagramSender, Seal, Unsent
from triagemq.exchange.gateway.actions import SendControl, SendMany, SendPublish
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.delivering import fate
from triagemq.exchange.gateway.model.messages import Delivery, Publication, Subscription
from triagemq.exchange.gateway.model.sessions import Group, Session
from triagemq.trace.schema import Outcome


class Outlet(Protocol):
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


class DirectOutlet:
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
            lambda place: delivery.priority_class,
            lambda place, outcome: fate(self._core, session, delivery, outcome, -1, -1),
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
        treatment = core.settings.policy.treatment
        if self._as_one or places is not None:
            # The slow way: each has a fate of its own.
            datagrams = [(session.endpoint[:2], datagram) for session, _ in rest]
        else:
            if group.prepared is None:
                group.prepared = [session.endpoint[:2] for session, _ in members]
            datagrams = [(address, datagram) for address in group.prepared]
        unsent = self._sender(
            datagrams, lambda place: treatment(rest[place][0].client_id, publication.topic).priority_class
        )
        if begin == 0 and places is None and not unsent:
            self._fanned_out(group, publication)
            return
        self._settle(
            unsent,
            len(datagrams),
            lambda place, outcome: settle_copy(core, *rest[place], publication, outcome),
        )

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
        """What the socket could not take stays in its order."""

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
