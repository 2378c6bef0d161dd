"""From the home broker to the output ports: outbound queues, and the lookups of managed switches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triagemq.forecast.tandem import OVERLAP_DOUBT, Spread, batch_at, overlap
from triagemq.plan.demand import total_by
from triagemq.scenario import Floats, Integers, Scenario, SendingOrder
from triagemq.theory import mm1_sojourn, priority_waits

__all__ = ["Lookup", "broker_outbound", "look_up"]

_NEARLY_SATURATED = 1e-9
_SHARPNESS = 0.9
"""Of the overlap at lookups, which are exponential and drawn for every copy (fitted, see tandem.py)."""


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Columns over copies: the share that is looked up, the time that takes, and how the batch is spread then.

    `doubtful` are the seconds of it that may be wrong.
    """

    share: Floats
    seconds: Floats
    spread: Spread
    doubtful: Floats


def broker_outbound(scenario: Scenario, notify_rate: Floats) -> tuple[Floats, Floats, Floats]:
    """Share and sojourn of one M/M/1 queue per subscriber at its home broker (PrioDeX eq. 14), and the part of the
    sojourn that copies of one event do not share: all of it, or only the wait where they are sent together by class."""
    subscriber = scenario.subscriptions.subscriber
    mu = scenario.brokers.outbound_rate_per_second[scenario.subscribers.broker]
    rate = total_by(subscriber, notify_rate, len(scenario.subscribers))
    share = np.minimum(1.0, mu / np.maximum(rate, 1e-300))
    sojourn = mm1_sojourn(rate, mu)
    apart = sojourn - 1 / mu if scenario.sending_order is SendingOrder.BY_CLASS else sojourn
    return share[subscriber], sojourn[subscriber], apart[subscriber]


def look_up(
    scenario: Scenario,
    port: Integers,
    batch: Integers,
    rate: Floats,
    present: Floats,
    packets: Floats,
    spread: Spread,
    classes: Integers | None = None,
) -> Lookup:
    """The switch's matching queue: all packets through that switch in one class, copies arriving in batches.

    PrioDeX takes one flow's rate here; a switch serves the total, and looks up packets: the `packets` of a copy come
    together and go on when the last is looked up. Lookups are drawn one by one, so copies share none. With `classes`
    the copies of one event come in that order, else in any.
    """
    switch = scenario.ports.switch[port]
    service = packets / scenario.switches.inbound_rate_per_second[switch]
    arriving, here = rate * present, np.minimum(present, 1.0)
    one_class = np.zeros(len(port), dtype=np.int64)
    wait = priority_waits(
        arriving,
        service,
        1.0 / packets,
        one_class,
        batch_topics=batch,
        keep=here,
        shared_sizes=False,
        queues=switch,
    )
    load = total_by(switch, arriving * service, len(scenario.switches))
    others = batch_at(switch, batch, here).others
    late = spread.at(others)
    single = priority_waits(arriving, service, 1.0 / packets, one_class, queues=switch)
    whole = np.subtract(wait, single, out=np.zeros_like(wait), where=np.isfinite(wait))
    passed = overlap(late, 0.5 * others * service, whole, _SHARPNESS)
    if classes is not None:
        wait = wait + (batch_at(switch, batch, here, classes).ahead - 0.5 * others) * service
    between = service / np.maximum(1.0 - load[switch], _NEARLY_SATURATED)
    left = np.divide(late - passed, late, out=np.ones_like(late), where=late > 0)
    return Lookup(
        share=np.minimum(1.0, 1.0 / np.maximum(load, 1e-300))[switch],
        seconds=wait - passed + service,
        spread=Spread(
            np.maximum(between, spread.between_seconds),
            np.maximum(others, spread.others),
            spread.apart_seconds * np.maximum(left, 0.0),
        ),
        doubtful=OVERLAP_DOUBT * passed,
    )
