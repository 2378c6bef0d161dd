"""/v1/gateways: gateways, their brokers and load; and the WebSocket by which a gateway joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field

from triagemq.addresses import is_loopback
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import ControlError, Measured
from triagemq.channel.orders import subscriber_of
from triagemq.client.connection import CONNECTION_MARK
from triagemq.coordinator.access.tokens import Role
from triagemq.coordinator.api.requests import Body, Injected, Operator, Reader, caller_of, coordinator_of
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.placement import ClientMove
from triagemq.coordinator.gateways.handle import GatewayHandle
from triagemq.coordinator.refusals import ForbiddenError, MissingError, RequestError
from triagemq.intents import PUBLISHER, SUBSCRIBER, Name

router = APIRouter(prefix="/v1/gateways", tags=["state"])

_POLICY_VIOLATION = 1008
_LONGEST_REASON = 120
_LOAD = ("downlink_bps", "matched_per_second", "uplink_bps")


class MoveBody(Body):
    """Clients that are to go to a gateway, by name."""

    publishers: list[Name] = Field(default_factory=list, max_length=100_000)
    subscribers: list[Name] = Field(default_factory=list, max_length=100_000)


class MoveAnswer(BaseModel):
    """The number of clients that move; those that were there already stay."""

    moved: int


class SendAwayBody(Body):
    """Plain MQTT-SN clients that are to look for another gateway, by client id; all of them if none is named."""

    client_ids: Annotated[list[str], Field(max_length=100_000)] | None = None


class SendAwayAnswer(BaseModel):
    """How many clients are disconnected."""

    disconnected: int


class QueueAnswer(BaseModel):
    """Packets that wait at a gateway for a subscriber, with these topics, which share a flow."""

    subscriber: str
    topics: list[str]
    packets: int


class GatewayAnswer(BaseModel):
    """A gateway, its broker, and what it has done in the last second.

    Downlink is what came in from clients and brokers, uplink what left for subscribers, both on the wire but for the
    brokers' part, of which it is payloads; matched are the messages that it looked up subscribers for. What was not
    measured yet is null. `round_trip_seconds` are to the brokers of other gateways and back, and those of publishers
    and subscribers to clients.
    """

    name: str
    address: str
    broker: str
    problem: str
    connected: bool
    broker_connected: bool | None
    wanted_version: int
    in_force_version: int | None
    publishers: int
    subscribers: int
    sessions: int | None
    downlink_bps: float | None = None
    matched_per_second: float | None = None
    uplink_bps: float | None = None
    queues: list[QueueAnswer]
    round_trip_seconds: dict[str, float]
    publisher_round_trip_seconds: dict[str, float]
    subscriber_round_trip_seconds: dict[str, float]


@router.get("")
async def gateways(caller: Reader, coordinator: Injected) -> list[GatewayAnswer]:
    """All gateways."""
    count = Counter((home, kind) for (kind, _), home in coordinator.runtime.gateways.placements)
    return [_answer(coordinator, each, count) for each in coordinator.runtime.gateways]


@router.post("/{name}/clients")
async def move(
    name: Annotated[Name, Path()], body: MoveBody, caller: Operator, coordinator: Injected
) -> MoveAnswer:
    """Send clients to a gateway; they go without losing or repeating an event."""
    gateways = coordinator.runtime.gateways
    _require_known(coordinator, name)
    keys = [
        *((PUBLISHER, each) for each in body.publishers),
        *((SUBSCRIBER, each) for each in body.subscribers),
    ]
    for key in keys:
        coordinator.service.look(caller, key)
    placements = {key: gateways.home_of(key).name for key in keys}
    moves = [
        ClientMove(key, home, name, "an operator wants it there")
        for key, home in placements.items()
        if home != name
    ]
    await coordinator.runtime.move(moves)
    return MoveAnswer(moved=len(moves))


@router.post("/{name}/sent-away")
async def send_away(
    name: Annotated[Name, Path()], body: SendAwayBody, caller: Operator, coordinator: Injected
) -> SendAwayAnswer:
    """Have plain MQTT-SN clients of a gateway look for another; they lose what is queued for them."""
    _require_known(coordinator, name)
    count = await coordinator.runtime.send_plain_elsewhere(name, body.client_ids, "an operator")
    return SendAwayAnswer(disconnected=count)


def _require_known(coordinator: ControlPlane, name: str) -> None:
    names = [each.name for each in coordinator.runtime.gateways]
    if name not in names:
        raise MissingError(f"there is no gateway {name!r}; there are {', '.join(names)}")


def _answer(coordinator: ControlPlane, each: GatewayHandle, count: Counter[tuple[str, str]]) -> GatewayAnswer:
    now, load = each.latest, each.load
    clients = {
        kind: count[each.name, kind]
        if coordinator.runtime.gateways.are_several
        else coordinator.service.registry.count(kind)
        for kind in (PUBLISHER, SUBSCRIBER)
    }
    return GatewayAnswer(
        name=each.name,
        address=each.address,
        broker=each.broker_shown or coordinator.settings.broker or "",
        problem=each.problem,
        connected=each.reconciler.link.connected,
        broker_connected=each.broker_connected,
        wanted_version=each.reconciler.wanted_version,
        in_force_version=each.reconciler.confirmed_version,
        publishers=clients[PUBLISHER],
        subscribers=clients[SUBSCRIBER],
        sessions=None if now is None else now.sessions,
        queues=[] if now is None else _queues(coordinator, now),
        round_trip_seconds={} if now is None else dict(now.round_trips),
        publisher_round_trip_seconds=_round_trips(coordinator, now, PUBLISHER),
        subscriber_round_trip_seconds=_round_trips(coordinator, now, SUBSCRIBER),
        **{} if load is None else {name: getattr(load, name) for name in _LOAD},
    )


def _round_trips(coordinator: ControlPlane, now: Measured | None, kind: str) -> dict[str, float]:
    """Of clients of a kind, by name; plain clients have no name."""
    found, marked = {} if now is None else now.client_round_trips, kind == SUBSCRIBER
    named = {
        subscriber_of(each)[0] if marked else each: seconds
        for each, seconds in found.items()
        if (CONNECTION_MARK in each) == marked
    }
    placements = coordinator.runtime.gateways.placements
    return {name: seconds for name, seconds in named.items() if placements.has((kind, name))}


def _queues(coordinator: ControlPlane, now: Measured) -> list[QueueAnswer]:
    topics = coordinator.runtime.assignments.orders.topics
    waiting = {
        subscriber_of(client_id)[0]: flow.backlog_packets
        for client_id, flow in now.flows.items()
        if flow.backlog_packets > 0
    }
    return [
        QueueAnswer(subscriber=name, topics=list(topics.get(name, ())), packets=packets)
        for name, packets in waiting.items()
    ]


class _Lines:
    """A WebSocket as a link needs it: where lines go, and from where they come."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._unsent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._unsent.append(data)

    async def drain(self) -> None:
        unsent, self._unsent = self._unsent, []
        for line in unsent:
            try:
                await self._socket.send_bytes(line)
            except (WebSocketDisconnect, RuntimeError) as error:
                raise ConnectionError(str(error)) from None

    def close(self) -> None:
        """The WebSocket's owner closes it."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield await self._socket.receive_bytes()
        except (WebSocketDisconnect, RuntimeError, KeyError):
            return


@router.websocket("/{name}/channel")
async def channel(socket: WebSocket, name: Annotated[Name, Path()]) -> None:
    """The channel of a gateway that joins under a name, with a token of role gateway where access is on."""
    coordinator = coordinator_of(socket)
    try:
        if "origin" in socket.headers:
            raise ForbiddenError("a gateway is no web page")
        caller = await caller_of(socket)
        caller.require(Role.GATEWAY)
        caller.require_name(name)
    except RequestError:
        await socket.close(_POLICY_VIOLATION)
        return
    await socket.accept()
    # Over a Unix socket there is no address.
    host = (socket.client.host if socket.client is not None else "") or "127.0.0.1"
    reached, _ = socket.scope.get("server") or ("", None)
    is_here = is_loopback(host) or host == reached
    link = GatewayLink()

    async def joined() -> None:
        try:
            await coordinator.runtime.gateway_joined(name, link, host, is_here=is_here)
        except (RequestError, ControlError) as error:
            await socket.close(_POLICY_VIOLATION, str(error)[:_LONGEST_REASON])

    lines = _Lines(socket)
    await link.attend(lines, lines, joined)
