"""/v1/publishers, /v1/subscribers, /v1/intents: announce, change, read, withdraw, keep alive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field

from triagemq.addresses import reached_by
from triagemq.client.coordinator import Assignment, Direction, LimitedClaim, Promise, RequiredDelay
from triagemq.coordinator.access.tokens import Caller, Role
from triagemq.coordinator.api.requests import NOT_YET, AnyCaller, Body, Injected, gone
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.loop.figures import Received
from triagemq.intents import (
    PUBLISHER,
    SUBSCRIBER,
    Intent,
    Name,
    PublisherIntent,
    PublisherTerms,
    SubscriberIntent,
    SubscriberTerms,
    TopicText,
)
from triagemq.mqttsn.filters import matches

router = APIRouter(prefix="/v1", tags=["intents"])

_LOOK_SECONDS = 0.05
_MOST_DELAYS = 100

NamePath = Annotated[Name, Path(description="The name it was announced with.")]
After = Annotated[int, Query(ge=0, le=2**53)]
WaitSeconds = Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)]


MOST_ITEMS = 1_000_000


class HeartbeatBody(Body):
    """A sign of life, and what was received since the last one.

    `number` is the report's own: the same number again is the same report, and counts once.
    """

    number: Annotated[int, Field(ge=0, le=2**53)] | None = None
    received: dict[TopicText, Received] = Field(default_factory=dict, max_length=100_000)


class AnnounceBody(Body):
    publishers: list[PublisherIntent] = Field(default_factory=list, max_length=MOST_ITEMS)
    subscribers: list[SubscriberIntent] = Field(default_factory=list, max_length=MOST_ITEMS)


class WithdrawBody(Body):
    publishers: list[Name] = Field(default_factory=list, max_length=MOST_ITEMS)
    subscribers: list[Name] = Field(default_factory=list, max_length=MOST_ITEMS)


class BulkRequest(Body):
    """Many changes at once: all happen, or none."""

    announce: AnnounceBody = AnnounceBody()
    withdraw: WithdrawBody = WithdrawBody()


class ConnectionAnswer(BaseModel):
    """Where and as whom to connect; a subscriber appends `~0` to the client id.

    `may_move`: there are other gateways, and it may be sent to another (see `gateway` of the assignment).
    """

    gateway: str
    client_id: str
    broker: str | None = None
    may_move: bool = False


class AnnouncedAnswer(BaseModel):
    """`in_force`: the gateway follows a plan that knows this intent."""

    name: str
    lease_seconds: float
    generation: int
    in_force: bool
    connection: ConnectionAnswer
    promises: list[Promise] | None = None


class SubscriberAnswer(AnnouncedAnswer):
    """`delays`: what became of delays that are required at ports with controlled queue rates; `limited_claims`: as in
    the answer to a heartbeat. `flows` has no effect."""

    subscriptions: list[dict[str, Any]] | None = None
    port: str | None = None
    flows: int | None = None
    delays: list[RequiredDelay] | None = None
    limited_claims: list[LimitedClaim] | None = None


class PublisherAnswer(AnnouncedAnswer):
    publications: list[dict[str, Any]] | None = None
    source_address: str | None = None


class PromisesAnswer(BaseModel):
    """What was decided about guaranteed subscriptions; `in_force` as with the subscriber.

    `waiting` are those without a publication yet.
    """

    generation: int
    in_force: bool
    promises: list[Promise]
    waiting: list[str]


class SubscriberHeartbeatAnswer(BaseModel):
    """`refused_delays`: required delays that no port can meet; `limited_claims`: what the policy refuses of the
    claims, or scales to the budget. At most 100 of each."""

    lease_seconds: float
    generation: int
    refused_delays: list[RequiredDelay]
    limited_claims: list[LimitedClaim]


class PublisherHeartbeatAnswer(BaseModel):
    """`slow_down`: the topics that it is to publish no more often than so many times a second."""

    lease_seconds: float
    generation: int
    slow_down: dict[str, float]


class BulkAnswer(BaseModel):
    """One connection for each name that was announced. `rights_in_force`: the gateway knows who may do what by now."""

    generation: int
    publishers: dict[str, ConnectionAnswer]
    subscribers: dict[str, ConnectionAnswer]
    withdrawn: int
    rights_in_force: bool


def _answer(coordinator: ControlPlane, caller: Caller, record: Record, **more: Any) -> Any:
    """The answer to an announcement, and with `more` to a request to read it."""
    answer = SubscriberAnswer if record.key[0] == SUBSCRIBER else PublisherAnswer
    return answer(
        name=record.intent.name,
        lease_seconds=record.intent.lease_seconds,
        generation=coordinator.runtime.generation,
        in_force=coordinator.runtime.is_in_force(record.key),
        connection=_connection(coordinator, caller, record),
    ).model_copy(update=more)


def _connection(coordinator: ControlPlane, caller: Caller, record: Record) -> ConnectionAnswer:
    """Where and as whom to connect; a viewer does not get the key."""
    gateways, broker = coordinator.runtime.gateways, coordinator.settings.broker
    kind, name = record.key
    is_publisher = kind == PUBLISHER
    return ConnectionAnswer(
        gateway=gateways.address_of(record.key, caller.reached),
        may_move=gateways.are_several,
        client_id=record.client_id_base(coordinator.service.access) if caller.owns(record.owner) else name,
        broker=reached_by(broker, caller.reached) if is_publisher and broker is not None else None,
    )


def _promises(coordinator: ControlPlane, record: Record) -> list[Promise]:
    """Those of a subscriber or of a publisher."""
    kind, name = record.key
    return [each for each in coordinator.promises() if getattr(each, kind) == name]


def _kind(request: Request) -> str:
    """The kind of client that a path is about."""
    return SUBSCRIBER if request.scope["route"].path.startswith("/v1/subscribers") else PUBLISHER


Kind = Annotated[str, Depends(_kind)]


def _key(kind: Kind, name: NamePath) -> Key:
    return kind, name


KeyOfPath = Annotated[Key, Depends(_key)]


async def _announce(
    intent: Intent, caller: Caller, coordinator: ControlPlane, response: Response | None = None
) -> Any:
    if response is not None:
        is_known = coordinator.service.registry.get((intent.kind, intent.name)) is not None
        response.status_code = 200 if is_known else 201
    return _answer(coordinator, caller, *await coordinator.service.change(caller, [intent]))


@router.post("/subscribers", status_code=201)
async def announce_subscriber(
    intent: SubscriberIntent, caller: AnyCaller, coordinator: Injected
) -> SubscriberAnswer:
    """Announce a subscriber and its subscriptions; the same name again replaces them."""
    return await _announce(intent, caller, coordinator)  # type: ignore[no-any-return]


@router.put("/subscribers/{name}", responses={201: {"model": SubscriberAnswer}})
async def change_subscriber(
    name: NamePath, terms: SubscriberTerms, caller: AnyCaller, coordinator: Injected, response: Response
) -> SubscriberAnswer:
    """Replace the subscriptions of a subscriber, or announce it (201)."""
    return await _announce(terms.named(name), caller, coordinator, response)  # type: ignore[no-any-return]


@router.post("/publishers", status_code=201)
async def announce_publisher(
    intent: PublisherIntent, caller: AnyCaller, coordinator: Injected
) -> PublisherAnswer:
    """Announce a publisher and its publications; the same name again replaces them."""
    return await _announce(intent, caller, coordinator)  # type: ignore[no-any-return]


@router.put("/publishers/{name}", responses={201: {"model": PublisherAnswer}})
async def change_publisher(
    name: NamePath, terms: PublisherTerms, caller: AnyCaller, coordinator: Injected, response: Response
) -> PublisherAnswer:
    """Replace the publications of a publisher, or announce it (201)."""
    return await _announce(terms.named(name), caller, coordinator, response)  # type: ignore[no-any-return]


@router.get("/subscribers/{name}", response_model=SubscriberAnswer)
@router.get("/publishers/{name}", response_model=PublisherAnswer)
async def read_client(key: KeyOfPath, caller: AnyCaller, coordinator: Injected) -> Any:
    """What is announced, and what became of it."""
    record = coordinator.service.look(caller, key)
    more = record.intent.as_json() | {"promises": _promises(coordinator, record)}
    if key[0] == SUBSCRIBER:
        more["delays"] = coordinator.delays.of(record.intent.name)
        more["limited_claims"] = coordinator.limited_claims(record.intent.name)
    return _answer(coordinator, caller, record, **more)


@router.get("/subscribers")
@router.get("/publishers")
async def list_clients(kind: Kind, caller: AnyCaller, coordinator: Injected) -> list[str]:
    """Names: your own, or for operators and viewers all."""
    if not caller.may_look:
        caller.require(Role(kind))
    registry = coordinator.service.registry
    records = registry if caller.may_look else registry.owned_by(caller.owner)
    return sorted(record.intent.name for record in records if record.key[0] == kind)


@router.delete("/subscribers/{name}", status_code=204, responses=NOT_YET)
@router.delete("/publishers/{name}", status_code=204, responses=NOT_YET)
async def withdraw_client(key: KeyOfPath, caller: AnyCaller, coordinator: Injected) -> Response:
    await coordinator.service.change(caller, withdraw=[key])
    return await gone(coordinator)


@router.post("/subscribers/{name}/heartbeat")
async def renew_subscriber(
    key: KeyOfPath, caller: AnyCaller, coordinator: Injected, body: HeartbeatBody | None = None
) -> SubscriberHeartbeatAnswer:
    """Heartbeat: the lease begins anew. May report what was received since the last one.

    The answer names the required delays that are refused.
    """
    record = coordinator.service.heartbeat(caller, key)
    assigned = coordinator.runtime.assignments.of(record.intent.name)
    body = body or HeartbeatBody()
    if coordinator.service.is_new_report(record, body.number):
        coordinator.received(record, assigned, body.received)
    delays = coordinator.delays.of(record.intent.name)
    return SubscriberHeartbeatAnswer(
        lease_seconds=record.intent.lease_seconds,
        generation=assigned.generation,
        refused_delays=[each for each in delays if each.refused][:_MOST_DELAYS],
        limited_claims=coordinator.limited_claims(record.intent.name)[:_MOST_DELAYS],
    )


@router.post("/publishers/{name}/heartbeat")
async def renew_publisher(
    key: KeyOfPath, caller: AnyCaller, coordinator: Injected
) -> PublisherHeartbeatAnswer:
    """Heartbeat: the lease begins anew. The answer may limit the rate of some topics."""
    record = coordinator.service.heartbeat(caller, key)
    return PublisherHeartbeatAnswer(
        lease_seconds=record.intent.lease_seconds,
        generation=coordinator.runtime.generation,
        slow_down=coordinator.delays.slow_down(record.intent.name, time.monotonic()),
    )


async def _gateway_after_change(
    key: KeyOfPath,
    caller: AnyCaller,
    coordinator: Injected,
    after: After = 0,
    wait_seconds: WaitSeconds = 0.0,
) -> str:
    """The gateway of a client, once a generation after `after` has changed something for it, or time is up."""
    coordinator.service.look(caller, key)
    await coordinator.runtime.assignments.wait(key, after, wait_seconds)
    coordinator.service.look(caller, key)
    return coordinator.runtime.gateways.news_for(key, caller.reached)


GatewayAfterChange = Annotated[str, Depends(_gateway_after_change)]


@router.get("/subscribers/{name}/assignment")
async def read_assignment(name: NamePath, gateway: GatewayAfterChange, coordinator: Injected) -> Assignment:
    """Class and drop rate of each topic; waits until a generation after `after` changes that."""
    return replace(coordinator.runtime.assignments.of(name), gateway=gateway)


@router.get("/publishers/{name}/direct")
async def read_direction(name: NamePath, gateway: GatewayAfterChange, coordinator: Injected) -> Direction:
    """Topics that go to subscribers without a broker, and where to; waits until a generation after `after` changes it.

    Their events go to the gateway as well, over the connection `~999` of the client id: so it knows who has them.
    """
    return replace(coordinator.runtime.assignments.direction(name), gateway=gateway)


@router.get("/subscribers/{name}/promises")
async def read_promises(
    key: KeyOfPath, caller: AnyCaller, coordinator: Injected, wait_seconds: WaitSeconds = 0.0
) -> PromisesAnswer:
    """What was decided about its guaranteed subscriptions; waits until its latest intent is in force."""
    end_at = time.monotonic() + wait_seconds
    record = coordinator.service.look(caller, key)
    while not coordinator.runtime.is_in_force(key) and time.monotonic() < end_at:
        await asyncio.sleep(min(_LOOK_SECONDS, max(end_at - time.monotonic(), 0.0)))
        record = coordinator.service.look(caller, key)
    promises = _promises(coordinator, record)
    topics = [each.topic for each in promises]
    requested = record.intent.subscriptions if isinstance(record.intent, SubscriberIntent) else ()
    return PromisesAnswer(
        generation=coordinator.runtime.generation,
        in_force=coordinator.runtime.is_in_force(key),
        promises=promises,
        waiting=[
            each.topic
            for each in requested
            if each.guaranteed and not any(matches(each.topic, topic) for topic in topics)
        ],
    )


@router.post("/intents")
async def change_many(body: BulkRequest, caller: AnyCaller, coordinator: Injected) -> BulkAnswer:
    """Announce and withdraw many at once: all of it happens, or nothing."""
    withdraw = [
        *((PUBLISHER, name) for name in body.withdraw.publishers),
        *((SUBSCRIBER, name) for name in body.withdraw.subscribers),
    ]
    records = await coordinator.service.change(
        caller, [*body.announce.publishers, *body.announce.subscribers], withdraw
    )
    connections: dict[str, dict[str, ConnectionAnswer]] = {PUBLISHER: {}, SUBSCRIBER: {}}
    for record in records:
        kind, name = record.key
        connections[kind][name] = _connection(coordinator, caller, record)
    return BulkAnswer(
        generation=coordinator.runtime.generation,
        publishers=connections[PUBLISHER],
        subscribers=connections[SUBSCRIBER],
        withdrawn=len(withdraw),
        rights_in_force=await coordinator.runtime.rights_in_force(),
    )
