"""One OpenFlow 1.3 connection to one switch: requests and answers, barriers, errors by request, liveness.

A switch that sends what is not OpenFlow 1.3 is disconnected and counted; it keeps its rules and may come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from triagemq.addresses import host_and_port
from triagemq.errors import NetworkError, ParameterError, SessionClosedError, SwitchError
from triagemq.network.openflow import decoding, encoding
from triagemq.network.openflow.decoding import (
    IncompatibleVersionError,
    NonsenseError,
    PacketIn,
    PortDescription,
    check_hello,
)
from triagemq.network.openflow.encoding import (
    HEADER,
    VERSION,
    OpenFlowType,
    hello_body,
    hello_failed_body,
    with_transaction,
)
from triagemq.network.openflow.rules import switch_name
from triagemq.waiting import Tasks

Place = Path | tuple[str, int]
"""A unix socket, or an address and a TCP port."""

OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Serves one connection, and returns when it has ended."""


def parse_place(text: str) -> Place:
    """
    >>> parse_place("tcp:127.0.0.1:6653")
    ('127.0.0.1', 6653)
    >>> parse_place("unix:/run/switch/core.mgmt")
    PosixPath('/run/switch/core.mgmt')
    """
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest:
        return Path(rest)
    if scheme == "tcp":
        with contextlib.suppress(ParameterError):
            return host_and_port(rest, lowest_port=0)
    raise NetworkError(f"{text!r} is no place to meet switches; write tcp:127.0.0.1:6653 or unix:/path")


@dataclass(frozen=True, slots=True)
class SwitchTls:
    """Files: our certificate and its private key, and the authority that has signed the certificates of switches."""

    certificate: str | Path
    private_key: str | Path
    authority: str | Path

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.authority)
            context.load_cert_chain(self.certificate, self.private_key)
        except (OSError, ssl.SSLError) as error:
            raise NetworkError(f"the certificates for switches cannot be used: {error}") from None
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def parse_allowed(texts: Sequence[str]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """
    >>> parse_allowed(["10.0.0.7", "192.0.2.0/24"])
    [IPv4Network('10.0.0.7/32'), IPv4Network('192.0.2.0/24')]
    """
    try:
        return [ipaddress.ip_network(each) for each in texts]
    except ValueError as error:
        raise ParameterError("switch addresses", f"must be IP addresses or networks: {error}") from None


class SwitchServer:
    """Listens at some places until it is closed.

    `allowed` are the addresses and networks that TCP connections may come from; all may if there are none.
    """

    def __init__(
        self, on_connection: OnConnection, *, tls: SwitchTls | None = None, allowed: Sequence[str] = ()
    ) -> None:
        self._on_connection = on_connection
        self._context = None if tls is None else tls.context()
        self._allowed = parse_allowed(allowed)
        self.refused: Counter[str] = Counter()
        """Connections that were closed before a word was said, by reason."""
        self._servers: list[asyncio.Server] = []
        self._tasks = Tasks()
        self.listening: list[Place] = []

    async def open(self, listen: Sequence[Place]) -> None:
        try:
            for place in listen:
                self._servers.append(await self._listen(place))
        except OSError as error:
            await self.close()
            raise NetworkError(f"cannot listen for switches at {place}: {error.strerror or error}") from None

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await self._tasks.close()

    async def _listen(self, place: Place) -> asyncio.Server:
        if isinstance(place, Path):
            # A killed process leaves its socket behind.
            place.unlink(missing_ok=True)
            self.listening.append(place)
            return await asyncio.start_unix_server(self._serve, place)
        server = await asyncio.start_server(self._serve, *place, ssl=self._context)
        self.listening.append(server.sockets[0].getsockname()[:2])
        return server

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_allowed(writer.get_extra_info("peername")):
            self.refused["address not allowed"] += 1
            writer.close()
            return
        self._tasks.start(self._on_connection(reader, writer))

    def _is_allowed(self, peer: object) -> bool:
        """A unix socket has its file's permissions, and no peer address."""
        if not self._allowed or not isinstance(peer, tuple):
            return True
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._allowed)


_MAY_BE_UNEXPECTED = (OpenFlowType.ECHO_REPLY, OpenFlowType.BARRIER_REPLY)
"""Answers that nothing waits for."""

_MOST_MULTIPART_BYTES = 64 << 20
_PART_HEADER_BYTES = 16
_FLAGS_PLACE, _MORE_FOLLOWS = 11, 1


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """`answer` is how long a switch may take for an answer, `silence` how long it may say nothing at all."""

    answer_seconds: float = 20.0
    echo_seconds: float = 5.0
    silence_seconds: float = 20.0


class SwitchListener(Protocol):
    """Gets what a switch sends by itself, from the event loop."""

    def packet_in(self, session: SwitchSession, packet: PacketIn) -> None: ...

    def port_changed(self, session: SwitchSession, gone: bool, port: PortDescription) -> None: ...

    def closed(self, session: SwitchSession) -> None: ...


@dataclass(slots=True)
class _Request:
    """A message that the switch has not finished. One without an answer ends at the next barrier."""

    name: str
    answer: asyncio.Future[list[bytes]] | None = None
    """One message, or the bodies of all parts of statistics."""
    parts: list[bytes] | None = None
    refused: str = ""


class SwitchSession:
    """Begins with `open`. Every method belongs to the event loop's thread. `error_counts` are of all sessions together:
    why connections ended, and answers that nothing waited for."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        listener: SwitchListener,
        error_counts: Counter[str],
        times: SessionTimes = SessionTimes(),  # noqa: B008 (frozen)
    ) -> None:
        self.datapath_id = 0
        self.ports: dict[int, PortDescription] = {}
        self._reader, self._writer = reader, writer
        self._listener, self._error_counts, self._times = listener, error_counts, times
        self._last_transaction = 0
        self._requests: dict[int, _Request] = {}
        self._received_at = asyncio.get_running_loop().time()
        self._tasks: list[asyncio.Task[None]] = []
        self.closed = False
        self.ended = asyncio.Event()

    @property
    def name(self) -> str:
        return switch_name(self.datapath_id)

    async def open(self) -> Self:
        """Shake hands, and learn which switch this is and what ports it has. SessionClosedError if it does not."""
        self._write(OpenFlowType.HELLO, hello_body())
        self._tasks = [
            asyncio.create_task(self._run(self._read)),
            asyncio.create_task(self._run(self._watch)),
        ]
        try:
            features = await self._ask(
                OpenFlowType.FEATURES_REQUEST, OpenFlowType.FEATURES_REPLY, "the request for its features"
            )
            self.datapath_id = struct.unpack_from("!Q", features, HEADER.size)[0]
            self.send(encoding.set_asynchronous(), "the request for news")
            described = decoding.decode_ports(await self.parts(encoding.REQUEST_PORTS, "its ports"))
            self.ports = {port.number: port for port in described}
        except (struct.error, ValueError) as error:
            self.close(f"nonsense: {error}")
            raise SessionClosedError(f"a switch sent nonsense while it connected: {error}") from None
        except BaseException:
            self.close("no handshake")
            raise
        return self

    def send(self, octets: bytes, what: str) -> None:
        """Send a message without waiting; an error that it causes comes out of the next `barrier`, by this name."""
        self._require_open()
        number = self._next_transaction()
        self._requests[number] = _Request(what)
        self._writer.write(with_transaction(octets, number))

    def packet_out(self, port: int, frame: bytes) -> None:
        """Send a frame out of a port. No barrier waits for it: a switch that refuses it is counted, and no more."""
        self._require_open()
        self._writer.write(with_transaction(encoding.packet_out(port, frame), self._next_transaction()))

    async def answers_echo(self, seconds: float) -> bool:
        """Whether the switch answers an ECHO_REQUEST in time; if it does not, the connection is closed."""
        if self.closed:
            return False
        echo = self._ask(OpenFlowType.ECHO_REQUEST, OpenFlowType.ECHO_REPLY, "an echo")
        try:
            await asyncio.wait_for(echo, seconds)
        except SwitchError:
            pass  # An error is an answer.
        except (SessionClosedError, TimeoutError):
            self.close("no answer")
        return not self.closed

    def send_barrier(self) -> None:
        """What is sent from here on waits, on the switch, for what was sent before."""
        self._write(OpenFlowType.BARRIER_REQUEST)

    async def barrier(self) -> None:
        """Wait until the switch has done everything it was sent; SwitchError names what it refused."""
        orders = {number: each for number, each in self._requests.items() if each.answer is None}
        await self.drain()
        for number in orders:
            self._requests.pop(number, None)
        refused = tuple(f"{each.name} ({each.refused})" for each in orders.values() if each.refused)
        if refused:
            raise SwitchError(self.name, refused)

    async def drain(self) -> None:
        """Wait until the switch has done everything it was sent. What it refused is left to `barrier`."""
        await self._ask(OpenFlowType.BARRIER_REQUEST, OpenFlowType.BARRIER_REPLY, "a barrier")

    async def parts(self, octets: bytes, what: str) -> list[bytes]:
        """Ask for statistics (octets of a multipart request): the bodies of all parts of the answer."""
        return await self._answered(octets, f"the request for {what}", in_parts=True)

    def close(self, reason: str | None = None) -> None:
        """End the connection; a reason counts it among those that went wrong."""
        if self.closed:
            return
        self.closed = True
        self.ended.set()
        if reason is not None:
            self._error_counts[reason.partition(":")[0]] += 1
        for request in self._requests.values():
            if request.answer is not None and not request.answer.done():
                request.answer.set_exception(
                    SessionClosedError(f"the connection to switch {self.name} ended")
                )
                request.answer.exception()  # What waited may have gone.
        self._writer.close()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        if self.datapath_id:
            self._listener.closed(self)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            self.close("lost")
        except NonsenseError as error:
            self.close(f"nonsense: {error}")
        except Exception as error:  # A codec may fail anyhow on octets that are not what they should be.
            self.close(f"nonsense: {error!r}")

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        greeted = False
        while not self.closed:
            header = await self._reader.readexactly(HEADER.size)
            version, kind, length, transaction = HEADER.unpack(header)
            # Before the rest is awaited: what looks like a length may promise octets that never come.
            if length < HEADER.size or not _is_expected(version, kind, greeted=greeted):
                raise NonsenseError("not OpenFlow 1.3")
            message = header + await self._reader.readexactly(length - HEADER.size)
            self._received_at = loop.time()
            if not greeted:
                try:
                    check_hello(version, message)
                except IncompatibleVersionError as error:
                    body = hello_failed_body(str(error))
                    answer = HEADER.pack(VERSION, OpenFlowType.ERROR, HEADER.size + len(body), transaction)
                    self._writer.write(answer + body)
                    self.close("incompatible version")
                    return
                greeted = True
            else:
                self._take(kind, transaction, message)

    def _take(self, kind: int, transaction: int, message: bytes) -> None:
        listener, request = self._listener, self._requests.get(transaction)
        if kind == OpenFlowType.ECHO_REQUEST:
            header = HEADER.pack(VERSION, OpenFlowType.ECHO_REPLY, len(message), transaction)
            self._writer.write(header + message[HEADER.size :])
        elif kind == OpenFlowType.ERROR:
            self._refuse(request, decoding.decode_error(message))
        elif kind == OpenFlowType.MULTIPART_REPLY:
            self._take_part(request, message)
        elif kind == OpenFlowType.PACKET_IN:
            if self.datapath_id:
                listener.packet_in(self, decoding.decode_packet_in(message))
        elif kind == OpenFlowType.PORT_STATUS:
            gone, port = decoding.decode_port_status(message)
            if gone:
                self.ports.pop(port.number, None)
            else:
                self.ports[port.number] = port
            if self.datapath_id:
                listener.port_changed(self, gone, port)
        elif request is not None and request.parts is None and request.answer is not None:
            if not request.answer.done():
                request.answer.set_result([message])
        elif kind not in _MAY_BE_UNEXPECTED:
            self._error_counts[f"message type {kind}"] += 1

    def _refuse(self, request: _Request | None, why: str) -> None:
        """The switch refuses: what waits for an answer fails now, the rest at the next barrier."""
        if request is None:
            self._error_counts[f"error ({why})"] += 1
        elif request.answer is None:
            request.refused = request.refused or why
        elif not request.answer.done():
            request.answer.set_exception(SwitchError(self.name, (f"{request.name} ({why})",)))

    def _take_part(self, request: _Request | None, message: bytes) -> None:
        """A part of statistics."""
        if len(message) < _PART_HEADER_BYTES:
            raise NonsenseError("statistics without a header")
        if request is None or request.answer is None or request.parts is None:
            self._error_counts["statistics that were not requested"] += 1
            return
        request.parts.append(message[_PART_HEADER_BYTES:])
        if sum(map(len, request.parts)) > _MOST_MULTIPART_BYTES:
            raise NonsenseError("statistics without an end")
        if not message[_FLAGS_PLACE] & _MORE_FOLLOWS and not request.answer.done():
            request.answer.set_result(request.parts)

    async def _watch(self) -> None:
        """Ask a switch that is silent whether it is there, and give it up when it does not answer."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._times.echo_seconds)
            silent = loop.time() - self._received_at
            if silent >= self._times.silence_seconds:
                self.close("silent")
                return
            if silent >= self._times.echo_seconds / 2:
                self._write(OpenFlowType.ECHO_REQUEST)

    async def _ask(self, kind: OpenFlowType, answer: OpenFlowType, what: str) -> bytes:
        octets = HEADER.pack(VERSION, kind, HEADER.size, 0)
        (message,) = await self._answered(octets, what, in_parts=False)
        if message[1] != answer:
            self.close("nonsense: a wrong answer")
            raise SessionClosedError(
                f"switch {self.name} answered {what} with a message of type {message[1]}"
            )
        return message

    async def _answered(self, octets: bytes, what: str, *, in_parts: bool) -> list[bytes]:
        self._require_open()
        number, answer = self._next_transaction(), asyncio.get_running_loop().create_future()
        self._requests[number] = _Request(what, answer, [] if in_parts else None)
        self._writer.write(with_transaction(octets, number))
        try:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            found: list[bytes] = await asyncio.wait_for(answer, self._times.answer_seconds)
            return found
        except TimeoutError:
            self.close("no answer")
            raise SessionClosedError(f"switch {self.name} did not answer {what}") from None
        finally:
            self._requests.pop(number, None)

    def _require_open(self) -> None:
        if self.closed:
            raise SessionClosedError(f"switch {self.name} is not connected")

    def _write(self, kind: OpenFlowType, body: bytes = b"") -> None:
        self._writer.write(
            HEADER.pack(VERSION, kind, HEADER.size + len(body), self._next_transaction()) + body
        )

    def _next_transaction(self) -> int:
        self._last_transaction = self._last_transaction % 0xFFFFFFFF + 1
        return self._last_transaction


def _is_expected(version: int, kind: int, *, greeted: bool) -> bool:
    """A switch greets first, in any version; from then on it speaks ours."""
    if not greeted:
        return kind == OpenFlowType.HELLO
    return version == VERSION and kind <= OpenFlowType.METER_MOD
