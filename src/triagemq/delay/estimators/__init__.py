"""Estimators of queueing delay, one a file, by one contract (`contract`): samples in, mean delays out.

`red` and `idm-paper` are the paper's, as printed. `idm` is the method it meant, `backlog` reads the length where there
is one, and `model` works the delay out from what comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from triagemq.delay.estimators.backlog import Backlog
from triagemq.delay.estimators.contract import Estimator
from triagemq.delay.estimators.idm import IncrementalDifference
from triagemq.delay.estimators.idm_paper import PaperIncrementalDifference
from triagemq.delay.estimators.model import QueueingModel
from triagemq.delay.estimators.red import Red
from triagemq.delay.samples import check_counters
from triagemq.errors import ParameterError

__all__ = [
    "ESTIMATORS",
    "Backlog",
    "Estimator",
    "IncrementalDifference",
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


def make_estimator(name: str, counters: str) -> Estimator:
    """An estimator for one queue of a switch with this set of counters.

    >>> make_estimator("backlog", "openflow")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: estimator: backlog needs the length of queues, which openflow does not show; ...
    """
    if name not in ESTIMATORS:
        raise ParameterError("estimator", f"{name!r} is none; there are {', '.join(ESTIMATORS)}")
    if name == "backlog" and "backlog_bytes" not in check_counters(counters):
        raise ParameterError(
            "estimator", f"backlog needs the length of queues, which {counters} does not show; take idm"
        )
    return ESTIMATORS[name]()
