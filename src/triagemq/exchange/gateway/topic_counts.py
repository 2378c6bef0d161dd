"""How many publications of each topic have come, and of how many bytes, so that what is new can be told at little cost.

Counts are read again and again by somebody who wants to know what has changed since. Topics are kept in the order of
their last change, in steps of reading (or seconds): what has changed since a step is at the end, what has been idle for
long at the beginning. A topic that was idle for long is forgotten, and counted from 0 if it comes again.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ChangedCounts", "TopicCounts"]

IDLE_SECONDS = 900.0
"""Whoever reads must remember a count for longer than this, to know of each whether it goes on or has begun anew."""

# Whoever publishes to ever new topics must not fill the memory with their counts.
_MOST_TOPICS = 1_000_000
_LONGEST_STEP_NS = 1_000_000_000
_FORGOTTEN_AT_ONCE = 1_000


@dataclass(slots=True)
class _Row:
    publications: int
    payload_bytes: int
    step: int
    begun_step: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class ChangedCounts:
    """Publications and bytes of payload by topic since each began to be counted.

    `begun`: those of them that began after the step that was asked for. `step` is what to ask for the next time.
    """

    topics: dict[str, tuple[int, int]]
    begun: list[str]
    step: int


class TopicCounts:
    """The caller brings the time.

    >>> counts = TopicCounts()
    >>> counts.count("a", 5, 0); counts.count("b", 5, 0)
    >>> first = counts.changed_since(0, 1)
    >>> counts.count("a", 7, 2)
    >>> counts.changed_since(first.step, 3).topics
    {'a': (2, 12)}
    """

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._step = 1
        self._step_ns = 0

    def __len__(self) -> int:
        return len(self._rows)

    def count(self, topic: str, payload_bytes: int, now_ns: int) -> None:
        """One publication."""
        if now_ns - self._step_ns > _LONGEST_STEP_NS:
            self._next_step(now_ns)
        row = self._rows.get(topic)
        if row is None:
            if len(self._rows) >= _MOST_TOPICS:
                return
            self._rows[topic] = _Row(1, payload_bytes, self._step, self._step, now_ns)
            return
        row.publications += 1
        row.payload_bytes += payload_bytes
        if row.step != self._step:
            row.step, row.changed_ns = self._step, now_ns
            del self._rows[topic]
            self._rows[topic] = row

    def changed_since(self, step: int, now_ns: int) -> ChangedCounts:
        """The counts that have changed after a step; after step 0, all."""
        topics: dict[str, tuple[int, int]] = {}
        begun = []
        for topic, row in reversed(self._rows.items()):
            if row.step <= step:
                break
            topics[topic] = row.publications, row.payload_bytes
            if row.begun_step > step:
                begun.append(topic)
        answered = self._step
        self._next_step(now_ns)
        return ChangedCounts(topics, begun, answered)

    def _next_step(self, now_ns: int) -> None:
        self._step += 1
        self._step_ns = now_ns
        before_ns = now_ns - IDLE_SECONDS * 1e9
        idle: list[str] = []
        for topic, row in self._rows.items():
            if row.changed_ns > before_ns or len(idle) >= _FORGOTTEN_AT_ONCE:
                break
            idle.append(topic)
        for topic in idle:
            del self._rows[topic]
