"""What a plan means for a gateway: ports, flows by client id, and which flow carries which topic of a subscriber.

Topics with a promise go straight from switch to switch: their orders are flows by address, one for each output port by
which copies leave, and limiters where they enter.

Subscriber `ff-7` has one connection, `ff-7~0`. Its flows have numbers, its slots: each topic has one, and with it a
class and a drop rate. A change of orders takes effect between two packets: no event is lost or repeated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import to_json

from triagemq.client.connection import CONNECTION_MARK, connection_id
from triagemq.errors import PlanError
from triagemq.mqttsn import matches
from triagemq.plan import FlowKey, SetFlow, SetLimiter, SetPort, Treatment
from triagemq.plan.instructions import applied, difference

__all__ = [
    "CONNECTION_MARK",
    "DirectTopics",
    "KeptHop",
    "KeptPromise",
    "Orders",
    "OrdersChange",
    "Promised",
    "UnseenTopics",
    "client_id_of",
    "dump_orders",
    "flows_of",
    "parse_orders",
    "reranked",
    "subscriber_of",
    "what_is_wrong",
]

# No subscriber has a thousand flows.
_SLOT_DIGITS = 3

DirectTopics = Mapping[str, Mapping[str, Mapping[str, int]]]
"""By subscriber and topic the publishers from whom it gets that topic without a broker, once these follow orders of a
generation."""

SlotNumber = Annotated[int, Strict(), Field(ge=0)]


@dataclass(frozen=True, slots=True)
class KeptHop:
    """A link on the way of a promise, as it was admitted; the port "" is the publisher's access link."""

    port: str
    level: int
    deadline_seconds: float
    jitter_seconds: float


@dataclass(frozen=True, slots=True)
class KeptPromise:
    """A promise that was admitted. `proven_on` tells whether messages and links are still those of its proof."""

    publisher: str
    topic: str
    subscriber: str
    max_latency_seconds: float
    bound_seconds: float
    proven_on: str
    hops: tuple[KeptHop, ...]


@dataclass(frozen=True, slots=True)
class Promised:
    """What the coordinator itself has to remember of promises: all of them in the order of their admission, and the
    addresses of publications by the names of publisher and topic. Gateways need not know it."""

    promises: Mapping[str, KeptPromise] = field(default_factory=dict)
    addresses: Mapping[str, FlowKey] = field(default_factory=dict)


NOTHING_PROMISED = Promised()


@dataclass(frozen=True, slots=True)
class UnseenTopics:
    """How topics of a filter are treated of which no rate is known yet: their class, and what they are worth there."""

    priority_class: Annotated[int, Strict(), Field(ge=0)]
    worth: float


@dataclass(frozen=True, slots=True)
class Orders:
    """A whole state, not a change. `generation` grows with each plan; `slots[subscriber][topic]` is a slot number.

    `filters[subscriber][filter]` is for topics without a slot, which are never dropped.

    `copies` and `limiters` are those of promises, by address and output port. `direct` is what gateways leave to them.
    `peers` are the brokers of other gateways from which one takes what its clients want, as URLs by name.
    """

    generation: int = 0
    ports: Mapping[str, SetPort] = field(default_factory=dict)
    flows: Mapping[str, SetFlow[str]] = field(default_factory=dict)
    slots: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    copies: Mapping[str, SetFlow[FlowKey]] = field(default_factory=dict)
    limiters: Mapping[str, SetLimiter] = field(default_factory=dict)
    promised: Promised = NOTHING_PROMISED
    direct: DirectTopics = field(default_factory=dict)
    peers: Mapping[str, str] = field(default_factory=dict, repr=False)
    filters: Mapping[str, Mapping[str, UnseenTopics]] = field(default_factory=dict)

    @property
    def lowest_class(self) -> int:
        """The class of whoever has no flow."""
        return max((port.classes for port in self.ports.values()), default=1) - 1

    def treatment(self, name: str, topic: str) -> Treatment:
        """How a subscriber's copy of a topic is treated."""
        planned = self.slots.get(name, {}).get(topic)
        if planned is None and (unseen := self._unseen(name, topic)) is not None:
            return Treatment(unseen.priority_class, 0.0, unseen.worth)
        flow = self.flows.get(client_id_of(name, planned or 0))
        if flow is None:
            return Treatment(self.lowest_class)
        return Treatment(
            flow.priority_class, 0.0 if planned is None else flow.drop_rate, flow_id=flow.flow_id
        )

    def _unseen(self, name: str, topic: str) -> UnseenTopics | None:
        """An exact name says more than a pattern; of several patterns the best class counts."""
        filters = self.filters.get(name)
        if not filters:
            return None
        found = filters.get(topic)
        if found is None:
            several = (unseen for pattern, unseen in filters.items() if matches(pattern, topic))
            found = min(several, key=lambda unseen: (unseen.priority_class, -unseen.worth), default=None)
        return found

    def since(self, before: Orders) -> OrdersChange:
        """What has changed.

        >>> before = Orders(1, slots={"ff-7": {"smoke": 0}, "ff-8": {"smoke": 1}})
        >>> Orders(2, slots={"ff-7": {"smoke": 0}, "ff-9": {"smoke": 2}}).since(before).slots
        {'ff-9': {'smoke': 2}, 'ff-8': None}
        """
        return OrdersChange(
            self.generation,
            None if self.ports == before.ports else self.ports,
            difference(before.flows, self.flows),
            difference(before.slots, self.slots),
            difference(before.copies, self.copies),
            difference(before.limiters, self.limiters),
            direct=difference(before.direct, self.direct),
            peers=None if self.peers == before.peers else self.peers,
            filters=difference(before.filters, self.filters),
        )

    def part_for(
        self, subscribers: Collection[str], peers: Mapping[str, str], uplink_bps: float = math.inf
    ) -> Orders:
        """What a gateway needs of them that serves these subscribers, and has these peers: none of its ports sends
        more than its uplink takes.

        >>> orders = Orders(1, slots={"ff-7": {"smoke": 0}, "ff-8": {"smoke": 1}})
        >>> orders.part_for({"ff-8"}, {}).slots
        {'ff-8': {'smoke': 1}}
        """
        return replace(
            self,
            ports={
                name: port if port.bandwidth_bps <= uplink_bps else port.with_bandwidth(uplink_bps)
                for name, port in self.ports.items()
            },
            flows={name: flow for name, flow in self.flows.items() if subscriber_of(name)[0] in subscribers},
            slots={name: slots for name, slots in self.slots.items() if name in subscribers},
            direct={name: topics for name, topics in self.direct.items() if name in subscribers},
            peers=peers,
            filters={name: filters for name, filters in self.filters.items() if name in subscribers},
        )


@dataclass(frozen=True, slots=True)
class OrdersChange:
    """Orders as those before them and what is new or different: None is for flows and slots that are gone.

    Of ports and peers there are all or (None) the same as before: the first port is that of whoever has no flow. Whole
    orders are the change from nothing. `promised` is there in what is kept in a database only.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    generation: Annotated[int, Strict()]
    ports: Mapping[str, SetPort] | None = None
    flows: Mapping[str, SetFlow[str] | None] = field(default_factory=dict)
    slots: Mapping[str, Mapping[str, SlotNumber] | None] = field(default_factory=dict)
    copies: Mapping[str, SetFlow[FlowKey] | None] = field(default_factory=dict)
    limiters: Mapping[str, SetLimiter | None] = field(default_factory=dict)
    promised: Promised | None = None
    direct: Mapping[str, Mapping[str, Mapping[str, int]] | None] = field(default_factory=dict)
    peers: Mapping[str, str] | None = field(default=None, repr=False)
    filters: Mapping[str, Mapping[str, UnseenTopics] | None] = field(default_factory=dict)

    def after(self, before: Orders) -> Orders:
        """The orders that they become."""
        return Orders(
            self.generation,
            before.ports if self.ports is None else self.ports,
            applied(before.flows, self.flows),
            applied(before.slots, self.slots),
            applied(before.copies, self.copies),
            applied(before.limiters, self.limiters),
            before.promised if self.promised is None else self.promised,
            applied(before.direct, self.direct),
            before.peers if self.peers is None else self.peers,
            applied(before.filters, self.filters),
        )


client_id_of = connection_id
"""What orders call a flow, from its subscriber's name and its slot; slot 0 is also the connection's client id."""


def subscriber_of(client_id: str) -> tuple[str, int]:
    """The subscriber that a connection belongs to, and its slot; a client of another kind is its own slot 0.

    >>> subscriber_of("ff-7~2"), subscriber_of("pump"), subscriber_of("a~b"), subscriber_of("ff-7~1000")
    (('ff-7', 2), ('pump', 0), ('a~b', 0), ('ff-7~1000', 0))
    """
    name, mark, number = client_id.rpartition(CONNECTION_MARK)
    is_slot = mark and name and number.isascii() and number.isdigit() and len(number) <= _SLOT_DIGITS
    return (name, int(number)) if is_slot else (client_id, 0)


def flows_of(orders: Orders, name: str) -> dict[int, SetFlow[str]]:
    """The flows of a subscriber by slot. A slot may be out of use while a higher one is in use."""
    used = {0, *orders.slots.get(name, {}).values()}
    return {
        slot: flow
        for slot in sorted(used)
        if (flow := orders.flows.get(client_id_of(name, slot))) is not None
    }


def reranked(before: Orders, after: Orders, change: OrdersChange) -> set[str] | None:
    """The subscribers of whose topics a change may change the class; None: it may be anybody's.

    >>> before = Orders(flows={name: SetFlow(name, "radio", 1, 1, 0.0) for name in ("a~0", "b~0")})
    >>> flows = {"a~0": SetFlow("a~0", "radio", 1, 1, 0.5), "b~0": SetFlow("b~0", "radio", 1, 0, 0.0)}
    >>> after = Orders(flows=flows)
    >>> reranked(before, after, after.since(before))
    {'b'}
    """
    lowest = after.lowest_class
    if before.lowest_class != lowest:
        return None

    def rank(flow: SetFlow[str] | None) -> int:
        return lowest if flow is None else flow.priority_class

    return {*change.filters, *change.slots} | {
        subscriber_of(name)[0]
        for name, flow in change.flows.items()
        if rank(before.flows.get(name)) != rank(flow)
    }


_WHOLE = TypeAdapter(OrdersChange)


def dump_orders(orders: Orders) -> str:
    """JSON, for a database.

    >>> orders = Orders(3, {"radio": SetPort("radio", float("inf"), 100, 8)})
    >>> dump_orders(orders)
    '{"generation":3,"ports":{"radio":{"port":"radio","bandwidth_bps":"Infinity",...}},"flows":{},"slots":{},...}'
    >>> parse_orders(dump_orders(orders)) == orders
    True
    """
    return to_json(orders, inf_nan_mode="strings").decode()


def parse_orders(value: object) -> Orders:
    """Whole orders from JSON, as text or read already; PlanError says what is wrong with them."""
    try:
        read = _WHOLE.validate_json(value) if isinstance(value, str) else _WHOLE.validate_python(value)
    except ValidationError as error:
        raise PlanError(f"orders: {what_is_wrong(error, depth=1)}") from None
    return read.after(Orders())


def what_is_wrong(error: ValidationError, depth: int) -> str:
    """Which part, and why: never the names further down than that, some of which are secrets."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(one) for one in first['loc'][:depth]) or 'all of it'}: {first['msg']}"
