"""`triage check|plan|forecast FILE`: is a scenario valid, what is decided for it, and what that does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.campus import CampusOptions, show_placement
from triagemq.cli.options import (
    class_table,
    figure_table,
    forecast_with_bar,
    percent,
    print_deadlines,
    print_json,
    print_promises,
    print_starved,
    screen,
    utility_line,
    with_groups,
)
from triagemq.errors import ParameterError

if TYPE_CHECKING:
    from triagemq.coordinator.decide.decide import Decided
    from triagemq.coordinator.decide.orders import Orders
    from triagemq.plan import FlowKey, Plan, SetFlow, SetLimiter
    from triagemq.scenario import Scenario

WIDTHS_TITLE = "widths of queues 0, 1, ... in bit/s"
SHOWN_PORTS = 20
SHOWN_FLOWS = 40
SHOWN_TOPICS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What the user says about how to plan. Every field is an option of each command that takes them."""

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
        """What the scenario says unless it is given here: None where it is not."""
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


def check(file: options.File, json: options.Json = False) -> None:
    """Name every mistake in a scenario: file, line, field and the fix. Exit code 2 if there is one."""
    from triagemq.errors import ScenarioError
    from triagemq.scenario import check as check_scenario
    from triagemq.scenario import load

    problems = check_scenario(file)
    if json:
        print_json(
            {
                "file": str(file),
                "right": not problems,
                "problems": [dataclasses.asdict(each) for each in problems],
            }
        )
    else:
        for problem in problems:
            typer.echo(str(problem), err=True)
    if problems:
        raise typer.Exit(ScenarioError.exit_code)
    if not json:
        scenario = load(file)
        typer.echo(
            f"{file}: right. {len(scenario.publishers)} publishers with {len(scenario.publications)} publications, "
            f"{len(scenario.topics)} topics, {len(scenario.subscribers)} subscribers with "
            f"{len(scenario.subscriptions)} subscriptions on {len(scenario.ports)} ports."
        )


@with_groups
def plan(
    file: options.File,
    planner: PlannerOptions,
    campus: CampusOptions,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Save the plan (.json or .parquet).")
    ] = None,
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
            "--instructions", help="Print the instructions of `triage up` for the gateway and the network."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Work out which flow, priority class and drop rate every subscription gets; with --placement, which broker."""
    if campus.placement is not None or campus.correlations is not None:
        if out is not None or against is not None or instructions:
            raise ParameterError("--placement", "goes without --out, --diff and --instructions")
        show_placement(file, campus, planner.seed, explain, as_json=json)
        return
    if instructions:
        if out is not None or explain is not None or against is not None:
            raise ParameterError("--instructions", "goes without --out, --explain and --diff")
        _print_instructions(file, planner, json)
        return
    from triagemq.forecast import explanation, summary
    from triagemq.plan import diff, load_plan, save_plan
    from triagemq.scenario import load

    scenario = load(file)
    made = planner.plan(scenario)
    if out is not None:
        save_plan(made, out)
    if explain is not None:
        words = explanation(scenario, made, *explain, predicted=forecast_with_bar(scenario, made))
        if json:
            print_json(words)
        else:
            typer.echo(words["explanation"])
        return
    result = summary(scenario, made, forecast_with_bar(scenario, made))
    if against is not None:
        before = load_plan(against)
        changed = str(diff(before, made, scenario)).splitlines()
        result["changes"] = [f"{_algorithms(before)} ({against}) -> {_algorithms(made)}", *changed]
    if json:
        print_json(result)
        return
    console = screen()
    console.print(_port_table(result["ports"]))
    if len(result["ports"]) > SHOWN_PORTS:
        console.print(f"... and {len(result['ports']) - SHOWN_PORTS} more ports (--json has all)")
    print_promises(result["promises"])
    class_table(_algorithms(made), result["classes"], result["basis"])
    console.print(utility_line(result["utility"]))
    print_deadlines(result["deadlines"])
    print_starved(result["starved"])
    for line in result.get("changes", ()):
        console.print(line)
    for decision in result["decisions"][:SHOWN_PORTS]:
        console.print(f"{decision['kind']}: {decision['subject']}: {decision['reason']}", soft_wrap=True)


def _algorithms(made: Plan) -> str:
    return f"{made.made_by.priorities} priorities, {made.made_by.drops} drops"


def _print_instructions(file: Path, planner: PlannerOptions, as_json: bool) -> None:
    """The instructions for the gateway and the network, without sending them."""
    from triagemq.scenario import load

    found = instructions(_decided(load(file), planner.limits, **planner.algorithms).orders)
    if as_json:
        print_json(found)
    else:
        _show_instructions(found)


def _port_table(ports: list[dict[str, Any]]) -> Table:
    table = figure_table("ports", "port", "offered load", "planned load")
    shown = ports[:SHOWN_PORTS]
    with_widths = any("widths_bps" in row for row in shown)
    if with_widths:
        table.add_column(WIDTHS_TITLE, overflow="fold")
    for row in shown:
        cells = [str(row["port"]), percent(row["rho_offered"]), percent(row["rho_planned"])]
        table.add_row(*cells, *([_widths(row)] if with_widths else []))
    return table


def _widths(row: dict[str, Any]) -> str:
    """
    >>> _widths({"widths_bps": [2e6, 1e6], "borrowing": True}), _widths({})
    ('2,000,000; 1,000,000; borrowing', '-')
    """
    widths = [_number(each) for each in row.get("widths_bps", [])]
    return "; ".join([*widths, *(["borrowing"] if row.get("borrowing") else [])]) or "-"


def _decided(scenario: Scenario, planning: Mapping[str, Any], **algorithms: Any) -> Decided:
    """The first decision of `triage up` on this scenario; what is given in `planning` replaces what it says there."""
    from triagemq.coordinator.decide.decide import PlannerSettings, Question, decide

    given = {name: value for name, value in planning.items() if value is not None}
    changed = dataclasses.replace(scenario, planning=dataclasses.replace(scenario.planning, **given))
    most = given.get("flows_per_subscriber")
    return decide(Question(changed, settings=PlannerSettings(**algorithms, flows_per_subscriber=most)))


def instructions(orders: Orders) -> dict[str, Any]:
    """Orders as one object: every port, and every flow with its topics.

    >>> from triagemq.coordinator.decide.orders import Orders
    >>> from triagemq.plan import SetFlow, SetPort
    >>> ports = {"radio": SetPort("radio", 2e6, float("inf"), 8)}
    >>> flows = {"ff-7~0": SetFlow("ff-7~0", "radio", 0, 7, 0.0)}
    >>> found = instructions(Orders(1, ports, flows, {"ff-7": {"smoke": (2, 0.5)}}))
    >>> found["ports"]
    [{'port': 'radio', 'bandwidth_bps': 2000000.0, 'buffer_packets': None, 'classes': 8}]
    >>> found["flows"]
    [{'client_id': 'ff-7~0', 'subscriber': 'ff-7', 'port': 'radio', 'priority_class': 2, 'drop_rate': 0.5,
      'topics': ['smoke']}]
    """
    from triagemq.coordinator.decide.orders import client_id_of

    ports = [
        {
            name: None if value == math.inf else value
            for name, value in dataclasses.asdict(port).items()
            if port.widths_bps or name not in ("widths_bps", "borrowing", "floors_bps")
        }
        for port in orders.ports.values()
    ]
    flows = []
    for subscriber, planned in sorted(orders.topics.items()):
        alike: dict[tuple[int, float], list[str]] = {}
        for topic, treatment in sorted(planned.items()):
            alike.setdefault(treatment, []).append(topic)
        client_id = client_id_of(subscriber)
        flows += [
            {
                "client_id": client_id,
                "subscriber": subscriber,
                "port": orders.flows[client_id].port,
                "priority_class": priority_class,
                "drop_rate": drop_rate,
                "topics": topics,
            }
            for (priority_class, drop_rate), topics in sorted(alike.items())
        ]
    return {"ports": ports, "flows": flows} | _promised(orders)


def _promised(orders: Orders) -> dict[str, Any]:
    """Copies of promised topics by output port, and their limiters; nothing where nothing is promised."""
    named = {str(key): name.partition(" ") for name, key in orders.promised.addresses.items()}

    def row(each: SetFlow[FlowKey] | SetLimiter) -> dict[str, Any]:
        publisher, _, topic = named[str(each.key)]
        terms = dataclasses.asdict(each)
        return {"topic": topic, "publisher": publisher, "address": str(each.key)} | {
            name: terms[name] for name in terms if name not in ("key", "flow_id", "drop_rate")
        }

    found = {
        "copies": [row(each) for each in orders.copies.values()],
        "limiters": [row(each) for each in orders.limiters.values()],
    }
    return {name: rows for name, rows in found.items() if rows}


def _show_instructions(found: Mapping[str, Any]) -> None:
    console = screen()
    console.print(_port_order_table(found["ports"]))
    console.print(_flow_table(found["flows"][:SHOWN_FLOWS]))
    if len(found["flows"]) > SHOWN_FLOWS:
        console.print(f"... and {len(found['flows']) - SHOWN_FLOWS} more connections (--json has all)")
    for name, columns in _PROMISED_COLUMNS.items():
        rows = found.get(name, [])
        if rows:
            console.print(_promised_table(name, columns, rows[:SHOWN_FLOWS]))
        if len(rows) > SHOWN_FLOWS:
            console.print(f"... and {len(rows) - SHOWN_FLOWS} more {name} (--json has all)")


_PROMISED_COLUMNS = {
    "copies": {"port": "port", "priority_class": "class"},
    "limiters": {
        "port": "enters by",
        "burst_bytes": "burst bytes",
        "rate_bytes_per_second": "bytes a second",
    },
}
"""What is shown of promised topics, by the names of rows."""


def _promised_table(name: str, columns: Mapping[str, str], rows: list[dict[str, Any]]) -> Table:
    table = figure_table(name, "promised topic", "address", *columns.values())
    for row in rows:
        values = [row[each] for each in columns]
        table.add_row(
            f"{row['topic']} from {row['publisher']}",
            row["address"],
            *(value if isinstance(value, str) else _number(value) for value in values),
        )
    return table


def _port_order_table(ports: list[dict[str, Any]]) -> Table:
    table = figure_table("ports", "port", "bandwidth bit/s", "buffer packets", "classes")
    with_widths = any("widths_bps" in row for row in ports)
    if with_widths:
        table.add_column(WIDTHS_TITLE, overflow="fold")
    for row in ports:
        cells = [
            row["port"],
            _number(row["bandwidth_bps"]),
            _number(row["buffer_packets"]),
            str(row["classes"]),
        ]
        table.add_row(*cells, *([_widths(row)] if with_widths else []))
    return table


def _flow_table(flows: list[dict[str, Any]]) -> Table:
    table = figure_table("connections", "client id", "port", "class", "drop rate")
    table.add_column("topics", overflow="fold")
    for row in flows:
        table.add_row(
            row["client_id"],
            row["port"],
            str(row["priority_class"]),
            percent(row["drop_rate"]),
            _shortened(row["topics"]),
        )
    return table


def _number(value: float | None) -> str:
    """
    >>> _number(2e6), _number(None)
    ('2,000,000', 'no limit')
    """
    return "no limit" if value is None else f"{value:,.0f}"


def _shortened(topics: list[str]) -> str:
    """
    >>> _shortened(["a", "b", "c", "d"]), _shortened(["a"])
    ('a, b, c and 1 more', 'a')
    """
    more = len(topics) - SHOWN_TOPICS
    return ", ".join(topics[:SHOWN_TOPICS]) + (f" and {more} more" if more > 0 else "")


@with_groups
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
    predicted = forecast_with_bar(scenario, made, formulas=formulas)
    result = summary(scenario, made, predicted)
    if full:
        result["subscriptions"] = subscription_rows(scenario, made, predicted)
    if json:
        print_json(result)
        return
    console = screen()
    print_promises(result["promises"])
    class_table(
        f"forecast: {made.made_by.priorities} priorities, {made.made_by.drops} drops",
        result["classes"],
        result["basis"],
    )
    console.print(utility_line(result["utility"]))
    print_deadlines(result["deadlines"])
    print_starved(result["starved"])
