"""Connections that never finish what they begin: they are closed after a time, and keep nobody else out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tests.coordinator.coordinating import LONG_SECONDS, publisher, running
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from triagemq.coordinator.api import requests as module
from triagemq.coordinator.api.requests import (
    BACKLOG,
    ConnectionListener,
    Connections,
    WebSocketProtocol,
    http_protocol,
)

HALF_A_HEADER = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX-"
HALF_A_BODY = b"POST /v1/publishers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


@asynccontextmanager
async def listening(app: Any, most: int) -> AsyncIterator[int]:
    """The application behind the coordinator's own protocols; the port."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    known = Connections(most)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            http=http_protocol(known),
            ws=WebSocketProtocol,
            backlog=BACKLOG,
        )
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    looking = asyncio.create_task(known.keep_looking())
    serving = asyncio.create_task(server.serve(sockets=[ConnectionListener(bound, known)]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        await serving
        looking.cancel()


async def begun(
    port: int, octets: Sequence[bytes]
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    found = []
    for each in octets:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(each)
        found.append((reader, writer))
    return found


@pytest.mark.parametrize("octets", [b"", HALF_A_HEADER, HALF_A_BODY])
def test_half_a_request_is_closed_after_a_time_and_whole_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, octets: bytes
) -> None:
    for name in ("_HEADER_SECONDS", "_BODY_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(module, name, 0.1)

    async def run() -> None:
        async with running(tmp_path) as here, listening(here.app, 100) as port:
            await here.client.post("/v1/publishers", json=publisher("p", "a"))
            url = f"http://127.0.0.1:{port}"
            [(reader, writer)] = await begun(port, [octets])
            async with httpx.AsyncClient(base_url=url) as client, asyncio.timeout(LONG_SECONDS):
                # A request that is there as a whole may take as long as it takes.
                waiting = asyncio.create_task(
                    client.get("/v1/publishers/p/directions?after=99&wait_seconds=1", timeout=LONG_SECONDS)
                )
                assert b"200 OK" not in await reader.read()
                writer.close()
                assert (await waiting).status_code < 500
                async with connect(f"ws://127.0.0.1:{port}/v1/live") as figures:
                    await asyncio.sleep(0.5)
                    assert json.loads(await figures.recv())["at_ns"]

    asyncio.run(run())


def test_requests_are_answered_while_all_places_are_taken_by_half_ones(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here, listening(here.app, 20) as port:
            halves = await begun(port, [HALF_A_HEADER, HALF_A_BODY] * 40)
            for _ in range(3):
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                    assert (await client.get("/v1/health", timeout=LONG_SECONDS)).status_code == 200
                halves += await begun(port, [HALF_A_HEADER] * 40)
            for _, writer in halves:
                writer.close()

    asyncio.run(run())


def test_a_page_sends_no_large_messages_over_a_websocket(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as here, listening(here.app, 20) as port:
            async with connect(f"ws://127.0.0.1:{port}/v1/live") as figures:
                await figures.send(bytes(module.MESSAGE_BYTES + 1))
                with contextlib.suppress(ConnectionClosed):
                    async for _ in figures:
                        pass
            assert figures.close_code == 1009

    asyncio.run(run())


def test_a_coordinator_without_descriptors_to_spare_answers_and_does_not_fill_its_log(tmp_path: Path) -> None:
    config = tmp_path / "coordinator.json"
    config.write_text(
        json.dumps(
            {
                "port": 0,
                "database": f"sqlite:///{tmp_path / 'coordinator.sqlite'}",
                "gateway_socket": str(tmp_path / "control.sock"),
                "gateway_address": "127.0.0.1:10000",
            }
        )
    )
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "triagemq.coordinator.serve", str(config)],
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
        )
    halves = []
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        port = int(address.rpartition(":")[2])
        for number in range(200):
            half = socket.create_connection(("127.0.0.1", port), timeout=LONG_SECONDS)
            half.sendall((HALF_A_HEADER, HALF_A_BODY)[number % 2])
            halves.append(half)
            if number % 50 == 49:
                assert httpx.get(f"{address}/v1/health", timeout=LONG_SECONDS).status_code == 200
        assert log.stat().st_size < 20_000
    finally:
        process.kill()
        process.communicate()
        for half in halves:
            half.close()


def test_lines_of_one_kind_are_few_and_others_are_not_held_back(caplog: pytest.LogCaptureFixture) -> None:
    from triagemq.child import LogLimit

    limit = LogLimit()
    caplog.handler.addFilter(limit)
    log = logging.getLogger("test")
    for number in range(1_000):
        log.warning("accepting failed: %d", number)
    log.warning("something else")
    caplog.handler.removeFilter(limit)
    assert len(caplog.records) == 11
    assert caplog.records[-1].getMessage() == "something else"
