"""Which methods a path has: the one place that knows, for `Allow`, OPTIONS, HEAD and refusals alike.

FastAPI keeps a route for each method of a path, and on its own answers with the methods of the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from triagemq.coordinator.api.refusing import refused


class PathMethods:
    """The methods of every path, from the routes that answer them. What can be read can be asked for its headers."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        found: dict[re.Pattern[str], set[str]] = {}
        for route in routes:
            if isinstance(route, Route):
                found.setdefault(route.path_regex, {"OPTIONS"}).update(route.methods or ())
        self._found = {path: _with_head(methods) for path, methods in found.items()}

    def of(self, path: str) -> frozenset[str]:
        """Those of one path as a client writes it; none if nothing is there."""
        return frozenset().union(*(methods for regex, methods in self._found.items() if regex.match(path)))


def _with_head(methods: set[str]) -> frozenset[str]:
    return frozenset(methods | {"HEAD"} if "GET" in methods else methods)


class Methods:
    """Answers OPTIONS, answers HEAD as GET without its content, and refuses with 405 what a path does not have."""

    def __init__(self, app: ASGIApp, methods: PathMethods) -> None:
        self._app = app
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = self._methods.of(scope["path"]) if scope["type"] == "http" else frozenset()
        if not allowed:
            await self._app(scope, receive, send)
            return
        method, headers = scope["method"], {"Allow": ", ".join(sorted(allowed))}
        if method == "OPTIONS":
            await Response(status_code=204, headers=headers)(scope, receive, send)
        elif method not in allowed:
            answer = refused(405, f"{method} is nothing that {scope['path']} does", headers)
            await answer(scope, receive, send)
        elif method == "HEAD":
            # The server that sends the answer leaves its content out: it knows what was asked.
            await self._app({**scope, "method": "GET"}, receive, send)
        else:
            await self._app(scope, receive, send)
