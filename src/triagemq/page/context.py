"""What all pages share, and the subscribers of the page itself: a subscription made on it is a real one."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from dataclasses import dataclass, field, replace

from starlette.requests import HTTPConnection

from triagemq.addresses import place
from triagemq.certificates import trust_only
from triagemq.client import Subscriber
from triagemq.coordinator.access.tokens import ANYONE, Caller
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.refusals import ForbiddenError, UnauthorisedError
from triagemq.coordinator.service import Service
from triagemq.coordinator.settings import Settings
from triagemq.coordinator.store import begin_page_session, end_page_session
from triagemq.errors import ParameterError
from triagemq.page.readings import Readings
from triagemq.page.values import LatestValues

_LEASE_SECONDS = 3.0
"""They report three times in it: the effect of a change is known soon."""
_MOST_SUBSCRIBERS = 100


class PageSubscribers:
    """Subscribers by name, until they are withdrawn or the coordinator ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._subscribers: dict[str, Subscriber] = {}
        self._opening = asyncio.Lock()

    def __contains__(self, name: object) -> bool:
        return name in self._subscribers

    async def subscribe(
        self,
        name: str,
        topic: str,
        utility: str,
        *,
        address: str,
        token: str | None,
        port: str | None = None,
    ) -> None:
        """Subscribe to a topic under that name, or change what it is worth."""
        async with self._opening:
            subscriber = self._subscribers.get(name)
            if subscriber is None:
                if len(self._subscribers) >= _MOST_SUBSCRIBERS:
                    raise ParameterError(
                        "subscriber", f"the page has {_MOST_SUBSCRIBERS} subscribers already"
                    )
                subscriber = Subscriber(
                    address,
                    name=name,
                    token=token,
                    port=port,
                    lease_seconds=_LEASE_SECONDS,
                    # The request goes to this process over loopback.
                    ssl_context=trust_only(self._settings.tls_certificate),
                )
                await subscriber.__aenter__()
                self._subscribers[name] = subscriber
            try:
                await subscriber.subscribe(topic, utility=utility)
            except BaseException:
                await self._leave_if_idle(name)
                raise

    async def unsubscribe(self, name: str, topic: str) -> None:
        """Unsubscribe; a subscriber without topics is withdrawn."""
        async with self._opening:
            await self._subscribers[name].unsubscribe(topic)
            await self._leave_if_idle(name)

    async def _leave_if_idle(self, name: str) -> None:
        if not self._subscribers[name].subscriptions:
            await self._subscribers.pop(name).close()

    async def close(self) -> None:
        subscribers, self._subscribers = self._subscribers, {}
        await asyncio.gather(
            *(subscriber.close() for subscriber in subscribers.values()), return_exceptions=True
        )

    def own_address(self, port: int) -> str:
        """The URL of this process on loopback."""
        scheme = "http" if self._settings.tls_certificate is None else "https"
        host = self._settings.host.strip("[]")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{scheme}://{place(host, port)}"


class PageContext:
    """The coordinator, its settings, and the state of the page that all sessions share."""

    def __init__(self, coordinator: ControlPlane, settings: Settings) -> None:
        self.coordinator = coordinator
        self.settings = settings
        self.sessions = Sessions(coordinator.service)
        self.readings = Readings(coordinator)
        self.values = LatestValues()
        self.subscribers = PageSubscribers(settings)

    @property
    def brokers(self) -> list[str]:
        """URLs of all brokers with known passwords."""
        joined = [each.broker for each in self.coordinator.runtime.gateways if each.broker]
        own = self.settings.page_broker or self.settings.broker
        return [*dict.fromkeys([*([own] if own else []), *joined])]

    async def close(self) -> None:
        await asyncio.gather(
            self.subscribers.close(), self.readings.close(), self.values.close(), return_exceptions=True
        )


COOKIE = "triage_page"
_SIGNED_IN_SECONDS = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class PageSession:
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

    async def of(self, connection: HTTPConnection) -> PageSession:
        """The session of a request; UnauthorisedError if it has to sign in."""
        if not self._service.access:
            return PageSession(None, replace(ANYONE, reached=connection.url.hostname or ""))
        number = connection.cookies.get(COOKIE, "")
        found = await asyncio.to_thread(self._service.store.page_session, _digest(number), time.time_ns())
        if found is None:
            raise UnauthorisedError
        return await self.refresh(PageSession(_sealed(bytes.fromhex(found), number).decode(), ANYONE))

    async def refresh(self, session: PageSession) -> PageSession:
        """The same session with its present rights."""
        if session.secret is None:
            return session
        caller = await self._service.tokens.caller(session.secret)
        caller.require_look()
        return PageSession(session.secret, caller)

    async def require_operator(self, session: PageSession) -> Caller:
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
