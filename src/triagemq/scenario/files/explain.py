"""What is wrong in a file and what to write instead, in words; and the list of all that was found wrong in it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from triagemq.errors import Problem
from triagemq.mqttsn.filters import has_wildcard
from triagemq.scenario.files.quantities import number_text, parse_number, unit_of

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


def entry_error(field: str | Path, what: str, fix: str) -> PydanticCustomError:
    """An error of an entry that is shown at one of its fields."""
    inner = (field,) if isinstance(field, str) and field else tuple(field)
    return PydanticCustomError("entry", "{what}", {"field": inner, "what": what, "fix": fix})


class FieldError(NamedTuple):
    """An error at `path`; `settles` is a required key beside it that the fix would supply."""

    path: Path
    what: str
    fix: str
    settles: str | None = None


def explain(errors: Iterable[ErrorDetails], kind: Any) -> list[FieldError]:
    """Pydantic's errors of a value of a kind, without those that the fix of another one settles."""
    found = [_explained(error, kind) for error in errors]
    settled = {(*each.path[:-1], each.settles) for each in found if each.settles is not None}
    return [each for each in found if each.path not in settled]


def _explained(error: ErrorDetails, kind: Any) -> FieldError:
    path: Path = tuple(error["loc"])
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    value, context = error["input"], error.get("ctx", {})
    what, fix = f"is {described(value)}", f"write {_expected(error)}{counted(key)}"
    match error["type"]:
        case "entry":
            return FieldError(path + context["field"], context["what"], context["fix"])
        case "extra_forbidden":
            return unknown_key(path, _keys(_kind_at(kind, path[:-1])))
        case "missing":
            what, fix = "is missing", f"add {key}{counted(key)}"
        case "literal_error":
            close = nearest(str(value), re.findall(r"'(\w+)'", context["expected"]))
            fix = f"did you mean {close}?" if close else f"write {context['expected']}"
        case "model_type" | "dict_type":
            fix = "write a mapping, {key: value}"
        case _ if path[-1:] == ("[key]",):
            path, what, fix = path[:-1], "has an entry without a name", "write a name before the colon"
    return FieldError(path, what, fix)


def _expected(error: ErrorDetails) -> str:
    """What pydantic says should be there: `a number greater than 0`, `at least 2 items`."""
    text = re.sub(r"^\w+ should (be|have) ", "", error["msg"]).partition(" after validation")[0]
    return f"a number {text}" if text.startswith(("greater", "less")) else text


def unknown_key(path: Path, known: Collection[str]) -> FieldError:
    """A key that is not known, and the one that is most like it."""
    close = nearest(str(path[-1]), known)
    fix = f"did you mean {close}{counted(close)}?" if close else f"remove it; known keys: {', '.join(known)}"
    return FieldError(path, "is not a known key", fix, settles=close)


def counted(key: str) -> str:
    """The end of `write a number`: what the numbers of a key count."""
    unit = unit_of(key)
    return "" if unit is None else f", in {unit}" if not unit.startswith("a ") else f": {unit}"


def _kind_at(kind: Any, path: Path) -> Any:
    """What a path leads to within a kind of value: a model, a mapping of names to something, a list, or anything."""
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = next((field.annotation for name, field in _fields(kind) if name == part), Any)
        else:
            kind = (get_args(kind) or (Any,))[-1]
        while get_origin(kind) in (Union, UnionType, Annotated):
            kind = get_args(kind)[0]
    return kind


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _keys(kind: Any) -> list[str]:
    known = isinstance(kind, type) and issubclass(kind, BaseModel)
    return [name for name, _ in _fields(kind)] if known else []


def topic_error(name: str) -> tuple[str, str] | None:
    """What is wrong with the name of a topic, and what to do; None if nothing is.

    >>> topic_error("floor/#")
    ('is a pattern, not a topic', 'publish on topics without + and #')
    """
    if not name:
        return "is empty", "write the name of a topic"
    if has_wildcard(name):
        return "is a pattern, not a topic", "publish on topics without + and #"
    return _unfit_for_mqtt(name)


def filter_error(name: str) -> tuple[str, str] | None:
    """What is wrong with the topic or pattern of a subscription, and what to do; None if nothing is.

    >>> filter_error("floor/1+/smoke")
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
