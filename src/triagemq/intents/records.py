"""The records: what a share is worth, what is wanted of a topic, what is declared of one, and who announces it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from triagemq.errors import ParameterError
from triagemq.intents.rules import BESIDE, Describe, Description, Items, Number, OneOf, Ruled, Text, check
from triagemq.mqttsn import is_shared, publishable_topic_name, valid_topic_filter

__all__ = [
    "PUBLISHER",
    "SUBSCRIBER",
    "Declared",
    "Intent",
    "LeaseSeconds",
    "Name",
    "PublisherIntent",
    "PublisherTerms",
    "Rate",
    "Seconds",
    "Share",
    "SizeBytes",
    "SubscriberIntent",
    "SubscriberTerms",
    "Topic",
    "TopicFilter",
    "TopicText",
    "Utility",
    "Wanted",
    "Weight",
    "utility_parts",
]

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"
DEFAULT_LEASE_SECONDS = 10.0
MOST_ITEMS = 1_000_000

_LONGEST_TOPIC = 1_024
_EXAMPLE = "building/3/smoke"
_SHAPES = ("log", "linear", "step")
_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?"
_UTILITY = rf"^(log:{_NUMBER}|linear:{_NUMBER}|step:{_NUMBER}@{_NUMBER})$"
_UTILITY_PARTS = re.compile(r"\s*([A-Za-z_]+)\s*:\s*([^@\s]+)\s*(?:@\s*(\S.*?)\s*)?")


def _is_filter(text: str) -> bool:
    return valid_topic_filter(text) and not is_shared(text)


Name = Annotated[str, Text(200, r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}$", example="ff-07")]
TopicText = Annotated[str, Text(_LONGEST_TOPIC, example=_EXAMPLE)]
Topic = Annotated[
    str,
    Text(
        _LONGEST_TOPIC,
        fit=publishable_topic_name,
        unfit="is not the name of an MQTT topic to publish to: it must not be empty, hold +, # or a control "
        "character, have more than 200 levels, or begin with $SYS or $share",
        example=_EXAMPLE,
    ),
]
TopicFilter = Annotated[
    str,
    Text(
        _LONGEST_TOPIC,
        fit=_is_filter,
        unfit="is not an MQTT topic filter: let + or # stand alone between slashes, # only at the end, "
        "no control characters, at most 200 levels, no $share in front",
        example=_EXAMPLE,
    ),
]
Share = Annotated[float, Number(0, 1, above=True)]
Seconds = Annotated[float, Number(1e-6, 1e6)]
LeaseSeconds = Annotated[float, Number(1, 86_400)]
Weight = Annotated[float, Number(0, 1e12)]
Rate = Annotated[float, Number(1e-6, 1e9)]
SizeBytes = Annotated[float, Number(1, 65_535)]


@dataclass(frozen=True, slots=True)
class Utility(Ruled):
    """What all of a topic's events are worth, and how that shrinks with loss and age.

    Without `freshness_seconds` age does not matter.
    """

    shape: Annotated[Literal["log", "linear", "step"], OneOf(_SHAPES)]
    weight: Weight
    threshold: Share | None = None
    freshness_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        check(self)
        if (self.shape == "step") != (self.threshold is not None):
            raise ParameterError(
                "threshold", "a step needs a threshold, as in step:3@0.8, and the other shapes have none"
            )

    @classmethod
    def of(cls, given: Utility | str | Mapping[str, Any]) -> Utility:
        """From text, or a mapping with the fields."""
        if isinstance(given, Utility):
            return given
        return cls.parse(given) if isinstance(given, str) else cls(**given)

    @staticmethod
    @lru_cache(10_000)
    def parse(text: str) -> Utility:
        """From text.

        >>> Utility.parse("step:3@0.8")
        Utility(shape='step', weight=3.0, threshold=0.8, freshness_seconds=None)
        """
        parts = utility_parts(text)
        if parts is None or not re.fullmatch(_UTILITY, text):
            raise ParameterError("utility", f"{text!r:.100} is not log:10, linear:2 or step:3@0.8")
        shape, weight, threshold = parts
        return Utility(shape, float(weight), float(threshold) if threshold else None)


def utility_parts(text: str) -> tuple[Any, str, str | None] | None:
    """Shape, weight and threshold of `shape:weight` or `shape:weight@threshold`, as they are written.

    >>> utility_parts("step: 3 @ 80 %"), utility_parts("log")
    (('step', '3', '80 %'), None)
    """
    found = _UTILITY_PARTS.fullmatch(text)
    return None if found is None else (found[1], found[2], found[3])


class _AsText:
    """A utility may be written as text."""

    def mistake(self, value: Any) -> str | None:
        return None if isinstance(value, Utility) else f"{value!r} is not a utility"

    def __get_pydantic_core_schema__(self, source: Any, describe: Describe) -> Description:
        function = {
            "type": "no-info",
            "function": lambda given: Utility.parse(given) if isinstance(given, str) else given,
        }
        spelled_out = describe(source)
        either = [{"type": "str", "pattern": _UTILITY}, spelled_out]
        return {
            "type": "function-before",
            "function": function,
            "schema": spelled_out,
            "json_schema_input_schema": {"type": "union", "choices": either},
        }

    def __get_pydantic_json_schema__(self, described: Any, describe: Describe) -> Description:
        return describe(described) | {"examples": ["log:10", "step:3@0.8"]}


_ORDINARY = Utility("log", 1.0)


@dataclass(frozen=True, slots=True)
class Wanted(Ruled):
    """A topic or a pattern of topics, what it is worth, and how late or how rarely it may come.

    With `max_latency_share` it is judged by its tail: this share of what arrives shall come within the latency.
    The utility may be text, as log:10, linear:2, step:3@0.8.
    """

    topic: TopicFilter
    utility: Annotated[Utility, _AsText()] = _ORDINARY
    max_latency_seconds: Seconds | None = None
    max_separation_seconds: Seconds | None = None
    qos: Annotated[int, Number(0, 2, whole=True)] = 0
    max_latency_share: Share | None = None

    def __post_init__(self) -> None:
        if type(self.utility) is not Utility:
            object.__setattr__(self, "utility", Utility.of(self.utility))
        check(self)
        if self.max_latency_share is not None and self.max_latency_seconds is None:
            raise ParameterError(
                "max_latency_share", "is a share within no time; give max_latency_seconds, too"
            )


@dataclass(frozen=True, slots=True)
class Declared(Ruled):
    """A topic, and how often and how much is published; the rate and size that are left out are measured."""

    topic: Topic
    rate_per_second: Rate | None = None
    size_bytes: SizeBytes | None = None


@dataclass(frozen=True, slots=True)
class SubscriberTerms(Ruled):
    """A subscriber: what it wants, through which output port, with how many connections at most.

    Without a port it is behind the exchange's first. It stays for `lease_seconds` without a word.
    """

    subscriptions: Annotated[tuple[Wanted, ...], Items(MOST_ITEMS)]
    port: Annotated[str, Text(200)] | None = None
    flows: Annotated[int, Number(1, 1_000, whole=True)] | None = None
    lease_seconds: LeaseSeconds = field(default=DEFAULT_LEASE_SECONDS, compare=False, metadata=BESIDE)

    def named(self, name: str) -> SubscriberIntent:
        return SubscriberIntent(self.subscriptions, self.port, self.flows, self.lease_seconds, name=name)


@dataclass(frozen=True, slots=True)
class SubscriberIntent(SubscriberTerms):
    """The same with its name, which its connections carry in their client ids."""

    name: Name = field(kw_only=True, metadata=BESIDE)
    kind: ClassVar[str] = SUBSCRIBER


@dataclass(frozen=True, slots=True)
class PublisherTerms(Ruled):
    """A publisher and its topics. It stays for `lease_seconds` without a word."""

    publications: Annotated[tuple[Declared, ...], Items(MOST_ITEMS)]
    lease_seconds: LeaseSeconds = field(default=DEFAULT_LEASE_SECONDS, compare=False, metadata=BESIDE)

    def named(self, name: str) -> PublisherIntent:
        return PublisherIntent(self.publications, self.lease_seconds, name=name)


@dataclass(frozen=True, slots=True)
class PublisherIntent(PublisherTerms):
    """The same with its name."""

    name: Name = field(kw_only=True, metadata=BESIDE)
    kind: ClassVar[str] = PUBLISHER


Intent = PublisherIntent | SubscriberIntent
