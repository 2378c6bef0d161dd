"""/v1/publishers, /v1/subscribers, /v1/intents: announce, change, read, withdraw, keep alive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from triagemq.client.coordinator import Direction, Promise
from triagemq.coordinator.access.tokens import Caller, Role
from triagemq.coordinator.api.models import (
    NOT_YET,
    AssignmentAnswer,
    BulkAnswer,
    BulkRequest,
    ConnectionAnswer,
    HeartbeatBody,
    PromisesAnswer,
    PublisherAnswer,
    PublisherHeartbeatAnswer,
    SubscriberAnswer,
    SubscriberHeartbeatAnswer,
    gone,
)
from triagemq.coordinator.api.requests import AnyCaller, Injected
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.intents.registry import Record
from triagemq.exchange.exposure import reached_by
from triagemq.intents import (
    PUBLISHER,
    SUBSCRIBER,
    Name,
    PublisherIntent,
    PublisherTerms,
    SubscriberIntent,
    SubscriberTerms,
)
from triagemq.mqttsn.filters import matches

router = APIRouter(prefix="/v1", tags=["intents"])

_LOOK_SECONDS = 0.05
_MOST_DELAYS = 100

NamePath = Annotated[Name, Path(description="The name it was announced with.")]


def _subscriber(
    coordinator: ControlPlane, caller: Caller, record: Record, *, whole: bool = False
) -> SubscriberAnswer:
    return SubscriberAnswer(
        connection=ConnectionAnswer(**_whereto(coordinator, caller, record), flows=1),
        **_told(coordinator, record, whole),
        promises=_promises(coordinator, record) if whole else None,
        delays=coordinator.delays.of(record.intent.name) if whole else None,
    )


def _publisher(
    coordinator: ControlPlane, caller: Caller, record: Record, *, whole: bool = False
) -> PublisherAnswer:
    broker = (
        None
        if coordinator.settings.broker is None
        else reached_by(coordinator.settings.broker, caller.reached)
    )
    return PublisherAnswer(
        connection=ConnectionAnswer(**_whereto(coordinator, caller, record), broker=broker),
        **_told(coordinator, record, whole),
        promises=_promises(coordinator, record) if whole else None,
    )


def _promises(coordinator: ControlPlane, record: Record) -> list[Promise]:
    """Those of a subscriber or of a publisher."""
    kind, name = record.key
    return [each for each in coordinator.promises() if getattr(each, kind) == name]


def _told(coordinator: ControlPlane, record: Record, whole: bool) -> dict[str, Any]:
    """The answer about every record, and with `whole` the intent of its client."""
    return {
        "name": record.intent.name,
        "lease_seconds": record.intent.lease_seconds,
        "generation": coordinator.runtime.generation,
        "in_force": coordinator.runtime.is_in_force(record.key),
    } | (record.intent.as_json() if whole else {})


def _whereto(coordinator: ControlPlane, caller: Caller, record: Record) -> dict[str, Any]:
    """Where and as whom; a viewer does not get the key."""
    return {
        "gateway": coordinator.runtime.gateways.address_of(record.key, caller.reached),
        "may_move": coordinator.runtime.gateways.are_several,
        "client_id": coordinator.rights.client_id_base(record)
        if caller.owns(record.owner)
        else record.intent.name,
    }


@router.post("/subscribers", status_code=201)
async def announce_subscriber(
    intent: SubscriberIntent, caller: AnyCaller, coordinator: Injected
) -> SubscriberAnswer:
    """Say what a subscriber wants; the same name again replaces what it wanted."""
    return _subscriber(coordinator, caller, *await coordinator.service.change(caller, [intent]))


@router.put("/subscribers/{name}", responses={201: {"model": SubscriberAnswer}})
async def change_subscriber(
    name: NamePath, terms: SubscriberTerms, caller: AnyCaller, coordinator: Injected, response: Response
) -> SubscriberAnswer:
    """Replace what a subscriber wants, or announce it (201)."""
    response.status_code = 200 if coordinator.service.registry.get((SUBSCRIBER, name)) else 201
    return await announce_subscriber(terms.named(name), caller, coordinator)


@router.get("/subscribers/{name}")
async def read_subscriber(name: NamePath, caller: AnyCaller, coordinator: Injected) -> SubscriberAnswer:
    return _subscriber(coordinator, caller, coordinator.service.look(caller, (SUBSCRIBER, name)), whole=True)


@router.get("/subscribers")
async def list_subscribers(caller: AnyCaller, coordinator: Injected) -> list[str]:
    """Names: your own, or for operators and viewers all."""
    return _names(coordinator, caller, SUBSCRIBER)


@router.delete("/subscribers/{name}", status_code=204, responses=NOT_YET)
async def withdraw_subscriber(name: NamePath, caller: AnyCaller, coordinator: Injected) -> Response:
    await coordinator.service.change(caller, withdraw=[(SUBSCRIBER, name)])
    return await gone(coordinator)


@router.post("/subscribers/{name}/heartbeat")
async def keep_subscriber(
    name: NamePath, caller: AnyCaller, coordinator: Injected, body: HeartbeatBody | None = None
) -> SubscriberHeartbeatAnswer:
    """A sign of life: the lease begins anew. May say what was received since the last one.

    The answer names the required delays that are refused.
    """
    record = coordinator.service.heartbeat(caller, (SUBSCRIBER, name))
    assigned = coordinator.runtime.assignments.of(name)
    if body is None:
        coordinator.received(record, assigned, {})
    elif coordinator.service.is_new_report(record, body.number):
        coordinator.received(record, assigned, body.received)
    delays = coordinator.delays.of(name)
    return SubscriberHeartbeatAnswer(
        lease_seconds=record.intent.lease_seconds,
        generation=assigned.generation,
        flows=1,
        refused_delays=[each for each in delays if each.refused][:_MOST_DELAYS],
    )


@router.get("/subscribers/{name}/assignment")
async def read_assignment(
    name: NamePath,
    caller: AnyCaller,
    coordinator: Injected,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    wait_seconds: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
) -> AssignmentAnswer:
    """Which flow, class and drop rate each topic has; waits until a generation after `after` changes that."""
    coordinator.service.look(caller, (SUBSCRIBER, name))
    await coordinator.runtime.assignments.subscribers.wait(name, after, wait_seconds)
    coordinator.service.look(caller, (SUBSCRIBER, name))
    found = asdict(coordinator.runtime.assignments.of(name))
    gateway = coordinator.runtime.gateways.news_for((SUBSCRIBER, name), caller.reached)
    return AssignmentAnswer(**{**found, "gateway": gateway, "slots": dict.fromkeys(found["classes"], 0)})


@router.get("/subscribers/{name}/promises")
async def read_promises(
    name: NamePath,
    caller: AnyCaller,
    coordinator: Injected,
    wait_seconds: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
) -> PromisesAnswer:
    """What was decided about its guaranteed subscriptions; waits until its latest intent is in force."""
    end_at = time.monotonic() + wait_seconds
    key = (SUBSCRIBER, name)
    record = coordinator.service.look(caller, key)
    while not coordinator.runtime.is_in_force(key) and time.monotonic() < end_at:
        await asyncio.sleep(min(_LOOK_SECONDS, max(end_at - time.monotonic(), 0.0)))
        record = coordinator.service.look(caller, key)
    promises = _promises(coordinator, record)
    topics = [each.topic for each in promises]
    wanted = record.intent.subscriptions if isinstance(record.intent, SubscriberIntent) else ()
    return PromisesAnswer(
        generation=coordinator.runtime.generation,
        in_force=coordinator.runtime.is_in_force(key),
        promises=promises,
        waiting=[
            each.topic
            for each in wanted
            if each.guaranteed and not any(matches(each.topic, topic) for topic in topics)
        ],
    )


@router.post("/publishers", status_code=201)
async def announce_publisher(
    intent: PublisherIntent, caller: AnyCaller, coordinator: Injected
) -> PublisherAnswer:
    """Say what a publisher will publish; the same name again replaces what it said."""
    return _publisher(coordinator, caller, *await coordinator.service.change(caller, [intent]))


@router.put("/publishers/{name}", responses={201: {"model": PublisherAnswer}})
async def change_publisher(
    name: NamePath, terms: PublisherTerms, caller: AnyCaller, coordinator: Injected, response: Response
) -> PublisherAnswer:
    """Replace what a publisher publishes, or announce it (201)."""
    response.status_code = 200 if coordinator.service.registry.get((PUBLISHER, name)) else 201
    return await announce_publisher(terms.named(name), caller, coordinator)


@router.get("/publishers/{name}")
async def read_publisher(name: NamePath, caller: AnyCaller, coordinator: Injected) -> PublisherAnswer:
    return _publisher(coordinator, caller, coordinator.service.look(caller, (PUBLISHER, name)), whole=True)


@router.get("/publishers")
async def list_publishers(caller: AnyCaller, coordinator: Injected) -> list[str]:
    """Names: your own, or for operators and viewers all."""
    return _names(coordinator, caller, PUBLISHER)


@router.delete("/publishers/{name}", status_code=204, responses=NOT_YET)
async def withdraw_publisher(name: NamePath, caller: AnyCaller, coordinator: Injected) -> Response:
    await coordinator.service.change(caller, withdraw=[(PUBLISHER, name)])
    return await gone(coordinator)


@router.post("/publishers/{name}/heartbeat")
async def keep_publisher(
    name: NamePath, caller: AnyCaller, coordinator: Injected
) -> PublisherHeartbeatAnswer:
    """A sign of life: the lease begins anew. The answer may ask for fewer events of some topics."""
    record = coordinator.service.heartbeat(caller, (PUBLISHER, name))
    return PublisherHeartbeatAnswer(
        lease_seconds=record.intent.lease_seconds,
        generation=coordinator.runtime.generation,
        slow_down=coordinator.delays.slow_down(name, time.monotonic()),
    )


@router.get("/publishers/{name}/direct")
async def read_direction(
    name: NamePath,
    caller: AnyCaller,
    coordinator: Injected,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    wait_seconds: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
) -> Direction:
    """Which topics go to subscribers without a broker, and where to; waits until a generation after `after` changes it.

    What is sent there goes to the gateway as well, over the connection `~999` of the client id: so it knows who has it.
    """
    coordinator.service.look(caller, (PUBLISHER, name))
    await coordinator.runtime.assignments.publishers.wait(name, after, wait_seconds)
    coordinator.service.look(caller, (PUBLISHER, name))
    gateway = coordinator.runtime.gateways.news_for((PUBLISHER, name), caller.reached)
    return replace(coordinator.runtime.assignments.direction(name), gateway=gateway)


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
    publishers = [
        _publisher(coordinator, caller, each) for each in records if isinstance(each.intent, PublisherIntent)
    ]
    subscribers = [
        _subscriber(coordinator, caller, each)
        for each in records
        if isinstance(each.intent, SubscriberIntent)
    ]
    return BulkAnswer(
        generation=coordinator.runtime.generation,
        publishers={each.name: each.connection for each in publishers},
        subscribers={each.name: each.connection for each in subscribers},
        withdrawn=len(withdraw),
        rights_in_force=await coordinator.runtime.rights_in_force(),
    )


def _names(coordinator: ControlPlane, caller: Caller, kind: str) -> list[str]:
    if not caller.may_look:
        caller.require(Role(kind))
    records = (
        coordinator.service.registry
        if caller.may_look
        else coordinator.service.registry.owned_by(caller.owner)
    )
    return sorted(record.intent.name for record in records if record.key[0] == kind)
