"""The coordinator's REST interface, as clients use it: announce, keep alive, learn of changes, withdraw.

Below it is JSON over HTTP/1.1 with asyncio streams: what a small device needs of it, and nothing else. Connections
stay open and are used again; several requests at once use several.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from triagemq.addresses import GatewayAddress
from triagemq.errors import (
    CoordinatorError,
    CoordinatorUnreachableError,
    ParameterError,
    PromiseRefusedError,
)
from triagemq.hiding import without_password

_STATUS_LINE = re.compile(rb"HTTP/1\.\S* ([0-9]{3})")
_LONGEST_BODY_BYTES = 64 << 20
_MOST_HEADERS = 200
_MOST_IDLE = 32


@dataclass(frozen=True, slots=True)
class Registration:
    """Where and as whom to connect. `may_move`: there are other gateways, and it may be sent to another."""

    gateway: GatewayAddress
    client_id: str
    lease_seconds: float
    generation: int
    may_move: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer to a sign of life: which requested delays are refused, and which claims the policy limits; for a
    publisher the events per second of those topics that it is to publish less often."""

    refused_delays: tuple[RequiredDelay, ...] = ()
    limited_claims: tuple[LimitedClaim, ...] = ()
    slow_down: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the plan in force means for one subscriber. `gateway` is where it should be: another than before if it is
    to move."""

    generation: int = 0
    classes: Mapping[str, int] = field(default_factory=dict)
    drop_rates: Mapping[str, float] = field(default_factory=dict)
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class Direction:
    """The topics of a publisher that go out without a broker, and the addresses that they go to; all others go
    to the `gateway`."""

    generation: int = 0
    topics: Mapping[str, str] = field(default_factory=dict)
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class PromiseHop:
    """A link on the path of a promise; the port "" is the publisher's access link."""

    port: str
    level: int
    bound_seconds: float
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Promise:
    """What was decided about a guaranteed subscription and one publisher of its topic.

    Admitted, nothing comes later than `bound_seconds`, from the publisher's beginning to transmit to the subscriber's
    interface; it comes to the multicast `address`, and only there from publishers that follow orders of
    `since_generation` (None: it comes through the gateway until the subscriber is listening there). Refused, there is a
    `reason`; and where there is one the flow that would be late, of `missed_publisher` and `missed_topic`, by how much
    (None: it would have no bound), and the smallest max_latency that would be admitted now, `offer_seconds`.
    """

    subscriber: str
    topic: str
    publisher: str
    admitted: bool
    max_latency_seconds: float
    bound_seconds: float | None = None
    slack_seconds: float | None = None
    address: str | None = None
    hops: tuple[PromiseHop, ...] = ()
    reason: str = ""
    offer_seconds: float | None = None
    missed_publisher: str | None = None
    missed_topic: str | None = None
    missed_by_seconds: float | None = None
    max_size_bytes: int | None = None
    since_generation: int | None = None

    def refusal(self) -> PromiseRefusedError:
        """That it is refused, as an error."""
        missed = None
        if self.missed_publisher is not None and self.missed_topic is not None:
            missed = self.missed_publisher, self.missed_topic
        return PromiseRefusedError(
            str(self),
            reason=self.reason,
            missed=missed,
            missed_by_seconds=self.missed_by_seconds,
            offer_seconds=self.offer_seconds,
        )

    def __str__(self) -> str:
        about = f"{self.topic} from {self.publisher}"
        if self.admitted and self.bound_seconds is not None and self.slack_seconds is not None:
            return (
                f"admitted: {about} within {1000 * self.bound_seconds:.4g} ms, "
                f"{1000 * self.slack_seconds:.4g} ms to spare, at {self.address}"
            )
        offer = f"; {1000 * self.offer_seconds:.4g} ms would be admitted" if self.offer_seconds else ""
        return f"refused: {about} within {1000 * self.max_latency_seconds:.4g} ms: {self.reason}{offer}"


@dataclass(frozen=True, slots=True)
class RequiredDelay:
    """A requested delay: required of the queues, or refused, and then the smallest that could be requested."""

    topic: str
    max_latency_seconds: float
    ports: tuple[str, ...]
    refused: bool
    offer_seconds: float | None = None

    def refusal(self) -> PromiseRefusedError:
        """That it is refused, as an error."""
        return PromiseRefusedError(
            f"{self.topic}: {self}", reason=str(self), offer_seconds=self.offer_seconds
        )

    def __str__(self) -> str:
        requested = f"{1e3 * self.max_latency_seconds:.4g} ms over {', '.join(self.ports)}"
        if self.refused and self.offer_seconds is not None:
            return (
                f"A delay of {requested} is refused: that is less than sending takes there; "
                f"ask for {1e3 * self.offer_seconds:.4g} ms or more."
            )
        return f"A delay of {requested} is required of the queues there."


@dataclass(frozen=True, slots=True)
class LimitedClaim:
    """A claim that counts for less than it says, by the policy of the operator. Without a topic it is all claims."""

    topic: str
    reason: str

    def refusal(self) -> CoordinatorError:
        """The same as an error: nothing is withdrawn, the rest of the claims holds."""
        return CoordinatorError(f"{self.topic or 'all subscriptions'}: {self.reason}", _FORBIDDEN)


_FORBIDDEN = 403

_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Record = TypeVar("_Record", Assignment, Direction, LimitedClaim, Promise, PromiseHop, RequiredDelay)


class HttpClient:
    """Requests to one server. `ssl_context` replaces the system's authorities for https."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_seconds: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._unix_path = url.removeprefix("unix:") if url.startswith("unix:/") else None
        parts = urlsplit("http://localhost" if self._unix_path else url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ParameterError(
                "coordinator",
                f"must be http://HOST:PORT, https://HOST:PORT or unix:/PATH, is {without_password(url)!r}",
            )
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise ParameterError("token", "must be printable ASCII")
        self.url = (url if self._unix_path else without_password(url)).rstrip("/")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = port or (443 if self._secure else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._ssl_context = ssl_context
        self._idle: list[_Stream] = []

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait_seconds: float = 0.0
    ) -> tuple[int, Any]:
        """Status and JSON of the answer (None if it has none); `wait_seconds` is the server's time to think.

        A connection that was open before may have been closed by the server in this very moment: then a request that
        does no more the second time is sent again. A POST is not, because the first may have taken effect.
        """
        request = self._encode(method, path, body)
        try:
            async with asyncio.timeout(self._timeout_seconds + wait_seconds):
                while True:
                    idle = self._take_idle()
                    try:
                        return await self._exchange(idle or await self._connect(), request)
                    except (ConnectionError, asyncio.IncompleteReadError):
                        if idle is None or method == "POST":
                            raise
        except TimeoutError:
            raise self._unreachable(f"no answer within {self._timeout_seconds + wait_seconds:g} s") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._unreachable(_words(error)) from error

    async def close(self) -> None:
        """End all connections."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    def _take_idle(self) -> _Stream | None:
        """A connection that is open, as far as is known; those that the server has closed are given up."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    async def _connect(self) -> _Stream:
        if self._secure and self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        if self._unix_path is not None:
            return await asyncio.open_unix_connection(self._unix_path)
        context = self._ssl_context if self._secure else None
        return await asyncio.open_connection(self._host, self._port, ssl=context)

    def _encode(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        content = b"" if body is None else json.dumps(body, allow_nan=False).encode()
        lines = [
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"Host: {self._authority}",
            "Accept: application/json",
            f"Content-Length: {len(content)}",
        ]
        if body is not None:
            lines.append("Content-Type: application/json")
        if self._token is not None:
            lines.append(f"Authorization: Bearer {self._token}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + content

    async def _exchange(self, stream: _Stream, request: bytes) -> tuple[int, Any]:
        is_reusable = False
        reader, writer = stream
        try:
            writer.write(request)
            await writer.drain()
            status, headers = await self._head(reader)
            content = b"" if status in (204, 304) else await _content(reader, headers)
            closes = headers.get("Connection", "").lower() == "close"
            is_reusable = not closes and len(self._idle) < _MOST_IDLE
            return status, _json(content)
        except (asyncio.LimitOverrunError, ValueError):
            raise self._unexpected_answer() from None
        finally:
            if is_reusable:
                self._idle.append(stream)
            else:
                writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, Message]:
        status = 100
        while status < 200:
            found = _STATUS_LINE.match(await reader.readuntil(b"\n"))
            if found is None:
                raise CoordinatorError(f"{self.url} does not speak HTTP; is it the coordinator's address?")
            status, lines = int(found[1]), []
            while (line := await reader.readuntil(b"\n")).strip():
                lines.append(line)
                if len(lines) > _MOST_HEADERS:
                    raise self._unexpected_answer()
        return status, message_from_bytes(b"".join(lines))

    def _unexpected_answer(self) -> CoordinatorError:
        """What came is not what a coordinator sends."""
        return CoordinatorError(f"{self.url} answers strangely; is it the coordinator's address?")

    def _unreachable(self, why: str) -> CoordinatorUnreachableError:
        return CoordinatorUnreachableError(f"coordinator {self.url} cannot be reached: {why}")


class Coordinator(HttpClient):
    """One coordinator; several publishers and subscribers may share the object. `kind`: publishers, subscribers."""

    async def announce(self, kind: str, name: str, intent: Mapping[str, Any]) -> Registration:
        """Announce an intent; it replaces an earlier one of that name."""
        answer = await self.ask("PUT", _path(kind, name), intent)
        connection = _object(answer.get("connection"))
        gateway, client_id = connection.get("gateway"), connection.get("client_id")
        if not isinstance(gateway, str) or not isinstance(client_id, str) or not client_id:
            raise self._unexpected_answer()
        try:
            address = GatewayAddress.parse(gateway)
        except ParameterError:
            raise self._unexpected_answer() from None
        return Registration(
            address,
            client_id,
            self._number(answer, "lease_seconds"),
            self._generation(answer),
            connection.get("may_move") is True,
        )

    async def heartbeat(self, kind: str, name: str, report: Mapping[str, Any]) -> HeartbeatReply:
        """Keep the lease, and report."""
        answer = await self.ask("POST", f"{_path(kind, name)}/heartbeat", report)
        rates = _object(answer.get("slow_down"))
        delays, limited = answer.get("refused_delays"), answer.get("limited_claims")
        return HeartbeatReply(
            tuple(
                self._record(RequiredDelay, row, ports=tuple(_object(row).get("ports") or ()))
                for row in (delays if isinstance(delays, list) else ())
            ),
            tuple(self._record(LimitedClaim, row) for row in (limited if isinstance(limited, list) else ())),
            {topic: rate for topic in rates if (rate := self._number(rates, topic)) > 0},
        )

    async def assignment(self, name: str, *, after: int, wait_seconds: float) -> Assignment:
        """The assignment in force, as soon as it is newer than `after`, or when that time is over."""
        path = f"{_path('subscribers', name)}/assignment?after={after}"
        return await self._newer(Assignment, path, wait_seconds)

    async def direction(self, name: str, *, after: int, wait_seconds: float) -> Direction:
        """What a publisher sends without a broker, as soon as that is newer than `after`, or when time is over."""
        return await self._newer(Direction, f"{_path('publishers', name)}/direct?after={after}", wait_seconds)

    async def _newer(self, kind: type[_Record], path: str, wait_seconds: float) -> _Record:
        answer = await self.ask("GET", f"{path}&wait_seconds={wait_seconds:g}", wait_seconds=wait_seconds)
        return self._record(kind, answer, generation=self._generation(answer))

    async def promises(self, name: str, *, wait_seconds: float) -> list[Promise]:
        """What was decided about a subscriber's guaranteed subscriptions, as soon as its last wishes are in force.

        Empty if they are not in that time.
        """
        path = f"{_path('subscribers', name)}/promises?wait_seconds={wait_seconds:g}"
        answer = await self.ask("GET", path, wait_seconds=wait_seconds)
        found = self._promises(answer)
        return found if answer.get("in_force") is True else []

    async def promises_of(self, kind: str, name: str) -> list[Promise]:
        """The present decisions about all that a client publishes or subscribes to."""
        return self._promises(await self.ask("GET", _path(kind, name)))

    def _promises(self, answer: Mapping[str, Any]) -> list[Promise]:
        rows = answer.get("promises")
        if not isinstance(rows, list):
            raise self._unexpected_answer()
        found = []
        for row in rows:
            hops = _object(row).get("hops") or ()
            hops = tuple(self._record(PromiseHop, hop) for hop in hops)
            found.append(self._record(Promise, row, hops=hops))
        return found

    def _record(self, kind: type[_Record], row: object, **own: Any) -> _Record:
        """The fields of a record; a newer coordinator may send more."""
        known = {key: value for key, value in _object(row).items() if key in kind.__dataclass_fields__}
        try:
            return kind(**known | own)
        except TypeError:
            raise self._unexpected_answer() from None

    async def withdraw(self, kind: str, name: str) -> None:
        """Withdraw the intent."""
        await self.ask("DELETE", _path(kind, name))

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait_seconds: float = 0.0
    ) -> dict[str, Any]:
        """The object with which it answers."""
        return _object(await self.answer(method, path, body, wait_seconds=wait_seconds))

    async def answer(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wait_seconds: float = 0.0
    ) -> Any:
        """The answer to any request, None if it has no content; CoordinatorError, with its status, if it is no."""
        status, answer = await self._request(method, path, body, wait_seconds=wait_seconds)
        if not 200 <= status < 300:
            raise CoordinatorError(f"coordinator {self.url}: {_detail(status, answer)}", status)
        return answer

    def _generation(self, answer: Mapping[str, Any]) -> int:
        return int(self._number(answer, "generation"))

    def _number(self, answer: Mapping[str, Any], key: str) -> float:
        value = answer.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unexpected_answer()
        return value


def _path(kind: str, name: str) -> str:
    return f"/v1/{kind}/{quote(name, safe='')}"


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _detail(status: int, answer: object) -> str:
    """The reason in one line, whether it is a text or the list that FastAPI makes of a body it does not understand.

    >>> _detail(422, {"detail": [{"loc": ["body", "lease_seconds"], "msg": "must be above 0"}]})
    'lease_seconds: must be above 0'
    >>> _detail(502, None)
    'HTTP status 502'
    """
    detail = _object(answer).get("detail")
    if isinstance(detail, str) and detail:
        return " ".join(detail.split())
    if isinstance(detail, list):
        mistakes = [
            f"{'.'.join(str(part) for part in one.get('loc', ())[1:])}: {one.get('msg', 'is wrong')}"
            for one in detail
            if isinstance(one, dict)
        ]
        if mistakes:
            return "; ".join(mistakes)
    return f"HTTP status {status}"


async def _content(reader: asyncio.StreamReader, headers: Message) -> bytes:
    """ValueError if its size is not given, or too large."""
    if headers.get("Transfer-Encoding", "").lower() != "chunked":
        return await reader.readexactly(_size(headers.get("Content-Length", "0"), 10))
    content = bytearray()
    while size := _size((await reader.readuntil(b"\n")).partition(b";")[0].strip(), 16):
        content += await reader.readexactly(size)
        await reader.readuntil(b"\n")
        if len(content) > _LONGEST_BODY_BYTES:
            raise ValueError
    while (await reader.readuntil(b"\n")).strip():
        pass
    return bytes(content)


def _size(text: str | bytes, base: int) -> int:
    size = int(text, base)
    if not 0 <= size <= _LONGEST_BODY_BYTES:
        raise ValueError
    return size


def _json(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except (ValueError, RecursionError):
        # A proxy's page, or another service altogether; the status is still of use.
        return None


def _words(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS; try http:// if that is intended"
    if isinstance(error, asyncio.IncompleteReadError):
        return "it has closed the connection"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is it running there?"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
