"""The pages, put together: each module has `show`, which fills a frame; signing in and out need no frame."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from nicegui import app as nicegui_app
from nicegui import ui
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, RedirectResponse, Response

from triagemq.coordinator.refusals import ForbiddenError, StoreError, UnauthorisedError
from triagemq.page.context import COOKIE, PageContext
from triagemq.page.frame import dark_of, framed, render, style_sheet
from triagemq.page.pages import history, network, overview, situation, subscriptions, what_if

_SHOW: dict[str, Any] = {
    "": overview.show,
    "subscriptions": subscriptions.show,
    "situation": situation.show,
    "network": network.show,
    "what-if": what_if.show,
    "history": history.show,
    "promises": overview.show_promises,
}
_LONGEST_FORM = 10_000


def build(context: PageContext) -> FastAPI:
    """The application that holds NiceGUI's; once in a process."""
    for path in _SHOW:
        _page(context, path)
    _sign_in(context)
    history.serve_report(context, nicegui_app)
    holder = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        holder,
        title="TriageMQ",
        dark=None,
        favicon="🚑",
        binding_refresh_interval=None,
        tailwind=False,
        reconnect_timeout=10.0,
        show_welcome_message=False,
        # All of what a browser loads once takes 15 ms to compress like this.
        gzip_middleware_factory=partial(GZipMiddleware, compresslevel=1),
    )
    return holder


def _page(context: PageContext, path: str) -> None:
    @ui.page(f"/{path}", response_timeout=30.0)
    async def page(request: Request) -> Response | None:
        frame = await framed(context, request, path)
        if isinstance(frame, Response):
            return frame
        await _SHOW[path](frame)
        await frame.begin()
        return None


def _sign_in(context: PageContext) -> None:
    @nicegui_app.get("/sign-in")
    async def sign_in(request: Request) -> Response:
        return _form(request)

    @nicegui_app.post("/session")
    async def session(request: Request) -> Response:
        body = (await request.body())[:_LONGEST_FORM].decode(errors="replace")
        root = request.scope.get("root_path", "")
        try:
            number = await context.sessions.sign_in(parse_qs(body).get("token", [""])[0].strip())
        except UnauthorisedError:
            return _form(request, "This is no token that is valid here.")
        except (ForbiddenError, StoreError) as error:
            return _form(request, str(error))
        answer = RedirectResponse(f"{root}/", status_code=303)
        is_secure = request.url.scheme == "https"
        answer.set_cookie(
            COOKIE, number, httponly=True, samesite="strict", secure=is_secure, path=root or "/"
        )
        return answer

    @nicegui_app.get("/sign-out")
    async def sign_out(request: Request) -> Response:
        await context.sessions.sign_out(request)
        return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in")


def _form(request: Request, problem: str = "") -> Response:
    page = render("sign_in.html", style=style_sheet(), dark=dark_of(request), problem=problem)
    return HTMLResponse(page, status_code=401 if problem else 200)
