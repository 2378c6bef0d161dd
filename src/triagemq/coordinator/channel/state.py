"""What a gateway should do, as one state with one version: orders and grants, told whole or as a change.

A coordinator numbers the states it wants; `author` is its process, so that nobody takes another's number for its own. A
change names the version that it starts from; a gateway that follows another refuses it and is told everything. The
gateway keeps each message as it came, and `changed_state` reads what it keeps as it reads what it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from triagemq.coordinator.access.grants import (
    Grants,
    changed_grants,
    grants_change,
    grants_from_json,
    grants_to_json,
)
from triagemq.coordinator.channel.lines import ControlError
from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.decide.orders_json import (
    changed_orders,
    orders_change,
    orders_from_json,
    orders_to_json,
)

__all__ = ["Changed", "DesiredState", "changed_state", "is_whole", "state_message"]


@dataclass(frozen=True, slots=True)
class DesiredState:
    """`version` grows with every change of orders or grants; orders of None are those that the gateway has."""

    author: str = ""
    version: int = 0
    orders: Orders | None = None
    grants: Grants = field(default_factory=Grants)


class Changed(NamedTuple):
    """A state after a message: the ids whose grants, and those whose flows, are all that it changes (None: any)."""

    state: DesiredState
    bases: set[str] | None
    flows: set[str] | None


def state_message(before: DesiredState | None, after: DesiredState) -> dict[str, Any]:
    """What `changed_state` reads: the difference from `before` if that is shorter, else everything.

    >>> before = DesiredState("a1", 4, Orders(1), Grants(True))
    >>> state_message(before, DesiredState("a1", 5, before.orders, Grants(False)))
    {'author': 'a1', 'version': 5, 'base': 4, 'grants_change': {'required': False, 'grants': {}, 'gone': []}}
    """
    named = {"author": after.author, "version": after.version}
    if before is not None and before.author == after.author:
        changes = _changes(before, after)
        if changes is not None:
            return {**named, "base": before.version, **changes}
    whole = {**named, "grants": grants_to_json(after.grants)}
    return whole if after.orders is None else {**whole, "orders": orders_to_json(after.orders)}


def _changes(before: DesiredState, after: DesiredState) -> dict[str, Any] | None:
    found = {}
    if after.grants is not before.grants:
        found["grants_change"] = grants_change(before.grants, after.grants)
    if after.orders is not None and after.orders is not before.orders:
        change = None if before.orders is None else orders_change(before.orders, after.orders)
        if change is None:
            return None
        found["orders_change"] = change
    return found


def is_whole(message: Mapping[str, Any]) -> bool:
    """Does a message say everything, whatever was said before it?"""
    return "grants" in message and "orders" in message


def changed_state(before: DesiredState, message: Mapping[str, Any]) -> Changed:
    """The state after a message; what it does not speak of is as before. ControlError, PlanError, ParameterError."""
    author, version, base = message.get("author"), message.get("version"), message.get("base")
    if not isinstance(author, str) or type(version) is not int:
        raise ControlError("a state needs `author` and `version`")
    if base is None and not message.keys().isdisjoint(("grants_change", "orders_change")):
        raise ControlError("a change needs the `base` that it changes")
    if base is not None and (author, base) != (before.author, before.version):
        raise ControlError("this gateway follows another state than the one that is to be changed")
    orders, grants, bases, flows = before.orders, before.grants, None, None
    if "grants" in message:
        grants = grants_from_json(message["grants"])
    elif "grants_change" in message:
        grants, bases = changed_grants(grants, message["grants_change"])
    if "orders" in message:
        orders = orders_from_json(message["orders"])
    elif "orders_change" in message:
        orders, flows = changed_orders(orders or Orders(), message["orders_change"])
    return Changed(DesiredState(author, version, orders, grants), bases, flows)
