"""Requests before a path answers them: caller, origin, limits, refusals.

A refusal is always `{"detail": "one clear line"}`, never a traceback, never a secret."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import resource
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlsplit

import h11
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import HTTPException as TooLong
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request as Handshake

from triagemq.channel.messages import ControlError
from triagemq.coordinator.access.tokens import ANYONE, Caller, Role
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.refusals import StoreError, UnauthorisedError
from triagemq.errors import TriageError

_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)
_WILDCARDS = ("0.0.0.0", "::")

# Only for the OpenAPI description: the header is read below, so that every refusal is the same.
_bearer = HTTPBearer(auto_error=False, description="A token, as `triage token create` prints it.")


def coordinator_of(connection: HTTPConnection) -> ControlPlane:
    found: ControlPlane = connection.app.state.coordinator
    return found


async def caller_of(connection: HTTPConnection) -> Caller:
    """The caller; UnauthorisedError if access is on and there is no valid token."""
    service = coordinator_of(connection).service
    if not service.access:
        return replace(ANYONE, reached=_reached(connection), address=_address(connection))
    headers = connection.headers.getlist("authorization")
    scheme, _, secret = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise UnauthorisedError
    caller = await service.tokens.caller(secret.strip())
    return replace(caller, reached=_reached(connection), address=_address(connection))


def _address(connection: HTTPConnection) -> str:
    """That of the client; over a Unix socket it is this machine's."""
    return (connection.client.host if connection.client is not None else "") or "127.0.0.1"


def _reached(connection: HTTPConnection) -> str:
    """The host that the client named, or the address that it came to."""
    named = connection.url.hostname or ""
    if _HOST.fullmatch(named) and named not in _WILDCARDS:
        return named
    host, port = connection.scope.get("server") or ("", None)
    # A Unix socket has no port.
    return host if port is not None else "127.0.0.1"


async def _caller(
    request: Request, _described: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    return await caller_of(request)


async def _reader(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require_look()
    return caller


async def _operator(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(Role.OPERATOR)
    return caller


AnyCaller = Annotated[Caller, Depends(_caller)]
Reader = Annotated[Caller, Depends(_reader)]
Operator = Annotated[Caller, Depends(_operator)]
Injected = Annotated[ControlPlane, Depends(coordinator_of)]


class Body(BaseModel):
    """Base of what is taken: unknown keys are mistakes, and texts are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Detail(BaseModel):
    """Why a request was refused."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Detail, "description": words}
    for status, words in {
        400: "cannot be carried out",
        401: "no valid token",
        403: "the token does not allow it",
        404: "not there, or not yours",
        405: "not a method of this path; Allow lists those it has",
        409: "the name is taken, or named twice",
        413: "the request is too long",
        421: "not a name of this coordinator, where there are no tokens",
        422: "the request is not understood",
        503: "not now",
    }.items()
}


class NotYetAnswer(BaseModel):
    """What was withdrawn is withdrawn for good, but the gateway has not confirmed that yet."""

    in_force: bool
    detail: str


NOT_YET: dict[int | str, dict[str, Any]] = {
    202: {"model": NotYetAnswer, "description": "done, and not yet in force at the gateway"}
}


async def gone(coordinator: ControlPlane) -> Response:
    """The answer to a withdrawal or revocation: 204 if the gateway follows that, else 202 and why."""
    if await coordinator.runtime.rights_in_force():
        return Response(status_code=204)
    why = f"not yet in force at {coordinator.where_not_in_force()}"
    answer = NotYetAnswer(in_force=False, detail=f"{why}; it is sent until it is")
    return JSONResponse(answer.model_dump(), status_code=202)


_LOG = logging.getLogger("triagemq.coordinator")
_LONGEST_DETAIL = 2_000
_SHOWN_MISTAKES = 5
_ABOUT_JSON = {
    "unexpected_keyword_argument": "Extra inputs are not permitted",
    "dataclass_type": "Input should be an object",
    "tuple_type": "Input should be a valid list",
}


def refuse_in_words(app: FastAPI) -> None:
    """Give the app a handler for each kind of error."""
    handlers: dict[type[Exception], Any] = {
        TriageError: _triage_error,
        RequestValidationError: _invalid,
        HTTPException: _http,
        Exception: _unexpected,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def refused(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """A refusal as it goes out."""
    # What clients send may hold what UTF-8 cannot: the answer must.
    line = " ".join(detail.encode("utf-8", "replace").decode().split())[:_LONGEST_DETAIL]
    return JSONResponse({"detail": line}, status, headers)


async def _triage_error(_request: Request, error: TriageError) -> JSONResponse:
    challenge = {"WWW-Authenticate": "Bearer"} if isinstance(error, UnauthorisedError) else None
    status = 503 if isinstance(error, ControlError | StoreError) else getattr(error, "status", 400)
    more = "; nothing was changed, try again later" if isinstance(error, StoreError) else ""
    return refused(status, f"{error}{more}", challenge)


async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    found = error.errors()
    lines = [f"{_place(each['loc'])}: {_words(each)}" for each in found[:_SHOWN_MISTAKES]]
    more = f"; and {len(found) - _SHOWN_MISTAKES} more" if len(found) > _SHOWN_MISTAKES else ""
    return refused(422, "; ".join(lines) + more)


def _words(mistake: Mapping[str, Any]) -> str:
    """In pydantic's words, but for those about Python: clients send JSON."""
    words = str(mistake["msg"]).replace("Tuple should have", "List should have")
    return _ABOUT_JSON.get(mistake["type"], words)


def _place(location: tuple[str | int, ...]) -> str:
    return ".".join(str(part)[:100] for part in location)


async def _http(request: Request, error: HTTPException) -> Response:
    if error.status_code != 405:
        return refused(error.status_code, str(error.detail), dict(error.headers or {}))
    routes = (each for each in request.app.state.routes if each.matches(request.scope)[0] != Match.NONE)
    methods = {method for each in routes for method in getattr(each, "methods", None) or ()}
    headers = {"Allow": ", ".join(sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    return refused(405, f"{request.method} is nothing that {request.url.path} does", headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refused(500, "the coordinator made a mistake; its log says more")


class BodyLimit:
    """Refuses requests whose bodies are too long, before they are read into memory."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = f"a request may hold {self._most_bytes} bytes at most; send it in parts"
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated[:20]) > self._most_bytes:
            await refused(413, refusal)(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most_bytes:
                # FastAPI turns any other error into one about a body that cannot be parsed.
                raise TooLong(413, refusal)
            return message

        await self._app(scope, counted, send)


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
    """Middleware around everything. `names` are host names of this coordinator besides its addresses and localhost.

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
            if scope.get("method") == "HEAD":
                # The server that sends the answer omits its content: it knows the method.
                scope = {**scope, "method": "GET"}
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
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return name in self._names or name.endswith(".localhost")


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


_HEADER_SECONDS = 10.0
_BODY_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_MOST_CONNECTIONS = 16_384
_OTHER_DESCRIPTORS = 256
"""For the store, gateways, the page's subscribers and the interpreter."""

_AT_ONCE = 32

BACKLOG = 128
"""So many are accepted before those that make room for them are closed, and no more."""

MESSAGE_BYTES = 1 << 20
"""Of a WebSocket message from a page; gateways, which report all their flows, have `GATEWAY_MESSAGE_BYTES`."""
GATEWAY_MESSAGE_BYTES = 64 << 20


class Connections:
    """All that are open, in the order of their last step; `most` at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        # By descriptor, and when it is closed unless something happens; None while a request is served.
        self._open: dict[int, tuple[socket.socket, float | None]] = {}

    def admit(self, connection: socket.socket) -> bool:
        """Whether there is room for another one; if need be, those that have been incomplete or idle for longest go."""
        if len(self._open) >= self._most:
            self._forget_closed()
        if len(self._open) >= self._most:
            self._close([each for each, until in self._open.values() if until is not None][:_AT_ONCE])
        if len(self._open) >= self._most:
            return False
        self._open.pop(connection.fileno(), None)
        self._open[connection.fileno()] = connection, time.monotonic() + _HEADER_SECONDS
        return True

    def now(self, number: int, seconds: float | None) -> None:
        """The connection with this descriptor has come a step further, and has so long for the next one."""
        if (known := self._open.pop(number, None)) is not None:
            self._open[number] = known[0], None if seconds is None else time.monotonic() + seconds

    async def keep_looking(self) -> None:
        """Close what takes too long, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._forget_closed()
            now = time.monotonic()
            self._close([each for each, until in self._open.values() if until is not None and until < now])

    def _forget_closed(self) -> None:
        self._open = {number: each for number, each in self._open.items() if each[0].fileno() == number}

    def _close(self, connections: Iterable[socket.socket]) -> None:
        """Their transports see the end of the sockets and close them."""
        for each in connections:
            self._open.pop(each.fileno(), None)
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class ConnectionListener(socket.socket):
    """A listening socket whose connections are known."""

    def __init__(self, listening: socket.socket, connections: Connections) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if self._connections.admit(connection):
            return connection, address
        # All others are being served.
        connection.close()
        raise BlockingIOError


def http_protocol(connections: Connections) -> type[H11Protocol]:
    """The HTTP protocol that reports how far each request has come."""

    class TimedProtocol(H11Protocol):
        _number: int | None = None
        _reported: object = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._number = transport.get_extra_info("socket").fileno()

        def handle_events(self) -> None:
            super().handle_events()
            self._report()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._report()

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            super().handle_websocket_upgrade(event)
            if self._number is not None:
                connections.now(self._number, None)
                self._number = None

        def _report(self) -> None:
            state = self.conn.their_state
            if self._number is None or state is self._reported:
                return
            self._reported = state
            seconds = {h11.IDLE: _HEADER_SECONDS, h11.SEND_BODY: _BODY_SECONDS}.get(state)
            connections.now(self._number, seconds)

    return TimedProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Messages of gateways may be large, those of others may not."""

    def handle_connect(self, event: Handshake) -> None:
        if not event.path.partition("?")[0].endswith("/channel"):
            self.conn.max_size = MESSAGE_BYTES
        super().handle_connect(event)


def most_connections() -> int:
    """As many as there are descriptors for, which are raised to what this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = soft - min(_OTHER_DESCRIPTORS, soft // 2)
    return min(free, _MOST_CONNECTIONS) if soft != resource.RLIM_INFINITY else _MOST_CONNECTIONS
