"""`triage emulate`: a scenario with real packets through real queues and switches, on this machine."""

from __future__ import annotations

import asyncio
import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triagemq.cli import options, terminal
from triagemq.cli.stopping import INTERRUPTED, on_stop
from triagemq.cli.terminal import duration

if TYPE_CHECKING:
    from triagemq.lab.emulate.boxed import BoxedExchange, BoxedOptions
    from triagemq.lab.emulate.run import EmulationResult

DEFAULT_SECONDS = 30.0


@options.with_groups
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
    *,
    planning: options.ExchangePlanning,
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
    json: options.Json = False,
) -> None:
    """Build the scenario's network of namespaces, run its clients in it, and compare with simulation and forecast."""
    from triagemq.lab.emulate.boxed import BoxedOptions, check_data_plane, require_machine
    from triagemq.lab.recordings import recorded_seconds
    from triagemq.live.up.state import fresh_directory
    from triagemq.scenario import load

    scenario = load(file)
    check_data_plane(dataplane)
    settings = planning.settings()
    require_machine(dataplane)
    if seconds is None:
        seconds = DEFAULT_SECONDS if replay is None else recorded_seconds(replay, scenario)
    rig_options = BoxedOptions(
        scenario=file,
        state=state or fresh_directory(Path("out/emulate")),
        dataplane=dataplane,
        **settings,
        replay=replay,
        babbling=tuple(babbling or ()),
        synchronised=synchronised,
    )
    try:
        result = asyncio.run(_run(rig_options, seconds, trace, json))
    except asyncio.CancelledError:
        typer.echo("triage: interrupted; nothing was left behind", err=True)
        raise typer.Exit(INTERRUPTED) from None
    terminal.show(result.as_json(), lambda: _print(result, dataplane), as_json=json)


async def _run(
    rig_options: BoxedOptions, seconds: float, trace: Path | None, as_json: bool
) -> EmulationResult:
    from triagemq.lab.emulate.run import run_emulation

    task, ended, traffic_flows = asyncio.current_task(), asyncio.Event(), asyncio.Event()

    def end() -> None:
        """Before the first event everything is given up; later the run ends early and is reported like any other."""
        ended.set()
        if task is not None and not traffic_flows.is_set() and not task.cancelling():
            task.cancel()

    on_stop(end)
    console = terminal.screen(stderr=True)
    with terminal.progress_bar("real packets", seconds, quiet=as_json) as show:
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
                traffic_flows.set()
                show(elapsed, f"{elapsed:.0f} of {seconds:.0f} s")

        return await run_emulation(
            rig_options,
            seconds=seconds,
            ended=ended,
            trace=trace,
            on_ready=ready,
            on_tick=tick,
            # A simulation of the same packets has the queue rates of the scenario for the whole run.
            compared=rig_options.control == "off",
        )


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
    columns = {"priority_class": "class"}
    for field, heading in (("success_rate", "success"), ("mean_latency_seconds", "mean latency")):
        columns |= {field: f"{heading}\nmeasured"}
        columns |= {f"{kind}_{field}": f"\n{kind}" for kind in ("simulated", "forecast")}
    simulated = [] if result.simulated is None else result.simulated.as_json()["classes"]
    rows = terminal.join_classes(
        result.measured.classes, simulated=simulated, forecast=result.forecast.by_level
    )
    terminal.print_table(f"{result.scenario.name}: real packets, {dataplane} data plane", columns, rows)
    console = terminal.screen()
    if result.promise_rows:
        terminal.print_kept_promises(
            result.promise_rows, [asdict(each) for each in result.promised.decisions]
        )
        _print_beside_bounds(result)
    console.print(terminal.utility_line(result.measured.utility), highlight=False)
    terminal.print_deadlines(result.measured.deadlines)
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
    terminal.screen().print(
        f"late: beyond the bound and {duration(idle['p99_9_seconds'])}, the p99.9 of an idle port; hosts beside that: "
        + ", ".join(f"{who} p99.9 {duration(each['p99_9_seconds'])}" for who, each in hosts.items()),
        highlight=False,
        soft_wrap=True,
    )
