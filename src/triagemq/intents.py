"""What clients request: one record for one thing, from the client over REST and the store to the planner.

A record that exists is valid: it need not be checked again. Its fields are the keys of its JSON (`as_json`).
The standard library only: it runs on devices as well.

What a field may hold is said once, in its annotation: `weight: Annotated[float, Number(0, 1e12)]`. Records look at
their fields by these rules when they are made in Python. pydantic, where there is one, finds the same rules in the
annotations and makes of them what REST checks and describes: the methods with two underscores are its own protocol, and
get and give its descriptions of types, which are dictionaries. Nothing of it is imported here.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_type_hints

from triagemq.errors import ParameterError
from triagemq.mqttsn import is_shared, matches, publishable_topic_name, valid_topic_filter

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"
DEFAULT_LEASE_SECONDS = 10.0
MOST_ITEMS = 1_000_000

_LONGEST_TOPIC = 1_024
_EXAMPLE = "building/3/smoke"
_SHAPES = ("log", "linear", "step")
_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?"
_UTILITY = rf"^(log:{_NUMBER}|linear:{_NUMBER}|step:{_NUMBER}@{_NUMBER})$"
_UTILITY_PARTS = re.compile(r"\s*([A-Za-z_]+)\s*:\s*([^@\s]+)\s*(?:@\s*(\S.*?)\s*)?")

# The rules.

NOT_SERIALIZED: Mapping[str, bool] = {"not_serialized": True}
"""Metadata of fields that are not in the JSON of a record: the name is in a path or a column."""

Description = dict[str, Any]
Describe = Callable[[Any], Description]


class FieldRule:
    """What a value that is not None must be; for pydantic, the `limits` of the same meaning."""

    def error(self, value: Any) -> str | None:
        """What is wrong with a value; None if nothing is."""
        raise NotImplementedError

    def limits(self) -> Description:
        return {}

    def __get_pydantic_core_schema__(self, source: Any, describe: Describe) -> Description:
        return describe(source) | self.limits()


@dataclass(frozen=True, slots=True)
class Number(FieldRule):
    """From `least` to `most`, or `above` the least."""

    least: float
    most: float
    above: bool = False
    whole: bool = False

    def error(self, value: Any) -> str | None:
        is_number = isinstance(value, int if self.whole else (int, float)) and not isinstance(value, bool)
        # NaN compares false with everything.
        if is_number and self.least <= value <= self.most and not (self.above and value == self.least):
            return None
        least = f"above {self.least:g} and at most" if self.above else f"from {self.least:g} to"
        return f"must be {least} {self.most:g}, is {value!r}"

    def limits(self) -> Description:
        limits = {"gt" if self.above else "ge": self.least, "le": self.most, "strict": True}
        return limits | ({} if self.whole else {"allow_inf_nan": False})


@dataclass(frozen=True, slots=True)
class Text(FieldRule):
    """So many characters, matching a pattern if there is one, and fit for what they are for or `unfit`, in words."""

    longest: int
    pattern: str | None = None
    fit: Callable[[str], bool] | None = None
    unfit: str = ""
    example: str | None = None

    def error(self, value: Any) -> str | None:
        if not isinstance(value, str) or not 0 < len(value) <= self.longest:
            return f"must be a text of 1 to {self.longest} characters, is {value!r:.100}"
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return f"{value!r} does not match {self.pattern}"
        return None if self.fit is None or self.fit(value) else f"{value!r} {self.unfit}"

    def __get_pydantic_core_schema__(self, source: Any, describe: Describe) -> Description:
        limits: Description = {"min_length": 1, "max_length": self.longest}
        if self.pattern is not None:
            limits = {"pattern": self.pattern}
        text = describe(source) | limits | {"strict": True}
        function = {"type": "no-info", "function": self._require_fit}
        return text if self.fit is None else {"type": "function-after", "function": function, "schema": text}

    def __get_pydantic_json_schema__(self, described: Any, describe: Describe) -> Description:
        return describe(described) | ({} if self.example is None else {"examples": [self.example]})

    def _require_fit(self, value: str) -> str:
        if self.fit is not None and not self.fit(value):
            raise ValueError(self.unfit)
        return value


@dataclass(frozen=True, slots=True)
class OneOf(FieldRule):
    """One of some words; for pydantic a Literal says the same."""

    words: tuple[str, ...]

    def error(self, value: Any) -> str | None:
        return None if value in self.words else f"must be {', '.join(self.words)}, is {value!r}"


@dataclass(frozen=True, slots=True)
class Truth(FieldRule):
    """True or false, and no number or text that might stand for it."""

    def error(self, value: Any) -> str | None:
        return None if isinstance(value, bool) else f"must be true or false, is {value!r}"

    def limits(self) -> Description:
        return {"strict": True}


@dataclass(frozen=True, slots=True)
class Items(FieldRule):
    """A tuple (in JSON a list) of not too many: texts by the rule of `each`, or records, each topic once."""

    most: int
    each: Text | None = None

    def error(self, value: Any) -> str | None:
        if not isinstance(value, tuple) or len(value) > self.most:
            return f"must be a tuple of at most {self.most}"
        if self.each is not None:
            return next((error for each in value if (error := self.each.error(each))), None)
        twice = next(
            (topic for topic, count in Counter(each.topic for each in value).items() if count > 1), None
        )
        return None if twice is None else f"the topic {twice!r} is there twice"

    def limits(self) -> Description:
        return {"max_length": self.most}


class Ruled:
    """Base of records: a dataclass that is made only if its fields keep their rules."""

    __slots__ = ()
    # For pydantic: unknown keys are errors.
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        check(self)

    def as_json(self) -> dict[str, Any]:
        """Its fields. Defaults are omitted, except in records."""
        kind: Any = type(self)
        found: dict[str, Any] = {}
        for name, default in _written(kind):
            value = getattr(self, name)
            if isinstance(value, Ruled):
                found[name] = value.as_json()
            elif value == default:
                continue
            elif isinstance(value, tuple):
                found[name] = [each.as_json() if isinstance(each, Ruled) else each for each in value]
            else:
                found[name] = value
        return found


def check(record: Any) -> None:
    """ParameterError names the first field that breaks its rules, and the topic that it is about."""
    kind: Any = type(record)
    for name, may_be_none, rules in _rules(kind):
        value = getattr(record, name)
        if value is None and may_be_none:
            continue
        for rule in rules:
            if (error := rule.error(value)) is not None:
                topic = None if name == "topic" else getattr(record, "topic", None)
                raise ParameterError(name, error if topic is None else f"{error} (topic {topic!r})")


@cache
def _written(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((each.name, each.default) for each in fields(kind) if each.metadata != NOT_SERIALIZED)


@cache
def _rules(kind: Any) -> tuple[tuple[str, bool, tuple[FieldRule, ...]], ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = ((name, type(None) in get_args(hint), _rules_in(hint)) for name, hint in hints.items())
    return tuple((name, may_be_none, rules) for name, may_be_none, rules in found if rules)


def _rules_in(hint: Any) -> tuple[FieldRule, ...]:
    """Those of an annotated type, or of the parts of a union."""
    metadata: tuple[FieldRule, ...] = getattr(hint, "__metadata__", ())
    return metadata or tuple(rule for part in get_args(hint) for rule in _rules_in(part))


# The records.


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
_WEIGHT = Number(0, 1e12)
Weight = Annotated[float, _WEIGHT]
Rate = Annotated[float, Number(1e-6, 1e9)]
SizeBytes = Annotated[float, Number(1, 65_535)]


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_ADDRESS = Text(21, r"^[0-9.]{7,15}:[0-9]{1,5}$", example="239.192.0.0:17000")
Address = Annotated[str, _ADDRESS]
IpAddress = Annotated[str, Text(45, fit=_is_ip_address, unfit="is no IP address", example="192.0.2.7")]
MaxSizeBytes = Annotated[float, Number(1, 1e9)]


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
            if parts is not None and parts[0] in _SHAPES and (problem := _weight_error(parts[1])):
                raise ParameterError("utility", f"the weight of {text!r:.100} {problem}")
            raise ParameterError("utility", f"{text!r:.100} is not log:10, linear:2 or step:3@0.8")
        shape, weight, threshold = parts
        return Utility(shape, float(weight), float(threshold) if threshold else None)


def _weight_error(text: str) -> str | None:
    """Which limit a weight exceeds; None if it is no number.

    >>> _weight_error("1e300"), _weight_error("many")
    ('must be from 0 to 1e+12, is 1e+300', None)
    """
    try:
        return _WEIGHT.error(float(text))
    except ValueError:
        return None


def utility_parts(text: str) -> tuple[Any, str, str | None] | None:
    """Shape, weight and threshold of `shape:weight` or `shape:weight@threshold`, as they are written.

    >>> utility_parts("step: 3 @ 80 %"), utility_parts("log")
    (('step', '3', '80 %'), None)
    """
    found = _UTILITY_PARTS.fullmatch(text)
    return None if found is None else (found[1], found[2], found[3])


class _AsText(FieldRule):
    """A utility may be written as text."""

    def error(self, value: Any) -> str | None:
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
class SubscriptionIntent(Ruled):
    """The terms of a subscription: a topic or a pattern of topics, what it is worth, and how late or rare it may be.

    With `max_latency_share` its tail counts: this share of what arrives shall come within the latency.
    `guaranteed` requests a promise: all of it shall, or the subscription is refused.
    At least `min_share` of the events shall arrive. Those of a topic are thinned to `max_rate_per_second`, by time; one
    takes the place of an older one of its topic that still waits (`newest_only`); and none is sent that is older than
    `expires_seconds`. With `properties` events bring what MQTT 5 says of them. The utility may be text, as log:10,
    linear:2, step:3@0.8.
    """

    topic: TopicFilter
    utility: Annotated[Utility, _AsText()] = _ORDINARY
    max_latency_seconds: Seconds | None = None
    max_separation_seconds: Seconds | None = None
    qos: Annotated[int, Number(0, 2, whole=True)] = 0
    max_latency_share: Share | None = None
    guaranteed: Annotated[bool, Truth()] = False
    min_share: Share | None = None
    max_rate_per_second: Rate | None = None
    newest_only: Annotated[bool, Truth()] = False
    expires_seconds: Seconds | None = None
    properties: Annotated[bool, Truth()] = False

    def __post_init__(self) -> None:
        if type(self.utility) is not Utility:
            object.__setattr__(self, "utility", Utility.of(self.utility))
        check(self)
        if self.max_latency_share is not None and self.max_latency_seconds is None:
            raise ParameterError(
                "max_latency_share", "is a share within no time; give max_latency_seconds, too"
            )
        if self.guaranteed and self.max_latency_seconds is None:
            raise ParameterError(
                "guaranteed", f"is a promise without a time; give max_latency_seconds (topic {self.topic!r})"
            )

    @classmethod
    def parse(cls, topic: str, text: str) -> SubscriptionIntent:
        """The terms of a topic as one line of text: a utility and the other terms, each at most once, in any order.

        >>> terms = SubscriptionIntent.parse("hall/smoke", "log:10; max_rate=2; newest_only; freshness=5")
        >>> terms.utility, terms.max_rate_per_second, terms.newest_only
        (Utility(shape='log', weight=10.0, threshold=None, freshness_seconds=5.0), 2.0, True)
        """
        terms: dict[str, Any] = {}
        for part in text.split(";") if text.strip() else ():
            name, value = _term(part.strip())
            if name in terms:
                raise ParameterError("terms", f"{text!r:.200} has {name} twice")
            terms[name] = value
        if (freshness := terms.pop("freshness_seconds", None)) is not None:
            terms["utility"] = replace(terms.get("utility", _ORDINARY), freshness_seconds=freshness)
        return cls(topic, **terms)


_TERMS = {
    "min_share": "min_share",
    "max_rate": "max_rate_per_second",
    "expires": "expires_seconds",
    "freshness": "freshness_seconds",
    "max_latency": "max_latency_seconds",
    "max_latency_share": "max_latency_share",
    "max_separation": "max_separation_seconds",
}
"""Terms with a number in a line of text."""
_FLAGS = ("newest_only", "properties", "guaranteed")


def _term(part: str) -> tuple[str, Any]:
    """One of a line of terms: its field and value."""
    if part in _FLAGS:
        return part, True
    word, equals, number = (each.strip() for each in part.partition("="))
    if not equals and utility_parts(part) is not None:
        return "utility", Utility.parse(part)
    if word not in _TERMS or not re.fullmatch(_NUMBER, number):
        numbers = ", ".join(f"{each}=NUMBER" for each in _TERMS)
        raise ParameterError(
            "terms", f"{part!r:.100} is not a utility as log:10, {', '.join(_FLAGS)}, {numbers}"
        )
    return _TERMS[word], float(number)


@dataclass(frozen=True, slots=True)
class PublicationIntent(Ruled):
    """A topic, and how often and how much is published; the rate and size that are left out are measured.

    Promises need the least time between two events and the largest size, and hold only as long as these do. With
    `max_separation_seconds` an event comes at least so often.
    """

    topic: Topic
    rate_per_second: Rate | None = None
    size_bytes: SizeBytes | None = None
    min_separation_seconds: Seconds | None = None
    max_separation_seconds: Seconds | None = None
    max_size_bytes: MaxSizeBytes | None = None

    def __post_init__(self) -> None:
        check(self)
        least, most, largest = self.min_separation_seconds, self.max_separation_seconds, self.max_size_bytes
        about = f"(topic {self.topic!r})"
        if largest is not None and self.size_bytes is not None and largest < self.size_bytes:
            raise ParameterError(
                "max_size_bytes", f"must be at least size_bytes, {self.size_bytes:g} {about}"
            )
        if least is None:
            return
        if most is not None and most < least:
            problem = f"must be at least min_separation_seconds, {least:g} {about}"
            raise ParameterError("max_separation_seconds", problem)
        if self.rate_per_second is not None and self.rate_per_second * least > 1 + 1e-9:
            problem = f"must be at most {1 / least:g}, one over min_separation_seconds {about}"
            raise ParameterError("rate_per_second", problem)


@dataclass(frozen=True, slots=True)
class SubscriberTerms(Ruled):
    """A subscriber: what it wants, through which output port, with how many connections at most.

    Without a port it is behind the exchange's first. It stays for `lease_seconds` without a word. `listening` are the
    addresses of promised topics (GROUP:PORT) at which it takes events without a broker by now.
    """

    subscriptions: Annotated[tuple[SubscriptionIntent, ...], Items(MOST_ITEMS)]
    port: Annotated[str, Text(200)] | None = None
    flows: Annotated[int, Number(1, 1_000, whole=True)] | None = None
    lease_seconds: LeaseSeconds = field(default=DEFAULT_LEASE_SECONDS, compare=False, metadata=NOT_SERIALIZED)
    listening: Annotated[tuple[Address, ...], Items(10_000, _ADDRESS)] = ()

    def subscription_to(self, topic: str) -> SubscriptionIntent | None:
        """What holds for a topic: an exact name says more than a pattern, and of several patterns the first holds.

        >>> terms = SubscriberTerms((SubscriptionIntent("+/smoke", "log:3"), SubscriptionIntent("hall/smoke", "log:9")))
        >>> terms.subscription_to("hall/smoke").utility.weight, terms.subscription_to("hall/noise")
        (9.0, None)
        """
        met = [each for each in self.subscriptions if matches(each.topic, topic)]
        return next((each for each in met if each.topic == topic), met[0] if met else None)

    def with_subscription(self, intent: SubscriptionIntent) -> Self:
        """With this instead of what it wants by the same name or pattern, or besides."""
        others = tuple(each for each in self.subscriptions if each.topic != intent.topic)
        return replace(self, subscriptions=(*others, intent))

    def without(self, topic_filter: str) -> Self:
        """Without what it wants by this name or pattern."""
        return replace(
            self, subscriptions=tuple(each for each in self.subscriptions if each.topic != topic_filter)
        )

    def named(self, name: str) -> SubscriberIntent:
        return SubscriberIntent(
            self.subscriptions, self.port, self.flows, self.lease_seconds, self.listening, name=name
        )


@dataclass(frozen=True, slots=True)
class SubscriberIntent(SubscriberTerms):
    """The same with its name, which its connections carry in their client ids."""

    name: Name = field(kw_only=True, metadata=NOT_SERIALIZED)
    kind: ClassVar[str] = SUBSCRIBER


@dataclass(frozen=True, slots=True)
class PublisherTerms(Ruled):
    """A publisher and its topics. It stays for `lease_seconds` without a word.

    `source_address` is the IP address from which it sends promised events. Packets of others to the
    address of the promise then do not count as its own.
    """

    publications: Annotated[tuple[PublicationIntent, ...], Items(MOST_ITEMS)]
    lease_seconds: LeaseSeconds = field(default=DEFAULT_LEASE_SECONDS, compare=False, metadata=NOT_SERIALIZED)
    source_address: IpAddress | None = None

    def named(self, name: str) -> PublisherIntent:
        return PublisherIntent(self.publications, self.lease_seconds, self.source_address, name=name)


@dataclass(frozen=True, slots=True)
class PublisherIntent(PublisherTerms):
    """The same with its name."""

    name: Name = field(kw_only=True, metadata=NOT_SERIALIZED)
    kind: ClassVar[str] = PUBLISHER


Intent = PublisherIntent | SubscriberIntent
