"""Web pages of other origins stay out: which Host a request may name, which Origin may change something, and headers
that keep the page from being framed or running what is not its own.

A browser on an operator's machine reaches a coordinator on loopback. Without tokens nothing else tells the operator's
own requests from those of a page that he happens to have open.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triagemq.coordinator.api.refusing import refused

_POLICY_VIOLATION = 1008
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_HEADERS = {
    # NiceGUI compiles templates in the browser and configures itself in inline scripts.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


class OriginCheck:
    """Middleware around everything. `names` are host names of this coordinator beside its addresses and localhost.

    `check_host` is for an exchange without tokens: a name that a stranger's DNS points here (DNS rebinding) is refused.
    With tokens a foreign name brings neither a cookie nor a token along.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], check_host: bool) -> None:
        self._app = app
        self._configured = {each.lower() for each in names}
        self._names = self._configured | {socket.gethostname().lower(), "localhost"}
        self._check_host = check_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            # Before it is accepted, a closed WebSocket is answered with HTTP 403.
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": refusal[1]})
        else:
            await refused(*refusal)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._check_host and host and not self._is_here(_host_name(host)):
            return 421, (
                f"{host!r} is no name of this exchange: without tokens it answers to its addresses, to localhost, and "
                "to the name that --advertise gives it"
            )
        changes = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        if origin is None or not changes:
            return None
        authority = origin.partition("://")[2].lower()
        # A proxy in front may have replaced Host: a configured name is enough.
        if authority and (authority == host.lower() or _host_name(authority) in self._configured):
            return None
        return 403, f"a page of {origin!r} may change nothing here"

    def _is_here(self, name: str) -> bool:
        """A page cannot come from an address that is not its own: names alone can be pointed elsewhere."""
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _host_name(authority: str) -> str:
    """Without the port; a port that is no number is none. What is malformed has no name.

    >>> _host_name("[::1]:8080"), _host_name("LOCALHOST:80"), _host_name("example.org"), _host_name("[::1")
    ('::1', 'localhost', 'example.org', '')
    """
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sent
