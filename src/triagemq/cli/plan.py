"""`triage plan FILE`: decide flows, classes and drop rates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from triagemq.cli.planning import PlannerOptions, with_planner_options
from triagemq.errors import ParameterError

__all__ = ["plan"]

SHOWN_PORTS = 20


@with_planner_options
def plan(
    file: options.File,
    planner: PlannerOptions,
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
        _print_instructions(file, planner, json)
        return
    from triagemq.forecast import explanation, summary
    from triagemq.plan import diff, load_plan, save_plan
    from triagemq.scenario import load

    scenario = load(file)
    made = planner.plan(scenario)
    if out is not None:
        save_plan(made, out)
    if explain is not None:
        words = explanation(scenario, made, *explain, predicted=best_forecast(scenario, made))
        if json:
            print_json(words)
        else:
            typer.echo(words["explanation"])
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


def _print_instructions(file: Path, planner: PlannerOptions, as_json: bool) -> None:
    from triagemq.cli.instructions import decided, instructions, print_instructions
    from triagemq.scenario import load

    found = instructions(decided(load(file), planner.limits, **planner.algorithms).orders)
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
