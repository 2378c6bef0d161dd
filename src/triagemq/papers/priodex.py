"""PrioDeX (Bouloukakis et al., ACM TOIT 2021), section 6: its figures and the experiments behind them."""

from __future__ import annotations

from triagemq.papers.buffer_configurations import BUFFER_CONFIGURATIONS
from triagemq.papers.class_variance import CLASS_VARIANCE
from triagemq.papers.drop_policies import DROP_POLICY_UTILITY
from triagemq.papers.experiment import Experiment
from triagemq.papers.model_accuracy import BY_LOAD, BY_SUBSCRIBERS
from triagemq.papers.prototype_packets import PROTOTYPE_PACKETS

__all__ = ["FIGURES"]

FIGURES: dict[str, Experiment] = {
    "6": BUFFER_CONFIGURATIONS,
    "7": CLASS_VARIANCE,
    "8": DROP_POLICY_UTILITY,
    "9a": BY_LOAD,
    "9b": BY_SUBSCRIBERS,
    "10": PROTOTYPE_PACKETS,
}
