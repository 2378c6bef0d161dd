"""`triage simulate FILE`: what a plan does, event by event."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triagemq.cli import options, terminal
from triagemq.cli.plan import ClusterOptions, PlannerOptions, simulate_balancing
from triagemq.cli.terminal import duration, percent
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.plan import Plan
    from triagemq.scenario import Scenario
    from triagemq.simulate import Control, SimulationResult


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """Options of control, one for each field."""

    control: Annotated[
        str | None,
        typer.Option(
            help="Divide ports with queue rates anew every 200 ms, by the delays that this estimator sees: "
            "red, idm-paper, idm, backlog, model or learned."
        ),
    ] = None
    model: Annotated[Path | None, typer.Option(help="With --control learned: the folder of a model.")] = None
    read_errors: Annotated[
        bool, typer.Option("--read-errors", help="With --control: read counters as wrongly as switches do.")
    ] = False
    slow_down: Annotated[
        bool,
        typer.Option(
            "--slow-down/--no-slow-down",
            help="With --control: publishers follow requests to slow down.",
        ),
    ] = True

    def made(self, scenario: Scenario, plan: Plan, seed: int) -> Callable[[int], Control] | None:
        """A control for each replication; None without --control."""
        if self.control is None:
            if self.model is not None or self.read_errors:
                raise ParameterError("--control", "needs an estimator, for example --control idm")
            return None
        from triagemq.delay.learning.models import load_model
        from triagemq.lab.queue_delay import ReadErrors
        from triagemq.lab.simulated_control import ControlSettings, SimulatedControl

        model = None if self.model is None else load_model(self.model)
        counters = "linux" if self.control == "backlog" else "openflow"
        settings = ControlSettings(
            estimator=self.control,
            counters=counters if model is None else model.counters,
            model=model,
            read_errors=ReadErrors() if self.read_errors else None,
            slow_down=self.slow_down,
        )
        return lambda replication: SimulatedControl(scenario, plan, settings, seed + replication)


@options.with_groups
def simulate(
    file: options.File,
    planner: PlannerOptions,
    clusters: ClusterOptions,
    controlling: ControlOptions,
    plan: options.PlanFile = None,
    publications: Annotated[
        int | None, typer.Option(min=1, help="Events to publish (default: 1,000,000, or as --for says).")
    ] = None,
    duration_seconds: Annotated[
        float | None, typer.Option("--for", help="Simulated seconds, instead of a number of events.")
    ] = None,
    replications: Annotated[int, typer.Option(min=1, help="Runs that differ in their random numbers.")] = 1,
    precision: Annotated[
        float | None,
        typer.Option(help="Repeat until every class's 95 % interval is within this share of its latency."),
    ] = None,
    warmup: Annotated[float, typer.Option(help="Share of the run that does not count.")] = 0.1,
    replay: Annotated[
        Path | None, typer.Option(help="Publish what this trace recorded instead of random events.")
    ] = None,
    recorded_losses: Annotated[
        bool,
        typer.Option(
            "--recorded-losses",
            "--recorded-fates",
            help="With --replay: drop and lose the copies that were dropped on purpose and lost there, and no others.",
        ),
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write what happened as a Trace into this directory.")
    ] = None,
    hops: Annotated[bool, typer.Option("--hops", help="Record every port of the path, too.")] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--conditions/--no-conditions", help="Follow the scenario's conditions, with a plan for each."
        ),
    ] = True,
    babbling: options.Babbling = None,
    synchronised: options.Synchronised = False,
    limiter: Annotated[
        str | None,
        typer.Option(
            help="Cut promised publishers by a token bucket, or a window, and not as their switch does."
        ),
    ] = None,
    balancing: Annotated[
        str | None,
        typer.Option(
            help="Clusters: simulate brokers whose clients move: ours, peer (by load alone) or none, for --for seconds."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: all processors).")] = None,
    full: Annotated[bool, typer.Option("--full", help="With --json: every subscription too.")] = False,
    json: options.Json = False,
) -> None:
    """Simulate every queue of the path, millions of deliveries a second; with --balancing, clusters of brokers."""
    if balancing is not None:
        if any(each is not None for each in (plan, publications, precision, replay, trace)):
            raise ParameterError(
                "--balancing", "goes without --plan, --publications, --precision, --replay and --trace"
            )
        simulate_balancing(
            file,
            clusters,
            balancing,
            seconds=60.0 if duration_seconds is None else duration_seconds,
            seed=planner.seed,
            with_conditions=follow,
            as_json=json,
        )
        return
    if clusters.placement is not None or clusters.correlations is not None:
        raise ParameterError("--placement", "needs --balancing; events are simulated where the scenario says")
    from triagemq.forecast import StoredForecast, forecast
    from triagemq.lab.recordings import recording
    from triagemq.plan import dump_plan
    from triagemq.scenario import dumps, load_with_conditions
    from triagemq.scenario.conditions import Conditions
    from triagemq.simulate import simulate as run
    from triagemq.simulate.changes import condition_changes
    from triagemq.simulate.replay import recorded_publications
    from triagemq.trace import TraceWriter, add_forecast
    from triagemq.trace.manifest import CUT_OFF

    scenario, conditions = load_with_conditions(file)
    if not follow:
        conditions = Conditions()

    made = planner.plan(scenario, plan)
    recorded = losses = None
    if recorded_losses:
        if replay is None:
            raise ParameterError("--recorded-losses", "needs a trace that recorded them: give --replay, too")
        happened = recording(replay, scenario)
        recorded, losses = happened.publications, happened.losses
    elif replay is not None:
        recorded = recorded_publications(replay, scenario)
    changes = condition_changes(
        scenario, conditions, planner.plan if plan is None else None, with_rates=recorded is None
    )
    with (
        nullcontext()
        if trace is None
        else TraceWriter(
            trace,
            scenario_text=dumps(scenario, conditions),
            plan_text=dump_plan(made),
            producer="simulate",
            scenario_fingerprint=scenario.fingerprint,
            with_hops=hops,
        ) as writer,
        terminal.progress_bar("simulating") as progress,
    ):
        result = run(
            scenario,
            made,
            publications=publications,
            duration_seconds=duration_seconds,
            seed=planner.seed,
            replications=replications,
            precision=precision,
            warmup=warmup,
            changes=changes,
            replay=recorded,
            losses=losses,
            sink=writer,
            progress=progress,
            threads=threads,
            babbling=tuple(babbling or ()),
            synchronised=synchronised,
            limiter=limiter,
            control=controlling.made(scenario, made, planner.seed),
        )
        if writer is not None:
            if not conditions.timeline:
                # A run with conditions has a plan for each situation, and so no one forecast.
                predicted = forecast(scenario, made)
                add_forecast(writer.path, StoredForecast.of(predicted, made.subscription_class).dump())
            ends_ns = round(result.simulated_seconds * 1e9)
            writer.finish(
                measured_from_ns=result.measured_from_ns,
                extra={CUT_OFF: ends_ns} if result.late_excluded else {},
            )
    if json:
        report = {"scenario": scenario.name, **result.as_json()}
        if not full:
            del report["subscriptions"]
        terminal.print_json(report)
        return
    _print(result, title=f"simulation: {made.made_by.priorities} priorities, {made.made_by.drops} drops")
    if trace is not None:
        typer.echo(f"trace: {trace}")


def _print(result: SimulationResult, title: str) -> None:
    columns = {
        "priority_class": "class",
        "success_rate": "success",
        "mean_latency_seconds": "mean latency",
        "ci95_seconds": "± 95 %",
        **{f"{name}_seconds": name for name in ("p50", "p95", "p99", "max")},
    }
    report = result.as_json()
    terminal.print_table(title, columns, report["classes"])
    console = terminal.screen()
    for row in report["phases"]:
        console.print(
            f"from {duration(row['begins_seconds'])}: success {percent(row['success_rate'])}, "
            f"utility {percent(row['utility_rate'])} of what it could be"
        )
    terminal.print_kept_promises(report["promises"], report["decisions"])
    console.print(terminal.utility_line(report["utility"]))
    terminal.print_deadlines(report["deadlines"])
    rate = result.copies / result.wall_seconds / 1e6
    console.print(
        f"{result.publications:,} publications, {result.copies:,} copies in {result.wall_seconds:.2f} s "
        f"({rate:.1f} million a second), {result.simulated_seconds:.0f} simulated seconds"
    )
    if result.late_excluded:
        console.print(
            f"the queues were drained for {duration(result.drained_seconds)} after the last publication: "
            f"{result.late_deliveries:,} copies ({percent(result.late_deliveries / result.copies)}) arrived only then "
            "and count as late, not as a success; a queue is overloaded, or the run too short",
            style="yellow",
            soft_wrap=True,
        )
    if result.precision_reached is False:
        console.print("the requested precision was not reached within the most replications", style="yellow")
