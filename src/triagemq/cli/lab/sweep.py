"""`triage sweep FILE`: many simulations, with settings varied, as Spark tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.options import duration, percent, print_json, screen
from triagemq.plain import plain
from triagemq.progress import Bar

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_SETTINGS = 100


def sweep(
    file: options.File,
    vary: Annotated[
        list[str],
        typer.Option(
            help="NAME=FROM:TO:STEP or NAME=VALUE,VALUE; again for every name. Names: rho, bandwidth_bps, rate, "
            "buffer_packets, priorities, drops, flows, classes, flows_per_subscriber, rho_tolerance."
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Simulations of every setting, with seeds from 0.")] = 1,
    publications: Annotated[int, typer.Option(min=1, help="Events to publish in each.")] = 100_000,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", help="Where results are kept, a path or URI; what is there is not run again."
        ),
    ] = "out/sweep",
    master: options.SparkMaster = None,
    conf: options.SparkConf = None,
    json: options.Json = False,
) -> None:
    """Simulate every combination of settings with every seed; a stopped sweep continues where it was."""
    options.require("pyspark", "pandas", "numba")
    from triagemq.lab.sweep import parse_vary, run_sweep, sweep_summary
    from triagemq.scenario import load

    settings = parse_vary(vary)
    spark = options.spark_options(master, conf)
    scenario = load(file)
    started = time.monotonic()
    counted = _Counted()
    with _progress_bar(counted) as progress:
        results = run_sweep(
            scenario,
            settings,
            seeds,
            publications=publications,
            out=out,
            options=spark,
            progress=progress,
        )
    rows = _by_setting(sweep_summary(results), list(settings))
    seconds = time.monotonic() - started
    if json:
        print_json(
            {
                "scenario": scenario.name,
                "out": out,
                "simulations": counted.total,
                "simulated_now": counted.total - counted.before,
                "wall_seconds": seconds,
                "settings": rows,
            }
        )
        return
    console = screen()
    console.print(_table(f"{scenario.name}: means over {seeds} seeds, ± 95 %", rows, list(settings)))
    if len(rows) > SHOWN_SETTINGS:
        console.print(f"... and {len(rows) - SHOWN_SETTINGS} more settings (--json has all)")
    console.print(
        f"{counted.total:,} simulations, {counted.total - counted.before:,} of them now in {seconds:.1f} s; "
        f"look at them with: triage pipeline show {out} results",
        soft_wrap=True,
    )


class _Counted:
    """What the progress of a sweep says about it as a whole."""

    def __init__(self) -> None:
        self.before: int = -1
        self.total: int = 0

    def note(self, done: int, total: int) -> None:
        if self.before < 0:
            self.before = done
        self.total = total


@contextmanager
def _progress_bar(counted: _Counted) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; the time left comes from what this command itself has simulated."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    # Many simulations end at once, then none for seconds: the usual window of 30 s would make the estimate jump.
    with Bar(*columns, console=screen(stderr=True), speed_estimate_period=600) as bar:
        task = bar.add_task("starting Spark", total=None)

        def note(done: int, total: int) -> None:
            counted.note(done, total)
            # Until Spark is up and the first are done there is nothing to estimate from.
            running = done > counted.before
            bar.update(
                task, description="simulating" if running else "starting Spark", completed=done, total=total
            )

        yield note


def _by_setting(summary: pa.Table, varied: Sequence[str]) -> list[dict[str, Any]]:
    """One entry per setting with the figures of the whole, and those of its classes inside."""
    settings: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in summary.to_pylist():
        values = {name: plain(row[name]) for name in varied}
        entry = settings.setdefault(tuple(values.values()), {**values, "seeds": row["seeds"], "classes": []})
        latency = ("success_rate", "mean_latency_seconds")
        utility = ("utility_rate", "utility_rate_mean")
        if row["priority_class"] is None:
            entry.update(_figures(row, (*utility, *latency)))
        else:
            entry["classes"].append({"priority_class": row["priority_class"], **_figures(row, latency)})
    return [{"classes": entry.pop("classes"), **entry} for entry in settings.values()]


def _figures(row: dict[str, Any], names: Sequence[str]) -> dict[str, float | None]:
    return {column: row[column] for name in names for column in (name, f"{name}_ci95")}


def _table(title: str, rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in varied:
        table.add_column(name, justify="right")
    for name in ("utility", "success", "mean latency"):
        table.add_column(name, justify="right")
        table.add_column("±", justify="right", style="dim")
    for row in rows[:SHOWN_SETTINGS]:
        cells = ["none" if row[name] is None else _text(row[name]) for name in varied]
        for name, text in (
            ("utility_rate", percent),
            ("success_rate", percent),
            ("mean_latency_seconds", duration),
        ):
            cells += [text(row[name]), text(row[f"{name}_ci95"])]
        table.add_row(*cells)
    return table


def _text(value: float | int | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
