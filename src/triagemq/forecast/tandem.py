"""From the home broker to the output ports: outbound queues, the lookups of managed switches, and queues in a row.

Queues in a row charge a batch once. Copies of one event that leave a lookup one after the other, or come through
outbound queues of their own, reach the next queue spread out. While it serves the first, the others are still on
their way, so the time by which they are spread (D) and the wait for one's own batch (B) overlap. With constant times
the whole is the larger of the two, at any load: the overlap is the smaller. With random times it is less where the
two are alike; and beyond one's own batch, a queue is the less loaded in bursts the further its batches are spread,
until they come as if they were independent. The constants were fitted to simulations of batches of 2 to 10 copies,
spread by 0.01 to 10 transmissions, at loads from 0.02 to 0.85 (benchmarks/fidelity.py, families fast and slow):
median error 0.6 %.

For two cases no formula is known: a queue behind another that has spread its packets, and copies of one event that meet
at a port after different brokers. There the wait lies between two bounds; the middle is taken, half the range is the
error, and a sample says more (`prediction`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.upstream import Streams, weighted
from triagemq.plan.demands import total_by
from triagemq.scenario import Floats, Integers, Scenario, SendingOrder
from triagemq.theory import mm1_sojourn
from triagemq.theory.cumulants import ByRow
from triagemq.theory.ladder import Ladder, build_ladder, combine_keys
from triagemq.theory.waits import CopyBatches

_NEARLY_SATURATED = 1e-9
_SHARPNESS = 0.9
"""Of the overlap at lookups, which are exponential and drawn for every copy (fitted, see tandem.py)."""
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
    present = ladder.total(keep)
    step = ladder.step_of_row
    return BatchAt(
        ladder.above(present)[step], np.maximum(present[step] - keep, 0.0), ladder.below(present)[step]
    )


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


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Columns over copies: the share that is looked up, the time that takes, and how the batch is spread then.

    `doubtful` are the seconds of it that may be wrong, `irregular` those because arrivals are not Poisson.
    """

    share: Floats
    seconds: Floats
    spread: Spread
    doubtful: Floats
    irregular: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Lookups:
    """The matching queues of the switches before some ports: all packets through a switch in one class.

    Columns over switches are the load, Pollaczek and Khinchine's wait, what batches add to it for all and how much of
    both may be wrong because arrivals are not Poisson; columns over copies the switch, the lookups of a copy's packets
    and the others of its event; `in_class_order` says that these come in the order of their classes, else they come in
    any.
    """

    load: Floats
    alone_seconds: Floats
    batches_seconds: Floats
    irregular_seconds: Floats
    switch: Integers
    service_seconds: Floats
    along: BatchAt
    in_class_order: bool

    def look_up(self, copies: NDArray[np.int64], spread: Spread) -> Lookup:
        """What becomes of some of the copies, which come so spread."""
        switch, service = self.switch[copies], self.service_seconds[copies]
        along, load = self.along[copies], self.load[switch]
        others = along.others
        own = 0.5 * others * service
        late, whole = spread.at(others), self.batches_seconds[switch] + own
        passed = overlap(late, own, np.where(load < 1.0, whole, 0.0), _SHARPNESS)
        wait = self.alone_seconds[switch] + whole
        if self.in_class_order:
            wait += (along.ahead - 0.5 * others) * service
        between = service / np.maximum(1.0 - load, _NEARLY_SATURATED)
        left = np.divide(late - passed, late, out=np.ones_like(late), where=late > 0)
        return Lookup(
            share=np.minimum(1.0, 1.0 / np.maximum(load, 1e-300)),
            seconds=wait - passed + service,
            spread=Spread(
                np.maximum(between, spread.between_seconds),
                np.maximum(others, spread.others),
                spread.apart_seconds * np.maximum(left, 0.0),
            ),
            doubtful=OVERLAP_DOUBT * passed,
            irregular=self.irregular_seconds[switch],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Outbound:
    """Columns over subscriptions: share and sojourn at the subscriber's outbound queue, and of the sojourn the part
    that copies of one event do not share, and the part that may be wrong because arrivals are not Poisson."""

    share: Floats
    seconds: Floats
    apart_seconds: Floats
    doubtful_seconds: Floats


def broker_outbound(scenario: Scenario, arriving: Streams) -> Outbound:
    """One queue per subscriber at its home broker (PrioDeX eq. 14), M/M/1 but for the variability of what arrives.

    `arriving` has a stream per subscription. Copies that are sent together by class share their service.
    """
    subscriber = scenario.subscriptions.subscriber
    mu = scenario.brokers.outbound_rate_per_second[scenario.subscribers.broker]
    rate = total_by(subscriber, arriving.rate, len(scenario.subscribers))
    share = np.minimum(1.0, mu / np.maximum(rate, 1e-300))
    factor, doubt = arriving.at(subscriber).factor(rate / mu, np.ones(len(rate)))
    waited = mm1_sojourn(rate, mu) - 1 / mu
    sojourn = 1 / mu + weighted(waited, factor)
    apart = sojourn - 1 / mu if scenario.sending_order is SendingOrder.BY_CLASS else sojourn
    return Outbound(*(each[subscriber] for each in (share, sojourn, apart, weighted(doubt, waited))))


def lookups(
    scenario: Scenario,
    port: Integers,
    batch: Integers,
    arriving: Streams,
    present: Floats,
    packets: Floats,
    classes: Integers | None = None,
) -> Lookups:
    """The matching queues before these copies' ports.

    PrioDeX takes one flow's rate here; a switch serves the total, and looks up packets: the `packets` of a copy come
    together and go on when the last is looked up. `arriving` has the stream of each copy's event. Lookups are drawn one
    by one, so copies share none. With `classes` the copies of one event come in that order, else in any.
    """
    count = len(scenario.switches)
    switch = scenario.ports.switch[port]
    service = packets / scenario.switches.inbound_rate_per_second[switch]
    along = batch_at(switch, batch, np.minimum(present, 1.0), classes)
    busy = arriving.rate * present * service
    load = total_by(switch, busy, count)
    # Half of the others of an event are before any of its copies, in the mean.
    alone, batches = (
        np.divide(total_by(switch, work, count), 1.0 - load, out=np.full(count, np.inf), where=load < 1.0)
        for work in (0.5 * busy * (1.0 + 1.0 / packets) * service, 0.5 * busy * along.others * service)
    )
    # One event's copies are one stream, however many there are.
    _, first = np.unique(switch.astype(np.int64) << 32 | batch, return_index=True)
    streams = arriving.of(first).at(switch[first])
    factor, doubt = streams.factor(load, np.ones(count))
    return Lookups(
        load,
        weighted(alone, factor),
        weighted(batches, factor),
        weighted(doubt, alone + batches),
        switch,
        service,
        along,
        in_class_order=classes is not None,
    )
