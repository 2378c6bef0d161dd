"""`triage validate FILE`: forecast beside simulation for one's own scenario."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options, terminal
from triagemq.cli.plan import PlannerOptions
from triagemq.cli.terminal import percent
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.lab.fidelity import Comparison

_SHOWN = 40
"""Cells in the table; --json has all."""

_MEANS = ("latency", "success")


@options.with_groups
def validate(
    file: options.File,
    planner: PlannerOptions,
    plan: options.PlanFile = None,
    by: Annotated[str, typer.Option("--by", help="A cell is a subscription, or a class.")] = "subscription",
    duration_seconds: Annotated[
        float | None,
        typer.Option("--for", help="Simulated seconds of each run (default: some seconds' work)."),
    ] = None,
    runs: Annotated[int, typer.Option(min=2, help="Runs that differ in their random numbers.")] = 16,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: all processors).")] = None,
    json: options.Json = False,
) -> None:
    """Forecast beside simulation, cell by cell. Exit code 1 if over 2 % of the cells are wrong and not flagged."""
    from triagemq.lab.fidelity import compare
    from triagemq.scenario import ArrivalProcess, load

    if by not in ("subscription", "class"):
        raise ParameterError("--by", f"is {by!r}; write subscription or class")
    scenario = load(file)
    made = planner.plan(scenario, plan)
    with terminal.progress_bar("simulating") as progress:
        found = compare(
            scenario,
            made,
            kind="class" if by == "class" else "subscription",
            duration_seconds=duration_seconds,
            replications=runs,
            seed=planner.seed,
            threads=threads,
            progress=progress,
        )
    periodic = bool((scenario.publications.arrival_process == ArrivalProcess.PERIODIC).any())
    title = f"validation: {made.made_by.priorities} priorities, {made.made_by.drops} drops"
    report = {"scenario": scenario.name, **found.as_json()}
    terminal.show(report, lambda: _print(found, title, periodic), as_json=json)
    if not found.holds:
        raise typer.Exit(1)


def _print(found: Comparison, title: str, periodic: bool) -> None:
    from triagemq.lab.fidelity import ALLOWED, KNOWN, TAIL_ALLOWED

    rows = found.rows()
    columns = {name: name.replace("priority_class", "class") for name in found.names} | {
        "success_rate": "success",
        "simulated_success_rate": "simulated",
        "latency_seconds": "latency",
        "simulated_latency_seconds": "simulated",
        "off_rate": "off",
        "verdict": "verdict",
    }
    cells = []
    for row in (rows[place] for place in sorted(_worst_first(found)[:_SHOWN])):
        success, latency = row["success"], row["latency"]
        cells.append(
            row
            | {
                "success_rate": success["forecast"],
                "simulated_success_rate": success["simulated"],
                "latency_seconds": latency["forecast"],
                "simulated_latency_seconds": latency["simulated"],
                "off_rate": latency["error"],
                "verdict": _verdict(row, found.figures),
            }
        )
    terminal.print_table(title, columns, cells)
    console = terminal.screen()
    if len(found) > _SHOWN:
        console.print(f"the {_SHOWN} of {len(found):,} cells that are farthest off; --json shows all")
    counts = found.counts()
    if counts["not_known"]:
        # The phases of periodic publications are drawn once for each run: a longer one knows no others.
        advice = (
            f"simulate more runs (--runs, {found.replications} this time), whose periodic publications differ in phase"
            if periodic
            else f"simulate for longer (--for, {found.simulated_seconds / found.replications:.0f} s this time)"
        )
        console.print(
            f"{counts['not_known']} cells have a figure not known within {100 * KNOWN:g} %: {advice}"
        )
    for name in found.percentiles:
        console.print(f"{name}: {_outside(found.counts((name,)), TAIL_ALLOWED)}")
    console.print(_outside(counts, ALLOWED))


def _outside(counts: dict[str, int], allowed: float) -> str:
    outside = counts["outside_unflagged"] + counts["outside_flagged"]
    return (
        f"{outside} of {counts['judged']:,} cells outside {100 * allowed:g} % + interval: "
        f"{counts['outside_flagged']} flagged, {counts['outside_unflagged']} not"
    )


def _worst_first(found: Comparison) -> list[int]:
    """Cells that are wrong without a flag, then the flagged ones that are outside, then by how far they are off."""
    import numpy as np

    errors = np.max([np.nan_to_num(found.figures[name].error) for name in _MEANS], axis=0)
    order = np.lexsort((-errors, ~found.outside_flagged(), ~found.outside_unflagged()))
    return [int(place) for place in order]


def _verdict(row: dict[str, Any], names: Iterable[str]) -> str:
    figures = {name: row[name] for name in names}
    words = [f"{name} outside" for name, figure in figures.items() if figure["outside"]]
    words += [
        f"{name} not known"
        for name, figure in figures.items()
        if name in _MEANS and figure["simulated"] is not None and not figure["known"]
    ]
    if row["flag"] is not None:
        stated = max((figure["expected_error"] or 0.0) for figure in figures.values())
        words.append(f"flagged: {row['flag']}" + (f", ± {percent(stated)}" if stated else ""))
    return "; ".join(words)
