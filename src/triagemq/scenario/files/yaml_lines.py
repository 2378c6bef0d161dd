"""YAML text as dictionaries, lists and texts that know their lines.

They are built from libyaml's events, without recursion: `yaml.compose` recurses in C, and a file of brackets ends the
process. An alias is the anchored value itself; it cannot stand inside its own anchor, so values never form a loop.
What a text stands for is decided by the key it is read for: `8e6` is a name where a name is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import yaml

from triagemq.errors import Problem, ScenarioError
from triagemq.scenario.files.explain import Problems, described

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

    def complain(self, path: Sequence[str | int], what: str, fix: str) -> None:
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
        the short form. An element of a list is a number from 0, or the text of one from 1.
        """
        node, depth = self.root, 0
        line = node.line if isinstance(node, LinedMapping | LinedList) else 1
        for part in path:
            if isinstance(node, str):
                break
            depth += 1
            if isinstance(node, LinedMapping) and part in node:
                line, node = node.lines[str(part)], node[str(part)]
            elif isinstance(node, LinedList) and 0 <= (row := _row(part)) < len(node):
                line, node = node.lines[row], node[row]
            else:
                break
        return line, depth


def _row(part: str | int) -> int:
    if isinstance(part, int):
        return part
    return int(part) - 1 if part.isdecimal() else -1


def _parse(text: str, problems: Problems) -> Any:
    file = problems.file
    try:
        text.encode()
        events = yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        return _Composer(problems).composed(events)
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


class _Scalar(NamedTuple):
    text: str
    plain: bool

    @property
    def value(self) -> str | None:
        return Quoted(self.text) if not self.plain else None if self.text in NULLS else self.text


@dataclass(slots=True)
class _Open:
    """A list or mapping that is not complete; of a mapping, the key that waits for its value, and what is merged in.

    `use` says what becomes of the value; without one, a key comes next.
    """

    node: LinedMapping | LinedList
    anchor: str | None
    key: str = ""
    key_line: int = 0
    use: Literal["keep", "merge", "drop"] | None = None
    merged: list[LinedMapping] = field(default_factory=list)


class _Composer:
    """Builds the value of a text from libyaml's events."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._root: Any = None
        self._stack: list[_Open] = []

    def composed(self, events: Iterator[Any]) -> Any:
        anchors: dict[str, Any] = {}
        documents = 0
        for event in events:
            kind, line = type(event), event.start_mark.line + 1
            if kind is yaml.ScalarEvent:
                if event.tag is not None:
                    self._check_tag(event.tag, line)
                scalar = _Scalar(event.value, not event.style)
                if event.anchor is not None:
                    anchors[event.anchor] = scalar
                self._place(line, scalar)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                if event.tag is not None:
                    self._check_tag(event.tag, line)
                if len(self._stack) >= DEEPEST:
                    what = f"is nested more than {DEEPEST} levels deep"
                    raise self._refused(line, what, "close the brackets opened before")
                node = LinedMapping(line) if kind is yaml.MappingStartEvent else LinedList(line)
                self._stack.append(_Open(node, event.anchor))
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                done = self._stack.pop()
                if done.merged:
                    _merge(done)
                if done.anchor is not None:
                    anchors[done.anchor] = done.node
                self._place(done.node.line, done.node)
            elif kind is yaml.AliasEvent:
                if event.anchor not in anchors:
                    what = f"uses the alias *{event.anchor}, which is not complete before it"
                    fix = f"write &{event.anchor} at an earlier entry, outside of which the alias stands"
                    raise self._refused(line, what, fix)
                self._place(line, anchors[event.anchor])
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    fix = "remove the line --- or put it into a file of its own"
                    raise self._refused(line, "holds a second document", fix)
        return self._root

    def _place(self, line: int, item: _Scalar | LinedMapping | LinedList) -> None:
        value = item.value if isinstance(item, _Scalar) else item
        if not self._stack:
            self._root = value
            return
        parent = self._stack[-1]
        node = parent.node
        if isinstance(node, LinedList):
            node.append(value)
            node.lines.append(line)
        elif parent.use is None:
            parent.key, parent.key_line = item.text if isinstance(item, _Scalar) else "", line
            parent.use = self._use_of(line, item, node)
        else:
            if parent.use == "keep":
                node[parent.key] = value
                node.lines[parent.key] = parent.key_line
            elif parent.use == "merge":
                for part in value if isinstance(value, LinedList) else [value]:
                    if isinstance(part, LinedMapping):
                        parent.merged.append(part)
                    elif part is not None:
                        self._report(line, f"is {described(part)}", "write a mapping, {key: value}")
            parent.use, parent.key = None, ""

    def _use_of(
        self, line: int, key: _Scalar | LinedMapping | LinedList, node: LinedMapping
    ) -> Literal["keep", "merge", "drop"]:
        if not isinstance(key, _Scalar):
            self._report(line, "has a list or mapping as a key", "write a name as the key")
            return "drop"
        if key.plain and key.text == "<<":
            return "merge"
        if key.text in node:
            what = f"stands here twice, first in line {node.lines[key.text]}"
            self._report(line, what, "remove one of the two, or rename it")
            return "drop"
        return "keep"

    def _check_tag(self, tag: str, line: int) -> None:
        """Refuse a tag that would change what a value means; the standard ones say what the value says by itself."""
        if tag != "!" and not tag.startswith(STANDARD_TAG):
            self._report(line, f"has the tag {tag}", "remove the tag")

    def _report(self, line: int, what: str, fix: str) -> None:
        parts = (
            each.key if isinstance(each.node, LinedMapping) else str(len(each.node) + 1)
            for each in self._stack
        )
        self._problems.report(line, ".".join(filter(None, parts)), what, fix)

    def _refused(self, line: int, what: str, fix: str) -> ScenarioError:
        return _syntax_error(self._problems.file, line, what, fix)


def _merge(done: _Open) -> None:
    """What `<<` names comes first, and gives way to what the mapping says itself."""
    node = done.node
    assert isinstance(node, LinedMapping)
    own = dict(node)
    node.clear()
    for part in done.merged:
        for key, value in part.items():
            node.setdefault(key, value)
            node.lines.setdefault(key, part.lines[key])
    node.update(own)
