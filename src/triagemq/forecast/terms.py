"""What subscriptions state besides worth: thinned to a rate, the newest only, nothing that has expired.

What passes a thinning of Poisson arrivals, how long it is held back, and the tail of a wait are formulas. None is known
of queues that copies leave unsent: the error to expect is the share of copies that do, and a sample says more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from triagemq.forecast.model import CLAIMED, ErrorEstimate, Reason
from triagemq.plan.demands import Demand, sum_by
from triagemq.scenario import Floats, Integers, Scenario
from triagemq.theory import Cumulants, LatencyDistribution, held_back_seconds, share_within

_REGULAR_DOUBT = 0.5
"""The part of the time in queues that may be wrong where all but nothing of a stream is thinned: it is regular then."""

_HELD_DOUBT = 0.1
"""The part of the time for which copies are held back that tails do not know of."""

_BESIDE_DOUBT = 0.25
"""The part of a latency that may be wrong at a port of which it is not known how busy the last classes keep it."""

_NEARLY_SATURATED = 0.999

_NOTHING = CLAIMED / 10
"""A share of copies that leave queues unsent and change nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Thinned:
    """Columns over subscriptions: the share of notifications that passes, and how long those are held back."""

    share: Floats
    seconds: Floats

    @classmethod
    def of(cls, scenario: Scenario, demanded: Demand, arriving: Floats) -> Thinned:
        """Of what arrives at the home brokers, where they may be slower than the demand."""
        most = scenario.subscriptions.max_rate_per_second
        share = np.divide(
            demanded.notify_rate, arriving, out=np.ones_like(arriving), where=arriving > demanded.notify_rate
        )
        limited = np.isfinite(most)
        seconds = np.zeros(len(most))
        seconds[limited] = held_back_seconds(arriving[limited], most[limited])
        return cls(np.where(limited, share, 1.0), seconds)


def leave_unsent(
    scenario: Scenario,
    level: Integers,
    demanded: Demand,
    errors: ErrorEstimate,
    thinned: Thinned,
    queued_seconds: Floats,
    received: Floats,
    latency: Floats,
    times: LatencyDistribution,
) -> tuple[Floats, Floats]:
    """The rate received and the latency, where copies are too old when their turn comes, or give their place away.

    `queued_seconds` is the time from the home broker to the subscriber. What expires leaves its time to others: where
    a share p would wait longer in an M/G/1 queue of load rho, (1 - rho) p / (1 - rho p) does (de Kok and Tijms 1985).
    Where such copies wait in an overloaded port, no latency there grows without end: it is unknown by formula.
    """
    wanted = scenario.subscriptions
    limited = np.flatnonzero(thinned.share < 1.0)
    regular = _REGULAR_DOUBT * (1.0 - thinned.share[limited]) * queued_seconds[limited]
    errors.add(Reason.TERMS, limited, seconds=regular + _HELD_DOUBT * thinned.seconds[limited])
    newest, expiring = wanted.newest_only > 0, np.isfinite(wanted.expires_seconds)
    leaving = newest | expiring
    if not leaving.any():
        return received, latency
    port = scenario.subscribers.port[wanted.subscriber]
    relieved = np.isin(port, port[leaving & np.isinf(latency)])
    latency = np.where(relieved & np.isinf(latency), np.nan, latency)
    known = np.isfinite(latency)
    bandwidth = scenario.ports.bandwidth_bps / 8
    bytes_per_second = received * demanded.sizes.event_bytes
    load = _before(port, level, bytes_per_second, bandwidth)
    expired = np.zeros(len(wanted))
    rows = np.flatnonzero(expiring & known)
    seconds = demanded.delivered.last_packet_bytes[rows] / bandwidth[port[rows]]
    sending = Cumulants.service(seconds, demanded.sizes.event_scv[rows])
    late = 1.0 - share_within(_without(times[rows], sending), wanted.expires_seconds[rows])
    busy = np.minimum(load[rows], _NEARLY_SATURATED)
    expired[rows] = late * (1.0 - busy) / (1.0 - busy * late)
    waiting = np.where(newest & known, received, 0.0) * np.where(known, queued_seconds, 0.0)
    unsent = np.maximum(expired, waiting / (1.0 + waiting))
    # What leaves unsent is work that nothing waits for; near saturation a little of it is most of the wait.
    left = _before(port, level, bytes_per_second * unsent, bandwidth)
    shorter = np.divide(left, np.maximum(1.0 - load, 0.0) + left, out=np.zeros(len(left)), where=left > 0)
    rows = np.flatnonzero(known & (np.maximum(shorter, unsent) > _NOTHING))
    effect = np.maximum(shorter, unsent)[rows]
    errors.add(Reason.TERMS, rows, seconds=effect * latency[rows], success=expired[rows])
    errors.add(Reason.TERMS, np.flatnonzero(relieved & np.isnan(latency)), seconds=np.nan)
    beside = np.flatnonzero(relieved & known)
    errors.add(Reason.TERMS, beside, seconds=_BESIDE_DOUBT * latency[beside])
    return received * (1.0 - np.where(expired > _NOTHING, expired, 0.0)), latency


def _before(port: Integers, level: Integers, bytes_per_second: Floats, bandwidth: Floats) -> Floats:
    """The load of every copy's port by its own class and those before it."""
    loads = sum_by(port, level, (len(bandwidth), int(level.max(initial=0)) + 1), bytes_per_second)
    return np.asarray((loads.cumsum(axis=1) / bandwidth[:, None])[port, level])


def _without(times: LatencyDistribution, sending: Cumulants) -> LatencyDistribution:
    """The times until the last transmission begins."""
    quiet, busy = (
        replace(left, variance=np.maximum(left.variance, 0.0), third=np.maximum(left.third, 0.0))
        for left in (times.quiet - sending, times.busy - sending)
    )
    return replace(times, quiet=quiet, busy=busy)
