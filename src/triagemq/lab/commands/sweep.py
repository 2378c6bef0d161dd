"""`triage sweep FILE`: many simulations, with settings varied, as Spark tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options, terminal
from triagemq.plain import plain

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_SETTINGS = 100
_FIGURES = {"utility_rate": "utility", "success_rate": "success", "mean_latency_seconds": "mean latency"}


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
            "--out", "-o", help="Where results are stored, a path or URI; what is there is not run again."
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
    counts: list[tuple[int, int]] = []
    with terminal.progress_bar("simulating") as show:

        def progress(done: int, total: int) -> None:
            counts.append((done, total))
            show(done / max(total, 1))

        results = run_sweep(
            scenario,
            settings,
            seeds,
            publications=publications,
            out=out,
            options=spark,
            progress=progress,
        )
    before, total = counts[0][0], counts[-1][1]
    rows = _by_setting(sweep_summary(results), list(settings))
    seconds = time.monotonic() - started
    if json:
        terminal.print_json(
            {
                "scenario": scenario.name,
                "out": out,
                "simulations": total,
                "simulated_now": total - before,
                "wall_seconds": seconds,
                "settings": rows,
            }
        )
        return
    columns = {name: name for name in settings}
    for name, heading in _FIGURES.items():
        columns |= {name: heading, f"{name}_ci95": "±"}
    shown = [row | {name: "none" for name in settings if row[name] is None} for row in rows]
    title = f"{scenario.name}: means over {seeds} seeds, ± 95 %"
    terminal.print_table(title, columns, shown, most=SHOWN_SETTINGS, rest="settings")
    console = terminal.screen()
    console.print(
        f"{total:,} simulations, {total - before:,} of them now in {seconds:.1f} s; "
        f"look at them with: triage pipeline show {out} results",
        soft_wrap=True,
    )


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
