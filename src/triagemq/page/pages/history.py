"""History: what the Spark pipeline made of earlier runs, as tables, and its report."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from nicegui import ui
from starlette.responses import FileResponse, PlainTextResponse, Response

from triagemq.coordinator.refusals import RequestError
from triagemq.errors import TriageError
from triagemq.page.context import PageContext
from triagemq.page.frame import Frame, TemplatePanel
from triagemq.pipeline.reading import Tables

_MOST_ROWS = 50
_FIRST = "class_performance"
_LOOK_EVERY = 10
_MOST_RUNS = 10


def _read(directory: str, name: str | None) -> dict[str, Any]:
    """The names of the tables, the rows of one of them, and whether there is a report; in a thread."""
    tables = Tables(directory)
    names = list(tables.rows)
    chosen = name if name in names else _FIRST if _FIRST in names else names[0] if names else ""
    rows = tables.records(chosen, limit=_MOST_ROWS) if chosen else []
    flat = [{key: value for key, value in row.items() if not isinstance(value, list | dict)} for row in rows]
    runs = tables.records("run_summary") if tables.rows.get("run_summary") else []
    return {
        "names": names,
        "chosen": chosen,
        "rows": flat,
        "total": tables.rows.get(chosen, 0),
        "runs": len(tables.manifest.runs),
        "report": (Path(directory) / "report.html").is_file(),
        "past": sorted(runs, key=lambda row: str(row.get("started")))[-_MOST_RUNS:],
    }


async def show(frame: Frame) -> None:
    """A choice of tables, the rows, and the report below."""
    context = frame.context
    directory = context.settings.tables
    TemplatePanel("history_head.html", "").show()
    past = TemplatePanel("history_past.html", "")
    with ui.element("div").classes("controls"):
        select = ui.select([], label="Table").props("outlined dense")
    table, report = TemplatePanel("history_table.html"), TemplatePanel("history_report.html", "")

    async def look() -> None:
        try:
            if directory is None:
                raise FileNotFoundError
            found = await asyncio.to_thread(_read, directory, select.value)
        except (TriageError, OSError):
            select.set_visibility(False)
            table.show(directory=directory)
            return
        select.set_visibility(True)
        if select.options != found["names"]:
            select.set_options(found["names"], value=found["chosen"])
        table.show(**found)
        past.show(**found)
        report.show(root=frame.root, **found)

    select.on_value_change(look)
    frame.every_second(look, _LOOK_EVERY)


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
