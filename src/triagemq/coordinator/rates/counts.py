"""What a counter tells, turned into events of windows: what is new, what comes late, and which topics are worth a look.

After a pause, of the gateway or of its broker, the events of that time come at once, and others never. What exceeds the
rate that a topic is planned with then makes up for the pause, up to as many as may have been published in it: it was
published then, and says nothing about the rate now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.rates.horizons import HORIZONS, SURPRISE, Horizons, Seen, count_surprise
from triagemq.coordinator.rates.topics import Rows, TopicTable
from triagemq.scenario import Floats

LATE_SECONDS = 10.0
"""How long after a pause, or after the last event that was late, others may be: publishers come back by and by."""

SETTLING_SECONDS = 2.0
"""Topics of which no rate is known cannot be told late from new so long after a pause; they are measured from then."""

WINDOW_SECONDS = 0.2
LATE_SURPRISE = 3.0
"""In nats, within one window: what is less surprising may be chance."""


class RateCounts:
    """All topics, those that are counted closely (`awake`, in the order of the horizons' rows), and the late events."""

    def __init__(self) -> None:
        self.topics = TopicTable()
        self.horizons = Horizons()
        self.awake: Rows = np.empty(0, dtype=np.intp)
        self._changed: list[Rows] = []
        self._arrived: list[Rows] = []
        # Per row, how many events a pause still owes.
        self._owed: Floats = np.zeros(0)
        self._late_until = self._settled_at = -np.inf

    def take(
        self,
        at_seconds: float,
        counts: Mapping[str, tuple[int, int]],
        begun: Collection[str],
        *,
        base: bool,
        anew: bool,
        heard: bool,
    ) -> None:
        """Counts of some topics; `base` are those to count from, `anew` those of a counter that began at 0."""
        topics = self.topics
        if anew:
            topics.counted[:] = 0.0
        if not counts:
            return
        numbers = topics.know(counts, heard=heard)
        now = np.array(list(counts.values()), dtype=np.float64).T
        if begun:
            topics.counted[:, [topics.number[topic] for topic in begun]] = 0.0
        new = np.maximum(now - topics.counted[:, numbers], 0.0)
        topics.counted[:, numbers] = now
        topics.told_at[numbers] = at_seconds
        came = np.flatnonzero(new[0] > 0)
        if base or len(came) == 0:
            return
        numbers, new = numbers[came], new[:, came]
        topics.new[:, numbers] += new
        topics.arrived[:, numbers] += new
        self._changed.append(numbers)
        self._arrived.append(numbers)

    def came(self) -> Rows:
        """The topics of which there is something new."""
        return _united(self._changed)

    def take_arrived(self) -> dict[str, tuple[float, float]]:
        """Events and bytes by topic since the last call."""
        topics, numbers = self.topics, _united(self._arrived)
        self._arrived = []
        found = {
            topics.names[number]: (float(topics.arrived[0, number]), float(topics.arrived[1, number]))
            for number in numbers.tolist()
        }
        topics.arrived[:, numbers] = 0.0
        return found

    def advance(self, started: float, at_seconds: float, numbers: Rows) -> list[Seen]:
        """Give what is new of these topics to the horizons, without what is late; what they show."""
        topics = self.topics
        new = np.zeros((2, len(self.awake)))
        rows = topics.row[numbers]
        new[:, rows[rows >= 0]] = topics.new[:, numbers[rows >= 0]]
        topics.new[:, numbers] = 0.0
        self._changed = []
        if self._late_until > -np.inf:
            self._set_late_aside(at_seconds, at_seconds - started, new)
        return self.horizons.advance(at_seconds, new[0], new[1])

    # Pauses.

    def pause(self, until: float, seconds: float) -> None:
        """Nobody counted for so long: as many events as were expected may come late, or as chance explains."""
        topics, awake = self.topics, self.awake
        expected = np.nan_to_num(topics.rate[awake]) * topics.heard[awake] * seconds
        level = int(np.clip(np.log2(max(seconds, WINDOW_SECONDS) / WINDOW_SECONDS) - 0.5, 0, HORIZONS - 1))
        chance = np.nan_to_num(self.horizons.dispersion(level)) * SURPRISE
        # Bernstein's bound on a sum.
        self._owed = self._owed + expected + (expected > 0) * (np.sqrt(2 * expected * chance) + chance)
        self._late_until = max(self._late_until, until + LATE_SECONDS)
        self.settle(until)

    def settle(self, since: float) -> None:
        """What comes right after that time may have been published before."""
        self._settled_at = max(self._settled_at, since + SETTLING_SECONDS)

    def is_settled(self, at_seconds: float) -> bool:
        return at_seconds >= self._settled_at

    def _set_late_aside(self, at_seconds: float, seconds: float, new: Floats) -> None:
        if at_seconds > self._late_until:
            self._owed[:] = 0.0
            self._late_until = -np.inf
            return
        topics = self.topics
        expected = np.nan_to_num(topics.rate[self.awake]) * seconds
        rows = np.flatnonzero((self._owed > 0) & (expected > 0) & (new[0] > expected))
        spread = self.horizons.dispersion(0)[rows]
        surprise = count_surprise(expected[rows], new[0, rows], np.where(np.isnan(spread), 1.0, spread))
        rows = rows[surprise > LATE_SURPRISE]
        if len(rows) == 0:
            return
        late = np.minimum(new[0, rows] - expected[rows], self._owed[rows])
        self._owed[rows] -= late
        late_bytes = new[1, rows] * late / new[0, rows]
        new[0, rows] -= late
        new[1, rows] -= late_bytes
        # Estimates that are being made leave them out, too.
        topics.events_before[self.awake[rows]] += late
        topics.bytes_before[self.awake[rows]] += late_bytes
        self._late_until = at_seconds + LATE_SECONDS
        self.settle(at_seconds)

    # Rest.

    def wake(self, numbers: Rows) -> None:
        """Count these topics closely."""
        self.topics.row[numbers] = np.arange(len(self.awake), len(self.awake) + len(numbers))
        self.horizons.add(len(numbers))
        self.awake = np.append(self.awake, numbers)
        self._owed = np.append(self._owed, np.zeros(len(numbers)))

    def rest(self, idle: NDArray[np.bool_]) -> None:
        """Count those of the rows no longer closely."""
        self.topics.row[self.awake] = -1
        rows = np.flatnonzero(~idle)
        self.horizons.keep(rows)
        self.awake, self._owed = self.awake[rows], self._owed[rows]
        self.topics.row[self.awake] = np.arange(len(rows))


def _united(parts: list[Rows]) -> Rows:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.intp)
