"""What a field may hold, said once in its annotation: `weight: Annotated[float, Number(0, 1e12)]`.

Records look at their fields by these rules when they are made in Python. pydantic, where there is one, finds the same
rules in the annotations and makes of them what REST checks and describes: the methods with two underscores are its own
protocol, and get and give its descriptions of types, which are dictionaries. Nothing of it is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Protocol, get_args, get_type_hints

from triagemq.errors import ParameterError

__all__ = ["BESIDE", "FieldRule", "Items", "Number", "OneOf", "Ruled", "Text", "check"]

BESIDE: Mapping[str, bool] = {"beside": True}
"""Metadata of fields that whoever writes a record tells beside it: its name is in a path or a column."""

Description = dict[str, Any]
Describe = Callable[[Any], Description]


class FieldRule(Protocol):
    """Says what is wrong with a value that is not None; None if nothing is."""

    def mistake(self, value: Any) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Number:
    """From `least` to `most`, or `above` the least."""

    least: float
    most: float
    above: bool = False
    whole: bool = False

    def mistake(self, value: Any) -> str | None:
        is_number = isinstance(value, int if self.whole else (int, float)) and not isinstance(value, bool)
        # NaN compares false with everything.
        if is_number and self.least <= value <= self.most and not (self.above and value == self.least):
            return None
        least = f"above {self.least:g} and at most" if self.above else f"from {self.least:g} to"
        return f"must be {least} {self.most:g}, is {value!r}"

    def __get_pydantic_core_schema__(self, source: Any, describe: Describe) -> Description:
        limits = {"gt" if self.above else "ge": self.least, "le": self.most, "strict": True}
        return describe(source) | limits | ({} if self.whole else {"allow_inf_nan": False})


@dataclass(frozen=True, slots=True)
class Text:
    """So many characters, matching a pattern if there is one, and fit for what they are for or `unfit`, in words."""

    longest: int
    pattern: str | None = None
    fit: Callable[[str], bool] | None = None
    unfit: str = ""
    example: str | None = None

    def mistake(self, value: Any) -> str | None:
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
class OneOf:
    """One of some words; for pydantic a Literal says the same."""

    words: tuple[str, ...]

    def mistake(self, value: Any) -> str | None:
        return None if value in self.words else f"must be {', '.join(self.words)}, is {value!r}"


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple (in JSON a list) of records about topics: not too many, and each topic once."""

    most: int

    def mistake(self, value: Any) -> str | None:
        if not isinstance(value, tuple) or len(value) > self.most:
            return f"must be a tuple of at most {self.most}"
        seen: set[str] = set()
        for each in value:
            if each.topic in seen:
                return f"the topic {each.topic!r} is there twice"
            seen.add(each.topic)
        return None

    def __get_pydantic_core_schema__(self, source: Any, describe: Describe) -> Description:
        return describe(source) | {"max_length": self.most}


class Ruled:
    """Base of records: a dataclass that is made only if its fields keep their rules."""

    __slots__ = ()
    # For pydantic: keys that are not known are mistakes.
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        check(self)

    def as_json(self) -> dict[str, Any]:
        """Its fields; what is at its default is left out, but for records, and what is told beside it."""
        kind: Any = type(self)
        found: dict[str, Any] = {}
        for name, default in _written(kind):
            value = getattr(self, name)
            if isinstance(value, Ruled):
                found[name] = value.as_json()
            elif isinstance(value, tuple):
                found[name] = [each.as_json() for each in value]
            elif value != default:
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
            if (wrong := rule.mistake(value)) is not None:
                topic = None if name == "topic" else getattr(record, "topic", None)
                raise ParameterError(name, wrong if topic is None else f"{wrong} (topic {topic!r})")


@cache
def _written(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((each.name, each.default) for each in fields(kind) if each.metadata != BESIDE)


@cache
def _rules(kind: Any) -> tuple[tuple[str, bool, tuple[FieldRule, ...]], ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = ((each, _rules_in(hints[each.name])) for each in fields(kind))
    return tuple((each.name, each.default is None, rules) for each, rules in found if rules)


def _rules_in(hint: Any) -> tuple[FieldRule, ...]:
    """Those of an annotated type, or of the parts of a union."""
    metadata: tuple[FieldRule, ...] = getattr(hint, "__metadata__", ())
    return metadata or tuple(rule for part in get_args(hint) for rule in _rules_in(part))
