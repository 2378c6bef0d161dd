"""One OpenFlow 1.3 connection to one switch: requests and answers, barriers, errors by request, liveness.

A switch that sends what is not OpenFlow 1.3 is disconnected and counted; it keeps its rules and may come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from triagemq.errors import SessionClosedError, SwitchError
from triagemq.network.openflow import decoding, encoding
from triagemq.network.openflow.decoding import PacketIn, PortDescription
from triagemq.network.openflow.rules import switch_name

__all__ = ["Listener", "Request", "Session", "SessionCounters", "SessionTimes"]

VERSION = 4
_HEADER = struct.Struct("!BBHI")
_HELLO, _ERROR, _ECHO_REQUEST, _ECHO_REPLY = 0, 1, 2, 3
_FEATURES_REQUEST, _FEATURES_REPLY = 5, 6
_PACKET_IN, _PORT_STATUS = 10, 12
_MULTIPART_REQUEST, _MULTIPART_REPLY = 18, 19
_BARRIER_REQUEST, _BARRIER_REPLY = 20, 21
_LAST_TYPE = 29
_MOST_MULTIPART_BYTES = 64 << 20

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Request:
    """Octets of a message (its transaction id is the session's), and its name for whoever reads that it failed."""

    octets: bytes
    what: str


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """`answer` is how long a switch may take for an answer, `silence` how long it may say nothing at all."""

    answer_seconds: float = 20.0
    echo_seconds: float = 5.0
    silence_seconds: float = 20.0


@dataclass(slots=True)
class SessionCounters:
    """What went wrong with connections, by reason."""

    disconnected: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)


class Listener(Protocol):
    """Is told what a switch says by itself, from the event loop."""

    def packet_in(self, session: Session, packet: PacketIn) -> None: ...

    def port_changed(self, session: Session, gone: bool, port: PortDescription) -> None: ...

    def closed(self, session: Session) -> None: ...


class _NonsenseError(Exception):
    """What a switch sent is not OpenFlow 1.3."""


class Session:
    """Made by `open`. Every method belongs to the event loop's thread."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        counters: SessionCounters,
        times: SessionTimes,
    ) -> None:
        self.datapath_id = 0
        self.ports: dict[int, PortDescription] = {}
        self._reader, self._writer = reader, writer
        self._counters, self._times = counters, times
        self._listener: Listener | None = None
        self._transaction = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._parts: dict[int, tuple[list[bytes], asyncio.Future[list[bytes]]]] = {}
        self._names: dict[int, str] = {}
        self._sent: dict[int, str] = {}
        self._refused: list[tuple[int, str]] = []
        self._heard = asyncio.get_running_loop().time()
        self._tasks: list[asyncio.Task[None]] = []
        self.closed = False
        self.ended = asyncio.Event()

    @property
    def name(self) -> str:
        return switch_name(self.datapath_id)

    @classmethod
    async def open(
        cls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        listener: Listener,
        counters: SessionCounters,
        times: SessionTimes = SessionTimes(),  # noqa: B008 (frozen)
    ) -> Session:
        """Shake hands, and learn which switch this is and what ports it has. SessionClosedError if it does not."""
        session = cls(reader, writer, counters, times)
        session._listener = listener
        # A switch that speaks only older versions answers this with an error.
        session._write(_HELLO, struct.pack("!HHI", 1, 8, 1 << VERSION))
        session._tasks = [
            asyncio.create_task(session._run(session._read)),
            asyncio.create_task(session._run(session._watch)),
        ]
        try:
            features = await session._ask(
                _FEATURES_REQUEST, b"", _FEATURES_REPLY, "the request for its features"
            )
            session.datapath_id = struct.unpack_from("!Q", features, _HEADER.size)[0]
            session.send(Request(encoding.set_asynchronous(), "the request for news"))
            described = decoding.decode_ports(await session.parts(encoding.request_ports(), "its ports"))
            session.ports = {port.number: port for port in described}
        except (struct.error, ValueError) as error:
            session.close(f"nonsense: {error}")
            raise SessionClosedError(f"a switch sent nonsense while it connected: {error}") from None
        except BaseException:
            session.close("no handshake")
            raise
        return session

    def send(self, request: Request) -> None:
        """Send without waiting; an error that it causes comes out of the next `barrier`."""
        if self.closed:
            raise SessionClosedError(f"switch {self.name} is not connected")
        transaction = self._next()
        self._sent[transaction] = request.what
        self._writer.write(request.octets[:4] + transaction.to_bytes(4, "big") + request.octets[8:])

    def fence(self) -> None:
        """What is sent from here on waits, on the switch, for what was sent before."""
        self._write(_BARRIER_REQUEST, b"")

    async def barrier(self) -> None:
        """Wait until the switch has done everything it was sent; SwitchError names what it refused."""
        sent = set(self._sent)
        await self._ask(_BARRIER_REQUEST, b"", _BARRIER_REPLY, "a barrier")
        for transaction in sent:
            self._sent.pop(transaction, None)
        refused = tuple(text for transaction, text in self._refused if transaction in sent)
        self._refused = [each for each in self._refused if each[0] not in sent]
        if refused:
            raise SwitchError(self.name, refused)

    async def parts(self, octets: bytes, what: str) -> list[bytes]:
        """Ask for statistics (octets of a multipart request): the bodies of all parts of the answer."""
        if self.closed:
            raise SessionClosedError(f"switch {self.name} is not connected")
        transaction = self._next()
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._parts[transaction] = ([], future)
        self._names[transaction] = f"the request for {what}"
        self._writer.write(octets[:4] + transaction.to_bytes(4, "big") + octets[8:])
        try:
            return await self._answered(future, f"the request for {what}")
        finally:
            self._parts.pop(transaction, None)
            self._names.pop(transaction, None)

    def close(self, reason: str | None = None) -> None:
        """End the connection; a reason counts it among those that went wrong."""
        if self.closed:
            return
        self.closed = True
        self.ended.set()
        if reason is not None:
            self._counters.disconnected[reason.partition(":")[0]] += 1
        waiting: list[asyncio.Future[Any]] = [*self._waiting.values()]
        waiting += [future for _, future in self._parts.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(SessionClosedError(f"the connection to switch {self.name} ended"))
                future.exception()  # Whoever waited may have gone.
        self._writer.close()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        if self._listener is not None and self.datapath_id:
            self._listener.closed(self)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            self.close("lost")
        except _NonsenseError as error:
            self.close(f"nonsense: {error}")
        except Exception as error:  # A codec may fail in any way on octets that are not what they should be.
            self.close(f"nonsense: {error!r}")

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        greeted = False
        while not self.closed:
            header = await self._reader.readexactly(_HEADER.size)
            version, kind, length, transaction = _HEADER.unpack(header)
            # Before the rest is awaited: what looks like a length may promise octets that never come.
            expected = version == VERSION and kind <= _LAST_TYPE if greeted else kind == _HELLO
            if length < _HEADER.size or not expected:
                raise _NonsenseError("not OpenFlow 1.3")
            message = header + await self._reader.readexactly(length - _HEADER.size)
            self._heard = loop.time()
            if not greeted:
                _check_hello(version, message)
                greeted = True
            else:
                self._take(kind, transaction, message)

    def _take(self, kind: int, transaction: int, message: bytes) -> None:
        listener = self._listener
        if kind == _ECHO_REQUEST:
            self._writer.write(_HEADER.pack(VERSION, _ECHO_REPLY, len(message), transaction) + message[8:])
        elif kind == _ERROR:
            self._take_error(transaction, message)
        elif kind == _MULTIPART_REPLY:
            self._take_part(transaction, message)
        elif kind == _PACKET_IN and listener is not None:
            if self.datapath_id:
                listener.packet_in(self, decoding.decode_packet_in(message))
        elif kind == _PORT_STATUS and listener is not None:
            gone, port = decoding.decode_port_status(message)
            if gone:
                self.ports.pop(port.number, None)
            else:
                self.ports[port.number] = port
            if self.datapath_id:
                listener.port_changed(self, gone, port)
        elif transaction in self._waiting:
            future = self._waiting.pop(transaction)
            if not future.done():
                future.set_result(message)
        elif kind not in (_ECHO_REPLY, _BARRIER_REPLY):
            self._counters.unexpected[f"message type {kind}"] += 1

    def _take_error(self, transaction: int, message: bytes) -> None:
        text = decoding.decode_error(message)
        name = self._names.get(transaction) or self._sent.get(transaction)
        if name is None:
            self._counters.unexpected[f"error ({text})"] += 1
            return
        refusal = f"{name} ({text})"
        future: asyncio.Future[bytes] | asyncio.Future[list[bytes]] | None = self._waiting.pop(
            transaction, None
        )
        if future is None and transaction in self._parts:
            future = self._parts[transaction][1]
        if future is None:
            self._refused.append((transaction, refusal))
        elif not future.done():
            future.set_exception(SwitchError(self.name, (refusal,)))

    def _take_part(self, transaction: int, message: bytes) -> None:
        if len(message) < 16:
            raise _NonsenseError("statistics without a header")
        if transaction not in self._parts:
            self._counters.unexpected["statistics nobody asked for"] += 1
            return
        bodies, future = self._parts[transaction]
        bodies.append(message[16:])
        if sum(map(len, bodies)) > _MOST_MULTIPART_BYTES:
            raise _NonsenseError("statistics without an end")
        if not message[11] & 1 and not future.done():
            future.set_result(bodies)

    async def _watch(self) -> None:
        """Ask a switch that is silent whether it is there, and give it up when it does not answer."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._times.echo_seconds)
            silent = loop.time() - self._heard
            if silent >= self._times.silence_seconds:
                self.close("silent")
                return
            if silent >= self._times.echo_seconds / 2:
                self._write(_ECHO_REQUEST, b"")

    async def _ask(self, kind: int, body: bytes, answer: int, what: str) -> bytes:
        if self.closed:
            raise SessionClosedError(f"switch {self.name} is not connected")
        transaction = self._next()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[transaction] = future
        self._names[transaction] = what
        self._writer.write(_HEADER.pack(VERSION, kind, _HEADER.size + len(body), transaction) + body)
        try:
            message: bytes = await self._answered(future, what)
        finally:
            self._waiting.pop(transaction, None)
            self._names.pop(transaction, None)
        if message[1] != answer:
            self.close("nonsense: a wrong answer")
            raise SessionClosedError(
                f"switch {self.name} answered {what} with a message of type {message[1]}"
            )
        return message

    async def _answered(self, future: asyncio.Future[_Answer], what: str) -> _Answer:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        try:
            return await asyncio.wait_for(future, self._times.answer_seconds)
        except TimeoutError:
            self.close("no answer")
            raise SessionClosedError(f"switch {self.name} did not answer {what}") from None

    def _next(self) -> int:
        self._transaction = self._transaction % 0xFFFFFFFF + 1
        return self._transaction

    def _write(self, kind: int, body: bytes) -> None:
        self._writer.write(_HEADER.pack(VERSION, kind, _HEADER.size + len(body), self._next()) + body)


def _check_hello(version: int, message: bytes) -> None:
    """A switch begins with HELLO, and must be able to speak OpenFlow 1.3."""
    versions = set(range(1, version + 1))
    offset = _HEADER.size
    while offset + 4 <= len(message):
        element, length = struct.unpack_from("!HH", message, offset)
        if length < 4 or offset + length > len(message):
            raise _NonsenseError("a hello with an impossible length")
        if element == 1 and length >= 8:
            bitmap = struct.unpack_from("!I", message, offset + 4)[0]
            versions = {number for number in range(32) if bitmap >> number & 1}
        offset += (length + 7) // 8 * 8
    if VERSION not in versions:
        raise _NonsenseError("OpenFlow, but not 1.3")
