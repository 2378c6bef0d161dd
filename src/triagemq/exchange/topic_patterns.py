"""How topic filters lie to each other: within a pattern (what a token may publish or subscribe to), or overlapping."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["covers", "has_wildcard", "overlap", "within"]


def within(topic_filter: str, patterns: Iterable[str]) -> bool:
    """Does everything that a valid filter (or topic) can match lie within one of the patterns?

    >>> within("floor3/+/smoke", ["floor3/#"]), within("#", ["floor3/#", "floor4/#"])
    (True, False)
    """
    return any(covers(pattern, topic_filter) for pattern in patterns)


def covers(pattern: str, topic_filter: str) -> bool:
    """Does a valid pattern match every topic that a valid filter matches (MQTT 3.1.1, section 4.7)?

    `#` takes in its parent level, and a wildcard in front takes in no topic that begins with `$`.

    >>> covers("floor3/#", "floor3"), covers("floor3/+", "floor3/#"), covers("#", "$SYS/uptime")
    (True, False, False)
    >>> covers("+/smoke", "kitchen/smoke"), covers("kitchen/smoke", "+/smoke")
    (True, False)
    """
    if topic_filter[:1] == "$" and pattern[:1] in ("+", "#"):
        return False
    allowed, wanted = pattern.split("/"), topic_filter.split("/")
    if wanted == ["#"]:
        # Every topic has a first level.
        wanted = ["+", "#"]
    for place, level in enumerate(allowed):
        if level == "#":
            return True
        if place == len(wanted) or wanted[place] == "#":
            return False
        if level not in ("+", wanted[place]):
            return False
    return len(wanted) == len(allowed)


def has_wildcard(topic_filter: str) -> bool:
    """Does it take in more than the topic of the same name?

    >>> has_wildcard("a/+"), has_wildcard("a/b")
    (True, False)
    """
    return "+" in topic_filter or "#" in topic_filter


def overlap(one: str, other: str) -> bool:
    """Is there a topic name that both filters take in?

    >>> overlap("a/+", "+/b"), overlap("a/#", "a"), overlap("a/+", "b/+"), overlap("+/a", "$SYS/a")
    (True, True, False, False)
    """
    if one == other:
        return True
    if (one[0] == "$" and other[0] in "+#") or (other[0] == "$" and one[0] in "+#"):
        return False
    left, right = one.split("/"), other.split("/")
    for index in range(max(len(left), len(right))):
        a = left[index] if index < len(left) else None
        b = right[index] if index < len(right) else None
        if a == "#" or b == "#":
            return True
        if a is None or b is None:
            # `#` also takes in its parent: only then may one filter be a level longer.
            return False
        if a != b and "+" not in (a, b):
            return False
    return True
