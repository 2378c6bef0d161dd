"""What a gateway should do, as one state with one version: orders and grants, told whole or as a change.

A coordinator numbers the states it wants; `author` is its process, so that nobody takes another's number for its own. A
change names the version that it starts from; a gateway that follows another refuses it and is told everything. The
gateway keeps each message as it came, and reads what it keeps as it reads what it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Strict, TypeAdapter, ValidationError

from triagemq.coordinator.access.grants import Grants, GrantsChange
from triagemq.coordinator.channel.lines import ControlError
from triagemq.coordinator.decide.orders import Orders, OrdersChange, what_is_wrong

__all__ = ["DesiredState", "StateMessage", "parse_state", "state_message"]


@dataclass(frozen=True, slots=True)
class DesiredState:
    """`version` grows with every change of orders or grants; orders of None are those that the gateway has."""

    author: str = ""
    version: int = 0
    orders: Orders | None = None
    grants: Grants = field(default_factory=Grants)


@dataclass(frozen=True, slots=True)
class StateMessage:
    """A state by what it changes in the version `base`; without one, in nothing: then its parts are whole.

    A part that it does not have is as before.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    author: str
    version: Annotated[int, Strict()]
    base: Annotated[int, Strict()] | None = None
    orders: OrdersChange | None = None
    grants: GrantsChange | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """All that it says, by name; what is as before is left out."""
        said = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in said if value is not None}

    @property
    def is_whole(self) -> bool:
        """Does it say everything, whatever was said before it?"""
        return self.base is None and self.orders is not None and self.grants is not None

    def after(self, before: DesiredState) -> DesiredState:
        """The state that it leads to; ControlError if it changes another than `before`."""
        orders, grants = before.orders or Orders(), before.grants
        if self.base is None:
            orders, grants = Orders(), Grants()
        elif (self.author, self.base) != (before.author, before.version):
            raise ControlError("this gateway follows another state than the one that is to be changed")
        return DesiredState(
            self.author,
            self.version,
            before.orders if self.orders is None else self.orders.after(orders),
            before.grants if self.grants is None else self.grants.after(grants),
        )


def state_message(before: DesiredState | None, after: DesiredState) -> StateMessage:
    """How to tell a state: by the difference from `before` if that is shorter, else everything.

    >>> before = DesiredState("a1", 4, Orders(1), Grants(True))
    >>> state_message(before, DesiredState("a1", 5, before.orders, Grants(False)))
    StateMessage(author='a1', version=5, base=4, orders=None, grants=GrantsChange(required=False, by_base={}))
    """
    if before is not None and before.author == after.author:
        orders = grants = None
        if after.grants is not before.grants:
            grants = after.grants.since(before.grants)
        if after.orders is not None and after.orders is not before.orders:
            orders = after.orders.since(before.orders or Orders())
        if orders is None or (before.orders is not None and _is_short(orders, after.orders)):
            return StateMessage(after.author, after.version, before.version, orders, grants)
    return StateMessage(
        after.author,
        after.version,
        orders=None if after.orders is None else after.orders.since(Orders()),
        grants=after.grants.since(Grants()),
    )


def _is_short(change: OrdersChange, orders: Orders | None) -> bool:
    whole = 0 if orders is None else len(orders.flows) + len(orders.slots)
    return 2 * (len(change.flows) + len(change.slots)) <= whole


_STATE = TypeAdapter(StateMessage)


def parse_state(message: Mapping[str, Any]) -> StateMessage:
    """A message as it came; ControlError says what is wrong with it."""
    try:
        found = _STATE.validate_python(
            {name: part for name, part in message.items() if name not in ("id", "do")}
        )
    except ValidationError as error:
        raise ControlError(f"a state that is none: {what_is_wrong(error, depth=2)}") from None
    parts = (
        found.orders and (found.orders.flows, found.orders.slots),
        found.grants and (found.grants.by_base,),
    )
    if found.base is None and any(None in part.values() for each in parts for part in each or ()):
        raise ControlError("a change needs the `base` that it changes")
    return found
