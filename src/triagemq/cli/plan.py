"""`triage plan FILE`: decide flows, classes and drop rates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.options import (
    best_forecast,
    class_table,
    percent,
    print_deadlines,
    print_json,
    screen,
    utility_line,
)
from triagemq.errors import ParameterError

__all__ = ["plan"]

SHOWN_PORTS = 20


def plan(
    file: options.File,
    priorities: options.Priorities = None,
    drops: options.Drops = None,
    flows: options.Flows = "greedy",
    scope: options.Scope = "port",
    seed: options.Seed = 0,
    classes: options.Classes = None,
    flows_per_subscriber: options.FlowsPerSubscriber = None,
    rho_tolerance: options.RhoTolerance = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Save the plan (.json or .parquet).")
    ] = None,
    explain: Annotated[
        tuple[str, str] | None,
        typer.Option("--explain", metavar="SUBSCRIBER TOPIC", help="Say in words why one was decided so."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--diff", help="Say what changes from this earlier plan of the scenario.")
    ] = None,
    instructions: Annotated[
        bool,
        typer.Option("--instructions", help="Say what `triage up` would tell the gateway and the network."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Work out which flow, priority class and drop rate every subscription gets."""
    if instructions:
        if out is not None or explain is not None or against is not None:
            raise ParameterError("--instructions", "goes without --out, --explain and --diff")
        _print_instructions(
            file,
            {
                "priority_classes": classes,
                "flows_per_subscriber": flows_per_subscriber,
                "rho_tolerance": rho_tolerance,
            },
            {
                "flows": flows,
                "priorities": priorities or "greedy",
                "drops": drops or "optimal",
                "scope": scope,
                "seed": seed,
            },
            json,
        )
        return
    from triagemq.forecast import explain_with_forecast, summary
    from triagemq.plan import diff, load_plan, save_plan
    from triagemq.scenario import load

    scenario = load(file)
    made = options.plan_for(
        scenario,
        None,
        priorities=priorities,
        drops=drops,
        flows=flows,
        scope=scope,
        seed=seed,
        priority_classes=classes,
        flows_per_subscriber=flows_per_subscriber,
        rho_tolerance=rho_tolerance,
    )
    if out is not None:
        save_plan(made, out)
    if explain is not None:
        words = explain_with_forecast(scenario, made, *explain, predicted=best_forecast(scenario, made))
        if json:
            print_json({"subscriber": explain[0], "topic": explain[1], "explanation": words})
        else:
            typer.echo(words)
        return
    result = summary(scenario, made, best_forecast(scenario, made))
    if against is not None:
        result["changes"] = str(diff(load_plan(against), made, scenario)).splitlines()
    if json:
        print_json(result)
        return
    console = screen()
    console.print(_port_table(result["ports"]))
    if len(result["ports"]) > SHOWN_PORTS:
        console.print(f"... and {len(result['ports']) - SHOWN_PORTS} more ports (--json has all)")
    class_table(f"{made.made_by.priorities} priorities, {made.made_by.drops} drops", result["classes"])
    console.print(utility_line(result["utility"]))
    print_deadlines(result["deadlines"])
    for line in result.get("changes", ()):
        console.print(line)
    for decision in result["decisions"][:SHOWN_PORTS]:
        console.print(f"{decision['kind']}: {decision['subject']}: {decision['reason']}", soft_wrap=True)


def _print_instructions(
    file: Path, planning: dict[str, Any], algorithms: dict[str, Any], as_json: bool
) -> None:
    from triagemq.cli.instructions import decided, instructions, print_instructions
    from triagemq.scenario import load

    found = instructions(decided(load(file), planning, **algorithms).orders)
    if as_json:
        print_json(found)
    else:
        print_instructions(found)


def _port_table(ports: list[dict[str, float]]) -> Table:
    table = Table(title="ports", title_justify="left")
    for column in ("port", "offered load", "planned load"):
        table.add_column(column, justify="right")
    for row in ports[:SHOWN_PORTS]:
        table.add_row(str(row["port"]), percent(row["rho_offered"]), percent(row["rho_planned"]))
    return table
