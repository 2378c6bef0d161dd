"""What topic filters take in: which names match them, and how they lie to each other (MQTT 3.1.1, section 4.7).

`+` stands for one level and `#` for all that follow, its parent level included; a wildcard in front takes in no name
that begins with `$`. All names and filters here are valid ones (see topics.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest


def has_wildcard(topic_filter: str) -> bool:
    """Does it take in more than the topic of the same name?

    >>> has_wildcard("floor/+/smoke"), has_wildcard("floor/1/smoke")
    (True, False)
    """
    return "+" in topic_filter or "#" in topic_filter


def matches(topic_filter: str, topic_name: str) -> bool:
    """Does a filter take in a name?

    >>> matches("floor3/+/smoke", "floor3/kitchen/smoke"), matches("floor3/#", "floor3")
    (True, True)
    >>> matches("#", "$SYS/uptime"), matches("+", "floor3/kitchen")
    (False, False)
    """
    return topic_filter == topic_name or covers(topic_filter, topic_name)


def covers(pattern: str, topic_filter: str) -> bool:
    """Does a pattern match every topic that a filter matches, or the one topic that it is?

    >>> covers("floor3/#", "floor3"), covers("floor3/+", "floor3/#"), covers("#", "$SYS/uptime")
    (True, False, False)
    >>> covers("+/smoke", "kitchen/smoke"), covers("kitchen/smoke", "+/smoke")
    (True, False)
    """
    if topic_filter[:1] == "$" and pattern[:1] in ("+", "#"):
        return False
    allowed, requested = pattern.split("/"), topic_filter.split("/")
    if requested == ["#"]:
        # Every topic has a first level.
        requested = ["+", "#"]
    for place, level in enumerate(allowed):
        if level == "#":
            return True
        if place == len(requested) or requested[place] == "#":
            return False
        if level not in ("+", requested[place]):
            return False
    return len(requested) == len(allowed)


def within(topic_filter: str, patterns: Iterable[str]) -> bool:
    """Does everything that a filter (or topic) can match lie within one of the patterns?

    >>> within("floor3/+/smoke", ["floor3/#"]), within("#", ["floor3/#", "floor4/#"])
    (True, False)
    """
    return any(covers(pattern, topic_filter) for pattern in patterns)


def overlap(one: str, other: str) -> bool:
    """Is there a topic name that both filters take in?

    >>> overlap("a/+", "+/b"), overlap("a/#", "a"), overlap("a/+", "b/+"), overlap("+/a", "$SYS/a")
    (True, True, False, False)
    """
    if (one[0] == "$" and other[0] in "+#") or (other[0] == "$" and one[0] in "+#"):
        return False
    for left, right in zip_longest(one.split("/"), other.split("/")):
        if "#" in (left, right):
            return True
        # `#` also takes in its parent: only then may one filter be a level longer.
        if None in (left, right) or (left != right and "+" not in (left, right)):
            return False
    return True


def intersection(one: str, other: str) -> str | None:
    """The filter that takes in the names which both take in; None where there are none.

    >>> intersection("building/#", "+/hall/smoke"), intersection("a/#", "a/+/b/#"), intersection("a/#", "a")
    ('building/hall/smoke', 'a/+/b/#', 'a')
    >>> intersection("a/+", "b/+"), intersection("#", "$SYS/load")
    (None, None)
    """
    if not overlap(one, other):
        return None
    levels = []
    for left, right in zip_longest(one.split("/"), other.split("/")):
        if left in ("#", None) or right in ("#", None):
            break
        levels.append(right if left == "+" else left)
    # From the first `#` on the other filter says what there is, which may be nothing: its parent level.
    place = len(levels)
    rests = [text.split("/")[place:] for text in (one, other)]
    rest = next((each for each in rests if each[:1] != ["#"]), ["#"])
    return "/".join([*levels, *rest])


class TopicTree:
    """Names or filters by level: names are found by a filter, or filters by a name, without asking all of them.

    >>> names = TopicTree(["floor/1/smoke", "floor/2/smoke", "floor/2", "floor", "$SYS/load"])
    >>> names.names_matching("floor/+/smoke"), names.names_matching("floor/2/#"), names.names_matching("+")
    (['floor/1/smoke', 'floor/2/smoke'], ['floor/2', 'floor/2/smoke'], ['floor'])
    >>> filters = TopicTree(["floor/+/smoke", "floor/#", "+/1/co", "#"])
    >>> sorted(filters.filters_matching("floor/1/smoke")), filters.filters_matching("$SYS/load")
    (['#', 'floor/#', 'floor/+/smoke'], [])
    """

    __slots__ = ("_below", "_topic")

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self._topic: str | None = None
        self._below: dict[str, TopicTree] = {}
        for topic in topics:
            self.add(topic)

    def add(self, topic: str) -> None:
        """Add a name or filter; a second time is the same as once."""
        node = self
        for level in topic.split("/"):
            node = node._below.setdefault(level, TopicTree())
        node._topic = topic

    def remove(self, topic: str) -> None:
        """Forget it, and the levels that only it needed."""
        path = [self]
        levels = topic.split("/")
        for level in levels:
            path.append(path[-1]._below[level])
        path[-1]._topic = None
        for node, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            child = node._below[level]
            if child._topic is None and not child._below:
                del node._below[level]

    def names_matching(self, topic_filter: str) -> list[str]:
        """The names that a filter matches, in order."""
        nodes = [self]
        for depth, level in enumerate(topic_filter.split("/")):
            if level == "#":
                # Its parent level, too, and everything below.
                found = [node._topic for node in nodes if node._topic is not None]
                waiting = [child for node in nodes for child in node._children(depth)]
                while waiting:
                    node = waiting.pop()
                    if node._topic is not None:
                        found.append(node._topic)
                    waiting.extend(node._below.values())
                return sorted(found)
            if level == "+":
                nodes = [child for node in nodes for child in node._children(depth)]
            else:
                nodes = [node._below[level] for node in nodes if level in node._below]
        return sorted(node._topic for node in nodes if node._topic is not None)

    def _children(self, depth: int) -> list[TopicTree]:
        return [child for level, child in self._below.items() if depth > 0 or not level.startswith("$")]

    def filters_matching(self, name: str) -> list[str]:
        """The filters that match a name, in no order."""
        nodes, rests = [self], []
        for depth, level in enumerate(name.split("/")):
            places = ("+", level) if depth > 0 or not level.startswith("$") else (level,)
            if len(places) > 1:
                rests += nodes
            nodes = [
                child for node in nodes for place in places if (child := node._below.get(place)) is not None
            ]
        found = [node._topic for node in nodes if node._topic is not None]
        for node in (*rests, *nodes):
            rest = node._below.get("#")
            if rest is not None and rest._topic is not None:
                found.append(rest._topic)
        return found
