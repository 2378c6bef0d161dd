"""One MQTT-SN connection over one UDP port, made again whenever it is lost.

    connection = Connection("127.0.0.1", 10000, "pump-7", on_event=print)
    await connection.open()
    await connection.subscribe("floor3/+", qos=1)
    await connection.publish("floor3/pump", b"on", qos=2)
    await connection.close()

The session lives as long as this object: it outlives losses of the network and restarts of the gateway. With
`keep_session` it also outlives the object, and the next one of that client id gets what came meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from triagemq.client.events import Event
from triagemq.client.faults import ClosedError, RefusedError
from triagemq.client.inbox import Inbox
from triagemq.client.lifeline import Lifeline, LifeMessage, State
from triagemq.client.outbox import Outbox, Outgoing
from triagemq.client.questions import Questions
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.client.topics import TopicIds, filter_reference
from triagemq.errors import DecodeError, ParameterError
from triagemq.mqttsn import (
    Message,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    TopicIdType,
    UnsubAck,
    decode,
)

__all__ = ["Connection", "ConnectionCounters"]

_SYSTEM_IS_BUSY_SECONDS = 0.001


@dataclass(slots=True)
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
    malformed: int = 0


class Connection:
    """See the module's text. `client_id_is_new`: no earlier session of that id has to be cleared away."""

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        on_event: Callable[[Event], None] | None = None,
        settings: ConnectionSettings | None = None,
        keep_session: bool = False,
        client_id_is_new: bool = False,
        will: Will | None = None,
        slot: int = 0,
    ) -> None:
        if not client_id:
            raise ParameterError("client_id", "must not be empty")
        self.settings = settings or ConnectionSettings()
        self.client_id = client_id
        self.address = (host, port)
        self.last_event_at = 0.0
        """The event loop's time of the last event."""
        self._on_event = on_event
        self._lifeline = Lifeline(
            self.address,
            client_id,
            self.settings,
            on_datagram=self._datagram,
            on_active=self._begin,
            on_lost=self._pause,
            keep_session=keep_session,
            clear_first=not keep_session and not client_id_is_new,
            will=will,
        )
        self._outbox = Outbox(self, self.settings)
        self._questions = Questions(self, self.settings.retry_seconds)
        self._topics = TopicIds(self._register, self.settings.predefined_topics)
        self._inbox = Inbox(self.send, self._hand_on, slot, self.settings.predefined_topics)
        self._subscriptions: dict[str | int, int] = {}
        self._next_message_id = random.randint(1, 0xFFFF)
        # Messages that cannot be sent before the id of a topic is known, in order.
        self._waiting: deque[Outgoing] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._resubscriber: asyncio.Task[None] | None = None
        self._refused = 0
        self._counters = ConnectionCounters()

    # Life.

    async def __aenter__(self) -> Connection:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect; GatewayUnreachableError or RefusedError when that fails for too long."""
        await self._lifeline.open()

    async def close(self) -> None:
        """Wait for acknowledgements (not for ever), take leave of the gateway, give the port back."""
        if self.state is State.NEW or self.state is State.CLOSED:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.close_timeout_seconds):
                    await self._outbox.drained()
            await self._lifeline.leave()
        finally:
            error = ClosedError(f"connection {self.client_id!r} was closed")
            self._pause()
            self._outbox.close(error)
            self._questions.close(error)
            await self._lifeline.end()
            await self._topics.close()

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
        return self._lifeline.problem

    @property
    def local_address(self) -> tuple[str, int]:
        """Its own UDP port."""
        return self._lifeline.local_address

    async def until_active(self) -> None:
        """Wait for the connection; ClosedError when it was closed."""
        await self._lifeline.until_active()

    async def redirect(self, address: tuple[str, int], client_id: str) -> None:
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
        self._topics.forget()
        self._inbox.begin(fresh=fresh)
        self._waiting = deque(self._outbox.unfinished())
        self._send_waiting()
        if self._subscriptions:
            # CONNACK does not tell whether the gateway has kept the session.
            self._resubscriber = asyncio.get_running_loop().create_task(self._subscribe_again())

    def _pause(self) -> None:
        self._outbox.hold()
        for task in (self._sender, self._resubscriber):
            if task is not None:
                task.cancel()
        self._sender = self._resubscriber = None

    # Publishing.

    async def publish(
        self, topic: str | int, payload: bytes, *, qos: int = 0, retain: bool = False, wait: bool = True
    ) -> asyncio.Future[None] | None:
        """Publish. QoS 1 and 2: returns when acknowledged, or with `wait=False` when there is room for it.

        Giving up waiting does not take the message back: it is sent until it is acknowledged, or `close`.
        """
        known = self._topics.known(topic)
        if qos not in (-1, 0, 1, 2):
            raise ParameterError("qos", f"must be -1, 0, 1 or 2, is {qos}")
        if qos == -1 and known is None:
            raise ParameterError("topic", f"QoS -1 needs a predefined topic or two octets, not {topic!r}")
        if self.state is State.CLOSED:
            raise ClosedError(f"connection {self.client_id!r} was closed")
        self._counters.published += 1
        if qos <= 0:
            await self._publish_unacknowledged(topic, payload, qos, retain)
            return None
        outgoing = await self._outbox.admit(topic, payload, qos, retain)
        known = self._topics.known(topic)
        if known is not None and self.is_active and not self._waiting:
            self._outbox.transmit(outgoing, known)
        else:
            self.resend_later(outgoing)
        if not wait:
            return outgoing.done
        await asyncio.shield(outgoing.done)
        return None

    async def _publish_unacknowledged(self, topic: str | int, payload: bytes, qos: int, retain: bool) -> None:
        if not self.is_active and qos == 0:
            # What is not worth an acknowledgement is not worth being late.
            self._counters.not_sent += 1
            return
        reference = self._topics.known(topic) or await self._topics.reference(topic)
        message = Publish(*reference, payload, qos, retain)
        while not self.send(message):
            await asyncio.sleep(_SYSTEM_IS_BUSY_SECONDS)

    async def flush(self) -> None:
        """Wait until everything published is acknowledged or refused."""
        await self._outbox.drained()

    def resend_later(self, outgoing: Outgoing) -> None:
        """Find out the id of its topic, then send it."""
        self._waiting.append(outgoing)
        if self.is_active:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._waiting and (self._sender is None or self._sender.done()):
            self._sender = asyncio.get_running_loop().create_task(self._send_in_order(self._waiting))

    async def _send_in_order(self, waiting: deque[Outgoing]) -> None:
        while waiting:
            outgoing = waiting[0]
            try:
                reference = await self._topics.reference(outgoing.topic)
            except RefusedError as error:
                self._outbox.fail(outgoing, error)
            except ClosedError:
                return
            else:
                self._outbox.transmit(outgoing, reference)
            waiting.popleft()

    async def _register(self, name: str) -> int:
        topic_id = await self._questions.register(name)
        self._inbox.learn(topic_id, name)
        return topic_id

    def forget_topic(self, topic: str | int) -> None:
        """The gateway does not know its id any more."""
        self._topics.forget(topic)

    def take_message_id(self) -> int:
        """One that nothing unanswered has; each comes round again as late as possible, for old copies may be about."""
        while True:
            message_id = self._next_message_id
            self._next_message_id = message_id % 0xFFFF + 1
            if message_id not in self._outbox and message_id not in self._questions:
                return message_id

    # Subscribing.

    async def subscribe(self, topic: str | int, *, qos: int = 0) -> int:
        """Subscribe to a filter, a short name, or a predefined id; the QoS that the gateway grants."""
        if qos not in (0, 1, 2):
            raise ParameterError("qos", f"must be 0, 1 or 2, is {qos}")
        granted = await self._subscribe(topic, qos)
        self._subscriptions[topic] = qos
        return granted

    async def _subscribe(self, topic: str | int, qos: int) -> int:
        answer = await self._questions.subscribe(topic, qos)
        if answer.topic_id and isinstance(topic, str) and filter_reference(topic)[0] is TopicIdType.NORMAL:
            self._inbox.learn(answer.topic_id, topic)
            self._topics.learn(topic, answer.topic_id)
        return answer.qos

    async def unsubscribe(self, topic: str | int) -> None:
        """No more events of that filter."""
        self._subscriptions.pop(topic, None)
        await self._questions.unsubscribe(topic)

    async def _subscribe_again(self) -> None:
        for topic, qos in list(self._subscriptions.items()):
            if topic in self._subscriptions:
                try:
                    await self._subscribe(topic, qos)
                except RefusedError as error:
                    self._refused += 1
                    self._lifeline.problem = str(error)
                except ClosedError:
                    return

    # The wire.

    def send(self, message: Message) -> bool:
        """Send it, or lose it; False if the system cannot take it now."""
        return self._lifeline.send(message)

    def probe(self) -> None:
        """Find out whether the gateway is there."""
        self._lifeline.probe()

    def _datagram(self, datagram: bytes) -> None:
        try:
            message = decode(datagram)
        except DecodeError:
            self._counters.malformed += 1
            return
        match message:
            case Publish():
                self._inbox.publish(message)
            case PubRel():
                self._inbox.release(message)
            case Register():
                self._inbox.register(message)
            case PubAck():
                self._publish_answered(message)
            case PubRec():
                self._outbox.received(message)
            case PubComp():
                self._outbox.complete(message)
            case RegAck() | SubAck() | UnsubAck():
                self._questions.answer(message)
            case _ if isinstance(message, LifeMessage):
                self._lifeline.message(message)
            case _:
                self._counters.malformed += 1

    def _publish_answered(self, message: PubAck) -> None:
        if self._outbox.acknowledge(message) or message.return_code is ReturnCode.ACCEPTED:
            return
        if message.message_id == 0:
            self._refused += 1
        if message.return_code is ReturnCode.REJECTED_INVALID_TOPIC_ID:
            self._topics.forget_id(message.topic_id)

    def _hand_on(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        self.last_event_at = loop.time()
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
        counters = self._counters
        counters.connected = self._lifeline.connected
        counters.acknowledged = self._outbox.acknowledged
        counters.refused = self._refused + self._outbox.refused
        counters.retransmissions = self._outbox.retransmissions
        counters.received = self._inbox.received
        counters.duplicates = self._inbox.duplicates
        return counters
