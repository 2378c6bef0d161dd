"""YAML text as nodes that know their line.

Nodes are built from libyaml's events, without recursion, so that no text can exhaust the stack. An alias is
the anchored node itself; it cannot stand inside its own anchor, so nodes never form a loop. Scalars are
resolved as in YAML 1.2: `8e6` is a number, `yes` and `1_000` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from triagemq.errors import Problem, ScenarioError

__all__ = ["Mapping", "Node", "Scalar", "Sequence", "parse", "parse_number"]

DEEPEST = 24
"""Levels of nesting a file may have; a scenario has six."""

STANDARD_TAG = "tag:yaml.org,2002:"
CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
INTEGER = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
OTHER_BASE = re.compile(r"0(?:x[0-9a-fA-F]{1,15}|o[0-7]{1,20})", re.ASCII)


@dataclass(slots=True, eq=False)
class Scalar:
    """A single value. `plain` is false where it was quoted, and then it is text."""

    line: int
    text: str
    plain: bool
    tag: str | None = None

    def resolved(self) -> object:
        """The value as YAML 1.2 reads it: None, bool, int, float or str."""
        if not self.plain:
            return self.text
        if self.text in CONSTANTS:
            return CONSTANTS[self.text]
        number = parse_number(self.text)
        return self.text if number is None else number

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in CONSTANTS and CONSTANTS[self.text] is None


@dataclass(slots=True, eq=False)
class Sequence:
    """A list."""

    line: int
    tag: str | None = None
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Mapping:
    """Keys and values, in the order of the file and with its repetitions."""

    line: int
    tag: str | None = None
    pairs: list[tuple[Node, Node]] = field(default_factory=list)


Node = Scalar | Sequence | Mapping


def parse_number(text: str) -> int | float | None:
    """The number a plain scalar stands for, or None where it is text.

    >>> parse_number("10e6"), parse_number("-3"), parse_number("1_000"), parse_number("0x1f")
    (10000000.0, -3, None, 31)
    """
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text) + 0.0  # -0.0 is 0.0, and not another scenario
    if OTHER_BASE.fullmatch(text):
        return int(text, 0)
    return None


def parse(text: str, file: str) -> Node | None:
    """The document in a text; None if there is nothing in it.

    Raises ScenarioError with one Problem where the text is not YAML.

    >>> parse("radio: {bandwidth_bps: 8e6}", "city.yaml").pairs[0][1].line
    1
    """
    try:
        text.encode()
        return _compose(yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)), file)
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


def _compose(events: Iterator[Any], file: str) -> Node | None:
    root: Node | None = None
    anchors: dict[str, Node] = {}
    # Every open list or mapping, its anchor, and for a mapping the key that waits for its value.
    open_nodes: list[tuple[Sequence | Mapping, str | None]] = []
    waiting_keys: list[Node | None] = []

    def place(node: Node) -> None:
        nonlocal root
        if not open_nodes:
            root = node
            return
        parent = open_nodes[-1][0]
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif isinstance(parent, Mapping):
            key = waiting_keys[-1]
            if key is None:
                waiting_keys[-1] = node
            else:
                parent.pairs.append((key, node))
                waiting_keys[-1] = None

    documents = 0
    for event in events:
        kind = type(event)
        line = event.start_mark.line + 1
        if kind is yaml.ScalarEvent:
            scalar = Scalar(line, event.value, not event.style, _foreign_tag(event.tag))
            if event.anchor is not None:
                anchors[event.anchor] = scalar
            place(scalar)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            if len(open_nodes) >= DEEPEST:
                raise _syntax_error(
                    file,
                    line,
                    f"is nested more than {DEEPEST} levels deep",
                    "close the brackets opened before",
                )
            tag = _foreign_tag(event.tag)
            node = Mapping(line, tag) if kind is yaml.MappingStartEvent else Sequence(line, tag)
            open_nodes.append((node, event.anchor))
            waiting_keys.append(None)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            node, anchor = open_nodes.pop()
            waiting_keys.pop()
            if anchor is not None:
                anchors[anchor] = node
            place(node)
        elif kind is yaml.AliasEvent:
            if event.anchor not in anchors:
                raise _syntax_error(
                    file,
                    line,
                    f"uses the alias *{event.anchor}, which is not complete before it",
                    f"write &{event.anchor} at an earlier entry, outside of which the alias stands",
                )
            place(anchors[event.anchor])
        elif kind is yaml.DocumentStartEvent:
            documents += 1
            if documents > 1:
                raise _syntax_error(
                    file,
                    line,
                    "holds a second document",
                    "remove the line --- or put it into a file of its own",
                )
    return None if isinstance(root, Scalar) and root.is_null else root


def _foreign_tag(tag: str | None) -> str | None:
    """A tag that would change what a value means; the standard ones say what the value says by itself."""
    return None if tag is None or tag == "!" or tag.startswith(STANDARD_TAG) else tag
