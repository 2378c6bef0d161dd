"""What carries a plan out: output ports, and what happens to each flow on them. Plain data, no I/O.

Until it is known where a flow goes it has the client id of its connection for a key, then an address; all else in it
stays the same on its way from the plan to the data plane. A state is a mapping, of ports by name and of flows by key;
`difference` is the change from one state to another and `applied` the state after it, whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class FlowKey:
    """How the network tells flows apart: a subscriber's IP address (in digits, never a name) and UDP port."""

    address: str
    udp_port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.udp_port}" if ":" in self.address else f"{self.address}:{self.udp_port}"
        )


@dataclass(frozen=True, slots=True)
class SetPort:
    """Make an output port, or change it. The buffer counts packets, the one in transmission included."""

    port: str
    bandwidth_bps: float
    buffer_packets: float
    classes: int


@dataclass(frozen=True, slots=True)
class RemovePort:
    """Take an output port away; no flow may use it any more. What it holds is still sent."""

    port: str


@dataclass(frozen=True, slots=True)
class SetFlow(Generic[Key]):
    """Make a flow, or change where it goes, its class and the share of its packets that is dropped.

    `flow_id` is the number that the first plan gave to the flow, and stays.
    """

    key: Key
    port: str
    flow_id: int
    priority_class: int
    drop_rate: float

    def at(self, key: FlowKey) -> SetFlow[FlowKey]:
        """The same at an address."""
        return SetFlow(key, self.port, self.flow_id, self.priority_class, self.drop_rate)


@dataclass(frozen=True, slots=True)
class RemoveFlow:
    """Forget a flow: packets to its key are no longer managed. What is queued is still sent."""

    key: FlowKey


@dataclass(frozen=True, slots=True)
class SetLimiter:
    """Let no more of a promised flow into the network than this: what is beyond it is lost where it enters."""

    key: FlowKey
    burst_bytes: float
    rate_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class RemoveLimiter:
    """Take a limiter away; the flow is no longer promised."""

    key: FlowKey


Instruction = SetPort | RemovePort | SetFlow[FlowKey] | RemoveFlow | SetLimiter | RemoveLimiter
"""One step of a change, for a data plane."""


def difference(before: Mapping[Key, Value], after: Mapping[Key, Value]) -> dict[Key, Value | None]:
    """The change from one state to another: what is new or different, and None for what is gone.

    >>> difference({"radio": 1, "cable": 2, "trunk": 3}, {"radio": 1, "cable": 4, "satellite": 5})
    {'cable': 4, 'satellite': 5, 'trunk': None}
    """
    changed: dict[Key, Value | None] = {
        key: value for key, value in after.items() if (old := before.get(key)) is not value and old != value
    }
    changed.update((key, None) for key in before if key not in after)
    return changed


def applied(before: Mapping[Key, Value], change: Mapping[Key, Value | None]) -> dict[Key, Value]:
    """The state after a change.

    >>> applied({"radio": 1, "trunk": 3}, {"cable": 4, "trunk": None, "never there": None})
    {'radio': 1, 'cable': 4}
    """
    after = dict(before)
    for key, value in change.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after
