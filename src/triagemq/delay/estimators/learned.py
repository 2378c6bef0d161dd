"""learned: trees that have seen what delay followed on which samples (Shi et al., section 5)."""

from __future__ import annotations

import math

import numpy as np

from triagemq.delay.learning.features import FeatureHistory, SwitchConstants, feature_names
from triagemq.delay.learning.model_files import DelayModel
from triagemq.delay.samples import COUNTER_SETS, Sample
from triagemq.errors import ParameterError


class Learned:
    """What the trees of a model say of the features of the samples so far.

    They are trained for the window that comes next; of the one that ended they are asked nothing else. A queue that
    was silent for a window holds nothing, whatever trees say.
    """

    def __init__(self, model: DelayModel, switch: SwitchConstants | None = None) -> None:
        self._model = model
        self._history = FeatureHistory(model.counters, switch)
        self.features = np.full(len(feature_names(model.counters)), np.nan, np.float32)
        """Those of the last sample."""
        self._seconds = 0.0

    def feed(self, sample: Sample) -> None:
        if "backlog_bytes" in COUNTER_SETS[self._model.counters] and sample.backlog_bytes is None:
            raise ParameterError(
                "learned", "the model is for switches that show the backlog; this one does not"
            )
        self.features = self._history.add(sample)
        gained = self._history.gained
        if gained is None:
            return
        idle = gained.silent or math.isinf(sample.width_bps)
        self._seconds = 0.0 if idle else self._model.delay_seconds(self.features)

    @property
    def silent(self) -> bool:
        """Whether nothing came and nothing went in the last window."""
        gained = self._history.gained
        return gained is not None and gained.silent

    @property
    def now_seconds(self) -> float:
        return self._seconds

    @property
    def next_seconds(self) -> float:
        return self._seconds
