"""What all pages share, and the subscribers of the page itself: a subscription made on it is a real one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

from triagemq.addresses import place
from triagemq.client import Event, Subscriber
from triagemq.coordinator.coordinator import Coordinator
from triagemq.coordinator.settings import Settings
from triagemq.errors import ClientError, ParameterError
from triagemq.page.readings import Readings
from triagemq.page.sessions import Sessions
from triagemq.page.values import LatestValues
from triagemq.waiting import end

_LEASE_SECONDS = 3.0
_REPORT_SECONDS, _REPORTS = 0.4, 15
"""Reports after a change, so that its effect is known soon."""
_MOST_SUBSCRIBERS = 100


class PageSubscribers:
    """Subscribers by name, until they are withdrawn or the coordinator ends."""

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
                    on_event=on_event,
                    ssl_context=self._context(),
                )
                await subscriber.__aenter__()
                self._subscribers[name] = subscriber
            try:
                await subscriber.subscribe(topic, utility=utility, max_latency_seconds=max_latency_seconds)
            except BaseException:
                await self._leave_if_idle(name)
                raise
            await end(self._reporting.get(name))
            self._reporting[name] = asyncio.get_running_loop().create_task(_report_often(subscriber))

    async def unsubscribe(self, name: str, topic: str) -> None:
        """Unsubscribe; a subscriber without topics is withdrawn."""
        async with self._opening:
            await self._subscribers[name].unsubscribe(topic)
            await self._leave_if_idle(name)

    async def _leave_if_idle(self, name: str) -> None:
        if not self._subscribers[name].wanted:
            await end(self._reporting.pop(name, None))
            await self._subscribers.pop(name).close()

    async def close(self) -> None:
        subscribers, self._subscribers = self._subscribers, {}
        await end(*self._reporting.values())
        await asyncio.gather(
            *(subscriber.close() for subscriber in subscribers.values()), return_exceptions=True
        )

    def _context(self) -> ssl.SSLContext | None:
        certificate = self._settings.tls_certificate
        if certificate is None:
            return None
        context = ssl.create_default_context(cafile=certificate)
        # The request goes to this process over loopback, whatever name the certificate is made for.
        context.check_hostname = False
        return context

    def own_address(self, port: int) -> str:
        """The URL of this process on loopback."""
        scheme = "http" if self._settings.tls_certificate is None else "https"
        host = self._settings.host.strip("[]")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{scheme}://{place(host, port)}"


async def _report_often(subscriber: Subscriber) -> None:
    for _ in range(_REPORTS):
        await asyncio.sleep(_REPORT_SECONDS)
        with contextlib.suppress(ClientError):
            await subscriber.report()


class PageContext:
    """Made at the first request for a page; `began` is that moment of the monotonic clock."""

    def __init__(self, coordinator: Coordinator, settings: Settings, began: float) -> None:
        self.coordinator = coordinator
        self.settings = settings
        self.sessions = Sessions(coordinator.service)
        self.readings = Readings(coordinator, began)
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
