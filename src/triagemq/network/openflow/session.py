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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, Self

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

Place = Path | tuple[str, int]
"""A unix socket, or an address and a TCP port."""

OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
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
        self._tasks: set[asyncio.Task[None]] = set()
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
        task = asyncio.ensure_future(self._on_connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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


@dataclass(slots=True)
class SessionCounters:
    """What went wrong with connections, by reason."""

    disconnected: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)


class SwitchListener(Protocol):
    """Gets what a switch sends by itself, from the event loop."""

    def packet_in(self, session: SwitchSession, packet: PacketIn) -> None: ...

    def port_changed(self, session: SwitchSession, gone: bool, port: PortDescription) -> None: ...

    def closed(self, session: SwitchSession) -> None: ...


class _Question(NamedTuple):
    """A request to the switch, and what waits for the answer: one message, or the bodies of all parts of statistics."""

    name: str
    future: asyncio.Future[list[bytes]]
    parts: list[bytes] | None


class _Transactions:
    """What was sent and the switch has not finished: questions, by their answers; orders, by the next barrier.

    Each has a number, and a name for the error if it fails.
    """

    def __init__(self) -> None:
        self._last = 0
        self._questions: dict[int, _Question] = {}
        self._orders: dict[int, str] = {}
        self._refused: list[tuple[int, str]] = []

    def next(self) -> int:
        """A number for a message without an answer."""
        self._last = self._last % 0xFFFFFFFF + 1
        return self._last

    # Questions.

    def ask(self, what: str, *, in_parts: bool) -> tuple[int, asyncio.Future[list[bytes]]]:
        """A question with one message for an answer, or for statistics; `forget` it in the end."""
        number = self.next()
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._questions[number] = _Question(what, future, [] if in_parts else None)
        return number, future

    def forget(self, number: int) -> None:
        """Answered, or given up."""
        self._questions.pop(number, None)

    def answer(self, number: int, message: bytes) -> bool:
        """A message has come; whether it answers a question."""
        question = self._questions.get(number)
        if question is None or question.parts is not None or question.future.done():
            return False
        question.future.set_result([message])
        return True

    def answer_part(self, number: int, message: bytes) -> bool:
        """A part of statistics has come; whether it was requested."""
        if len(message) < _PART_HEADER_BYTES:
            raise NonsenseError("statistics without a header")
        question = self._questions.get(number)
        if question is None or question.parts is None:
            return False
        question.parts.append(message[_PART_HEADER_BYTES:])
        if sum(map(len, question.parts)) > _MOST_MULTIPART_BYTES:
            raise NonsenseError("statistics without an end")
        if not message[_FLAGS_PLACE] & _MORE_FOLLOWS and not question.future.done():
            question.future.set_result(question.parts)
        return True

    # Orders.

    def order(self, what: str) -> int:
        """An order: a switch that follows it says nothing."""
        number = self.next()
        self._orders[number] = what
        return number

    def unfinished_orders(self) -> set[int]:
        """Those that the next barrier ends."""
        return set(self._orders)

    def finish_orders(self, numbers: set[int]) -> tuple[str, ...]:
        """A barrier has been passed: what the switch refused of these, in words."""
        for number in numbers:
            self._orders.pop(number, None)
        refused = tuple(text for number, text in self._refused if number in numbers)
        self._refused = [each for each in self._refused if each[0] not in numbers]
        return refused

    # What goes wrong.

    def refuse(self, number: int, switch: str, why: str) -> bool:
        """The switch refuses; whether that is about anything here. A request fails now, the rest at a barrier."""
        question = self._questions.get(number)
        if question is not None:
            if not question.future.done():
                question.future.set_exception(SwitchError(switch, (f"{question.name} ({why})",)))
        elif number in self._orders:
            self._refused.append((number, f"{self._orders[number]} ({why})"))
        else:
            return False
        return True

    def end(self, why: str) -> None:
        """No answer will come any more."""
        for _, future, _ in self._questions.values():
            if not future.done():
                future.set_exception(SessionClosedError(why))
                future.exception()  # What waited may have gone.


class SwitchSession:
    """Begins with `open`. Every method belongs to the event loop's thread."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        listener: SwitchListener,
        counters: SessionCounters,
        times: SessionTimes = SessionTimes(),  # noqa: B008 (frozen)
    ) -> None:
        self.datapath_id = 0
        self.ports: dict[int, PortDescription] = {}
        self._reader, self._writer = reader, writer
        self._listener, self._counters, self._times = listener, counters, times
        self._transactions = _Transactions()
        self._heard = asyncio.get_running_loop().time()
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
            described = decoding.decode_ports(await self.parts(encoding.request_ports(), "its ports"))
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
        self._writer.write(with_transaction(octets, self._transactions.order(what)))

    def packet_out(self, port: int, frame: bytes) -> None:
        """Send a frame out of a port. No barrier waits for it: a switch that refuses it is counted, and no more."""
        self._require_open()
        self._writer.write(with_transaction(encoding.packet_out(port, frame), self._transactions.next()))

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
        orders = self._transactions.unfinished_orders()
        await self.drain()
        refused = self._transactions.finish_orders(orders)
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
            self._counters.disconnected[reason.partition(":")[0]] += 1
        self._transactions.end(f"the connection to switch {self.name} ended")
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
            self._heard = loop.time()
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
        listener, transactions = self._listener, self._transactions
        if kind == OpenFlowType.ECHO_REQUEST:
            header = HEADER.pack(VERSION, OpenFlowType.ECHO_REPLY, len(message), transaction)
            self._writer.write(header + message[HEADER.size :])
        elif kind == OpenFlowType.ERROR:
            why = decoding.decode_error(message)
            if not transactions.refuse(transaction, self.name, why):
                self._counters.unexpected[f"error ({why})"] += 1
        elif kind == OpenFlowType.MULTIPART_REPLY:
            if not transactions.answer_part(transaction, message):
                self._counters.unexpected["statistics that were not requested"] += 1
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
        elif not transactions.answer(transaction, message) and kind not in _MAY_BE_UNEXPECTED:
            self._counters.unexpected[f"message type {kind}"] += 1

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
        transaction, future = self._transactions.ask(what, in_parts=in_parts)
        self._writer.write(with_transaction(octets, transaction))
        try:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            return await asyncio.wait_for(future, self._times.answer_seconds)
        except TimeoutError:
            self.close("no answer")
            raise SessionClosedError(f"switch {self.name} did not answer {what}") from None
        finally:
            self._transactions.forget(transaction)

    def _require_open(self) -> None:
        if self.closed:
            raise SessionClosedError(f"switch {self.name} is not connected")

    def _write(self, kind: OpenFlowType, body: bytes = b"") -> None:
        number = self._transactions.next()
        self._writer.write(HEADER.pack(VERSION, kind, HEADER.size + len(body), number) + body)


def _is_expected(version: int, kind: int, *, greeted: bool) -> bool:
    """A switch greets first, in any version; from then on it speaks ours."""
    if not greeted:
        return kind == OpenFlowType.HELLO
    return version == VERSION and kind <= OpenFlowType.METER_MOD
