"""What a plan means for a gateway: ports, flows by client id, and which flow carries which topic of a subscriber.

A flow is a connection of its own: subscriber `ff-7` connects as `ff-7~0`, `ff-7~1` and so on (its slots), each from its
own UDP port. It subscribes over slot 0; the gateway sends each topic over the slot that the orders name, or over slot 0
while that one is not connected. A change of orders takes effect between two packets: no event is lost or repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from triagemq.client.flows import FLOW_MARK, flow_client_id
from triagemq.plan import SetPort

__all__ = ["FLOW_MARK", "FlowOrder", "Orders", "client_id_of", "reranked", "subscriber_of"]

# No subscriber has a thousand connections.
_SLOT_DIGITS = 3


@dataclass(frozen=True, slots=True)
class FlowOrder:
    """What happens to packets to one connection. `flow_id` is the first plan's number of the flow, and stays."""

    port: str
    flow_id: int
    priority_class: int
    drop_rate: float


@dataclass(frozen=True, slots=True)
class Orders:
    """A whole state, not a change. `generation` grows with each plan; `slots[subscriber][topic]` is a slot number."""

    generation: int = 0
    ports: Mapping[str, SetPort] = field(default_factory=dict)
    flows: Mapping[str, FlowOrder] = field(default_factory=dict)
    slots: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def lowest_class(self) -> int:
        """The class of whoever has no flow."""
        return max((port.classes for port in self.ports.values()), default=1) - 1


client_id_of = flow_client_id
"""The client id of a subscriber's connection, from its name and a slot."""


def subscriber_of(client_id: str) -> tuple[str, int]:
    """The subscriber that a connection belongs to, and its slot; a client of another kind is its own slot 0.

    >>> subscriber_of("ff-7~2"), subscriber_of("pump"), subscriber_of("a~b"), subscriber_of("ff-7~1000")
    (('ff-7', 2), ('pump', 0), ('a~b', 0), ('ff-7~1000', 0))
    """
    name, mark, number = client_id.rpartition(FLOW_MARK)
    is_slot = mark and name and number.isascii() and number.isdigit() and len(number) <= _SLOT_DIGITS
    return (name, int(number)) if is_slot else (client_id, 0)


def reranked(
    before: Orders, after: Orders, changed: Collection[str] | None = None
) -> list[tuple[str, int]] | None:
    """The subscribers and slots whose class differs; `changed`: nobody else's flow does. None: it may be anybody's.

    >>> before = Orders(flows={"a~0": FlowOrder("radio", 1, 0, 0.0), "b~0": FlowOrder("radio", 2, 1, 0.0)})
    >>> reranked(before, Orders(flows={"a~0": FlowOrder("radio", 1, 0, 0.5), "b~0": FlowOrder("radio", 2, 0, 0.0)}))
    [('b', 0)]
    """
    if before.lowest_class != after.lowest_class:
        return None
    names = {**before.flows, **after.flows} if changed is None else changed
    lowest = after.lowest_class

    def class_in(orders: Orders, name: str) -> int:
        flow = orders.flows.get(name)
        return lowest if flow is None else flow.priority_class

    return [subscriber_of(name) for name in names if class_in(before, name) != class_in(after, name)]
