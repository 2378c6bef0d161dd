"""What commands print for people, and their JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from triagemq.progress import Bar

if TYPE_CHECKING:
    from triagemq.forecast import Forecast
    from triagemq.plan import Plan
    from triagemq.scenario import Scenario

_SHARE = re.compile(r"(_rate|_use|_share|^rho_\w+)$")
_FIGURE = re.compile(r"[-±]?[\d,.e+]*( (%|m?s))?( [±(].*)?")
_SHOWN_NAMES = 3
_FEW_STARVED, _MOST_STARVED = 40, 3


Progressing = Callable[..., None]
"""Takes how much is done, and perhaps news."""


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
def progress_bar(name: str, total: float | None = 1.0, *, quiet: bool = False) -> Iterator[Progressing]:
    """Takes how much of the total is done, and news. A bar on standard error; without a terminal lines now and then."""
    columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn())
    with Bar(
        *columns, TextColumn("{task.fields[news]}", markup=False), console=screen(stderr=True), quiet=quiet
    ) as bar:
        task = bar.add_task(name, total=total, news="")
        yield lambda done, news="": bar.update(task, completed=max(0.0, done), news=news)


def forecast_with_bar(scenario: Scenario, plan: Plan, *, formulas: bool = False) -> Forecast:
    """The forecast of a plan; a bar shows how far its sample is."""
    from triagemq import forecast

    with progress_bar("sampling") as progress:
        return forecast.forecast(scenario, plan, formulas=formulas, progress=progress)


def say_problem(problem: Exception | str) -> None:
    """What goes wrong, or should be known, while a command goes on: on standard error."""
    typer.echo(f"triage: {problem}", err=True)


def print_json(result: dict[str, Any]) -> None:
    """One object; whatever is unknown or infinite must be null by now."""
    typer.echo(json.dumps(result, allow_nan=False, indent=2, ensure_ascii=False))


def show(result: Mapping[str, Any], for_people: str | Callable[[], object], *, as_json: bool) -> None:
    """A result of a command: one JSON object, or what people get, a text or what prints it."""
    if as_json:
        print_json(dict(result))
    elif isinstance(for_people, str):
        typer.echo(for_people)
    else:
        for_people()


def print_facts(result: Mapping[str, Any]) -> None:
    """A line for each fact that there is; of a list it is its length."""
    for name, value in result.items():
        if value or (value == 0 and value is not False):
            label = name.removesuffix("_seconds").replace("_", " ")
            screen().print(f"{label}: {in_words(name, value)}", soft_wrap=True)


def in_words(name: str, value: Any) -> str:
    """A fact as people read it: of a mapping what is there, of a list how many it has.

    >>> in_words("runs", {"run-0": {"events": 1_200, "late": 0}}), in_words("guessed", ["a", "b"])
    ('run-0 events 1,200', '2')
    """
    if isinstance(value, Mapping):
        known = ((key, each) for key, each in value.items() if each)
        return ", ".join(f"{key.replace('_', ' ')} {in_words(key, each)}" for key, each in known)
    return f"{len(value):,}" if isinstance(value, list | tuple) else cell(name, value)


def print_table(
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    *,
    most: int | None = None,
    rest: str = "rows",
) -> None:
    """Rows as a table, `most` of them at most."""
    screen().print(make_table(title, columns, rows[:most]))
    if most is not None and len(rows) > most:
        screen().print(f"... and {len(rows) - most} more {rest} (--json has all)")


def make_table(title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """`columns` are the headings of the rows' fields, `cell` says how these are written."""
    table = Table(title=title or None, title_justify="left", caption_justify="left")
    cells = [[cell(field, row.get(field)) for field in columns] for row in rows]
    for number, heading in enumerate(columns.values()):
        own = [row[number] for row in cells]
        is_text = any(each and not _FIGURE.fullmatch(each) for each in own)
        # What names a row stays in one piece: it is to be copied.
        width = max(map(len, own), default=0) if number == 0 else None
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*row)
    return table


def cell(field: str, value: Any) -> str:
    """A value in the unit that its field's name ends with; a dash where it is unknown.

    >>> [cell("p95_seconds", 0.2), cell("drop_rate", 0.25), cell("sent", 12_345), cell("p95_seconds", None)]
    ['200 ms', '25.0 %', '12,345', '-']
    >>> cell("topics", ["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        more = len(value) - _SHOWN_NAMES
        return ", ".join(value[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
    unit = field.removesuffix("_ci95")
    if unit.endswith("_seconds"):
        return duration(value)
    if _SHARE.search(unit):
        return percent(value)
    if unit.endswith("_per_second"):
        return f"{value:,.1f}"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"


def join_classes(
    rows: Sequence[Mapping[str, Any]], **others: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of classes, each with the fields that others have of the class, under their names.

    >>> join_classes([{"priority_class": 0, "sent": 5}], forecast=[{"priority_class": 0, "sent": 6}])
    [{'priority_class': 0, 'sent': 5, 'forecast_priority_class': 0, 'forecast_sent': 6}]
    """
    found = [dict(row) for row in rows]
    for name, more in others.items():
        known = {row["priority_class"]: row for row in more}
        for row in found:
            other = known.get(row["priority_class"], {})
            row |= {f"{name}_{field}": value for field, value in other.items()}
    return found


def print_kept_promises(promises: list[dict[str, Any]], decisions: list[dict[str, Any]]) -> None:
    """What became of each promise, and who was cut."""
    if promises:
        columns = {
            "promise": "promise",
            "messages": "messages",
            "worst_latency_seconds": "worst latency",
            "bound_seconds": "bound",
            "max_latency_seconds": "requested",
            **{name: name for name in ("late", "limited", "lost")},
        }
        print_table("promises", columns, [row | _promise_name(row) for row in promises])
    print_decisions(decisions)


def _promise_name(row: Mapping[str, Any]) -> dict[str, str]:
    return {"promise": f"{row['topic']} from {row['publisher']} to {row['subscriber']}"}


def print_decisions(decisions: Sequence[Mapping[str, Any]]) -> None:
    """A line for each."""
    for row in decisions:
        screen().print(f"{row['kind']}: {row['subject']}: {row['reason']}", soft_wrap=True)


def print_classes(title: str, classes: list[dict[str, Any]], basis: str = "") -> None:
    """Success and latency per class, as a person reads them."""
    columns = {
        "priority_class": "class",
        "flows": "flows",
        "subscriptions": "subscriptions",
        "drop_rate": "drop rate",
        "success_rate": "success",
        "mean_latency_seconds": "mean latency",
        "p95_seconds": "p95",
        "p99_seconds": "p99",
    }
    if any(row.get("flagged") for row in classes):
        columns["approximate"] = "approximate"
    print_table(title, columns, [row | {"approximate": _doubt(row)} for row in classes])
    output = screen()
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
    if not row.get("flagged"):
        return ""
    off = max(row["latency_error"], row["success_error"])
    if off > 0 and round(100 * off) == 0:
        return f"{row['flagged']} of {row['subscriptions']}: {row['flag']}"
    return f"± {100 * off:.0f} %, {row['flag']}" if off > 0 else str(row["flag"])


def print_promises(promises: list[dict[str, Any]]) -> None:
    """What is promised, with its bound and levels; and what is refused, with what would be admitted instead."""
    named = [row | _promise_name(row) for row in promises]
    for row in named:
        row["levels"] = ", ".join(
            f"{hop['port']} {hop['level']}" for hop in row["hops"] if hop["port"] is not None
        )
    requested = {"promise": "promise", "max_latency_seconds": "requested"}
    proven = {"bound_seconds": "bound", "slack_seconds": "to spare", "levels": "level at each port"}
    if admitted := [row for row in named if row["admitted"]]:
        print_table("promises", requested | proven, admitted)
    if refused := [row for row in named if not row["admitted"]]:
        print_table("refused", requested | {"offer_seconds": "would be admitted"}, refused)


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


def print_starved(rows: list[dict[str, Any]]) -> None:
    """The subscriptions that get nothing or less than their minimum: by reason a line for each subscriber, worth most
    first; of many some, for each."""
    most = _MOST_STARVED if len(rows) > _FEW_STARVED else len(rows)
    reasons: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        what = "less than the minimum" if row["min_share"] > 0 else "nothing"
        reasons.setdefault((what, row["reason"]), []).append(row)
    for (what, reason), some in reasons.items():
        topics: dict[str, list[str]] = {}
        for row in some:
            got = f" ({row['share']:.1%} of {row['min_share']:.1%})" if row["min_share"] > 0 else ""
            topics.setdefault(row["subscriber"], []).append(f"{row['topic']}{got}")
        count = "1 subscription gets" if len(some) == 1 else f"{len(some)} subscriptions get"
        screen().print(f"{count} {what}; {reason}:", soft_wrap=True)
        for subscriber, several in topics.items():
            more = f" and {len(several) - most} more (--json has all)" if len(several) > most else ""
            screen().print(f"  {subscriber}: {', '.join(several[:most])}{more}", soft_wrap=True)


def percent(share: float | None) -> str:
    """A share as a percentage; a dash where it is unknown."""
    return "-" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float | None) -> str:
    """A duration in the unit a person would use; a dash where it is unknown or has no bound."""
    if seconds is None:
        return "-"
    value, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"
