"""Counts by topic: what has changed is told, at a cost that does not depend on what has not; the idle are forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from triagemq.gateway.core.messages import IDLE_SECONDS, TopicCounts

SECOND = 1_000_000_000


class Watched(dict[str, Any]):
    """Counts how many of its items are read."""

    read = 0

    def items(self) -> Any:
        return Items(self)


class Items:
    def __init__(self, rows: Watched) -> None:
        self.rows = rows

    def _each(self, pairs: Iterator[Any]) -> Iterator[Any]:
        for pair in pairs:
            self.rows.read += 1
            yield pair

    def __iter__(self) -> Iterator[Any]:
        return self._each(iter(dict.items(self.rows)))

    def __reversed__(self) -> Iterator[Any]:
        return self._each(reversed(dict.items(self.rows)))


def test_many_topics_that_are_idle_cost_nothing_to_read() -> None:
    counts = TopicCounts()
    for number in range(65_000):
        counts.count(f"t/{number}", 10, 0)
    step = counts.changed_since(0, 0).step
    rows = Watched(counts._rows)
    counts._rows = rows
    for second in range(1, 101):
        counts.count("t/7", 10, second * SECOND)
        changed = counts.changed_since(step, second * SECOND)
        assert changed.topics == {"t/7": (1 + second, 10 + 10 * second)}
        step = changed.step
    assert rows.read <= 500


@given(
    st.lists(
        st.tuples(st.sampled_from(["count", "read", "other", "wait"]), st.sampled_from("abc")), max_size=60
    )
)
def test_whoever_adds_up_what_has_changed_knows_everything(steps: list[tuple[str, str]]) -> None:
    counts, now_ns = TopicCounts(), 0
    truth: dict[str, int] = {}
    added: dict[str, int] = {}
    last: dict[str, int] = {}
    step = 0
    for what, topic in [*steps, ("read", "")]:
        if what == "count":
            counts.count(topic, 1, now_ns)
            truth[topic] = truth.get(topic, 0) + 1
        elif what == "other":
            counts.changed_since(0, now_ns)
        elif what == "wait":
            now_ns += int(0.4 * IDLE_SECONDS) * SECOND
        if what in ("read", "wait"):
            changed = counts.changed_since(step, now_ns)
            for name, (publications, _) in changed.topics.items():
                before = 0 if name in changed.begun else last[name]
                added[name] = added.get(name, 0) + publications - before
                last[name] = publications
            step = changed.step
    assert added == truth


def test_topics_that_are_idle_for_long_are_forgotten_and_others_are_not() -> None:
    counts = TopicCounts()
    for number in range(3_000):
        counts.count(f"once/{number}", 1, 0)
    idle_ns = int(IDLE_SECONDS * SECOND)
    for second in range(0, idle_ns // SECOND + 100, 50):
        counts.count("again", 1, second * SECOND)
        for _ in range(5):
            counts.changed_since(0, second * SECOND)
    assert set(counts.changed_since(0, idle_ns + 60 * SECOND).topics) == {"again"}
