"""`triage demo`: the whole loop on the building fire, run for real with and without triage."""

from __future__ import annotations

import asyncio
import json as json_format
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from triagemq.cli.options import (
    Json,
    Seed,
    duration,
    figure_table,
    percent,
    print_json,
    require,
    screen,
    traffic_bar,
)
from triagemq.errors import OutputError

if TYPE_CHECKING:
    from triagemq.live.up.run import LiveResult
    from triagemq.scenario import Scenario

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
        help="Empty directory for scenario, picture, traces, tables and report (default: a new one in out/demo).",
    ),
]
Seconds = Annotated[
    float, typer.Option("--for", min=2, help="Seconds of real traffic, with triage and again without.")
]


def demo(seconds: Seconds = 20.0, seed: Seed = 0, output: Output = None, json: Json = False) -> None:
    """Run a building fire on this machine with real packets, with and without triage, and see what arrives."""
    require(
        "numba",
        "amqtt",
        "fastapi",
        "uvicorn",
        "sqlalchemy",
        "matplotlib",
        "plotly",
        "jinja2",
        "pyspark",
        "pandas",
    )
    from triagemq.scenario import load

    console = screen()
    output = _own_directory(output)
    file = output / "building-fire.yaml"
    shutil.copyfile(_example(), file)
    scenario = load(file)

    def say(words: str) -> None:
        if not json:
            console.print(words, soft_wrap=True, highlight=False)

    say(
        f"{scenario.name}: {len(scenario.publishers)} publishers, "
        f"{scenario.publications.rate_per_second.sum():.0f} events/s on {len(scenario.topics)} topics, "
        f"{len(scenario.subscribers)} subscribers with {len(scenario.subscriptions)} subscriptions ({file})."
    )
    results = {}
    for name, why in STEPS.items():
        say(f"\n{why.format(seconds=seconds)}")
        results[name] = _run(name, file, seconds, seed, output / name.split()[0])
    figures = _figures(scenario, results)
    say(f"\n{COMPARED}")
    if not json:
        _show(console, figures)
    say(f"\n{REPORTED}")
    figures |= {"picture": str(_draw(figures, output)), **_report(output)}
    say(f"\n{PLANNED_AGAIN}")
    figures["planned_again"] = again = _plan_again(output)
    (output / "figures.json").write_text(json_format.dumps(figures, indent=2, allow_nan=False))
    if json:
        print_json(figures)
        return
    offered = " and ".join(percent(port["rho_offered"]) for port in again["ports"])
    say(
        f"{again['scenario']}: ports are offered {offered} of what they can carry; "
        f"the next plan is worth {percent(again['utility']['rate'])} of the maximum utility."
    )
    say(f"\nPicture: {figures['picture']}\nReport:  {figures['report']}")
    if figures["rows_set_aside"]:
        console.print(
            f"{figures['rows_set_aside']:,} rows of the traces were set aside; the report says why."
        )


def _figures(scenario: Scenario, results: dict[str, LiveResult]) -> dict[str, Any]:
    """Everything that is said about the two runs: what --json prints, and what terminal and picture show."""
    from triagemq.forecast.summary import port_loads
    from triagemq.plan import explain

    plan = results[WITH].forecast.plan
    subscriber, topic = _something_urgent(scenario)
    return {
        "scenario": scenario.name,
        "ports": port_loads(scenario, plan),
        "runs": {name: result.as_json() for name, result in results.items()},
        "explanation": {
            "subscriber": subscriber,
            "topic": topic,
            "text": explain(scenario, plan, subscriber, topic),
        },
    }


def _show(console: Console, figures: dict[str, Any]) -> None:
    for port in figures["ports"]:
        console.print(
            f"Port {port['port']} is offered {percent(port['rho_offered'])} of what it can carry; "
            f"triage plans {percent(port['rho_planned'])}."
        )
    console.print(_comparison(figures["runs"]))
    for name, run in figures["runs"].items():
        console.print(
            f"{name}: {percent(run['utility']['rate'])} of the maximum utility "
            f"(forecast {percent(run['forecast']['utility']['rate'])}), {run['deliveries']:,} deliveries",
            highlight=False,
        )
    if (busy := too_busy(figures["runs"][WITH], os.getloadavg()[0], os.cpu_count() or 1)) is not None:
        console.print(busy, soft_wrap=True, highlight=False)
    why = figures["explanation"]
    console.print(
        f"\n4. Why {why['topic']} got what it got for {why['subscriber']}: every decision has a reason, in words.",
        highlight=False,
    )
    console.print(why["text"], soft_wrap=True, highlight=False)


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
        taken = any(given.iterdir())
    except OSError as error:
        raise OutputError(f"{given}: {error.strerror or error}") from error
    if taken:
        raise OutputError(f"{given}: is not empty; choose another directory")
    return given


def _example() -> Path:
    """The scenario file: beside the package where it is installed, in `examples` where it is developed."""
    package = Path(__file__).resolve().parents[1]
    places = (package / "examples", package.parents[1] / "examples")
    return next(
        (place / "building-fire.yaml" for place in places if (place / "building-fire.yaml").is_file()),
        places[0] / "building-fire.yaml",
    )


def _run(name: str, file: Path, seconds: float, seed: int, state: Path) -> LiveResult:
    from triagemq.live.up.exchange import ExchangeOptions
    from triagemq.live.up.run import run_live

    options = ExchangeOptions(state=state, scenario=file, no_triage=name == WITHOUT, seed=seed)
    with traffic_bar(f"{name}, real packets", seconds) as show:
        show(0.0, "starting")
        return asyncio.run(
            run_live(
                options,
                seconds=seconds,
                ended=asyncio.Event(),
                on_tick=lambda exchange, figures, elapsed: show(
                    elapsed, f"{max(0.0, elapsed):.0f} of {seconds:.0f} s"
                ),
            )
        )


def _comparison(runs: dict[str, dict[str, Any]]) -> Table:
    """Success and latency per class, measured and forecast, the two runs side by side."""
    columns = [column for name in runs for column in (f"{name}\nsuccess", "\nlatency")]
    table = figure_table("measured (forecast), by the class that triage gives", "class", *columns)
    for level in (row["priority_class"] for row in runs[WITH]["classes"]):
        cells = [str(level)]
        for run in runs.values():
            row = _row(run["classes"], level)
            expected = _row(run["forecast"]["classes"], level)
            cells += [
                f"{percent(row.get('success_rate'))} ({percent(expected.get('success_rate'))})",
                f"{duration(row.get('mean_latency_seconds'))} ({duration(expected.get('mean_latency_seconds'))})",
            ]
        table.add_row(*cells)
    return table


def _row(rows: list[dict[str, float]], level: float) -> dict[str, float]:
    return next((row for row in rows if row["priority_class"] == level), {})


def _something_urgent(scenario: Scenario) -> tuple[str, str]:
    """The subscription that is worth most: subscriber and topic."""
    row = int(scenario.subscriptions.utility_weight.argmax())
    return (
        scenario.subscribers.name[scenario.subscriptions.subscriber[row]],
        scenario.topics.name[scenario.subscriptions.topic[row]],
    )


def _draw(figures: dict[str, Any], folder: Path) -> Path:
    from triagemq.lab.papers.experiment import Panel, Series
    from triagemq.lab.papers.plotting import draw_png

    runs = figures["runs"]

    def series(name: str, figure: str, scale: float) -> Series:
        rows = [row for row in runs[name]["classes"] if row[figure] is not None]
        return Series.of(name, [row["priority_class"] for row in rows], [scale * row[figure] for row in rows])

    path = folder / "classes.png"
    draw_png(
        path,
        "A building on fire, with too little radio",
        (
            Panel(
                "delivered",
                "priority class",
                "% of events",
                tuple(series(name, "success_rate", 100) for name in runs),
            ),
            Panel(
                "latency",
                "priority class",
                "milliseconds",
                tuple(series(name, "mean_latency_seconds", 1000) for name in runs),
                logarithmic=True,
            ),
        ),
    )
    return path


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
