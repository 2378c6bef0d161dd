"""Estimators of queueing delay, one a file, by one contract (`contract`): samples in, mean delays out.

`red` and `idm-paper` are the paper's, as printed. `idm` is the method it meant, `backlog` reads the length where there
is one, `model` works the delay out from what comes in, and `learned` has seen what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from triagemq.delay.estimators.backlog import Backlog
from triagemq.delay.estimators.contract import Estimator
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
    "Backlog",
    "Estimator",
    "IncrementalDifference",
    "Learned",
    "PaperIncrementalDifference",
    "QueueingModel",
    "Red",
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


def make_estimator(
    name: str, counters: str, *, model: DelayModel | None = None, switch: SwitchConstants | None = None
) -> Estimator:
    """An estimator for one queue of a switch with this set of counters; `learned` takes a model, and what is known of
    the switch.

    >>> make_estimator("backlog", "openflow")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: estimator: backlog needs the length of queues, which openflow does not show; ...
    """
    shown = check_counters(counters)
    if name == "learned":
        if model is None or model.counters != counters:
            has = "there is none" if model is None else f"this one is for {model.counters}"
            raise ParameterError("estimator", f"learned needs a model for the counters of {counters}; {has}")
        return Learned(model, switch)
    if name not in ESTIMATORS:
        raise ParameterError("estimator", f"{name!r} is none; there are {', '.join(ESTIMATORS)}, learned")
    if name == "backlog" and "backlog_bytes" not in shown:
        raise ParameterError(
            "estimator", f"backlog needs the length of queues, which {counters} does not show; take idm"
        )
    return ESTIMATORS[name]()
