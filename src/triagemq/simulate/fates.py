"""What became of copies that a trace recorded, told to the simulator: nothing is dropped or lost but those.

Drops and losses are chances, and the only ones that no queue explains. A simulation that draws them anew has other
packets in its queues than the run it stands beside, and near overload other waits. What buffers drop is no chance: the
simulator finds that out itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.compiled import step
from triagemq.errors import ParameterError
from triagemq.scenario import Integers, Scenario, port_depths
from triagemq.simulate.changes import Epochs
from triagemq.trace.schema import Outcome

__all__ = [
    "DROPPED",
    "LOST_BEFORE",
    "LOST_BEHIND",
    "Fates",
    "drawn_fates",
    "fate_of",
    "recorded_fates",
    "sets_out",
    "without_chances",
]

PASSES, DROPPED, LOST_BEFORE, LOST_BEHIND = 0, 1, 2, 3
"""No fate of its own; dropped on purpose at the first switch; lost before it; lost behind port 0, 1, ... of its way."""

_COLUMNS = ("event", "subscription", "outcome", "hop")
_MOST_HOPS = 250


class Fates(NamedTuple):
    """One octet a copy: those of an event begin at `first`, in the order of its topic's subscriptions (`rank`).

    All are empty where fates are drawn. `never_left` marks events that were lost for everybody before any broker.
    """

    first: NDArray[np.int64]
    rank: Integers
    fate: NDArray[np.uint8]
    never_left: NDArray[np.uint8]

    @property
    def are_recorded(self) -> bool:
        return len(self.first) > 0


def drawn_fates() -> Fates:
    """None is recorded: drop rates and error rates decide."""
    nothing = np.zeros(0, dtype=np.uint8)
    return Fates(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), nothing, nothing)


def recorded_fates(scenario: Scenario, publication: Integers, table: Mapping[str, ArrayLike]) -> Fates:
    """Fates of the copies of events (`publication` has one entry for each) from a table as `simulate` takes it."""
    missing = [name for name in _COLUMNS if name not in table]
    if missing:
        raise ParameterError("fates", f"lacks the columns {', '.join(missing)}")
    columns = [np.asarray(table[name]) for name in _COLUMNS]
    if len({len(column) for column in columns}) > 1:
        raise ParameterError("fates", "has columns of unequal length")
    event, subscription, outcome, hop = (column.astype(np.int64) for column in columns)
    wanted = scenario.subscriptions
    topic = scenario.publications.topic[publication]
    for name, column, end in (("event", event, len(topic)), ("subscription", subscription, len(wanted))):
        if len(column) and not (column.min() >= 0 and column.max() < end):
            raise ParameterError("fates", f"{name} must be from 0 to {end - 1}")
    if (wanted.topic[subscription] != topic[event]).any():
        raise ParameterError("fates", "has copies of events for subscriptions to other topics")
    dropped, lost = outcome == Outcome.dropped_by_policy, outcome == Outcome.lost_on_link
    if not (dropped | lost).all():
        raise ParameterError("fates", "outcome must be dropped_by_policy or lost_on_link")
    last = port_depths(scenario)[scenario.subscribers.port[wanted.subscriber[subscription]]]
    if (hop < -1).any() or (hop > np.minimum(last, _MOST_HOPS)).any():
        raise ParameterError("fates", "hop must be -1, or that of a port on the way of the subscription")
    per_topic = np.bincount(wanted.topic, minlength=len(scenario.topics))
    by_topic = np.argsort(wanted.topic, kind="stable")
    rank = np.empty(len(wanted), dtype=np.int32)
    rank[by_topic] = np.arange(len(wanted)) - (np.cumsum(per_topic) - per_topic)[wanted.topic[by_topic]]
    copies = per_topic[topic]
    ends = np.cumsum(copies)
    first = ends - copies
    fate = np.zeros(int(copies.sum()), dtype=np.uint8)
    fate[first[event] + rank[subscription]] = np.where(
        dropped, DROPPED, np.where(hop < 0, LOST_BEFORE, LOST_BEHIND + hop)
    )
    lost_so_far = np.concatenate([[0], np.cumsum(fate == LOST_BEFORE)])
    never_left = (copies > 0) & (lost_so_far[ends] - lost_so_far[first] == copies)
    return Fates(first.astype(np.int64), rank, fate, never_left.astype(np.uint8))


def without_chances(epochs: Epochs) -> Epochs:
    """The same epochs, in which nothing is dropped or lost by a draw."""
    chances = ("drop_rate", "port_error", "publisher_error", "subscriber_error")
    return epochs._replace(**{name: np.zeros_like(getattr(epochs, name)) for name in chances})


@step
def fate_of(fates: Fates, event: int, subscription: int) -> int:
    """What is recorded of a copy."""
    if len(fates.first) == 0:
        return PASSES
    return fates.fate[fates.first[event] + fates.rank[subscription]]  # type: ignore[no-any-return]


@step
def sets_out(fates: Fates, event: int) -> bool:
    """Whether an event reaches its broker, as far as is recorded."""
    return len(fates.never_left) == 0 or fates.never_left[event] == 0
