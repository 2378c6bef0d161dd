"""What a plan means for a gateway: ports, a flow for each connection, and a class and drop rate for each subscription.

Topics with a promise go straight from switch to switch: their orders are flows by address, one for each output port by
which copies leave, and limiters where they enter.

Subscriber `ff-7` has one connection, `ff-7~0`. A change of orders takes effect between two packets: no event is lost
or repeated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import to_json

from triagemq.client.connection import CONNECTION_MARK, connection_id
from triagemq.errors import PlanError
from triagemq.mqttsn import matches
from triagemq.plan.dataplane import (
    NO_TERMS,
    CopyTerms,
    FlowKey,
    SetFlow,
    SetLimiter,
    SetPort,
    Treatment,
    applied,
    difference,
)

_MOST_DIGITS = 3
"""Of the number behind a client id that names a connection of a client."""

DirectTopics = Mapping[str, Mapping[str, Mapping[str, int]]]
"""By subscriber and topic the publishers from whom it gets that topic without a broker, once these follow orders of a
generation."""

PriorityClass = Annotated[int, Strict(), Field(ge=0)]
DropRate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
TopicOrders = Mapping[str, tuple[PriorityClass, DropRate]]
"""By topic, the class of a subscriber's copies and the share of them that the gateway drops."""


@dataclass(frozen=True, slots=True)
class StoredHop:
    """A link on the path of a promise, as it was admitted; the port "" is the publisher's access link."""

    port: str
    level: int
    deadline_seconds: float
    jitter_seconds: float


@dataclass(frozen=True, slots=True)
class StoredPromise:
    """A promise that was admitted. `proven_on` shows whether messages and links are still those of its proof."""

    publisher: str
    topic: str
    subscriber: str
    max_latency_seconds: float
    bound_seconds: float
    proven_on: str
    hops: tuple[StoredHop, ...]


@dataclass(frozen=True, slots=True)
class Promised:
    """What the coordinator itself has to remember of promises: all of them in the order of their admission, and the
    addresses of publications by the names of publisher and topic. Gateways need not know it."""

    promises: Mapping[str, StoredPromise] = field(default_factory=dict)
    addresses: Mapping[str, FlowKey] = field(default_factory=dict)


NOTHING_PROMISED = Promised()


@dataclass(frozen=True, slots=True)
class UnseenTopics:
    """How topics of a filter are treated of which no rate is known yet: their class, and what they are worth there."""

    priority_class: PriorityClass
    worth: float


_SENT_WHOLE = ("ports", "peers", "promised")
_SENT_AS_DIFFERENCE = ("flows", "topics", "copies", "limiters", "direct", "filters", "terms")
"""Parts of orders in a change."""


@dataclass(frozen=True, slots=True)
class Orders:
    """A complete state, not a change. `generation` grows with each plan.

    `flows` are by connection: its port and its number; the class is that of what no plan knows. `topics[subscriber]`
    is what is planned, `filters[subscriber][filter]` is for topics that are not, which are never dropped.

    `copies` and `limiters` are those of promises, by address and output port. `direct` is what gateways leave to them.
    `peers` are the brokers of other gateways from which one takes what its clients want, as URLs by name.
    `terms[subscriber][filter]` are there for subscribers with terms that a gateway has to keep, an exact name or the
    first filter that matches counts.
    """

    generation: int = 0
    ports: Mapping[str, SetPort] = field(default_factory=dict)
    flows: Mapping[str, SetFlow[str]] = field(default_factory=dict)
    topics: Mapping[str, TopicOrders] = field(default_factory=dict)
    copies: Mapping[str, SetFlow[FlowKey]] = field(default_factory=dict)
    limiters: Mapping[str, SetLimiter] = field(default_factory=dict)
    promised: Promised = NOTHING_PROMISED
    direct: DirectTopics = field(default_factory=dict)
    peers: Mapping[str, str] = field(default_factory=dict, repr=False)
    filters: Mapping[str, Mapping[str, UnseenTopics]] = field(default_factory=dict)
    terms: Mapping[str, Mapping[str, CopyTerms]] = field(default_factory=dict)

    @property
    def lowest_class(self) -> int:
        """The class of clients without a flow."""
        return max((port.classes for port in self.ports.values()), default=1) - 1

    def treatment(self, name: str, topic: str) -> Treatment:
        """How a subscriber's copy of a topic is treated."""
        planned, flow = self.topics.get(name, {}).get(topic), self.flows.get(client_id_of(name))
        terms = self._terms(name, topic)
        if planned is None and (unseen := self._unseen(name, topic)) is not None:
            return Treatment(unseen.priority_class, 0.0, unseen.worth, terms=terms)
        if flow is None:
            return Treatment(*(planned or (self.lowest_class, 0.0)), terms=terms)
        return Treatment(*(planned or (flow.priority_class, 0.0)), flow_id=flow.flow_id, terms=terms)

    def _terms(self, name: str, topic: str) -> CopyTerms | None:
        """As `SubscriberTerms.subscription_to` has it: an exact name, else the first pattern."""
        filters = self.terms.get(name)
        if not filters:
            return None
        found = filters.get(topic)
        if found is None:
            found = next((terms for pattern, terms in filters.items() if matches(pattern, topic)), None)
        return None if found == NO_TERMS else found

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

        >>> before = Orders(1, topics={"ff-7": {"smoke": (0, 0.0)}, "ff-8": {"smoke": (1, 0.0)}})
        >>> Orders(2, topics={"ff-7": {"smoke": (0, 0.0)}, "ff-9": {"smoke": (2, 0.5)}}).since(before).topics
        {'ff-9': {'smoke': (2, 0.5)}, 'ff-8': None}
        """
        changes: dict[str, Any] = {
            name: difference(getattr(before, name), getattr(self, name)) for name in _SENT_AS_DIFFERENCE
        }
        return OrdersChange(
            self.generation,
            ports=None if self.ports == before.ports else self.ports,
            peers=None if self.peers == before.peers else self.peers,
            **changes,
        )

    def part_for(
        self, subscribers: Collection[str], peers: Mapping[str, str], uplink_bps: float = math.inf
    ) -> Orders:
        """What a gateway needs of them that serves these subscribers, and has these peers: none of its ports sends
        more than its uplink takes.

        >>> orders = Orders(1, topics={"ff-7": {"smoke": (0, 0.0)}, "ff-8": {"smoke": (1, 0.0)}})
        >>> orders.part_for({"ff-8"}, {}).topics
        {'ff-8': {'smoke': (1, 0.0)}}
        """
        return replace(
            self,
            ports={
                name: port if port.bandwidth_bps <= uplink_bps else port.with_bandwidth(uplink_bps)
                for name, port in self.ports.items()
            },
            flows={name: flow for name, flow in self.flows.items() if subscriber_of(name)[0] in subscribers},
            topics={name: topics for name, topics in self.topics.items() if name in subscribers},
            direct={name: topics for name, topics in self.direct.items() if name in subscribers},
            peers=peers,
            filters={name: filters for name, filters in self.filters.items() if name in subscribers},
            terms={name: filters for name, filters in self.terms.items() if name in subscribers},
        )


@dataclass(frozen=True, slots=True)
class OrdersChange:
    """Orders as those before them and what is new or different: None is for what is gone.

    Of ports and peers there are all or (None) the same as before: the first port is that of clients without a flow.
    Complete orders are the change from nothing. `promised` is there in a database only.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    generation: Annotated[int, Strict()]
    ports: Mapping[str, SetPort] | None = None
    flows: Mapping[str, SetFlow[str] | None] = field(default_factory=dict)
    topics: Mapping[str, TopicOrders | None] = field(default_factory=dict)
    copies: Mapping[str, SetFlow[FlowKey] | None] = field(default_factory=dict)
    limiters: Mapping[str, SetLimiter | None] = field(default_factory=dict)
    promised: Promised | None = None
    direct: Mapping[str, Mapping[str, Mapping[str, int]] | None] = field(default_factory=dict)
    peers: Mapping[str, str] | None = field(default=None, repr=False)
    filters: Mapping[str, Mapping[str, UnseenTopics] | None] = field(default_factory=dict)
    terms: Mapping[str, Mapping[str, CopyTerms] | None] = field(default_factory=dict)

    def after(self, before: Orders) -> Orders:
        """The orders that they become."""
        parts: dict[str, Any] = {
            name: applied(getattr(before, name), getattr(self, name)) for name in _SENT_AS_DIFFERENCE
        }
        for name in _SENT_WHOLE:
            if (part := getattr(self, name)) is not None:
                parts[name] = part
        return replace(before, generation=self.generation, **parts)


def _with_topics(document: Any) -> Any:
    """Orders as the version before wrote them: topics have slots, and each slot is a flow with a class and drop rate.

    In a change the flows are those that differ: what it does not say is planned anew. Queue rates were `widths_bps`.
    """
    if not isinstance(document, dict):
        return document
    document = dict(document)
    if isinstance(ports := document.get("ports"), dict):
        document["ports"] = {name: _with_queue_rates(port) for name, port in ports.items()}
    if "slots" not in document:
        return document
    flows, topics = document.get("flows") or {}, dict[str, Any]()
    try:
        for name, slots in document.pop("slots").items():
            found = {topic: flows.get(client_id_of(name, slot)) for topic, slot in (slots or {}).items()}
            planned = {
                topic: (flow["priority_class"], flow["drop_rate"]) for topic, flow in found.items() if flow
            }
            topics[name] = None if slots is None else planned
        first = {client_id: flow for client_id, flow in flows.items() if not subscriber_of(client_id)[1]}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"slots and flows do not fit: {error}") from None
    return {**document, "flows": first, "topics": topics}


def _with_queue_rates(port: Any) -> Any:
    if not isinstance(port, dict) or "widths_bps" not in port:
        return port
    return {"queue_rates_bps" if key == "widths_bps" else key: value for key, value in port.items()}


AnyOrdersChange = Annotated[OrdersChange, BeforeValidator(_with_topics)]
"""As it is read: also what was stored by the version before."""

client_id_of = connection_id
"""What orders call the connection of a subscriber."""


def subscriber_of(client_id: str) -> tuple[str, int]:
    """The client that a connection belongs to, and the number of the connection, 0 where the id has none.

    >>> subscriber_of("ff-7~2"), subscriber_of("pump"), subscriber_of("a~b"), subscriber_of("ff-7~1000")
    (('ff-7', 2), ('pump', 0), ('a~b', 0), ('ff-7~1000', 0))
    """
    name, mark, number = client_id.rpartition(CONNECTION_MARK)
    is_number = mark and name and number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    return (name, int(number)) if is_number else (client_id, 0)


def reranked(before: Orders, after: Orders, change: OrdersChange) -> set[str] | None:
    """The subscribers of whose topics a change may change the class or the terms; None: it may be anybody's.

    >>> before = Orders(topics={"a": {"smoke": (1, 0.0)}, "b": {"smoke": (1, 0.0)}})
    >>> after = Orders(topics={"a": {"smoke": (1, 0.5)}, "b": {"smoke": (0, 0.0)}})
    >>> reranked(before, after, after.since(before))
    {'b'}
    """
    if before.lowest_class != after.lowest_class:
        return None

    def classes(topics: TopicOrders | None) -> dict[str, int]:
        return {topic: planned[0] for topic, planned in (topics or {}).items()}

    def of_the_rest(flow: SetFlow[str] | None) -> int:
        return after.lowest_class if flow is None else flow.priority_class

    changed_flows = (
        subscriber_of(client_id)[0]
        for client_id, flow in change.flows.items()
        if of_the_rest(before.flows.get(client_id)) != of_the_rest(flow)
    )
    changed_topics = (
        name for name, topics in change.topics.items() if classes(before.topics.get(name)) != classes(topics)
    )
    return {*change.filters, *change.terms, *changed_flows, *changed_topics}


_WHOLE: TypeAdapter[OrdersChange] = TypeAdapter(AnyOrdersChange)


def dump_orders(orders: Orders) -> str:
    """JSON, for a database.

    >>> orders = Orders(3, {"radio": SetPort("radio", float("inf"), 100, 8)})
    >>> dump_orders(orders)
    '{"generation":3,"ports":{"radio":{"port":"radio","bandwidth_bps":"Infinity",...}},"flows":{},"topics":{},...}'
    >>> parse_orders(dump_orders(orders)) == orders
    True
    """
    return to_json(orders, inf_nan_mode="strings").decode()


def parse_orders(value: object) -> Orders:
    """Complete orders from JSON, as text or read already; PlanError describes the first error."""
    try:
        read = _WHOLE.validate_json(value) if isinstance(value, str) else _WHOLE.validate_python(value)
    except ValidationError as error:
        raise PlanError(f"orders: {describe_error(error, depth=1)}") from None
    return read.after(Orders())


def describe_error(error: ValidationError, depth: int) -> str:
    """Which part, and why: never the names further down than that, some of which are secrets."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(one) for one in first['loc'][:depth]) or 'all of it'}: {first['msg']}"
