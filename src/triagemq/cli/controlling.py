"""How `simulate` controls queues with widths: its options for it, and what they lead to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.plan import Plan
    from triagemq.scenario import Scenario
    from triagemq.simulate import Control


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """What the user says about control. Every field is an option."""

    control: Annotated[
        str | None,
        typer.Option(
            help="Divide ports with widths anew every 200 ms, by the delays that this estimator sees: "
            "red, idm-paper, idm, backlog, model or learned."
        ),
    ] = None
    model: Annotated[Path | None, typer.Option(help="With --control learned: the folder of a model.")] = None
    read_errors: Annotated[
        bool, typer.Option("--read-errors", help="With --control: read counters as wrongly as switches do.")
    ] = False
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            help="With --control: a cluster with a controller of its own, NAME=SWITCH,SWITCH (may be repeated)."
        ),
    ] = None
    slow_down: Annotated[
        bool,
        typer.Option(
            "--slow-down/--no-slow-down",
            help="With --control: publishers that are asked to slow down do so.",
        ),
    ] = True

    def made(self, scenario: Scenario, plan: Plan, seed: int) -> Callable[[int], Control] | None:
        """A control for each replication; None where none was asked for."""
        if self.control is None:
            if self.model is not None or self.read_errors or self.cluster:
                raise ParameterError("--control", "say by which estimator, for example --control idm")
            return None
        from triagemq.delay.learning.models import load_model
        from triagemq.delay.simulated import ControlSettings, SimulatedControl
        from triagemq.lab.queue_delay import EVERY_ESTIMATOR, ReadErrors

        model = None if self.model is None else load_model(self.model)
        counters = "linux" if self.control == "backlog" else "openflow"
        settings = ControlSettings(
            estimator=self.control,
            counters=counters if model is None else model.counters,
            model=model,
            read_errors=ReadErrors() if self.read_errors else None,
            clusters=dict(_cluster(text) for text in self.cluster or ()),
            slow_down=self.slow_down,
            estimators=EVERY_ESTIMATOR,
        )
        return lambda replication: SimulatedControl(scenario, plan, settings, seed + replication)


def _cluster(text: str) -> tuple[str, tuple[str, ...]]:
    name, found, switches = text.partition("=")
    if not (name and found and switches):
        raise ParameterError("--cluster", f"is {text!r}; write NAME=SWITCH,SWITCH")
    return name, tuple(switches.split(","))
