"""`triage forecast FILE`: predict what a plan does."""

from __future__ import annotations

from typing import Annotated

import typer

from triagemq.cli import options
from triagemq.cli.options import best_forecast, class_table, print_deadlines, print_json, screen, utility_line

__all__ = ["forecast"]


def forecast(
    file: options.File,
    plan: options.PlanFile = None,
    priorities: options.Priorities = None,
    drops: options.Drops = None,
    flows: options.Flows = "greedy",
    scope: options.Scope = "port",
    seed: options.Seed = 0,
    classes: options.Classes = None,
    flows_per_subscriber: options.FlowsPerSubscriber = None,
    rho_tolerance: options.RhoTolerance = None,
    formulas: options.Formulas = False,
    full: Annotated[bool, typer.Option("--full", help="With --json: every subscription too.")] = False,
    json: options.Json = False,
) -> None:
    """Predict success, latency and utility: from queueing formulas, and from a sample of events where none is known."""
    from triagemq.forecast import subscription_rows, summary
    from triagemq.scenario import load

    scenario = load(file)
    made = options.plan_for(
        scenario,
        plan,
        priorities=priorities,
        drops=drops,
        flows=flows,
        scope=scope,
        seed=seed,
        priority_classes=classes,
        flows_per_subscriber=flows_per_subscriber,
        rho_tolerance=rho_tolerance,
    )
    predicted = best_forecast(scenario, made, formulas=formulas)
    result = summary(scenario, made, predicted)
    if full:
        result["subscriptions"] = subscription_rows(scenario, made, predicted)
    if json:
        print_json(result)
        return
    console = screen()
    class_table(
        f"forecast: {made.made_by.priorities} priorities, {made.made_by.drops} drops", result["classes"]
    )
    console.print(utility_line(result["utility"]))
    print_deadlines(result["deadlines"])
