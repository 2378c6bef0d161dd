"""The difference between two orders, as JSON: a gateway that reads megabytes twice a second sends no packets meanwhile.

A change names the state it starts from; a gateway that is in another one refuses it and is sent everything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from triagemq.coordinator.orders import Orders
from triagemq.coordinator.orders_json import orders_from_json, orders_to_json
from triagemq.errors import PlanError

__all__ = ["changed_orders", "orders_change"]


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
