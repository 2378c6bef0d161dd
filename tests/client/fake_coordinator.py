"""A coordinator in a page: REST as the contract says, over a plain socket, with a plan that the test dictates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class FakeCoordinator:
    """Remembers intents and reports; `forget` loses them, `stop` and `start` are a restart on the same port."""

    def __init__(
        self, gateway: str, *, token: str | None = None, context: ssl.SSLContext | None = None
    ) -> None:
        self.gateway = gateway
        self.intents: dict[str, dict[str, dict[str, Any]]] = {"publishers": {}, "subscribers": {}}
        self.received: dict[str, int] = {}
        self.latencies: dict[str, float] = {}
        self.flows = 1
        self.generation = 1
        self.requests: list[str] = []
        self.lease_seconds = 0.6
        self.chunked = False
        self.key = "key"
        self.refuses: set[float] = set()
        self.taken_names: set[str] = set()
        self.may_move = False
        self.refused_delays: list[dict[str, Any]] = []
        self.announced: list[list[str]] = []
        self.reports: list[dict[str, Any]] = []
        self.loses_answers = False
        self.slow_down: dict[str, float] = {}
        self.port = 0
        self._token = token
        self._context = context
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeCoordinator:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def plan(self, flows: int) -> None:
        self.flows = flows
        self.generation += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def forget(self) -> None:
        for intents in self.intents.values():
            intents.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    lines = head.split("\r\n")
                    headers = {
                        name.lower(): value for name, _, value in (one.partition(": ") for one in lines[1:])
                    }
                    body = await reader.readexactly(int(headers.get("content-length", 0)))
                    method, path, _ = lines[0].split(" ")
                    self.requests.append(f"{method} {urlsplit(path).path}")
                    if self._token is not None and headers.get("authorization") != f"Bearer {self._token}":
                        status, answer = 401, {"detail": "this token is not known"}
                    else:
                        status, answer = await self._answer(method, path, json.loads(body) if body else {})
                    self._write(writer, status, answer)
                    await writer.drain()
        finally:
            self._tasks.discard(task)
            writer.close()

    def _write(self, writer: asyncio.StreamWriter, status: int, answer: Any) -> None:
        content = b"" if answer is None else json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} whatever\r\ncontent-type: application/json\r\n".encode())
        if self.chunked and content:
            half = len(content) // 2
            writer.write(b"transfer-encoding: chunked\r\n\r\n")
            for piece in (content[:half], content[half:], b""):
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        else:
            writer.write(b"content-length: %d\r\n\r\n%s" % (len(content), content))

    async def _answer(self, method: str, target: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = urlsplit(target)
        _, version, kind, quoted, *rest = parts.path.split("/")
        assert version == "v1"
        name = unquote(quoted)
        intents = self.intents[kind]
        if method == "PUT":
            asked = (*body.get("subscriptions", ()), *body.get("publications", ()))
            if name in self.taken_names:
                return 409, {"detail": f"the name {name!r} is taken"}
            if any("forbidden" in one["topic"] for one in asked):
                return 403, {"detail": "this token does not allow\nforbidden topics"}
            if any(one["utility"]["weight"] == 99 for one in body.get("subscriptions", ())):
                mistake = {"loc": ["body", "subscriptions", 0, "utility"], "msg": "is no utility"}
                return 422, {"detail": [mistake]}
            if any(one.get("rate_per_second") in self.refuses for one in body.get("publications", ())):
                return 422, {"detail": "no such rate"}
            is_new = name not in intents
            intents[name] = body
            self.announced.append([one["topic"] for one in asked])
            connection = {
                "gateway": self.gateway,
                "client_id": f"{name}.{self.key}",
                "flows": self.flows,
                "may_move": self.may_move,
            }
            return 201 if is_new else 200, {
                "name": name,
                "lease_seconds": self.lease_seconds,
                "generation": self.generation,
                "connection": connection,
                "in_force": False,
            }
        if name not in intents:
            return 404, {"detail": f"there is no {name!r} of yours"}
        if method == "DELETE":
            del intents[name]
            return 204, None
        if rest == ["heartbeat"]:
            self.reports.append(body)
            if self.loses_answers:
                raise ConnectionResetError
            for topic, figures in body.get("received", {}).items():
                self.received[topic] = self.received.get(topic, 0) + figures["count"]
                self.latencies[topic] = self.latencies.get(topic, 0.0) + figures["latency_seconds_sum"]
            return 200, {
                "lease_seconds": self.lease_seconds,
                "generation": self.generation,
                "flows": self.flows,
                "slow_down": self.slow_down,
                "refused_delays": self.refused_delays,
            }
        query = parse_qs(parts.query)
        if self.generation <= int(query["after"][0]):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(query["wait_seconds"][0])):
                    await self._changed.wait()
        return 200, {
            "generation": self.generation,
            "flows": self.flows,
            "slots": {"floor/1": self.flows - 1},
            "classes": {"floor/1": 0},
            "drop_rates": {"floor/1": 0.0},
            "gateway": self.gateway,
        }
