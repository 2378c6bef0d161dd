"""What surrounds every page: templates, drawings, the style sheet; navigation, health, light and dark, refusals."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any

from fastapi import Request
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from nicegui import ui
from starlette.responses import RedirectResponse

from triagemq.coordinator.access.tokens import Caller
from triagemq.coordinator.refusals import ForbiddenError, UnauthorisedError
from triagemq.errors import TriageError
from triagemq.page.context import PageContext, PageSession
from triagemq.pipeline.report.figures import LEVELS
from triagemq.pipeline.report.formatting import FILTERS


def clock_time(decided_ns: int) -> str:
    """Of the day, on this machine's clock."""
    return time.strftime("%H:%M:%S", time.localtime(decided_ns / 1e9))


def level_colour(priority_class: int) -> str:
    """The colour that a class has in the report, too."""
    return f"var(--level-{min(max(priority_class, 0), LEVELS - 1)})"


def sparkline(
    values: Iterable[float | None], width: int = 110, height: int = 26, highest: float | None = None
) -> Markup:
    """A line through the values; what is not known is a gap.

    >>> str(sparkline([0, 1, None, 2])).count("M")
    2
    """
    points = list(values)
    known = [value for value in points if value is not None]
    if len(known) < 2:
        return Markup('<svg class="spark" width="{}" height="{}"></svg>').format(width, height)
    top = max(highest or 0.0, *known) or 1.0
    step = width / max(len(points) - 1, 1)
    path, pen = [], "M"
    for place, value in enumerate(points):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{place * step:.1f} {height - 2 - value / top * (height - 4):.1f}")
        pen = "L"
    return Markup(
        '<svg class="spark" width="{}" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" '
        'aria-hidden="true"><path d="{}"/></svg>'
    ).format(width, height, width, height, " ".join(path))


def stacked(rows: Sequence[Sequence[float]], width: int = 640, height: int = 180) -> Markup:
    """Areas on top of one another, one for each class, with the highest total."""
    if len(rows) < 2:
        return Markup("")
    depth = max(len(row) for row in rows)
    totals = [[sum(row[: level + 1]) for row in rows] for level in range(depth)]
    top = max(totals[-1]) or 1.0
    step = width / (len(rows) - 1)

    def line(values: Sequence[float]) -> list[str]:
        return [
            f"{place * step:.1f} {height - value / top * (height - 6):.1f}"
            for place, value in enumerate(values)
        ]

    drawn, below = Markup(""), [f"{width} {height}", f"0 {height}"]
    for level, values in enumerate(totals):
        above = line(values)
        drawn += Markup('<polygon style="fill:{}" points="{}"/>').format(
            level_colour(level), " ".join([*above, *below]).replace("  ", " ")
        )
        below = above[::-1]
    return Markup('<svg class="areas" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>').format(
        width, height, drawn
    )


def decision_words(kind: str) -> str:
    """What a kind of decision is called.

    >>> decision_words("slow_down")
    'Slow down'
    """
    return kind.replace("_", " ").capitalize()


@functools.cache
def _templates() -> Environment:
    # Names may hold anything: they are escaped wherever a template puts them.
    made = Environment(
        loader=PackageLoader("triagemq.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    own = (clock_time, level_colour, sparkline, stacked, decision_words)
    made.filters |= FILTERS | {each.__name__: each for each in own}
    return made


def render(template: str, **what: object) -> str:
    """A template as HTML."""
    return _templates().get_template(template).render(**what)


@functools.cache
def script() -> str:
    """What the browser does by itself: it says when it has lost contact."""
    return files("triagemq.page").joinpath("templates/page.js").read_text(encoding="utf-8")


@functools.cache
def style_sheet() -> str:
    """The report's colours for light and dark, as the page switches between them, and the page's own rules."""
    report = files("triagemq.pipeline.report").joinpath("templates/page.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", report, re.DOTALL)[:2]
    own = files("triagemq.page").joinpath("templates/page.css").read_text(encoding="utf-8")
    return f"body {{{light}}}\nbody.body--dark {{{dark}}}\n{own}"


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


class TemplatePanel(ui.html):
    """A part of the page with a template; it is sent to the browser anew when what it shows has changed."""

    def __init__(self, template: str, classes: str = "panel") -> None:
        super().__init__("", sanitize=False)
        self.classes(classes)
        self._template = template

    def show(self, **what: object) -> None:
        content = render(self._template, **what)
        if self.content != content:
            self.content = content


def wide(field: Any) -> Any:
    """An input field over the whole width."""
    return field.props("outlined dense").style("width:100%")


class Frame:
    """One page in one session. A page puts its panels in and says what to do every second."""

    def __init__(self, context: PageContext, request: Request, session: PageSession, path: str) -> None:
        self.context = context
        self.session = session
        self.root = request.scope.get("root_path", "")
        server = request.scope.get("server")
        self.port: int | None = None if server is None else server[1]
        """The port by which this process was reached."""
        self._refreshing: list[tuple[int, Callable[[], Awaitable[None] | None]]] = []
        chosen = dark_of(request)
        self._dark = ui.dark_mode(chosen)
        ui.page_title(f"{PAGES[path]} – TriageMQ")
        ui.add_css(style_sheet())
        ui.add_body_html(f"<script>{script()}</script>")
        with ui.element("header").classes("bar"):
            TemplatePanel("bar.html", "places").show(pages=PAGES, current=path, root=self.root)
            self._state()
        TemplatePanel("contact.html", "contact").show()
        self._notice = TemplatePanel("notice.html", "contact")
        self._beat = 0

    def _state(self) -> None:
        with ui.element("div").classes("state"):
            self._health = TemplatePanel("health.html", "quiet small")
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

    def every_second(self, refresh: Callable[[], Awaitable[None] | None], seconds: int = 1) -> None:
        """Call it at once and then every second, or less often."""
        self._refreshing.append((seconds, refresh))

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
        # The beat is new every second: by that the browser knows that it is in contact.
        self._health.show(health=health, reason=next(reasons, None) or health["status"], beat=self._beat)
        now = self.context.readings.latest
        old = None if now is None else now.old_seconds(time.time())
        self._notice.show(old_seconds=old)
        for seconds, refresh in self._refreshing:
            # The first beat is 1.
            if (self._beat - 1) % seconds == 0 and (done := refresh()) is not None:
                await done

    async def changing(self, change: Callable[[Caller], Awaitable[Any]], done: str) -> bool:
        """Make a change that needs an operator, and show that it is done or why not."""
        try:
            await change(await self.context.sessions.require_operator(self.session))
        except TriageError as error:
            ui.notify(str(error), type="negative", multi_line=True, close_button="Close")
            return False
        ui.notify(done, type="positive")
        return True


def dark_of(request: Request) -> bool | None:
    """The choice of the session; None: as the browser prefers."""
    return {"1": True, "0": False}.get(request.cookies.get(DARK_COOKIE, ""))


async def framed(context: PageContext, request: Request, path: str) -> Frame | RedirectResponse:
    """The frame of a page, or a redirect to sign in."""
    try:
        session = await context.sessions.of(request)
    except (UnauthorisedError, ForbiddenError):
        return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in")
    return Frame(context, request, session, path)
