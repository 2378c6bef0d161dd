"""`triage demo`: the whole loop on the building fire."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from triagemq.cli.options import Seed, duration, percent

if TYPE_CHECKING:
    from triagemq.plan import Plan
    from triagemq.scenario import Floats, Integers, Scenario

__all__ = ["CONFIGURATIONS", "demo"]

CONFIGURATIONS = (
    ("one queue", "none", "none"),
    ("priorities", "greedy", "none"),
    ("priorities and drops", "greedy", "exponential"),
)
"""The three configurations that PrioDeX section 6.2 compares: title, priorities, drops."""

PUBLICATIONS = 100_000
"""About 12 minutes of the fire: long enough for the overloaded queues to settle."""

Output = Annotated[
    Path, typer.Option("--output", "-o", help="Directory for scenario, picture, traces, tables and report.")
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one configuration delivers, forecast and simulated, by the classes that the full plan makes."""

    title: str
    run_id: str
    success: Floats
    latency_seconds: Floats
    forecast_utility: float
    simulated_utility: float
    deliveries: int
    wall_seconds: float


def demo(seed: Seed = 0, output: Output = Path("out/demo")) -> None:
    """Generate a building fire, plan it, and see what each way of sharing the network delivers."""
    from triagemq.plan import explain, make_plan
    from triagemq.scenario import save
    from triagemq.scenario.generators import building

    console = Console()
    scenario = building(seed=seed)
    output.mkdir(parents=True, exist_ok=True)
    save(scenario, output / "building-fire.yaml")
    console.print(
        f"[bold]{scenario.name}[/bold]: {len(scenario.publishers)} publishers, "
        f"{scenario.publications.rate_per_second.sum():.0f} events/s on {len(scenario.topics)} topics, "
        f"{len(scenario.subscribers)} subscribers with {len(scenario.subscriptions)} subscriptions "
        f"({output / 'building-fire.yaml'})."
    )
    plans = [
        make_plan(scenario, priorities=priorities, drops=drops, seed=seed)
        for _, priorities, drops in CONFIGURATIONS
    ]
    for name, offered, planned in zip(
        scenario.ports.name, plans[-1].ports.rho_offered, plans[-1].ports.rho_planned, strict=True
    ):
        console.print(
            f"Port {name} is offered {percent(float(offered))} of what it can carry; planned {percent(float(planned))}."
        )
    for made_before in ("traces", "tables"):
        shutil.rmtree(output / made_before, ignore_errors=True)
    with console.status("simulating"):
        outcomes = [
            _outcome(title, scenario, plan, plans[-1].subscription_class, seed, output / "traces" / title)
            for (title, _, _), plan in zip(CONFIGURATIONS, plans, strict=True)
        ]
    console.print(_comparison(outcomes))
    for each in outcomes:
        console.print(
            f"{each.title}: {percent(each.simulated_utility)} of the maximum utility "
            f"(forecast {percent(each.forecast_utility)})"
        )
    deliveries, seconds = (
        sum(each.deliveries for each in outcomes),
        sum(each.wall_seconds for each in outcomes),
    )
    console.print(f"{deliveries:,} deliveries simulated in {seconds:.1f} s.")
    picture = _draw(outcomes, output)
    subscriber = next(name for name in scenario.subscribers.name if name.startswith("ff-"))
    row = int((scenario.subscriptions.subscriber == scenario.subscribers.name.index(subscriber)).argmax())
    topic = scenario.topics.name[scenario.subscriptions.topic[row]]
    console.print(f"\n[bold]Why {topic} got what it got for {subscriber}[/bold]")
    console.print(explain(scenario, plans[-1], subscriber, topic), soft_wrap=True, highlight=False)
    report = _report(outcomes, output)
    console.print(f"\nPicture: {picture}\nReport:  {report}", soft_wrap=True, highlight=False)


def _outcome(title: str, scenario: Scenario, plan: Plan, level: Integers, seed: int, trace: Path) -> Outcome:
    """Forecast and simulate one plan; figures by the given class of every subscription."""
    import numpy as np

    from triagemq.cli.simulate import trace_writer
    from triagemq.forecast import forecast
    from triagemq.simulate import simulate

    predicted = forecast(scenario, plan)
    with trace_writer(trace, scenario, plan) as writer:
        measured = simulate(scenario, plan, publications=PUBLICATIONS, seed=seed, sink=writer)
        writer.finish(measured_from_ns=measured.measured_from_ns)
    rows = measured.subscriptions
    delivered = np.bincount(level, rows.delivered)
    latency = np.where(rows.delivered > 0, rows.mean_latency_seconds, 0.0)
    return Outcome(
        title=title,
        run_id=writer.run_id,
        success=delivered / np.bincount(level, rows.count),
        latency_seconds=np.bincount(level, rows.delivered * latency) / np.maximum(delivered, 1),
        forecast_utility=float(predicted.utility.sum() / predicted.maximum_utility.sum()),
        simulated_utility=measured.utility.rate,
        deliveries=measured.copies,
        wall_seconds=measured.wall_seconds,
    )


def _comparison(outcomes: list[Outcome]) -> Table:
    """Success and latency per class, the configurations side by side."""
    table = Table(title="simulated, by the class that triage gives", title_justify="left")
    table.add_column("class", justify="right")
    for each in outcomes:
        table.add_column(f"{each.title}\nsuccess", justify="right")
        table.add_column("\nlatency", justify="right")
    for level in range(len(outcomes[-1].success)):
        cells = [str(level)]
        for each in outcomes:
            success = float(each.success[level])
            cells += [percent(success), duration(float(each.latency_seconds[level]) if success > 0 else None)]
        table.add_row(*cells)
    return table


def _draw(outcomes: list[Outcome], folder: Path) -> Path:
    from triagemq.papers.experiment import Panel, Series
    from triagemq.papers.plotting import draw_png

    levels = range(len(outcomes[-1].success))
    success = [Series.of(each.title, levels, 100 * each.success) for each in outcomes]
    latency = [Series.of(each.title, levels, 1000 * each.latency_seconds) for each in outcomes]
    path = folder / "classes.png"
    draw_png(
        path,
        "A building on fire, with too little radio",
        (
            Panel("delivered", "priority class", "% of events", tuple(success)),
            Panel("latency", "priority class", "milliseconds", tuple(latency), logarithmic=True),
        ),
    )
    return path


def _report(outcomes: list[Outcome], folder: Path) -> Path:
    """What the three runs left behind, through the Spark pipeline, as one page."""
    from triagemq.pipeline import run_pipeline
    from triagemq.pipeline.report import report_tables

    run_pipeline([folder / "traces"], folder / "tables", progress=True)
    return report_tables(
        folder / "tables",
        folder / "report.html",
        title="A building on fire, with too little radio",
        run_names={each.run_id: each.title for each in outcomes},
    )
