"""Messages of QoS 1 and 2, sent in order, and again until they are acknowledged; and how topics are named there."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from triagemq.errors import ClientError, ClosedError, ParameterError, RefusedError
from triagemq.mqttsn import (
    Message,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReturnCode,
    TopicIdType,
    is_shared,
    publishable_topic_name,
    short_topic_id,
    valid_topic_filter,
    valid_topic_name,
)

LOG = logging.getLogger("triagemq.client")

PROBE_AFTER_ATTEMPTS = 2
"""So many sendings without an answer, and the session finds out whether the gateway is there."""

MOST_REFUSALS = 5

_BACKOFF, _LONGEST_RETRY = 1.5, 5.0
_MEANING = {
    ReturnCode.REJECTED_CONGESTION: "the gateway or its broker cannot take more now",
    ReturnCode.REJECTED_INVALID_TOPIC_ID: "the gateway does not know that topic id",
    ReturnCode.REJECTED_NOT_SUPPORTED: "not allowed, or not supported by the gateway or its broker",
}


TopicReference = tuple[TopicIdType, int]
"""How a PUBLISH names a topic."""


class CallResult(Protocol):
    """Where the result of a call goes: a future."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: Any, /) -> None: ...

    def exception(self) -> BaseException | None: ...


class Wire(Protocol):
    """The session, as its outbox needs it."""

    @property
    def is_active(self) -> bool: ...

    def now(self) -> float: ...

    def wake_at(self, due: float) -> None: ...

    def send(self, message: Message) -> bool: ...

    def probe(self) -> None: ...

    def take_message_id(self) -> int: ...

    def reference(self, topic: str | int) -> TopicReference | None: ...

    def register(self, topic: str, outcome: CallResult | None) -> None: ...

    def forget_topic(self, topic: str | int) -> None: ...


class Stage(IntEnum):
    """How far a message is."""

    WAITING = 0
    """For the id of its topic, or for the gateway."""
    SENT = 1
    RELEASED = 2
    """QoS 2: PUBREC has come, PUBCOMP has not."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """One message. It keeps its message id for life, so that a gateway can tell a repetition also after a restart."""

    message_id: int
    topic: str | int
    payload: bytes
    qos: int
    retain: bool
    outcome: CallResult
    stage: Stage = Stage.WAITING
    reference: TopicReference | None = None
    attempts: int = 0
    was_sent: bool = False
    registrations: int = 0
    due: float = 0.0


class Outbox:
    """`on_room` is called for each message that is acknowledged or given up."""

    def __init__(self, wire: Wire, retry_seconds: float, on_room: Callable[[], None]) -> None:
        self._wire, self._retry_seconds, self._on_room = wire, retry_seconds, on_room
        self._messages: dict[int, Outgoing] = {}
        # Not sent over this connection yet, in the order of publication.
        self._waiting: deque[Outgoing] = deque()
        self._closed: ClientError | None = None
        self.acknowledged = self.retransmissions = self.refused = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._messages

    def publish(self, topic: str | int, payload: bytes, qos: int, retain: bool, outcome: CallResult) -> None:
        """Send until it is acknowledged; the result is None."""
        if self._closed is not None:
            self._on_room()
            raise self._closed
        outgoing = Outgoing(self._wire.take_message_id(), topic, payload, qos, retain, outcome)
        self._messages[outgoing.message_id] = outgoing
        self._waiting.append(outgoing)
        self.send_waiting()

    def withdraw(self) -> list[Outgoing]:
        """What may be published by another gateway: all but QoS 2 that this one may have. Nothing new comes here."""
        self._closed = ClosedError("it goes on at another gateway")
        found = [each for each in self._messages.values() if each.qos == 1 or not each.was_sent]
        for outgoing in found:
            del self._messages[outgoing.message_id]
            self._on_room()
        self._waiting = deque(each for each in self._waiting if each.message_id in self._messages)
        return found

    def close(self, error: ClientError) -> None:
        """Nothing is sent any more."""
        self._closed = error
        self._waiting.clear()
        for outgoing in list(self._messages.values()):
            self._finish(outgoing, error)

    # Sending.

    def begin(self) -> None:
        """Connected: topic ids are void, and everything is sent again."""
        self._waiting = deque(self._messages.values())
        for outgoing in self._waiting:
            if outgoing.stage is Stage.SENT:
                outgoing.stage = Stage.WAITING
        self.send_waiting()

    def advance(self, now: float) -> None:
        """Send what has not been answered in time."""
        for outgoing in list(self._messages.values()):
            if outgoing.stage is Stage.WAITING:
                continue
            if outgoing.due <= now:
                self._send(outgoing)
            else:
                self._wire.wake_at(outgoing.due)

    def send_waiting(self) -> None:
        """Messages behind one whose topic has no id yet wait, too: events of a publisher keep their order."""
        while self._waiting and self._wire.is_active:
            outgoing = self._waiting[0]
            if self._messages.get(outgoing.message_id) is not outgoing:
                # Acknowledged meanwhile.
                self._waiting.popleft()
                continue
            if outgoing.stage is Stage.WAITING:
                outgoing.reference = self._wire.reference(outgoing.topic)
                if outgoing.reference is None:
                    self._wire.register(str(outgoing.topic), None)
                    return
                outgoing.stage = Stage.SENT
            self._waiting.popleft()
            outgoing.attempts = 0
            try:
                self._send(outgoing)
            except Exception as error:
                # It must not hold up those behind it.
                LOG.exception("an event of %r cannot be sent", outgoing.topic)
                problem = f"an event of {outgoing.topic!r} cannot be sent: {error}"
                self._finish(outgoing, ClientError(problem))

    def registration_refused(self, topic: str, error: ClientError) -> None:
        """The first of those that wait cannot be sent."""
        if self._waiting and self._waiting[0].topic == topic:
            self._finish(self._waiting.popleft(), error)

    def _send(self, outgoing: Outgoing) -> None:
        if outgoing.attempts >= PROBE_AFTER_ATTEMPTS:
            self._wire.probe()
        outgoing.attempts += 1
        outgoing.due = self._wire.now() + pause_before(outgoing.attempts, self._retry_seconds)
        self._wire.wake_at(outgoing.due)
        if outgoing.stage is Stage.RELEASED:
            self._wire.send(PubRel(outgoing.message_id))
            return
        assert outgoing.reference is not None
        self.retransmissions += outgoing.was_sent
        # Of QoS 2 every copy is marked: those that the network makes look like ours then, and none of them is taken
        # for a new message when it comes after the end.
        dup = outgoing.was_sent or outgoing.qos == 2
        payload, retain = outgoing.payload, outgoing.retain
        self._wire.send(Publish(*outgoing.reference, payload, outgoing.qos, retain, dup, outgoing.message_id))
        outgoing.was_sent = True

    # Answers.

    def receive_puback(self, message: PubAck) -> None:
        """QoS 1 was acknowledged, or a message of any QoS refused."""
        outgoing, code = self._messages.get(message.message_id), message.return_code
        if outgoing is None:
            self.refused += code is not ReturnCode.ACCEPTED and message.message_id == 0
        elif code is ReturnCode.ACCEPTED:
            if outgoing.qos == 1 and outgoing.was_sent:
                self.acknowledged += 1
                self._finish(outgoing, None)
        elif code is ReturnCode.REJECTED_INVALID_TOPIC_ID and outgoing.registrations < MOST_REFUSALS:
            if outgoing.stage is Stage.SENT:
                outgoing.registrations += 1
                outgoing.stage = Stage.WAITING
                self._wire.forget_topic(outgoing.topic)
                self._waiting.append(outgoing)
                self.send_waiting()
        elif code is not ReturnCode.REJECTED_CONGESTION:
            # After congestion it is sent again when it is due.
            self.refused += 1
            self._finish(outgoing, refused(f"publishing to {outgoing.topic!r}", code))

    def receive_qos_2(self, message: PubRec | PubComp) -> None:
        """The two answers to a QoS 2 message; late copies change nothing."""
        outgoing = self._messages.get(message.message_id)
        if outgoing is None or outgoing.qos != 2 or not outgoing.was_sent:
            return
        if isinstance(message, PubRec):
            # From now on only PUBREL is sent.
            outgoing.stage, outgoing.attempts = Stage.RELEASED, 0
            self._send(outgoing)
        elif outgoing.stage is Stage.RELEASED:
            self.acknowledged += 1
            self._finish(outgoing, None)

    def _finish(self, outgoing: Outgoing, error: ClientError | None) -> None:
        """It is acknowledged, or will never be."""
        if self._messages.pop(outgoing.message_id, None) is not None:
            self._on_room()
            resolve(outgoing.outcome, error)


def resolve(outcome: CallResult | None, result: object) -> None:
    """Set a result or an error, unless the caller has given up."""
    if outcome is None or outcome.done():
        return
    if isinstance(result, BaseException):
        outcome.set_exception(result)
        # The counters have it, too: asyncio need not say that it was not retrieved.
        outcome.exception()
    else:
        outcome.set_result(result)


def without_registration(topic: str | int, predefined_topics: Mapping[int, str]) -> TopicReference | None:
    """The id of a topic that needs none from the gateway: predefined, or a name of two octets.

    >>> without_registration("ab", {}), without_registration("floor3/smoke", {})
    ((<TopicIdType.SHORT: 2>, 24930), None)
    >>> without_registration("floor3/smoke", {7: "floor3/smoke"})
    (<TopicIdType.PREDEFINED: 1>, 7)
    """
    if isinstance(topic, int):
        return _predefined(topic)
    require_topic_name(topic)
    for topic_id, name in predefined_topics.items():
        if name == topic:
            return TopicIdType.PREDEFINED, topic_id
    if len(topic.encode()) == 2:
        return TopicIdType.SHORT, short_topic_id(topic)
    return None


def filter_reference(topic: str | int) -> tuple[TopicIdType, str | int]:
    """How a SUBSCRIBE names a filter: by a predefined id, as a short name, or in full.

    >>> filter_reference("floor3/+"), filter_reference("ab"), filter_reference(7)
    ((<TopicIdType.NORMAL: 0>, 'floor3/+'), (<TopicIdType.SHORT: 2>, 'ab'), (<TopicIdType.PREDEFINED: 1>, 7))
    """
    if isinstance(topic, int):
        return _predefined(topic)
    if not valid_topic_filter(topic):
        raise ParameterError(
            "topic",
            f"{topic!r} is no topic filter: + is a whole level, # the whole last one, "
            "no control characters, at most 200 levels",
        )
    if is_shared(topic):
        raise ParameterError("topic", f"{topic!r} is a shared subscription, which MQTT-SN does not have")
    if len(topic.encode()) == 2 and valid_topic_name(topic):
        return TopicIdType.SHORT, topic
    return TopicIdType.NORMAL, topic


def require_topic_name(topic: str) -> None:
    """ParameterError unless events can be published to it.

    >>> require_topic_name("floor3/+")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: topic: 'floor3/+' is no topic name to publish to: no wildcards, ...
    """
    if not publishable_topic_name(topic):
        raise ParameterError(
            "topic",
            f"{topic!r} is no topic name to publish to: no wildcards, not empty, no control characters, "
            "at most 200 levels, and neither $SYS nor $share in front",
        )


def _predefined(topic_id: int) -> TopicReference:
    if not 0 < topic_id < 0xFFFF:
        raise ParameterError("topic", f"a predefined topic id is from 1 to 65534, not {topic_id}")
    return TopicIdType.PREDEFINED, topic_id


def pause_before(attempt: int, retry_seconds: float) -> float:
    """How long to wait for an answer to the n-th sending before the next.

    >>> [pause_before(attempt, 2.0) for attempt in (1, 2, 3, 9)]
    [2.0, 3.0, 4.5, 10.0]
    """
    return retry_seconds * min(_BACKOFF ** (attempt - 1), _LONGEST_RETRY)


def refused(what: str, return_code: ReturnCode) -> RefusedError:
    """The gateway's answer to `what` was no.

    >>> str(refused("registering topic 'smoke'", ReturnCode.REJECTED_CONGESTION))
    "registering topic 'smoke' was refused: the gateway or its broker cannot take more now"
    """
    return RefusedError(what, return_code, _MEANING.get(return_code, return_code.name))
