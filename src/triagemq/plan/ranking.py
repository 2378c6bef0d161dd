"""What a subscription is ranked by when flows and classes are cut (PrioDeX eq. 20, FireDeX 5.4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triagemq.scenario import Floats, Subscriptions, maximum_utility

__all__ = ["Ranking", "value", "value_per_byte"]

Ranking = Callable[[Subscriptions, Floats], Floats]
"""(subscriptions, load in bytes per second of each) -> rank of each, higher is better."""


def value_per_byte(subscriptions: Subscriptions, load_bytes_per_second: Floats) -> Floats:
    """Worth of all events over the bandwidth they take: U_r(1) / (size * notify rate), PrioDeX eq. (20).

    A subscription that no event reaches takes no bandwidth and gains nothing from any class: it ranks 0, so
    that sums of ranks stay finite.

    >>> from triagemq.plan.drops.problem import subscription_columns
    >>> wanted = subscription_columns(weight=[1.0, 1.0, 1.0], shape="linear")
    >>> value_per_byte(wanted, np.array([10.0, 1000.0, 0.0])).tolist()
    [0.1, 0.001, 0.0]
    """
    worth = maximum_utility(subscriptions)
    loaded = load_bytes_per_second > 0
    return np.divide(worth, load_bytes_per_second, out=np.zeros_like(worth), where=loaded)


def value(subscriptions: Subscriptions, load_bytes_per_second: Floats) -> Floats:
    """Worth of everything, U_r(1), whatever bandwidth it takes: the naive rank of `info` (FireDeX 5.4).

    >>> from triagemq.plan.drops.problem import subscription_columns
    >>> value(subscription_columns(weight=[1.0, 3.0], shape="linear"), np.array([10.0, 0.0])).tolist()
    [1.0, 3.0]
    """
    return maximum_utility(subscriptions)
