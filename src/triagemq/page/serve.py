"""The coordinator's process with its page: `python -m triagemq.page.serve CONFIG.json`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.responses import RedirectResponse
from starlette.types import Receive, Scope, Send

from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.serve import main as serve
from triagemq.coordinator.settings import Settings
from triagemq.errors import MissingDependencyError
from triagemq.exchange.private_files import PRIVATE_UMASK
from triagemq.waiting import end

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
        self._pages: FastAPI | None = None
        self._context: PageContext | None = None
        self._loading = asyncio.Lock()
        self._living: asyncio.Task[None] | None = None
        self._expecting = asyncio.get_running_loop().create_task(self._expect())
        app.mount(self.path, self)
        app.add_route("/", lambda request: RedirectResponse(f"{self.path}/"), include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pages = await self._loaded()
        await pages(scope, receive, send)

    async def _expect(self) -> None:
        """Load modules before the first page is opened."""
        await asyncio.sleep(_LOAD_AFTER_SECONDS)
        await asyncio.to_thread(import_module, "triagemq.page.pages")

    async def _loaded(self) -> FastAPI:
        async with self._loading:
            if self._pages is not None:
                return self._pages
            # In a thread: requests of clients are answered as quickly as ever.
            pages, self._context = await asyncio.to_thread(self._load)
            ready = asyncio.Event()
            self._living = asyncio.get_running_loop().create_task(self._live(pages, ready))
            await ready.wait()
            self._pages = pages
        return pages

    def _load(self) -> tuple[FastAPI, PageContext]:
        from triagemq.page.context import PageContext
        from triagemq.page.pages import build

        context = PageContext(self._coordinator, self._settings, time.monotonic())
        return build(context), context

    async def _live(self, pages: FastAPI, ready: asyncio.Event) -> None:
        """Run NiceGUI's own tasks; a mounted application gets no lifespan of the server."""
        try:
            async with pages.router.lifespan_context(pages):
                ready.set()
                await asyncio.Event().wait()
        finally:
            ready.set()

    async def close(self) -> None:
        """Withdraw subscriptions that were made on the page, and end its tasks."""
        if self._context is not None:
            await self._context.close()
        with contextlib.suppress(Exception):
            await end(self._expecting, self._living)


def mount(app: FastAPI, settings: Settings) -> Page | None:
    """The page as a part of the application, if it can be shown."""
    if find_spec("nicegui") is None:
        _LOG.warning("no page: %s", MissingDependencyError("nicegui", "page"))
        return None
    return Page(app, settings)


def main() -> None:
    """Run with the configuration file named on the command line."""
    serve(mount)


if __name__ == "__main__":
    os.umask(PRIVATE_UMASK)
    main()
