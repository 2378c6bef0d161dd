"""Options that several commands share, and how their results are printed."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from triagemq.errors import ParameterError
from triagemq.progress import Bar

if TYPE_CHECKING:
    from triagemq.exchange import BrokerAddress
    from triagemq.forecast import Forecast
    from triagemq.pipeline import SparkOptions
    from triagemq.plan import Plan
    from triagemq.scenario import Scenario

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

File = Annotated[Path, typer.Argument(help="Scenario: a YAML file, or a directory with Parquet tables.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]
Flows = Annotated[str, typer.Option("--flows", help="greedy, random, or module:function.")]
Priorities = Annotated[
    str | None,
    typer.Option("--priorities", help="greedy (default), cluster, info, random, none, or module:function."),
]
Drops = Annotated[
    str | None,
    typer.Option("--drops", help="none, flat, linear, exponential, optimal (default), or module:function."),
]
Babbling = Annotated[
    list[str] | None,
    typer.Option(help="A publisher that sends promised messages as fast as it can; may be repeated."),
]
Synchronised = Annotated[
    bool,
    typer.Option("--synchronised", help="All promised messages begin together, not in random phases."),
]
Control = Annotated[
    str,
    typer.Option(
        help="Divide ports with widths anew every 200 ms by delays from: idm, backlog, learned (default: off)."
    ),
]
DelayModelFolder = Annotated[
    Path | None, typer.Option("--delay-model", help="With --control learned: the directory of its model.")
]
Formulas = Annotated[
    bool,
    typer.Option("--formulas", help="Formulas alone: follow no sample of events where they are approximate."),
]
Scope = Annotated[str, typer.Option("--scope", help="Cut classes over the flows of one port, or global.")]
Classes = Annotated[
    int | None, typer.Option("--classes", min=1, help="Priority classes (default: the scenario's).")
]
FlowsPerSubscriber = Annotated[
    int | None,
    typer.Option(
        "--flows-per-subscriber", min=1, help="Flows a subscriber may open (default: the scenario's)."
    ),
]
RhoTolerance = Annotated[
    float | None,
    typer.Option("--rho-tolerance", help="Share of each port left free (default: the scenario's)."),
]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="Use this plan (from `triage plan -o`) instead of making one.")
]
ClientAuthority = Annotated[
    Path | None,
    typer.Option(
        "--client-ca", help="With DTLS: clients need a certificate of the authority in this file (PEM)."
    ),
]
BrokerAuthority = Annotated[
    Path | None,
    typer.Option(
        "--broker-ca", help="With mqtts://: certificate of the authority to trust (default: the system's)."
    ),
]
SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="A Spark cluster, as spark://host:7077 (default: as spark-submit or spark-defaults.conf say).",
    ),
]
SparkConf = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark's, key=value; may be repeated.")
]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of a record in the place of each parameter that is one: they are its options.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Whom:
    ...     gateway: str = "localhost"
    ...     name: str = ""
    >>> def pub(topic: str, whom: Whom, json: bool = False) -> None:
    ...     print(topic, whom, json)
    >>> import inspect
    >>> list(inspect.signature(with_groups(pub)).parameters)
    ['topic', 'gateway', 'name', 'json']
    >>> with_groups(pub)("smoke", name="room-3")
    smoke Whom(gateway='localhost', name='room-3') False
    """
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        each.name: each.annotation for each in own.parameters.values() if is_dataclass(each.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        parameters += _options(groups[each.name]) if each.name in groups else [each]
    # Python wants parameters without a default first, and a Typer command is called by names alone.
    named = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) if number else each
        for number, each in enumerate(parameters)
    ]
    signature = own.replace(parameters=named)

    @functools.wraps(command)
    def run(*arguments: Any, **given: Any) -> None:
        bound = signature.bind(*arguments, **given)
        bound.apply_defaults()
        records = {
            name: group(**{each.name: bound.arguments.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        command(**bound.arguments, **records)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in named}
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=kinds[each.name]
        )
        for each in fields(group)
    ]


def require(*packages: str) -> None:
    """An error now if a package is missing that would be needed only at the end."""
    from importlib.util import find_spec

    from triagemq.errors import MissingDependencyError

    for package in packages:
        if find_spec(package) is None:
            raise MissingDependencyError(package, MissingDependencyError.GROUPS[package])


def screen(*, stderr: bool = False) -> Console:
    """Where people read. Words stay what they are: no colon in a topic makes a picture, no bracket a colour.

    >>> screen().print("floor:fire:3 [red]")
    floor:fire:3 [red]
    """
    console = Console(stderr=stderr, emoji=False, markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # A file or another program: there is no screen to be narrow.
        console = Console(stderr=stderr, emoji=False, markup=False, highlight=False, width=120)
    return console


@contextmanager
def traffic_bar(name: str, seconds: float, *, quiet: bool = False) -> Iterator[Callable[[float, str], None]]:
    """Takes how many of the seconds have passed, and words for what goes on."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with Bar(*columns, console=screen(stderr=True), quiet=quiet) as bar:
        task = bar.add_task(name, total=seconds, now="")
        yield lambda elapsed, now: bar.update(task, completed=max(0.0, elapsed), now=now)


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[float], None]]:
    """Takes the share that is done. A bar on standard error; where that is no terminal, a line every few seconds."""
    columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn())
    with Bar(*columns, console=screen(stderr=True)) as bar:
        task = bar.add_task(name, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def algorithms(flows: str, priorities: str | None, drops: str | None) -> dict[str, str]:
    """Those that were given, by the names that the coordinator has for them."""
    chosen = {"flows": flows, "priorities": priorities, "drops": drops}
    return {name: value for name, value in chosen.items() if value is not None}


def broker_address(broker: str, authority: Path | None) -> BrokerAddress:
    """Where a broker that runs is; ParameterError if that, or a file that TLS needs, is of no use."""
    from triagemq.exchange import BrokerAddress

    address = BrokerAddress.parse(broker)
    if authority is not None:
        if not address.tls:
            raise ParameterError("--broker-ca", "goes with --broker mqtts://HOST")
        address = replace(address, ca=str(authority.absolute()))
    address.ssl_context()
    return address


def spark_options(master: str | None, conf: list[str] | None, *, ui: bool = False) -> SparkOptions:
    """How a command runs Spark, as its options say."""
    from triagemq.pipeline import SparkOptions

    settings = {}
    for setting in conf or []:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise ParameterError("--conf", f"is {setting!r}; write spark.some.setting=value")
        settings[key] = value
    return SparkOptions(master=master, conf=settings, ui=ui)


def forecast_with_bar(scenario: Scenario, plan: Plan, *, formulas: bool = False) -> Forecast:
    """The forecast of a plan; a bar shows how far the sample is, if one is needed."""
    from triagemq import forecast

    with ExitStack() as stack:
        bar: list[Callable[[float], None]] = []

        def progress(share: float) -> None:
            if not bar:
                bar.append(stack.enter_context(progress_bar("sampling")))
            bar[0](share)

        return forecast.forecast(scenario, plan, formulas=formulas, progress=progress)


def print_json(result: dict[str, Any]) -> None:
    """One object; whatever is unknown or infinite must be null by now."""
    typer.echo(json.dumps(result, allow_nan=False, indent=2, ensure_ascii=False))


def figure_table(title: str, *columns: str) -> Table:
    """A table whose columns are figures."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def print_kept_promises(promises: list[dict[str, Any]], decisions: list[dict[str, Any]]) -> None:
    """What became of each promise, and who was cut."""
    console = screen()
    if promises:
        columns = ("promise", "messages", "worst latency", "bound", "requested", "late", "limited", "lost")
        table = figure_table("promises", *columns)
        for row in promises:
            times = ("worst_latency_seconds", "bound_seconds", "max_latency_seconds")
            table.add_row(
                f"{row['topic']} from {row['publisher']} to {row['subscriber']}",
                f"{row['messages']:,}",
                *(duration(row[name]) for name in times),
                *(f"{row[name]:,}" for name in ("late", "limited", "lost")),
            )
        console.print(table)
    for row in decisions:
        console.print(f"{row['kind']}: {row['subject']}: {row['reason']}", soft_wrap=True)


def class_table(title: str, classes: list[dict[str, Any]], basis: str = "") -> None:
    """Success and latency per class, as a person reads them."""
    columns = ("class", "flows", "subscriptions", "drop rate", "success", "mean latency", "p95", "p99")
    table = figure_table(title, *columns)
    doubted = any(row.get("flagged") for row in classes)
    if doubted:
        table.add_column("approximate")
    for row in classes:
        table.add_row(
            str(row["priority_class"]),
            str(row["flows"]),
            str(row["subscriptions"]),
            percent(row["drop_rate"]),
            percent(row["success_rate"]),
            *(duration(row[name]) for name in ("mean_latency_seconds", "p95_seconds", "p99_seconds")),
            *([_doubt(row)] if doubted else []),
        )
    output = screen()
    output.print(table)
    sampled = sum(row.get("sampled", 0) for row in classes)
    if sampled:
        output.print(
            f"{sampled} of {sum(row['subscriptions'] for row in classes)} subscriptions: no formula is known for them, "
            "a sample of events was followed",
            soft_wrap=True,
        )
    elif basis not in ("", "formulas"):
        output.print(basis, soft_wrap=True)
    for row in classes:
        topics = ", ".join(row.get("example_topics", ()))
        if topics:
            output.print(f"class {row['priority_class']}: {topics}", soft_wrap=True)


def _doubt(row: dict[str, Any]) -> str:
    """By how much a class's latency and success may be off, and why."""
    if not row["flagged"]:
        return ""
    off = max(row["latency_error"], row["success_error"])
    if off > 0 and round(100 * off) == 0:
        return f"{row['flagged']} of {row['subscriptions']}: {row['flag']}"
    return f"± {100 * off:.0f} %, {row['flag']}" if off > 0 else str(row["flag"])


def print_promises(promises: list[dict[str, Any]]) -> None:
    """What is promised, with its bound and levels; and what is refused, with what would be admitted instead."""
    if not promises:
        return
    table = figure_table("promises", "promise", "bound", "requested", "to spare", "level at each port")
    refused = figure_table("refused", "promise", "requested", "would be admitted")
    for row in promises:
        name = f"{row['topic']} from {row['publisher']} to {row['subscriber']}"
        requested = duration(row["max_latency_seconds"])
        if row["admitted"]:
            levels = ", ".join(
                f"{hop['port']} {hop['level']}" for hop in row["hops"] if hop["port"] is not None
            )
            table.add_row(
                name, duration(row["bound_seconds"]), requested, duration(row["slack_seconds"]), levels
            )
        else:
            refused.add_row(name, requested, duration(row["offer_seconds"]))
    for each in (table, refused):
        if each.row_count:
            screen().print(each)


def utility_line(utility: dict[str, float | None]) -> str:
    """Achieved utility in one line."""
    return (
        f"utility {utility['achieved']:.1f} of {utility['maximum']:.1f} = {percent(utility['rate'])} "
        f"(mean of the subscriptions' ratios {percent(utility['rate_mean'])})"
    )


def print_deadlines(deadlines: dict[str, int]) -> None:
    """How many deadlines are met, if there are any."""
    if deadlines["judged"]:
        met = f"{deadlines['met']} of {deadlines['judged']}"
        screen().print(f"deadlines: {met} subscriptions get the share they ask for in time")


_FEW_STARVED, _MOST_STARVED = 40, 3


def print_starved(rows: list[dict[str, Any]]) -> None:
    """The subscriptions that get nothing, a line for each subscriber, worth most first; of many some, for each."""
    topics: dict[str, list[str]] = {}
    for row in rows:
        topics.setdefault(row["subscriber"], []).append(row["topic"])
    if rows:
        what = "1 subscription gets" if len(rows) == 1 else f"{len(rows)} subscriptions get"
        screen().print(f"{what} nothing:", soft_wrap=True)
    most = _MOST_STARVED if len(rows) > _FEW_STARVED else len(rows)
    for subscriber, several in topics.items():
        more = f" and {len(several) - most} more (--json has all)" if len(several) > most else ""
        screen().print(f"  {subscriber}: {', '.join(several[:most])}{more}", soft_wrap=True)


def percent(share: float | None) -> str:
    """A share as a percentage; a dash where it is unknown."""
    return "-" if share is None else f"{100 * share:.1f} %"


def seconds_of(option: str, text: str) -> float:
    """A time as people write it.

    >>> seconds_of("--keep-trace", "7d"), seconds_of("--keep-trace", "1.5h")
    (604800.0, 5400.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None or not float(match[1]):
        raise ParameterError(option, f"must be a number and s, m, h, d or w, such as 12h or 7d, is {text!r}")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def duration(seconds: float | None) -> str:
    """A duration in the unit a person would use; a dash where it is unknown or has no bound."""
    if seconds is None:
        return "-"
    value, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"
