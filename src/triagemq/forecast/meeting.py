"""Copies of one event that come through several brokers to one port: still one batch, shifted by the links' delays.

A copy that comes late finds what is left of the earlier ones' work. At an idle port that is n S - d for n copies of a
transmission S and a delay d; links make the delay random, so the mean over an exponential one is taken. At a busy port
the earlier copies are still in the queue, and are forgotten only as the queue forgets. A copy that comes early is
overtaken by later ones of higher classes as long as it still waits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.tandem import batch_at
from triagemq.scenario import Floats, Integers
from triagemq.theory.ladder import build_ladder

__all__ = ["met_waits"]

_NONE, _BUSIEST = 1e-12, 0.999
_DOUBT = 0.3


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
    return wait, _DOUBT * np.where(np.isfinite(wait), wait, 0.0)


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
