"""What operators and viewers read, and what operators do: plan, forecast, health, metrics, ports, tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

import yaml
from fastapi import APIRouter, Path, Query, Request, Response, WebSocket, WebSocketDisconnect

from triagemq.client.coordinator import Promise
from triagemq.coordinator.access.tokens import Caller, TokenRequest, new_token, shown
from triagemq.coordinator.api.models import (
    NOT_YET,
    DecisionAnswer,
    DecisionsAnswer,
    ExplanationAnswer,
    ForecastAnswer,
    HealthAnswer,
    MeasurementsAnswer,
    MeasurementsBody,
    PlanAnswer,
    PlannerAnswer,
    PlannerBody,
    PortAnswer,
    PortBody,
    TokenAnswer,
    TopicAnswer,
    WhatIfAnswer,
    WhatIfRequest,
    gone,
    port_answers,
)
from triagemq.coordinator.api.prometheus import CONTENT_TYPE, metrics_text
from triagemq.coordinator.api.requests import AnyCaller, Injected, Operator, Reader, caller_of, coordinator_of
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.decide.what_if import Changes, changed
from triagemq.coordinator.refusals import MissingError, RequestError, UnauthorisedError
from triagemq.coordinator.subscriptions import Order, SubscriptionPage, subscription_page
from triagemq.errors import ParameterError
from triagemq.forecast import explanation as explained
from triagemq.forecast.summary import port_loads
from triagemq.plan import Decision, dump_plan
from triagemq.scenario import Scenario, dumps, loads

router = APIRouter()
operators = APIRouter(prefix="/v1", tags=["operators"])


@router.get("/v1/health", tags=["state"])
async def health(request: Request, coordinator: Injected) -> HealthAnswer:
    """Whether all is well now; needs no token and names no client, and says why not to operators and viewers."""
    try:
        in_detail = (await caller_of(request)).may_look
    except UnauthorisedError:
        in_detail = False
    return HealthAnswer(**coordinator.health(in_detail=in_detail))


@router.get("/v1/topics", tags=["state"])
async def topics(
    caller: AnyCaller,
    coordinator: Injected,
    after: Annotated[str, Query(max_length=1_024)] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> list[TopicAnswer]:
    """The topics known, in alphabetical order behind `after`: those that the token may publish or subscribe to."""
    known = coordinator.known_topics()
    wanted = sorted(topic for topic in known if topic > after and caller.may_see(topic))[:limit]
    return [TopicAnswer(topic=topic, **asdict(known[topic])) for topic in wanted]


@router.get(
    "/v1/scenario",
    tags=["state"],
    response_model=dict[str, Any],
    responses={200: {"content": {"application/yaml": {"schema": {"type": "object"}}}}},
)
async def scenario(
    caller: Reader,
    coordinator: Injected,
    form: Annotated[Literal["yaml", "json"], Query(alias="format")] = "yaml",
) -> Response:
    """What is planned for, as a scenario file."""
    decided = _decided(coordinator)
    text = await asyncio.to_thread(dumps, decided.scenario)
    if form == "yaml":
        return Response(text, media_type="application/yaml")
    document = await asyncio.to_thread(lambda: json.dumps(yaml.load(text, yaml.CSafeLoader)))
    return Response(document, media_type="application/json")


@router.get("/v1/plan", tags=["state"])
async def plan(
    caller: Reader,
    coordinator: Injected,
    full: Annotated[bool, Query(description="With every flow and subscription as columns.")] = False,
) -> PlanAnswer:
    """The plan there is, why it was made, and whether the gateway follows it."""
    decided = _decided(coordinator)
    document = await asyncio.to_thread(lambda: json.loads(dump_plan(decided.plan))) if full else None
    return PlanAnswer(
        generation=decided.orders.generation,
        in_force_generation=coordinator.runtime.generation,
        made_by=asdict(decided.plan.made_by),
        why=list(decided.why),
        ports=port_loads(decided.scenario, decided.plan),
        subscribers=len(decided.scenario.subscribers),
        subscriptions=len(decided.scenario.subscriptions),
        flows=len(decided.plan.flows),
        plan=document,
    )


@router.get("/v1/promises", tags=["state"])
async def promises(caller: Reader, coordinator: Injected) -> list[Promise]:
    """Every subscription with a promise: admitted, in the order of admission, and then refused."""
    return coordinator.promises()


@router.get("/v1/forecast", tags=["state"])
async def forecast(
    caller: Reader,
    coordinator: Injected,
    full: Annotated[bool, Query(description="With a row for every subscription.")] = False,
) -> ForecastAnswer:
    """What the plan will do: keys as `triage forecast --json`, and with `full` as with `--full`."""
    decided = _decided(coordinator)
    figures = await coordinator.forecasts.of(decided)
    more = await coordinator.forecasts.in_full(decided) if full else {}
    return ForecastAnswer(generation=decided.orders.generation, **figures, **more)


@router.get("/v1/explanation", tags=["state"])
async def explanation(
    caller: Reader,
    coordinator: Injected,
    subscriber: Annotated[str, Query(max_length=200)],
    topic: Annotated[str, Query(max_length=1_024)],
) -> ExplanationAnswer:
    """Why one subscription is treated as it is, and what is forecast for it, in words and figures."""
    decided = _decided(coordinator)
    try:
        found = await asyncio.to_thread(explained, decided.scenario, decided.plan, subscriber, topic)
    except ParameterError as error:
        # Plan and scenario belong together: what can be wrong is a name.
        raise MissingError(str(error)) from error
    for required in coordinator.delays.of(subscriber):
        if required.topic == topic:
            found["explanation"] += f"\n{required}"
    return ExplanationAnswer(**found)


@router.get("/v1/subscriptions", tags=["state"])
async def subscriptions(
    caller: Reader,
    coordinator: Injected,
    search: Annotated[str, Query(max_length=200)] = "",
    order: Annotated[Order, Query()] = "rank",
    descending: Annotated[bool, Query()] = False,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 25,
) -> SubscriptionPage:
    """What each subscription is worth, how it is treated, and what it gets, measured beside forecast."""
    return await subscription_page(
        coordinator,
        _decided(coordinator),
        search=search,
        order=order,
        descending=descending,
        offset=offset,
        limit=limit,
    )


@router.get("/v1/decisions", tags=["state"])
async def decisions(
    caller: Reader,
    coordinator: Injected,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    latest: Annotated[bool, Query(description="The last ones, whatever `after` is.")] = False,
) -> DecisionsAnswer:
    """What was decided and why, in order, behind the number `after`."""
    store = coordinator.service.store
    rows = await (
        asyncio.to_thread(store.latest_decisions, limit)
        if latest
        else asyncio.to_thread(store.decisions, after, limit)
    )
    return DecisionsAnswer(
        decisions=[
            DecisionAnswer(
                number=row.number,
                decided_ns=row.decided_ns,
                generation=row.generation,
                **asdict(row.decision),
            )
            for row in rows
        ],
        last=rows[-1].number if rows else after,
    )


@router.get("/metrics", tags=["state"], response_class=Response)
async def metrics(caller: Reader, coordinator: Injected) -> Response:
    """Figures for Prometheus."""
    return Response(metrics_text(coordinator), media_type=CONTENT_TYPE)


def _decided(coordinator: ControlPlane) -> Decided:
    if coordinator.runtime.decided is None:
        raise MissingError("nothing has been planned yet; ask again in a moment")
    return coordinator.runtime.decided


_POLICY_VIOLATION = 1008
_TRY_AGAIN_LATER = 1013
_MOST_LISTENERS = 100
_SEND_SECONDS = 5.0


@router.websocket("/v1/live")
async def live(socket: WebSocket) -> None:
    """Figures per class, port and topic; the token goes into the Authorization header of the handshake."""
    coordinator = coordinator_of(socket)
    try:
        (await caller_of(socket)).require_look()
    except RequestError:
        # Before it is accepted, a closed WebSocket is answered with HTTP 403.
        await socket.close(_POLICY_VIOLATION)
        return
    if coordinator.live.listeners >= _MOST_LISTENERS:
        await socket.close(_TRY_AGAIN_LATER)
        return
    await socket.accept()
    figures = coordinator.live.listen()
    gone = asyncio.ensure_future(_until_gone(socket))
    try:
        while True:
            next_one = asyncio.ensure_future(figures.get())
            await asyncio.wait({gone, next_one}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                next_one.cancel()
                return
            taken = next_one.result()
            if taken is None:
                await socket.close(_POLICY_VIOLATION, "too slow")
                return
            async with asyncio.timeout(_SEND_SECONDS):
                await socket.send_json(taken)
    except (WebSocketDisconnect, RuntimeError, TimeoutError, OSError):
        with contextlib.suppress(Exception):
            await socket.close(_POLICY_VIOLATION, "too slow")
    finally:
        coordinator.live.leave(figures)
        gone.cancel()


async def _until_gone(socket: WebSocket) -> None:
    """Nothing is expected of a listener; whatever it sends is left unread but for the end."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


@operators.post("/what-if")
async def what_if(body: WhatIfRequest, caller: Operator, coordinator: Injected) -> WhatIfAnswer:
    """The forecast of another scenario, or of changes of this one, beside the present forecast. Changes nothing."""
    decided = coordinator.runtime.decided
    if body.scenario is None and decided is None:
        raise MissingError("nothing has been planned yet; ask again in a moment")

    def supposed() -> Scenario:
        if body.scenario is not None or decided is None:
            return loads(body.scenario or "", "scenario")
        return changed(
            decided.scenario,
            Changes(
                rate_factors=body.rate_factors,
                bandwidths_bps=body.bandwidths_bps,
                remove_subscriptions=[(each.subscriber, each.topic) for each in body.remove_subscriptions],
                add_subscriptions=body.add_subscriptions,
                subscribers_factor=body.subscribers_factor or 1.0,
            ),
        )

    before = None if decided is None else await coordinator.forecasts.of(decided)
    return WhatIfAnswer(before=before, after=await coordinator.forecasts.of_scenario(supposed, body.drops))


def why(caller: Caller, reason: str = "") -> str:
    """The reason of a change with its author, for the decisions."""
    return f"{reason or 'decided'}, by {caller.label or 'an operator'}"


@operators.put("/planner")
async def change_planner(body: PlannerBody, caller: Operator, coordinator: Injected) -> PlannerAnswer:
    """Plan with another drop policy, until another one is set or configured; plans again. The decision is recorded."""
    await coordinator.set_drops(body.drops, why(caller, body.reason))
    return await read_planner(caller, coordinator)


@operators.get("/planner")
async def read_planner(caller: Reader, coordinator: Injected) -> PlannerAnswer:
    """The algorithms that plans are made with."""
    settings = coordinator.forecasts.settings
    return PlannerAnswer(flows=settings.flows, priorities=settings.priorities, drops=settings.drops)


@operators.put("/ports/{name}")
async def change_port(
    name: Annotated[str, Path(min_length=1, max_length=200)],
    body: PortBody,
    caller: Operator,
    coordinator: Injected,
) -> PortAnswer:
    """Say what bandwidth an output port has now; plans again. The decision is recorded."""
    if name not in coordinator.runtime.bandwidths:
        raise MissingError(
            f"there is no output port {name!r}; there are {', '.join(coordinator.runtime.bandwidths)}"
        )
    before = coordinator.runtime.bandwidths[name]
    await coordinator.service.set_bandwidth(name, body.bandwidth_bps)
    terms = f"{before:g} bit/s", f"{body.bandwidth_bps:g} bit/s"
    coordinator.runtime.note([Decision("bandwidth", f"port {name}", *terms, why(caller, body.reason))])
    coordinator.runtime.bandwidth_changed(name, body.bandwidth_bps)
    return port_answers(coordinator)[name]


@operators.get("/ports")
async def read_ports(caller: Reader, coordinator: Injected) -> list[PortAnswer]:
    """The output ports: what is stated of them, what is planned with, and what was measured."""
    return list(port_answers(coordinator).values())


@operators.post("/measurements")
async def take_measurements(
    body: MeasurementsBody, caller: Operator, coordinator: Injected
) -> MeasurementsAnswer:
    """Windows that the streaming pipeline has counted (`triage pipeline stream --post`)."""
    used = coordinator.runtime.measurements(body.table, body.rows)
    return MeasurementsAnswer(used=used, ignored=len(body.rows) - used)


@operators.post("/tokens", status_code=201)
async def create_token(body: TokenRequest, caller: Operator, coordinator: Injected) -> TokenAnswer:
    """A new token; the answer is the only place where it can be read."""
    secret, token = new_token(body)
    await coordinator.service.add_token(token)
    return TokenAnswer(**shown(token), token=secret)


@operators.get("/tokens")
async def list_tokens(caller: Reader, coordinator: Injected) -> list[TokenAnswer]:
    """All tokens, without their secrets."""
    return [
        TokenAnswer(**shown(token)) for token in await asyncio.to_thread(coordinator.service.store.tokens)
    ]


@operators.delete("/tokens/{token_id}", status_code=204, responses=NOT_YET)
async def revoke_token(
    token_id: Annotated[str, Path(min_length=1, max_length=40)], caller: Operator, coordinator: Injected
) -> Response:
    """The token is no good any more, and what was announced with it is withdrawn."""
    await coordinator.service.revoke_token(token_id)
    return await gone(coordinator)
