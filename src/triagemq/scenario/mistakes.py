"""What is wrong with an entry and what to write instead, in words: from pydantic's errors."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from triagemq.scenario.units import number_text, plain_number, respelled_key, unit_of

__all__ = ["Mistake", "described", "explain", "listed", "nearest", "unknown_key"]

MOST_LISTED = 12
MOST_COMPARED = 5_000


class Mistake(NamedTuple):
    """A mistake at `path` within an entry; `settles` is a required key that the fix would supply."""

    path: tuple[str, ...]
    what: str
    fix: str
    settles: str | None = None


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
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else number_text(value) if math.isfinite(value) else str(value)
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def explain(error: ErrorDetails, model: type[BaseModel], also_known: Iterable[str] = ()) -> Mistake:
    """One pydantic error of an entry as a Mistake. `also_known` are keys read apart from the model."""
    path = tuple(str(part) for part in error["loc"])
    field = next((part for part in reversed(path) if not part.isdecimal()), "")
    value, kind, context = error["input"], error["type"], error.get("ctx", {})
    if kind == "mistake":
        inner = (context["field"],) if context["field"] else ()
        return Mistake(path + inner, context["what"], context["fix"])
    if kind == "extra_forbidden":
        return unknown_key(path, value, _known_keys(model, path[:-1], also_known))
    if kind == "missing":
        return Mistake(path, "is missing", f"add {_example(model, path)}")
    if kind in ("float_type", "int_type", "int_from_float"):
        return _not_a_number(path, field, value, kind)
    if kind == "finite_number":
        optional = not _field(model, path).is_required()
        return Mistake(path, f"is {described(value)}", _finite(field, value, optional))
    if kind in BOUNDS:
        words = BOUNDS[kind].format(**{key: number_text(bound) for key, bound in context.items()})
        whole = "whole number" if kind == "multiple_of" else "number"
        unit = unit_of(field) or ""
        fix = f"write {unit}" if unit.startswith("a ") else f"write a {whole}{words}{_counted(field)}"
        return Mistake(path, f"is {described(value)}", fix)
    if kind == "literal_error":
        close = nearest(str(value), allowed := _allowed(context["expected"]))
        return Mistake(
            path,
            f"{described(value)} is not one of {', '.join(allowed)}",
            f"did you mean {close}?" if close else f"write {allowed[0]}",
        )
    if kind == "bool_type":
        return Mistake(path, f"{described(value)} is not true or false", "write true or false")
    if kind in ("string_type", "string_too_short"):
        return Mistake(path, f"is {described(value)}", "write a name")
    if kind in ("too_short", "too_long"):
        return Mistake(path, f"has {context['actual_length']} entries", f"write {_example(model, path)}")
    return Mistake(path, f"is {described(value)}", f"write {_example(model, path)}")


BOUNDS = {
    "greater_than": " above {gt}",
    "greater_than_equal": " of at least {ge}",
    "less_than": " below {lt}",
    "less_than_equal": " of at most {le}",
    "multiple_of": "",
}


def unknown_key(path: tuple[str, ...], value: object, known: list[str]) -> Mistake:
    """A key that is not known: one with another unit, a misspelled one, or neither."""
    key, what = path[-1], "is not a known key"
    respelled = respelled_key(key, known)
    if respelled is not None:
        field, factor = respelled
        number: float | None = None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            number = plain_number(f"{value}", "") if factor == 1 else float(f"{value * factor:.10g}")
        elif isinstance(value, str):
            number = plain_number(value, field)
        stated = f": {number_text(number)}" if number is not None else ""
        return Mistake(path, what, f"write {field}{stated}, in {unit_of(field)}", settles=field)
    close = nearest(key, known)
    if close is not None:
        return Mistake(path, what, f"did you mean {close}?", settles=close)
    return Mistake(path, what, f"remove it; known keys: {', '.join(known)}")


def _not_a_number(path: tuple[str, ...], field: str, value: object, kind: str) -> Mistake:
    if isinstance(value, str):
        number = plain_number(value, field)
        if number is not None and (kind == "float_type" or number.is_integer()):
            return Mistake(path, f"{value!r} is not a plain number", f"write {number_text(number)}")
        return Mistake(path, f"{described(value)} is not a number", f"write a number{_counted(field)}")
    if kind == "float_type":
        return Mistake(path, f"{described(value)} is not a number", f"write a number{_counted(field)}")
    return Mistake(path, f"{described(value)} is not a whole number", "write a whole number, such as 9")


def _finite(field: str, value: object, optional: bool) -> str:
    if value == math.inf and optional and field in NO_LIMIT:
        return "leave it out for no limit, or write a finite number"
    return f"write a finite number{_counted(field)}"


NO_LIMIT = frozenset(
    {
        "bandwidth_bps",
        "buffer_packets",
        "freshness_seconds",
        "max_latency_seconds",
        "max_separation_seconds",
        "mtu_bytes",
    }
)
"""Fields that, where they may be left out, are then without a limit."""


def _counted(field: str) -> str:
    unit = unit_of(field)
    return "" if unit is None else f", in {unit}" if not unit.startswith("a ") else f": {unit}"


def _allowed(expected: str) -> list[str]:
    return [part.strip("' ") for part in expected.replace(" or ", ",").split(",")]


def _model_at(model: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel]:
    """The model of a nested entry, such as that of `arrivals` in a publication."""
    for part in path:
        field = model.model_fields.get(part)
        inner = None if field is None else _models_in(field.annotation)
        if inner is None:
            return model
        model = inner
    return model


def _models_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_models_in, getattr(annotation, "__args__", ()))), None)


def _known_keys(model: type[BaseModel], path: tuple[str, ...], also_known: Iterable[str]) -> list[str]:
    fields = _model_at(model, path).model_fields
    own = [field.alias or name for name, field in fields.items()]
    return own if path else [*own, *also_known]


def _field(model: type[BaseModel], path: tuple[str, ...]) -> FieldInfo:
    """The field that a path leads to; for an element of a list, the field of the list."""
    names = [part for part in path if not part.isdecimal()]
    fields = _model_at(model, tuple(names[:-1])).model_fields
    key = names[-1] if names else ""
    return next((field for name, field in fields.items() if key in (name, field.alias)), FieldInfo())


def _example(model: type[BaseModel], path: tuple[str, ...]) -> str:
    """`key: value` as it might stand in the file, and the unit of the value."""
    examples = _field(model, path).examples
    if not examples or path[-1].isdecimal():
        return "a mapping, {key: value}"
    unit = unit_of(path[-1])
    return f"{path[-1]}: {examples[0]}" + (f", in {unit}" if unit and not unit.startswith("a ") else "")
