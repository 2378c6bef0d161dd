"""Subscriptions' patterns by level, so that a new topic finds the patterns that want it without asking them all."""

from __future__ import annotations

__all__ = ["FilterTree"]


class FilterTree:
    """The other side of `TopicTree`.

    >>> filters = FilterTree()
    >>> for pattern in ("floor/+/smoke", "floor/#", "+/1/co", "#"):
    ...     filters.add(pattern)
    >>> sorted(filters.matching("floor/1/smoke")), sorted(filters.matching("$SYS/load")), filters.matching("floor")
    (['#', 'floor/#', 'floor/+/smoke'], [], ['#', 'floor/#'])
    """

    def __init__(self) -> None:
        self._pattern: str | None = None
        self._below: dict[str, FilterTree] = {}

    def add(self, pattern: str) -> None:
        """Add a pattern; a second time is the same as once."""
        node = self
        for level in pattern.split("/"):
            node = node._below.setdefault(level, FilterTree())
        node._pattern = pattern

    def remove(self, pattern: str) -> None:
        """Forget a pattern, and the levels that only it needed."""
        path = [self]
        levels = pattern.split("/")
        for level in levels:
            path.append(path[-1]._below[level])
        path[-1]._pattern = None
        for node, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            child = node._below[level]
            if child._pattern is None and not child._below:
                del node._below[level]

    def matching(self, topic: str) -> list[str]:
        """The patterns that match a topic; a leading wildcard does not match topics that begin with $."""
        found: list[str] = []
        nodes = [self]
        for depth, level in enumerate(topic.split("/")):
            wild = depth > 0 or not level.startswith("$")
            following: list[FilterTree] = []
            for node in nodes:
                if wild and (rest := node._below.get("#")) is not None and rest._pattern is not None:
                    found.append(rest._pattern)
                following += [
                    child
                    for name in (level, "+" if wild else None)
                    if name is not None and (child := node._below.get(name)) is not None
                ]
            nodes = following
        for node in nodes:
            if node._pattern is not None:
                found.append(node._pattern)
            # floor/# matches floor itself as well.
            if (rest := node._below.get("#")) is not None and rest._pattern is not None:
                found.append(rest._pattern)
        return found
