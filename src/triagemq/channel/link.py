"""The coordinator's end of the control channel to a gateway: requests, answers, and news.

    link = GatewayLink(path)
    link.start(on_connect)
    ...
    await link.send_state(before, after)
    await link.close()

It connects, and connects again, for as long as it is open. A request while the gateway is away, or lost with it,
raises ControlError: whether it was carried out is unknown; after each `on_connect` the gateway says what it follows.
A gateway that comes by itself, from wherever it is, has its link `attend` to the connection that it has made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from triagemq.channel.messages import (
    LARGEST_LINE_BYTES,
    ControlError,
    Counted,
    DesiredState,
    GatewayIdentity,
    GatewayNews,
    GatewayRefusalError,
    GatewaySessions,
    Measured,
    PortConstraints,
    PortDelays,
    decode_line,
    encode_line,
    listening_at,
    parse_constraints,
    reachable,
    shallow,
    state_message,
)
from triagemq.channel.orders import Orders, describe_error, parse_orders
from triagemq.errors import PlanError, TriageError
from triagemq.plan.dataplane import FlowCounters, FlowKey, PortCounters
from triagemq.waiting import end

_PAUSE_SECONDS = 0.1
_MEASURED = TypeAdapter(Measured)
_NEWS = TypeAdapter(GatewayNews)
_SESSIONS = TypeAdapter(GatewaySessions)
_IDENTITY = TypeAdapter(GatewayIdentity)

_Parsed = TypeVar("_Parsed")


class LineWriter(Protocol):
    """Where lines to a gateway go; as asyncio's StreamWriter has it."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


class GatewayLink:
    """See the module's text. Everything is called in one event loop."""

    def __init__(self, path: Path | str = "", *, timeout_seconds: float = 30.0) -> None:
        self._on_connect: Callable[[], Awaitable[None]] | None = None
        self._path = Path(path)
        self._timeout_seconds = timeout_seconds
        self._writer: LineWriter | None = None
        self._running: asyncio.Task[None] | None = None
        self._on_connect_task: asyncio.Task[None] | None = None
        self._attending: asyncio.Task[None] | None = None
        self._next_id = 1
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._news: GatewayNews | None = None
        self._news_came = asyncio.Event()
        self._sending = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Is the gateway's control socket open now?"""
        return self._writer is not None

    def start(self, on_connect: Callable[[], Awaitable[None]] | None = None) -> None:
        """Connect as soon as the gateway is there, and stay connected; `on_connect` follows each connection."""
        if self._running is None:
            self._on_connect = on_connect
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Leave; what still waits for an answer gets ControlError."""
        tasks = self._running, self._on_connect_task, self._attending
        self._running = self._on_connect_task = self._attending = None
        await end(*tasks)

    async def wait_connected(self, seconds: float) -> bool:
        """Wait until the gateway is reached."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.connected:
                    await asyncio.sleep(0.01)
        return self.connected

    # Requests.

    async def identity(self) -> GatewayIdentity:
        """Where it listens, and its broker."""
        return await self._request_parsed("identity", _IDENTITY.validate_python)

    async def following(self) -> tuple[str, int]:
        """Author and version of the state that the gateway follows; no author: one that has no number."""
        return await self._request_parsed(
            "version", lambda answer: (str(answer["author"]), int(answer["version"]))
        )

    async def send_state(self, before: DesiredState | None, after: DesiredState) -> None:
        """Have the gateway, which follows `before` (None: anything), follow `after`."""
        await self._request("state", **shallow(state_message(before, after)))

    async def current(self) -> Orders:
        """The orders in force."""
        return await self._request_parsed("current", lambda answer: parse_orders(answer["orders"]))

    async def decisions(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows for the trace's table of decisions: decided_ns, kind, subject, before, after, reason."""
        await self._request("decisions", rows=[dict(row) for row in rows])

    async def measured(self, from_ns: int, classes: Sequence[int]) -> None:
        """For the trace: figures are of what was published from then on, by this class of each subscription."""
        await self._request("measured", from_ns=from_ns, classes=list(classes))

    async def queues(
        self,
        ports: Mapping[str, PortCounters],
        flows: Mapping[FlowKey, FlowCounters],
        at_ns: int,
    ) -> None:
        """What queues behind the gateway have counted."""
        await self._request("queues", **shallow(Counted(ports, tuple(flows.items()), at_ns)))

    async def carried(self, by: str, generation: int) -> None:
        """Queues or switches behind the gateway have carried these orders out."""
        await self._request("carried", by=by, generation=generation)

    async def managed(self, ports: Mapping[str, PortDelays]) -> PortConstraints:
        """What control of queues behind the gateway has found and decided; how long packets may wait there."""
        return await self._request_parsed(
            "managed", lambda answer: parse_constraints(answer["constraints"]), ports=dict(ports)
        )

    async def queue_rates(self) -> dict[str, list[int]]:
        """Those of controlled queues, by port, that were in force last."""
        return await self._request_parsed(
            "queue_rates",
            lambda answer: {name: [*map(int, rates)] for name, rates in answer["ports"].items()},
        )

    async def measure(self, *, flows: bool = True, topics: bool = True, after: str = "") -> Measured:
        """What the gateway has counted, of topics since the mark `after`; without flows or topics it costs less."""
        return await self._request_parsed(
            "measure", _MEASURED.validate_python, flows=flows, topics=topics, after=after
        )

    async def send_elsewhere(self, client_ids: Sequence[str], seconds: float) -> int:
        """Have clients look for another gateway by themselves; how many there are."""
        return await self._request_parsed(
            "elsewhere",
            lambda answer: int(answer["disconnected"]),
            client_ids=list(client_ids),
            seconds=seconds,
        )

    async def expect(self, sessions: Mapping[str, Mapping[str, int]]) -> None:
        """Have it store what comes for clients that are on their way: by client id, their filters with QoS."""
        await self._request(
            "expect", sessions={client_id: dict(each) for client_id, each in sessions.items()}
        )

    async def save_broker(self) -> None:
        """Have the broker, where it is one of ours, write down its sessions and messages."""
        await self._request("save_broker")

    async def sessions(self) -> GatewaySessions:
        """The clients that are connected, and those that are away and whose sessions are stored."""
        return await self._request_parsed("sessions", _SESSIONS.validate_python)

    async def news(self, seen: GatewayNews | None, seconds: float | None = None) -> GatewayNews | None:
        """The latest news, as soon as they are others than these, at most so much later; None: the gateway is away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._news == seen:
                    self._news_came.clear()
                    await self._news_came.wait()
        return self._news

    # The connection.

    async def _request_parsed(
        self, what: str, parse: Callable[[dict[str, Any]], _Parsed], **arguments: Any
    ) -> _Parsed:
        """An answer as `parse` reads it; ControlError if it is none."""
        answer = await self._request(what, **arguments)
        try:
            return parse(answer)
        except (ValueError, TypeError, KeyError, PlanError) as error:
            why = (
                describe_error(error, depth=1) if isinstance(error, ValidationError) else type(error).__name__
            )
            raise ControlError(f"the gateway's answer to {what!r} cannot be used: {why}") from None

    async def _request(self, what: str, **arguments: Any) -> dict[str, Any]:
        writer = self._writer
        if writer is None:
            raise ControlError(f"the gateway is not there: nothing listens on {self._path}")
        number = self._next_id
        self._next_id += 1
        line = encode_line({"id": number, "do": what, **arguments})
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with self._sending:
                    writer.write(line)
                    await writer.drain()
                answer = await answered
        except TimeoutError:
            raise ControlError(
                f"the gateway did not answer {what!r} within {self._timeout_seconds} s"
            ) from None
        except OSError as error:
            raise ControlError(f"the gateway was lost before it answered {what!r}: {error}") from None
        finally:
            self._waiting.pop(number, None)
        if answer.get("ok") is not True:
            raise GatewayRefusalError(
                f"the gateway refuses {what!r}: {answer.get('error', 'no reason given')}"
            )
        return answer

    async def _run(self) -> None:
        while True:
            try:
                with reachable(self._path) as name:
                    reader, writer = await asyncio.open_unix_connection(name, limit=LARGEST_LINE_BYTES)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            await self._attend(reader, writer)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def attend(
        self,
        lines: AsyncIterable[bytes],
        writer: LineWriter,
        on_connect: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Be connected by what a gateway has opened, until that ends or the link is closed."""
        self._on_connect = on_connect
        self._attending = asyncio.get_running_loop().create_task(self._attend(lines, writer))
        try:
            await asyncio.wait({self._attending})
        finally:
            await end(self._attending)

    async def _attend(self, lines: AsyncIterable[bytes], writer: LineWriter) -> None:
        self._writer = writer
        self._on_connect_task = asyncio.get_running_loop().create_task(self._call_on_connect())
        try:
            await self._read(lines)
        except (OSError, ValueError, ControlError):
            pass  # Lost, or no longer talking sense: both end in a new connection.
        finally:
            self._lost(writer)

    async def _read(self, lines: AsyncIterable[bytes]) -> None:
        async for line in lines:
            message = decode_line(line)
            if "id" not in message:
                self._take_news(_NEWS.validate_python(message))
                continue
            number = message["id"]
            answered = self._waiting.get(number) if isinstance(number, int) else None
            if answered is not None and not answered.done():
                answered.set_result(message)

    def _lost(self, writer: LineWriter) -> None:
        self._writer = None
        self._take_news(None)
        if self._on_connect_task is not None:
            self._on_connect_task.cancel()
        writer.close()
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ControlError("the gateway was lost before it answered"))

    def _take_news(self, news: GatewayNews | None) -> None:
        self._news = news
        self._news_came.set()

    async def _call_on_connect(self) -> None:
        """Whatever has to be said at the start of a connection; a failure is that of the connection."""
        with contextlib.suppress(ControlError):
            if self._on_connect is not None:
                await self._on_connect()


Answer = Callable[[str, dict[str, Any], bytes], Awaitable[dict[str, Any]]]
"""What is to be done, the whole request, and the line it came in; the answer, or a TriageError that says why not."""

_MOST_UNREAD_BYTES = 32 << 20


class ControlServer:
    """Listens from `start` to `close`. All who connect get the news."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self._path = path
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self._news: GatewayNews | None = None
        self.bad_requests = 0

    async def start(self) -> None:
        """Take the place of whatever an earlier process left there; only this user may connect."""
        try:
            listening = listening_at(self._path)
            listening.setblocking(False)
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listening, limit=LARGEST_LINE_BYTES, backlog=64
            )
        except OSError as error:
            raise ControlError(f"control socket {self._path}: {error.strerror or error}") from error

    async def close(self) -> None:
        """Stop, and leave nothing behind."""
        if self._server is None:
            return
        self._server.close()
        await end(*self._clients.values())
        with contextlib.suppress(OSError):
            self._path.unlink()

    def push(self, news: GatewayNews) -> None:
        """Send news to all; one that does not read is disconnected."""
        self._news = news
        line = encode_line(shallow(news))
        for writer in list(self._clients):
            if writer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
                writer.transport.abort()
            else:
                writer.write(line)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients[writer] = asyncio.current_task()
        try:
            if self._news is not None:
                writer.write(encode_line(shallow(self._news)))
            while line := await reader.readline():
                writer.write(encode_line(await self.answered(line)))
                await writer.drain()
        except ValueError:
            # Longer than any request: the next one begins somewhere unknown.
            self.bad_requests += 1
            writer.write(encode_line({"id": None, "ok": False, "error": "the line is too long"}))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._clients.pop(writer, None)
            writer.close()

    async def answered(self, line: bytes) -> dict[str, Any]:
        """The answer to a request, by socket or WebSocket."""
        number: object = None
        try:
            request = decode_line(line)
            number = request.get("id")
            what = request.get("do")
            if not isinstance(what, str):
                raise ControlError("a request needs `do`")
            return {"id": number, "ok": True, **await self._answer(what, request, line)}
        except TriageError as error:
            self.bad_requests += 1
            return {"id": number, "ok": False, "error": str(error)}
