"""The connections of a gateway to its broker: one task for each session that the core wants connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from triagemq.exchange.broker_address import BrokerAddress
from triagemq.exchange.mqtt import MqttConnection, MqttSession

__all__ = ["BrokerConnections"]


class BrokerConnections:
    """`before` is called before octets of the broker are looked at, `changed` after; `failed` gets our own mistakes."""

    def __init__(
        self,
        address: BrokerAddress,
        *,
        before: Callable[[], None],
        changed: Callable[[MqttConnection], None],
        failed: Callable[[Exception], None],
        boot: Callable[[], str] = lambda: "",
    ) -> None:
        self._boot = boot
        self._address = address
        self._before = before
        self._changed = changed
        self._failed = failed
        self._running: dict[MqttSession, tuple[MqttConnection, asyncio.Task[None]]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, session: MqttSession) -> None:
        """Connect a session, and keep it connected."""
        if session not in self._running:
            connection = MqttConnection(
                self._address, session, before=self._before, changed=self._changed, boot=self._boot
            )
            task = asyncio.get_running_loop().create_task(self._run(connection))
            self._running[session] = (connection, task)

    def close(self, session: MqttSession) -> None:
        """Disconnect a session for good."""
        found = self._running.pop(session, None)
        if found is not None:
            task = asyncio.get_running_loop().create_task(_end(*found))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def flush(self, sessions: Iterable[MqttSession]) -> None:
        """Write what these sessions have to say."""
        for session in sessions:
            found = self._running.get(session)
            if found is not None:
                found[0].flush()

    @property
    def sessions(self) -> list[MqttSession]:
        """Those that are connected or are to be."""
        return list(self._running)

    def problem(self, session: MqttSession) -> str:
        """Why a session could not be connected at the last attempt."""
        found = self._running.get(session)
        return "" if found is None else found[0].last_problem

    async def close_all(self) -> None:
        """Disconnect everything."""
        for connection, task in list(self._running.values()):
            await _end(connection, task)
        tasks = [task for _, task in self._running.values()]
        await asyncio.gather(*tasks, *self._closing, return_exceptions=True)

    async def _run(self, connection: MqttConnection) -> None:
        try:
            await connection.run()
        except Exception as error:
            self._failed(error)


async def _end(connection: MqttConnection, task: asyncio.Task[None]) -> None:
    await connection.close()
    task.cancel()
