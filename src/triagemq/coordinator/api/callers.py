"""Who sends a request: the bearer token of its Authorization header, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from triagemq.coordinator.access.tokens import ANYONE, Caller, Role
from triagemq.coordinator.coordinator import Coordinator
from triagemq.coordinator.refusals import UnauthorisedError

_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)
_WILDCARDS = ("0.0.0.0", "::")

# Only for the OpenAPI description: the header is read below, so that every refusal is the same.
_bearer = HTTPBearer(auto_error=False, description="A token, as `triage token create` prints it.")


def coordinator_of(connection: HTTPConnection) -> Coordinator:
    found: Coordinator = connection.app.state.coordinator
    return found


async def caller_of(connection: HTTPConnection) -> Caller:
    """The caller; UnauthorisedError if access is on and there is no valid token."""
    service = coordinator_of(connection).service
    if not service.access:
        return replace(ANYONE, reached=_reached(connection))
    headers = connection.headers.getlist("authorization")
    scheme, _, secret = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise UnauthorisedError
    return replace(await service.tokens.caller(secret.strip()), reached=_reached(connection))


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
Injected = Annotated[Coordinator, Depends(coordinator_of)]
