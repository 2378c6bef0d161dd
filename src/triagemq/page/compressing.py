"""Compression of what browsers load. What never changes is compressed once, and not for each browser anew.

NiceGUI's own files are a megabyte: to compress them takes a tenth of a second of the coordinator's event loop.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_UNCHANGING = "/static/"
_MOST_KEPT = 100
_ASKS_FOR_LESS = ("if-none-match", "if-modified-since", "range")


class Compressing(GZipMiddleware):
    """Middleware around NiceGUI's application."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, compresslevel=6)
        self._kept: dict[tuple[str, bool], list[Message]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or _UNCHANGING not in scope["path"]:
            await super().__call__(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = scope["path"], "gzip" in headers.get("accept-encoding", "")
        plain = not any(name in headers for name in _ASKS_FOR_LESS)
        if plain and key in self._kept:
            for message in self._kept[key]:
                await send(message)
            return
        sent: list[Message] = []

        async def remember(message: Message) -> None:
            sent.append(message)
            await send(message)

        await super().__call__(scope, receive, remember)
        if plain and len(self._kept) < _MOST_KEPT and sent[0].get("status") == 200:
            self._kept[key] = sent
