"""/v1/publishers, /v1/subscribers, /v1/intents: announce, change, read, withdraw, keep alive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from triagemq.client.coordinator import Direction, Promise
from triagemq.coordinator.access.tokens import Caller, Role
from triagemq.coordinator.api.callers import Asker, Here
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
from triagemq.coordinator.coordinator import Coordinator
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
    here: Coordinator, caller: Caller, record: Record, *, whole: bool = False
) -> SubscriberAnswer:
    return SubscriberAnswer(
        connection=ConnectionAnswer(**_whereto(here, caller, record), flows=1),
        **_told(here, record, whole),
        promises=_promises(here, record) if whole else None,
        delays=here.delays.of(record.intent.name) if whole and here.delays is not None else None,
    )


def _publisher(here: Coordinator, caller: Caller, record: Record, *, whole: bool = False) -> PublisherAnswer:
    broker = None if here.broker_address is None else reached_by(here.broker_address, caller.reached)
    return PublisherAnswer(
        connection=ConnectionAnswer(**_whereto(here, caller, record), broker=broker),
        **_told(here, record, whole),
        promises=_promises(here, record) if whole else None,
    )


def _promises(here: Coordinator, record: Record) -> list[Promise]:
    """Those of a subscriber or of a publisher."""
    kind, name = record.key
    return [each for each in here.promises() if getattr(each, kind) == name]


def _told(here: Coordinator, record: Record, whole: bool) -> dict[str, Any]:
    """What is told of every record, and with `whole` what its client asked for."""
    return {
        "name": record.intent.name,
        "lease_seconds": record.intent.lease_seconds,
        "generation": here.runtime.generation,
        "in_force": here.runtime.is_in_force(record.key),
    } | (record.intent.as_json() if whole else {})


def _whereto(here: Coordinator, caller: Caller, record: Record) -> dict[str, Any]:
    """Where and as whom; who only looks is not told the key."""
    return {
        "gateway": here.runtime.gateways.address_of(record.key, caller.reached),
        "may_move": here.runtime.gateways.are_several,
        "client_id": here.rights.client_id_base(record) if caller.owns(record.owner) else record.intent.name,
    }


@router.post("/subscribers", status_code=201)
async def announce_subscriber(intent: SubscriberIntent, caller: Asker, here: Here) -> SubscriberAnswer:
    """Say what a subscriber wants; the same name again replaces what it wanted."""
    return _subscriber(here, caller, *await here.service.change(caller, [intent]))


@router.put("/subscribers/{name}", responses={201: {"model": SubscriberAnswer}})
async def change_subscriber(
    name: NamePath, terms: SubscriberTerms, caller: Asker, here: Here, response: Response
) -> SubscriberAnswer:
    """Replace what a subscriber wants, or announce it (201)."""
    response.status_code = 200 if here.service.registry.get((SUBSCRIBER, name)) else 201
    return await announce_subscriber(terms.named(name), caller, here)


@router.get("/subscribers/{name}")
async def read_subscriber(name: NamePath, caller: Asker, here: Here) -> SubscriberAnswer:
    return _subscriber(here, caller, here.service.look(caller, (SUBSCRIBER, name)), whole=True)


@router.get("/subscribers")
async def list_subscribers(caller: Asker, here: Here) -> list[str]:
    """Names: your own, or for operators and viewers all."""
    return _names(here, caller, SUBSCRIBER)


@router.delete("/subscribers/{name}", status_code=204, responses=NOT_YET)
async def withdraw_subscriber(name: NamePath, caller: Asker, here: Here) -> Response:
    await here.service.change(caller, withdraw=[(SUBSCRIBER, name)])
    return await gone(here)


@router.post("/subscribers/{name}/heartbeat")
async def keep_subscriber(
    name: NamePath, caller: Asker, here: Here, body: HeartbeatBody | None = None
) -> SubscriberHeartbeatAnswer:
    """A sign of life: the lease begins anew. May say what was received since the last one.

    The answer names the delays that are asked for and refused.
    """
    record = here.service.heartbeat(caller, (SUBSCRIBER, name))
    assigned = here.runtime.assignments.of(name)
    if body is None:
        here.received(record, assigned, {})
    elif here.service.is_new_report(record, body.number):
        here.received(record, assigned, body.received)
    delays = () if here.delays is None else here.delays.of(name)
    return SubscriberHeartbeatAnswer(
        lease_seconds=record.intent.lease_seconds,
        generation=assigned.generation,
        flows=1,
        refused_delays=[each for each in delays if each.refused][:_MOST_DELAYS],
    )


@router.get("/subscribers/{name}/assignment")
async def read_assignment(
    name: NamePath,
    caller: Asker,
    here: Here,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    wait_seconds: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
) -> AssignmentAnswer:
    """Which flow, class and drop rate each topic has; waits until a generation after `after` changes that."""
    here.service.look(caller, (SUBSCRIBER, name))
    await here.runtime.assignments.subscribers.wait(name, after, wait_seconds)
    here.service.look(caller, (SUBSCRIBER, name))
    found = asdict(here.runtime.assignments.of(name))
    gateway = here.runtime.gateways.news_for((SUBSCRIBER, name), caller.reached)
    return AssignmentAnswer(**{**found, "gateway": gateway, "slots": dict.fromkeys(found["classes"], 0)})


@router.get("/subscribers/{name}/promises")
async def read_promises(
    name: NamePath,
    caller: Asker,
    here: Here,
    wait_seconds: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
) -> PromisesAnswer:
    """What was decided about its guaranteed subscriptions; waits until its latest intent is in force."""
    end_at = time.monotonic() + wait_seconds
    key = (SUBSCRIBER, name)
    record = here.service.look(caller, key)
    while not here.runtime.is_in_force(key) and time.monotonic() < end_at:
        await asyncio.sleep(min(_LOOK_SECONDS, max(end_at - time.monotonic(), 0.0)))
        record = here.service.look(caller, key)
    promises = _promises(here, record)
    topics = [each.topic for each in promises]
    wanted = record.intent.subscriptions if isinstance(record.intent, SubscriberIntent) else ()
    return PromisesAnswer(
        generation=here.runtime.generation,
        in_force=here.runtime.is_in_force(key),
        promises=promises,
        waiting=[
            each.topic
            for each in wanted
            if each.guaranteed and not any(matches(each.topic, topic) for topic in topics)
        ],
    )


@router.post("/publishers", status_code=201)
async def announce_publisher(intent: PublisherIntent, caller: Asker, here: Here) -> PublisherAnswer:
    """Say what a publisher will publish; the same name again replaces what it said."""
    return _publisher(here, caller, *await here.service.change(caller, [intent]))


@router.put("/publishers/{name}", responses={201: {"model": PublisherAnswer}})
async def change_publisher(
    name: NamePath, terms: PublisherTerms, caller: Asker, here: Here, response: Response
) -> PublisherAnswer:
    """Replace what a publisher publishes, or announce it (201)."""
    response.status_code = 200 if here.service.registry.get((PUBLISHER, name)) else 201
    return await announce_publisher(terms.named(name), caller, here)


@router.get("/publishers/{name}")
async def read_publisher(name: NamePath, caller: Asker, here: Here) -> PublisherAnswer:
    return _publisher(here, caller, here.service.look(caller, (PUBLISHER, name)), whole=True)


@router.get("/publishers")
async def list_publishers(caller: Asker, here: Here) -> list[str]:
    """Names: your own, or for operators and viewers all."""
    return _names(here, caller, PUBLISHER)


@router.delete("/publishers/{name}", status_code=204, responses=NOT_YET)
async def withdraw_publisher(name: NamePath, caller: Asker, here: Here) -> Response:
    await here.service.change(caller, withdraw=[(PUBLISHER, name)])
    return await gone(here)


@router.post("/publishers/{name}/heartbeat")
async def keep_publisher(name: NamePath, caller: Asker, here: Here) -> PublisherHeartbeatAnswer:
    """A sign of life: the lease begins anew. The answer may ask for fewer events of some topics."""
    record = here.service.heartbeat(caller, (PUBLISHER, name))
    return PublisherHeartbeatAnswer(
        lease_seconds=record.intent.lease_seconds,
        generation=here.runtime.generation,
        slow_down={} if here.delays is None else here.delays.slow_down(name, time.monotonic()),
    )


@router.get("/publishers/{name}/direct")
async def read_direction(
    name: NamePath,
    caller: Asker,
    here: Here,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    wait_seconds: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
) -> Direction:
    """Which topics go to somebody without a broker, and where to; waits until a generation after `after` changes that.

    What is sent there goes to the gateway as well, over the connection `~999` of the client id: so it knows who has it.
    """
    here.service.look(caller, (PUBLISHER, name))
    await here.runtime.assignments.publishers.wait(name, after, wait_seconds)
    here.service.look(caller, (PUBLISHER, name))
    gateway = here.runtime.gateways.news_for((PUBLISHER, name), caller.reached)
    return replace(here.runtime.assignments.direction(name), gateway=gateway)


@router.post("/intents")
async def change_many(body: BulkRequest, caller: Asker, here: Here) -> BulkAnswer:
    """Announce and withdraw many at once: all of it happens, or nothing."""
    withdraw = [
        *((PUBLISHER, name) for name in body.withdraw.publishers),
        *((SUBSCRIBER, name) for name in body.withdraw.subscribers),
    ]
    records = await here.service.change(
        caller, [*body.announce.publishers, *body.announce.subscribers], withdraw
    )
    publishers = [
        _publisher(here, caller, each) for each in records if isinstance(each.intent, PublisherIntent)
    ]
    subscribers = [
        _subscriber(here, caller, each) for each in records if isinstance(each.intent, SubscriberIntent)
    ]
    return BulkAnswer(
        generation=here.runtime.generation,
        publishers={each.name: each.connection for each in publishers},
        subscribers={each.name: each.connection for each in subscribers},
        withdrawn=len(withdraw),
        rights_in_force=await here.runtime.rights_in_force(),
    )


def _names(here: Coordinator, caller: Caller, kind: str) -> list[str]:
    if not caller.may_look:
        caller.require(Role(kind))
    records = here.service.registry if caller.may_look else here.service.registry.owned_by(caller.owner)
    return sorted(record.intent.name for record in records if record.key[0] == kind)
