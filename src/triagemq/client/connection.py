"""One MQTT-SN connection over one UDP port, made again whenever it is lost: a `session` with a socket and a clock.

    connection = Connection("127.0.0.1", 10000, "pump-7", on_event=print)
    await connection.open()
    await connection.subscribe("floor3/+", qos=1)
    await connection.publish("floor3/pump", b"on", qos=2)
    await connection.close()

With `secure` it uses DTLS. The session lives as long as this object, over losses of the network and restarts of the
gateway. With `keep_session` it also outlives the object: the next one of that client id gets the events of the time
between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVarTuple

from triagemq.addresses import GatewayAddress
from triagemq.client.events import ConnectionCounters, Event
from triagemq.client.outbox import LOG, CallResult, TopicReference, refused
from triagemq.client.session import ClientSession, State
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.client.sockets import GatewaySocket
from triagemq.dtls import LONGEST_MESSAGE
from triagemq.errors import ClientError, ClosedError, GatewayUnreachableError, ParameterError
from triagemq.hiding import without_key
from triagemq.mqttsn import Publish, ReturnCode
from triagemq.waiting import Opened, Tasks, end, is_set_within

LOG.addHandler(logging.NullHandler())

PAUSES_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Before a failed task runs again; after the last one it is given up."""

_HEALTHY_SECONDS = 60.0
"""A task that ran for so long has recovered: its next failure counts as the first."""

_Arguments = TypeVarTuple("_Arguments")

_LONGEST_SECURE_PAYLOAD = LONGEST_MESSAGE - 16
_PATIENCE_SECONDS = 2.0
_LONGEST_LEAVE_SECONDS = 2.0
_SYSTEM_IS_BUSY_SECONDS = 0.001

CONNECTION_MARK = "~"
"""Between the client id that the coordinator gave and the number of a connection."""


def connection_id(client_id: str, number: int = 0) -> str:
    """The client id of a connection, of which a subscriber has one.

    >>> connection_id("ff-7")
    'ff-7~0'
    """
    return f"{client_id}{CONNECTION_MARK}{number}"


class Background:
    """`owner` is the client as logs name it, without a key; `on_failure` gets the error of a task that is given up."""

    def __init__(
        self,
        owner: str,
        on_problem: Callable[[ClientError], None] | None = None,
        on_failure: Callable[[ClientError], None] | None = None,
    ) -> None:
        self._owner = owner
        self._on_problem = on_problem
        self._on_failure = on_failure
        self._tasks = Tasks()
        self._failure: ClientError | None = None

    def start(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `work` until it returns or is cancelled; after an exception once more."""
        return self._tasks.start(self._run(what, work))

    async def _run(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                await work()
                return
            except Exception as error:
                failures = 1 if loop.time() - began > _HEALTHY_SECONDS else failures + 1
                problem = ClientError(f"{what} failed: {type(error).__name__}: {error}")
                problem.__cause__ = error
                LOG.error("%s: %s", without_key(self._owner), problem, exc_info=error)
                notify(self._on_problem, problem)
                if failures > len(PAUSES_SECONDS):
                    self._failure = problem
                    notify(self._on_failure, problem)
                    return
            await asyncio.sleep(PAUSES_SECONDS[failures - 1])

    async def close(self) -> None:
        """End all tasks that are left."""
        await self._tasks.close()

    def report(self, problem: ClientError) -> None:
        """Something is wrong that the program should hear of."""
        self.log(logging.WARNING, str(problem))
        notify(self._on_problem, problem)

    def log(self, level: int, message: str) -> None:
        """What happens in the life of the client."""
        if LOG.isEnabledFor(level):
            LOG.log(level, "%s: %s", without_key(self._owner), message)

    def raise_failure(self) -> None:
        """For the calls of the program: raise the exception of a task that was given up."""
        if self._failure is not None:
            raise self._failure


def notify(callback: Callable[[*_Arguments], object] | None, *arguments: *_Arguments) -> None:
    """Call a function of the program; its mistakes are logged and stop nothing."""
    if callback is not None:
        try:
            callback(*arguments)
        except Exception:
            LOG.exception("a callback of the program failed")


class Connection(Opened):
    """See the module's text. `client_id_is_new`: no earlier session of that id has to be cleared away.

    `on_connected` gets the gateway's address each time, `on_disconnected` why the connection was lost, `on_problem`
    whatever goes wrong in the background.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        secure: bool = False,
        on_event: Callable[[Event], None] | None = None,
        settings: ConnectionSettings | None = None,
        keep_session: bool = False,
        client_id_is_new: bool = False,
        will: Will | None = None,
        on_connected: Callable[[str], None] | None = None,
        on_disconnected: Callable[[str], None] | None = None,
        on_problem: Callable[[ClientError], None] | None = None,
        background: Background | None = None,
    ) -> None:
        if not client_id:
            raise ParameterError("client_id", "must not be empty")
        self.settings = settings or ConnectionSettings()
        self.client_id = client_id
        self.address = GatewayAddress(host, port, secure)
        self.on_event = on_event
        """Gets each event; it may be changed."""
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        self._background = background or Background(f"connection {client_id}", on_problem)
        self._session = ClientSession(
            client_id,
            self.settings,
            clock=lambda: asyncio.get_running_loop().time(),
            transmit=lambda octets: self._socket.send(octets),
            on_event=lambda event: notify(self.on_event, event),
            on_active=self._connected,
            on_lost=self._lost,
            on_due=lambda: self._due.set(),
            on_room=self._has_room,
            on_refused=self._background.report,
            keep_session=keep_session,
            clear_first=not keep_session and not client_id_is_new,
            will=will,
        )
        self._socket = GatewaySocket(
            self.settings,
            on_datagram=self._session.receive,
            on_lost=self._association_lost,
            on_distrust=lambda: self._decided.set(),
        )
        self._keeper: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self._active = asyncio.Event()
        # Set when it is clear whether this will be a connection at all.
        self._decided = asyncio.Event()
        self._room = asyncio.Semaphore(self.settings.in_flight_messages)
        self._drained = asyncio.Event()
        self._drained.set()

    # Life.

    async def open(self) -> None:
        """Connect; GatewayUnreachableError or RefusedError when that fails for too long."""
        await self._socket.open(self.address)
        self._session.connect()
        self._keeper = self._background.start("keeping the connection to the gateway", self._keep)
        session, timeout = self._session, self.settings.connect_timeout_seconds
        try:
            await is_set_within(self._decided, min(timeout, _PATIENCE_SECONDS))
            hopeless = self._socket.distrust or session.refusal is ReturnCode.REJECTED_NOT_SUPPORTED
            # A gateway may hear of a new client's rights a little later than the client itself.
            if not session.counters.connected and not hopeless:
                await is_set_within(self._decided, max(0.0, timeout - _PATIENCE_SECONDS))
        except BaseException:
            await self._end(ClosedError("it was not opened"))
            raise
        if session.counters.connected:
            # A connection that is lost again at once is made again, like any other.
            return
        where, problem = f"gateway {self.address}", self._socket.problem
        await self._end(ClosedError(f"{where} is not reached"))
        if session.refusal is not None:
            raise refused(f"connecting as {without_key(self.client_id)!r} to {where}", session.refusal)
        raise GatewayUnreachableError(
            f"{where}: {problem}" if problem else f"{where} does not answer; is it running there?"
        )

    async def close(self, *, end_session: bool = False) -> None:
        """Wait for acknowledgements (not for ever), take leave of the gateway, give the port back.

        With `end_session` the session ends, also one that would outlive this object: it goes on at another gateway.
        """
        if self.state is State.NEW or self.state is State.CLOSED:
            return
        try:
            seconds = self.settings.close_timeout_seconds
            await is_set_within(self._drained, seconds)
            if self.state is not State.CONNECTING:
                done = asyncio.get_running_loop().create_future()
                self._session.leave(done, end_session=end_session)
                await asyncio.wait({done}, timeout=min(_LONGEST_LEAVE_SECONDS, seconds))
        finally:
            await self._end(ClosedError(f"connection {without_key(self.client_id)!r} was closed"))

    async def _end(self, error: ClosedError) -> None:
        self._session.close(error)
        self._active.set()
        await end(self._keeper)
        self._socket.close()

    async def _keep(self) -> None:
        try:
            while True:
                due = self._session.advance()
                self._due.clear()
                await self._until(due)
        except Exception:
            self._session.lose("an unexpected error")
            raise

    async def _until(self, due: float) -> None:
        """Wait until something is due."""
        pause = due - asyncio.get_running_loop().time()
        await is_set_within(self._due, None if due == float("inf") else max(0.0, pause))

    @property
    def state(self) -> State:
        """Connected, or not."""
        return self._session.state

    @property
    def is_active(self) -> bool:
        """May messages be sent now?"""
        return self._session.is_active

    @property
    def problem(self) -> str:
        """Why the connection was lost, until it is made again."""
        refusal = self._session.refusal if self.state is State.CONNECTING else None
        words = "" if refusal is None else refusal.name.lower().replace("_", " ")
        why = f"it refuses the connection ({words})" if words else ""
        return "; ".join(filter(None, (self._session.problem, why)))

    @property
    def local_address(self) -> tuple[str, int]:
        """Its own UDP port."""
        return self._socket.local_address

    @property
    def heard_at(self) -> float:
        """The event loop's time of the last datagram of the gateway."""
        return self._session.heard_at

    def probe(self) -> None:
        """Find out whether the gateway is there."""
        self._session.probe()

    async def until_active(self) -> None:
        """Wait for the connection; ClosedError when it was closed."""
        await self._active.wait()
        self._require_open()

    def _require_open(self) -> None:
        if self.state is State.CLOSED:
            raise ClosedError(f"connection {without_key(self.client_id)!r} was closed")

    async def redirect(self, address: GatewayAddress, client_id: str) -> None:
        """Go on as another client, perhaps at another gateway, with all subscriptions and unfinished messages."""
        if self.state is State.CLOSED or (address, client_id) == (self.address, self.client_id):
            return
        self.address, self.client_id = address, client_id
        await self._socket.open(address)
        self._session.redirect(client_id)

    async def sleep(self, duration_seconds: int) -> None:
        """Have the gateway store events for that long; `check` for them now and then, `wake` in the end."""
        if not 0 < duration_seconds <= 0xFFFF:
            raise ParameterError("duration_seconds", f"must be from 1 to 65535, is {duration_seconds}")
        await self.until_active()
        self._active.clear()
        await self._call(self._session.sleep, duration_seconds)

    async def check(self) -> None:
        """While asleep: get the stored events; returns when all have come."""
        await self._call(self._session.check)

    async def wake(self) -> None:
        """Be connected again after `sleep`."""
        if self.state is State.ASLEEP:
            self._session.lose("")
        await self.until_active()

    async def _call(self, call: Callable[..., None], *arguments: Any) -> Any:
        """The outcome of a call of the session."""
        self._require_open()
        outcome = asyncio.get_running_loop().create_future()
        call(*arguments, outcome)
        return await outcome

    def _connected(self) -> None:
        self._active.set()
        self._decided.set()
        self._background.log(logging.INFO, f"connected to {self.address}")
        notify(self._on_connected, str(self.address))

    def _lost(self, silent: bool) -> None:
        self._active.clear()
        if silent:
            # Perhaps it has forgotten the association, and its answer to that does not come through.
            self._socket.renew()
        if self.problem:
            self._background.log(logging.WARNING, f"lost the connection to {self.address}: {self.problem}")
            notify(self._on_disconnected, self.problem)

    def _association_lost(self, problem: str) -> bool:
        """True if that was a connection: another one is made, with a CONNECT of its own."""
        was_connected = self.state in (State.ACTIVE, State.ASLEEP)
        self._session.lose(problem)
        return was_connected

    @contextlib.asynccontextmanager
    async def _in_time(self, what: str, otherwise: str = "") -> AsyncIterator[None]:
        """For calls that wait for the gateway: an error says why there was no answer in time."""
        self._background.raise_failure()
        seconds = self.settings.answer_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            why = self.problem or "it is there, but does not answer this"
            raise GatewayUnreachableError(
                f"{what}: no answer from gateway {self.address} within {seconds:g} s: {why}{otherwise}"
            ) from None

    # Publishing.

    async def publish(
        self, topic: str | int, payload: bytes, *, qos: int = 0, retain: bool = False, wait: bool = True
    ) -> asyncio.Future[None] | None:
        """Publish. QoS 1 and 2: returns when acknowledged, or with `wait=False` when there is room for it.

        GatewayUnreachableError if that takes longer than `answer_timeout_seconds`. Giving up waiting does not take the
        message back: it is sent until it is acknowledged, or `close`.
        """
        self._require_open()
        if qos not in (-1, 0, 1, 2):
            raise ParameterError("qos", f"must be -1, 0, 1 or 2, is {qos}")
        if self.address.secure and len(payload) > _LONGEST_SECURE_PAYLOAD:
            raise ParameterError(
                "payload",
                f"has {len(payload)} octets, of which {_LONGEST_SECURE_PAYLOAD} fit into a DTLS record",
            )
        reference = self._session.reference(topic)
        if reference is None and qos == -1:
            raise ParameterError("topic", f"QoS -1 needs a predefined topic or two octets, not {topic!r}")
        self._session.counters.published += 1
        if qos <= 0:
            await self._publish_once(topic, reference, payload, qos, retain)
            return None
        done = asyncio.get_running_loop().create_future()
        async with self._in_time(f"publishing to {topic!r}", "; the event is not sent"):
            await self._publish(topic, payload, qos, retain, done)
        if wait:
            await self.acknowledged(done, topic)
            return None
        return done

    async def _publish_once(
        self, topic: str | int, reference: TopicReference | None, payload: bytes, qos: int, retain: bool
    ) -> None:
        if not self.is_active and qos == 0:
            # What is not worth an acknowledgement is not worth being late.
            self._session.counters.not_sent += 1
            return
        if reference is None:
            async with self._in_time(f"publishing to {topic!r}", "; the event is not sent"):
                reference = await self._call(self._session.register, topic)
        assert reference is not None
        id_type, topic_id = reference
        while not self._session.send(Publish(id_type, topic_id, payload, qos, retain)):
            await asyncio.sleep(_SYSTEM_IS_BUSY_SECONDS)

    async def _publish(
        self, topic: str | int, payload: bytes, qos: int, retain: bool, done: CallResult | None
    ) -> None:
        await self._room.acquire()
        self._session.publish(topic, payload, qos, retain, done)
        if self.unacknowledged:
            self._drained.clear()

    def _has_room(self) -> None:
        self._room.release()
        if not self.unacknowledged:
            self._drained.set()

    async def acknowledged(self, done: asyncio.Future[None], topic: str | int) -> None:
        """Wait for what `publish` has returned."""
        async with self._in_time(f"publishing to {topic!r}", "; the event is sent until it does"):
            await asyncio.shield(done)

    async def flush(self) -> None:
        """Wait until everything published is acknowledged or refused."""
        async with self._in_time("waiting for acknowledgements"):
            await self._drained.wait()

    @property
    def unacknowledged(self) -> int:
        """Unacknowledged QoS 1 and 2 messages."""
        return self._session.unacknowledged

    async def take_over(self, other: Connection) -> None:
        """Publish what another connection could not, but for QoS 2 that its gateway may have: it alone knows that."""
        for each in other._session.withdraw():
            await self._publish(each.topic, each.payload, each.qos, each.retain, each.outcome)

    async def until_acknowledged(self) -> None:
        """Wait for all that was published, however long that takes."""
        await self._drained.wait()

    async def register(self, topic: str) -> None:
        """Get the id of a topic from the gateway now."""
        async with self._in_time(f"registering topic {topic!r}"):
            await self._call(self._session.register, topic)

    # Subscribing.

    async def subscribe(self, topic: str | int, *, qos: int = 0) -> int:
        """Subscribe to a filter, a short name, or a predefined id; the QoS that the gateway grants."""
        if qos not in (0, 1, 2):
            raise ParameterError("qos", f"must be 0, 1 or 2, is {qos}")
        async with self._in_time(f"subscribing to {topic!r}"):
            return int(await self._call(self._session.subscribe, topic, qos))

    async def unsubscribe(self, topic: str | int) -> None:
        """No more events of that filter."""
        async with self._in_time(f"unsubscribing from {topic!r}"):
            await self._call(self._session.unsubscribe, topic)

    @property
    def counters(self) -> ConnectionCounters:
        """What happened so far."""
        return replace(self._session.counters)
