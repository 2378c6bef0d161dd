"""How requests are refused: always `{"detail": "one clear line"}`, never a traceback, never a secret."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException as TooLong
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triagemq.coordinator.channel.messages import ControlError
from triagemq.coordinator.refusals import RequestError, TooMuchError, UnauthorisedError
from triagemq.errors import TriageError

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
    handlers: dict[type[Exception], Callable[[Request, Any], Awaitable[JSONResponse]]] = {
        TriageError: _triage_error,
        RequestValidationError: _invalid,
        HTTPException: _http,
        Exception: _unexpected,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def answer_of(error: TriageError) -> tuple[int, str]:
    """HTTP status and detail of an error."""
    status = (
        error.status if isinstance(error, RequestError) else 503 if isinstance(error, ControlError) else 400
    )
    return status, str(error)


def refused(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """A refusal as it goes out."""
    # What clients send may hold what UTF-8 cannot: the answer must.
    line = " ".join(detail.encode("utf-8", "replace").decode().split())[:_LONGEST_DETAIL]
    return JSONResponse({"detail": line}, status, headers)


async def _triage_error(_request: Request, error: TriageError) -> JSONResponse:
    challenge = {"WWW-Authenticate": "Bearer"} if isinstance(error, UnauthorisedError) else None
    return refused(*answer_of(error), challenge)


async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
    found = error.errors()
    lines = [f"{_place(each['loc'])}: {_words(each)}" for each in found[:_SHOWN_MISTAKES]]
    more = f"; and {len(found) - _SHOWN_MISTAKES} more" if len(found) > _SHOWN_MISTAKES else ""
    return refused(422, "; ".join(lines) + more)


def _words(mistake: Mapping[str, Any]) -> str:
    """In pydantic's words, but for those about Python: clients send JSON."""
    said = str(mistake["msg"]).replace("Tuple should have", "List should have")
    return _ABOUT_JSON.get(mistake["type"], said)


def _place(location: tuple[str | int, ...]) -> str:
    return ".".join(str(part)[:100] for part in location)


async def _http(_request: Request, error: HTTPException) -> JSONResponse:
    return refused(error.status_code, str(error.detail), dict(error.headers or {}))


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
        refusal = TooMuchError(f"a request may hold {self._most_bytes} bytes at most; send it in parts")
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated[:20]) > self._most_bytes:
            await refused(*answer_of(refusal))(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most_bytes:
                # FastAPI turns any other error into one about a body that cannot be parsed.
                raise TooLong(413, str(refusal))
            return message

        await self._app(scope, counted, send)
