"""The publications of a scenario alone, as the simulator draws them: for those who publish them for real."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats, Scenario
from triagemq.simulate.random import seeds_for
from triagemq.simulate.records import EVENT, new_buffer
from triagemq.simulate.source import Generated

__all__ = ["PublicationStream"]

_AT_ONCE = 4096


class PublicationStream:
    """Events in order of time, drawn when asked for. `rates` are those of the publications from each time on, in order.

    >>> from triagemq.scenario.generators import table2
    >>> events = PublicationStream(table2(seed=1), seed=1).until(2.0)
    >>> bool((np.diff(events["published_ns"]) >= 0).all()), bool(events["published_ns"].max() < 2e9)
    (True, True)
    """

    def __init__(
        self, scenario: Scenario, *, seed: int = 0, rates: Sequence[tuple[float, Floats]] = ()
    ) -> None:
        first = scenario.publications.rate_per_second
        self._changes = deque(rates)
        while self._changes and self._changes[0][0] <= 0:
            first = self._changes.popleft()[1]
        self._source = Generated(scenario, np.asarray(first, dtype=np.float64), seeds_for(seed, 0))

    def until(self, seconds: float) -> NDArray[np.void]:
        """All events before this time that were not given before: `published_ns`, `publication`, `size_bytes`."""
        parts = []
        while self._changes and self._changes[0][0] < seconds:
            at_seconds, rate = self._changes.popleft()
            parts.append(self._drawn(at_seconds))
            self.change_rate(rate, at_seconds)
        return np.concatenate([*parts, self._drawn(seconds)])

    def _drawn(self, seconds: float) -> NDArray[np.void]:
        parts = []
        while self._source.next_time() < seconds:
            buffer = new_buffer(EVENT, _AT_ONCE)
            self._source.publish(buffer, _AT_ONCE, seconds)
            parts.append(buffer.records[: int(buffer.filled[0])])
        events = np.concatenate(parts) if parts else np.empty(0, dtype=EVENT)
        return events[["published_ns", "publication", "size_bytes"]]

    def change_rate(self, rate_per_second: Floats, now_seconds: float) -> None:
        """Go on with other rates from `now_seconds`; a publication whose rate stays is not disturbed."""
        self._source.change_rate(np.asarray(rate_per_second, dtype=np.float64), now_seconds)
