"""`triage check|plan|forecast FILE`: is a scenario valid, what is decided for it, and what that does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options, terminal
from triagemq.errors import ParameterError
from triagemq.plain import plain

if TYPE_CHECKING:
    from triagemq.plan import Plan
    from triagemq.plan.placement import ClusterPlan
    from triagemq.scenario import Scenario

SHOWN_PORTS = 20
SHOWN_BROKERS = 40
_METRICS = ("downlink", "matching", "uplink")


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Options of planning, one for each field."""

    priorities: options.Priorities = None
    drops: options.Drops = None
    flows: options.Flows = "greedy"
    scope: options.Scope = "port"
    seed: options.Seed = 0
    classes: options.Classes = None
    flows_per_subscriber: options.FlowsPerSubscriber = None
    rho_tolerance: options.RhoTolerance = None

    @property
    def algorithms(self) -> dict[str, Any]:
        """The algorithms, by the names that the planner has for them."""
        return {
            "flows": self.flows,
            "priorities": self.priorities or "greedy",
            "drops": self.drops or "optimal",
            "scope": self.scope,
            "seed": self.seed,
        }

    @property
    def limits(self) -> dict[str, Any]:
        """Limits that replace those of the scenario; None where one is not given."""
        return {
            "priority_classes": self.classes,
            "flows_per_subscriber": self.flows_per_subscriber,
            "rho_tolerance": self.rho_tolerance,
        }

    def plan(self, scenario: Scenario, file: Path | None = None) -> Plan:
        """The plan a command works with: the one in the file, or one made now."""
        from triagemq.plan import load_plan, plan

        if file is None:
            return plan(scenario, **self.algorithms, **self.limits)
        if self.priorities is not None or self.drops is not None:
            raise ParameterError(
                "--plan", "says priorities and drops already; give either the file or the options"
            )
        stored = load_plan(file)
        stored.require(scenario)
        return stored


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How clusters of brokers share their clients."""

    placement: Annotated[
        str | None,
        typer.Option(
            help="Clusters: place topics on brokers: apart (correlated ones apart, then least used), least_used, "
            "round_robin, random, peer, stated, or module:function."
        ),
    ] = None
    correlations: Annotated[
        Path | None,
        typer.Option(help="Clusters: tables of `triage pipeline run`, of which topic_correlation is used."),
    ] = None

    def place(self, scenario: Scenario, seed: int) -> ClusterPlan:
        """The requested placement."""
        from triagemq.lab.clusters import ALL_PLACEMENTS
        from triagemq.plan.placement import NO_CORRELATIONS, Correlations, place

        found = NO_CORRELATIONS
        if self.correlations is not None:
            from triagemq.pipeline.reading import Tables

            rows = Tables(self.correlations).records("topic_correlation")
            found = Correlations.between(
                scenario, ((row["topic"], row["other_topic"], row["correlation"]) for row in rows)
            )
        return place(scenario, self.placement or "apart", correlations=found, seed=seed, known=ALL_PLACEMENTS)


def check(file: options.File, json: options.Json = False) -> None:
    """Name the mistakes in a scenario or policy: file, line, field and the fix. Exit code 2 if there is one.

    Mistakes between entries are named when no entry is wrong by itself.
    """
    from triagemq.coordinator.policy.files import check_policy, is_policy, load_policy
    from triagemq.errors import ScenarioError
    from triagemq.scenario import check as check_scenario
    from triagemq.scenario import load

    of_policy = is_policy(file)
    problems = check_policy(file) if of_policy else check_scenario(file)
    if json:
        terminal.print_json(
            {
                "file": str(file),
                "valid": not problems,
                "problems": [asdict(each) for each in problems],
            }
        )
    else:
        for problem in problems:
            typer.echo(str(problem), err=True)
    if problems:
        raise typer.Exit(ScenarioError.exit_code)
    if json:
        return
    if of_policy:
        policy = load_policy(file)
        typer.echo(
            f"{file}: valid. {len(policy.roles)} roles, {len(policy.clients)} entries of clients, "
            f"{len(policy.phases)} phases."
        )
        return
    scenario = load(file)
    typer.echo(
        f"{file}: valid. {len(scenario.publishers)} publishers with {len(scenario.publications)} publications, "
        f"{len(scenario.topics)} topics, {len(scenario.subscribers)} subscribers with "
        f"{len(scenario.subscriptions)} subscriptions on {len(scenario.ports)} ports."
    )


@options.with_groups
def plan(
    file: options.File,
    planner: PlannerOptions,
    clusters: ClusterOptions,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Save the plan (.json).")] = None,
    explain: Annotated[
        tuple[str, str] | None,
        typer.Option("--explain", metavar="SUBSCRIBER TOPIC", help="Say in words why one was decided so."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--diff", help="Say what changes from this earlier plan of the scenario.")
    ] = None,
    instructions: Annotated[
        bool,
        typer.Option(
            "--instructions",
            help="Print the instructions of `triage up` for the gateway and the network as JSON.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Work out which flow, priority class and drop rate every subscription gets; with --placement, which broker."""
    if clusters.placement is not None or clusters.correlations is not None:
        if out is not None or against is not None or instructions:
            raise ParameterError("--placement", "goes without --out, --diff and --instructions")
        show_placement(file, clusters, planner.seed, explain, as_json=json)
        return
    if instructions:
        if out is not None or explain is not None or against is not None:
            raise ParameterError("--instructions", "goes without --out, --explain and --diff")
        from triagemq.scenario import load

        terminal.print_json(_instructions(load(file), planner))
        return
    from triagemq.forecast import explanation, summary
    from triagemq.plan import diff, load_plan, save_plan
    from triagemq.scenario import load

    scenario = load(file)
    made = planner.plan(scenario)
    if out is not None:
        save_plan(made, out)
    if explain is not None:
        words = explanation(scenario, made, *explain, predicted=terminal.forecast_with_bar(scenario, made))
        terminal.show(words, words["explanation"], as_json=json)
        return
    result = summary(scenario, made, terminal.forecast_with_bar(scenario, made))
    if against is not None:
        before = load_plan(against)
        changed = str(diff(before, made, scenario)).splitlines()
        result["changes"] = [f"{_algorithms(before)} ({against}) -> {_algorithms(made)}", *changed]
    if json:
        terminal.print_json(result)
        return
    columns = {"port": "port", "rho_offered": "offered load", "rho_planned": "planned load"}
    if any("queue_rates_bps" in row for row in result["ports"]):
        columns["queue_rates"] = "rates of queues 0, 1, ... in bit/s"
    ports = [row | {"queue_rates": _queue_rates(row)} for row in result["ports"]]
    terminal.print_table("ports", columns, ports, most=SHOWN_PORTS, rest="ports")
    _print_summary(_algorithms(made), result)
    for line in result.get("changes", ()):
        terminal.screen().print(line)
    terminal.print_decisions(result["decisions"][:SHOWN_PORTS])


def _print_summary(title: str, result: dict[str, Any]) -> None:
    terminal.print_promises(result["promises"])
    terminal.print_classes(title, result["classes"], result["basis"])
    terminal.screen().print(terminal.utility_line(result["utility"]))
    terminal.print_deadlines(result["deadlines"])
    terminal.print_starved(result["starved"])


def _algorithms(made: Plan) -> str:
    return f"{made.made_by.priorities} priorities, {made.made_by.drops} drops"


def _instructions(scenario: Scenario, planner: PlannerOptions) -> dict[str, Any]:
    """The first orders of `triage up` on this scenario, as its gateway gets them, and what their addresses are for."""
    from pydantic import TypeAdapter

    from triagemq.channel.orders import Orders, OrdersChange
    from triagemq.coordinator.decide.decide import PlannerSettings, Question, decide

    limits = {name: value for name, value in planner.limits.items() if value is not None}
    network = replace(scenario, planning=replace(scenario.planning, **limits))
    settings = PlannerSettings(**planner.algorithms, flows_per_subscriber=planner.flows_per_subscriber)
    orders = decide(Question(network, settings=settings)).orders
    found = TypeAdapter(OrdersChange).dump_python(orders.since(Orders()), mode="json")
    promised = {str(key): name for name, key in orders.promised.addresses.items()}
    return {name: plain(part) for name, part in found.items() if part} | {"promised": promised}


def _queue_rates(row: dict[str, Any]) -> str:
    """
    >>> _queue_rates({"queue_rates_bps": [2e6, 1e6], "borrowing": True}), _queue_rates({})
    ('2,000,000; 1,000,000; borrowing', '-')
    """
    queue_rates = [f"{each:,.0f}" for each in row.get("queue_rates_bps", [])]
    return "; ".join([*queue_rates, *(["borrowing"] if row.get("borrowing") else [])]) or "-"


@options.with_groups
def forecast(
    file: options.File,
    planner: PlannerOptions,
    plan: options.PlanFile = None,
    formulas: options.Formulas = False,
    full: Annotated[bool, typer.Option("--full", help="With --json: every subscription too.")] = False,
    json: options.Json = False,
) -> None:
    """Predict success, latency and utility: from queueing formulas, and from a sample of events where none is known."""
    from triagemq.forecast import subscription_rows, summary
    from triagemq.scenario import load

    scenario = load(file)
    made = planner.plan(scenario, plan)
    predicted = terminal.forecast_with_bar(scenario, made, formulas=formulas)
    result = summary(scenario, made, predicted)
    if full:
        result["subscriptions"] = subscription_rows(scenario, made, predicted)
    title = f"forecast: {_algorithms(made)}"
    terminal.show(result, lambda: _print_summary(title, result), as_json=json)


# Clusters of brokers.


def show_placement(
    file: Path, clusters: ClusterOptions, seed: int, explain: tuple[str, str] | None, *, as_json: bool
) -> None:
    """Which broker serves which topics, or why one subscription is where it is."""
    from triagemq.plan.explaining import subscription_row
    from triagemq.plan.placement import explain_placement
    from triagemq.scenario import load

    scenario = load(file)
    placed = clusters.place(scenario, seed)
    if explain is not None:
        words = explain_placement(placed, subscription_row(scenario, *explain))
        found = {"subscriber": explain[0], "topic": explain[1], "explanation": words}
        terminal.show(found, words, as_json=as_json)
        return
    result = placed.as_json()
    if as_json:
        terminal.print_json(result)
        return
    columns = {
        "name": "broker",
        **{f"{metric}_use": metric for metric in _METRICS},
        "subscriptions": "subscriptions",
        "served": "topics",
    }
    rows = [
        row
        | {
            "name": f"{row['broker']} ({'head' if row['head'] else 'edge'} of {row['cluster']})",
            "served": f"{row['published_topics']} published" if row["head"] else row["topics"],
        }
        for row in result["brokers"]
    ]
    terminal.print_table(f"placement: {placed.algorithm}", columns, rows, most=SHOWN_BROKERS, rest="brokers")
    console = terminal.screen()
    console.print(f"the most used edge broker has {result['imbalance']:.2f} times the mean")
    terminal.print_decisions([asdict(each) for each in placed.decisions])


def simulate_balancing(
    file: Path,
    clusters: ClusterOptions,
    balancing: str,
    *,
    seconds: float,
    seed: int,
    with_conditions: bool,
    as_json: bool,
) -> None:
    """Simulate the clusters of a scenario with clients that move, or do not."""
    from triagemq.lab.clusters import simulate_clusters
    from triagemq.scenario import load_with_conditions
    from triagemq.scenario.conditions import Conditions

    scenario, conditions = load_with_conditions(file)
    placed = clusters.place(scenario, seed)
    with terminal.progress_bar("simulating") as progress:
        result = simulate_clusters(
            scenario,
            conditions if with_conditions else Conditions(),
            placement=placed.placement,
            balancing=balancing,
            seconds=seconds,
            progress=progress,
        )
    report = {"placement": placed.algorithm, **result.as_json()}
    if as_json:
        terminal.print_json(report)
        return
    columns = {
        "name": "broker",
        **{f"most_{metric}_use": f"most {metric}" for metric in _METRICS},
        "last_uplink_use": "uplink at the end",
        "overload_seconds": "overloaded for",
    }
    title = f"{seconds:g} s, placement {placed.algorithm}, balancing {balancing}"
    rows = [row | {"name": f"{row['broker']} ({row['cluster']})"} for row in report["brokers"]]
    terminal.print_table(title, columns, rows, most=SHOWN_BROKERS, rest="brokers")
    terminal.print_table(
        "migrations",
        {"at_seconds": "at", "topics": "topics", "source": "from", "target": "to", "reason": "reason"},
        report["migrations"],
        most=SHOWN_BROKERS,
        rest="migrations",
    )
    totals = ("needless_migrations", "events", "late_events", "late_subscriptions", "longest_wait_seconds")
    terminal.print_facts({name: report[name] for name in ("migrations", *totals)})
