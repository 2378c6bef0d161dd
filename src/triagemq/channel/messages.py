"""Messages between coordinator and gateway: a Unix stream socket, one JSON object a line, both ways.

What a gateway should do is one state with one version, orders and grants together, sent whole or as a change. A
coordinator numbers the states it wants; `author` is its process, so that no other takes its numbers for its own. A
change names the version that it starts from; a gateway that follows another refuses it and gets everything. The
gateway stores each message as it came, and reads what it stores as it reads what it receives.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from triagemq.channel.grants import Grants, GrantsChange
from triagemq.channel.orders import AnyOrdersChange, Orders, describe_error
from triagemq.errors import TriageError
from triagemq.mqttsn import valid_topic_filter
from triagemq.plan.dataplane import FlowCounters, FlowKey, PortCounters

LARGEST_LINE_BYTES = 256 << 20
"""Orders for a hundred thousand flows and a million subscriptions have room in it."""

# sun_path has 108 octets on Linux, fewer elsewhere.
_LONGEST_PATH = 100


class ControlError(TriageError):
    """The gateway cannot be reached over its control socket, or has refused a request."""


class GatewayRefusalError(ControlError):
    """The gateway is there, and refuses."""


# What a gateway should do.

PortConstraints = Mapping[str, Mapping[int, float]]
"""By port and class, how many seconds packets may wait there; what is not named may wait as long as it has to."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """`version` grows with every change; orders and constraints of None are those that the gateway has.

    Constraints are for the control of rates of queues.
    """

    author: str = ""
    version: int = 0
    orders: Orders | None = None
    grants: Grants = field(default_factory=Grants)
    constraints: PortConstraints | None = None


@dataclass(frozen=True, slots=True)
class StateMessage:
    """A state by what it changes in the version `base`; without one, in nothing: then its parts are whole.

    A part that it does not have is as before.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    author: str
    version: Annotated[int, Strict()]
    base: Annotated[int, Strict()] | None = None
    orders: AnyOrdersChange | None = None
    grants: GrantsChange | None = None
    constraints: PortConstraints | None = None

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
            before.constraints if self.constraints is None else self.constraints,
        )


def state_message(before: DesiredState | None, after: DesiredState) -> StateMessage:
    """The message of a state: the difference from `before`, if that is known, else everything.

    >>> before = DesiredState("a1", 4, Orders(1), Grants(True))
    >>> state_message(before, DesiredState("a1", 5, before.orders, Grants(False)))
    StateMessage(author='a1', version=5, base=4, orders=None, grants=GrantsChange(required=False, by_base={}), ...)
    """
    knows_orders = before is not None and (before.orders is not None or after.orders is None)
    if before is not None and knows_orders and before.author == after.author:
        orders = grants = constraints = None
        if after.grants is not before.grants:
            grants = after.grants.since(before.grants)
        if after.orders is not None and after.orders is not before.orders:
            orders = after.orders.since(before.orders or Orders())
        if after.constraints != before.constraints:
            constraints = after.constraints
        return StateMessage(after.author, after.version, before.version, orders, grants, constraints)
    return StateMessage(
        after.author,
        after.version,
        orders=None if after.orders is None else after.orders.since(Orders()),
        grants=after.grants.since(Grants()),
        constraints=after.constraints,
    )


_STATE = TypeAdapter(StateMessage)


def parse_state(message: Mapping[str, Any]) -> StateMessage:
    """A message as it came; ControlError says what is wrong with it."""
    try:
        found = _STATE.validate_python(
            {name: part for name, part in message.items() if name not in ("id", "do")}
        )
    except ValidationError as error:
        raise ControlError(f"a state that is none: {describe_error(error, depth=2)}") from None
    parts = (
        found.orders
        and (found.orders.flows, found.orders.topics, found.orders.copies, found.orders.limiters),
        found.grants and (found.grants.by_base,),
    )
    if found.base is None and any(None in part.values() for each in parts for part in each or ()):
        raise ControlError("a change needs the `base` that it changes")
    return found


# What it is and does.

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Something counted; what is none must not become a rate."""

RoundTrip = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Seconds."""


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """Where a gateway listens, for its clients, and the URL of its broker, for its peers."""

    listen: str
    broker: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PortDelays:
    """A port whose queue rates are controlled: those in force, and the mean delays of its queues, class 0 first.

    `cannot_hold` are the classes whose constraint does not fit with those of others.
    """

    queue_rates_bps: tuple[int, ...]
    delay_seconds: tuple[float, ...]
    cannot_hold: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedClient:
    """A client that subscribes and that no REST call has announced, as its gateway sees it.

    `subscriptions` are its filters, each with the terms that the client itself stated there, as text
    (`log:10;max_rate=2`), or with "". `user` is the name that the broker let it in with.
    """

    client_id: str
    address: str = ""
    user: str = ""
    subscriptions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObservedChange:
    """Observed clients that are new or different, None for those that are gone; `whole`: there are no others."""

    clients: Mapping[str, ObservedClient | None] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A gateway at one instant. Numbers count from its start, which has an `epoch` of its own.

    `topics` are publications and payload bytes since then, each publication counted once; if an earlier `mark` was
    given, those that have changed since, and `begun` are those of them that were counted from 0 since. `observed` are
    changes since that mark, too. What was
    published before `broker_since_ns` may have come late, or not at all; None while there is no broker. `author` and
    `version` name the state that it follows, `generation` its orders, and `carried` those that all have carried out who
    follow it: None if none does. `planned_drops` are copies that the plan drops, by class, `managed` ports whose
    queue rates are controlled, `round_trips` the seconds to the brokers of other gateways and back, and
    `client_round_trips` those to clients. Flows and clients have the names of orders, whatever ids they connect with.
    """

    epoch: str
    at_ns: int
    topics: Mapping[str, tuple[Count, Count]]
    counters: Mapping[str, Any]
    ports: Mapping[str, PortCounters]
    flows: Mapping[str, FlowCounters]
    generation: int
    sessions: int
    broker_connected: bool
    broker_problem: str = ""
    storage_problem: str = ""
    author: str = ""
    version: int = 0
    broker_since_ns: int | None = None
    begun: Sequence[str] = ()
    mark: str = ""
    carried: int | None = None
    managed: Mapping[str, PortDelays] = field(default_factory=dict)
    planned_drops: Mapping[int, Count] = field(default_factory=dict)
    round_trips: Mapping[str, RoundTrip] = field(default_factory=dict)
    client_round_trips: Mapping[str, RoundTrip] = field(default_factory=dict)
    observed: ObservedChange = field(default_factory=ObservedChange)

    def count(self, name: str) -> int:
        """A plain counter; 0 if there is none of that name."""
        value = self.counters.get(name)
        return value if isinstance(value, int) else 0


@dataclass(frozen=True, slots=True)
class PresentClient:
    """A client that is connected; `flow` is what orders call its flow, whatever id it connects with."""

    client_id: str
    endpoint: tuple[str, int]
    flow: str = ""


@dataclass(frozen=True, slots=True)
class GatewaySessions:
    """Clients that are connected, and the flows of those that are away and whose sessions are `stored`."""

    sessions: Sequence[PresentClient]
    stored: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GatewayNews:
    """What others than the coordinator follow of a gateway's process: the generation of the orders in force, and how
    often its brokers have taken subscriptions."""

    epoch: str
    generation: int
    subscriptions: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """What queues behind a gateway had counted, of all ports and promised flows."""

    ports: Mapping[str, PortCounters]
    flows: Sequence[tuple[FlowKey, FlowCounters]]
    at_ns: int


def _checked_filter(text: str) -> str:
    if not valid_topic_filter(text):
        raise ValueError("no topic filter")
    return text


_Parsed = TypeVar("_Parsed")


def part_parser(name: str, kind: TypeAdapter[_Parsed], depth: int = 1) -> Callable[[object], _Parsed]:
    """Reads a part of a message; ControlError says what is wrong with it, with names down to a depth."""

    def parse(value: object) -> _Parsed:
        try:
            return kind.validate_python(value)
        except ValidationError as error:
            raise ControlError(f"{name}: {describe_error(error, depth)}") from None

    return parse


parse_counted = part_parser("queues", TypeAdapter(Counted))
parse_managed = part_parser("managed", TypeAdapter(dict[str, PortDelays]))
parse_constraints = part_parser("constraints", TypeAdapter(dict[str, dict[int, float]]))
parse_expected = part_parser(
    "sessions",
    TypeAdapter(
        dict[str, dict[Annotated[str, AfterValidator(_checked_filter)], Annotated[int, Field(ge=0, le=2)]]]
    ),
    depth=0,
)
"""Clients on their way: by client id, their filters with QoS."""


# How it is said.


def shallow(record: Any) -> dict[str, Any]:
    """What a record says, by name; what is None is left out."""
    said = ((one.name, getattr(record, one.name)) for one in fields(record))
    return {name: value for name, value in said if value is not None}


def encode_line(message: dict[str, Any]) -> bytes:
    """One object, with its end of line; records in it become objects, too."""
    return to_json(message, inf_nan_mode="strings") + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """The object of a line; ControlError if it holds none."""
    try:
        message = from_json(line)
    except ValueError:
        raise ControlError("control channel: a line that is not JSON") from None
    if not isinstance(message, dict):
        raise ControlError("control channel: a line that is not a JSON object")
    return message


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket by which the kernel can find it: paths of sockets must be short, those of files need not.

    A long one goes through a descriptor of its directory; it serves for bind and connect, inside the `with` only.
    """
    absolute = str(path.absolute())
    if len(os.fsencode(absolute)) <= _LONGEST_PATH:
        yield absolute
        return
    directory = os.open(path.absolute().parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listening_at(path: Path) -> socket.socket:
    """A socket in the place of what an earlier process left there; only this user may connect."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        with reachable(path) as name:
            listening.bind(name)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening
