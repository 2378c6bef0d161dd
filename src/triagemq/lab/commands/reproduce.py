"""`triage reproduce PAPER [FIGURE]`: the papers' experiments beside what the papers printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from triagemq.cli import options, terminal

if TYPE_CHECKING:
    from triagemq.lab.papers import Files, Reproduction


def reproduce(
    paper: Annotated[str, typer.Argument(help="priodex, firedex, midas, shi or peer-wd.")],
    figure: Annotated[
        str | None, typer.Argument(help="A figure of the paper (default: list what there is).")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Scenarios to draw (default: the experiment's).")
    ] = None,
    publications: Annotated[
        int | None, typer.Option(min=1, help="Events to simulate for every seed and configuration.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Random problems, where nothing is simulated (priodex 7).")
    ] = None,
    rho: Annotated[
        list[float] | None, typer.Option(help="Load of the port (priodex 10); may be repeated.")
    ] = None,
    subscribers: Annotated[
        list[int] | None, typer.Option(min=1, help="Subscribers (priodex 10); may be repeated.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", min=1, help="Seconds of each run (with real packets; midas; peer-wd)."),
    ] = None,
    packets: Annotated[
        bool, typer.Option("--packets", help="With real packets, at rates scaled down (needs root).")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run: seconds, wider intervals.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the plots go.")] = Path("out/reproduce"),
    master: options.SparkMaster = None,
    conf: options.SparkConf = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Simulate here, one after the other, instead of on Spark.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Run an experiment of a paper: ours beside what was printed, plots, and why they differ.

    The simulations of many seeds are Spark tasks; if they are stopped, the same command goes on from there.
    """
    options.require("numba", "matplotlib", "plotly")
    from triagemq.lab.papers import OnSpark, experiment, forget_cases, write_files
    from triagemq.lab.papers import reproduce as run

    if figure is None:
        _list(paper, json=json)
        return
    experiment(paper, figure, packets=packets)
    simulations = out / f"{paper}-{figure}{'-quick' if quick else ''}-simulations"
    spark = None if in_process else OnSpark(options.spark_options(master, conf), simulations)
    if spark is not None and master is not None:
        spark = replace(spark, least_seconds=0.0)
    with terminal.progress_bar(f"{paper} {figure}") as progress:
        made = run(
            paper,
            figure,
            seeds=seeds,
            publications=publications,
            repeats=repeats,
            rho=tuple(rho) if rho else None,
            subscribers=tuple(subscribers) if subscribers else None,
            seconds=seconds,
            quick=quick,
            packets=packets,
            progress=progress,
            spark=spark,
        )
        files = write_files(out, made.name, f"{paper} {figure}: {made.title}", made.findings)
    forget_cases(simulations)
    report = {**made.as_json(), "files": {"png": str(files.png), "html": str(files.html)}}
    terminal.show(report, lambda: _print(made, files), as_json=json)
    if not made.holds:
        raise typer.Exit(1)


def _list(paper: str, *, json: bool) -> None:
    from triagemq.lab.papers import figures_of

    figures = figures_of(paper)
    rows = [{"figure": name, "title": each.title} for name, each in figures.items()]
    title, columns = f"triage reproduce {paper} FIGURE", {"figure": "figure", "title": "experiment"}
    found = {"paper": paper, "figures": rows}
    terminal.show(found, lambda: terminal.print_table(title, columns, rows), as_json=json)


def _print(made: Reproduction, files: Files) -> None:
    console = terminal.screen()
    console.print(f"{made.paper} {made.figure}: {made.title}", style="bold")
    for table in made.findings.tables:
        names = [str(number) for number in range(len(table.columns))]
        rows = [dict(zip(names, row, strict=True)) for row in table.rows]
        terminal.print_table(table.title, dict(zip(names, table.columns, strict=True)), rows)
    for difference in made.findings.differences:
        console.print(Text.assemble((difference.subject, "bold")))
        console.print(
            Text(f"  printed: {difference.printed}\n  ours:    {difference.ours}\n  {difference.why}"),
            soft_wrap=True,
        )
    for claim in made.findings.claims:
        verdict = ("holds", "green") if claim.holds else ("does not hold", "bold red")
        console.print(
            Text.assemble(verdict, f": {claim.statement}; worst case {claim.worst}"), soft_wrap=True
        )
    effort = ", ".join(f"{_number(value)} {name}" for name, value in made.effort.as_json().items())
    console.print(f"{effort}; {made.wall_seconds:.1f} s", highlight=False)
    for file in (files.png, files.html):
        console.print(str(file), highlight=False, soft_wrap=True)


def _number(value: Any) -> str:
    return " and ".join(f"{each:,}" for each in value) if isinstance(value, tuple) else f"{value:,}"
