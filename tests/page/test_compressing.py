"""What browsers load is compressed once for all of them, and otherwise as it was."""

from __future__ import annotations

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from triagemq.page.pages import Compressing


def test_what_never_changes_is_asked_for_once_and_everything_else_every_time() -> None:
    asked: list[str] = []

    async def file(request: Request) -> PlainTextResponse:
        asked.append(request.url.path)
        found = "missing" not in request.url.path
        return PlainTextResponse("x" * 2_000, status_code=200 if found else 404)

    async def run() -> list[httpx.Response]:
        routes = [Route("/{rest:path}", file)]
        transport = httpx.ASGITransport(app=Compressing(Starlette(routes=routes)))
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            plain = {"accept-encoding": "identity"}
            return [
                await client.get("/static/a.js"),
                await client.get("/static/a.js"),
                await client.get("/static/a.js", headers=plain),
                await client.get("/static/a.js", headers={"if-none-match": "1"}),
                await client.get("/static/missing.js"),
                await client.get("/static/missing.js"),
                await client.get("/live"),
                await client.get("/live"),
            ]

    answers = asyncio.run(run())
    assert asked == ["/static/a.js"] * 3 + ["/static/missing.js"] * 2 + ["/live"] * 2
    assert all(answer.text == "x" * 2_000 for answer in answers)
    assert answers[1].headers["content-encoding"] == "gzip"
    assert "content-encoding" not in answers[2].headers
