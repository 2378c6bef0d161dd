"""Two queues in a row charge a batch once: what a queue no longer charges because those before it have spread it.

Copies of one event that leave a lookup one after the other, or come through outbound queues of their own, reach the
next queue spread out. While it serves the first, the others are still on their way, so the time by which they are
spread (D) and the wait for one's own batch (B) overlap. With constant times the whole is the larger of the two, at any
load: the overlap is the smaller. With random times it is less where the two are alike; and beyond one's own batch, a
queue is the less loaded in bursts the further its batches are spread, until they come as if they were independent.
The constants were fitted to simulations of batches of 2 to 10 copies, spread by 0.01 to 10 transmissions, at loads
from 0.02 to 0.85 (benchmarks/fidelity.py, families fast and slow): median error 0.6 %.

Copies of one event that come through several brokers to one port are still one batch, shifted by the links' delays
(`met_waits`). A copy that comes late finds what is left of the earlier ones' work. At an idle port that is n S - d for
n copies of a transmission S and a delay d; links make the delay random, so the mean over an exponential one is taken.
At a busy port the earlier copies are still in the queue, and are forgotten only as the queue forgets. A copy that comes
early is overtaken by later ones of higher classes as long as it still waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.upstream import weighted
from triagemq.scenario import Floats, Integers
from triagemq.theory.cumulants import ByRow
from triagemq.theory.ladder import Ladder, build_ladder, combine_keys
from triagemq.theory.work_level import CopyBatches

_INDEPENDENT_AT, _INDEPENDENT_POWER = 1.2, 1.5
_LAST = 0.4
_NONE, _BUSIEST = 1e-12, 0.999
_MEETING_DOUBT = 0.3

OVERLAP_DOUBT = 0.06
"""The share of an overlap that may be wrong."""
_ENDLESS_SECONDS = 1e9
"""Stands for a delay without end."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Before(ByRow):
    """Columns over copies: the slowest queue that they have crossed, a link, an unmanaged switch or a trunk.

    The mean wait there, the service time of one event or copy, the load, and the copies of the same event ahead.
    """

    wait_seconds: Floats
    service_seconds: Floats
    load: Floats
    ahead: Floats


def slower(one: Before, two: Before) -> Before:
    """The slower of two queues, copy by copy; the first where they are alike."""
    second = two.service_seconds > one.service_seconds
    return Before(
        np.where(second, two.wait_seconds, one.wait_seconds),
        np.where(second, two.service_seconds, one.service_seconds),
        np.where(second, two.load, one.load),
        np.where(second, two.ahead, one.ahead),
    )


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


def passed_before(
    before: Before,
    wait: Floats,
    batches: BatchAt,
    service: Floats,
    load: Floats,
    scv: Floats,
    *,
    copied: bool,
) -> tuple[Floats, Floats]:
    """Seconds of the wait at a queue that passed at the one before it, and how many of them are in doubt.

    What comes through one queue comes spaced by its service times, so that the wait for one's own predecessors is
    over, in part, when one comes to the next. `copied` says that the queue before has carried every copy by itself.
    """
    carried = np.ones_like(wait) if copied else batches.others + 1.0
    share = np.divide(
        load * before.service_seconds,
        before.load * service * carried,
        out=np.zeros_like(wait),
        where=before.load > 0,
    )
    share = np.minimum(share, 1.0)
    wait = np.where(np.isfinite(wait), wait, 0.0)
    waited = np.where(np.isfinite(before.wait_seconds), before.wait_seconds, 0.0)
    own = batches.ahead * service
    apart = before.service_seconds * (before.ahead + 1.0) / (batches.ahead + 1.0)
    batch = np.minimum(0.9 * batches.ahead * apart, own) if copied else np.zeros_like(wait)
    others = np.maximum(waited - before.ahead * before.service_seconds, 0.0)
    between = share * others
    weight = np.divide(
        between, between + 0.85 * before.service_seconds, out=np.zeros_like(wait), where=between > 0
    )
    earlier = others * weight
    left = np.maximum(wait - own, 0.0)
    smaller, larger = np.minimum(earlier, left), np.maximum(earlier, left)
    ratio = np.divide(smaller, larger, out=np.zeros_like(smaller), where=larger > 0)
    mutual = (1.0 if copied else 0.5) * smaller * (1.0 + ratio**5) ** -0.2 * np.exp(-0.45 * scv)
    # A large packet is met twice by a small one behind it, unless the second queue is much the faster.
    alike = np.minimum(1.0, (2.0 * service / (service + before.service_seconds)) ** 2)
    again = (0.28 * scv - 0.12) * share * alike * before.service_seconds
    # Fitted to what simulations of trees and tandems differ by.
    doubtful = 0.1 * smaller + share * (
        0.17 * np.minimum(before.service_seconds, service) + 0.18 * alike * scv * before.service_seconds
    )
    if copied:
        doubtful += 0.04 * wait * np.minimum(1.0, 20.0 * before.service_seconds / service)
    return batch + mutual - again, doubtful


def met_waits(
    port: Integers,
    topic: Integers,
    broker: Integers,
    classes: Integers,
    rate: Floats,
    keep: Floats,
    delay: Floats,
    service: Floats,
) -> tuple[Floats, Floats]:
    """Per copy, the mean wait for copies of its event that come through other brokers, and the seconds in doubt.

    `rate` and `keep` are after drops, `delay` is the mean time that events take to each copy's broker.
    """
    if (broker == broker[:1]).all():
        return np.zeros(len(port)), np.zeros(len(port))
    # What an overloaded queue delays without end meets nothing.
    delay = np.minimum(np.nan_to_num(delay, posinf=_ENDLESS_SECONDS), _ENDLESS_SECONDS)
    brokers, topics = int(broker.max()) + 1, int(topic.max()) + 1
    every = batch_at(port, topic, keep, classes)
    own_batch = topic.astype(np.int64) * brokers + broker
    own = batch_at(port, own_batch, keep, classes)
    higher, same, lower = every.higher - own.higher, every.same - own.same, every.lower - own.lower
    others = every.others - own.others
    group = port.astype(np.int64) * topics + topic
    elsewhere = _total(group, keep * delay) - _total(group * brokers + broker, keep * delay)
    late = delay - np.divide(elsewhere, others, out=delay.copy(), where=others > _NONE)
    ladder = build_ladder(port.astype(np.int64), classes.astype(np.int64))
    step = ladder.step_of_row
    load = ladder.total(rate * service)
    through, above = ladder.through(load), ladder.above(load)
    busy = np.minimum(through + ladder.below(load), _BUSIEST)[step]
    before = np.where(
        others > _NONE, (higher + same) * _left(late, (higher + same) * service, service, busy), 0.0
    )
    waiting = (own.ahead + busy / (1.0 - busy)) * service
    after = higher * np.divide(waiting, waiting - late, out=np.ones_like(late), where=late < 0)
    ahead = np.where(late > 0, before, np.where(late < 0, after, higher + 0.5 * same))
    # At an idle port the earlier ones of lower classes have begun: of one of them a part is left.
    begun = np.where(late < service, service - late, 0.5 * service) * _left(
        late, others * service, service, busy
    )
    blocked = np.where(
        (late > 0) & (lower > _NONE), (1.0 - busy) * begun * lower / np.maximum(others, _NONE), 0.0
    )
    work = ahead * service + blocked
    level = ladder.through(ladder.total(rate * work * service))
    level = np.divide(level, 1.0 - through, out=np.full_like(level, np.inf), where=through < 1.0)
    wait = np.full(len(port), np.inf)
    np.divide(level[step] + work, 1.0 - above[step], out=wait, where=through[step] < 1.0)
    return wait, _MEETING_DOUBT * np.where(np.isfinite(wait), wait, 0.0)


def _left(late: Floats, work: Floats, service: Floats, busy: Floats) -> Floats:
    """The share of some work that is left at a port so much later; 1 for what does not come later."""
    late = np.maximum(late, 0.0)
    turns = np.divide(work, late, out=np.zeros_like(work), where=late > 0)
    idle = 1.0 - np.divide(-np.expm1(-turns), turns, out=np.ones_like(turns), where=turns > 0)
    forgotten = np.exp(-late / (work + service / (1.0 - busy) ** 2))
    return np.where(late > 0, (1.0 - busy) * idle + busy * forgotten, 1.0)


def _total(group: NDArray[np.int64], values: Floats) -> Floats:
    place = np.unique(group, return_inverse=True)[1]
    return np.asarray(np.bincount(place, values), dtype=np.float64)[place]
