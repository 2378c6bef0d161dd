"""Who sends a request: the bearer token of its Authorization header, and nothing else."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from triagemq.coordinator.access import ANYONE, Caller, Role
from triagemq.coordinator.coordinator import Coordinator
from triagemq.coordinator.refusals import UnauthorisedError

__all__ = ["Asker", "Here", "Operator", "coordinator_of", "who_asks"]

# Only for the OpenAPI description: the header is read below, so that every refusal is the same.
_bearer = HTTPBearer(auto_error=False, description="A token, as `triage token create` prints it.")


def coordinator_of(connection: HTTPConnection) -> Coordinator:
    found: Coordinator = connection.app.state.coordinator
    return found


async def who_asks(connection: HTTPConnection) -> Caller:
    """The caller; UnauthorisedError if access is on and there is no valid token."""
    service = coordinator_of(connection).service
    if not service.access:
        return ANYONE
    headers = connection.headers.getlist("authorization")
    scheme, _, secret = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise UnauthorisedError
    return await service.tokens.caller(secret.strip())


async def _caller(
    request: Request, _described: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    return await who_asks(request)


async def _operator(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(Role.OPERATOR)
    return caller


def _here(request: Request) -> Coordinator:
    return coordinator_of(request)


Asker = Annotated[Caller, Depends(_caller)]
Operator = Annotated[Caller, Depends(_operator)]
Here = Annotated[Coordinator, Depends(_here)]
