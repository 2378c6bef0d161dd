"""FireDeX (Benson et al., Middleware 2018), section 5: its figures and the experiments behind them."""

from __future__ import annotations

from triagemq.papers.buffer_configurations import BUFFER_CONFIGURATIONS
from triagemq.papers.drop_policies import DROP_POLICY_UTILITY
from triagemq.papers.experiment import Experiment
from triagemq.papers.model_accuracy import BY_LOAD, BY_SUBSCRIBERS
from triagemq.papers.utility_gains import UTILITY_GAINS

__all__ = ["FIGURES"]

FIGURES: dict[str, Experiment] = {
    "5": BY_LOAD,
    "6": BY_SUBSCRIBERS,
    "7": BUFFER_CONFIGURATIONS,
    "8": BUFFER_CONFIGURATIONS,
    "9": UTILITY_GAINS,
    "10": DROP_POLICY_UTILITY,
}
