"""`triage forecast FILE`: predict what a plan does."""

from __future__ import annotations

from typing import Annotated

import typer

from triagemq.cli import options
from triagemq.cli.groups import with_groups
from triagemq.cli.options import (
    class_table,
    forecast_with_bar,
    print_deadlines,
    print_json,
    print_promises,
    print_starved,
    screen,
    utility_line,
)
from triagemq.cli.planning import PlannerOptions


@with_groups
def forecast(
    file: options.File,
    planner: PlannerOptions,
    plan: options.PlanFile = None,
    formulas: options.Formulas = False,
    full: Annotated[bool, typer.Option("--full", help="With --json: every subscription too.")] = False,
    json: options.Json = False,
) -> None:
    """Predict success, latency and utility: from queueing formulas, and from a sample of events where none is known."""
    from triagemq.forecast import subscription_rows, summary
    from triagemq.scenario import load

    scenario = load(file)
    made = planner.plan(scenario, plan)
    predicted = forecast_with_bar(scenario, made, formulas=formulas)
    result = summary(scenario, made, predicted)
    if full:
        result["subscriptions"] = subscription_rows(scenario, made, predicted)
    if json:
        print_json(result)
        return
    console = screen()
    print_promises(result["promises"])
    class_table(
        f"forecast: {made.made_by.priorities} priorities, {made.made_by.drops} drops",
        result["classes"],
        result["basis"],
    )
    console.print(utility_line(result["utility"]))
    print_deadlines(result["deadlines"])
    print_starved(result["starved"])
