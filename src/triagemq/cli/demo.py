"""`triage demo`: the whole loop on the building fire, run for real with and without triage."""

from __future__ import annotations

import asyncio
import json as json_format
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from triagemq.cli import options, terminal
from triagemq.cli.terminal import percent
from triagemq.cli.up import show_progress
from triagemq.errors import OutputError

if TYPE_CHECKING:
    from triagemq.live.up.run import LiveResult

WITH, WITHOUT = "with triage", "without triage"
_CLEARLY_LESS = 0.05
"""Of the maximum utility: more than what differs from one run of some seconds to another."""

STEPS = {
    WITH: "1. With triage: a plan gives every subscription a class and a drop rate, and broker, gateway and clients "
    "run by it with real packets for {seconds:g} s, to see whether it does what was forecast.",
    WITHOUT: "2. Without triage: the same for {seconds:g} s with one queue and no drops, to have something to compare "
    "with.",
}
"""What each run does, and why."""
COMPARED = (
    "3. What arrived, by class and beside its forecast: triage is worth what the classes above gain over what those "
    "below lose."
)
REPORTED = (
    "5. Spark makes tables and a report of both traces, which have every single copy: the same figures, from rows that "
    "anybody can count again."
)
PLANNED_AGAIN = (
    "6. The rates and sizes that were measured make a scenario, and that the next plan: what was stated at first need "
    "not have been right."
)

Output = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Empty directory for scenario, traces, tables and report (default: a new one in out/demo).",
    ),
]
Seconds = Annotated[
    float, typer.Option("--for", min=2, help="Seconds of real traffic, with triage and again without.")
]


def demo(
    seconds: Seconds = 20.0, seed: options.Seed = 0, output: Output = None, json: options.Json = False
) -> None:
    """Run a building fire on this machine with real packets, with and without triage, and see what arrives."""
    options.require(
        "numba", "amqtt", "fastapi", "uvicorn", "sqlalchemy", "plotly", "jinja2", "pyspark", "pandas"
    )
    from triagemq.forecast.summary import port_loads
    from triagemq.plan import explain
    from triagemq.scenario import load

    console = terminal.screen()
    console.quiet = json
    say = partial(console.print, soft_wrap=True)
    output = _own_directory(output)
    file = output / "building-fire.yaml"
    shutil.copyfile(_example(), file)
    scenario = load(file)
    say(
        f"{scenario.name}: {len(scenario.publishers)} publishers, "
        f"{scenario.publications.rate_per_second.sum():.0f} events/s on {len(scenario.topics)} topics, "
        f"{len(scenario.subscribers)} subscribers with {len(scenario.subscriptions)} subscriptions ({file})."
    )
    results = {}
    for name, why in STEPS.items():
        say(f"\n{why.format(seconds=seconds)}")
        results[name] = _run(name, file, seconds, seed, output / name.split()[0])
    runs = {name: result.as_json() for name, result in results.items()}
    plan = results[WITH].forecast.plan
    say(f"\n{COMPARED}")
    ports = port_loads(scenario, plan)
    for port in ports:
        say(
            f"Port {port['port']} is offered {percent(port['rho_offered'])} of what it can carry; "
            f"triage plans {percent(port['rho_planned'])}."
        )
    console.print(_comparison(runs))
    for name, run in runs.items():
        say(
            f"{name}: {percent(run['utility']['rate'])} of the maximum utility "
            f"(forecast {percent(run['forecast']['utility']['rate'])}), {run['deliveries']:,} deliveries"
        )
    if (busy := too_busy(runs[WITH], os.getloadavg()[0], os.cpu_count() or 1)) is not None:
        say(busy)
    subscriptions = scenario.subscriptions
    dearest = int(subscriptions.utility_weight.argmax())
    subscriber = scenario.subscribers.name[subscriptions.subscriber[dearest]]
    topic = scenario.topics.name[subscriptions.topic[dearest]]
    text = explain(scenario, plan, subscriber, topic)
    say(f"\n4. Why {topic} got what it got for {subscriber}: every decision has a reason, in words.\n{text}")
    say(f"\n{REPORTED}")
    report = _report(output)
    say(f"\n{PLANNED_AGAIN}")
    again = _plan_again(output)
    offered = " and ".join(percent(port["rho_offered"]) for port in again["ports"])
    say(
        f"{again['scenario']}: ports are offered {offered} of what they can carry; "
        f"the next plan is worth {percent(again['utility']['rate'])} of the maximum utility.\n"
        f"\nReport:  {report['report']}"
    )
    if report["rows_set_aside"]:
        say(f"{report['rows_set_aside']:,} rows of the traces were set aside; the report says why.")
    figures = {
        "scenario": scenario.name,
        "ports": ports,
        "runs": runs,
        "explanation": {"subscriber": subscriber, "topic": topic, "text": text},
        **report,
        "planned_again": again,
    }
    (output / "figures.json").write_text(json_format.dumps(figures, indent=2, allow_nan=False))
    if json:
        terminal.print_json(figures)


def too_busy(run: dict[str, Any], load: float, processors: int) -> str | None:
    """What to think of a run on a busy machine that captured clearly less than its forecast; None of any other."""
    missing = run["forecast"]["utility"]["rate"] - run["utility"]["rate"]
    if missing < _CLEARLY_LESS or load <= processors:
        return None
    return (
        "That is clearly less than the forecast, and the load of this machine is "
        f"{load:.1f} on {processors} processors: ports are paced by a process here, which needs one in time. Run it "
        "again when less is done beside it, or on the kernel's queues: sudo triage emulate FILE."
    )


def _own_directory(given: Path | None) -> Path:
    """A new one, or the one that was given if nothing is in it."""
    from triagemq.live.up.state import fresh_directory

    if given is None:
        return fresh_directory(Path("out/demo"))
    try:
        given.mkdir(parents=True, exist_ok=True)
        if any(given.iterdir()):
            raise OutputError(f"{given}: is not empty; choose another directory")
    except OSError as error:
        raise OutputError(f"{given}: {error.strerror or error}") from error
    return given


def _example() -> Path:
    """The scenario file: in `examples` where this is developed, in the package where it is installed."""
    package = Path(__file__).resolve().parents[1]
    developed = package.parents[1] / "examples"
    return (developed if developed.is_dir() else package / "examples") / "building-fire.yaml"


def _run(name: str, file: Path, seconds: float, seed: int, state: Path) -> LiveResult:
    from triagemq.live.up.exchange import ExchangeOptions
    from triagemq.live.up.run import run_live

    options = ExchangeOptions(state=state, scenario=file, no_triage=name == WITHOUT, seed=seed)
    title = f"{name}, real packets"
    return asyncio.run(
        run_live(
            options,
            seconds=seconds,
            ended=asyncio.Event(),
            on_ready=lambda running: running.start_task(show_progress(running, seconds, title)),
        )
    )


def _comparison(runs: dict[str, dict[str, Any]]) -> Table:
    """Success and latency per class, measured and forecast, the two runs side by side."""
    columns, rows = {"priority_class": "class"}, [dict(row) for row in runs[WITH]["classes"]]
    for name, run in runs.items():
        joined = terminal.join_classes(rows, run=run["classes"], forecast=run["forecast"]["classes"])
        for field, heading in (("success_rate", f"{name}\nsuccess"), ("mean_latency_seconds", "\nlatency")):
            columns[f"{name} {field}"] = heading
            for row, both in zip(rows, joined, strict=True):
                measured, expected = (
                    terminal.cell(field, both.get(f"{of}_{field}")) for of in ("run", "forecast")
                )
                row[f"{name} {field}"] = f"{measured} ({expected})"
    return terminal.make_table("measured (forecast), by the class that triage gives", columns, rows)


def _report(folder: Path) -> dict[str, Any]:
    """What the two runs left behind, through the Spark pipeline, as tables and as one page."""
    from triagemq.pipeline import Tables, run_pipeline
    from triagemq.pipeline.report import report_tables
    from triagemq.trace import Trace, runs

    traces = {name: folder / name.split()[0] / "trace" for name in (WITH, WITHOUT)}
    tables = folder / "tables"
    run_pipeline(list(traces.values()), tables, progress=True)
    report = report_tables(
        tables,
        folder / "report.html",
        title="A building on fire, with too little radio",
        notes=[
            "Both runs are shown by the class that triage gives each subscription, the one without triage, too."
        ],
        run_names={
            Trace.open(path).run_id: name for name, place in traces.items() for path in runs(place).complete
        },
    )
    return {
        "report": str(report),
        "tables": str(tables),
        "rows_set_aside": sum(run.quarantined for run in Tables(tables).manifest.runs.values()),
    }


def _plan_again(folder: Path) -> dict[str, Any]:
    """The scenario that the run with triage looks like, and what a plan of it would do."""
    from triagemq.forecast import forecast, utility_figures
    from triagemq.forecast.summary import port_loads
    from triagemq.pipeline import Tables, estimate_scenario
    from triagemq.plan import plan
    from triagemq.scenario import save
    from triagemq.trace import Trace, runs

    [trace] = runs(folder / WITH.split()[0] / "trace").complete
    scenario = estimate_scenario(Tables(folder / "tables"), run_id=Trace.open(trace).run_id).scenario
    file = folder / "measured.yaml"
    save(scenario, file)
    made = plan(scenario)
    predicted = forecast(scenario, made, formulas=True)
    return {
        "scenario": str(file),
        "ports": port_loads(scenario, made),
        "utility": utility_figures(predicted.utility, predicted.maximum_utility),
    }
