"""MQTT topic names and the patterns that match them: + for one level, # for all that follow."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["TopicTree", "filter_mistake", "is_pattern", "topic_mistake"]

LONGEST_BYTES = 65_535
"""MQTT carries a topic's length in two bytes."""


def is_pattern(name: str) -> bool:
    """Whether a subscription's topic is a pattern.

    >>> is_pattern("floor/+/smoke"), is_pattern("floor/1/smoke")
    (True, False)
    """
    return "+" in name or "#" in name


def topic_mistake(name: str) -> tuple[str, str] | None:
    """What is wrong with the name of a topic, and what to do; None if nothing is.

    >>> topic_mistake("floor/#")
    ('is a pattern, not a topic', 'publish on topics without + and #')
    """
    if not name:
        return "is empty", "write the name of a topic"
    if is_pattern(name):
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
    if any(len(level) > 1 and is_pattern(level) for level in levels) or "#" in levels[:-1]:
        return (
            "has + or # beside other characters",
            "let + or # stand alone between slashes, # only at the end",
        )
    return _unfit_for_mqtt(name)


def _unfit_for_mqtt(name: str) -> tuple[str, str] | None:
    if "\0" in name:
        return "holds a null character", "remove it"
    if len(name.encode()) > LONGEST_BYTES:
        return f"is longer than the {LONGEST_BYTES} bytes MQTT allows", "write a shorter name"
    return None


class TopicTree:
    """Topics by level, so that a pattern finds its topics without looking at the others.

    >>> TopicTree(["floor/1/smoke", "floor/2/smoke", "floor/2/co", "$SYS/load"]).matching("floor/+/smoke")
    ['floor/1/smoke', 'floor/2/smoke']
    >>> TopicTree(["floor", "floor/1", "$SYS/load"]).matching("#")
    ['floor', 'floor/1']
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.topic: str | None = None
        self.below: dict[str, TopicTree] = {}
        for topic in topics:
            self.add(topic)

    def add(self, topic: str) -> None:
        """Add a topic; a second time is the same as once."""
        node = self
        for level in topic.split("/"):
            node = node.below.setdefault(level, TopicTree(()))
        node.topic = topic

    def matching(self, pattern: str) -> list[str]:
        """The topics a pattern matches; a leading wildcard does not match topics that begin with $."""
        nodes: list[TopicTree] = [self]
        levels = pattern.split("/")
        for depth, level in enumerate(levels):
            if level == "#":
                # floor/# matches floor itself as well.
                found = [node.topic for node in nodes if node.topic is not None]
                waiting = [child for node in nodes for child in node._children(depth)]
                while waiting:
                    node = waiting.pop()
                    if node.topic is not None:
                        found.append(node.topic)
                    waiting.extend(node.below.values())
                return sorted(found)
            if level == "+":
                nodes = [child for node in nodes for child in node._children(depth)]
            else:
                nodes = [node.below[level] for node in nodes if level in node.below]
        return sorted(node.topic for node in nodes if node.topic is not None)

    def _children(self, depth: int) -> list[TopicTree]:
        return [child for level, child in self.below.items() if depth > 0 or not level.startswith("$")]
