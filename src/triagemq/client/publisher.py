"""A publisher: connects to the gateway, says how much it will publish or lets that be measured, and publishes.

async with Publisher("http://127.0.0.1:8080", name="smoke-12") as publisher:
    await publisher.publish("building/3/12/smoke", b"0.7", qos=1)
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import Mapping
from typing import Any

from triagemq.client.connection import Connection, ConnectionCounters
from triagemq.client.coordinator import Announced, Coordinator
from triagemq.client.faults import ClientError, ClosedError, CoordinatorError, GatewayUnreachableError
from triagemq.client.lease import Lease
from triagemq.client.settings import ConnectionSettings, Will, host_and_port
from triagemq.errors import ParameterError
from triagemq.mqttsn import valid_topic_name
from triagemq.mqttsn.timestamps import stamp_payload

__all__ = ["Publisher"]


class Publisher:
    """See the module's text. With `stamp` events carry the time of their publication in front of the payload."""

    def __init__(
        self,
        coordinator: str | Coordinator | None = None,
        *,
        name: str | None = None,
        token: str | None = None,
        gateway: str | None = None,
        stamp: bool = False,
        lease_seconds: float = 10.0,
        keep_session: bool = False,
        will: Will | None = None,
        settings: ConnectionSettings | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if (coordinator is None) == (gateway is None):
            raise ParameterError("coordinator", "give the address of a coordinator or of a gateway, not both")
        self.name = name or f"publisher-{secrets.token_hex(6)}"
        self.settings = settings or ConnectionSettings()
        self._name_is_new = name is None
        self._gateway = None if gateway is None else host_and_port(gateway)
        self._owns_coordinator = isinstance(coordinator, str)
        self._coordinator = (
            Coordinator(coordinator, token=token, ssl_context=ssl_context)
            if isinstance(coordinator, str)
            else coordinator
        )
        self._stamp = stamp
        self._lease_seconds = lease_seconds
        self._keep_session = keep_session
        self._will = will
        self._declared: dict[str, dict[str, Any]] = {}
        self._connection: Connection | None = None
        self._lease: Lease | None = None
        self._failure: ClientError | None = None

    # Life.

    async def __aenter__(self) -> Publisher:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Announce to the coordinator, connect to the gateway."""
        try:
            if self._coordinator is None:
                assert self._gateway is not None
                await self._connect(self._gateway, self.name)
                return
            self._lease = Lease(
                self._coordinator,
                "publishers",
                self.name,
                intent=self._intent,
                on_announced=self._announced,
            )
            announced = await self._lease.begin(self.settings.connect_timeout_seconds)
            await self._connect(announced.gateway, announced.client_id)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Wait for acknowledgements (not for ever), withdraw what was declared, and leave."""
        try:
            if self._connection is not None:
                await self._connection.close()
            if self._lease is not None:
                await self._lease.end()
        finally:
            if self._coordinator is not None and self._owns_coordinator:
                await self._coordinator.close()

    async def _announced(self, announced: Announced) -> None:
        """A coordinator that lost its memory, or leads another gateway now, may give another client id."""
        if self._connection is not None:
            with contextlib.suppress(GatewayUnreachableError):
                await self._connection.redirect(announced.gateway, announced.client_id)

    async def _connect(self, address: tuple[str, int], client_id: str) -> None:
        self._connection = Connection(
            *address,
            client_id,
            settings=self.settings,
            keep_session=self._keep_session,
            client_id_is_new=self._name_is_new,
            will=self._will,
        )
        await self._connection.open()

    # What is declared.

    async def declare(
        self, rates: Mapping[str, float | tuple[float, float] | None], *, size_bytes: float | None = None
    ) -> None:
        """Say how often each topic is published: events a second, or that and the mean size; None is measured.

        It replaces what was declared before. Without a coordinator it has no effect.
        """
        declared = {topic: _publication(topic, rate, size_bytes) for topic, rate in rates.items()}
        before, self._declared = self._declared, declared
        if self._lease is None:
            return
        try:
            await self._lease.changed()
        except CoordinatorError:
            self._declared = before
            raise

    def _intent(self) -> dict[str, Any]:
        return {"publications": list(self._declared.values()), "lease_seconds": self._lease_seconds}

    # Publishing.

    async def publish(
        self, topic: str | int, payload: bytes, *, qos: int = 0, retain: bool = False, wait: bool = True
    ) -> None:
        """Publish an event; QoS 1 and 2 return when it is acknowledged.

        With `wait=False` they return as soon as there is room for it among the unacknowledged (see
        ConnectionSettings.in_flight_messages); `flush` then waits for all, and raises what went wrong with one.
        """
        if self._connection is None:
            raise ClosedError("the publisher is not open; use `async with Publisher(...)`")
        if self._stamp:
            payload = stamp_payload(payload, time.time_ns())
        done = await self._connection.publish(topic, payload, qos=qos, retain=retain, wait=wait)
        if done is not None:
            done.add_done_callback(self._done)

    async def flush(self) -> None:
        """Wait until everything is acknowledged; raises the first refusal since the last flush."""
        if self._connection is not None:
            await self._connection.flush()
        # Those who wait for the last acknowledgement are told in the order in which they began to.
        await asyncio.sleep(0)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _done(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, ClientError) and self._failure is None:
            self._failure = error

    @property
    def counters(self) -> ConnectionCounters:
        """What happened so far."""
        return ConnectionCounters() if self._connection is None else self._connection.counters

    @property
    def problem(self) -> str:
        """What is wrong at the moment; empty if nothing is."""
        problems = [
            "" if self._lease is None else self._lease.problem,
            "" if self._connection is None else self._connection.problem,
        ]
        return "; ".join(problem for problem in problems if problem)


def _publication(
    topic: str, rate: float | tuple[float, float] | None, size_bytes: float | None
) -> dict[str, Any]:
    if not valid_topic_name(topic):
        raise ParameterError("topic", f"{topic!r} is no topic name to publish to: no wildcards, not empty")
    if isinstance(rate, tuple):
        rate, size_bytes = rate
    publication: dict[str, Any] = {"topic": topic}
    for name, value in (("rate_per_second", rate), ("size_bytes", size_bytes)):
        if value is not None:
            if not 0 < value < float("inf"):
                raise ParameterError(name, f"of {topic!r} must be above 0, is {value}")
            publication[name] = value
    return publication
