"""`triage validate FILE`: forecast beside simulation for one's own scenario."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.options import duration, percent, print_json, screen, with_groups
from triagemq.cli.plan import PlannerOptions
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.lab.fidelity import Comparison

_SHOWN = 40
"""Cells in the table; --json has all."""

_WORTH_A_WORD = 0.0005
_MEANS = ("latency", "success")


@with_groups
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
    with options.progress_bar("simulating") as progress:
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
    if json:
        print_json({"scenario": scenario.name, **found.as_json()})
    else:
        periodic = bool((scenario.publications.arrival_process == ArrivalProcess.PERIODIC).any())
        _print(
            found, f"validation: {made.made_by.priorities} priorities, {made.made_by.drops} drops", periodic
        )
    if not found.holds:
        raise typer.Exit(1)


def _print(found: Comparison, title: str, periodic: bool) -> None:
    from triagemq.lab.fidelity import ALLOWED, KNOWN, TAIL_ALLOWED

    console = screen()
    table = Table(title=title, title_justify="left")
    for name in found.names:
        table.add_column(name.replace("priority_class", "class"))
    columns = (
        "success",
        "simulated",
        "latency",
        "simulated",
        "off",
        *(f"{each} off" for each in found.percentiles),
    )
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("verdict")
    rows = found.rows()
    for place in sorted(_worst_first(found)[:_SHOWN]):
        row = rows[place]
        success, latency = row["success"], row["latency"]
        table.add_row(
            *(str(row[name]) for name in found.names),
            percent(success["forecast"]),
            _with_interval(percent(success["simulated"]), success),
            duration(latency["forecast"]),
            _with_interval(duration(latency["simulated"]), latency),
            percent(latency["error"]),
            *(percent(row[name]["error"]) for name in found.percentiles),
            _verdict(row, found.figures),
        )
    console.print(table)
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


def _with_interval(words: str, figure: dict[str, Any]) -> str:
    """A simulated figure with its interval as a share of it, if that is worth a word."""
    simulated, interval = figure["simulated"], figure["ci95"]
    share = interval / simulated if simulated and interval is not None else 0.0
    return f"{words} ± {percent(share)}" if share >= _WORTH_A_WORD else words


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
