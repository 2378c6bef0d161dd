"""`triage emulate`: a scenario with real packets through real queues and switches, on this machine."""

from __future__ import annotations

import asyncio
import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triagemq.cli import options
from triagemq.cli.options import (
    duration,
    figure_table,
    percent,
    print_deadlines,
    print_json,
    print_kept_promises,
    screen,
    traffic_bar,
    utility_line,
)
from triagemq.cli.stopping import INTERRUPTED, on_stop

if TYPE_CHECKING:
    from triagemq.lab.emulate.boxed import BoxedExchange, BoxedOptions
    from triagemq.lab.emulate.run import EmulationResult

DEFAULT_SECONDS = 30.0


def emulate(
    file: options.File,
    dataplane: Annotated[
        str,
        typer.Option(
            help="linux: kernel queues; openflow: Open vSwitch before them; embedded: in the gateway."
        ),
    ] = "linux",
    seconds: Annotated[
        float | None,
        typer.Option("--for", min=1, help="Seconds of traffic (default: 30, or as long as the replay)."),
    ] = None,
    no_triage: Annotated[
        bool, typer.Option("--no-triage", help="One queue, no drops: what a plain network does.")
    ] = False,
    priorities: options.Priorities = None,
    drops: options.Drops = None,
    flows: options.Flows = "greedy",
    control: options.Control = "off",
    delay_model: options.DelayModelFolder = None,
    replay: Annotated[
        Path | None, typer.Option(help="Publish what this trace recorded instead of random events.")
    ] = None,
    babbling: options.Babbling = None,
    synchronised: options.Synchronised = False,
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
    from triagemq.coordinator.gateway.config import check_control
    from triagemq.lab.emulate.boxed import BoxedOptions, check_data_plane, require_machine
    from triagemq.live.up.state import fresh_directory
    from triagemq.scenario import load
    from triagemq.simulate.replay import recorded_seconds

    scenario = load(file)
    check_data_plane(dataplane)
    check_control(control, delay_model)
    require_machine(dataplane)
    if seconds is None:
        seconds = DEFAULT_SECONDS if replay is None else recorded_seconds(replay, scenario)
    rig_options = BoxedOptions(
        scenario=file,
        state=state or fresh_directory(Path("out/emulate")),
        dataplane=dataplane,
        no_triage=no_triage,
        seed=seed,
        planner=options.algorithms(flows, priorities, drops),
        control=control,
        delay_model=delay_model,
        replay=replay,
        babbling=tuple(babbling or ()),
        synchronised=synchronised,
    )
    try:
        result = asyncio.run(_run(rig_options, seconds, trace, json))
    except asyncio.CancelledError:
        typer.echo("triage: interrupted; nothing was left behind", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(result.as_json())
    else:
        _print(result, dataplane)


async def _run(
    rig_options: BoxedOptions, seconds: float, trace: Path | None, as_json: bool
) -> EmulationResult:
    from triagemq.lab.emulate.run import run_emulation

    ending = _Ending()
    console = screen(stderr=True)
    with traffic_bar("real packets", seconds, quiet=as_json) as show:
        show(0.0, "building the network")

        def ready(rig: BoxedExchange) -> None:
            show(0.0, "starting its clients")
            if as_json:
                # On standard error: standard output is for the one object at the end.
                typer.echo(json_format.dumps(_facts(rig)), err=True)
                return
            for switch, command in rig.rule_commands.items():
                console.print(f"rules of {switch}: {command}", highlight=False, soft_wrap=True)

        def tick(rig: BoxedExchange, elapsed: float) -> None:
            if elapsed >= 0:
                ending.traffic_flows = True
                show(elapsed, f"{elapsed:.0f} of {seconds:.0f} s")

        return await run_emulation(
            rig_options,
            seconds=seconds,
            ended=ending.ended,
            trace=trace,
            on_ready=ready,
            on_tick=tick,
            # A simulation of the same packets has the widths of the scenario for the whole run.
            compared=rig_options.control == "off",
        )


class _Ending:
    """Ctrl-C: before the first event everything is given up, later the run ends early and is reported like any other.

    Signals after the first change nothing: the cleanup is not interrupted.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.traffic_flows = False
        self._asked = False
        self._task = asyncio.current_task()
        on_stop(self._end)

    def _end(self) -> None:
        if self.traffic_flows:
            self.ended.set()
        elif not self._asked and self._task is not None:
            self._task.cancel()
        self._asked = True


def _facts(rig: BoxedExchange) -> dict[str, object]:
    return {
        "ready": True,
        "run": rig.layout.run,
        "coordinator": rig.rest,
        "state": str(rig.state),
        "pids": rig.pids,
        "rules": rig.rule_commands,
    }


def _print(result: EmulationResult, dataplane: str) -> None:
    table = figure_table(f"{result.scenario.name}: real packets, {dataplane} data plane", "class")
    for figure in ("success", "mean latency"):
        for kind in ("measured", "simulated", "forecast"):
            table.add_column(f"{figure}\n{kind}" if kind == "measured" else f"\n{kind}", justify="right")
    rows = [] if result.simulated is None else result.simulated.as_json()["classes"]
    simulated = {row["priority_class"]: row for row in rows}
    forecast = {row["priority_class"]: row for row in result.forecast.by_level}
    for row in result.measured.classes:
        others = [rows.get(row["priority_class"], {}) for rows in (simulated, forecast)]
        table.add_row(
            str(row["priority_class"]),
            *(percent(each.get("success_rate")) for each in (row, *others)),
            *(duration(each.get("mean_latency_seconds")) for each in (row, *others)),
        )
    console = screen()
    console.print(table)
    if result.promise_rows:
        print_kept_promises(result.promise_rows, [asdict(each) for each in result.promised.decisions])
        _print_beside_bounds(result)
    console.print(utility_line(result.measured.utility), highlight=False)
    print_deadlines(result.measured.deadlines)
    if result.lost_by_machine:
        console.print(
            f"this machine itself lost {result.lost_by_machine} packets between virtual links: figures say less about "
            "the network; run nothing beside it, or raise net.core.netdev_max_backlog",
            highlight=False,
            soft_wrap=True,
        )
    typer.echo(f"trace: {result.trace}")


def _print_beside_bounds(result: EmulationResult) -> None:
    """What this machine adds, which is no part of a bound."""
    figures = result.promised.as_json()
    idle, hosts = figures["idle_port"], figures["host_delay"]
    screen().print(
        f"late: beyond the bound and {duration(idle['p99_9_seconds'])}, the p99.9 of an idle port; hosts beside that: "
        + ", ".join(f"{who} p99.9 {duration(each['p99_9_seconds'])}" for who, each in hosts.items()),
        highlight=False,
        soft_wrap=True,
    )
