"""Which estimator controls queues, and the learned model it stands on, which may be replaced while control runs.

A model that cannot be used is never in force: the one before it stays, or where there is none `idm` estimates. Either
is a decision, and so is what comes of it later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from triagemq.delay.estimators import Estimator, make_estimator
from triagemq.delay.learning.model_files import MODEL_NAME, DelayModel, load_model
from triagemq.errors import ModelError
from triagemq.plan import Decision

FALLBACK = "idm"
_LOOK_SECONDS = 2.0
"""How often it is looked whether there is another model."""


class Estimators:
    """Makes estimators for queues. `counters` is the set that they are fed: that of the model, or all there are.

    What people should know of the model, they hear by `say`.
    """

    def __init__(
        self,
        control: str,
        delay_model: Path | None = None,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._control = control
        self._place = delay_model
        self._say = say
        self._model: DelayModel | None = None
        self._seen: int | None = -1
        self._look_at = 0.0

    @property
    def in_force(self) -> str:
        """The name of the estimators that are made."""
        return FALLBACK if self._control == "learned" and self._model is None else self._control

    @property
    def counters(self) -> str:
        return "linux" if self._model is None else self._model.counters

    def make(self) -> Estimator:
        return make_estimator(self.in_force, self.counters, model=self._model)

    def look(self) -> list[Decision]:
        """Take the model that is there now, if it is another than before; what was decided about it."""
        if self._place is None or time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + _LOOK_SECONDS
        written = _written_ns(self._place)
        if written == self._seen:
            return []
        self._seen, before = written, self.in_force
        try:
            self._model = load_model(self._place)
            kind, reason = "model_loaded", f"{self._place}: in force, for {self._model.counters} counters"
        except ModelError as error:
            kept = (
                "the model before it stays in force" if self._model is not None else f"{FALLBACK} estimates"
            )
            kind, reason = "model_refused", f"{error}; {kept}"
        self._say(reason)
        return [Decision(kind, "delay model", before, self.in_force, reason)]


def _written_ns(place: Path) -> int | None:
    try:
        return (place / MODEL_NAME).stat().st_mtime_ns
    except OSError:
        return None
