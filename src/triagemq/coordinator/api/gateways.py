"""/v1/gateways: who leads clients to which broker, what each has to do; and the WebSocket by which a gateway joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, WebSocket, WebSocketDisconnect

from triagemq.addresses import is_loopback
from triagemq.coordinator.access.tokens import Role
from triagemq.coordinator.api.models import (
    GatewayAnswer,
    MoveAnswer,
    MoveBody,
    QueueAnswer,
    SendAwayAnswer,
    SendAwayBody,
)
from triagemq.coordinator.api.requests import (
    Injected,
    Operator,
    Reader,
    caller_of,
    coordinator_of,
)
from triagemq.coordinator.channel.handle import GatewayHandle
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import ControlError, Measured
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.orders import CONNECTION_MARK, subscriber_of
from triagemq.coordinator.decide.placement import ClientMove
from triagemq.coordinator.refusals import ForbiddenError, MissingError, RequestError
from triagemq.intents import PUBLISHER, SUBSCRIBER, Name

router = APIRouter(prefix="/v1/gateways", tags=["state"])

_POLICY_VIOLATION = 1008
_LONGEST_REASON = 120


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
    wanted = [
        *((PUBLISHER, each) for each in body.publishers),
        *((SUBSCRIBER, each) for each in body.subscribers),
    ]
    for key in wanted:
        coordinator.service.look(caller, key)
    placements = {key: gateways.home_of(key).name for key in wanted}
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
    return SendAwayAnswer(
        told=await coordinator.runtime.send_plain_elsewhere(name, body.client_ids, "an operator")
    )


def _require_known(coordinator: ControlPlane, name: str) -> None:
    names = [each.name for each in coordinator.runtime.gateways]
    if name not in names:
        raise MissingError(f"there is no gateway {name!r}; there are {', '.join(names)}")


def _answer(coordinator: ControlPlane, each: GatewayHandle, count: Counter[tuple[str, str]]) -> GatewayAnswer:
    several = coordinator.runtime.gateways.are_several
    now = each.latest
    connected = each.reconciler.link.connected
    load, clock = each.load, each.clock.best
    return GatewayAnswer(
        name=each.name,
        address=each.address,
        broker=each.broker_shown or coordinator.settings.broker or "",
        problem=each.problem,
        connected=connected,
        broker_connected=each.broker_connected,
        wanted_version=each.reconciler.wanted_version,
        in_force_version=each.reconciler.confirmed_version,
        publishers=count[each.name, PUBLISHER] if several else coordinator.count(PUBLISHER),
        subscribers=count[each.name, SUBSCRIBER] if several else coordinator.count(SUBSCRIBER),
        sessions=None if now is None else now.sessions,
        downlink_bps=None if load is None else load.downlink_bps,
        matched_per_second=None if load is None else load.matched_per_second,
        uplink_bps=None if load is None else load.uplink_bps,
        queues=[] if now is None else _queues(coordinator, now),
        round_trip_seconds={} if now is None else dict(now.round_trips),
        publisher_round_trip_seconds=_round_trips(coordinator, now, PUBLISHER),
        subscriber_round_trip_seconds=_round_trips(coordinator, now, SUBSCRIBER),
        clock_offset_seconds=None if clock is None else clock.offset_seconds,
        clock_error_seconds=None if clock is None else clock.error_seconds,
    )


def _round_trips(coordinator: ControlPlane, now: Measured | None, kind: str) -> dict[str, float]:
    """Of clients of a kind, by name; others than ours have none that people would know them by."""
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
    found = []
    for client_id, flow in now.flows.items():
        if (waiting := flow.backlog_packets) > 0:
            name, _ = subscriber_of(client_id)
            found.append(QueueAnswer(subscriber=name, topics=list(topics.get(name, ())), packets=waiting))
    return found


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
    """A gateway joins under a name, with a token of role gateway where access is on, and is led over this."""
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
