"""How queues share an uplink: in proportion to weights, and what one leaves goes to the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from triagemq.scenario import Floats, Integers

Weights = Callable[[Floats, Integers, Integers], Floats]
"""Of every queue: its stated bytes a second, its broker and its topic."""


def _equal_topics(stated: Floats, broker: Integers, topic: Integers) -> Floats:
    bundle = np.unique(np.stack([broker, topic]), axis=1, return_inverse=True)[1].ravel()
    return np.asarray(1.0 / np.bincount(bundle)[bundle])


SHARINGS: Mapping[str, Weights] = MappingProxyType(
    {
        "stated": lambda stated, broker, topic: stated,
        "topics": _equal_topics,
        "subscriptions": lambda stated, broker, topic: np.ones_like(stated),
    }
)
"""By the rates that the scenario states, so that who keeps to them never waits; every topic of a broker alike; or every
subscription alike."""

LEAST_WEIGHT = 1e-12


def shared(demand: Floats, weight: Floats, broker: Integers, capacity: Floats) -> Floats:
    """What each queue gets of its broker's capacity: weighted max-min fairness (Demers, Keshav, Shenker, 1989).

    >>> shared(np.array([1.0, 5.0, 5.0]), np.ones(3), np.zeros(3, dtype=np.int32), np.array([9.0]))
    array([1., 4., 4.])
    """
    given, left = np.zeros_like(demand), capacity.astype(np.float64).copy()
    weight = np.maximum(weight, LEAST_WEIGHT)
    waiting = np.flatnonzero(demand > 0)
    while len(waiting):
        at = broker[waiting]
        level = left / np.maximum(np.bincount(at, weight[waiting], minlength=len(left)), LEAST_WEIGHT)
        part = weight[waiting] * level[at]
        enough = demand[waiting] <= part
        if not enough.any():
            given[waiting] = part
            break
        content = waiting[enough]
        given[content] = demand[content]
        left = np.maximum(left - np.bincount(at[enough], demand[content], minlength=len(left)), 0.0)
        waiting = waiting[~enough]
    return given
