"""Estimators of queueing delay, by one contract: samples in, mean delays out.

`idm` is the incremental difference method, `backlog` reads the length where there is one, `model` computes the delay
from what comes in, `learned` is trained on what followed, and `guarded` is that one as long as it holds, and `backlog`
or `idm` otherwise. The paper's estimators, as printed, are in `lab.queue_delay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from triagemq.delay.estimators.counted import Backlog, Estimator, IncrementalDifference
from triagemq.delay.estimators.learned import Guarded, Learned, fallback_for
from triagemq.delay.estimators.model import QueueingModel
from triagemq.delay.learning.features import SwitchConstants
from triagemq.delay.learning.models import DelayModel
from triagemq.delay.samples import check_counters
from triagemq.errors import ParameterError

__all__ = [
    "ESTIMATORS",
    "LEARNED",
    "Estimator",
    "Guarded",
    "Learned",
    "fallback_for",
    "make_estimator",
]

ESTIMATORS: Mapping[str, Callable[[], Estimator]] = MappingProxyType(
    {"idm": IncrementalDifference, "backlog": Backlog, "model": QueueingModel}
)
"""Those that need nothing but samples, by name."""

LEARNED: Mapping[str, Callable[[DelayModel, SwitchConstants | None], Estimator]] = MappingProxyType(
    {"learned": Learned, "guarded": Guarded}
)
"""Those that take a model."""


def make_estimator(
    name: str,
    counters: str,
    *,
    model: DelayModel | None = None,
    switch: SwitchConstants | None = None,
    estimators: Mapping[str, Callable[[], Estimator]] = ESTIMATORS,
) -> Estimator:
    """An estimator for one queue of a switch with this set of counters.

    `learned` and `guarded` take a model; `estimators` are those that take none. What is known of the switch serves
    them, and `idm` and `model`, for which a queue never holds more than its buffer.

    >>> make_estimator("backlog", "openflow")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: estimator: backlog needs the length of queues, which openflow does not show; ...
    """
    shown = check_counters(counters)
    if name in LEARNED:
        if model is None or model.counters != counters:
            has = "there is none" if model is None else f"this one is for {model.counters}"
            raise ParameterError("estimator", f"{name} needs a model for the counters of {counters}; {has}")
        return LEARNED[name](model, switch)
    if name not in estimators:
        known = ", ".join((*estimators, *LEARNED))
        raise ParameterError("estimator", f"{name!r} is none; there are {known}")
    if name == "backlog" and "backlog_bytes" not in shown:
        raise ParameterError(
            "estimator", f"backlog needs the length of queues, which {counters} does not show; take idm"
        )
    if name in ("idm", "model") and switch is not None and not math.isnan(switch.buffer_bytes):
        return (IncrementalDifference if name == "idm" else QueueingModel)(switch.buffer_bytes)
    return estimators[name]()
