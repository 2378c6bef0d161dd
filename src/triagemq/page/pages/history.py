"""History: what the Spark pipeline made of earlier runs, as tables, and its report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from nicegui import ui
from starlette.responses import FileResponse, PlainTextResponse, Response

from triagemq.coordinator.refusals import RequestError
from triagemq.errors import TriageError
from triagemq.page.context import PageContext
from triagemq.page.frame import Frame, update
from triagemq.page.rendering import render
from triagemq.pipeline.reading import Tables

_MOST_ROWS = 50
_FIRST = "class_performance"
_LOOK_EVERY = 10
_POINTS = 240
_MOST_PORTS = 12
_MOST_RUNS = 10


@dataclass(frozen=True, slots=True)
class PortHistory:
    """The load of an output port in the last run, from its first to its last sample: means over equal times."""

    port: str
    first_ns: int
    last_ns: int
    load: Sequence[float | None]
    most_waiting: int


def past_ports(tables: Tables) -> list[PortHistory]:
    """Of the run that was added last."""
    if not tables.rows.get("port_load"):
        return []
    rows = tables.table(
        "port_load",
        run_id=[*tables.manifest.runs][-1],
        columns=["port", "sampled_ns", "load", "backlog_packets"],
    ).to_pandas()
    found = []
    for port, own in rows.dropna(subset=["load"]).groupby("port", sort=True):
        first, last = int(own.sampled_ns.min()), int(own.sampled_ns.max())
        places = (own.sampled_ns - first) * (_POINTS - 1) // max(last - first, 1)
        means = own.load.groupby(places).mean()
        # Fewer samples than points are no gaps.
        load = (
            [float(value) for value in means]
            if len(own) <= _POINTS
            else means.reindex(range(_POINTS)).tolist()
        )
        known = [None if value != value else float(value) for value in load]
        found.append(PortHistory(str(port), first, last, known, int(own.backlog_packets.max())))
    return found[:_MOST_PORTS]


def _runs(tables: Tables) -> list[dict[str, Any]]:
    """The last runs, in the order of their beginning."""
    rows = tables.records("run_summary") if tables.rows.get("run_summary") else []
    return sorted(rows, key=lambda row: str(row.get("started")))[-_MOST_RUNS:]


def _read(directory: str, name: str | None) -> dict[str, Any]:
    """The names of the tables, the rows of one of them, and whether there is a report; in a thread."""
    tables = Tables(directory)
    names = list(tables.rows)
    chosen = name if name in names else _FIRST if _FIRST in names else names[0] if names else ""
    rows = tables.records(chosen, limit=_MOST_ROWS) if chosen else []
    flat = [{key: value for key, value in row.items() if not isinstance(value, list | dict)} for row in rows]
    return {
        "names": names,
        "chosen": chosen,
        "rows": flat,
        "total": tables.rows.get(chosen, 0),
        "runs": len(tables.manifest.runs),
        "report": (Path(directory) / "report.html").is_file(),
        "ports": past_ports(tables),
        "past": _runs(tables),
    }


async def show(frame: Frame) -> None:
    """A choice of tables, the rows, and the report below."""
    context = frame.context
    directory = context.settings.tables
    frame.panel("", render("history_head.html"))
    past = frame.panel("")
    with ui.element("div").classes("controls"):
        select = ui.select([], label="Table").props("outlined dense")
    table, report = frame.panel("panel"), frame.panel("")
    seconds = 0

    async def look() -> None:
        try:
            if directory is None:
                raise FileNotFoundError
            found = await asyncio.to_thread(_read, directory, select.value)
        except (TriageError, OSError):
            select.set_visibility(False)
            update(table, render("history_nothing.html", directory=directory))
            return
        select.set_visibility(True)
        if select.options != found["names"]:
            select.set_options(found["names"], value=found["chosen"])
        update(table, render("history_table.html", **found))
        update(past, render("history_past.html", **found))
        update(report, render("history_report.html", root=frame.root) if found["report"] else "")

    async def refresh() -> None:
        nonlocal seconds
        if seconds % _LOOK_EVERY == 0:
            await look()
        seconds += 1

    select.on_value_change(look)
    frame.every_second(refresh)


def serve_report(context: PageContext, pages: FastAPI) -> None:
    """The pipeline's report, for those who may look."""

    @pages.get("/report")
    async def report(request: Request) -> Response:
        try:
            await context.sessions.of(request)
        except RequestError as error:
            return PlainTextResponse(str(error), status_code=error.status)
        path = None if context.settings.tables is None else Path(context.settings.tables) / "report.html"
        if path is None or not path.is_file():
            return PlainTextResponse("there is no report yet", status_code=404)
        return FileResponse(path, media_type="text/html")
