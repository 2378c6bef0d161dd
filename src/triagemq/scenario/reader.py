"""Reads the nodes of one file as values and entries, and keeps every problem met on the way."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from triagemq.errors import Problem
from triagemq.scenario.document import Entry
from triagemq.scenario.lines import Mapping, Node, Scalar, Sequence
from triagemq.scenario.mistakes import Mistake, described, explain, listed, nearest

__all__ = ["Pair", "Reader"]

TEXT_KEYS = frozenset(
    {"name", "broker", "switch", "port", "fed_by", "backup", "from", "to", "between"}
    | {"publisher", "subscriber", "link", "topic", "worth_profile"}
)
"""Keys whose values are names, so that `broker: 1` means the broker called 1."""

MOST_SUGGESTIONS = 50
"""Comparing a name with all others takes milliseconds; after so many the reader has the idea."""

SomeEntry = TypeVar("SomeEntry", bound=Entry)


class Pair(NamedTuple):
    """A key and its value in a mapping."""

    key: Scalar
    value: Node


class Reader:
    """One file: its name and the problems found so far."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._suggestions_left = MOST_SUGGESTIONS
        # An anchored node may be used many times; it is read, and complained about, once.
        self._pairs: dict[Mapping, dict[str, Pair]] = {}
        self._values: dict[tuple[Node, bool], object] = {}

    def report(self, place: Node | int | None, field: str, what: str, fix: str) -> None:
        """Remember a problem at a node, a line, or nowhere in particular."""
        line = place if isinstance(place, int) or place is None else place.line
        self.problems.append(Problem(self.file, line, *map(_one_line, (field or "text", what, fix))))

    def unknown(self, kind: str, name: str, known: Collection[str], section: str) -> tuple[str, str]:
        """What to say about a reference to something that is not there, and what to write instead."""
        close = nearest(name, known) if self._suggestions_left > 0 else None
        self._suggestions_left -= 1
        if close is not None:
            return f"there is no {kind} {name!r}", f"did you mean {close}?"
        choice = f"write one of {listed(known)}, or add it" if known else f"add {name!r}"
        return f"there is no {kind} {name!r}", f"{choice} under {section}"

    def pairs(self, node: Node, field: str) -> dict[str, Pair] | None:
        """The entries of a mapping by key, merge keys followed; None, and reported, if it is no mapping."""
        if isinstance(node, Scalar) and node.is_null:
            return {}
        if not isinstance(node, Mapping):
            kind = "a list" if isinstance(node, Sequence) else described(node.resolved())
            self.report(node, field, f"is {kind}", "write a mapping, {key: value}")
            return None
        if node not in self._pairs:
            self._pairs[node] = self._read_pairs(node, field)
        return self._pairs[node]

    def _read_pairs(self, node: Mapping, field: str) -> dict[str, Pair]:
        self._check_tag(node, field)
        found: dict[str, Pair] = {}
        merged: dict[str, Pair] = {}
        for key, value in node.pairs:
            if not isinstance(key, Scalar):
                self.report(key, field, "has a list or mapping as a key", "write a name as the key")
            elif key.plain and key.text == "<<":
                for part in value.items if isinstance(value, Sequence) else [value]:
                    for name, pair in (self.pairs(part, f"{field}.<<".lstrip(".")) or {}).items():
                        merged.setdefault(name, pair)
            elif key.text in found:
                self.report(
                    key,
                    f"{field}.{key.text}".lstrip("."),
                    f"stands here twice, first in line {found[key.text].key.line}",
                    "remove one of the two, or rename it",
                )
            else:
                found[key.text] = Pair(key, value)
        return {**merged, **found} if merged else found

    def inner(self, pair: Pair, key: str) -> Pair | None:
        """What stands under a key of an entry that has been read."""
        return self._pairs.get(pair.value, {}).get(key) if isinstance(pair.value, Mapping) else None

    def value(self, node: Node, field: str, as_text: bool = False) -> object:
        """A node as a Python value: None, bool, int, float, str, list or dict."""
        if isinstance(node, Scalar):
            if node.tag is not None:
                self._check_tag(node, field)
            if as_text:
                return None if node.is_null else node.text
            return node.resolved()
        key = (node, as_text)
        if key not in self._values:
            self._values[key] = self._read_value(node, field, as_text)
        return self._values[key]

    def _read_value(self, node: Sequence | Mapping, field: str, as_text: bool) -> object:
        if isinstance(node, Sequence):
            self._check_tag(node, field)
            return [
                self.value(item, f"{field}.{number}", as_text)
                for number, item in enumerate(node.items, start=1)
            ]
        pairs = self.pairs(node, field) or {}
        return {
            name: self.value(pair.value, f"{field}.{name}", name in TEXT_KEYS) for name, pair in pairs.items()
        }

    def _check_tag(self, node: Node, field: str) -> None:
        if node.tag is not None:
            self.report(node, field or "text", f"has the tag {node.tag}", "remove the tag")

    def entry(
        self,
        pair: Pair,
        field: str,
        model: type[SomeEntry],
        apart: Iterable[str] = (),
        short_form: str | None = None,
    ) -> SomeEntry | None:
        """The entry at a node, or None after reporting what is wrong with it.

        `apart` are keys that the caller reads itself; `short_form` is the key meant by a scalar alone.
        """
        node = pair.value
        if short_form is not None and isinstance(node, Scalar) and not node.is_null:
            values: dict[str, object] = {short_form: self.value(node, field)}
        else:
            pairs = self.pairs(node, field)
            if pairs is None:
                return None
            values = {
                name: self.value(inner.value, f"{field}.{name}".lstrip("."), name in TEXT_KEYS)
                for name, inner in pairs.items()
                if name not in apart
            }
        known = _keys(model)
        given = {name: value for name, value in values.items() if value is not None or name not in known}
        try:
            return model.model_validate(given)
        except ValidationError as error:
            mistakes = [explain(details, model, apart) for details in error.errors(include_url=False)]
        settled = {
            (*mistake.path[:-1], mistake.settles) for mistake in mistakes if mistake.settles is not None
        }
        for mistake in mistakes:
            if mistake.path not in settled:
                self._report_mistake(pair, field, mistake)
        return None

    def _report_mistake(self, pair: Pair, field: str, mistake: Mistake) -> None:
        line, depth = self.locate(pair, mistake.path)
        what = mistake.what
        if depth < len(mistake.path) and what.startswith("is "):
            what = f"{mistake.path[-1]} {what}"  # the path ends in a short form, which has no key to point at
        parts = [str(int(part) + 1) if part.isdecimal() else part for part in mistake.path[:depth]]
        self.report(line, ".".join(filter(None, [field, *parts])), what, mistake.fix)

    def locate(self, pair: Pair, path: Iterable[str]) -> tuple[int, int]:
        """The line of a path within an entry, and how many parts of the path make sense in the file.

        A key that is not there is shown at the line of the mapping it should be in; a path into a short form,
        such as the weight in `log:10`, ends at the short form.
        """
        line, node, depth = pair.key.line, pair.value, 0
        for part in path:
            if isinstance(node, Scalar) and not node.is_null:
                break
            depth += 1
            inner = self._pairs.get(node, {}).get(part) if isinstance(node, Mapping) else None
            if isinstance(node, Sequence) and part.isdecimal() and int(part) < len(node.items):
                node = node.items[int(part)]
                line = node.line
            elif inner is not None:
                line, node = inner.key.line, inner.value
            else:
                break
        return line, depth


def _one_line(text: str) -> str:
    """A problem is one line, whatever characters a name in it has."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


_KEYS: dict[type[Entry], frozenset[str]] = {}


def _keys(model: type[Entry]) -> frozenset[str]:
    if model not in _KEYS:
        _KEYS[model] = frozenset(field.alias or name for name, field in model.model_fields.items())
    return _KEYS[model]
