"""From orders by client id to flows by address: a data plane knows UDP ports, a plan knows subscribers.

Clients come, move and go, and orders change; whatever happens, the data plane gets the difference and no more.

A client for which there is no order (a plain MQTT-SN client, or a subscriber before its first plan) would pass the
port unmanaged and unpaced, at the cost of everybody else. Once it has subscribed it therefore gets a flow in the lowest
class of the first port of the orders, without drops. One that only publishes is sent nothing but control packets, and
gets none: its answers do not go over the subscribers' port.

What is promised has addresses from the start, and depends on no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence

from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import ControlError
from triagemq.channel.orders import Orders, OrdersChange, client_id_of, subscriber_of
from triagemq.errors import PlanError, TriageError
from triagemq.plan.dataplane import (
    Counters,
    FlowKey,
    Instructed,
    Instruction,
    RemoveFlow,
    RemoveLimiter,
    RemovePort,
    SetFlow,
    SetPort,
    difference,
)

UNPLANNED = -1
"""flow_id of a flow that no order names; null in the trace."""


class FlowBinder:
    """`identify` finds the subscriber's name and slot from a client id; what it gives is looked up in the orders.

    Where packets are sent once each (`replicates` False), what is promised does not pass, and its orders are others'.
    """

    def __init__(
        self,
        plane: Instructed,
        identify: Callable[[str], tuple[str, int]] = subscriber_of,
        *,
        replicates: bool = True,
    ) -> None:
        self.orders = Orders()
        self._replicates = replicates
        self._plane = plane
        self._identify = identify
        self._default: SetFlow[str] | None = None
        # By client id: its key, its name in the orders, and whether it gets messages without an order.
        self._clients: dict[str, tuple[FlowKey, str, bool]] = {}
        # Several clients may share an address behind a forwarder; the flow is that of the first.
        self._at: dict[FlowKey, list[str]] = {}
        self._bound: dict[FlowKey, SetFlow[str]] = {}

    def order(self, orders: Orders, change: OrdersChange | None = None) -> None:
        """Put orders in force, all or (PlanError) none; `change` is what differs in them, if that is known."""
        change = orders.since(self.orders) if change is None else change
        check(orders, change)
        promised = promise_instructions(self.orders, change) if self._replicates else []
        if change.ports is None:
            touched = {key for key, name, _ in self._clients.values() if name in change.flows}
            self._bind(touched, orders, promised)
        else:
            self._bind(self._at, orders, promised)

    def connected(self, client_id: str, endpoint: tuple[str, int], *, subscribes: bool = True) -> None:
        """A client is at this address now, wherever it was before; PlanError if the data plane cannot send there."""
        key = FlowKey(endpoint[0], endpoint[1])
        known = self._clients.get(client_id)
        name = client_id_of(*self._identify(client_id)) if known is None else known[1]
        self._clients[client_id] = (key, name, subscribes)
        touched = {key}
        if known is None or known[0] != key:
            self._at.setdefault(key, []).append(client_id)
            if known is not None:
                self._leave(client_id, known[0])
                touched.add(known[0])
        try:
            self._bind(touched)
        except PlanError:
            # An address that no data plane can send to must not stand in the way of the next orders.
            self._leave(client_id, key)
            del self._clients[client_id]
            raise

    def gone(self, client_id: str) -> None:
        """A client is not there any more; one that never was is no matter."""
        known = self._clients.get(client_id)
        if known is not None:
            self._leave(client_id, known[0])
            del self._clients[client_id]
            self._bind({known[0]})

    def identify_again(self) -> None:
        """Client ids have come to mean other names."""
        self._clients = {
            client_id: (key, client_id_of(*self._identify(client_id)), subscribes)
            for client_id, (key, _, subscribes) in self._clients.items()
        }
        self._bind(self._at)

    def clients(self) -> dict[str, FlowKey]:
        """Everyone who is connected."""
        return {client_id: key for client_id, (key, _, _) in self._clients.items()}

    def port_of(self, key: FlowKey) -> SetPort | None:
        """The output port of the client at this address; None for one without a flow."""
        flow = self._bound.get(key)
        return None if flow is None else self.orders.ports.get(flow.port)

    def _wanted(self, key: FlowKey, orders: Orders, default: SetFlow[str] | None) -> SetFlow[str] | None:
        fallback = None
        for client_id in self._at.get(key, ()):
            _, name, subscribes = self._clients[client_id]
            found = orders.flows.get(name)
            if found is not None:
                return found
            if subscribes:
                fallback = default
        return fallback

    def _bind(
        self, keys: Iterable[FlowKey], orders: Orders | None = None, promised: Sequence[Instruction] = ()
    ) -> None:
        """Give the addresses the flows that they should have by these orders, or by those in force."""
        orders = self.orders if orders is None else orders
        default = self._default if orders.ports is self.orders.ports else default_flow(orders)
        changed: dict[FlowKey, SetFlow[str] | None] = {}
        for key in keys:
            flow, bound = self._wanted(key, orders, default), self._bound.get(key)
            if flow is not bound and flow != bound:
                changed[key] = flow
        made, gone = port_instructions(self.orders, orders)
        flows = (RemoveFlow(key) if flow is None else flow.at(key) for key, flow in changed.items())
        instructions = [*made, *flows, *promised, *gone]
        if instructions:
            self._plane.apply(instructions)
        self.orders, self._default = orders, default
        for key, flow in changed.items():
            if flow is None:
                del self._bound[key]
            else:
                self._bound[key] = flow

    def _leave(self, client_id: str, key: FlowKey) -> None:
        there = self._at[key]
        there.remove(client_id)
        if not there:
            del self._at[key]


def port_instructions(before: Orders, orders: Orders) -> tuple[list[Instruction], list[Instruction]]:
    """What a change of orders means for ports: before flows change, and after that."""
    ports = {} if orders.ports is before.ports else difference(before.ports, orders.ports)
    made: list[Instruction] = [port for port in ports.values() if port is not None]
    return made, [RemovePort(name) for name, port in ports.items() if port is None]


def promise_instructions(before: Orders, change: OrdersChange) -> list[Instruction]:
    """What a change of orders means for promised flows: limiters and copies that are gone, copies, their limiters."""
    gone = [
        before.limiters[name]
        for name, new in change.limiters.items()
        if new is None and name in before.limiters
    ]
    left = [
        before.copies[name] for name, new in change.copies.items() if new is None and name in before.copies
    ]
    return [
        *(RemoveLimiter(limiter.key, limiter.port) for limiter in gone),
        *(RemoveFlow(copy.key, copy.port) for copy in left),
        *(copy for copy in change.copies.values() if copy is not None),
        *(limiter for limiter in change.limiters.values() if limiter is not None),
    ]


def check(orders: Orders, change: OrdersChange) -> None:
    """PlanError if a flow does not fit its port: also one whose client has not connected yet."""
    new: Orders | OrdersChange = change if change.ports is None else orders
    classes = [
        (name, topic, priority_class)
        for name, topics in new.topics.items()
        for topic, (priority_class, _) in (topics or {}).items()
    ]
    classes += [
        (name, topic_filter, unseen.priority_class)
        for name, filters in new.filters.items()
        for topic_filter, unseen in (filters or {}).items()
    ]
    for name, topic, priority_class in classes:
        if priority_class > orders.lowest_class:
            raise PlanError(
                f"orders: {topic!r} of {name!r} is of class {priority_class}, "
                f"and the ports have the classes 0 to {orders.lowest_class}"
            )
    for name, flow in (*new.flows.items(), *new.copies.items()):
        if flow is None:
            continue
        port = orders.ports.get(flow.port)
        if port is None:
            raise PlanError(f"orders: {name!r} goes to the port {flow.port!r}, which they do not have")
        if not 0 <= flow.priority_class < port.classes:
            raise PlanError(
                f"orders: {name!r} is of class {flow.priority_class}, "
                f"and port {flow.port!r} has the classes 0 to {port.classes - 1}"
            )
        if not 0.0 <= flow.drop_rate <= 1.0:
            raise PlanError(f"orders: {name!r} has a drop rate of {flow.drop_rate}; it must be from 0 to 1")


def default_flow(orders: Orders) -> SetFlow[str] | None:
    """What a subscriber gets for whom there is no order; None without a port.

    >>> from triagemq.plan.dataplane import SetPort
    >>> default_flow(Orders(ports={"radio": SetPort("radio", 1e6, 100, 8)}))
    SetFlow(key='', port='radio', flow_id=-1, priority_class=7, drop_rate=0.0, source='')
    """
    for name, port in orders.ports.items():
        return SetFlow("", name, UNPLANNED, port.classes - 1, 0.0)
    return None


_LOG = logging.getLogger("triagemq.follower")

_LOOK_SECONDS = 1.0
"""After so long what failed is tried again."""


class Follower:
    """`run` until it is cancelled. `orders` are those in force at the plane, `problem` is why the last change is not.

    Each follower of a gateway has a `name` of its own.
    """

    def __init__(
        self,
        link: GatewayLink,
        plane: Instructed,
        *,
        name: str = "queues",
        in_thread: bool = False,
    ) -> None:
        self.orders = Orders()
        self.problem = ""
        self._link, self._plane, self._name, self._in_thread = link, plane, name, in_thread
        # The process of the gateway, and what it knows to be carried out.
        self._reported = ("", 0)

    @property
    def applied(self) -> int:
        """The generation of the orders that are carried out; 0 before the first."""
        return self.orders.generation

    async def run(self) -> None:
        """Follow all orders of the gateway."""
        seen = None
        while True:
            seen = await self._link.news(seen, _LOOK_SECONDS)
            if seen is not None:
                with contextlib.suppress(ControlError):
                    if seen.generation != self.applied:
                        await self._catch_up()
                    if self._reported != (seen.epoch, self.applied):
                        await self._link.carried(self._name, self.applied)
                        self._reported = seen.epoch, self.applied

    async def _catch_up(self) -> None:
        orders = await self._link.current()
        try:
            instructions = self._instructions(orders)
            if self._in_thread:
                await asyncio.to_thread(self._plane.apply, instructions)
            else:
                self._plane.apply(instructions)
        except TriageError as error:
            if self.problem != str(error):
                _LOG.warning("the plan is not carried out: %s", error)
            self.problem = str(error)
        else:
            self.orders, self.problem = orders, ""

    def _instructions(self, orders: Orders) -> Sequence[Instruction]:
        change = orders.since(self.orders)
        check(orders, change)
        made, gone = port_instructions(self.orders, orders)
        return [*made, *promise_instructions(self.orders, change), *gone]


class NoPlane:
    """Where another process has the ports: flows are known for the trace only."""

    def apply(self, instructions: Sequence[Instruction]) -> None:
        pass

    def counters(self, *, with_flows: bool = True) -> Counters:
        return Counters()

    def close(self) -> None:
        pass
