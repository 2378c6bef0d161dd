"""Sessions of browsers. A token is given once, in a form; the browser keeps a number that stands for it.

Rights are those of the token over REST, looked up at each use: a revoked token ends its sessions. Where access is off,
everyone may do everything, as over REST.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from dataclasses import dataclass, field, replace

from starlette.requests import HTTPConnection

from triagemq.coordinator.access.tokens import ANYONE, Caller
from triagemq.coordinator.refusals import ForbiddenError, UnauthorisedError
from triagemq.coordinator.service import Service
from triagemq.coordinator.store.tables import begin_page_session, end_page_session

COOKIE = "triage_page"
_SIGNED_IN_SECONDS = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that signed in with a token, or without one where none is needed."""

    secret: str | None = field(repr=False)
    caller: Caller

    @property
    def may_change(self) -> bool:
        return self.caller.is_operator

    @property
    def words(self) -> str:
        """The words of the page for it."""
        if self.secret is None:
            return "no tokens needed"
        label = f"{self.caller.label}, " if self.caller.label else ""
        return f"{label}{'operator' if self.may_change else 'viewer'}"


class Sessions:
    """Sessions by the number in the cookie; they survive a restart of the coordinator.

    The store has neither the numbers nor the tokens: a token is sealed with its number.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def needs_token(self) -> bool:
        return self._service.access

    async def sign_in(self, secret: str) -> str:
        """A new number for a token that may look; UnauthorisedError or ForbiddenError if it may not."""
        (await self._service.tokens.caller(secret)).require_look()
        number = secrets.token_urlsafe(32)
        now_ns = time.time_ns()
        await self._service.store.write(
            begin_page_session,
            _digest(number),
            _sealed(secret.encode(), number).hex(),
            now_ns,
            now_ns + int(_SIGNED_IN_SECONDS * 1e9),
        )
        return number

    async def sign_out(self, connection: HTTPConnection) -> None:
        await self._service.store.write(end_page_session, _digest(connection.cookies.get(COOKIE, "")))

    async def of(self, connection: HTTPConnection) -> Session:
        """The session of a request; UnauthorisedError if it has to sign in."""
        if not self._service.access:
            return Session(None, replace(ANYONE, reached=connection.url.hostname or ""))
        number = connection.cookies.get(COOKIE, "")
        found = await asyncio.to_thread(self._service.store.page_session, _digest(number), time.time_ns())
        if found is None:
            raise UnauthorisedError
        return await self.refresh(Session(_sealed(bytes.fromhex(found), number).decode(), ANYONE))

    async def refresh(self, session: Session) -> Session:
        """The same session with its present rights."""
        if session.secret is None:
            return session
        caller = await self._service.tokens.caller(session.secret)
        caller.require_look()
        return Session(session.secret, caller)

    async def require_operator(self, session: Session) -> Caller:
        """The caller of a change; ForbiddenError if it may not."""
        caller = (await self.refresh(session)).caller
        if not caller.is_operator:
            raise ForbiddenError("this token may look and not change: sign in with an operator's")
        return caller


def _digest(number: str) -> str:
    return hashlib.sha256(number.encode("utf-8", "surrogatepass")).hexdigest()


def _sealed(octets: bytes, number: str) -> bytes:
    """Octets under a pad that only this number gives, used once; the same again opens them.

    >>> _sealed(_sealed(b"triage_1", "number"), "number")
    b'triage_1'
    """
    pad = hashlib.shake_256(b"page token " + number.encode()).digest(len(octets))
    return bytes(one ^ other for one, other in zip(octets, pad, strict=True))
