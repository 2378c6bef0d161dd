"""Which topic filters lie within which patterns: what a token may publish or subscribe to."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["covers", "within"]


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
