"""Subscribers that the page itself is: a subscription made on it is a real one, and its events come here.

So what the page shows of it is measured like everybody's. They stay until they are withdrawn or the coordinator ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

from triagemq.addresses import place
from triagemq.client import Event, Subscriber
from triagemq.coordinator.settings import Settings
from triagemq.errors import ClientError, ParameterError
from triagemq.waiting import end

_LEASE_SECONDS = 3.0
_REPORT_SECONDS, _REPORTS = 0.4, 15
"""How often a guest reports after a change, so that it is soon known what the change has done, and how many times."""
_MOST_GUESTS = 100


class Guests:
    """By name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._subscribers: dict[str, Subscriber] = {}
        self._reporting: dict[str, asyncio.Task[None]] = {}
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
        max_latency_seconds: float | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """Want a topic as a guest of that name; the same again changes what it is worth."""
        async with self._opening:
            guest = self._subscribers.get(name)
            if guest is None:
                if len(self._subscribers) >= _MOST_GUESTS:
                    raise ParameterError("subscriber", f"the page has {_MOST_GUESTS} subscribers already")
                guest = Subscriber(
                    address,
                    name=name,
                    token=token,
                    port=port,
                    lease_seconds=_LEASE_SECONDS,
                    on_event=on_event,
                    ssl_context=self._context(),
                )
                await guest.__aenter__()
                self._subscribers[name] = guest
            try:
                await guest.subscribe(topic, utility=utility, max_latency_seconds=max_latency_seconds)
            except BaseException:
                await self._leave_if_idle(name)
                raise
            await end(self._reporting.get(name))
            self._reporting[name] = asyncio.get_running_loop().create_task(_report_often(guest))

    async def unsubscribe(self, name: str, topic: str) -> None:
        """Want it no more; a guest that wants nothing leaves."""
        async with self._opening:
            await self._subscribers[name].unsubscribe(topic)
            await self._leave_if_idle(name)

    async def _leave_if_idle(self, name: str) -> None:
        if not self._subscribers[name].wanted:
            await end(self._reporting.pop(name, None))
            await self._subscribers.pop(name).close()

    async def close(self) -> None:
        guests, self._subscribers = self._subscribers, {}
        await end(*self._reporting.values())
        await asyncio.gather(*(guest.close() for guest in guests.values()), return_exceptions=True)

    def _context(self) -> ssl.SSLContext | None:
        certificate = self._settings.tls_certificate
        if certificate is None:
            return None
        context = ssl.create_default_context(cafile=certificate)
        # It is the own process that is asked, over loopback, whatever name the certificate is made for.
        context.check_hostname = False
        return context

    def own_address(self, port: int) -> str:
        """Where this process is reached from itself."""
        scheme = "http" if self._settings.tls_certificate is None else "https"
        host = self._settings.host.strip("[]")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{scheme}://{place(host, port)}"


async def _report_often(guest: Subscriber) -> None:
    for _ in range(_REPORTS):
        await asyncio.sleep(_REPORT_SECONDS)
        with contextlib.suppress(ClientError):
            await guest.report()
