"""What there is to read: topics, scenario, plan, forecast, decisions, health, metrics."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

import yaml
from fastapi import APIRouter, Query, Request, Response

from triagemq.client.coordinator import Promise
from triagemq.coordinator.api.callers import AnyCaller, Injected, Reader, caller_of
from triagemq.coordinator.api.models import (
    DecisionAnswer,
    DecisionsAnswer,
    ExplanationAnswer,
    ForecastAnswer,
    HealthAnswer,
    PlanAnswer,
    TopicAnswer,
)
from triagemq.coordinator.api.prometheus import CONTENT_TYPE, metrics_text
from triagemq.coordinator.coordinator import Coordinator
from triagemq.coordinator.decide.decide import Decided
from triagemq.coordinator.refusals import MissingError, UnauthorisedError
from triagemq.coordinator.subscriptions import Order, SubscriptionPage, subscription_page
from triagemq.errors import ParameterError
from triagemq.forecast import explanation as explained
from triagemq.forecast.summary import port_loads
from triagemq.plan import dump_plan
from triagemq.scenario import dumps

router = APIRouter()


@router.get("/v1/health", tags=["state"])
async def health(request: Request, coordinator: Injected) -> HealthAnswer:
    """Whether all is well now; needs no token and names nobody, and says why not to operators and viewers."""
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
    """Everything that was asked for with a promise: admitted, in the order of admission, and then refused."""
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
    for required in () if coordinator.delays is None else coordinator.delays.of(subscriber):
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


def _decided(coordinator: Coordinator) -> Decided:
    if coordinator.runtime.decided is None:
        raise MissingError("nothing has been planned yet; ask again in a moment")
    return coordinator.runtime.decided
