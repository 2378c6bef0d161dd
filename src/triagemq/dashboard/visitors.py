"""Who looks at the page. A token is given once, in a form; the browser keeps a number that stands for it.

Rights are those of the token over REST, looked up again and again: one that is revoked ends what it was good for. Where
access is off, everyone may do everything, as over REST.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace

from starlette.requests import HTTPConnection

from triagemq.coordinator.access.tokens import ANYONE, Caller
from triagemq.coordinator.refusals import ForbiddenError, UnauthorisedError
from triagemq.coordinator.service import Service

COOKIE = "triage_page"
_SIGNED_IN_SECONDS = 12 * 3600.0
_MOST_VISITORS = 1_000


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody with a token, or without one where none is needed."""

    secret: str | None = field(repr=False)
    caller: Caller

    @property
    def may_change(self) -> bool:
        return self.caller.is_operator

    @property
    def words(self) -> str:
        """What the page calls it."""
        if self.secret is None:
            return "no tokens needed"
        label = f"{self.caller.label}, " if self.caller.label else ""
        return f"{label}{'operator' if self.may_change else 'viewer'}"


class Visitors:
    """Everyone who has signed in, by the number in the cookie."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._secrets: dict[str, tuple[str, float]] = {}

    @property
    def needs_token(self) -> bool:
        return self._service.access

    async def sign_in(self, secret: str) -> str:
        """A new number for a token that may look; UnauthorisedError or ForbiddenError if it may not."""
        (await self._service.tokens.caller(secret)).require_look()
        now = time.monotonic()
        self._secrets = {
            number: (kept, until) for number, (kept, until) in self._secrets.items() if until > now
        }
        while len(self._secrets) >= _MOST_VISITORS:
            del self._secrets[next(iter(self._secrets))]
        number = secrets.token_urlsafe(32)
        self._secrets[number] = secret, now + _SIGNED_IN_SECONDS
        return number

    def sign_out(self, connection: HTTPConnection) -> None:
        self._secrets.pop(connection.cookies.get(COOKIE, ""), None)

    async def of(self, connection: HTTPConnection) -> Visitor:
        """Who asks; UnauthorisedError if it has to sign in."""
        if not self._service.access:
            return Visitor(None, replace(ANYONE, reached=connection.url.hostname or ""))
        secret, until = self._secrets.get(connection.cookies.get(COOKIE, ""), ("", 0.0))
        if until <= time.monotonic():
            raise UnauthorisedError
        return await self.again(Visitor(secret, ANYONE))

    async def again(self, visitor: Visitor) -> Visitor:
        """The same with the rights of now."""
        if visitor.secret is None:
            return visitor
        caller = await self._service.tokens.caller(visitor.secret)
        caller.require_look()
        return Visitor(visitor.secret, caller)

    async def require_operator(self, visitor: Visitor) -> Caller:
        """For whatever changes something; refused in words."""
        caller = (await self.again(visitor)).caller
        if not caller.is_operator:
            raise ForbiddenError("this token may look and not change: sign in with an operator's")
        return caller
