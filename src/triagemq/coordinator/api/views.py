"""What operators and viewers read, and what operators do: plan, forecast, health, metrics, ports, tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Path, Query, Request, Response, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field

from triagemq.client.coordinator import Promise
from triagemq.coordinator import store as tables
from triagemq.coordinator.access.tokens import Caller, ShownToken, TokenRequest, new_token, shown
from triagemq.coordinator.api.prometheus import CONTENT_TYPE, metrics_text
from triagemq.coordinator.api.requests import (
    NOT_YET,
    AnyCaller,
    Body,
    Injected,
    Operator,
    Reader,
    caller_of,
    coordinator_of,
    gone,
)
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.decide.what_if import Bandwidth, Changes, changed
from triagemq.coordinator.ports import PortFacts
from triagemq.coordinator.rates import TopicFacts
from triagemq.coordinator.refusals import MissingError, RequestError, UnauthorisedError
from triagemq.coordinator.store import StoredDecision
from triagemq.coordinator.subscriptions import SubscriptionPage, SubscriptionQuery, subscription_page
from triagemq.errors import ParameterError
from triagemq.forecast import explanation as explained
from triagemq.forecast.summary import port_loads
from triagemq.plan import Decision, dump_plan
from triagemq.scenario import dumps
from triagemq.waiting import end

router = APIRouter()
operators = APIRouter(prefix="/v1", tags=["operators"])


class PortBody(Body):
    """The bandwidth that a port has from now on, and why."""

    bandwidth_bps: Bandwidth
    reason: Annotated[str, Field(max_length=500)] = ""


DropPolicyName = Literal["none", "flat", "linear", "exponential", "optimal"]


class PlannerBody(Body):
    """Algorithms to plan with from now on, and why."""

    drops: DropPolicyName
    reason: Annotated[str, Field(max_length=500)] = ""


@dataclass(frozen=True, slots=True)
class WhatIfRequest(Changes):
    """Changes of the present scenario and of the drop policy."""

    drops: DropPolicyName | None = None


@dataclass(frozen=True, kw_only=True)
class TopicAnswer(TopicFacts):
    """What is known of a topic; None where nothing is."""

    topic: str


class DecisionsAnswer(BaseModel):
    """A page; ask for the next with `after` = the last number."""

    decisions: list[StoredDecision]
    last: int


@dataclass(frozen=True, kw_only=True)
class PortAnswer(PortFacts):
    """A port as it is stated, planned with, and measured; None where nothing is planned or measured.

    Where the rates of its queues are controlled, those in force, the mean delays in the queues, and how long packets
    may wait there, class 0 first.
    """

    __pydantic_config__: ClassVar = ConfigDict(json_schema_serialization_defaults_required=True)

    name: str
    generation: int
    queue_rates_bps: list[int] | None = None
    delay_seconds: list[float] | None = None
    constraint_seconds: list[float | None] | None = None


def port_answers(coordinator: ControlPlane) -> dict[str, PortAnswer]:
    """All ports by name."""
    latest, generation = coordinator.runtime.measuring.latest, coordinator.runtime.generation
    found = {}
    for name, facts in coordinator.runtime.port_watch.facts().items():
        controlled: dict[str, Any] = {}
        if latest is not None and name in latest.managed:
            port, constraints = latest.managed[name], coordinator.delays.constraints.get(name, {})
            controlled["queue_rates_bps"] = list(port.queue_rates_bps)
            controlled["delay_seconds"] = list(port.delay_seconds)
            controlled["constraint_seconds"] = [
                constraints.get(row) for row in range(len(port.queue_rates_bps))
            ]
        found[name] = PortAnswer(**vars(facts), name=name, generation=generation, **controlled)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAnswer(ShownToken):
    """A token without its secret; `token` is there once, in the answer to its making."""

    # All of it is in every answer.
    __pydantic_config__: ClassVar = ConfigDict(json_schema_serialization_defaults_required=True)

    token: str | None = None


@router.get("/v1/health", tags=["state"])
async def health(request: Request, coordinator: Injected) -> dict[str, Any]:
    """Whether all is well now; needs no token and names no client, and says why not to operators and viewers."""
    try:
        in_detail = (await caller_of(request)).may_look
    except UnauthorisedError:
        in_detail = False
    return coordinator.health(in_detail=in_detail)


@router.get("/v1/topics", tags=["state"])
async def topics(
    caller: AnyCaller,
    coordinator: Injected,
    after: Annotated[str, Query(max_length=1_024)] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> list[TopicAnswer]:
    """The topics known, in alphabetical order behind `after`: those that the token may publish or subscribe to."""
    known = coordinator.known_topics()
    names = sorted(topic for topic in known if topic > after and caller.may_see(topic))[:limit]
    return [TopicAnswer(topic=topic, **asdict(known[topic])) for topic in names]


@router.get(
    "/v1/scenario",
    tags=["state"],
    response_class=Response,
    responses={200: {"content": {"application/yaml": {"schema": {"type": "object"}}}}},
)
async def scenario(caller: Reader, coordinator: Injected) -> Response:
    """What is planned for, as a scenario file."""
    text = await asyncio.to_thread(dumps, _decided(coordinator).scenario)
    return Response(text, media_type="application/yaml")


@router.get("/v1/plan", tags=["state"])
async def plan(
    caller: Reader,
    coordinator: Injected,
    full: Annotated[bool, Query(description="With every flow and subscription as columns.")] = False,
) -> dict[str, Any]:
    """The plan there is, why it was made, and whether the gateway follows it."""
    decided = _decided(coordinator)
    document = await asyncio.to_thread(lambda: json.loads(dump_plan(decided.plan))) if full else None
    return {
        "generation": decided.orders.generation,
        "in_force_generation": coordinator.runtime.generation,
        "made_by": asdict(decided.plan.made_by),
        "why": list(decided.why),
        "ports": port_loads(decided.scenario, decided.plan),
        "subscribers": len(decided.scenario.subscribers),
        "subscriptions": len(decided.scenario.subscriptions),
        "flows": len(decided.plan.flows),
        "plan": document,
    }


@router.get("/v1/promises", tags=["state"])
async def promises(caller: Reader, coordinator: Injected) -> list[Promise]:
    """Every subscription with a promise: admitted, in the order of admission, and then refused."""
    return coordinator.promises()


@router.get("/v1/forecast", tags=["state"])
async def forecast(
    caller: Reader,
    coordinator: Injected,
    full: Annotated[bool, Query(description="With a row for every subscription.")] = False,
) -> dict[str, Any]:
    """What the plan will do: keys as `triage forecast --json`, and with `full` as with `--full`."""
    decided = _decided(coordinator)
    figures = await coordinator.forecasts.of(decided)
    more = await coordinator.forecasts.in_full(decided) if full else {"subscriptions": None}
    return {"generation": decided.orders.generation, **figures, **more}


@router.get("/v1/explanation", tags=["state"])
async def explanation(
    caller: Reader,
    coordinator: Injected,
    subscriber: Annotated[str, Query(max_length=200)],
    topic: Annotated[str, Query(max_length=1_024)],
) -> dict[str, Any]:
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
    return found


@router.get("/v1/subscriptions", tags=["state"])
async def subscriptions(
    caller: Reader, coordinator: Injected, query: Annotated[SubscriptionQuery, Query()]
) -> SubscriptionPage:
    """What each subscription is worth, how it is treated, and what it gets, measured and forecast."""
    return subscription_page(coordinator, _decided(coordinator), query)


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
    rows = await asyncio.to_thread(store.decisions, 0 if latest else after, limit, latest=latest)
    return DecisionsAnswer(decisions=rows, last=rows[-1].number if rows else after)


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
    tasks = [asyncio.ensure_future(each) for each in (_send_figures(socket, figures), _until_closed(socket))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        coordinator.live.leave(figures)
        await end(*tasks)


async def _send_figures(socket: WebSocket, figures: asyncio.Queue[Mapping[str, Any] | None]) -> None:
    """Send until the listener is too slow; then close the connection."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
        while (second := await figures.get()) is not None:
            async with asyncio.timeout(_SEND_SECONDS):
                await socket.send_json(second)
    with contextlib.suppress(Exception):
        await socket.close(_POLICY_VIOLATION, "too slow")


async def _until_closed(socket: WebSocket) -> None:
    """What a listener sends is not read, but for its end."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


@operators.post("/what-if")
async def what_if(body: WhatIfRequest, caller: Operator, coordinator: Injected) -> dict[str, Any]:
    """The forecast of a change, and the present forecast. Changes nothing."""
    decided = _decided(coordinator)
    forecasts = coordinator.forecasts
    before = await forecasts.of(decided)
    after = await forecasts.of_scenario(lambda: changed(decided.scenario, body), body.drops)
    return {"before": before, "after": after}


def why(caller: Caller, reason: str = "") -> str:
    """The reason of a change with its author, for the decisions."""
    return f"{reason or 'decided'}, by {caller.label or 'an operator'}"


@operators.put("/planner")
async def change_planner(body: PlannerBody, caller: Operator, coordinator: Injected) -> dict[str, str]:
    """Plan with another drop policy, until another one is set or configured; plans again. The decision is recorded."""
    await coordinator.set_drops(body.drops, why(caller, body.reason))
    return await read_planner(caller, coordinator)


@operators.get("/planner")
async def read_planner(caller: Reader, coordinator: Injected) -> dict[str, str]:
    """The algorithms that plans are made with."""
    settings = coordinator.forecasts.settings
    return {name: getattr(settings, name) for name in ("flows", "priorities", "drops")}


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
    await coordinator.service.store.write(tables.set_bandwidth, name, body.bandwidth_bps)
    terms = f"{before:g} bit/s", f"{body.bandwidth_bps:g} bit/s"
    coordinator.runtime.note([Decision("bandwidth", f"port {name}", *terms, why(caller, body.reason))])
    coordinator.runtime.bandwidth_changed(name, body.bandwidth_bps)
    return port_answers(coordinator)[name]


@operators.get("/ports")
async def read_ports(caller: Reader, coordinator: Injected) -> list[PortAnswer]:
    """The output ports: what is stated of them, what is planned with, and what was measured."""
    return list(port_answers(coordinator).values())


@operators.post("/tokens", status_code=201)
async def create_token(body: TokenRequest, caller: Operator, coordinator: Injected) -> TokenAnswer:
    """A new token; the answer is the only place where it can be read."""
    roles = coordinator.policy.policy.roles
    if body.policy_role and body.policy_role not in roles:
        known = ", ".join(roles) or "none"
        raise RequestError(f"the policy has no role {body.policy_role!r}; it has {known}")
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
