"""Orders as JSON, for the control channel and for the file from which a gateway starts; infinity is null.

Flows are short lists, not objects: a hundred thousand of them are a few megabytes. A gateway that reads megabytes twice
a second sends no packets meanwhile, so that there is also the difference between two orders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triagemq.coordinator.decide.orders import FlowOrder, Orders
from triagemq.errors import PlanError
from triagemq.plan import SetPort

__all__ = ["changed_orders", "orders_change", "orders_from_json", "orders_to_json"]


def orders_to_json(orders: Orders) -> dict[str, Any]:
    """What `orders_from_json` reads.

    >>> orders = Orders(3, {"radio": SetPort("radio", math.inf, 100, 8)}, {"ff-7~0": FlowOrder("radio", 0, 2, 0.5)})
    >>> orders_to_json(orders)["ports"]
    {'radio': {'bandwidth_bps': None, 'buffer_packets': 100, 'classes': 8}}
    >>> orders_from_json(orders_to_json(orders)) == orders
    True
    """
    return {
        "generation": orders.generation,
        "ports": {
            name: {
                "bandwidth_bps": _finite(port.bandwidth_bps),
                "buffer_packets": _finite(port.buffer_packets),
                "classes": port.classes,
            }
            for name, port in orders.ports.items()
        },
        "flows": {
            client_id: [flow.port, flow.flow_id, flow.priority_class, flow.drop_rate]
            for client_id, flow in orders.flows.items()
        },
        "slots": {subscriber: dict(topics) for subscriber, topics in orders.slots.items()},
    }


def orders_from_json(value: object) -> Orders:
    """Orders, or PlanError saying what is wrong with them."""
    whole = _mapping(value, "orders")
    generation = whole.get("generation")
    if type(generation) is not int:
        raise PlanError(f"orders: generation must be a whole number, is {generation!r}")
    ports = {name: _port(name, one) for name, one in _mapping(whole.get("ports", {}), "ports").items()}
    flows = {
        client_id: _flow(client_id, one)
        for client_id, one in _mapping(whole.get("flows", {}), "flows").items()
    }
    slots = _mapping(whole.get("slots", {}), "slots")
    for subscriber, topics in slots.items():
        for slot in _mapping(topics, f"slots of {subscriber!r}").values():
            if type(slot) is not int or slot < 0:
                raise PlanError(f"orders: a slot of {subscriber!r} must be a number from 0, is {slot!r}")
    return Orders(generation, ports, flows, slots)


def orders_change(before: Orders, after: Orders) -> dict[str, Any] | None:
    """What `changed_orders` reads; None if the whole would hardly be longer.

    >>> before = Orders(1, slots={"ff-7": {"smoke": 0}, "ff-8": {"smoke": 1}})
    >>> change = orders_change(before, Orders(2, slots={"ff-7": {"smoke": 0}, "ff-8": {"smoke": 2}}))
    >>> change["slots"], changed_orders(before, change)[0].slots
    ({'ff-8': {'smoke': 2}}, {'ff-7': {'smoke': 0}, 'ff-8': {'smoke': 2}})
    """
    flows = {name: flow for name, flow in after.flows.items() if before.flows.get(name) != flow}
    slots = {
        name: topics
        for name, topics in after.slots.items()
        if before.slots.get(name) is not topics and before.slots.get(name) != topics
    }
    if 2 * (len(flows) + len(slots)) > len(after.flows) + len(after.slots):
        return None
    return {
        **orders_to_json(replace(after, flows=flows, slots=slots)),
        "flows_gone": [name for name in before.flows if name not in after.flows],
        "slots_gone": [name for name in before.slots if name not in after.slots],
    }


def changed_orders(before: Orders, value: object) -> tuple[Orders, set[str]]:
    """The orders after a change, and the client ids whose flow it touches; PlanError if it is none."""
    change = orders_from_json(value)
    assert isinstance(value, dict)
    gone = {name: value.get(name, []) for name in ("flows_gone", "slots_gone")}
    for name, names in gone.items():
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise PlanError(f"orders: {name} must be a list of names")
    flows, slots = {**before.flows, **change.flows}, {**before.slots, **change.slots}
    for name in gone["flows_gone"]:
        flows.pop(name, None)
    for name in gone["slots_gone"]:
        slots.pop(name, None)
    return replace(change, flows=flows, slots=slots), {*change.flows, *gone["flows_gone"]}


def _port(name: str, value: object) -> SetPort:
    port = _mapping(value, f"port {name!r}")
    bandwidth_bps, buffer_packets = (_number(port, key, name) for key in ("bandwidth_bps", "buffer_packets"))
    classes = port.get("classes")
    if type(classes) is not int:
        raise PlanError(f"orders: port {name!r}: classes must be a whole number, is {classes!r}")
    return SetPort(name, bandwidth_bps, buffer_packets, classes)


def _number(port: Mapping[str, Any], key: str, name: str) -> float:
    value = port.get(key)
    if value is None:
        return math.inf
    if type(value) not in (int, float):
        raise PlanError(f"orders: port {name!r}: {key} must be a number or null, is {value!r}")
    return float(value)


def _flow(client_id: str, value: object) -> FlowOrder:
    match value:
        case [str(port), int(flow_id), int(priority_class), int() | float() as drop_rate]:
            return FlowOrder(port, flow_id, priority_class, float(drop_rate))
    raise PlanError(f"orders: flow of {client_id!r} must be [port, flow id, class, drop rate], is {value!r}")


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PlanError(f"orders: {what} must be an object, is {type(value).__name__}")
    return value


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
