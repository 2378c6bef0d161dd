"""Which estimator controls queues, and the learned model it stands on, which may be replaced while control runs.

A model that cannot be used is never in force: the one before it stays, or where there is none `backlog` estimates. So
it does (`idm` where queues do not show their length) for a queue that is unlike all that a model was trained with.
Either is a decision, and so is what comes of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.estimators import Estimator, Guarded, fallback_for, make_estimator
from triagemq.delay.learning.features import SwitchConstants
from triagemq.delay.learning.models import MODEL_NAME, DelayModel, load_model, model_folders
from triagemq.delay.learning.training import switch_constants
from triagemq.errors import ModelError
from triagemq.plan import Decision
from triagemq.scenario import load

_LOOK_SECONDS = 2.0
"""How often it is looked whether there is another model."""


class Estimators:
    """Makes estimators for queues. `counters` is the set that they are fed: that of the model, or all there are.

    What people should know of the model, they hear by `say`. What is known of switches stands in `scenario`, a file.
    """

    def __init__(
        self,
        control: str,
        delay_model: Path | None = None,
        say: Callable[[str], None] = lambda words: None,
        scenario: str | None = None,
    ) -> None:
        self._control = control
        self._place = delay_model
        self._say = say
        self._model: DelayModel | None = None
        self._seen: tuple[Path, int] | None = (Path(), 0)
        # By port those that may fall back, class 0 first, and why each has.
        self._guarded: dict[str, list[tuple[Guarded, str | None]]] = {}
        self._look_at = 0.0
        self._switches: dict[str, SwitchConstants] = {} if scenario is None else _switches(scenario)

    @property
    def in_force(self) -> str:
        """The name of the estimators that are made."""
        return (
            fallback_for(self.counters)
            if self._control == "learned" and self._model is None
            else self._control
        )

    @property
    def counters(self) -> str:
        return "linux" if self._model is None else self._model.counters

    def make(self, port: str) -> Callable[[], Estimator]:
        """Makes those of a port's queues, one after the other."""
        self._guarded.pop(port, None)
        name = "guarded" if self.in_force == "learned" else self.in_force

        def one() -> Estimator:
            made = make_estimator(name, self.counters, model=self._model, switch=self._switches.get(port))
            if isinstance(made, Guarded):
                self._guarded.setdefault(port, []).append((made, None))
            return made

        return one

    def measured(self, port: str, packets: NDArray[np.void]) -> None:
        """How long packets waited in the queues of a port, for those estimators that compare it with what they said."""
        waited = (packets["dequeued_ns"] - packets["enqueued_ns"]) * 1e-9
        for queue, (guarded, _) in enumerate(self._guarded.get(port, ())):
            own = packets["priority_class"] == queue
            guarded.measured(packets["enqueued_ns"][own], waited[own])

    def drift(self, port: str) -> list[Decision]:
        """Queues of a port that the model is left for, or taken again."""
        news = []
        for queue, (guarded, before) in enumerate(self._guarded.get(port, ())):
            now = guarded.fallen_back
            if (now is None) != (before is None):
                self._guarded[port][queue] = guarded, now
                words = now or "what came is like its training again, and what it says of it is right"
                names = ("learned", guarded.fallback) if now else (guarded.fallback, "learned")
                news.append(Decision("model_drifted", f"{port} class {queue}", *names, words))
        return news

    def look(self) -> list[Decision]:
        """Take the model that is there now, if it is another than before; what was decided about it."""
        if self._place is None or time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + _LOOK_SECONDS
        found = _found(self._place)
        if found == self._seen:
            return []
        self._seen, before = found, self.in_force
        place = self._place if found is None else found[0]
        try:
            self._model = load_model(place)
            kind, reason = "model_loaded", f"{place}: in force, for {self._model.counters} counters"
        except ModelError as error:
            kept = (
                "the model before it stays in force"
                if self._model is not None
                else f"{self.in_force} estimates"
            )
            kind, reason = "model_refused", f"{error}; {kept}"
        self._say(reason)
        return [Decision(kind, "delay model", before, self.in_force, reason)]


def _switches(scenario: str) -> dict[str, SwitchConstants]:
    """By port."""
    found = load(scenario)
    return {name: switch_constants(found, row) for row, name in enumerate(found.ports.name)}


def _found(place: Path) -> tuple[Path, int] | None:
    """The folder of a model, itself or the newest for these queues below it, and when it was written."""
    folder = place if (place / MODEL_NAME).exists() else next(reversed(model_folders(place, "linux")), place)
    try:
        return folder, (folder / MODEL_NAME).stat().st_mtime_ns
    except OSError:
        return None
