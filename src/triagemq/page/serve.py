"""The coordinator's process with its page: `python -m triagemq.page.serve CONFIG.json`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.responses import RedirectResponse
from starlette.types import Receive, Scope, Send

from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.serve import main as serve
from triagemq.coordinator.settings import Settings
from triagemq.errors import MissingDependencyError
from triagemq.files import PRIVATE_UMASK
from triagemq.waiting import end, is_set_within

if TYPE_CHECKING:
    from triagemq.page.context import PageContext

_LOG = logging.getLogger(__name__)
_LOAD_AFTER_SECONDS = 3.0


class Page:
    """An ASGI application under `path`.

    NiceGUI takes a second to load: soon after the start, or at the first request for a page.
    """

    path = "/page"

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        self._coordinator: ControlPlane = app.state.coordinator
        self._settings = settings
        loop = asyncio.get_running_loop()
        self._requested = asyncio.Event()
        self._pages: asyncio.Future[FastAPI] = loop.create_future()
        self._running = loop.create_task(self._run())
        app.mount(self.path, self)
        app.add_route("/", lambda request: RedirectResponse(f"{self.path}/"), include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._requested.set()
        pages = await asyncio.shield(self._pages)
        await pages(scope, receive, send)

    async def _run(self) -> None:
        await is_set_within(self._requested, _LOAD_AFTER_SECONDS)
        try:
            # In a thread: requests of clients are answered meanwhile.
            pages, context = await asyncio.to_thread(self._load)
        except Exception as error:
            self._pages.set_exception(error)
            return
        try:
            # A mounted application gets no lifespan from the server.
            async with pages.router.lifespan_context(pages):
                self._pages.set_result(pages)
                await asyncio.Event().wait()
        finally:
            await context.close()

    def _load(self) -> tuple[FastAPI, PageContext]:
        from triagemq.page.context import PageContext
        from triagemq.page.pages import build

        context = PageContext(self._coordinator, self._settings)
        return build(context), context

    async def close(self) -> None:
        """Withdraw subscriptions that were made on the page, and end its tasks."""
        await end(self._running)


def mount(app: FastAPI, settings: Settings) -> Page | None:
    """The page as a part of the application, if it can be shown."""
    if find_spec("nicegui") is None:
        _LOG.warning("no page: %s", MissingDependencyError("nicegui", "page"))
        return None
    return Page(app, settings)


def main() -> int:
    """Run with the configuration file named on the command line."""
    return serve(mount)


if __name__ == "__main__":
    os.umask(PRIVATE_UMASK)
    sys.exit(main())
