"""What is known of every topic's rate, as columns by number: a few hundred bytes a topic.

Room is made by doubling, and a number whose topic was forgotten is given to another. Numbers that are not in use look
like topics of which nothing is known, so that columns can be searched whole.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats

Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]

_LEAST_ROOM = 64
_PAIRS = ("counted", "new", "arrived", "published")
_UNKNOWN: dict[str, float] = {
    **dict.fromkeys(("rate", "size", "spread"), np.nan),
    **dict.fromkeys(("rate_measured", "size_measured", "in_use", "declared", "heard", "returning"), False),
    **dict.fromkeys(("since", "size_since", "review_at", "last_event", "silent_at"), np.inf),
    **dict.fromkeys(("came_at", "told_at"), -np.inf),
    **dict.fromkeys(("events_before", "bytes_before", "silence", *_PAIRS), 0.0),
    "row": -1,
}
"""What stands in each column of a topic that is new."""


class TopicTable:
    """See the module's text; times are those of the watch."""

    # What is planned with (NaN: unknown), whether it was measured, and I as it was when there was much to count.
    rate: Floats
    size: Floats
    spread: Floats
    rate_measured: Flags
    size_measured: Flags
    # Whether the number is a topic's, publishers announce it, somebody listens, it is waited for after a pause.
    in_use: Flags
    declared: Flags
    heard: Flags
    returning: Flags
    # The regime it is judged in: from when on, and what had been published then; when its rate is looked at again.
    since: Floats
    size_since: Floats
    events_before: Floats
    bytes_before: Floats
    review_at: Floats
    # The longest silence so far, the last event, and for topics at rest when their silence will be news.
    silence: Floats
    last_event: Floats
    silent_at: Floats
    # When events last came, when it was last mentioned, and its row among the topics that are counted closely, or -1.
    came_at: Floats
    told_at: Floats
    row: Rows
    # Pairs of events and bytes: the counter's last value, what is new, what live figures have not shown yet, all.
    counted: Floats
    new: Floats
    arrived: Floats
    published: Floats

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self.names: list[str] = []
        self._free: list[int] = []
        for name, value in _UNKNOWN.items():
            setattr(self, name, self._filled(name, value, 0))

    def know(self, topics: Collection[str], *, heard: bool) -> Rows:
        """The numbers of topics; those that are new get one, and are taken to be listened to or not."""
        number = self.number
        new = [topic for topic in topics if topic not in number]
        if new:
            self._add(new, heard)
        return np.fromiter((number[topic] for topic in topics), dtype=np.intp, count=len(topics))

    def forget(self, numbers: Rows) -> None:
        """These topics are no longer known."""
        for place in numbers.tolist():
            del self.number[self.names[place]]
            self.names[place] = ""
            self._free.append(place)
        for name, value in _UNKNOWN.items():
            getattr(self, name)[..., numbers] = value

    def _add(self, topics: list[str], heard: bool) -> None:
        missing = len(topics) - len(self._free)
        if missing > 0:
            room = len(self.names)
            self._enlarge(max(room + missing, 2 * room, _LEAST_ROOM))
        places = [self._free.pop() for _ in topics]
        for topic, place in zip(topics, places, strict=True):
            self.number[topic] = place
            self.names[place] = topic
        self.in_use[places] = True
        self.heard[places] = heard

    def _enlarge(self, room: int) -> None:
        before = len(self.names)
        for name, value in _UNKNOWN.items():
            more = self._filled(name, value, room - before)
            setattr(self, name, np.concatenate([getattr(self, name), more], axis=-1))
        self.names += [""] * (room - before)
        self._free += range(room - 1, before - 1, -1)

    def _filled(self, name: str, value: float, room: int) -> NDArray[np.generic]:
        kind = np.bool_ if isinstance(value, bool) else np.intp if isinstance(value, int) else np.float64
        return np.full((2, room) if name in _PAIRS else room, value, dtype=kind)
