"""Two queues in a row charge a batch once: what a queue no longer charges because those before it have spread it.

Copies of one event that leave a lookup one after the other, or come through outbound queues of their own, reach the
next queue spread out. While it serves the first, the others are still on their way, so the time by which they are
spread (D) and the wait for one's own batch (B) overlap. With constant times the whole is the larger of the two, at any
load: the overlap is the smaller. With random times it is less where the two are alike; and beyond one's own batch, a
queue is the less loaded in bursts the further its batches are spread, until they come as if they were independent.
The constants were fitted to simulations of batches of 2 to 10 copies, spread by 0.01 to 10 transmissions, at loads
from 0.02 to 0.85 (benchmarks/fidelity.py, families fast and slow): median error 0.6 %.

For two cases no formula is known: a queue behind another that has spread its packets, and copies of one event that meet
at a port after different brokers. There the wait lies between two bounds; the middle is taken, half the range is the
error, and a sample tells more (`prediction`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triagemq.forecast.upstream import weighted
from triagemq.scenario import Floats, Integers
from triagemq.theory.cumulants import ByRow
from triagemq.theory.ladder import Ladder, build_ladder, combine_keys
from triagemq.theory.work_level import CopyBatches

_INDEPENDENT_AT, _INDEPENDENT_POWER = 1.2, 1.5
_LAST = 0.4

OVERLAP_DOUBT = 0.06
"""The share of an overlap that may be wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchAt(ByRow):
    """Columns over copies: how many others of the same event are at the queue, of higher, the same and lower class."""

    higher: Floats
    same: Floats
    lower: Floats

    @property
    def others(self) -> Floats:
        return self.higher + self.same + self.lower

    @property
    def ahead(self) -> Floats:
        """How many are served before it: all of a higher class, and half of its own."""
        return self.higher + 0.5 * self.same

    @property
    def tilt(self) -> Floats:
        """From -1 for a copy that goes first in its batch to 1 for one that goes last."""
        return (self.higher - self.lower) / (self.others + 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Spread(ByRow):
    """Columns over copies: how the copies of one event come to the next queue.

    One every `between_seconds`, of which `others` are other copies, and each `apart_seconds` late by itself.
    """

    between_seconds: Floats
    others: Floats
    apart_seconds: Floats

    @property
    def columns(self) -> tuple[Floats, Floats, Floats]:
        return self.between_seconds, self.others, self.apart_seconds

    def at(self, others: Floats, tilt: Floats | float = 0.0) -> Floats:
        """How long a copy comes after the first at a queue where only `others` of its event go too.

        Copies for other queues come in between. A copy that goes last (`tilt`) waits for the last to come.
        """
        between = self.between_seconds * (self.others + 2.0) / (others + 2.0)
        late = 0.5 * others * between + weighted(others / (others + 1.0), self.apart_seconds)
        return np.asarray(late * (1.0 + _LAST * tilt))

    def in_class_order(self, batches: BatchAt) -> Floats:
        """The same for copies that come in the order of their classes."""
        others = batches.others
        between = self.between_seconds * (self.others + 2.0) / (others + 2.0)
        return batches.ahead * between + weighted(others / (others + 1.0), self.apart_seconds)


def batch_at(queue: Integers, batch: Integers, keep: Floats, classes: Integers | None = None) -> BatchAt:
    """Who else comes with every copy; without `classes` all are of one."""
    level = np.zeros(len(queue), dtype=np.int64) if classes is None else classes.astype(np.int64)
    groups = combine_keys(queue.astype(np.int64), batch.astype(np.int64))[0]
    return _along(build_ladder(groups, level), keep)


def batch_of(batches: CopyBatches) -> BatchAt:
    """Who else comes with every copy of batches whose waits are known."""
    assert batches.together is not None
    return _along(batches.together, batches.keep)


def _along(ladder: Ladder, keep: Floats) -> BatchAt:
    """The others in every copy's batch, a group of the ladder, of which each is there with probability `keep`."""
    kept = ladder.total(keep)
    step = ladder.step_of_row
    return BatchAt(ladder.above(kept)[step], np.maximum(kept[step] - keep, 0.0), ladder.below(kept)[step])


def sharpness(scv: Floats) -> Floats:
    """How closely the overlap keeps to the smaller of two times, by the variability of service at the queue."""
    return np.asarray(2.5 * np.exp(-0.75 * scv))


def overlap(late: Floats, own: Floats, whole: Floats, power: Floats | float) -> Floats:
    """Seconds of a batch's wait that pass before it is at the queue.

    `late` is how long after the first a copy comes, `own` its wait for the others at the queue if all came together,
    `whole` what batches add to the wait in all; `power` is the sharpness.

    >>> overlap(np.array([0.1, 9.0]), np.ones(2), np.ones(2), 2.5).round(2)
    array([0.1, 1. ])
    """
    late, own = np.maximum(late, 0.0), np.maximum(own, 0.0)
    smaller, larger = np.minimum(late, own), np.maximum(late, own)
    ratio = np.divide(smaller, larger, out=np.zeros_like(smaller), where=larger > 0)
    mutual = smaller * (1.0 + ratio**power) ** (-1.0 / power)
    rest = np.maximum(whole - own, 0.0)
    apart = np.divide(late, _INDEPENDENT_AT * whole, out=np.zeros_like(late), where=whole > 0)
    apart **= _INDEPENDENT_POWER
    return np.asarray(mutual + rest * apart / (1.0 + apart))


def meeting_bound(
    port: Integers,
    topic: Integers,
    broker: Integers,
    classes: Integers,
    rate: Floats,
    keep: Floats,
    service: Floats,
) -> Floats:
    """Per copy, the most that copies of its event that come through other brokers add to its mean wait.

    They come at any time; at most all of its own class or a higher one are served before it. `rate` and `keep` are
    after drops.
    """
    if (broker == broker[:1]).all():
        return np.zeros(len(port))
    every = batch_at(port, topic, keep, classes)
    own = batch_at(port, topic.astype(np.int64) * (int(broker.max()) + 1) + broker, keep, classes)
    work = np.maximum(every.higher + every.same - own.higher - own.same, 0.0) * service
    ladder = build_ladder(port.astype(np.int64), classes.astype(np.int64))
    step, load = ladder.step_of_row, ladder.total(rate * service)
    through, above = ladder.through(load), ladder.above(load)
    level = ladder.through(ladder.total(rate * work * service))
    level = np.divide(level, 1.0 - through, out=np.zeros_like(level), where=through < 1.0)
    return np.divide(
        level[step] + work, 1.0 - above[step], out=np.zeros(len(port)), where=through[step] < 1.0
    )
