"""The page's place in the application. NiceGUI takes a second to load: that is done soon after the start, when clients
have been answered, or as soon as somebody asks for a page. Nothing of it runs before that."""

from __future__ import annotations

import asyncio
import contextlib
import time
from importlib import import_module
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.responses import RedirectResponse
from starlette.types import Receive, Scope, Send

from triagemq.coordinator.coordinator import Coordinator
from triagemq.coordinator.settings import Settings
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.dashboard.desk import Desk


_SOON_SECONDS = 3.0


class Dashboard:
    """An ASGI application under `path`."""

    path = "/page"

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        self._here: Coordinator = app.state.coordinator
        self._settings = settings
        self._pages: FastAPI | None = None
        self._desk: Desk | None = None
        self._loading = asyncio.Lock()
        self._living: asyncio.Task[None] | None = None
        self._expecting = asyncio.get_running_loop().create_task(self._expect())
        app.mount(self.path, self)
        app.add_route("/", lambda request: RedirectResponse(f"{self.path}/"), include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pages = await self._loaded()
        await pages(scope, receive, send)

    async def _expect(self) -> None:
        """Whoever opens the first page does not wait for modules."""
        await asyncio.sleep(_SOON_SECONDS)
        await asyncio.to_thread(import_module, "triagemq.dashboard.pages")

    async def _loaded(self) -> FastAPI:
        async with self._loading:
            if self._pages is not None:
                return self._pages
            # In a thread: whoever announces something meanwhile is answered as quickly as ever.
            pages, self._desk = await asyncio.to_thread(self._load)
            ready = asyncio.Event()
            self._living = asyncio.get_running_loop().create_task(self._live(pages, ready))
            await ready.wait()
            self._pages = pages
        return pages

    def _load(self) -> tuple[FastAPI, Desk]:
        from triagemq.dashboard.desk import Desk
        from triagemq.dashboard.pages import build

        desk = Desk(self._here, self._settings, time.monotonic())
        return build(desk), desk

    async def _live(self, pages: FastAPI, ready: asyncio.Event) -> None:
        """From the start of NiceGUI's own tasks to their end; the server tells nobody of its lifespan."""
        try:
            async with pages.router.lifespan_context(pages):
                ready.set()
                await asyncio.Event().wait()
        finally:
            ready.set()

    async def close(self) -> None:
        """Leave everybody; subscriptions made on the page are withdrawn."""
        if self._desk is not None:
            await self._desk.close()
        with contextlib.suppress(Exception):
            await end(self._expecting, self._living)
