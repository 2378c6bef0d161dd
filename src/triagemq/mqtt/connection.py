"""The sockets under MQTT sessions: asyncio, TLS, keep-alive, reconnection with back-off, and a task for each."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable

from triagemq.broker.address import BrokerAddress
from triagemq.errors import MqttError
from triagemq.mqtt.session import MqttSession

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 5.0
_SLOWER = 1.7
_CONNECT_TIMEOUT_SECONDS = 10.0
# What is lost sooner than this is waited for longer each time.
_STABLE_SECONDS = 1.0
# Ticks without a word of the broker, two to a ping. Some brokers of 3.1.1 say nothing at all to a CONNECT of MQTT 5.
_TICKS_UNTIL_DEAD = 5
_CONNECTING_TICKS = 3
# The broker ends connections again and again.
_UNSTABLE_LOSSES = 3
_UNSTABLE_SECONDS = 60.0
_MOST_UNWRITTEN_BYTES = 4 << 20
_READ_BYTES = 1 << 18
_TAKEN_OVER = "session taken over"
_TCP_INFO_BYTES, _ROUND_TRIP_AT = 104, 68
"""How long Linux's struct tcp_info is at least, and where tcpi_rtt is in it, in microseconds."""


def tcp_round_trip_seconds(connected: socket.socket) -> float | None:
    """To the other end and back, as TCP measures it; None if it is not known."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    return int.from_bytes(info[_ROUND_TRIP_AT : _ROUND_TRIP_AT + 4], sys.byteorder) / 1e6


class MqttConnection(asyncio.Protocol):
    """Keeps one session connected. `changed` is called after octets came in or the connection went, `before` before.

    Its owner stores what the session has reported and then calls `flush`. It always reads: a broker that is
    not read drops QoS 0 messages at its own choice instead of by priority.
    """

    def __init__(
        self,
        address: BrokerAddress,
        session: MqttSession,
        *,
        before: Callable[[], None],
        changed: Callable[[MqttConnection], None],
        boot: Callable[[], str] = lambda: "",
    ) -> None:
        self._boot = boot
        self._address = address
        self._before = before
        self._changed = changed
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._lost = asyncio.Event()
        self._is_heard = False
        self._closing = False
        self._accepted_at: float | None = None
        self._losses: deque[tuple[float, str]] = deque(maxlen=100)
        self.session = session
        self.last_problem = ""

    async def run(self) -> None:
        """Connect, stay connected, connect again; until cancelled."""
        loop = asyncio.get_running_loop()
        context = self._address.ssl_context()
        delay = _FIRST_DELAY_SECONDS
        while not self._closing:
            self._lost.clear()
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
                    await loop.create_connection(
                        lambda: self, self._address.host, self._address.port, ssl=context
                    )
            except ssl.SSLCertVerificationError as error:
                self.last_problem = (
                    f"its certificate is not trusted ({error.verify_message}); --broker-ca names who to trust"
                )
            except (OSError, TimeoutError) as error:
                self.last_problem = str(error) or type(error).__name__
            else:
                await self._stay()
                if self._accepted_at is not None and loop.time() - self._accepted_at > _STABLE_SECONDS:
                    delay = _FIRST_DELAY_SECONDS
            # Spread out, so that the connections of one gateway do not all come at the same instant.
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * _SLOWER, _LONGEST_DELAY_SECONDS)

    async def _stay(self) -> None:
        """Until the connection is lost, or the broker does not answer.

        Silence is counted in ticks and not in seconds: after this process itself was stopped for a while, the broker's
        octets are there and not read yet.
        """
        session, silent_ticks, tick = self.session, 0, 0
        while not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(session.ping_seconds / 2 if session.connected else 1.0):
                    await self._lost.wait()
            if self._lost.is_set():
                return
            silent_ticks = 0 if self._is_heard else silent_ticks + 1
            self._is_heard = False
            tick += 1
            if silent_ticks >= (_TICKS_UNTIL_DEAD if session.connected else _CONNECTING_TICKS):
                self._abort("the broker does not answer")
            elif session.connected and tick % 2 == 0 and not session.unanswered_pings:
                session.ping()
                self.flush()

    @property
    def problem(self) -> str:
        """Why the session could not be connected at the last attempt, or does not stay connected."""
        since = time.monotonic() - _UNSTABLE_SECONDS
        losses = [reason for lost_at, reason in self._losses if lost_at > since]
        takeovers = [reason for reason in losses if _TAKEN_OVER in reason]
        if takeovers:
            return (
                f"the broker lets another client in as {self.session.login.client_id!r}, which is our client id: "
                "a copy of this state directory may be in use elsewhere"
            )
        if len(losses) >= _UNSTABLE_LOSSES:
            return f"the broker ends the connection again and again, at last: {losses[-1]}"
        return "" if self.session.connected else self.last_problem

    def flush(self) -> None:
        """Write what the session has to say."""
        if self._transport is not None and (octets := self.session.take_output()):
            self._transport.write(octets)

    async def close(self) -> None:
        """Leave the broker in peace."""
        self._closing = True
        self.session.leave()
        self.flush()
        if self._transport is not None:
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._lost.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A TCP connection is there."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(_MOST_UNWRITTEN_BYTES)
        self._transport = transport
        if transport.get_extra_info("ssl_object") is None:
            self._socket = transport.get_extra_info("socket").dup()
        self.session.is_congested = False
        self._is_heard, self._accepted_at = True, None
        self.session.opened(self._boot())
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Octets are there; half a packet is as good as ten."""
        self._is_heard = True
        self._before()
        problem = ""
        try:
            self.session.receive(data)
        except MqttError as error:
            problem = str(error)
        if self.session.connected and self._accepted_at is None:
            self._accepted_at = asyncio.get_running_loop().time()
            self.last_problem = ""
        if problem:
            self._abort(problem)
        self._changed(self)

    @property
    def round_trip_seconds(self) -> float | None:
        """To the broker and back, as TCP measures it with all that is sent, pings at least; None if it is not known."""
        return None if self._socket is None else tcp_round_trip_seconds(self._socket)

    def pause_writing(self) -> None:
        """The broker does not read."""
        self.session.is_congested = True

    def resume_writing(self) -> None:
        """It does again."""
        self.session.is_congested = False

    def connection_lost(self, error: Exception | None) -> None:
        """The TCP connection is gone."""
        if error is not None:
            self.last_problem = str(error)
        self._transport = None
        if self._socket is not None:
            with self._socket as left:
                if error is not None:
                    self._read_last(left)
            self._socket = None
        if self._accepted_at is not None and not self._closing:
            self.last_problem = self.last_problem or "the broker closed the connection"
            self._losses.append((time.monotonic(), self.last_problem))
        self._before()
        self.session.closed()
        self._lost.set()
        self._changed(self)

    def _read_last(self, left: socket.socket) -> None:
        """When a broker dies, writing to it fails at once. What it had sent before is here all the same; it has
        acknowledged these messages to publishers, and no other has them now."""
        with contextlib.suppress(OSError):
            while data := left.recv(_READ_BYTES):
                self.data_received(data)

    def _abort(self, problem: str) -> None:
        self.last_problem = problem
        if self._transport is not None:
            self._transport.abort()
