"""History: what the Spark pipeline made of earlier runs, as tables, and its report."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from nicegui import ui
from starlette.responses import FileResponse, PlainTextResponse, Response

from triagemq.coordinator.refusals import RequestError
from triagemq.dashboard.desk import Desk
from triagemq.dashboard.frame import Frame, update
from triagemq.dashboard.showing import shown
from triagemq.errors import TriageError
from triagemq.pipeline.reading import Tables

_MOST_ROWS = 50
_FIRST = "class_performance"
_LOOK_EVERY = 10


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
    }


async def show(frame: Frame) -> None:
    """A choice of tables, the rows, and the report below."""
    desk = frame.desk
    directory = desk.settings.tables
    frame.panel("", shown("history_head.html"))
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
            update(table, shown("history_nothing.html", directory=directory))
            return
        select.set_visibility(True)
        if select.options != found["names"]:
            select.set_options(found["names"], value=found["chosen"])
        update(table, shown("history_table.html", **found))
        update(report, shown("history_report.html", root=frame.root) if found["report"] else "")

    async def refresh() -> None:
        nonlocal seconds
        if seconds % _LOOK_EVERY == 0:
            await look()
        seconds += 1

    select.on_value_change(look)
    frame.every_second(refresh)


def serve_report(desk: Desk, pages: FastAPI) -> None:
    """The pipeline's report, for those who may look."""

    @pages.get("/report")
    async def report(request: Request) -> Response:
        try:
            await desk.visitors.of(request)
        except RequestError as error:
            return PlainTextResponse(str(error), status_code=error.status)
        path = None if desk.settings.tables is None else Path(desk.settings.tables) / "report.html"
        if path is None or not path.is_file():
            return PlainTextResponse("there is no report yet", status_code=404)
        return FileResponse(path, media_type="text/html")
