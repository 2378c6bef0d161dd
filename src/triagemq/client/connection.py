"""One MQTT-SN connection over one UDP port, made again whenever it is lost.

    connection = Connection("127.0.0.1", 10000, "pump-7", on_event=print)
    await connection.open()
    await connection.subscribe("floor3/+", qos=1)
    await connection.publish("floor3/pump", b"on", qos=2)
    await connection.close()

With `secure` it goes through DTLS. The session lives as long as this object: it outlives losses of the network and
restarts of the gateway. With `keep_session` it also outlives the object, and the next one of that client id gets what
came meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import astuple, dataclass

from triagemq.addresses import GatewayAddress
from triagemq.client.background import Background, notify
from triagemq.client.events import Event, Inbox
from triagemq.client.lifeline import Lifeline, LifeMessage, State
from triagemq.client.publishing import Dispatch
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.client.topics import Questions, filter_reference
from triagemq.dtls import LONGEST_MESSAGE
from triagemq.errors import (
    ClientError,
    ClosedError,
    DecodeError,
    GatewayUnreachableError,
    ParameterError,
    RefusedError,
)
from triagemq.hiding import without_key
from triagemq.mqttsn import (
    Message,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    SubAck,
    TopicIdType,
    UnsubAck,
    decode,
)

_LONGEST_SECURE_PAYLOAD = LONGEST_MESSAGE - 16

CONNECTION_MARK = "~"
"""Between the client id that the coordinator gave and the number of a connection."""


def connection_id(client_id: str, number: int = 0) -> str:
    """The client id of a connection, of which a subscriber has one.

    >>> connection_id("ff-7")
    'ff-7~0'
    """
    return f"{client_id}{CONNECTION_MARK}{number}"


@dataclass(frozen=True, slots=True)
class ConnectionCounters:
    """What happened so far."""

    connected: int = 0
    published: int = 0
    acknowledged: int = 0
    retransmissions: int = 0
    refused: int = 0
    not_sent: int = 0
    """QoS 0 messages while there was no connection."""
    received: int = 0
    duplicates: int = 0
    unknown_topics: int = 0
    """Events under a topic id that the gateway had not told; it was asked to."""
    malformed: int = 0

    @classmethod
    def of(cls, several: Iterable[ConnectionCounters]) -> ConnectionCounters:
        """Those of several connections together."""
        return cls(*map(sum, zip(*map(astuple, several), strict=True)))


class Connection:
    """See the module's text. `client_id_is_new`: no earlier session of that id has to be cleared away.

    `on_connected` hears the gateway's address each time, `on_disconnected` why the connection was lost, `on_problem` of
    all that goes wrong in the background.
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
        self._on_event = on_event
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        self._background = background or Background(f"connection {client_id}", on_problem)
        self._lifeline = Lifeline(
            self.address,
            client_id,
            self.settings,
            self._background,
            on_datagram=self._datagram,
            on_active=self._begin,
            on_lost=self._lost,
            keep_session=keep_session,
            clear_first=not keep_session and not client_id_is_new,
            will=will,
        )
        self._questions = Questions(self, self.settings.retry_seconds)
        self._publishing = Dispatch(self, self.settings, self._register, self._background)
        self._inbox = Inbox(self.send, self._hand_on, self.settings.predefined_topics)
        self._subscriptions: dict[str | int, int] = {}
        self._next_message_id = random.randint(1, 0xFFFF)
        self._resubscriber: asyncio.Task[None] | None = None
        self._refused_subscriptions = 0
        self._malformed = 0

    # Life.

    async def __aenter__(self) -> Connection:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect; GatewayUnreachableError or RefusedError when that fails for too long."""
        await self._lifeline.open()

    async def close(self, *, end_session: bool = False) -> None:
        """Wait for acknowledgements (not for ever), take leave of the gateway, give the port back.

        With `end_session` the session goes, also one that is to be kept: it goes on at another gateway.
        """
        if self.state is State.NEW or self.state is State.CLOSED:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.close_timeout_seconds):
                    await self._publishing.outbox.drained()
            await self._lifeline.leave(end_session=end_session)
        finally:
            error = ClosedError(f"connection {without_key(self.client_id)!r} was closed")
            self._pause()
            self._publishing.outbox.close(error)
            self._questions.close(error)
            await self._lifeline.end()
            await self._publishing.topics.close()

    @property
    def state(self) -> State:
        """Connected, or not."""
        return self._lifeline.state

    @property
    def is_active(self) -> bool:
        """May messages be sent now?"""
        return self._lifeline.state is State.ACTIVE

    @property
    def problem(self) -> str:
        """Why the connection was lost, until it is made again."""
        return "; ".join(filter(None, (self._lifeline.problem, self._lifeline.refusal)))

    @property
    def local_address(self) -> tuple[str, int]:
        """Its own UDP port."""
        return self._lifeline.local_address

    async def until_active(self) -> None:
        """Wait for the connection; ClosedError when it was closed."""
        await self._lifeline.until_active()

    async def redirect(self, address: GatewayAddress, client_id: str) -> None:
        """Go on as another client, perhaps at another gateway: subscriptions and unfinished messages go along."""
        self.address, self.client_id = address, client_id
        await self._lifeline.redirect(address, client_id)

    async def sleep(self, duration_seconds: int) -> None:
        """Tell the gateway to keep events for that long; `check` for them now and then, `wake` in the end."""
        await self._lifeline.sleep(duration_seconds)

    async def check(self) -> None:
        """While asleep: get the events that were kept; returns when all have come."""
        await self._lifeline.check()

    async def wake(self) -> None:
        """Be connected again after `sleep`."""
        await self._lifeline.wake()

    def _begin(self, fresh: bool) -> None:
        self._inbox.begin(fresh=fresh)
        self._publishing.begin()
        if self._subscriptions:
            # CONNACK does not tell whether the gateway has kept the session.
            self._resubscriber = self._background.start("subscribing again", self._subscribe_again)
        self._background.log(logging.INFO, f"connected to {self.address}")
        notify(self._on_connected, str(self.address))

    def _lost(self) -> None:
        self._pause()
        if self.problem:
            self._background.log(logging.WARNING, f"lost the connection to {self.address}: {self.problem}")
            notify(self._on_disconnected, self.problem)

    @contextlib.asynccontextmanager
    async def _in_time(self, what: str, otherwise: str = "") -> AsyncIterator[None]:
        """For what waits for the gateway: an error when it does not answer in time, with what is known about it."""
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

    def _pause(self) -> None:
        self._publishing.pause()
        if self._resubscriber is not None:
            self._resubscriber.cancel()
            self._resubscriber = None

    # Publishing.

    async def publish(
        self, topic: str | int, payload: bytes, *, qos: int = 0, retain: bool = False, wait: bool = True
    ) -> asyncio.Future[None] | None:
        """Publish. QoS 1 and 2: returns when acknowledged, or with `wait=False` when there is room for it.

        GatewayUnreachableError if that takes longer than `answer_timeout_seconds`. Giving up waiting does not take the
        message back: it is sent until it is acknowledged, or `close`.
        """
        if self.state is State.CLOSED:
            raise ClosedError(f"connection {without_key(self.client_id)!r} was closed")
        if self.address.secure and len(payload) > _LONGEST_SECURE_PAYLOAD:
            raise ParameterError(
                "payload",
                f"has {len(payload)} octets, of which {_LONGEST_SECURE_PAYLOAD} fit into a DTLS record",
            )
        if qos <= 0 and self._publishing.topics.known(topic) is not None:
            return await self._publishing.publish(topic, payload, qos, retain)
        async with self._in_time(f"publishing to {topic!r}", "; the event is not sent"):
            done = await self._publishing.publish(topic, payload, qos, retain)
        if done is not None and wait:
            await self.acknowledged(done, topic)
            return None
        return done

    async def acknowledged(self, done: asyncio.Future[None], topic: str | int) -> None:
        """Wait for what `publish` has returned."""
        async with self._in_time(f"publishing to {topic!r}", "; the event is sent until it does"):
            await asyncio.shield(done)

    async def flush(self) -> None:
        """Wait until everything published is acknowledged or refused."""
        async with self._in_time("waiting for acknowledgements"):
            await self._publishing.outbox.drained()

    @property
    def unacknowledged(self) -> int:
        """QoS 1 and 2 messages that are on their way."""
        return len(self._publishing.outbox)

    async def take_over(self, other: Connection) -> None:
        """Publish what another connection could not, but for QoS 2 that its gateway may have: it alone knows that."""
        for outgoing in other._publishing.outbox.withdraw():
            await self._publishing.adopt(outgoing)

    async def until_acknowledged(self) -> None:
        """Wait for all that was published, however long that takes."""
        await self._publishing.outbox.drained()

    async def register(self, topic: str) -> None:
        """Have the gateway tell the id of a topic, if it has not yet."""
        async with self._in_time(f"registering topic {topic!r}"):
            await self._publishing.topics.reference(topic)

    async def _register(self, name: str) -> int:
        topic_id = await self._questions.register(name)
        self._inbox.learn(topic_id, name)
        return topic_id

    def take_message_id(self) -> int:
        """One that nothing unanswered has; each comes round again as late as possible, for old copies may be about."""
        while True:
            message_id = self._next_message_id
            self._next_message_id = message_id % 0xFFFF + 1
            if message_id not in self._publishing.outbox and message_id not in self._questions:
                return message_id

    # Subscribing.

    async def subscribe(self, topic: str | int, *, qos: int = 0) -> int:
        """Subscribe to a filter, a short name, or a predefined id; the QoS that the gateway grants."""
        if qos not in (0, 1, 2):
            raise ParameterError("qos", f"must be 0, 1 or 2, is {qos}")
        async with self._in_time(f"subscribing to {topic!r}"):
            granted = await self._subscribe(topic, qos)
        self._subscriptions[topic] = qos
        return granted

    async def _subscribe(self, topic: str | int, qos: int) -> int:
        answer = await self._questions.subscribe(topic, qos)
        if answer.topic_id and isinstance(topic, str) and filter_reference(topic)[0] is TopicIdType.NORMAL:
            self._inbox.learn(answer.topic_id, topic)
            self._publishing.topics.learn(topic, answer.topic_id)
        return answer.qos

    async def unsubscribe(self, topic: str | int) -> None:
        """No more events of that filter."""
        self._subscriptions.pop(topic, None)
        async with self._in_time(f"unsubscribing from {topic!r}"):
            await self._questions.unsubscribe(topic)

    async def _subscribe_again(self) -> None:
        for topic, qos in list(self._subscriptions.items()):
            if topic in self._subscriptions:
                try:
                    await self._subscribe(topic, qos)
                except RefusedError as error:
                    self._refused_subscriptions += 1
                    self._lifeline.problem = str(error)
                    self._background.report(error)
                except ClosedError:
                    return

    # The wire.

    def send(self, message: Message) -> bool:
        """Send it, or lose it; False if the system cannot take it now."""
        return self._lifeline.send(message)

    def probe(self) -> None:
        """Find out whether the gateway is there."""
        self._lifeline.probe()

    @property
    def heard_at(self) -> float:
        """The event loop's time of the last datagram of the gateway."""
        return self._lifeline.heard_at

    def _datagram(self, datagram: bytes) -> None:
        try:
            message = decode(datagram)
        except DecodeError:
            self._malformed += 1
            return
        match message:
            case Publish():
                self._inbox.publish(message)
            case PubRel():
                self._inbox.release(message)
            case Register():
                self._inbox.register(message)
            case PubAck():
                self._publishing.answered(message)
            case PubRec():
                self._publishing.outbox.received(message)
            case PubComp():
                self._publishing.outbox.complete(message)
            case RegAck() | SubAck() | UnsubAck():
                self._questions.answer(message)
            case _ if isinstance(message, LifeMessage):
                self._lifeline.message(message)
            case _:
                self._malformed += 1

    def _hand_on(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception as error:
            # The program's own mistake: the connection goes on, and the loop's handler reports it.
            context = {"message": f"handling an event of {event.topic!r} failed", "exception": error}
            loop.call_exception_handler(context)

    @property
    def counters(self) -> ConnectionCounters:
        """What happened so far."""
        publishing, inbox = self._publishing, self._inbox
        return ConnectionCounters(
            connected=self._lifeline.connected,
            published=publishing.published,
            acknowledged=publishing.outbox.acknowledged,
            retransmissions=publishing.outbox.retransmissions,
            refused=self._refused_subscriptions + publishing.refused,
            not_sent=publishing.not_sent,
            received=inbox.received,
            duplicates=inbox.duplicates,
            unknown_topics=inbox.unknown_topics,
            malformed=self._malformed,
        )
