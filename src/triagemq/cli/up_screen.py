"""What `triage up` shows: what to try next, a table while it runs, and measurement beside forecast at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

from triagemq.cli.options import duration, figure_table, percent, screen, utility_line

if TYPE_CHECKING:
    from triagemq.live.up.exchange import Exchange
    from triagemq.live.up.run import Glance, LiveResult, Snapshot


@contextmanager
def live_screen(*, wanted: bool) -> Iterator[Live | None]:
    """A place on standard error that is written over; None where nobody looks."""
    console = screen(stderr=True)
    if not (wanted and console.is_terminal):
        yield None
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield live


def next_steps(running: Exchange) -> list[str]:
    """What to type in another terminal, where an exchange has no clients of its own."""
    whom = [] if running.rest == "http://127.0.0.1:8080" else ["--coordinator", running.rest]
    authority = running.options.coordinator.get("tls_certificate") or running.certificate
    whom += [] if authority is None else ["--ca", str(authority)]
    where = " ".join(whom)
    steps = [
        f"triage sub -t 'building/#' --utility log:10 {where}".rstrip(),
        f"triage pub -t building/3/smoke --rate 20 {where}".rstrip(),
    ]
    if running.options.coordinator.get("access"):
        steps.insert(
            0,
            "export TRIAGE_TOKEN=$(triage token create --role publisher --role subscriber --publish '#' "
            f"--subscribe '#' --state {running.state})",
        )
    return steps


def live_table(
    running: Exchange,
    seen: Snapshot | None,
    elapsed: float,
    seconds: float | None,
    glance: Glance | None = None,
) -> Table:
    """Packets by class since the start; with a glance at a scenario's run latency beside forecast and utility, too."""
    clock = f"{max(0.0, elapsed):.0f} s" + ("" if seconds is None else f" of {seconds:.0f} s")
    if seen is None:
        return Table(title=f"{clock}: the gateway is being started again", title_justify="left")
    columns = ["class", "sent", "waiting", "dropped on purpose", "dropped by buffer"]
    forecast = {}
    if glance is not None:
        columns += ["mean latency", "forecast"]
        forecast = {row["priority_class"]: row for row in glance.forecast.by_level}
        glance.so_far.look()
    plan = f"plan {seen.generation}, {seen.clients:,} connections, {seen.messages:,} events"
    table = figure_table(f"{clock}, {plan}", *columns)
    table.caption_justify = "left"
    for level, traffic in sorted(seen.traffic.items()):
        cells = [
            str(level),
            f"{traffic.sent:,}",
            f"{seen.waiting.get(level, 0):,}",
            f"{traffic.dropped_by_policy:,}",
            f"{traffic.dropped_by_buffer:,}",
        ]
        if glance is not None:
            promised = forecast.get(level, {}).get("mean_latency_seconds")
            cells += [duration(glance.so_far.mean_latency_seconds(level)), duration(promised)]
        table.add_row(*cells)
    notes = []
    if glance is not None and (utility := glance.so_far.utility) is not None:
        promised = glance.forecast.figures["utility"]["rate"]
        notes.append(f"{utility_line(utility)}, forecast {percent(promised)}")
    restarted = [f"{name} {count}" for name, count in running.restarts.items() if count]
    if restarted:
        notes.append(f"started again: {', '.join(restarted)}")
    if not seen.traffic:
        notes.append("nobody has subscribed yet")
    table.caption = "\n".join(notes) or None
    return table


def comparison_table(result: LiveResult, title: str) -> Table:
    """Success and latency per class, measured beside forecast, and what was dropped on purpose."""
    columns = (
        "class",
        "copies",
        "success",
        "forecast",
        "dropped on purpose",
        "mean latency",
        "forecast",
        "p99",
    )
    table = figure_table(title, *columns)
    forecast = {row["priority_class"]: row for row in result.forecast.by_level}
    for row in result.measured.classes:
        expected = forecast.get(row["priority_class"], {})
        table.add_row(
            str(row["priority_class"]),
            f"{row['count']:,}",
            percent(row["success_rate"]),
            percent(expected.get("success_rate")),
            f"{row['dropped_by_policy']:,}",
            duration(row["mean_latency_seconds"]),
            duration(expected.get("mean_latency_seconds")),
            duration(row["p99_seconds"]),
        )
    return table
