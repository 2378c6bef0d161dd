"""What REST takes besides intents: every number finite and bounded, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from triagemq.coordinator.decide.what_if import SupposedSubscription
from triagemq.intents import Name, PublisherIntent, SubscriberIntent, TopicFilter, TopicText

__all__ = ["BulkRequest", "HeartbeatBody", "MeasurementsBody", "PortBody", "WhatIfRequest"]

MOST_ITEMS = 1_000_000

Bandwidth = Annotated[float, Field(ge=1e3, le=1e13, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**53)]


class Body(BaseModel):
    """Base of what is taken: unknown keys are mistakes, and texts are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ReceivedBody(Body):
    """What a subscriber got of a topic since it last said so."""

    count: Count
    latency_seconds_sum: Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)] = 0.0
    latency_seconds_max: Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)] = 0.0


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
    bandwidth_bps: Bandwidth


class MeasurementsBody(Body):
    """Windows of the streaming pipeline: {table, batch, rows}, rows as the table's columns."""

    table: Annotated[str, Field(max_length=100)]
    batch: Count
    rows: Annotated[list[dict[str, Any]], Field(max_length=10_000)]


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

    @model_validator(mode="after")
    def _one_or_the_other(self) -> WhatIfRequest:
        changed = (
            self.rate_factors or self.bandwidths_bps or self.remove_subscriptions or self.add_subscriptions
        )
        if (self.scenario is not None) == bool(changed):
            raise ValueError("give a scenario, or changes of the present one")
        return self
