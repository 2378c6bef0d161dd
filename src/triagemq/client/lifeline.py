"""The life of a connection: made, watched over by pings, lost, made again; asleep now and then; ended.

The handshake is CONNECT and its answer, with the will in between, tried again with growing pauses. Everything else on a
connection happens while the lifeline is active, and starts again when it is again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from enum import Enum

from triagemq.addresses import GatewayAddress
from triagemq.client.background import Background
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.client.sockets import DatagramSocket, SecureSocket
from triagemq.client.wire import refused
from triagemq.errors import ClosedError, GatewayUnreachableError, ParameterError
from triagemq.hiding import without_key
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    Message,
    PingReq,
    PingResp,
    ReturnCode,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    encode,
)
from triagemq.waiting import end, is_set_within

LifeMessage = ConnAck | WillTopicReq | WillMsgReq | PingReq | PingResp | Disconnect

_SLOWER = 1.7
_LATE_CONNECT_SECONDS = 30.0
_PATIENCE_SECONDS = 2.0
_SHORT_LIFE_SECONDS = 1.0
_LONGEST_LEAVE_SECONDS = 2.0


class Handshake:
    """Makes one connection after the other for the same client; `send` sends a message, or loses it."""

    def __init__(
        self, send: Callable[[Message], bool], settings: ConnectionSettings, client_id: str, will: Will | None
    ) -> None:
        self._send = send
        self._settings = settings
        self.client_id = client_id
        self._will = will
        self._answer: asyncio.Future[ReturnCode] | None = None
        self.problem = ""
        """Why the last attempt failed."""
        self.refusal: ReturnCode | None = None
        """The answer to the last attempt, if it was no."""

    async def run(self, *, clean: bool) -> None:
        """Until a CONNECT is accepted."""
        delay = self._settings.first_delay_seconds
        attempts = 0
        while True:
            attempts += 1
            code = await self._attempt(clean, delay)
            if code is ReturnCode.ACCEPTED:
                break
            self.refusal = code
            if code is None:
                self.problem = "it does not answer"
            else:
                self.problem = f"it refuses the connection ({code.name.lower().replace('_', ' ')})"
                # Spread out, so that the clients of a gateway do not all come at the same instant.
                await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * _SLOWER, self._settings.longest_delay_seconds)
        if clean and attempts > 1:
            # Answers to the other attempts must not be taken for the answer to the next CONNECT.
            await asyncio.sleep(delay)
        self.problem, self.refusal = "", None

    async def _attempt(self, clean: bool, seconds: float) -> ReturnCode | None:
        self._answer = asyncio.get_running_loop().create_future()
        self._send(
            Connect(
                self.client_id,
                self._settings.keep_alive_seconds,
                clean_session=clean,
                will=self._will is not None,
            )
        )
        try:
            done, _ = await asyncio.wait({self._answer}, timeout=seconds)
            return self._answer.result() if done else None
        finally:
            self._answer = None

    def will_topic_wanted(self) -> None:
        """The gateway asks for the topic of the will."""
        will = self._will
        self._send(WillTopic(None) if will is None else WillTopic(will.topic, will.qos, will.retain))

    def will_message_wanted(self) -> None:
        """The gateway asks for the payload of the will."""
        self._send(WillMsg(b"" if self._will is None else self._will.payload))

    def answered(self, message: ConnAck) -> bool:
        """False if there was no question: an old CONNECT has arrived late or twice."""
        if self._answer is None or self._answer.done():
            return False
        self._answer.set_result(message.return_code)
        return True


class State(Enum):
    """Where a connection is in its life."""

    NEW = "new"
    CONNECTING = "connecting"
    ACTIVE = "active"
    ASLEEP = "asleep"
    CLOSED = "closed"


class Lifeline:
    """Calls `on_active` when connected, with True if the session is surely a new one, and `on_lost` when it is not."""

    def __init__(
        self,
        address: GatewayAddress,
        client_id: str,
        settings: ConnectionSettings,
        background: Background,
        *,
        on_datagram: Callable[[bytes], None],
        on_active: Callable[[bool], None],
        on_lost: Callable[[], None],
        keep_session: bool,
        clear_first: bool,
        will: Will | None,
    ) -> None:
        self.state = State.NEW
        self.connected = 0
        self.problem = ""
        self.heard_at = 0.0
        self._sent_at = 0.0
        self._address = address
        self._client_id = client_id
        self._settings = settings
        self._background = background
        self._on_datagram = on_datagram
        self._on_active = on_active
        self._on_lost = on_lost
        self._keep_session = keep_session
        self._clear_first = clear_first
        self._cleared_at = float("-inf")
        self._handshake = Handshake(self.send, settings, client_id, will)
        self._active = asyncio.Event()
        # Set when it is clear whether this will be a connection at all.
        self._decided = asyncio.Event()
        self._socket = self._make_socket()
        # Set to have `_watch` look at once: the connection is lost, or somebody doubts that it is not.
        self._attention = asyncio.Event()
        self._doubt = False
        self._pong = asyncio.Event()
        self._taken_leave = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def local_address(self) -> tuple[str, int]:
        """Its own UDP port."""
        return self._socket.local_address

    def send(self, message: Message) -> bool:
        """Send it, or lose it; False if the system cannot take it now."""
        self._sent_at = asyncio.get_running_loop().time()
        return self._socket.send(encode(message))

    async def open(self) -> None:
        """Connect; an error when that fails for too long."""
        await self._socket.open(self._address.host, self._address.port)
        self.state = State.CONNECTING
        self._keeper = self._background.start("keeping the connection to the gateway", self._keep)
        timeout = self._settings.connect_timeout_seconds
        try:
            if await self._is_connected_within(min(timeout, _PATIENCE_SECONDS)):
                return
            # A gateway may hear of a new client's rights a little later than the client itself.
            if (
                not self._socket.distrust
                and self._handshake.refusal is not ReturnCode.REJECTED_NOT_SUPPORTED
                and (await self._is_connected_within(timeout - _PATIENCE_SECONDS))
            ):
                return
        except BaseException:
            await self.end()
            raise
        refusal = self._handshake.refusal
        problem = self._socket.problem
        await self.end()
        where = f"gateway {self._address}"
        if refusal is not None:
            raise refused(f"connecting as {without_key(self._client_id)!r} to {where}", refusal)
        if problem:
            raise GatewayUnreachableError(f"{where}: {problem}")
        raise GatewayUnreachableError(f"{where} does not answer; is it running there?")

    async def _is_connected_within(self, seconds: float) -> bool:
        await is_set_within(self._decided, max(0.0, seconds))
        # A connection that is lost again at once is made again, like any other.
        return self.connected > 0

    async def until_active(self) -> None:
        """Wait for the connection; ClosedError when there will be none."""
        await self._active.wait()
        if self.state is State.CLOSED:
            raise ClosedError(f"connection {without_key(self._client_id)!r} was closed")

    async def redirect(self, address: GatewayAddress, client_id: str) -> None:
        """Be another client from now on, perhaps at another gateway; what is unfinished is begun again there."""
        if (address, client_id) == (self._address, self._client_id):
            return
        if address.secure == self._address.secure:
            await self._socket.redirect(address.host, address.port)
            self._address = address
        else:
            self._address = address
            self._socket.close()
            self._socket = self._make_socket()
            await self._socket.open(address.host, address.port)
        self._client_id = client_id
        self._handshake.client_id = client_id
        self.lose("it goes on under another name")

    async def leave(self, *, end_session: bool = False) -> None:
        """Take leave of the gateway, if it is there; it forgets the session unless that is to be kept."""
        if self.state not in (State.ACTIVE, State.ASLEEP):
            return
        await end(self._keeper)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_LONGEST_LEAVE_SECONDS, self._settings.close_timeout_seconds)):
                if end_session or not self._keep_session:
                    await self._handshake.run(clean=True)
                await self._disconnect(None)

    async def end(self) -> None:
        """Give the port back. Whoever waits for the connection wakes up and finds it closed."""
        self.state = State.CLOSED
        self._active.set()
        await end(self._keeper)
        self._socket.close()

    # Being connected.

    @property
    def refusal(self) -> str:
        """Why the gateway refuses to connect again, while it does."""
        waits = self.state is State.CONNECTING and self._handshake.refusal is not None
        return self._handshake.problem if waits else ""

    async def _keep(self) -> None:
        try:
            await self._keep_connected()
        except Exception:
            self.lose("an unexpected error")
            raise

    async def _keep_connected(self) -> None:
        delay = 0.0
        while True:
            await asyncio.sleep(delay)
            fresh = self._clear_first
            if fresh:
                await self._handshake.run(clean=True)
                self._clear_first = False
                self._cleared_at = asyncio.get_running_loop().time()
            await self._handshake.run(clean=False)
            self.connected += 1
            self.problem = ""
            self.state = State.ACTIVE
            self._active.set()
            self._decided.set()
            self._on_active(fresh)
            began = asyncio.get_running_loop().time()
            await self._watch()
            # A gateway that lets clients in only to send them away, or two clients of one id, must not go in circles.
            lived = asyncio.get_running_loop().time() - began
            longer = max(self._settings.first_delay_seconds, delay * 2)
            delay = 0.0 if lived > _SHORT_LIFE_SECONDS else min(longer, self._settings.longest_delay_seconds)

    async def _watch(self) -> None:
        """Until the connection is lost."""
        loop = asyncio.get_running_loop()
        ping_seconds = self._settings.ping_seconds
        while self.state is not State.CONNECTING:
            pause = min(self._sent_at, self.heard_at) + ping_seconds - loop.time()
            if self.state is State.ACTIVE and (self._doubt or pause <= 0):
                self._doubt = False
                await self._ping()
            else:
                self._attention.clear()
                await is_set_within(self._attention, pause if pause > 0 else ping_seconds)

    def probe(self) -> None:
        """Find out whether the gateway is there: somebody misses an answer."""
        self._doubt = True
        self._attention.set()

    async def _ping(self) -> None:
        for _ in range(1 + self._settings.retries):
            self._pong.clear()
            self.send(PingReq())
            await is_set_within(self._pong, self._settings.retry_seconds)
            if self._pong.is_set() or self.state is not State.ACTIVE:
                return
        self._lose_silent_gateway()

    def _lose_silent_gateway(self) -> None:
        # Perhaps it has forgotten the association, and what it says to that does not come through.
        self._socket.renew()
        self.lose("the gateway does not answer")

    def lose(self, problem: str) -> None:
        """The connection is lost, and made again."""
        if self.state in (State.ACTIVE, State.ASLEEP):
            self.state = State.CONNECTING
            self.problem = problem
            self._active.clear()
            self._doubt = False
            self._attention.set()
            self._on_lost()

    # Sleep.

    async def sleep(self, duration_seconds: int) -> None:
        """Tell the gateway to keep events for that long."""
        if not 0 < duration_seconds <= 0xFFFF:
            raise ParameterError("duration_seconds", f"must be from 1 to 65535, is {duration_seconds}")
        await self.until_active()
        self._active.clear()
        if not await self._disconnect(duration_seconds):
            self._lose_silent_gateway()

    async def _disconnect(self, duration_seconds: int | None) -> bool:
        self._taken_leave.clear()
        self.state = State.ASLEEP
        for _ in range(1 + self._settings.retries):
            self.send(Disconnect(duration_seconds))
            if await is_set_within(self._taken_leave, self._settings.retry_seconds):
                return True
        return False

    async def check(self) -> None:
        """While asleep: get the events that were kept; returns when all have come."""
        for _ in range(1 + self._settings.retries):
            if self.state is not State.ASLEEP:
                return
            self._pong.clear()
            self.send(PingReq(self._client_id))
            # As long as something comes, more may.
            heard_at = -1.0
            while heard_at != self.heard_at:
                heard_at = self.heard_at
                if await is_set_within(self._pong, self._settings.retry_seconds):
                    return
        self._lose_silent_gateway()

    async def wake(self) -> None:
        """Be connected again."""
        if self.state is State.ASLEEP:
            self.lose("")
        await self.until_active()

    # What comes in.

    def _make_socket(self) -> DatagramSocket | SecureSocket:
        settings = self._settings
        if not self._address.secure:
            return DatagramSocket(self._datagram, settings.make_socket)
        return SecureSocket(
            self._datagram, self._association_lost, self._decided.set, settings.security, settings.make_socket
        )

    def _association_lost(self, problem: str) -> bool:
        """True if that was a connection: another one is made, with a CONNECT of its own."""
        was_connected = self.state in (State.ACTIVE, State.ASLEEP)
        self.lose(problem)
        return was_connected

    def _datagram(self, datagram: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self._on_datagram(datagram)

    def message(self, message: LifeMessage) -> None:
        """A message that is about the connection itself."""
        match message:
            case PingReq():
                # The gateway wants to know how far it is to us.
                self.send(PingResp())
            case PingResp():
                self._pong.set()
            case WillTopicReq():
                self._handshake.will_topic_wanted()
            case WillMsgReq():
                self._handshake.will_message_wanted()
            case Disconnect() if self.state is State.ASLEEP and not self._taken_leave.is_set():
                self._taken_leave.set()
            case Disconnect():
                self.lose("the gateway has ended the connection")
            case ConnAck() if not self._handshake.answered(message) and self._was_just_cleared():
                # A copy of the CONNECT that cleared the session may have cleared it once more.
                self.lose("an old CONNECT arrived late")

    def _was_just_cleared(self) -> bool:
        return asyncio.get_running_loop().time() - self._cleared_at < _LATE_CONNECT_SECONDS
