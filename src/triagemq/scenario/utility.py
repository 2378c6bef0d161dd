"""What a delivered share of a topic is worth: log, linear and step utilities, and what lateness leaves of them."""

from __future__ import annotations

import numpy as np

from triagemq.scenario.kinds import UtilityShape
from triagemq.scenario.model import Floats, Subscriptions


def achieved_utility(
    subscriptions: Subscriptions,
    success: Floats,
    latency_seconds: Floats | None = None,
    share_within: Floats | None = None,
) -> Floats:
    """The utility of every subscription at the given success rates (PrioDeX eq. 19 and its siblings).

    log: weight * log(1 + x); linear: weight * x; step: weight where x reaches the threshold, else nothing.
    With latencies, each is multiplied by exp(-latency / freshness); an infinite latency is worth nothing to a
    subscription that asks for freshness, and does not matter to the others. With the share of what arrives that comes
    within each one's max_latency_seconds, those that ask for a share are worth as much of it as they get.

    >>> import numpy as np
    >>> from triagemq.scenario.building import building
    >>> wanted = building().subscriptions
    >>> everything = achieved_utility(wanted, np.ones(len(wanted)))
    >>> of_logs = wanted.utility_shape == UtilityShape.LOG
    >>> bool(np.allclose(everything[of_logs], wanted.utility_weight[of_logs] * np.log(2)))
    True
    """
    shape, weight = subscriptions.utility_shape, subscriptions.utility_weight
    worth = np.where(
        shape == UtilityShape.LOG,
        np.log1p(success),
        np.where(
            shape == UtilityShape.LINEAR,
            success,
            # A hair of tolerance: a plan that keeps exactly the threshold must not lose it to rounding.
            success >= subscriptions.utility_threshold * (1 - 1e-12),
        ),
    )
    if latency_seconds is not None and np.isfinite(subscriptions.freshness_seconds).any():
        fresh = np.isfinite(subscriptions.freshness_seconds)
        late = np.where(fresh, latency_seconds, 0.0)
        worth = worth * np.exp(-late / subscriptions.freshness_seconds)
    if share_within is not None:
        worth = worth * deadline_factor(subscriptions, share_within)
    return np.asarray(weight * worth, dtype=np.float64)


def deadline_factor(subscriptions: Subscriptions, share_within: Floats) -> Floats:
    """What is left of a worth when such a share comes in time: the part of the share that is requested, at most all."""
    requested = subscriptions.max_latency_share
    part = np.ones(len(requested))
    np.divide(np.nan_to_num(share_within), requested, out=part, where=requested > 0)
    return np.minimum(part, 1.0)


def deadline_figures(subscriptions: Subscriptions, share_within: Floats) -> dict[str, int]:
    """How many subscriptions ask for a share within a latency, and how many of them get it."""
    requested = subscriptions.max_latency_share
    timed = requested > 0
    met = np.nan_to_num(share_within[timed]) >= requested[timed]
    return {"judged": int(timed.sum()), "met": int(met.sum())}


def maximum_utility(subscriptions: Subscriptions) -> Floats:
    """The utility of every subscription when all its events arrive at once: U_r(1)."""
    return achieved_utility(subscriptions, np.ones(len(subscriptions)))
