"""`triage emulate`: a scenario with real packets through real queues and switches, on this machine."""

from __future__ import annotations

import asyncio
import json as json_format
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.options import duration, percent, print_json, utility_line

if TYPE_CHECKING:
    from triagemq.coordinator.emulate.emulated_run import EmulationResult
    from triagemq.coordinator.emulate.rig import Rig

__all__ = ["emulate"]


def emulate(
    file: options.File,
    dataplane: Annotated[
        str,
        typer.Option(
            help="linux: kernel queues; openflow: Open vSwitch before them; embedded: in the gateway."
        ),
    ] = "linux",
    seconds: Annotated[float, typer.Option("--for", min=1, help="Seconds of traffic.")] = 30.0,
    no_triage: Annotated[
        bool, typer.Option("--no-triage", help="One queue, no drops: what a plain network does.")
    ] = False,
    priorities: options.Priorities = None,
    drops: options.Drops = None,
    flows: options.Flows = "greedy",
    state: Annotated[
        Path | None,
        typer.Option(help="Directory of logs and everything else (default: a new one under out/emulate)."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Directory of the Trace (default: in the state).")
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Build the scenario's network of namespaces, run its clients in it, and compare with simulation and forecast."""
    from triagemq.coordinator.emulate.rig import RigOptions
    from triagemq.scenario import load

    load(file)
    chosen = {"flows": flows, "priorities": priorities, "drops": drops}
    result = asyncio.run(
        _run(
            RigOptions(
                file=file,
                state=state or Path("out/emulate") / time.strftime("%Y%m%d-%H%M%S"),
                dataplane=dataplane,
                no_triage=no_triage,
                seed=seed,
                planner={name: value for name, value in chosen.items() if value is not None},
            ),
            seconds,
            trace,
            json,
        )
    )
    if json:
        print_json(result.as_json())
    else:
        _print(result, dataplane)


async def _run(rig_options: Any, seconds: float, trace: Path | None, as_json: bool) -> EmulationResult:
    from triagemq.coordinator.emulate.emulated_run import run_emulation

    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("real packets", total=seconds, now="building the network")

        def ready(rig: Rig) -> None:
            bar.update(task, now="starting its clients")
            if as_json:
                facts = {
                    "ready": True,
                    "run": rig.layout.run,
                    "coordinator": rig.rest,
                    "state": str(rig.state),
                    "pids": {name: child.pid for name, child in rig.children.items()}
                    | {name: process.pid for name, process in rig.processes.items()},
                    "switches": getattr(rig.box.switches, "directory", None)
                    and str(rig.box.switches.directory),  # type: ignore[union-attr]
                }
                # On standard error: standard output is for the one object at the end.
                typer.echo(json_format.dumps(facts), err=True)

        return await run_emulation(
            rig_options,
            seconds=seconds,
            ended=ended,
            trace=trace,
            on_ready=ready,
            on_tick=lambda rig, elapsed: bar.update(
                task, completed=max(0.0, elapsed), now=f"{max(0.0, elapsed):.0f} of {seconds:.0f} s"
            ),
        )


def _print(result: EmulationResult, dataplane: str) -> None:
    table = Table(title=f"{result.scenario.name}: real packets, {dataplane} data plane", title_justify="left")
    table.add_column("class", justify="right")
    for figure in ("success", "mean latency"):
        for kind in ("measured", "simulated", "forecast"):
            table.add_column(f"{figure}\n{kind}" if kind == "measured" else f"\n{kind}", justify="right")
    simulated = {row["priority_class"]: row for row in result.simulated.as_json()["classes"]}
    forecast = {row["priority_class"]: row for row in result.forecast.by_level}
    for row in result.measured.classes:
        others = [rows.get(row["priority_class"], {}) for rows in (simulated, forecast)]
        table.add_row(
            str(row["priority_class"]),
            *(percent(each.get("success_rate")) for each in (row, *others)),
            *(duration(each.get("mean_latency_seconds")) for each in (row, *others)),
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(table)
    console.print(utility_line(result.measured.utility), highlight=False)
    typer.echo(f"trace: {result.trace}")
