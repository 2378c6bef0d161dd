"""What one connection publishes: each message under the id of its topic, QoS 1 and 2 until they are acknowledged.

A message whose topic has no id yet waits until the gateway has told one, and those behind it wait, too: events of a
publisher keep their order. At most so many QoS 1 and 2 messages are on their way; whoever publishes more waits. A
message keeps its message id for life, so that the gateway can tell a repetition from a new one, also after its restart.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from triagemq.client.background import LOG, Background
from triagemq.client.settings import ConnectionSettings
from triagemq.client.topics import TopicIds, TopicReference
from triagemq.client.wire import DOUBT_AFTER_ATTEMPTS, Wire, pause_before, refused
from triagemq.errors import ClientError, ClosedError, ParameterError, RefusedError
from triagemq.mqttsn import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReturnCode,
)

_MOST_REGISTRATIONS = 5
_SYSTEM_IS_BUSY_SECONDS = 0.001


class Stage(IntEnum):
    """How far a message is."""

    WAITING = 0
    """For the id of its topic, or for the gateway."""
    SENT = 1
    RELEASED = 2
    """QoS 2: PUBREC has come, PUBCOMP has not."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """One message. `done` is resolved when it is acknowledged or refused for good."""

    message_id: int
    topic: str | int
    payload: bytes
    qos: int
    retain: bool
    done: asyncio.Future[None]
    stage: Stage = Stage.WAITING
    reference: TopicReference | None = None
    attempts: int = 0
    was_sent: bool = False
    registrations: int = 0
    due: float = 0.0


class Outbox:
    """The messages of one connection that are not acknowledged, in the order in which they were published.

    `on_unknown_topic` gets a message whose topic id the gateway does not know any more; it is transmitted again later.
    """

    def __init__(
        self, wire: Wire, settings: ConnectionSettings, on_unknown_topic: Callable[[Outgoing], None]
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._on_unknown_topic = on_unknown_topic
        self._messages: dict[int, Outgoing] = {}
        self._room = asyncio.Semaphore(settings.in_flight_messages)
        self._empty = asyncio.Event()
        self._empty.set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed: ClientError | None = None
        self.acknowledged = 0
        self.retransmissions = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._messages

    async def admit(self, topic: str | int, payload: bytes, qos: int, retain: bool) -> Outgoing:
        """A place for a new message, when there is one."""
        await self._room.acquire()
        if self._closed is not None:
            self._room.release()
            raise self._closed
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outgoing = Outgoing(self._wire.take_message_id(), topic, payload, qos, retain, done)
        self._messages[outgoing.message_id] = outgoing
        self._empty.clear()
        return outgoing

    def withdraw(self) -> list[Outgoing]:
        """What may be published by another gateway: all but QoS 2 that this one may have. Nothing new comes here."""
        self._closed = ClosedError("it goes on at another gateway")
        found = [each for each in self.unfinished() if each.qos == 1 or not each.was_sent]
        for outgoing in found:
            del self._messages[outgoing.message_id]
            self._room.release()
        if not self._messages:
            self._empty.set()
        return found

    def unfinished(self) -> list[Outgoing]:
        """All, in the order of publication."""
        return list(self._messages.values())

    async def drained(self) -> None:
        """Wait until everything is acknowledged or refused."""
        await self._empty.wait()

    def close(self, error: ClientError) -> None:
        """Give up everything; a message that waits for a place gets the same error."""
        self._closed = error
        self.hold()
        for outgoing in self.unfinished():
            self.finish(outgoing, error)

    # Sending.

    def transmit(self, outgoing: Outgoing, reference: TopicReference) -> None:
        """Send it, for the first time or again, and watch over its answer."""
        if outgoing.done.done() or self._messages.get(outgoing.message_id) is not outgoing:
            return
        outgoing.reference = reference
        if outgoing.stage is Stage.WAITING:
            outgoing.stage = Stage.SENT
        outgoing.attempts = 0
        self._send(outgoing)
        self._watch()

    def hold(self) -> None:
        """The connection is lost: nothing is sent until each message is transmitted again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self, outgoing: Outgoing) -> None:
        outgoing.attempts += 1
        pause = pause_before(outgoing.attempts, self._settings.retry_seconds)
        outgoing.due = asyncio.get_running_loop().time() + pause
        if outgoing.stage is Stage.RELEASED:
            self._wire.send(PubRel(outgoing.message_id))
        else:
            assert outgoing.reference is not None
            id_type, topic_id = outgoing.reference
            if outgoing.was_sent:
                self.retransmissions += 1
            self._wire.send(
                Publish(
                    id_type,
                    topic_id,
                    outgoing.payload,
                    outgoing.qos,
                    outgoing.retain,
                    # Of QoS 2 every copy is marked: those that the network makes look like ours then, and none of
                    # them is taken for a new message when it comes after the end.
                    outgoing.was_sent or outgoing.qos == 2,
                    outgoing.message_id,
                )
            )
            outgoing.was_sent = True

    def _watch(self) -> None:
        if self._timer is None:
            waiting = [one.due for one in self._messages.values() if one.stage is not Stage.WAITING]
            if waiting:
                self._timer = asyncio.get_running_loop().call_at(min(waiting), self._send_late_ones_again)

    def _send_late_ones_again(self) -> None:
        self._timer = None
        if not self._wire.is_active:
            return
        now = asyncio.get_running_loop().time()
        try:
            for outgoing in self.unfinished():
                if outgoing.stage is not Stage.WAITING and outgoing.due <= now + 0.001:
                    if outgoing.attempts >= DOUBT_AFTER_ATTEMPTS:
                        self._wire.probe()
                    self._send(outgoing)
        finally:
            self._watch()

    # Answers.

    def acknowledge(self, message: PubAck) -> bool:
        """QoS 1 has arrived, or a message was refused; False if none of these is meant."""
        outgoing = self._messages.get(message.message_id)
        if outgoing is None:
            return False
        match message.return_code:
            case ReturnCode.ACCEPTED:
                if outgoing.qos == 1 and outgoing.was_sent:
                    self.acknowledged += 1
                    self.finish(outgoing, None)
            case ReturnCode.REJECTED_CONGESTION:
                pass  # Sent again when it is due: the gateway wants it later.
            case ReturnCode.REJECTED_INVALID_TOPIC_ID if outgoing.registrations < _MOST_REGISTRATIONS:
                if outgoing.stage is Stage.SENT:
                    outgoing.registrations += 1
                    outgoing.stage = Stage.WAITING
                    self._on_unknown_topic(outgoing)
            case code:
                self.refused += 1
                self.finish(outgoing, refused(f"publishing to {outgoing.topic!r}", code))
        return True

    def received(self, message: PubRec) -> None:
        """QoS 2 has arrived: from now on only PUBREL is sent. For one that is finished this is a late copy."""
        outgoing = self._messages.get(message.message_id)
        if outgoing is not None and outgoing.qos == 2 and outgoing.was_sent:
            outgoing.stage = Stage.RELEASED
            outgoing.attempts = 0
            self._send(outgoing)

    def complete(self, message: PubComp) -> None:
        """QoS 2 is finished."""
        outgoing = self._messages.get(message.message_id)
        if outgoing is not None and outgoing.stage is Stage.RELEASED:
            self.acknowledged += 1
            self.finish(outgoing, None)

    def finish(self, outgoing: Outgoing, error: ClientError | None) -> None:
        """It is acknowledged, or will never be."""
        if self._messages.pop(outgoing.message_id, None) is None:
            return
        if not self._messages:
            self._empty.set()
        self._room.release()
        if not outgoing.done.done():
            if error is None:
                outgoing.done.set_result(None)
            else:
                outgoing.done.set_exception(error)
                # Whoever does not wait for it finds it in the counters.
                outgoing.done.exception()


class Dispatch:
    """`register` asks the gateway for the id of a topic name."""

    def __init__(
        self,
        wire: Wire,
        settings: ConnectionSettings,
        register: Callable[[str], Awaitable[int]],
        background: Background,
    ) -> None:
        self._wire = wire
        self._background = background
        self.outbox = Outbox(wire, settings, self._topic_is_unknown)
        self.topics = TopicIds(register, settings.predefined_topics)
        self.published = 0
        self.not_sent = 0
        self._refused_unacknowledged = 0
        self._waiting: deque[Outgoing] = deque()
        self._sender: asyncio.Task[None] | None = None

    @property
    def refused(self) -> int:
        """Messages of any QoS that the gateway did not want."""
        return self._refused_unacknowledged + self.outbox.refused

    # Life.

    def begin(self) -> None:
        """The connection is there: all ids are void, and everything unfinished is sent again."""
        self.topics.forget()
        self._waiting = deque(self.outbox.unfinished())
        self._send_waiting()

    def pause(self) -> None:
        """The connection is lost."""
        self.outbox.hold()
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None

    # Messages.

    async def publish(
        self, topic: str | int, payload: bytes, qos: int, retain: bool
    ) -> asyncio.Future[None] | None:
        """Send, or have it sent when it can be; QoS 1 and 2: when there is room, what tells of the acknowledgement."""
        if qos not in (-1, 0, 1, 2):
            raise ParameterError("qos", f"must be -1, 0, 1 or 2, is {qos}")
        if self.topics.known(topic) is None and qos == -1:
            raise ParameterError("topic", f"QoS -1 needs a predefined topic or two octets, not {topic!r}")
        self.published += 1
        if qos <= 0:
            await self._publish_unacknowledged(topic, payload, qos, retain)
            return None
        outgoing = await self.outbox.admit(topic, payload, qos, retain)
        reference = self.topics.known(topic)
        if reference is not None and self._wire.is_active and not self._waiting:
            self._transmit(outgoing, reference)
        else:
            self._send_later(outgoing)
        return outgoing.done

    async def adopt(self, outgoing: Outgoing) -> None:
        """Publish what another connection could not."""
        own = await self.outbox.admit(outgoing.topic, outgoing.payload, outgoing.qos, outgoing.retain)
        own.done = outgoing.done
        self._send_later(own)

    async def _publish_unacknowledged(self, topic: str | int, payload: bytes, qos: int, retain: bool) -> None:
        if not self._wire.is_active and qos == 0:
            # What is not worth an acknowledgement is not worth being late.
            self.not_sent += 1
            return
        reference = self.topics.known(topic) or await self.topics.reference(topic)
        message = Publish(*reference, payload, qos, retain)
        while not self._wire.send(message):
            await asyncio.sleep(_SYSTEM_IS_BUSY_SECONDS)

    def answered(self, message: PubAck) -> None:
        """QoS 1 was acknowledged, or a message of any QoS refused."""
        if self.outbox.acknowledge(message) or message.return_code is ReturnCode.ACCEPTED:
            return
        if message.message_id == 0:
            self._refused_unacknowledged += 1
        if message.return_code is ReturnCode.REJECTED_INVALID_TOPIC_ID:
            self.topics.forget_id(message.topic_id)

    # Those that wait for the id of a topic, in order.

    def _topic_is_unknown(self, outgoing: Outgoing) -> None:
        self.topics.forget(outgoing.topic)
        self._send_later(outgoing)

    def _send_later(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)
        if self._wire.is_active:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._waiting and (self._sender is None or self._sender.done()):
            work = partial(self._send_in_order, self._waiting)
            self._sender = self._background.start("publishing", work)

    async def _send_in_order(self, waiting: deque[Outgoing]) -> None:
        while waiting:
            outgoing = waiting[0]
            try:
                reference = await self.topics.reference(outgoing.topic)
            except RefusedError as error:
                self.outbox.finish(outgoing, error)
            except ClosedError:
                return
            else:
                self._transmit(outgoing, reference)
            waiting.popleft()

    def _transmit(self, outgoing: Outgoing, reference: TopicReference) -> None:
        """Send it; a message that cannot be sent at all must not hold up those behind it."""
        try:
            self.outbox.transmit(outgoing, reference)
        except Exception as error:
            LOG.exception("an event of %r cannot be sent", outgoing.topic)
            self.outbox.finish(
                outgoing, ClientError(f"an event of {outgoing.topic!r} cannot be sent: {error}")
            )
