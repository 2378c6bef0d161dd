"""What each entry of a scenario file may hold: one pydantic model per kind of entry.

Models check an entry by itself. Names that refer to other entries are checked in `references.py`. A field's
`examples` say what to write where it is missing or wrong.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from triagemq.scenario.kinds import ArrivalProcess, SendingOrder, SizeDistribution, UtilityShape
from triagemq.scenario.lines import parse_number
from triagemq.scenario.model import DEFAULT_SERVICE_RATE, PlanningSettings
from triagemq.scenario.units import number_text

__all__ = [
    "Arrivals",
    "BrokerEntry",
    "BrokerLinkEntry",
    "Entry",
    "Header",
    "Name",
    "NotNegative",
    "Planning",
    "PortEntry",
    "Positive",
    "PublicationEntry",
    "PublisherEntry",
    "Share",
    "Sizes",
    "SubscriberEntry",
    "SubscriptionEntry",
    "SwitchEntry",
    "TopicEntry",
    "UnmanagedSwitchEntry",
    "Utility",
    "empirical_mean",
    "mistake",
]

PLANNING = PlanningSettings()

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Part = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


def mistake(field: str, what: str, fix: str) -> PydanticCustomError:
    """An error of a whole entry that is shown at one of its fields."""
    return PydanticCustomError("mistake", "{what}", {"field": field, "what": what, "fix": fix})


class Entry(BaseModel):
    """Base of all entries: unknown keys are refused, values are not converted, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Planning(Entry):
    """What planners may use."""

    flows_per_subscriber: int = Field(PLANNING.flows_per_subscriber, ge=1, examples=["9"])
    priority_classes: int = Field(PLANNING.priority_classes, ge=1, examples=["9"])
    rho_tolerance: Share = Field(PLANNING.rho_tolerance, examples=["0.1"])
    judged_over_seconds: Positive = Field(PLANNING.judged_over_seconds, examples=["60"])


class Header(Entry):
    """What stands at the top of a file beside its sections."""

    name: Name | None = None
    mtu_bytes: Positive | None = Field(None, examples=["1500"])
    fragmentation: bool = False
    overhead_bytes: NotNegative = Field(0.0, examples=["49"])
    sending_order: Literal["by_class", "random"] = "by_class"

    @model_validator(mode="after")
    def _fits(self) -> Header:
        if self.fragmentation and self.mtu_bytes is None:
            raise mistake("fragmentation", "needs an MTU", "add mtu_bytes: 1500, or remove fragmentation")
        if self.mtu_bytes is not None and self.overhead_bytes >= self.mtu_bytes:
            raise mistake(
                "overhead_bytes",
                f"leaves no room in a packet of {number_text(self.mtu_bytes)} bytes",
                f"write less than {number_text(self.mtu_bytes)}",
            )
        return self

    @property
    def order(self) -> SendingOrder:
        return SendingOrder[self.sending_order.upper()]


class BrokerEntry(Entry):
    """A broker: events a second it can match and hand out."""

    inbound_rate_per_second: Positive = Field(DEFAULT_SERVICE_RATE, examples=["1000000"])
    outbound_rate_per_second: Positive = Field(DEFAULT_SERVICE_RATE, examples=["1000000"])


class BrokerLinkEntry(Entry):
    """A link between two brokers: `between` for both directions, `from` and `to` for one."""

    between: list[Name] | None = Field(None, min_length=2, max_length=2, examples=["[BROKER, BROKER]"])
    source: Name | None = Field(None, alias="from", examples=["BROKER"])
    target: Name | None = Field(None, alias="to", examples=["BROKER"])
    bandwidth_bps: Positive | None = Field(None, examples=["1e9"])
    error_rate: Share = 0.0
    propagation_seconds: NotNegative = Field(0.0, examples=["0.001"])

    @model_validator(mode="after")
    def _ends(self) -> BrokerLinkEntry:
        one_way = (self.source, self.target)
        if self.between is not None and one_way != (None, None):
            raise mistake("between", "stands beside from and to", "keep between, or from and to")
        if self.between is None and None in one_way:
            raise mistake("", "does not say which brokers it joins", "add between: [BROKER, BROKER]")
        if len(set(self.ends)) == 1:
            raise mistake("", f"joins {self.ends[0]} to itself", "name two different brokers")
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


class UnmanagedSwitchEntry(Entry):
    """The publishers' side of the network."""

    bandwidth_bps: Positive = Field(examples=["10000000"])


class SwitchEntry(Entry):
    """A managed switch, the output port that feeds it, and the one that does while the link of the first is down."""

    inbound_rate_per_second: Positive = Field(DEFAULT_SERVICE_RATE, examples=["1000000"])
    fed_by: Name | None = Field(None, examples=["PORT"])
    backup: Name | None = Field(None, examples=["PORT"])

    @model_validator(mode="after")
    def _backup_of_something(self) -> SwitchEntry:
        if self.backup is not None and self.fed_by is None:
            raise mistake("backup", "stands without fed_by", "add fed_by: PORT, or remove backup")
        if self.backup is not None and self.backup == self.fed_by:
            raise mistake("backup", f"is {self.backup}, as fed_by is", "name another port, or remove backup")
        return self


class PortEntry(Entry):
    """An output port of a managed switch."""

    switch: Name = Field(examples=["SWITCH"])
    bandwidth_bps: Positive = Field(examples=["8000000"])
    buffer_packets: Annotated[float, Field(ge=1, multiple_of=1, allow_inf_nan=False)] | None = Field(
        None, examples=["2000"]
    )
    queues: int | None = Field(None, ge=1, le=2**31 - 1, examples=["9"])
    error_rate: Share = 0.0
    propagation_seconds: NotNegative = 0.0


def _named(key: str) -> BeforeValidator:
    """The short form of a nested entry: its name alone instead of `{key: name}`."""
    return BeforeValidator(lambda given: {key: given} if isinstance(given, str) else given)


SIZE_NAMES = {"exponential": SizeDistribution.EXPONENTIAL, "constant": SizeDistribution.CONSTANT}
PROCESS_NAMES = {process.name.lower(): process for process in ArrivalProcess}
SHAPE_NAMES = {shape.name.lower(): shape for shape in UtilityShape}


class Sizes(Entry):
    """How sizes are spread: a distribution by name, or the sizes that were seen and how often."""

    distribution: Literal["exponential", "constant"] | None = None
    values: list[Positive] | None = Field(None, min_length=1, examples=["[900, 1100]"])
    weights: list[NotNegative] | None = Field(None, min_length=1, examples=["[1, 3]"])

    @model_validator(mode="after")
    def _whole(self) -> Sizes:
        if self.distribution is not None:
            if self.values is not None or self.weights is not None:
                raise mistake(
                    "distribution",
                    "stands beside values",
                    f"write sizes: {self.distribution}, or the values alone",
                )
        elif self.values is None:
            raise mistake("values", "is missing", "add values: [900, 1100], or write sizes: exponential")
        elif self.weights is not None and len(self.weights) != len(self.values):
            raise mistake(
                "weights",
                f"has {len(self.weights)} numbers for {len(self.values)} values",
                f"write {len(self.values)} numbers, or leave it out for equal weights",
            )
        elif not 0 < empirical_mean(*self.samples) < math.inf:
            raise mistake("", "has no mean", "make at least one weight larger than 0, and no number huge")
        return self

    @property
    def code(self) -> SizeDistribution:
        """The distribution as the model stores it."""
        return SizeDistribution.EMPIRICAL if self.distribution is None else SIZE_NAMES[self.distribution]

    @property
    def samples(self) -> tuple[list[float], list[float]]:
        """Empirical sizes and their weights."""
        values = self.values or []
        return values, self.weights if self.weights is not None else [1.0] * len(values)


class Arrivals(Entry):
    """How events are spread over time."""

    process: Literal["poisson", "periodic", "pareto", "on_off"]
    shape: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = Field(None, examples=["2.5"])
    on_seconds: Positive | None = Field(None, examples=["2"])
    off_seconds: Positive | None = Field(None, examples=["8"])

    @model_validator(mode="after")
    def _whole(self) -> Arrivals:
        wanted = {"pareto": ("shape",), "on_off": ("on_seconds", "off_seconds")}.get(self.process, ())
        for name in ("shape", "on_seconds", "off_seconds"):
            given = getattr(self, name) is not None
            if given and name not in wanted:
                raise mistake(name, f"means nothing for {self.process} arrivals", "remove it")
            if not given and name in wanted:
                spelled = {"pareto": "shape: 2.5", "on_off": "on_seconds: 2, off_seconds: 8"}[self.process]
                fix = f"write arrivals: {{process: {self.process}, {spelled}}}"
                raise mistake("", f"has no {name}, which {self.process} arrivals need", fix)
        return self

    @property
    def code(self) -> ArrivalProcess:
        """The process as the model stores it."""
        return PROCESS_NAMES[self.process]


class TopicEntry(Entry):
    """Sizes of a topic's events where its publications give none."""

    size_bytes: Positive | None = Field(None, examples=["60"])
    sizes: Annotated[Sizes, _named("distribution")] | None = Field(None, examples=["exponential"])


class PublisherEntry(Entry):
    """Where a publisher is; what it publishes is read apart."""

    broker: Name | None = Field(None, examples=["BROKER"])
    switch: Name | None = Field(None, examples=["SWITCH"])
    error_rate: Share = 0.0
    propagation_seconds: NotNegative = 0.0


class PublicationEntry(Entry):
    """One publisher's events on one topic."""

    rate_per_second: Positive | None = Field(None, examples=["2"])
    size_bytes: Positive | None = Field(None, examples=["60"])
    sizes: Annotated[Sizes, _named("distribution")] | None = Field(None, examples=["exponential"])
    arrivals: Annotated[Arrivals, _named("process")] = Field(
        Arrivals(process="poisson"), examples=["poisson"]
    )
    min_separation_seconds: Positive | None = Field(None, examples=["0.5"])
    max_separation_seconds: Positive | None = Field(None, examples=["5"])

    @model_validator(mode="after")
    def _rate_and_separation(self) -> PublicationEntry:
        shortest, longest = self.min_separation_seconds, self.max_separation_seconds
        if self.rate_per_second is None and shortest is None:
            raise mistake("rate_per_second", "is missing", "add rate_per_second, or min_separation_seconds")
        if shortest is not None and not math.isfinite(1 / shortest):
            raise mistake("min_separation_seconds", "is too small", "write at least 1e-9")
        if shortest is not None and self.rate > (1 + 1e-9) / shortest:
            raise mistake(
                "rate_per_second",
                f"is {number_text(self.rate)}, more than events {number_text(shortest)} seconds apart can be",
                f"write at most {number_text(1 / shortest)}, or a smaller min_separation_seconds",
            )
        if shortest is not None and longest is not None and longest < shortest:
            raise mistake(
                "max_separation_seconds",
                f"is {number_text(longest)}, less than min_separation_seconds",
                f"write at least {number_text(shortest)}",
            )
        return self

    @property
    def rate(self) -> float:
        """Events a second: as given, else as many as the minimum separation lets through."""
        if self.rate_per_second is not None:
            return self.rate_per_second
        return 1 / (self.min_separation_seconds or math.inf)


class SubscriberEntry(Entry):
    """Where a subscriber is; what it subscribes to is read apart."""

    broker: Name | None = Field(None, examples=["BROKER"])
    port: Name = Field(examples=["PORT"])
    error_rate: Share = 0.0
    propagation_seconds: NotNegative = 0.0


UTILITY_FORM = re.compile(r"\s*([A-Za-z_]+)\s*:\s*([^@\s]+)\s*(?:@\s*(\S+)\s*)?")


def _utility(given: Any) -> Any:
    """The short form `shape:weight`, or `step:weight@threshold`, spelled out."""
    if not isinstance(given, str):
        return given
    parts = UTILITY_FORM.fullmatch(given)
    weight = parse_number(parts[2]) if parts else None
    threshold = parse_number(parts[3]) if parts and parts[3] else None
    if parts is None or weight is None or (parts[3] and threshold is None):
        raise mistake("", f"{given!r} is not a utility", "write log:10, linear:2 or step:3@0.8")
    spelled: dict[str, Any] = {"shape": parts[1], "weight": weight}
    return spelled if threshold is None else {**spelled, "threshold": threshold}


class Utility(Entry):
    """What all of a topic's events are worth, and how that shrinks with loss and lateness."""

    shape: Literal["log", "linear", "step"]
    weight: NotNegative = Field(examples=["10"])
    threshold: Part | None = Field(None, examples=["0.8"])
    freshness_seconds: Positive | None = Field(None, examples=["2"])

    @model_validator(mode="after")
    def _threshold_of_step(self) -> Utility:
        if self.shape == "step" and self.threshold is None:
            raise mistake("", "is a step without a threshold", f"write step:{number_text(self.weight)}@0.8")
        if self.shape != "step" and self.threshold is not None:
            raise mistake(
                "threshold", f"means nothing for a {self.shape} utility", "remove it, or write step"
            )
        return self

    @property
    def code(self) -> UtilityShape:
        """The shape as the model stores it."""
        return SHAPE_NAMES[self.shape]


class SubscriptionEntry(Entry):
    """What a topic is worth to a subscriber, the latency it may have, or both."""

    utility: Annotated[Utility, BeforeValidator(_utility)] | None = Field(None, examples=["log:10"])
    max_latency_seconds: Positive | None = Field(None, examples=["0.05"])
    max_latency_share: Part | None = Field(None, examples=["0.95"])
    max_separation_seconds: Positive | None = Field(None, examples=["1"])

    @model_validator(mode="after")
    def _asks_for_something(self) -> SubscriptionEntry:
        if self.utility is None and self.max_latency_seconds is None:
            raise mistake("utility", "is missing", "add utility: log:10, or max_latency_seconds")
        if self.max_latency_share is not None and self.max_latency_seconds is None:
            raise mistake("max_latency_share", "is a share within no time", "add max_latency_seconds: 0.2")
        return self


def empirical_mean(values: list[float], weights: list[float]) -> float:
    """The mean of an empirical distribution, the same to the last bit on every machine; NaN if it has none.

    >>> empirical_mean([900, 1100], [1, 3])
    1050.0
    """
    try:
        total = math.fsum(value * weight for value, weight in zip(values, weights, strict=True))
        return total / math.fsum(weights)
    except (OverflowError, ZeroDivisionError):
        return math.nan
