"""What REST takes and gives, as pydantic models: every number finite and bounded, unknown keys refused."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from triagemq.coordinator.intents.asked import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
    Utility,
)
from triagemq.mqttsn import is_shared, publishable_topic_name, valid_topic_filter
from triagemq.scenario import UtilityShape

__all__ = [
    "BulkRequest",
    "Name",
    "PublisherBody",
    "PublisherRequest",
    "SubscriberBody",
    "SubscriberRequest",
    "TokenRequest",
]

DEFAULT_LEASE_SECONDS = 10.0
MOST_ITEMS = 1_000_000
MOST_TOPIC_CHARACTERS = 1_024
_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?"
_UTILITY = rf"^(log:{_NUMBER}|linear:{_NUMBER}|step:{_NUMBER}@{_NUMBER})$"


def _topic(text: str) -> str:
    if not publishable_topic_name(text):
        raise ValueError(
            "is not the name of an MQTT topic to publish to: it must not be empty, hold +, # or a control character, "
            "have more than 200 levels, or begin with $SYS or $share"
        )
    return text


def _topic_filter(text: str) -> str:
    if not valid_topic_filter(text) or is_shared(text):
        raise ValueError(
            "is not an MQTT topic filter: let + or # stand alone between slashes, # only at the end, "
            "no control characters, at most 200 levels, no $share in front"
        )
    return text


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}$", examples=["ff-07"])]
TopicText = Annotated[
    str, Field(min_length=1, max_length=MOST_TOPIC_CHARACTERS, examples=["building/3/smoke"])
]
Topic = Annotated[TopicText, AfterValidator(_topic)]
TopicFilter = Annotated[TopicText, AfterValidator(_topic_filter)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)]
SizeBytes = Annotated[float, Field(ge=1, le=65_535, allow_inf_nan=False)]
Bandwidth = Annotated[float, Field(ge=1e3, le=1e13, allow_inf_nan=False)]
LeaseSeconds = Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**53)]


class Body(BaseModel):
    """Base of what is taken: unknown keys are mistakes, and texts are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class UtilityBody(Body):
    """What all of a topic's events are worth, and how that shrinks with loss and age."""

    shape: Literal["log", "linear", "step"]
    weight: Weight
    threshold: Share | None = None
    freshness_seconds: Seconds | None = None

    @model_validator(mode="after")
    def _threshold_of_step(self) -> UtilityBody:
        if (self.shape == "step") != (self.threshold is not None):
            raise ValueError("a step needs a threshold, as in step:3@0.8, and the other shapes have none")
        return self

    def intent(self) -> Utility:
        return Utility(
            UtilityShape[self.shape.upper()], self.weight, self.threshold or 0.0, self.freshness_seconds
        )


@lru_cache(10_000)
def _spelled_out(text: str) -> UtilityBody:
    shape, _, numbers = text.partition(":")
    weight, _, threshold = numbers.partition("@")
    return UtilityBody.model_validate(
        {"shape": shape, "weight": float(weight)} | ({"threshold": float(threshold)} if threshold else {})
    )


class SubscriptionBody(Body):
    """A topic or a pattern of topics, what it is worth, and how late or how rarely it may come."""

    topic: TopicFilter
    utility: Annotated[str, Field(pattern=_UTILITY, examples=["log:10", "step:3@0.8"])] | UtilityBody = (
        "log:1"
    )
    max_latency_seconds: Seconds | None = None
    max_latency_share: Share | None = None
    max_separation_seconds: Seconds | None = None
    qos: Annotated[int, Field(ge=0, le=2)] = 0

    @field_validator("utility")
    @classmethod
    def _parsed(cls, given: str | UtilityBody) -> str | UtilityBody:
        if isinstance(given, str):
            _spelled_out(given)
        return given

    @model_validator(mode="after")
    def _share_of_some_time(self) -> SubscriptionBody:
        if self.max_latency_share is not None and self.max_latency_seconds is None:
            raise ValueError("max_latency_share is a share within no time; give max_latency_seconds, too")
        return self

    def intent(self) -> SubscriptionIntent:
        worth = _spelled_out(self.utility) if isinstance(self.utility, str) else self.utility
        return SubscriptionIntent(
            self.topic,
            worth.intent(),
            self.max_latency_seconds,
            self.max_separation_seconds,
            self.qos,
            self.max_latency_share,
        )


class SubscriberBody(Body):
    """A subscriber: what it wants, through which output port, with how many connections at most."""

    subscriptions: Annotated[list[SubscriptionBody], Field(max_length=MOST_ITEMS)]
    port: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    flows: Annotated[int, Field(ge=1, le=1_000)] | None = None
    lease_seconds: LeaseSeconds = DEFAULT_LEASE_SECONDS

    @field_validator("subscriptions")
    @classmethod
    def _once(cls, given: list[SubscriptionBody]) -> list[SubscriptionBody]:
        _no_topic_twice([each.topic for each in given])
        return given

    def intent_of(self, name: str) -> SubscriberIntent:
        return SubscriberIntent(
            name, tuple(each.intent() for each in self.subscriptions), self.port, self.flows
        )


class SubscriberRequest(SubscriberBody):
    """The same with its name."""

    name: Name


class PublicationBody(Body):
    """A topic; the rate and size that are left out are measured."""

    topic: Topic
    rate_per_second: Rate | None = None
    size_bytes: SizeBytes | None = None


class PublisherBody(Body):
    """A publisher and its topics."""

    publications: Annotated[list[PublicationBody], Field(max_length=MOST_ITEMS)]
    lease_seconds: LeaseSeconds = DEFAULT_LEASE_SECONDS

    @field_validator("publications")
    @classmethod
    def _once(cls, given: list[PublicationBody]) -> list[PublicationBody]:
        _no_topic_twice([each.topic for each in given])
        return given

    def intent_of(self, name: str) -> PublisherIntent:
        return PublisherIntent(
            name,
            tuple(
                PublicationIntent(each.topic, each.rate_per_second, each.size_bytes)
                for each in self.publications
            ),
        )


class PublisherRequest(PublisherBody):
    """The same with its name."""

    name: Name


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
    publishers: Annotated[list[PublisherRequest], Field(max_length=MOST_ITEMS)] = []
    subscribers: Annotated[list[SubscriberRequest], Field(max_length=MOST_ITEMS)] = []


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


NamePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@*-]{1,200}$", examples=["ff-*"])]


class TokenRequest(Body):
    """A new token: what for, which names and topics, and how much."""

    label: Annotated[str, Field(pattern=r"^[\x20-\x7e]{0,200}$")] = ""
    roles: Annotated[
        list[Literal["publisher", "subscriber", "operator", "viewer"]], Field(min_length=1, max_length=4)
    ]
    names: Annotated[list[NamePattern], Field(min_length=1, max_length=1_000)] = ["*"]
    publish: Annotated[list[TopicFilter], Field(max_length=10_000)] = []
    subscribe: Annotated[list[TopicFilter], Field(max_length=10_000)] = []
    most_subscriptions: Count | None = None
    most_publications_per_second: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = None
    expires_seconds: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] | None = None


def _no_topic_twice(topics: list[str]) -> None:
    if len(set(topics)) < len(topics):
        seen: set[str] = set()
        twice = next(topic for topic in topics if topic in seen or seen.add(topic))  # type: ignore[func-returns-value]
        raise ValueError(f"the topic {twice!r} is there twice")


class SupposedSubscription(SubscriptionBody):
    """A subscription that somebody might have; the topic may be a pattern."""

    subscriber: Name


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
