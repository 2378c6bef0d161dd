"""The connection to a broker that hangs, ends connections, or lets another client in under our client id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tests.mqtt.test_mqtt import Recorder

from triagemq.broker.address import BrokerAddress
from triagemq.mqtt.connection import MqttConnection
from triagemq.mqtt.session import Login, MqttSession

CONNACK = b"\x20\x03\x00\x00\x00"
PING, PONG = b"\xc0\x00", b"\xd0\x00"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.005)


async def _with_broker(serve: Serve, test: Callable[[MqttConnection], Awaitable[None]]) -> None:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        with contextlib.suppress(OSError):
            await reader.read(4096)
            await serve(reader, writer)
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    handlers: list[asyncio.Task[None] | None] = []

    async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
        session = MqttSession(Recorder(), Login("me", ping_seconds=0.05))
        connection = MqttConnection(
            BrokerAddress("127.0.0.1", server.sockets[0].getsockname()[1]),
            session,
            before=lambda: None,
            changed=lambda connection: connection.flush(),
        )
        task = asyncio.get_running_loop().create_task(connection.run())
        try:
            await test(connection)
        finally:
            await connection.close()
            task.cancel()
            await asyncio.gather(task, *filter(None, handlers), return_exceptions=True)


def test_a_broker_that_hangs_is_noticed_and_one_that_is_only_quiet_is_not() -> None:
    pings = 0
    hangs = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal pings
        writer.write(CONNACK)
        while data := await reader.read(4096):
            pings += data.count(PING)
            if not hangs.is_set():
                writer.write(PONG * data.count(PING))

    async def test(connection: MqttConnection) -> None:
        await _until(lambda: pings >= 10)
        # Ten pings ago it would have been dead, had it not answered.
        assert connection.session.connected
        assert connection.last_problem == ""
        hangs.set()
        await _until(lambda: not connection.session.connected)
        assert connection.last_problem == "the broker does not answer"

    asyncio.run(_with_broker(serve, test))


def test_a_process_that_was_stopped_does_not_take_its_broker_for_dead() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(CONNACK)
        while data := await reader.read(4096):
            writer.write(PONG * data.count(PING))

    async def test(connection: MqttConnection) -> None:
        await _until(lambda: connection.session.connected)
        loop = asyncio.get_running_loop()
        clock, ahead = loop.time, [0.0]
        loop.time = lambda: clock() + ahead[0]  # type: ignore[method-assign]
        for _ in range(5):
            # As after SIGSTOP and SIGCONT: the clock has gone on, and nothing else.
            ahead[0] += 60.0
            await asyncio.sleep(0.01)
        assert connection.session.connected
        assert connections == 1

    asyncio.run(_with_broker(serve, test))


def test_the_reason_of_a_disconnect_is_known_and_a_takeover_named_at_once() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CONNACK + b"\xe0\x01\x8e")
        await reader.read(4096)

    async def test(connection: MqttConnection) -> None:
        await _until(lambda: connection.last_problem)
        assert connection.last_problem == "the broker ended the connection: session taken over (0x8e)"
        await _until(lambda: connection.problem)
        assert "another client in as 'me'" in connection.problem

    asyncio.run(_with_broker(serve, test))


def test_a_broker_that_ends_every_connection_is_said_to() -> None:
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.write(CONNACK)
        await writer.drain()

    async def test(connection: MqttConnection) -> None:
        await _until(lambda: accepted == 2)
        assert "again and again" not in connection.problem
        await _until(lambda: "again and again" in connection.problem)
        assert accepted >= 3
        assert "again and again, at last: the broker closed the connection" in connection.problem

    asyncio.run(_with_broker(serve, test))
