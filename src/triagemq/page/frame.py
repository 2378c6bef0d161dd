"""What surrounds every page: navigation, health, light and dark, and refusals said in words."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from nicegui import ui
from starlette.responses import RedirectResponse

from triagemq.coordinator.access.tokens import Caller
from triagemq.coordinator.refusals import ForbiddenError, UnauthorisedError
from triagemq.errors import TriageError
from triagemq.page.context import PageContext, PageSession
from triagemq.page.rendering import render, script, style_sheet

PAGES = {
    "": "Overview",
    "subscriptions": "Subscriptions",
    "situation": "Situation",
    "network": "Network",
    "what-if": "What if",
    "history": "History",
    "promises": "Promises",
}
"""By path; the order of the navigation."""

DARK_COOKIE = "triage_dark"
_SECOND = 1.0


class Frame:
    """One page in one session. A page puts its panels in and says what to do every second."""

    def __init__(self, context: PageContext, request: Request, session: PageSession, path: str) -> None:
        self.context = context
        self.session = session
        self.root = request.scope.get("root_path", "")
        server = request.scope.get("server")
        self.port: int | None = None if server is None else server[1]
        """The port by which this process was reached."""
        self._every_second: list[Callable[[], Awaitable[None] | None]] = []
        chosen = dark_of(request)
        self._dark = ui.dark_mode(chosen)
        ui.page_title(f"{PAGES[path]} – TriageMQ")
        ui.add_css(style_sheet())
        ui.add_body_html(f"<script>{script()}</script>")
        with ui.element("header").classes("bar"):
            self.panel("places", render("bar.html", pages=PAGES, here=path, root=self.root))
            self._state()
        self.panel("contact", '<p id="contact" role="status" hidden></p>')
        self._notice = self.panel("contact")
        self._beat = 0

    def _state(self) -> None:
        with ui.element("div").classes("state"):
            self._health = self.panel("quiet small")
            ui.label(self.session.words).classes("quiet small")
            ui.button(icon="contrast", on_click=self._switch).props(
                'flat dense round aria-label="light or dark"'
            ).classes("dark-switch")
            if self.session.secret is not None:
                ui.link("Sign out", f"{self.root}/sign-out").classes("small")

    def _switch(self) -> None:
        """Remembered by the browser."""
        ui.run_javascript(
            "const dark = !document.body.classList.contains('body--dark');"
            f"document.cookie = '{DARK_COOKIE}=' + (dark ? 1 : 0) + ';path={self.root or '/'};max-age=31536000;"
            "SameSite=Strict'; location.reload();"
        )

    def panel(self, classes: str = "panel", content: str = "") -> ui.html:
        """A part of the page that is written anew when what it shows has changed."""
        return ui.html(content, sanitize=False).classes(classes)

    def every_second(self, refresh: Callable[[], Awaitable[None] | None]) -> None:
        self._every_second.append(refresh)

    async def begin(self) -> None:
        """Show everything once, and then every second."""
        self.context.readings.look()
        await self._refresh()
        ui.timer(_SECOND, self._refresh, immediate=False)

    async def _refresh(self) -> None:
        try:
            self.session = await self.context.sessions.refresh(self.session)
        except (UnauthorisedError, ForbiddenError):
            ui.navigate.to(f"{self.root}/sign-in")
            return
        self.context.readings.look()
        health = self.context.coordinator.health()
        reasons = (check["reason"] for check in health["checks"].values() if not check["ok"])
        self._beat += 1
        update(
            self._health,
            render(
                "health.html",
                health=health,
                reason=next(reasons, None) or health["status"],
                # Something new every second: by that the browser knows that it is in contact.
                beat=self._beat,
            ),
        )
        now = self.context.readings.latest
        old = None if now is None else now.old_seconds(time.time())
        update(self._notice, render("notice.html", old_seconds=old))
        for refresh in self._every_second:
            done = refresh()
            if done is not None:
                await done

    async def changing(self, change: Callable[[Caller], Awaitable[Any]], done: str) -> bool:
        """Do what only operators may, and say that it is done or why not."""
        try:
            await change(await self.context.sessions.require_operator(self.session))
        except TriageError as error:
            ui.notify(str(error), type="negative", multi_line=True, close_button="Close")
            return False
        ui.notify(done, type="positive")
        return True


def update(panel: ui.html, content: str) -> None:
    """Sent to the browser only if it is different."""
    if panel.content != content:
        panel.content = content


def dark_of(request: Request) -> bool | None:
    """The choice of the session; None: as the browser prefers."""
    return {"1": True, "0": False}.get(request.cookies.get(DARK_COOKIE, ""))


async def framed(context: PageContext, request: Request, path: str) -> Frame | RedirectResponse:
    """The frame of a page, or the way to sign in."""
    try:
        session = await context.sessions.of(request)
    except (UnauthorisedError, ForbiddenError):
        return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in")
    return Frame(context, request, session, path)
