"""How datagrams leave the gateway, and how they do so without a data plane: directly from its socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from triagemq.datagrams import TRY_LATER, control_mark
from triagemq.exchange.gateway.actions import SendControl, SendMany, SendPublish
from triagemq.exchange.gateway.buffer import PriorityBuffer
from triagemq.exchange.gateway.model import Delivery, Endpoint, Publication, Session, Subscription
from triagemq.exchange.many_datagrams import AddressList, is_available
from triagemq.trace.schema import Outcome

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore

__all__ = ["DirectOutlet", "Outlet", "settle_copy"]

_CONTROL_CLASS = -1


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

    def close(self) -> None:
        """Stop sending."""


@dataclass(slots=True)
class _Waiting:
    priority_class: int
    endpoint: Endpoint
    datagram: bytes
    settle: Callable[[Outcome], None]


class DirectOutlet:
    """From the gateway's own socket. What the socket cannot take waits here, control first, then by class."""

    def __init__(self, core: GatewayCore, udp_socket: socket.socket, *, most_waiting: int = 100_000) -> None:
        self._core = core
        self._socket = udp_socket
        self._descriptor = udp_socket.fileno()
        self._waiting: PriorityBuffer[_Waiting] = PriorityBuffer()
        self._most_waiting = most_waiting
        self._has_many = is_available()
        self._control_mark = [control_mark(udp_socket.family)]

    def control(self, action: SendControl) -> None:
        """With its mark, and before everything that waits."""
        endpoint, datagram = action
        try:
            self._socket.sendmsg((datagram,), self._control_mark, 0, endpoint[:2])
        except OSError as problem:
            if problem.errno in TRY_LATER:
                self._wait(_Waiting(_CONTROL_CLASS, endpoint, datagram, lambda outcome: None))

    def publish(self, action: SendPublish) -> None:
        """To one client."""
        session, delivery, datagram = action

        def settle(outcome: Outcome) -> None:
            self._core.deliver.fate(session, delivery, outcome, -1, -1)

        self._send(_Waiting(delivery.priority_class, session.endpoint, datagram, settle))

    def publish_many(self, action: SendMany) -> None:
        """To a group: one system call, if it has any number of members worth it."""
        group, publication, datagram = action
        core = self._core
        members = group.members
        if len(members) > 1 and self._has_many and not self._waiting:
            addresses = group.prepared
            if addresses is None:
                addresses = group.prepared = AddressList(
                    self._socket.family, [session.endpoint[:2] for session, _ in members]
                )
            sent, problem = addresses.send(self._descriptor, datagram)
            if not problem:
                core.counters.sent += sent
                core.counters.delivered += sent
                if core.observer is not None:
                    core.observer.fanned_out(group, publication, core.now_ns)
                return
        else:
            sent = 0
        # The slow way: one by one, each with its own fate.
        for number, (session, subscription) in enumerate(members):
            settle = self._settling(session, subscription, publication)
            if number < sent:
                settle(Outcome.delivered)
            else:
                priority_class = core.settings.policy.priority_class(session.client_id, publication.topic)
                self._send(_Waiting(priority_class, session.endpoint, datagram, settle))

    def flush(self) -> None:
        """Everything has gone out already."""

    def close(self) -> None:
        """What still waits is in flight for ever."""
        if self._waiting:
            asyncio.get_running_loop().remove_writer(self._socket)
            for waiting in self._waiting.clear():
                waiting.settle(Outcome.in_flight)

    def _settling(
        self, session: Session, subscription: Subscription, publication: Publication
    ) -> Callable[[Outcome], None]:
        return lambda outcome: settle_copy(self._core, session, subscription, publication, outcome)

    def _send(self, waiting: _Waiting) -> None:
        if self._waiting or not self._sent(waiting):
            self._wait(waiting)

    def _sent(self, waiting: _Waiting) -> bool:
        try:
            if waiting.priority_class == _CONTROL_CLASS:
                self._socket.sendmsg((waiting.datagram,), self._control_mark, 0, waiting.endpoint[:2])
            else:
                self._socket.sendto(waiting.datagram, waiting.endpoint[:2])
        except OSError as problem:
            if problem.errno in TRY_LATER:
                return False
            waiting.settle(Outcome.lost_on_link)
        else:
            waiting.settle(Outcome.delivered)
        return True

    def _wait(self, waiting: _Waiting) -> None:
        if not self._waiting:
            asyncio.get_running_loop().add_writer(self._socket, self._drain)
        pushed_out = self._waiting.push(waiting, self._most_waiting)
        if pushed_out is not None:
            pushed_out.settle(Outcome.dropped_by_buffer)

    def _drain(self) -> None:
        while self._waiting and self._sent(self._waiting.peek()):
            self._waiting.pop()
        if not self._waiting:
            asyncio.get_running_loop().remove_writer(self._socket)


def settle_copy(
    core: GatewayCore,
    session: Session,
    subscription: Subscription,
    publication: Publication,
    outcome: Outcome,
    times: tuple[int, int] = (-1, -1),
) -> None:
    """A QoS 0 copy that belongs to no Delivery; one is made only for the Trace."""
    delivered = outcome is Outcome.delivered
    core.counters.sent += delivered
    delivery = None
    if core.observer is not None and times != (-1, -1):
        delivery = Delivery(0, publication, subscription, 0, False, -1)
        delivery.enqueued_ns, delivery.dequeued_ns = times
    core.settle(session, subscription, publication, outcome, "" if delivered else "output port", delivery)
