"""What REST takes and gives besides intents and tokens, which are records of their own.

Of what is taken every number is finite and bounded, and unknown keys are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from triagemq.client.coordinator import Promise, RequiredDelay
from triagemq.coordinator.access.tokens import ShownToken
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.what_if import SupposedSubscription
from triagemq.coordinator.ports import Interval
from triagemq.intents import Name, PublisherIntent, SubscriberIntent, TopicFilter, TopicText

MOST_ITEMS = 1_000_000

Bandwidth = Annotated[float, Field(ge=1e3, le=1e13, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**53)]
# JSON has names only as texts.
BinNumber = Annotated[int, Field(ge=0, le=250, strict=False)]


# What is taken.


class Body(BaseModel):
    """Base of what is taken: unknown keys are mistakes, and texts are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ReceivedBody(Body):
    """What a subscriber got of a topic since it last said so."""

    count: Count
    latency_seconds_sum: Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)] = 0.0
    latency_seconds_max: Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)] = 0.0
    latency_bins: Annotated[dict[BinNumber, Count], Field(max_length=200)] = {}


class HeartbeatBody(Body):
    """A sign of life, and what was received since the last one.

    `number` is the report's own: the same number again is the same report, and counts once.
    """

    number: Annotated[int, Field(ge=0, le=2**53)] | None = None
    received: Annotated[dict[TopicText, ReceivedBody], Field(max_length=100_000)] = {}


class AnnounceBody(Body):
    publishers: Annotated[list[PublisherIntent], Field(max_length=MOST_ITEMS)] = []
    subscribers: Annotated[list[SubscriberIntent], Field(max_length=MOST_ITEMS)] = []


class WithdrawBody(Body):
    publishers: Annotated[list[Name], Field(max_length=MOST_ITEMS)] = []
    subscribers: Annotated[list[Name], Field(max_length=MOST_ITEMS)] = []


class BulkRequest(Body):
    """Many changes at once: all happen, or none."""

    announce: AnnounceBody = AnnounceBody()
    withdraw: WithdrawBody = WithdrawBody()


class PortBody(Body):
    """The bandwidth that a port has from now on, and why."""

    bandwidth_bps: Bandwidth
    reason: Annotated[str, Field(max_length=500)] = ""


class MeasurementsBody(Body):
    """Windows of the streaming pipeline: {table, batch, rows}, rows as the table's columns."""

    table: Annotated[str, Field(max_length=100)]
    batch: Count
    rows: Annotated[list[dict[str, Any]], Field(max_length=10_000)]


DropPolicyName = Literal["none", "flat", "linear", "exponential", "optimal"]


class PlannerBody(Body):
    """Algorithms to plan with from now on, and why."""

    drops: DropPolicyName
    reason: Annotated[str, Field(max_length=500)] = ""


class PlannerAnswer(BaseModel):
    """The algorithms that plans are made with."""

    flows: str
    priorities: str
    drops: str


class NamedSubscription(Body):
    subscriber: Name
    topic: TopicFilter = "#"


Factor = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]


class WhatIfRequest(Body):
    """Either a whole scenario as YAML text, or changes of the present one."""

    scenario: Annotated[str, Field(max_length=4_000_000)] | None = None
    rate_factors: Annotated[dict[TopicFilter, Factor], Field(max_length=10_000)] = {}
    bandwidths_bps: Annotated[dict[str, Bandwidth], Field(max_length=10_000)] = {}
    remove_subscriptions: Annotated[list[NamedSubscription], Field(max_length=100_000)] = []
    add_subscriptions: Annotated[list[SupposedSubscription], Field(max_length=100_000)] = []
    subscribers_factor: Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False)] | None = None
    drops: DropPolicyName | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> WhatIfRequest:
        changed = (
            self.rate_factors
            or self.bandwidths_bps
            or self.remove_subscriptions
            or self.add_subscriptions
            or self.subscribers_factor
            or (self.drops and self.scenario is None)
        )
        if (self.scenario is not None) == bool(changed):
            raise ValueError("give a scenario, or changes of the present one")
        return self


# What is given.


class Detail(BaseModel):
    """Why a request was refused."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Detail, "description": words}
    for status, words in {
        400: "cannot be done as asked",
        401: "no valid token",
        403: "the token does not allow it",
        404: "not there, or not yours",
        405: "not a method of this path; Allow lists those it has",
        409: "the name is taken, or named twice",
        413: "the request is too long",
        421: "not a name of this coordinator, where there are no tokens",
        422: "the request is not understood",
        503: "not now",
    }.items()
}


class ConnectionAnswer(BaseModel):
    """Where and as whom to connect; a subscriber appends `~0`, `~1` and so on to the client id.

    `may_move`: there are other gateways, and it may be sent to another (see `gateway` of the assignment).
    """

    gateway: str
    client_id: str
    flows: int | None = None
    broker: str | None = None
    may_move: bool = False


class AnnouncedAnswer(BaseModel):
    name: str
    lease_seconds: float
    generation: int
    in_force: bool
    connection: ConnectionAnswer


class SubscriberAnswer(AnnouncedAnswer):
    """`in_force`: the gateway follows a plan that knows this intent. `flows` is of no use any
    more: a subscriber has one connection.

    `delays`: what became of delays that are required at ports whose widths are controlled.
    """

    subscriptions: list[dict[str, Any]] | None = None
    port: str | None = None
    flows: int | None = None
    promises: list[Promise] | None = None
    delays: list[RequiredDelay] | None = None


class PublisherAnswer(AnnouncedAnswer):
    publications: list[dict[str, Any]] | None = None
    source_address: str | None = None
    promises: list[Promise] | None = None


class PromisesAnswer(BaseModel):
    """What was decided about guaranteed subscriptions; `in_force` as with the subscriber.

    `waiting` are those without a publication yet.
    """

    generation: int
    in_force: bool
    promises: list[Promise]
    waiting: list[str]


class HeartbeatAnswer(BaseModel):
    lease_seconds: float
    generation: int
    flows: int | None = None


class SubscriberHeartbeatAnswer(HeartbeatAnswer):
    """`refused_delays`: of what it asks for, what no port can be quick enough for; at most 100."""

    refused_delays: list[RequiredDelay]


class PublisherHeartbeatAnswer(HeartbeatAnswer):
    """`slow_down`: the topics that it is to publish no more often than so many times a second."""

    slow_down: dict[str, float]


class AssignmentAnswer(BaseModel):
    """`flows` (1) and `slots` are for clients of before, which opened several connections."""

    generation: int
    flows: int = 1
    slots: dict[str, int] = {}
    classes: dict[str, int]
    drop_rates: dict[str, float]
    gateway: str


class MoveBody(Body):
    """Clients that are to go to a gateway, by name."""

    publishers: Annotated[list[Name], Field(max_length=100_000)] = []
    subscribers: Annotated[list[Name], Field(max_length=100_000)] = []


class MoveAnswer(BaseModel):
    """How many go; those who were there already stay."""

    moved: int


class SendAwayBody(Body):
    """Plain MQTT-SN clients that are to look for another gateway, by client id; all of them if none is named."""

    client_ids: Annotated[list[str], Field(max_length=100_000)] | None = None


class SendAwayAnswer(BaseModel):
    """How many are to go."""

    told: int


class QueueAnswer(BaseModel):
    """Packets that wait at a gateway for a subscriber, with these topics, which share a flow."""

    subscriber: str
    topics: list[str]
    packets: int


class GatewayAnswer(BaseModel):
    """A gateway, the broker beside it, and what it has done in the last second.

    Downlink is what came in from clients and brokers, uplink what left for subscribers, both on the wire but for the
    brokers' part, of which it is payloads; matched are the messages that it looked up subscribers for. What was not
    measured yet is null. `round_trip_seconds` are to the brokers of other gateways and back, and those of publishers
    and subscribers to clients; its clock is ahead of the coordinator's by `clock_offset_seconds`, of which
    `clock_error_seconds` may be wrong.
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
    downlink_bps: float | None
    matched_per_second: float | None
    uplink_bps: float | None
    queues: list[QueueAnswer]
    round_trip_seconds: dict[str, float]
    publisher_round_trip_seconds: dict[str, float]
    subscriber_round_trip_seconds: dict[str, float]
    clock_offset_seconds: float | None
    clock_error_seconds: float | None


class BulkAnswer(BaseModel):
    """One connection for each name that was announced. `rights_in_force`: the gateway knows who may do what by now."""

    generation: int
    publishers: dict[str, ConnectionAnswer]
    subscribers: dict[str, ConnectionAnswer]
    withdrawn: int
    rights_in_force: bool


class NotYetAnswer(BaseModel):
    """What was withdrawn is withdrawn for good, but the gateway has not confirmed that yet."""

    in_force: bool
    detail: str


NOT_YET: dict[int | str, dict[str, Any]] = {
    202: {"model": NotYetAnswer, "description": "done, and not yet in force at the gateway"}
}


async def gone(coordinator: ControlPlane) -> Response:
    """The answer to a withdrawal or revocation: 204 if the gateway follows that, else 202 and why."""
    if await coordinator.runtime.rights_in_force():
        return Response(status_code=204)
    why = f"not yet in force at {coordinator.where_not_in_force()}"
    answer = NotYetAnswer(in_force=False, detail=f"{why}; it is told again until it is")
    return JSONResponse(answer.model_dump(), status_code=202)


class TopicAnswer(BaseModel):
    """What is known of a topic; None where nothing is."""

    topic: str
    rate_per_second: float | None
    size_bytes: float | None
    measured: bool


class DecisionAnswer(BaseModel):
    number: int
    decided_ns: int
    generation: int
    kind: str
    subject: str
    before: str
    after: str
    reason: str


class DecisionsAnswer(BaseModel):
    """A page; ask for the next with `after` = the last number."""

    decisions: list[DecisionAnswer]
    last: int


class PlanAnswer(BaseModel):
    """`plan` is there where it is requested in full: a plan as `triage plan --out` writes it."""

    generation: int
    in_force_generation: int
    made_by: dict[str, Any]
    why: list[str]
    ports: list[dict[str, Any]]
    subscribers: int
    subscriptions: int
    flows: int
    plan: dict[str, Any] | None = None


class ForecastAnswer(BaseModel):
    """Predicted figures of the plan in force: keys as `triage forecast --json`; `subscriptions` where requested."""

    generation: int
    scenario: str
    ports: list[dict[str, Any]]
    classes: list[dict[str, Any]]
    utility: dict[str, float | None]
    deadlines: dict[str, int]
    starved: list[dict[str, Any]]
    approximations: list[str]
    basis: str = "formulas"
    decisions: list[dict[str, Any]]
    subscriptions: list[dict[str, Any]] | None = None


class WhatIfAnswer(BaseModel):
    """The forecast of what is, and of what would be."""

    before: dict[str, Any] | None
    after: dict[str, Any]


class EstimateAnswer(BaseModel):
    """What a measured value most likely is, and from where to where it may be; None: unknown."""

    low: float
    value: float | None
    high: float | None


class PortAnswer(BaseModel):
    """A port as it is stated, planned with, and measured; None where nothing is planned or measured.

    Where the widths of its queues are controlled, those in force, the mean delays in the queues, and how long packets
    may wait there, class 0 first.
    """

    name: str
    bandwidth_bps: float
    planned_bandwidth_bps: float
    planned_error_rate: float | None
    measured_bandwidth_bps: EstimateAnswer | None
    measured_error_rate: EstimateAnswer | None
    generation: int
    widths_bps: list[int] | None
    delay_seconds: list[float] | None
    constraint_seconds: list[float | None] | None


def port_answers(coordinator: ControlPlane) -> dict[str, PortAnswer]:
    """All ports by name."""
    latest = coordinator.runtime.measuring.latest
    managed = {} if latest is None else latest.managed
    constraints = coordinator.delays.constraints
    return {
        name: PortAnswer(
            name=name,
            bandwidth_bps=facts.stated_bps,
            planned_bandwidth_bps=facts.planned_bps,
            planned_error_rate=facts.planned_error_rate,
            measured_bandwidth_bps=_estimate(facts.bandwidth_bps),
            measured_error_rate=_estimate(facts.error_rate),
            generation=coordinator.runtime.generation,
            widths_bps=list(managed[name].widths_bps) if name in managed else None,
            delay_seconds=list(managed[name].delay_seconds) if name in managed else None,
            constraint_seconds=[
                constraints.get(name, {}).get(priority) for priority in range(len(managed[name].widths_bps))
            ]
            if name in managed
            else None,
        )
        for name, facts in coordinator.runtime.port_watch.facts().items()
    }


def _estimate(found: Interval | None) -> EstimateAnswer | None:
    if found is None:
        return None
    value, high = (each if math.isfinite(each) else None for each in (found.value, found.high))
    return EstimateAnswer(low=found.low, value=value, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAnswer(ShownToken):
    """A token without its secret; `token` is there once, in the answer to its making."""

    # All of it is in every answer.
    __pydantic_config__: ClassVar = ConfigDict(json_schema_serialization_defaults_required=True)

    token: str | None = None


class MeasurementsAnswer(BaseModel):
    """Rows that were used, and rows that were not: of another table, without a topic, or of a window too long ago."""

    used: int
    ignored: int


class ExplanationAnswer(BaseModel):
    """In words; and what is `forecast` for it, a row of the forecast's `subscriptions`."""

    subscriber: str
    topic: str
    explanation: str
    forecast: dict[str, Any]


class CheckAnswer(BaseModel):
    """Whether something works now, for how long that has been so, and why if it does not."""

    ok: bool
    reason: str | None
    for_seconds: float


class HealthAnswer(BaseModel):
    """`status`: ok if everything of `checks` is, or what is missing.

    `wanted_version` numbers the orders and rights that the gateway should follow, `in_force_version` those it does.
    `starved` is how many subscriptions get nothing by the latest plan; the first of them are named to those who may
    know.
    """

    status: str
    checks: dict[str, CheckAnswer]
    version: str
    wanted_version: int
    in_force_version: int | None
    not_in_force_seconds: float | None
    gateway_connected: bool
    broker_connected: bool | None
    generation: int
    in_force_generation: int
    publishers: int
    subscribers: int
    plans: int
    last_plan_error: str | None
    starved: int
    starved_subscriptions: list[dict[str, Any]]
    access: bool
    uptime_seconds: float
