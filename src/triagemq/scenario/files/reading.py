"""One YAML file as a Document: its entries, each valid by itself, and the lines in which they stand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from triagemq.errors import Problem, ScenarioError
from triagemq.mqttsn.filters import has_wildcard
from triagemq.scenario.conditions import USUAL_PROFILE
from triagemq.scenario.files.document import FileEntry, ScenarioFile, keys_of
from triagemq.scenario.files.explain import Problems, described, explain, listed, refuse_errors

SomeEntry = TypeVar("SomeEntry", bound=FileEntry)

DEEPEST = 24
"""Levels of nesting a file may have; a scenario has six."""

STANDARD_TAG = "tag:yaml.org,2002:"
NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class Quoted(str):
    """A text in quotes: never a number, however it reads."""

    __slots__ = ()


class LinedMapping(dict[str, Any]):
    """A mapping, the line it begins in, and the line of each of its keys."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class LinedList(list[Any]):
    """A list, the line it begins in, and the line of each of its elements."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


class LinedFile(Problems):
    """One YAML file: what it holds, where each thing in it stands, and the problems found so far.

    Raises ScenarioError with one Problem where the text is not YAML.

    >>> LinedFile("radio: {bandwidth_bps: 8e6}", "city.yaml").locate(("radio", "bandwidth_bps"))
    (1, 2)
    """

    def __init__(self, text: str, file: str) -> None:
        super().__init__(file)
        self.root = _parse(text, self)

    def checked(self, entry: type[SomeEntry]) -> SomeEntry:
        """What the file holds as an entry. Raises ScenarioError with all that is invalid."""
        if not isinstance(self.root, LinedMapping):
            kind = (
                "a list" if isinstance(self.root, LinedList) else "a single value" if self.root else "empty"
            )
            line = self.root.line if isinstance(self.root, LinedList) else 1
            self.report(line, "text", f"is {kind}", f"write a mapping, with {listed(keys_of(entry))}")
            raise ScenarioError(self.problems)
        try:
            found = entry.model_validate(self.root)
        except ValidationError as error:
            for each in explain(error.errors(include_url=False)):
                self.report_at(*each)
        refuse_errors(self)
        return found

    def report_at(self, path: Sequence[str | int], what: str, fix: str) -> None:
        """Report a problem of what a path leads to: keys, and numbers of elements of lists."""
        line, depth = self.locate(path)
        if depth < len(path):
            # The path leads into a short form, such as the weight in `log:10`, which has no key to point at.
            if what.startswith("is missing"):
                what = f"has no {path[-1]}{what.removeprefix('is missing')}"
            elif what.startswith("is "):
                what = f"{path[-1]} {what}"
        parts = (str(part + 1) if isinstance(part, int) else part for part in path[:depth])
        self.report(line, ".".join(filter(None, parts)), what, fix)

    def locate(self, path: Sequence[str | int]) -> tuple[int, int]:
        """The line of a path, and how many parts of it make sense in the file.

        A key that is not there is shown at the line of the mapping it should be in; a path into a short form ends at
        the short form. An element of a list is a number from 0.
        """
        node, depth = self.root, 0
        line = node.line if isinstance(node, LinedMapping | LinedList) else 1
        for part in path:
            if isinstance(node, str):
                break
            depth += 1
            if isinstance(node, LinedMapping) and part in node:
                line, node = node.lines[str(part)], node[str(part)]
            elif isinstance(node, LinedList) and isinstance(part, int) and part < len(node):
                line, node = node.lines[part], node[part]
            else:
                break
        return line, depth


def _parse(text: str, problems: Problems) -> Any:
    file = problems.file
    try:
        text.encode()
        events = yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        return _Reader(events, problems).document()
    except UnicodeEncodeError as error:
        raise _syntax_error(
            file, _line_at(text, error.start), "holds half of a character", "save the file as UTF-8"
        ) from None
    except yaml.reader.ReaderError as error:
        raise _syntax_error(
            file,
            # libyaml counts bytes, the pure reader characters: before the first bad one they differ little.
            _line_at(text.encode(), error.position),
            f"holds the control character #x{_code(error.character):02x}",
            "remove it; a scenario is text in UTF-8",
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        tabs = "cannot start any token" in what
        raise _syntax_error(
            file,
            mark.line + 1 if mark else None,
            f"is not YAML: {what}",
            "indent with spaces, not tabs" if tabs else "look at the indentation, quotes and brackets there",
        ) from None


def _code(character: Any) -> int:
    return character if isinstance(character, int) else ord(character[:1] or "\0")


def _line_at(text: str | bytes, position: int) -> int:
    before = text[:position]
    return 1 + (before.count(b"\n") if isinstance(before, bytes) else before.count("\n"))


def _syntax_error(file: str, line: int | None, what: str, fix: str) -> ScenarioError:
    return ScenarioError([Problem(file, line, "text", what, fix)])


class _Reader:
    """Builds the value of a text from libyaml's events, by recursion of bounded depth."""

    def __init__(self, events: Iterator[Any], problems: Problems) -> None:
        self._events = events
        self._problems = problems
        self._anchors: dict[str, Any] = {}

    def document(self) -> Any:
        """The value of the only document; None where there is none."""
        root = None
        for number, event in enumerate(e for e in self._events if isinstance(e, yaml.DocumentStartEvent)):
            if number:
                fix = "remove the line --- or put it into a file of its own"
                raise self._refused(event, "holds a second document", fix)
            root = _value(self._node(next(self._events), ()))
        return root

    def _node(self, event: Any, path: tuple[str, ...]) -> Any:
        """A mapping, a list, or the event of a scalar: a key is its text, whatever it stands for as a value."""
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                what = f"uses the alias *{event.anchor}, which is not complete before it"
                fix = f"write &{event.anchor} at an earlier entry, outside of which the alias stands"
                raise self._refused(event, what, fix)
            return self._anchors[event.anchor]
        if event.tag not in (None, "!") and not event.tag.startswith(STANDARD_TAG):
            self._report(event, path, f"has the tag {event.tag}", "remove the tag")
        node = event
        if not isinstance(event, yaml.ScalarEvent):
            if len(path) >= DEEPEST:
                what = f"is nested more than {DEEPEST} levels deep"
                raise self._refused(event, what, "close the brackets opened before")
            node = (
                self._list(event, path)
                if isinstance(event, yaml.SequenceStartEvent)
                else self._mapping(event, path)
            )
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _list(self, start: Any, path: tuple[str, ...]) -> LinedList:
        found = LinedList(_line(start))
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(_value(self._node(event, (*path, str(len(found) + 1)))))
            found.lines.append(_line(event))
        return found

    def _mapping(self, start: Any, path: tuple[str, ...]) -> LinedMapping:
        found, merged = LinedMapping(_line(start)), LinedMapping(0)
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, (*path, ""))
            name = key.value if isinstance(key, yaml.ScalarEvent) else ""
            value = self._node(following := next(self._events), (*path, name))
            if not isinstance(key, yaml.ScalarEvent):
                self._report(event, path, "has a list or mapping as a key", "write a name as the key")
            elif name == "<<" and not key.style:
                self._merge(merged, value, following, (*path, name))
            elif name in found:
                what = f"stands here twice, first in line {found.lines[name]}"
                self._report(event, (*path, name), what, "remove one of the two, or rename it")
            else:
                found[name], found.lines[name] = _value(value), _line(event)
        if merged:
            # What `<<` names comes first; what the mapping says itself replaces it.
            own, lines = dict(found), dict(found.lines)
            found.clear()
            found.update(merged | own)
            found.lines = merged.lines | lines
        return found

    def _merge(self, merged: LinedMapping, value: Any, event: Any, path: tuple[str, ...]) -> None:
        for part in value if isinstance(value, LinedList) else [_value(value)]:
            if isinstance(part, LinedMapping):
                for key, inner in part.items():
                    if key not in merged:
                        merged[key], merged.lines[key] = inner, part.lines[key]
            elif part is not None:
                self._report(event, path, f"is {described(part)}", "write a mapping, {key: value}")

    def _report(self, event: Any, path: tuple[str, ...], what: str, fix: str) -> None:
        self._problems.report(_line(event), ".".join(filter(None, path)), what, fix)

    def _refused(self, event: Any, what: str, fix: str) -> ScenarioError:
        return _syntax_error(self._problems.file, _line(event), what, fix)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _value(node: Any) -> Any:
    if not isinstance(node, yaml.ScalarEvent):
        return node
    return Quoted(node.value) if node.style else None if node.value in NULLS else node.value


REQUIRED = {
    "brokers": "hall: {}",
    "switches": "core: {}",
    "ports": "radio: {switch: core, bandwidth_bps: 8000000}",
    "publishers": "sensor-1: {}",
    "subscribers": "commander: {port: radio}",
}


@dataclass(frozen=True)
class Document:
    """What a file holds, and where."""

    file: LinedFile
    valid: ScenarioFile

    def unmatched(self, topic: str, published: Collection[str]) -> tuple[str, str]:
        """What to say about a topic or pattern that none of what is published matches, and what to write instead."""
        if has_wildcard(topic):
            return "matches no topic that is published", f"published are: {listed(published) or 'none'}"
        return self.file.unknown("topic", topic, published, "the publishes of a publisher")


def read_document(text: str, file: str) -> Document:
    """A file, each entry checked by itself. Raises ScenarioError if any is invalid."""
    lines = LinedFile(text, file)
    root = lines.root
    if isinstance(root, LinedMapping):
        _check_row_count(lines, root)
    valid = lines.checked(ScenarioFile)
    for title, example in REQUIRED.items():
        if title not in root:
            fix = f"add a section {title}: with entries such as {example}"
            lines.report(root.line, title, "is missing", fix)
        elif not getattr(valid, title):
            lines.report(root.lines[title], title, "is empty", f"add an entry such as {example}")
    if USUAL_PROFILE in valid.worth_profiles:
        what = "is what the subscriptions themselves say"
        lines.report_at(("worth_profiles", USUAL_PROFILE), what, "choose another name")
    refuse_errors(lines)
    return Document(lines, valid)


MOST_ROWS = 2_000_000
"""Rows one YAML file may stand for, aliases and patterns spelled out; beyond that, tables are better."""


def _check_row_count(lines: LinedFile, root: LinedMapping) -> None:
    """Refuse a file with too many rows before it fills the memory."""
    for title, key in (("publishers", "publishes"), ("subscribers", "subscribes")):
        count, section = 0, root.get(title)
        for name, entry in section.items() if isinstance(section, dict) else ():
            rows = entry.get(key) if isinstance(entry, dict) else None
            count += len(rows) if isinstance(rows, dict) else 0
            refuse_rows(lines, count, (title, name, key))


def refuse_rows(lines: LinedFile, count: int, place: Sequence[str]) -> None:
    """Raise ScenarioError if a file stands for too many rows."""
    if count > MOST_ROWS:
        fix = "save it as a directory with publications.parquet and subscriptions.parquet"
        lines.report_at(place, f"makes more than {MOST_ROWS} rows", fix)
        raise ScenarioError(lines.problems)
