"""From the home broker to the output ports: outbound queues, and the lookups of managed switches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.tandem import OVERLAP_DOUBT, BatchAt, Spread, batch_at, overlap
from triagemq.forecast.upstream import Streams, weighted
from triagemq.plan.demands import total_by
from triagemq.scenario import Floats, Integers, Scenario, SendingOrder
from triagemq.theory import mm1_sojourn

_NEARLY_SATURATED = 1e-9
_SHARPNESS = 0.9
"""Of the overlap at lookups, which are exponential and drawn for every copy (fitted, see tandem.py)."""


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
