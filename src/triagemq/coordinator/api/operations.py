"""What operators do: suppose, change bandwidths, hand in measurements, make and revoke tokens."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Response

from triagemq.coordinator.access.tokens import Caller, TokenRequest, new_token, shown
from triagemq.coordinator.api.callers import Injected, Operator, Reader
from triagemq.coordinator.api.models import (
    NOT_YET,
    MeasurementsAnswer,
    MeasurementsBody,
    PlannerAnswer,
    PlannerBody,
    PortAnswer,
    PortBody,
    TokenAnswer,
    WhatIfAnswer,
    WhatIfRequest,
    gone,
    port_answers,
)
from triagemq.coordinator.decide.what_if import Changes, changed
from triagemq.coordinator.refusals import MissingError
from triagemq.plan import Decision
from triagemq.scenario import Scenario, loads

router = APIRouter(prefix="/v1", tags=["operators"])


@router.post("/what-if")
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


@router.put("/planner")
async def change_planner(body: PlannerBody, caller: Operator, coordinator: Injected) -> PlannerAnswer:
    """Plan with another drop policy, until another one is set or configured; plans again. The decision is recorded."""
    await coordinator.set_drops(body.drops, why(caller, body.reason))
    return await read_planner(caller, coordinator)


@router.get("/planner")
async def read_planner(caller: Reader, coordinator: Injected) -> PlannerAnswer:
    """The algorithms that plans are made with."""
    settings = coordinator.forecasts.settings
    return PlannerAnswer(flows=settings.flows, priorities=settings.priorities, drops=settings.drops)


@router.put("/ports/{name}")
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


@router.get("/ports")
async def read_ports(caller: Reader, coordinator: Injected) -> list[PortAnswer]:
    """The output ports: what is stated of them, what is planned with, and what was measured."""
    return list(port_answers(coordinator).values())


@router.post("/measurements")
async def take_measurements(
    body: MeasurementsBody, caller: Operator, coordinator: Injected
) -> MeasurementsAnswer:
    """Windows that the streaming pipeline has counted (`triage pipeline stream --post`)."""
    used = coordinator.runtime.measurements(body.table, body.rows)
    return MeasurementsAnswer(used=used, ignored=len(body.rows) - used)


@router.post("/tokens", status_code=201)
async def create_token(body: TokenRequest, caller: Operator, coordinator: Injected) -> TokenAnswer:
    """A new token; the answer is the only place where it can be read."""
    secret, token = new_token(body)
    await coordinator.service.add_token(token)
    return TokenAnswer(**shown(token), token=secret)


@router.get("/tokens")
async def list_tokens(caller: Reader, coordinator: Injected) -> list[TokenAnswer]:
    """All tokens, without their secrets."""
    return [
        TokenAnswer(**shown(token)) for token in await asyncio.to_thread(coordinator.service.store.tokens)
    ]


@router.delete("/tokens/{token_id}", status_code=204, responses=NOT_YET)
async def revoke_token(
    token_id: Annotated[str, Path(min_length=1, max_length=40)], caller: Operator, coordinator: Injected
) -> Response:
    """The token is no good any more, and what was announced with it is withdrawn."""
    await coordinator.service.revoke_token(token_id)
    return await gone(coordinator)
