"""What a scenario file may hold: one pydantic model of the whole, and one of each kind of entry.

Models check an entry by itself. What numbers of publications and subscriptions may be stands in `rows.py`, for tables
as well; names that refer to other entries are checked in `references.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from triagemq.intents import utility_parts
from triagemq.scenario.files.explain import (
    BANDWIDTH,
    NUMBER,
    PACKETS,
    PART,
    RATE,
    SHARE,
    SIZE,
    TIME,
    Quantity,
    described,
    entry_error,
    entry_errors,
    number_text,
    parse_number,
    unknown_key,
)
from triagemq.scenario.model import DEFAULT_SERVICE_RATE, WIDTH_ROUNDING, PlanningSettings

PLANNING = PlanningSettings()


def _counts(quantity: Quantity) -> BeforeValidator:
    """Texts become numbers: plain, or with a unit of the quantity."""

    def read(given: Any) -> Any:
        if not isinstance(given, str):
            return given
        plain = type(given) is str
        number = parse_number(given) if plain else None
        if number is None:
            number = quantity.read(given)
        if number is None and plain and given.lower() in ("true", "false"):
            raise entry_error("", f"{described(given)} is not a number", f"write {quantity.wanted}")
        if number is None:
            raise entry_error("", *quantity.advice(given))
        return number

    return BeforeValidator(read)


TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

Name = Annotated[str, Field(min_length=1)]
Truth = Annotated[
    bool, BeforeValidator(lambda given: TRUTHS.get(given, given) if type(given) is str else given)
]
Count = Annotated[int, Field(ge=1, le=2**31 - 1), _counts(NUMBER)]
Bandwidth = Annotated[float, Field(gt=0, allow_inf_nan=False), _counts(BANDWIDTH)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False), _counts(RATE)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False), _counts(SIZE)]
Duration = Annotated[float, Field(gt=0, allow_inf_nan=False), _counts(TIME)]
Delay = Annotated[float, Field(ge=0, allow_inf_nan=False), _counts(TIME)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), _counts(SHARE)]
Packets = Annotated[float, Field(ge=1, multiple_of=1, allow_inf_nan=False), _counts(PACKETS)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False), _counts(NUMBER)]

# The bounds of these are in rows.py.
AnyNumber = Annotated[float, Field(allow_inf_nan=False), _counts(NUMBER)]
AnyRate = Annotated[float, Field(allow_inf_nan=False), _counts(RATE)]
AnySize = Annotated[float, Field(allow_inf_nan=False), _counts(SIZE)]
AnySeconds = Annotated[float, Field(allow_inf_nan=False), _counts(TIME)]
AnyPart = Annotated[float, Field(allow_inf_nan=False), _counts(PART)]


class FileEntry(BaseModel):
    """Base of all entries: unknown keys are refused, a null is nothing, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    needs: ClassVar[dict[str, str]] = {}
    """Keys that mean nothing without others."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if given is None:
            return {}
        if not isinstance(given, dict):
            return given
        known = keys_of(cls)
        if unknown := [key for key in given if key not in known]:
            raise entry_errors([unknown_key(key, known) for key in unknown])
        given = {key: value for key, value in given.items() if value is not None}
        for key, other in cls.needs.items():
            if key in given and other not in given:
                raise entry_error(key, f"stands without {other}", f"add {other}, or remove {key}")
        return given


@cache
def keys_of(entry: type[FileEntry]) -> dict[str, str]:
    """The keys of an entry, and the field of each."""
    return {field.alias or name: name for name, field in entry.model_fields.items()}


class PlanningEntry(FileEntry):
    """What planners may use."""

    flows_per_subscriber: Count = PLANNING.flows_per_subscriber
    priority_classes: Count = PLANNING.priority_classes
    rho_tolerance: Share = PLANNING.rho_tolerance
    judged_over_seconds: Duration = PLANNING.judged_over_seconds


class BrokerEntry(FileEntry):
    """A broker: events a second it can match and hand out; its cluster, and the bandwidths of its own links."""

    inbound_rate_per_second: Rate = DEFAULT_SERVICE_RATE
    outbound_rate_per_second: Rate = DEFAULT_SERVICE_RATE
    cluster: Name | None = None
    head: Truth = False
    downlink_bps: Bandwidth | None = None
    uplink_bps: Bandwidth | None = None


class BrokerLinkEntry(FileEntry):
    """A link between two brokers: `between` for both directions, `from` and `to` for one."""

    between: list[Name] | None = Field(None, min_length=2, max_length=2)
    source: Name | None = Field(None, alias="from")
    target: Name | None = Field(None, alias="to")
    bandwidth_bps: Bandwidth | None = None
    error_rate: Share = 0.0
    propagation_seconds: Delay = 0.0

    @model_validator(mode="after")
    def _ends(self) -> BrokerLinkEntry:
        one_way = (self.source, self.target)
        if self.between is not None and one_way != (None, None):
            raise entry_error("between", "stands next to from and to", "keep between, or from and to")
        if self.between is None and None in one_way:
            raise entry_error("", "does not say which brokers it joins", "add between: [BROKER, BROKER]")
        if len(set(self.ends)) == 1:
            raise entry_error("", f"joins {self.ends[0]} to itself", "name two different brokers")
        return self

    @property
    def ends(self) -> tuple[str, str]:
        """The two brokers, the source first."""
        first, second = self.between if self.between is not None else (self.source or "", self.target or "")
        return first, second

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """Source and target of each direction the link carries."""
        return (self.ends, self.ends[::-1]) if self.between is not None else (self.ends,)


class UnmanagedSwitchEntry(FileEntry):
    """The publishers' side of the network."""

    bandwidth_bps: Bandwidth


class BuiltEntry(FileEntry):
    """How a switch is built: stated by a switch, or by the model of it."""

    multiplexing_seconds: Delay | None = None
    packet_bytes: Size | None = None
    rate_limiters: Count | None = None
    limiter: Literal["window", "bucket"] | None = None
    limiter_step_seconds: Delay | None = None
    limiter_tolerance_seconds: Delay | None = None
    limiter_precision: Share | None = None
    rules: Count | None = None


FIGURES = tuple(BuiltEntry.model_fields)


class SwitchEntry(BuiltEntry):
    """A managed switch, the output port that feeds it, and the one that does while the link of the first is down."""

    needs: ClassVar = {"backup": "fed_by"}
    inbound_rate_per_second: Rate = DEFAULT_SERVICE_RATE
    fed_by: Name | None = None
    backup: Name | None = None
    model: Name | None = None

    @model_validator(mode="after")
    def _backup_of_something(self) -> SwitchEntry:
        if self.backup is not None and self.backup == self.fed_by:
            raise entry_error(
                "backup", f"is {self.backup}, as fed_by is", "name another port, or remove backup"
            )
        return self


class PortEntry(FileEntry):
    """An output port of a managed switch."""

    switch: Name
    bandwidth_bps: Bandwidth
    buffer_packets: Packets | None = None
    queues: Count | None = None
    error_rate: Share = 0.0
    propagation_seconds: Delay = 0.0
    to: Name | None = None
    discipline: Literal["priority", "fair", "queue_rates"] = "priority"
    queue_rates_bps: list[Bandwidth] | None = Field(None, min_length=1)
    floors_bps: list[Bandwidth] | None = Field(None, min_length=1)
    borrowing: Truth = False

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, given: Any) -> Any:
        if isinstance(given, dict) and "widths_bps" in given and "queue_rates_bps" not in given:
            given = {"queue_rates_bps" if key == "widths_bps" else key: each for key, each in given.items()}
        if isinstance(given, dict) and given.get("discipline") == "widths":
            given = given | {"discipline": "queue_rates"}
        return given

    @model_validator(mode="after")
    def _queue_rates_that_fit(self) -> PortEntry:
        for key in ("queue_rates_bps", "floors_bps", "borrowing"):
            if self.discipline != "queue_rates" and getattr(self, key):
                raise entry_error(
                    key,
                    f"stands with discipline: {self.discipline}",
                    "write discipline: queue_rates, or remove it",
                )
        if self.discipline == "queue_rates":
            error = width_error(self.bandwidth_bps, self.queue_rates_bps or (), self.floors_bps)
            if error is not None:
                raise entry_error(*error)
        return self


def width_error(
    bandwidth_bps: float, queue_rates_bps: Sequence[float], floors_bps: Sequence[float] | None = None
) -> tuple[tuple[str | int, ...], str, str] | None:
    """What is wrong with the queue rates of a port's queues: where, what, and what to write.

    >>> width_error(8e6, [5e6, 2e6])
    (('queue_rates_bps',), 'adds up to 7000000 of the 8000000 of the port', 'write queue rates that add up to 8000000')
    """
    if not queue_rates_bps:
        return ("queue_rates_bps",), "is missing", "add queue_rates_bps: [5e6, 2e6, 1e6], one for each class"
    total = math.fsum(queue_rates_bps)
    if not abs(total - bandwidth_bps) <= WIDTH_ROUNDING * bandwidth_bps:
        port = number_text(bandwidth_bps)
        what = f"adds up to {number_text(total)} of the {port} of the port"
        return ("queue_rates_bps",), what, f"write queue rates that add up to {port}"
    if floors_bps is not None and len(floors_bps) != len(queue_rates_bps):
        what = f"has {len(floors_bps)} numbers for {len(queue_rates_bps)} queue rates"
        return ("floors_bps",), what, f"write {len(queue_rates_bps)} numbers, or leave it out"
    for row, (floor, width) in enumerate(zip(floors_bps or (), queue_rates_bps, strict=False)):
        if floor > width:
            what = f"is {number_text(floor)}, above the width of its queue"
            return ("floors_bps", row), what, f"write at most {number_text(width)}"
    return None


def _named(key: str) -> BeforeValidator:
    """The short form of a nested entry: its name alone instead of `{key: name}`."""
    return BeforeValidator(lambda given: {key: given} if isinstance(given, str) else given)


class SizesEntry(FileEntry):
    """How sizes are spread: a distribution by name, or the sizes that were seen and how often."""

    distribution: Literal["exponential", "constant", "empirical"] = "empirical"
    values: list[AnySize] | None = Field(None, min_length=1)
    weights: list[AnyNumber] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> SizesEntry:
        if self.distribution != "empirical":
            if self.values is not None or self.weights is not None:
                fix = f"write sizes: {self.distribution}, or the values alone"
                raise entry_error("distribution", "stands next to values", fix)
        elif self.values is None:
            raise entry_error("values", "is missing", "add values: [900, 1100], or write sizes: exponential")
        elif (error := sample_error(*self.samples)) is not None:
            raise entry_error(*error)
        return self

    @property
    def samples(self) -> tuple[list[float], list[float]]:
        """Empirical sizes and their weights."""
        values = self.values or []
        return values, self.weights if self.weights is not None else [1.0] * len(values)


def sample_error(
    values: Sequence[float], weights: Sequence[float]
) -> tuple[tuple[str | int, ...], str, str] | None:
    """What is wrong with an empirical distribution: where in `values` or `weights`, what, and what to write.

    >>> sample_error([900, 1100], [1, -3])
    (('weights', 1), 'is -3', 'write a number of at least 0')
    """
    if not len(values):
        return ("values",), "is not a list of sizes", "write sizes above 0, and as many weights of at least 0"
    for row, size in enumerate(values):
        if not 0 < size < math.inf:
            return ("values", row), f"is {described(float(size))}", "write a number above 0, in bytes"
    if len(weights) != len(values):
        what = f"has {len(weights)} numbers for {len(values)} values"
        return ("weights",), what, f"write {len(values)} numbers, or leave it out for equal weights"
    for row, weight in enumerate(weights):
        if not weight >= 0:
            return ("weights", row), f"is {described(float(weight))}", "write a number of at least 0"
    if not 0 < empirical_mean(values, weights) < math.inf:
        return (), "has no mean", "make at least one weight larger than 0, and no number huge"
    return None


def empirical_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean of an empirical distribution, the same to the last bit on every machine; NaN if it has none.

    >>> empirical_mean([900, 1100], [1, 3])
    1050.0
    """
    try:
        total = math.fsum(value * weight for value, weight in zip(values, weights, strict=True))
        return total / math.fsum(weights)
    except (OverflowError, ZeroDivisionError):
        return math.nan


EXPONENTIAL = SizesEntry(distribution="exponential")


class ArrivalsEntry(FileEntry):
    """How events are spread over time."""

    process: Literal["poisson", "periodic", "pareto", "on_off"]
    shape: AnyNumber | None = None
    on_seconds: AnySeconds | None = None
    off_seconds: AnySeconds | None = None


class TopicEntry(FileEntry):
    """Sizes of a topic's events where its publications give none."""

    size_bytes: Size | None = None
    sizes: Annotated[SizesEntry, _named("distribution")] | None = None


class PublicationEntry(FileEntry):
    """One publisher's events on one topic."""

    rate_per_second: AnyRate | None = None
    size_bytes: AnySize | None = None
    sizes: Annotated[SizesEntry, _named("distribution")] = EXPONENTIAL
    arrivals: Annotated[ArrivalsEntry, _named("process")] = ArrivalsEntry(process="poisson")
    min_separation_seconds: AnySeconds | None = None
    max_separation_seconds: AnySeconds | None = None
    max_size_bytes: AnySize | None = None


class PublisherEntry(FileEntry):
    """Where a publisher is, and what it publishes."""

    needs: ClassVar = {"access_bps": "access"}
    broker: Name | None = None
    cluster: Name | None = None
    switch: Name | None = None
    error_rate: Share = 0.0
    propagation_seconds: Delay = 0.0
    access: Name | None = None
    access_bps: Bandwidth | None = None
    publishes: dict[Name, PublicationEntry] = {}


def _spelled_out(given: Any) -> Any:
    """The short form `shape:weight`, or `step:weight@threshold`, as a mapping."""
    if not isinstance(given, str):
        return given
    parts = utility_parts(given)
    if parts is None and type(given) is str and parse_number(given) is not None:
        raise entry_error("", f"is {given}", "write utility: log:10")
    weight = None if parts is None else parse_number(parts[1])
    if parts is None or weight is None:
        raise entry_error("", f"{given!r} is not a utility", "write log:10, linear:2 or step:3@0.8")
    spelled = {"shape": parts[0], "weight": weight}
    return {**spelled, "threshold": parts[2]} if parts[2] else spelled


class UtilityEntry(FileEntry):
    """What all of a topic's events are worth, and how that shrinks with loss and lateness."""

    shape: Literal["log", "linear", "step"]
    weight: AnyNumber
    threshold: AnyPart | None = None
    freshness_seconds: AnySeconds | None = None


NO_WORTH = UtilityEntry(shape="log", weight=0.0)


class SubscriptionEntry(FileEntry):
    """What a topic is worth to a subscriber, the latency it may have, or both; the worth may stand alone."""

    utility: Annotated[UtilityEntry, BeforeValidator(_spelled_out)] = NO_WORTH
    max_latency_seconds: AnySeconds | None = None
    max_latency_share: AnyPart | None = None
    max_separation_seconds: AnySeconds | None = None
    guaranteed: Truth = False
    min_share: AnyPart | None = None
    max_rate_per_second: AnyRate | None = None
    newest_only: Truth = False
    expires_seconds: AnySeconds | None = None
    role_rank: AnyNumber | None = None

    @model_validator(mode="before")
    @classmethod
    def _worth_alone(cls, given: Any) -> Any:
        return {"utility": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _asks_for_something(self) -> SubscriptionEntry:
        if self.utility is NO_WORTH and self.max_latency_seconds is None and not self.guaranteed:
            raise entry_error("utility", "is missing", "add utility: log:10, or max_latency_seconds")
        return self


class SubscriberEntry(FileEntry):
    """Where a subscriber is, and what it subscribes to."""

    broker: Name | None = None
    cluster: Name | None = None
    port: Name
    error_rate: Share = 0.0
    propagation_seconds: Delay = 0.0
    subscribes: dict[Name, SubscriptionEntry] = {}


STATES = {"publisher": ("fails", "returns"), "subscriber": ("joins", "leaves"), "link": ("fails", "returns")}

CHANGES = {
    "port": ("bandwidth_bps", "error_rate"),
    "publisher": ("state", "error_rate"),
    "subscriber": ("state", "error_rate"),
    "link": ("state",),
    "topic": ("rate_per_second", "rate_factor"),
    "worth_profile": (),
}
"""What may change, by what an entry names. A topic may stand next to the publisher that is meant."""

EXAMPLES = {"bandwidth_bps": "160000", "rate_per_second": "20"}


class ConditionEntry(FileEntry):
    """Something that happens at a given time of a run, to a port, publisher, subscriber, link or topic, or to worth."""

    at_seconds: Delay
    port: Name | None = None
    publisher: Name | None = None
    subscriber: Name | None = None
    link: list[Name] | None = Field(None, min_length=2, max_length=2)
    topic: Name | None = None
    worth_profile: Name | None = None
    bandwidth_bps: Bandwidth | None = None
    error_rate: Share | None = None
    rate_per_second: Rate | None = None
    rate_factor: Factor | None = None
    state: Literal["fails", "returns", "joins", "leaves"] | None = None

    @model_validator(mode="after")
    def _one_change_of_one_thing(self) -> ConditionEntry:
        named = [key for key in CHANGES if getattr(self, key) is not None]
        if named == ["publisher", "topic"]:
            named = ["topic"]
        if len(named) != 1:
            what = f"names {' and '.join(named)}" if named else "does not say what changes"
            choice = ", ".join([*CHANGES][:-1])
            raise entry_error("", what, f"write one of {choice} or worth_profile in each entry")
        (subject,) = named
        possible = CHANGES[subject]
        given = [key for key in _KEYS if getattr(self, key) is not None]
        for key in given:
            if key not in possible:
                raise entry_error(
                    key, f"means nothing for a {subject}", f"remove it, or name a {_holders(key)}"
                )
        if possible and not given:
            example = EXAMPLES.get(possible[0]) or " or ".join(STATES[subject])
            raise entry_error(possible[0], "is missing", f"add {possible[0]}: {example}")
        if len(given) > 1:
            raise entry_error(given[1], f"stands next to {given[0]}", "write one change in each entry")
        if self.state is not None and self.state not in STATES[subject]:
            raise entry_error("state", f"is {self.state}", f"write {' or '.join(STATES[subject])}")
        return self


_KEYS = tuple(dict.fromkeys(key for keys in CHANGES.values() for key in keys))


def _holders(key: str) -> str:
    return " or ".join(subject for subject, keys in CHANGES.items() if key in keys)


def _worth_factor(given: Any) -> float:
    number = parse_number(given) if type(given) is str else None
    if number is None or not 0 <= number < math.inf:
        shown = described(given if number is None else float(number))
        what = f"is {shown}, not a factor on what the topic is worth"
        raise entry_error("", what, "write a number, such as 3")
    return float(number)


WorthProfile = Annotated[
    dict[str, Annotated[float, BeforeValidator(_worth_factor)]],
    BeforeValidator(lambda given: {} if given is None else given),
]


def _topics_by_name(given: Any) -> Any:
    """Topics that are a list of names alone."""
    names = isinstance(given, list) and all(isinstance(name, str) for name in given)
    return dict.fromkeys(given) if names else given


class ScenarioFile(FileEntry):
    """All of a scenario file."""

    name: Name | None = None
    mtu_bytes: Size | None = None
    fragmentation: Truth = False
    overhead_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False), _counts(SIZE)] = 0.0
    sending_order: Literal["by_class", "random"] = "by_class"
    planning: PlanningEntry = PlanningEntry()
    brokers: dict[Name, BrokerEntry] = {}
    broker_links: list[BrokerLinkEntry] = []
    unmanaged_switches: dict[Name, UnmanagedSwitchEntry] = {}
    switches: dict[Name, SwitchEntry] = {}
    ports: dict[Name, PortEntry] = {}
    topics: Annotated[dict[str, TopicEntry], BeforeValidator(_topics_by_name)] = {}
    publishers: dict[Name, PublisherEntry] = {}
    subscribers: dict[Name, SubscriberEntry] = {}
    worth_profiles: dict[Name, WorthProfile] = {}
    conditions: list[ConditionEntry] = []

    @model_validator(mode="after")
    def _fits(self) -> ScenarioFile:
        if self.fragmentation and self.mtu_bytes is None:
            raise entry_error("fragmentation", "needs an MTU", "add mtu_bytes: 1500, or remove fragmentation")
        if self.mtu_bytes is not None and self.overhead_bytes >= self.mtu_bytes:
            raise entry_error(
                "overhead_bytes",
                f"leaves no room in a packet of {number_text(self.mtu_bytes)} bytes",
                f"write less than {number_text(self.mtu_bytes)}",
            )
        return self
