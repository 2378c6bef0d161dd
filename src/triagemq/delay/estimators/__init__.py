"""Estimators of queueing delay, one a file, by one contract (`contract`): samples in, mean delays out.

`red` and `idm-paper` are the paper's, as printed. `idm` is the method it meant, `backlog` reads the length where there
is one, `model` works the delay out from what comes in, `learned` has seen what came of it, and `guarded` is that one as
long as it holds, and `backlog` or `idm` otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from triagemq.delay.estimators.backlog import Backlog
from triagemq.delay.estimators.contract import Estimator
from triagemq.delay.estimators.guarded import Guarded, fallback_for
from triagemq.delay.estimators.idm import IncrementalDifference
from triagemq.delay.estimators.idm_paper import PaperIncrementalDifference
from triagemq.delay.estimators.learned import Learned
from triagemq.delay.estimators.model import QueueingModel
from triagemq.delay.estimators.red import Red
from triagemq.delay.learning.features import SwitchConstants
from triagemq.delay.learning.model_files import DelayModel
from triagemq.delay.samples import check_counters
from triagemq.errors import ParameterError

__all__ = [
    "ESTIMATORS",
    "LEARNED",
    "Backlog",
    "Estimator",
    "Guarded",
    "IncrementalDifference",
    "Learned",
    "PaperIncrementalDifference",
    "QueueingModel",
    "Red",
    "fallback_for",
    "make_estimator",
]

ESTIMATORS: Mapping[str, Callable[[], Estimator]] = MappingProxyType(
    {
        "red": Red,
        "idm-paper": PaperIncrementalDifference,
        "idm": IncrementalDifference,
        "backlog": Backlog,
        "model": QueueingModel,
    }
)
"""Those that need nothing but samples, by name."""

LEARNED: Mapping[str, Callable[[DelayModel, SwitchConstants | None], Estimator]] = MappingProxyType(
    {"learned": Learned, "guarded": Guarded}
)
"""Those that take a model."""


def make_estimator(
    name: str, counters: str, *, model: DelayModel | None = None, switch: SwitchConstants | None = None
) -> Estimator:
    """An estimator for one queue of a switch with this set of counters.

    `learned` and `guarded` take a model. What is known of the switch serves them, and `idm` and `model`, for which a
    queue never holds more than its buffer; the paper's forms are as printed.

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
    if name not in ESTIMATORS:
        known = ", ".join((*ESTIMATORS, *LEARNED))
        raise ParameterError("estimator", f"{name!r} is none; there are {known}")
    if name == "backlog" and "backlog_bytes" not in shown:
        raise ParameterError(
            "estimator", f"backlog needs the length of queues, which {counters} does not show; take idm"
        )
    if switch is not None and not math.isnan(switch.buffer_bytes):
        if name == "idm":
            return IncrementalDifference(buffer_bytes=switch.buffer_bytes)
        if name == "model":
            return QueueingModel(switch.buffer_bytes)
    return ESTIMATORS[name]()
