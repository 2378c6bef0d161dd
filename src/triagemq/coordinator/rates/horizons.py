"""Counts of events over many horizons at once, and how surprising they are beside the rates that were planned with.

Measuring windows (200 ms) are added up over horizons of 2, 4, 8, ... 4096 windows, each looked at whenever an eighth of
it has passed. Columns over topics throughout.

With m = planned rate * horizon events expected and n seen, the surprise is

    (m / I) * h(n / m),   h(x) = x log x - x + 1,

I the index of dispersion of counts over that horizon. For Poisson events (I = 1), exp(-surprise) bounds the probability
of n or more (or n or fewer) from above: Chernoff's bound. A count that varies I times as much is treated as one of
m / I events. The mean size of n events, x times the planned one, has the surprise n (x - 1 - log x): Chernoff's bound
for exponential sizes, which bounds everything less spread out.

I is estimated from the variance of the counts themselves, horizon by horizon, starting from what is known of the
process (`set_prior`); the estimate is raised to its upper 99 % confidence limit, but not above 1 while it is below.
Late counts take part only when they have proved to be no change of rate: a change must not excuse itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats

SURPRISE = float(np.log(1e9))
"""In nats, what is news: the chance of a false alarm is at most 1e-9 per look."""

HORIZONS = 12
"""The longest is 4096 windows: 14 minutes."""

_RING = 9
_LEAST_BLOCKS = 8
_MOST_BLOCKS = 2000
_KNOWN_BLOCKS, _ASSUMED_BLOCKS, _ASSUMED_EVENTS = 1000.0, 60.0, 10.0
"""What knowing the process is worth as evidence, in blocks, and what the assumption of a Poisson one is."""
_FIRST_WINDOWS = 64
_LATELY_WINDOWS = 320
"""How long counts wait before they take part in the estimate, at least; four blocks if that is longer."""
_LEAST_DISPERSION = 0.1
"""Clocks that tick evenly reach a gateway less evenly; below this, timing noise would be news."""
_LEAST_ROOM = 16
_GROWTH = 1.25
"""By how much I may grow from one horizon to the next, twice as long, where it cannot be estimated yet."""

Rows = NDArray[np.intp]


class Seen(NamedTuple):
    """Counts over one horizon that has just moved on; NaN dispersion where too little is known to judge."""

    started_at: float
    seconds: float
    events: Floats
    octets: Floats
    dispersion: Floats


class Horizons:
    """Cumulative counts of some topics, remembered so that every horizon can be read off.

    Topics are rows, from 0 on; they come at the end (`add`), and others move up when some go (`keep`).
    """

    _OVER_TOPICS = "_events", "_octets", "_rings", "_prior", "_prior_blocks", "_mean", "_settled", "_lately"
    """The arrays of which topics are the last axis."""

    def __init__(self) -> None:
        self.window = 0
        self.rows = 0
        self._room = 0
        self._times = np.zeros((HORIZONS, _RING))
        self._dispersion: dict[int, tuple[int, Floats]] = {}
        self._events, self._octets = np.zeros((2, 0))
        self._rings: Floats = np.zeros((2, HORIZONS, _RING, 0))
        self._prior, self._prior_blocks = np.zeros((HORIZONS, 0)), np.zeros(0)
        # Of blocks of one horizon: the mean in this regime and how many are in it, and three sums behind the estimate
        # of I (blocks, squares around the mean, events expected), settled and of late.
        self._mean: Floats = np.zeros((2, HORIZONS, 0))
        self._settled, self._lately = np.zeros((2, 3, HORIZONS, 0))

    def add(self, rows: int) -> None:
        """Make room for more topics; nothing is known of them."""
        rows += self.rows
        if rows > self._room:
            self._move(np.arange(self.rows), max(rows, 2 * self._room, _LEAST_ROOM))
        for name in self._OVER_TOPICS:
            getattr(self, name)[..., self.rows : rows] = 1 if name == "_prior" else 0
        nothing = np.full(rows - self.rows, np.nan)
        self._dispersion = {
            level: (window, np.append(known, nothing)) for level, (window, known) in self._dispersion.items()
        }
        self.rows = rows

    def keep(self, rows: Rows) -> None:
        """Forget all topics but these."""
        room = self._room if 4 * len(rows) > self._room else max(2 * len(rows), _LEAST_ROOM)
        self._move(rows, room)
        self._dispersion = {
            level: (window, known[rows]) for level, (window, known) in self._dispersion.items()
        }
        self.rows = len(rows)

    def _move(self, rows: Rows, room: int) -> None:
        for name in self._OVER_TOPICS:
            before = getattr(self, name)
            after = np.empty((*before.shape[:-1], room)) if room != self._room else before
            after[..., : len(rows)] = before[..., rows]
            setattr(self, name, after)
        self._room = room

    def start(self, at_seconds: float) -> None:
        """Begin at a time, with the counts there are."""
        self.window = 0
        self._dispersion.clear()
        self._times[:] = at_seconds
        self._rings[0], self._rings[1] = self._events, self._octets

    def set_prior(self, topic: int, dispersion: Floats, blocks: float = _KNOWN_BLOCKS) -> None:
        """What is known of a topic's process: I for every horizon, and what that is worth as evidence."""
        self._prior[:, topic] = np.maximum(dispersion, _LEAST_DISPERSION)
        self._prior_blocks[topic] = blocks
        self._settled[:, :, topic] = self._lately[:, :, topic] = 0
        self._settled[0, :, topic] = max(blocks, _LEAST_BLOCKS)
        self._dispersion.clear()

    def forget_mean(self, topics: Rows) -> None:
        """A new regime: other rates, of the same burstiness."""
        self._mean[:, :, topics] = self._lately[:, :, topics] = 0

    def advance(self, at_seconds: float, events: Floats, octets: Floats) -> list[Seen]:
        """Take the counts up to a time; what the horizons that have moved on show, the shortest first."""
        self.window += 1
        rows = self.rows
        counts = self._events[:rows], self._octets[:rows]
        for count, more in zip(counts, (events, octets), strict=True):
            count += more
        rings = self._rings[..., :rows]
        seen = []
        for level in range(HORIZONS):
            length = 2 << level
            step = max(1, length // 8)
            if self.window % step:
                break
            place = self.window // step
            first = (place - length // step) % _RING
            if self.window >= length:
                if self.window % length == 0:
                    self._add_block(level, counts[0] - rings[0, level, first])
                started = float(self._times[level, first])
                before = rings[:, level, first]
                seen.append(
                    Seen(
                        started_at=started,
                        seconds=at_seconds - started,
                        events=counts[0] - before[0],
                        octets=counts[1] - before[1],
                        dispersion=self.dispersion(level),
                    )
                )
            self._times[level, place % _RING] = at_seconds
            rings[0, level, place % _RING], rings[1, level, place % _RING] = counts
        return seen

    def _add_block(self, level: int, count: Floats) -> None:
        """Welford's update of the mean and of the sum of squares around it."""
        rows = self.rows
        mean, blocks = self._mean[:, level, :rows]
        blocks += 1
        apart = count - mean
        mean += apart / blocks
        # The first block of a regime is its own mean and says nothing of the spread.
        settled, lately = self._settled[:, level, :rows], self._lately[:, level, :rows]
        lately += np.where(blocks > 1, [np.ones_like(mean), apart * (count - mean), mean], 0.0)
        if self.window % max(_LATELY_WINDOWS, 8 << level) == 0:
            ready = lately[0] > 0
        else:  # to know little is better than to know nothing
            enough = max(_LEAST_BLOCKS, _FIRST_WINDOWS / (2 << level))
            ready = (settled[0] < _LEAST_BLOCKS) & (lately[0] >= enough)
        if ready.any():
            settled[:, ready] += lately[:, ready]
            lately[:, ready] = 0
            settled /= np.where(settled[0] > _MOST_BLOCKS, 2, 1)

    def dispersion(self, level: int) -> Floats:
        """I of every topic for one horizon, on the safe side; NaN where nothing is known yet.

        It changes little from window to window, so it is worked out now and then.
        """
        worked_out, known = self._dispersion.get(level, (-_FIRST_WINDOWS, self._events))
        if self.window - worked_out >= min(2 << level, _FIRST_WINDOWS):
            known = self._work_out(level)
            self._dispersion[level] = self.window, known
        return known

    def _work_out(self, level: int) -> Floats:
        sums = self._settled[:, : level + 1, : self.rows]
        known = sums[0] >= _LEAST_BLOCKS
        # The longest horizon that is known, and by how many doublings this one is longer.
        doublings = known[::-1].argmax(axis=0)
        best = level - doublings
        topics = np.arange(known.shape[1])
        blocks, squares, expected = sums[:, best, topics]
        # That events come more evenly than by chance is believed sooner than that they come in bursts.
        prior_blocks = self._prior_blocks[: self.rows]
        assumed = np.where((prior_blocks > 0) | (squares < expected), 0.0, _ASSUMED_BLOCKS)
        trust = np.maximum((prior_blocks + assumed) * self._mean[0, best, topics], _ASSUMED_EVENTS)
        estimate = (trust * self._prior[best, topics] + squares) / (trust + expected)
        raised = estimate * _upper_limit(blocks + assumed)
        raised = np.where(estimate < 1, np.minimum(raised, 1.0), raised)
        raised = np.maximum(raised, _LEAST_DISPERSION) * _GROWTH**doublings
        return np.where(known.any(axis=0), raised, np.nan)


def _upper_limit(blocks: Floats) -> Floats:
    """By how much a variance from so many blocks may be too low, at 99 %: Wilson and Hilferty's chi-square."""
    ninth = 2 / (9 * np.maximum(blocks, _LEAST_BLOCKS))
    return (1 - ninth - 2.326 * np.sqrt(ninth)) ** -3.0


def count_surprise(expected: Floats, seen: Floats, dispersion: Floats) -> Floats:
    """How surprising counts are, in nats, where more than 0 are expected; NaN where nothing is known.

    >>> count_surprise(np.array([10.0, 10.0]), np.array([20.0, 0.0]), np.array([1.0, 2.0])).round(2).tolist()
    [3.86, 5.0]
    """
    ratio = seen / expected
    # x log x is 0 at 0.
    return np.asarray(expected / dispersion * (ratio * np.log(np.maximum(ratio, 1e-300)) - ratio + 1))


def size_surprise(events: Floats, ratio: Floats) -> Floats:
    """How surprising mean sizes are, in nats, as multiples of those planned with."""
    return np.asarray(events * (ratio - 1 - np.log(np.maximum(ratio, 1e-300))))
