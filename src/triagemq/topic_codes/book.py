"""Which topic has which bits: the code of a topic is that of its parent, and behind it the number of the child.

Children are numbered in the order in which they become known, and keep their numbers for ever: a topic that is gone
keeps its code, and a new one gets the next. Numbers are written in an Exp-Golomb code, which has no end: two bits for
the first two children, four for the next four, six for eight more. No code of a child begins with that of another, and
each has a one in it, so that the zeros behind a code are part of none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triagemq.errors import CodeError, ParameterError
from triagemq.files import write_durably
from triagemq.mqttsn.topics import topic_name_problem

TOPIC_BITS = 100
TYPE_BITS = 9

_VERSION = 1


def child_bits(number: int) -> str:
    """The bits of a child, counted from 0.

    >>> [child_bits(number) for number in (0, 1, 2, 5, 6)]
    ['10', '11', '0100', '0111', '001000']
    """
    value = number + 2
    length = value.bit_length()
    return "0" * (length - 2) + f"{value:b}"


def read_child(bits: str, at: int) -> tuple[int, int] | None:
    """The number of the child whose bits begin there, and where they end; None for zeros up to the end.

    >>> read_child("0100" + "10", 0), read_child("10000", 2)
    ((2, 4), None)
    """
    one = bits.find("1", at)
    if one < 0:
        return None
    end = one + (one - at) + 2
    if end > len(bits):
        raise CodeError(f"the bits {bits[at:]} end within the number of a child")
    return int(bits[one:end], 2) - 2, end


@dataclass
class _Node:
    bits: str
    path: tuple[str, ...]
    children: dict[str, _Node] = field(default_factory=dict)


class CodeBook:
    """All topics that ever had a code, and the event types that have numbers.

    >>> book = CodeBook()
    >>> book.add(["city/hall/smoke", "city/hall/water"])
    2
    >>> book.bits("city/hall/water"), book.topic("101011")
    ('101011', 'city/hall/water')
    """

    def __init__(self) -> None:
        self._root = _Node("", ())
        self._types: list[str] = [""]

    @property
    def types(self) -> Sequence[str]:
        """Names of event types by their numbers; 0 is that of events of which no type is known."""
        return self._types

    def add(self, topics: Iterable[str]) -> int:
        """Give codes to topics and to those above them; how many of the topics had none."""
        new = 0
        for topic in topics:
            if problem := topic_name_problem(topic):
                raise ParameterError("topic", f"{topic!r} is no topic name: {problem.replace('_', ' ')}")
            new += self._grow(topic)
        return new

    def add_type(self, name: str) -> int:
        """The number of an event type, which is the next one if it has none."""
        if name not in self._types:
            if len(self._types) >= 1 << TYPE_BITS:
                raise CodeError(f"there are {1 << TYPE_BITS} event types already; {name!r} has no room")
            self._types.append(name)
        return self._types.index(name)

    def bits(self, topic: str) -> str:
        """The code of a topic."""
        node = self._root
        for level in topic.split("/"):
            if level not in node.children:
                known = ", ".join(sorted(node.children)[:5]) or "nothing"
                above = "/".join(node.path)
                raise CodeError(f"{topic!r} has no code: below {above!r} there is {known}, not {level!r}")
            node = node.children[level]
        return node.bits

    def topic(self, bits: str) -> str:
        """The topic of a code, with or without zeros behind it."""
        node, at = self._root, 0
        while (found := read_child(bits, at)) is not None:
            number, at = found
            children = list(node.children.values())
            if number >= len(children):
                raise CodeError(
                    f"{'/'.join(node.path)!r} has {len(children)} children, and no number {number}"
                )
            node = children[number]
        if node is self._root:
            raise CodeError("the bits of a topic are all zero")
        return "/".join(node.path)

    def topics(self) -> list[str]:
        """All topics with a code, each after the one above it."""
        found, open_nodes = [], list(self._root.children.values())[::-1]
        while open_nodes:
            node = open_nodes.pop()
            found.append("/".join(node.path))
            open_nodes += list(node.children.values())[::-1]
        return found

    def as_json(self) -> dict[str, Any]:
        """What `load_book` reads: the topics in an order that numbers children as they are numbered here."""
        return {"version": _VERSION, "types": self._types[1:], "topics": self.topics()}

    def _grow(self, topic: str) -> bool:
        node, is_new = self._root, False
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                bits = node.bits + child_bits(len(node.children))
                if len(bits) > TOPIC_BITS:
                    raise CodeError(
                        f"{topic!r} needs {len(bits)} bits, and a topic has {TOPIC_BITS}; make the tree less deep, or "
                        "name its largest branches first"
                    )
                child = node.children[level] = _Node(bits, (*node.path, level))
                is_new = True
            node = child
        return is_new


def load_book(path: Path) -> CodeBook:
    """The book in a file; an empty one if there is no such file."""
    book = CodeBook()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return book
    try:
        stored = json.loads(text)
        if stored["version"] != _VERSION:
            raise CodeError(
                f"{path}: codes of version {stored['version']}; this triage reads version {_VERSION}"
            )
        for name in stored["types"]:
            book.add_type(name)
        book.add(stored["topics"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CodeError(f"{path}: holds no codes of topics; name another file, or remove it") from None
    return book


def save_book(book: CodeBook, path: Path) -> None:
    """Write a book to a file, whole or not at all."""
    try:
        write_durably(path, json.dumps(book.as_json(), indent=1, ensure_ascii=False))
    except OSError as error:
        raise CodeError(f"{path}: cannot be written: {error.strerror}") from None
