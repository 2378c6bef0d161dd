"""How `plan`, `forecast`, `simulate` and `validate` plan: their options for it, listed once, and what they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triagemq.cli import options
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.plan import Plan
    from triagemq.scenario import Scenario


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What the user says about how to plan. Every field is an option of each command that takes them."""

    priorities: options.Priorities = None
    drops: options.Drops = None
    flows: options.Flows = "greedy"
    scope: options.Scope = "port"
    seed: options.Seed = 0
    classes: options.Classes = None
    flows_per_subscriber: options.FlowsPerSubscriber = None
    rho_tolerance: options.RhoTolerance = None

    @property
    def algorithms(self) -> dict[str, Any]:
        """The algorithms, by the names that the planner has for them."""
        return {
            "flows": self.flows,
            "priorities": self.priorities or "greedy",
            "drops": self.drops or "optimal",
            "scope": self.scope,
            "seed": self.seed,
        }

    @property
    def limits(self) -> dict[str, Any]:
        """What the scenario says unless it is given here: None where it is not."""
        return {
            "priority_classes": self.classes,
            "flows_per_subscriber": self.flows_per_subscriber,
            "rho_tolerance": self.rho_tolerance,
        }

    def plan(self, scenario: Scenario, file: Path | None = None) -> Plan:
        """The plan a command works with: the one in the file, or one made now."""
        from triagemq.plan import load_plan, plan

        if file is None:
            return plan(scenario, **self.algorithms, **self.limits)
        if self.priorities is not None or self.drops is not None:
            raise ParameterError(
                "--plan", "says priorities and drops already; give either the file or the options"
            )
        stored = load_plan(file)
        stored.require(scenario)
        return stored
