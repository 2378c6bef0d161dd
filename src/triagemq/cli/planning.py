"""How `plan`, `forecast`, `simulate` and `validate` plan: their options for it, listed once, and what they lead to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from triagemq.cli import options
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.plan import Plan
    from triagemq.scenario import Scenario

__all__ = ["PlannerOptions", "with_planner_options"]


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
        from triagemq.forecast import plan_ahead
        from triagemq.plan import load_plan

        if file is None:
            return plan_ahead(scenario, **self.algorithms, **self.limits)
        if self.priorities is not None or self.drops is not None:
            raise ParameterError(
                "--plan", "says priorities and drops already; give either the file or the options"
            )
        plan = load_plan(file)
        plan.require(scenario)
        return plan


def with_planner_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with PlannerOptions in the place of its parameter `planner`.

    >>> def plan(file: options.File, planner: PlannerOptions, json: options.Json = False) -> None:
    ...     print(planner.drops, json)
    >>> list(inspect.signature(with_planner_options(plan)).parameters)[:3]
    ['file', 'priorities', 'drops']
    >>> with_planner_options(plan)("fire.yaml", drops="flat")
    flat False
    """
    kinds = get_type_hints(PlannerOptions, include_extras=True)
    chosen = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=kinds[each.name]
        )
        for each in fields(PlannerOptions)
    ]
    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        parameters += chosen if each.name == "planner" else [each]
    # Python wants parameters without a default first, and a Typer command is called by names alone.
    named = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) if number else each
        for number, each in enumerate(parameters)
    ]
    signature = own.replace(parameters=named)

    @functools.wraps(command)
    def run(*arguments: Any, **given: Any) -> None:
        bound = signature.bind(*arguments, **given)
        bound.apply_defaults()
        planner = PlannerOptions(**{each.name: bound.arguments.pop(each.name) for each in chosen})
        command(**bound.arguments, planner=planner)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in named}
    return run
