"""What is wrong in a file and what to write instead, in words; and the list of all that was found wrong in it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from triagemq.errors import Problem
from triagemq.mqttsn.filters import has_wildcard
from triagemq.scenario.files.quantities import number_text, parse_number, respelled_key, unit_of
from triagemq.scenario.model import NONE

MOST_LISTED = 12
MOST_COMPARED = 5_000
MOST_SUGGESTIONS = 50
"""Comparing a name with all others takes milliseconds; after so many the reader has the idea."""
LONGEST_TOPIC_BYTES = 65_535
"""MQTT carries a topic's length in two bytes."""

Path = tuple[str | int, ...]


class Problems:
    """The problems found so far in one file, and what they call it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._suggestions_left = MOST_SUGGESTIONS

    def report(self, line: int | None, field: str, what: str, fix: str) -> None:
        """Remember a problem at a line, or nowhere in particular."""
        self.problems.append(Problem(self.file, line, *map(_one_line, (field or "text", what, fix))))

    def unknown(self, kind: str, name: str, known: Collection[str], section: str) -> tuple[str, str]:
        """What to say about a reference to something that is not there, and what to write instead."""
        close = nearest(name, known) if self._suggestions_left > 0 else None
        self._suggestions_left -= 1
        if close is not None:
            return f"there is no {kind} {name!r}", f"did you mean {close}?"
        choice = f"write one of {listed(known)}, or add it" if known else f"add {name!r}"
        return f"there is no {kind} {name!r}", f"{choice} under {section}"


def _one_line(text: str) -> str:
    """A problem is one line, whatever characters a name in it has."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like the given one, if any is like it.

    >>> nearest("bandwith_bps", ["switch", "bandwidth_bps"])
    'bandwidth_bps'
    """
    names = list(known)
    if len(names) > MOST_COMPARED:
        names = [other for other in names if other[:1] == name[:1] and abs(len(other) - len(name)) <= 2]
    folded = {other.casefold(): other for other in names}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def listed(names: Iterable[str]) -> str:
    """Names for a message, the first dozen of them."""
    names = list(names)
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def described(value: object) -> str:
    """A value for a message; lists and mappings only by their kind, since they may be huge."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "empty"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else number_text(value) if math.isfinite(value) else str(value)
    # A plain text that YAML does not take for one is shown as it stands in the file.
    bare = type(value) is str and (
        value.lower() in ("true", "false") or (value and parse_number(value) is not None)
    )
    text = repr(value) if isinstance(value, str) and not bare else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def mistake(field: str | Path, what: str, fix: str) -> PydanticCustomError:
    """An error of an entry that is shown at one of its fields."""
    inner = (field,) if isinstance(field, str) and field else tuple(field)
    return PydanticCustomError("mistake", "{what}", {"field": inner, "what": what, "fix": fix})


class Mistake(NamedTuple):
    """A mistake at `path`; `settles` is a required key beside it that the fix would supply."""

    path: Path
    what: str
    fix: str
    settles: str | None = None


BOUNDS = {
    "greater_than": " above {gt}",
    "greater_than_equal": " of at least {ge}",
    "less_than": " below {lt}",
    "less_than_equal": " of at most {le}",
    "multiple_of": "",
}


def explain(errors: Iterable[ErrorDetails], kind: Any) -> list[Mistake]:
    """Pydantic's errors of a value of a kind as mistakes, without those that the fix of another one settles."""
    mistakes = [_explained(error, kind) for error in errors]
    settled = {(*each.path[:-1], each.settles) for each in mistakes if each.settles is not None}
    return [each for each in mistakes if each.path not in settled]


def _explained(error: ErrorDetails, kind: Any) -> Mistake:
    path: Path = tuple(error["loc"])
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    value, wrong, context = error["input"], error["type"], error.get("ctx", {})
    if wrong == "mistake":
        return Mistake(path + context["field"], context["what"], context["fix"])
    if path[-1:] == ("[key]",):
        return Mistake(path[:-1], "has an entry without a name", "write a name before the colon")
    if wrong == "extra_forbidden":
        return unknown_key(path, value, _keys(_kind_at(kind, path[:-1])))
    if wrong == "missing":
        return Mistake(path, "is missing", f"add {_example(kind, path)}")
    if wrong == "float_type":
        return Mistake(path, f"{described(value)} is not a number", f"write a number{counted(key)}")
    if wrong in ("int_type", "int_from_float"):
        return Mistake(path, f"{described(value)} is not a whole number", "write a whole number, such as 9")
    if wrong == "finite_number":
        limit = key == "mtu_bytes" or NONE.get(key) == math.inf
        unlimited = value == math.inf and limit and not _field(kind, path).is_required()
        finite = f"write a finite number{counted(key)}"
        fix = "leave it out for no limit, or write a finite number" if unlimited else finite
        return Mistake(path, f"is {described(value)}", fix)
    if wrong in BOUNDS:
        words = BOUNDS[wrong].format(**{name: number_text(bound) for name, bound in context.items()})
        whole = "whole number" if wrong == "multiple_of" else "number"
        unit = unit_of(key) or ""
        fix = f"write {unit}" if unit.startswith("a ") else f"write a {whole}{words}{counted(key)}"
        return Mistake(path, f"is {described(value)}", fix)
    if wrong == "literal_error":
        close = nearest(str(value), allowed := _allowed(context["expected"]))
        return Mistake(
            path,
            f"{described(value)} is not one of {', '.join(allowed)}",
            f"did you mean {close}?" if close else f"write {allowed[0]}",
        )
    if wrong == "bool_type":
        return Mistake(path, f"{described(value)} is not true or false", "write true or false")
    if wrong in ("string_type", "string_too_short"):
        return Mistake(path, f"is {described(value)}", "write a name")
    if wrong in ("too_short", "too_long"):
        return Mistake(path, f"has {context['actual_length']} entries", f"write {_example(kind, path)}")
    return Mistake(path, f"is {described(value)}", f"write {_example(kind, path)}")


def unknown_key(path: Path, value: object, known: list[str]) -> Mistake:
    """A key that is not known: one with another unit, a misspelled one, or neither."""
    key, what = str(path[-1]), "is not a known key"
    respelled = respelled_key(key, value, known)
    if respelled is not None:
        field, number = respelled
        stated = f": {number_text(number)}" if number is not None else ""
        return Mistake(path, what, f"write {field}{stated}, in {unit_of(field)}", settles=field)
    close = nearest(key, known)
    if close is not None:
        return Mistake(path, what, f"did you mean {close}?", settles=close)
    return Mistake(path, what, f"remove it; known keys: {', '.join(known)}")


def counted(key: str) -> str:
    """The end of `write a number`: what the numbers of a key count."""
    unit = unit_of(key)
    return "" if unit is None else f", in {unit}" if not unit.startswith("a ") else f": {unit}"


def _allowed(expected: str) -> list[str]:
    return [part.strip("' ") for part in expected.replace(" or ", ",").split(",")]


def _kind_at(kind: Any, path: Path) -> Any:
    """What a path leads to within a kind of value: a model, a mapping of names to something, a list, or anything."""
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = _fields(kind).get(str(part), FieldInfo()).annotation
        else:
            kind = (get_args(kind) or (Any,))[-1]
        while get_origin(kind) in (Union, UnionType, Annotated):
            kind = get_args(kind)[0]
    return kind


def _fields(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _keys(kind: Any) -> list[str]:
    return list(_fields(kind)) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _field(kind: Any, path: Path) -> FieldInfo:
    """The field that a path leads to; for an element of a list, the field of the list."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    holder = _kind_at(kind, path[:-1])
    known = _fields(holder) if isinstance(holder, type) and issubclass(holder, BaseModel) else {}
    return known.get(str(path[-1]) if path else "", FieldInfo())


def _example(kind: Any, path: Path) -> str:
    """`key: value` as it might stand in the file, and the unit of the value."""
    examples = _field(kind, path).examples
    if not examples or isinstance(path[-1], int):
        return "a mapping, {key: value}"
    unit = unit_of(str(path[-1]))
    return f"{path[-1]}: {examples[0]}" + (f", in {unit}" if unit and not unit.startswith("a ") else "")


def topic_mistake(name: str) -> tuple[str, str] | None:
    """What is wrong with the name of a topic, and what to do; None if nothing is.

    >>> topic_mistake("floor/#")
    ('is a pattern, not a topic', 'publish on topics without + and #')
    """
    if not name:
        return "is empty", "write the name of a topic"
    if has_wildcard(name):
        return "is a pattern, not a topic", "publish on topics without + and #"
    return _unfit_for_mqtt(name)


def filter_mistake(name: str) -> tuple[str, str] | None:
    """What is wrong with the topic or pattern of a subscription, and what to do; None if nothing is.

    >>> filter_mistake("floor/1+/smoke")
    ('has + or # beside other characters', 'let + or # stand alone between slashes, # only at the end')
    """
    if not name:
        return "is empty", "write the name of a topic"
    levels = name.split("/")
    if any(len(level) > 1 and has_wildcard(level) for level in levels) or "#" in levels[:-1]:
        return (
            "has + or # beside other characters",
            "let + or # stand alone between slashes, # only at the end",
        )
    return _unfit_for_mqtt(name)


def _unfit_for_mqtt(name: str) -> tuple[str, str] | None:
    if "\0" in name:
        return "holds a null character", "remove it"
    if len(name.encode()) > LONGEST_TOPIC_BYTES:
        return f"is longer than the {LONGEST_TOPIC_BYTES} bytes MQTT allows", "write a shorter name"
    return None
