"""What is sent until the gateway answers: messages of QoS 1 and 2 in order, requests, and the names of topics there."""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from asyncio import Future
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any

from triagemq import mqttsn as sn
from triagemq.client.events import Event, Inbox
from triagemq.client.settings import ConnectionSettings
from triagemq.errors import ClientError, ClosedError, ParameterError, RefusedError

LOG = logging.getLogger("triagemq.client")

NEVER = float("inf")

_PROBE_AFTER_ATTEMPTS = 2
"""So many sendings without an answer, and the session finds out whether the gateway is there."""

_MOST_REFUSALS = 5

_BACKOFF, _LONGEST_RETRY = 1.5, 5.0
_MEANING = {
    sn.ReturnCode.REJECTED_CONGESTION: "the gateway or its broker cannot take more now",
    sn.ReturnCode.REJECTED_INVALID_TOPIC_ID: "the gateway does not know that topic id",
    sn.ReturnCode.REJECTED_NOT_SUPPORTED: "not allowed, or not supported by the gateway or its broker",
}


Answer = sn.RegAck | sn.SubAck | sn.UnsubAck

TopicReference = tuple[sn.TopicIdType, int]
"""How a PUBLISH names a topic."""


CallResult = Future[Any]
"""Where the result of a call goes."""


class Stage(IntEnum):
    """How far a message is."""

    WAITING = 0
    """For the id of its topic, or for the gateway."""
    SENT = 1
    RELEASED = 2
    """QoS 2: PUBREC has come, PUBCOMP has not."""


@dataclass(slots=True, eq=False, kw_only=True)
class Unanswered:
    """Sent until the gateway answers."""

    outcome: CallResult | None = None
    attempts: int = 0
    due: float = 0.0


@dataclass(slots=True, eq=False)
class Request(Unanswered):
    """REGISTER, SUBSCRIBE or UNSUBSCRIBE; `message` gets its message id when it is sent."""

    what: str
    message: sn.Register | sn.Subscribe | sn.Unsubscribe
    answer: type[Answer]
    settle: Callable[[Any], None]
    refusals: int = 0


@dataclass(slots=True, eq=False)
class Outgoing(Unanswered):
    """One message. It has one message id for life, so that a gateway recognises a repetition also after a restart."""

    message_id: int
    topic: str | int
    payload: bytes
    qos: int
    retain: bool
    stage: Stage = Stage.WAITING
    reference: TopicReference | None = None
    was_sent: bool = False
    registrations: int = 0


class Outbox(ABC):
    """What a session has sent, or is to send, and the gateway has not answered.

    `transmit` returns False when the system has no room; `on_room` is called for each message that is acknowledged or
    given up; `on_due` is called when `advance` is due sooner than it has returned.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        clock: Callable[[], float],
        transmit: Callable[[bytes], bool],
        on_event: Callable[[Event], None],
        on_due: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self.inbox = Inbox(self.send, on_event, settings.predefined_topics)
        self.counters = self.inbox.counters
        self.now = clock
        self._settings, self._transmit, self._on_due, self._on_room = settings, transmit, on_due, on_room
        self._due = NEVER
        self._sent_at = 0.0
        self._doubts = False
        self._closed: ClientError | None = None
        # Messages by message id, and those not sent over this connection yet, in the order of publication.
        self._messages: dict[int, Outgoing] = {}
        self._waiting: deque[Outgoing] = deque()
        # Requests by message id.
        self._requests: dict[int, Request] = {}
        self._next_message_id = random.randint(1, 0xFFFF)
        self._topic_ids: dict[str | int, TopicReference] = {}
        self._registrations: dict[str, list[CallResult]] = {}

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """May messages be sent now?"""

    def wake_at(self, due: float) -> None:
        """Have `advance` called by then."""
        if due < self._due:
            self._due = due
            self._on_due()

    def probe(self) -> None:
        """Find out whether the gateway is there: an answer is missing."""
        self._doubts = True
        self.wake_at(self.now())

    def send(self, message: sn.Message) -> bool:
        """Send it, or lose it; False if the system cannot take it now."""
        self._sent_at = self.now()
        return self._transmit(sn.encode(message))

    def take_message_id(self) -> int:
        """One that nothing unanswered has; each comes round again as late as possible, for old copies may be about."""
        while True:
            message_id = self._next_message_id
            self._next_message_id = message_id % 0xFFFF + 1
            if message_id not in self._messages and message_id not in self._requests:
                return message_id

    # Sending again.

    def _begin(self) -> None:
        """Connected: topic ids are void, answers to earlier requests too, and everything unfinished is sent again."""
        self._topic_ids.clear()
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            # A subscription from before is requested again by the session.
            if request.answer is not sn.SubAck or request.outcome is not None:
                self.enqueue(request)
        self._waiting = deque(self._messages.values())
        for outgoing in self._waiting:
            if outgoing.stage is Stage.SENT:
                outgoing.stage = Stage.WAITING
        self._send_waiting()

    def _send_again(self, now: float) -> None:
        """What has not been answered in time."""
        for message_id, request in list(self._requests.items()):
            if request.outcome is not None and request.outcome.done():
                # The caller has given up.
                del self._requests[message_id]
            elif self._is_due(request, now):
                self._send_request(message_id, request)
        for outgoing in list(self._messages.values()):
            if outgoing.stage is not Stage.WAITING and self._is_due(outgoing, now):
                self._send(outgoing)

    def _is_due(self, unanswered: Unanswered, now: float) -> bool:
        if unanswered.due > now:
            self.wake_at(unanswered.due)
        return unanswered.due <= now

    def _count_attempt(self, unanswered: Unanswered) -> None:
        if unanswered.attempts >= _PROBE_AFTER_ATTEMPTS:
            self.probe()
        unanswered.attempts += 1
        unanswered.due = self.now() + pause_before(unanswered.attempts, self._settings.retry_seconds)
        self.wake_at(unanswered.due)

    def _end(self, error: ClientError) -> None:
        """Nothing is sent any more; every call that waits gets the error."""
        self._closed, self._due = error, NEVER
        self._waiting.clear()
        for outgoing in list(self._messages.values()):
            self._finish(outgoing, error)
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            request.settle(error)

    # Requests.

    def enqueue(self, request: Request, pause_seconds: float = 0.0) -> None:
        """Under a new message id: an answer to an earlier one is void."""
        message_id = self.take_message_id()
        self._requests[message_id] = request
        request.attempts = 0
        request.due = self.now() + pause_seconds
        if self.is_active and not pause_seconds:
            self._send_request(message_id, request)
        else:
            self.wake_at(request.due)

    def _send_request(self, message_id: int, request: Request) -> None:
        self._count_attempt(request)
        try:
            if isinstance(request.message, sn.Subscribe):
                self.send(replace(request.message, message_id=message_id, dup=request.attempts > 1))
            else:
                self.send(replace(request.message, message_id=message_id))
        except ParameterError as error:
            del self._requests[message_id]
            request.settle(error)

    def _receive_answer(self, message: Answer) -> None:
        request = self._requests.get(message.message_id)
        if request is None or not isinstance(message, request.answer):
            # A late copy.
            return
        del self._requests[message.message_id]
        code = sn.ReturnCode.ACCEPTED if isinstance(message, sn.UnsubAck) else message.return_code
        if code is sn.ReturnCode.ACCEPTED:
            request.settle(message)
        elif code is sn.ReturnCode.REJECTED_CONGESTION and request.refusals < _MOST_REFUSALS - 1:
            request.refusals += 1
            self.enqueue(request, self._settings.retry_seconds * request.refusals / 2)
        else:
            request.settle(refused(request.what, code))

    def reference(self, topic: str | int) -> TopicReference | None:
        """The id of a topic, if it needs no registration now."""
        found = self._topic_ids.get(topic)
        if found is None and (found := without_registration(topic, self._settings.predefined_topics)):
            self._topic_ids[topic] = found
        return found

    def register(self, topic: str, outcome: CallResult | None) -> None:
        """Get the id of a topic, by one request for all callers."""
        if (found := self.reference(topic)) is not None:
            resolve(outcome, found)
            return
        if topic not in self._registrations:
            self._registrations[topic] = []
            settle = partial(self._registered, topic)
            self.enqueue(Request(f"registering topic {topic!r}", sn.Register(0, 0, topic), sn.RegAck, settle))
        if outcome is not None:
            self._registrations[topic].append(outcome)

    def _registered(self, topic: str, answer: sn.RegAck | ClientError) -> None:
        if isinstance(answer, sn.RegAck):
            self._learn(topic, answer.topic_id)
        else:
            self._registration_refused(topic, answer)
        for outcome in self._registrations.pop(topic, ()):
            resolve(outcome, self._topic_ids[topic] if isinstance(answer, sn.RegAck) else answer)
        self._send_waiting()

    def _learn(self, topic: str, topic_id: int) -> None:
        self._topic_ids[topic] = sn.TopicIdType.NORMAL, topic_id
        self.inbox.learn(topic_id, topic)

    def forget_topic(self, topic: str | int) -> None:
        """Its id is void."""
        self._topic_ids.pop(topic, None)

    # Messages of QoS 1 and 2.

    @property
    def unacknowledged(self) -> int:
        """Messages of QoS 1 and 2."""
        return len(self._messages)

    def publish(
        self, topic: str | int, payload: bytes, qos: int, retain: bool, outcome: CallResult | None
    ) -> None:
        """Send until it is acknowledged; the result is None."""
        if self._closed is not None:
            self._on_room()
            raise self._closed
        outgoing = Outgoing(self.take_message_id(), topic, payload, qos, retain, outcome=outcome)
        self._messages[outgoing.message_id] = outgoing
        self._waiting.append(outgoing)
        self._send_waiting()

    def withdraw(self) -> list[Outgoing]:
        """What may be published by another gateway: all but QoS 2 that this one may have. Nothing new comes here."""
        self._closed = ClosedError("it goes on at another gateway")
        found = [each for each in self._messages.values() if each.qos == 1 or not each.was_sent]
        for outgoing in found:
            del self._messages[outgoing.message_id]
            self._on_room()
        self._waiting = deque(each for each in self._waiting if each.message_id in self._messages)
        return found

    def _send_waiting(self) -> None:
        """Messages behind one whose topic has no id yet wait, too: events of a publisher keep their order."""
        while self._waiting and self.is_active:
            outgoing = self._waiting[0]
            if self._messages.get(outgoing.message_id) is not outgoing:
                # Acknowledged meanwhile.
                self._waiting.popleft()
                continue
            if outgoing.stage is Stage.WAITING:
                outgoing.reference = self.reference(outgoing.topic)
                if outgoing.reference is None:
                    self.register(str(outgoing.topic), None)
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

    def _registration_refused(self, topic: str, error: ClientError) -> None:
        """The first of those that wait cannot be sent."""
        if self._waiting and self._waiting[0].topic == topic:
            self._finish(self._waiting.popleft(), error)

    def _send(self, outgoing: Outgoing) -> None:
        self._count_attempt(outgoing)
        if outgoing.stage is Stage.RELEASED:
            self.send(sn.PubRel(outgoing.message_id))
            return
        assert outgoing.reference is not None
        self.counters.retransmissions += outgoing.was_sent
        # Of QoS 2 every copy is marked: those that the network makes look like ours then, and none of them is taken
        # for a new message when it comes after the end.
        dup = outgoing.was_sent or outgoing.qos == 2
        payload, retain = outgoing.payload, outgoing.retain
        self.send(sn.Publish(*outgoing.reference, payload, outgoing.qos, retain, dup, outgoing.message_id))
        outgoing.was_sent = True

    def _receive_puback(self, message: sn.PubAck) -> None:
        """QoS 1 was acknowledged, or a message of any QoS refused."""
        outgoing, code = self._messages.get(message.message_id), message.return_code
        if outgoing is None:
            self.counters.refused += code is not sn.ReturnCode.ACCEPTED and message.message_id == 0
            if code is sn.ReturnCode.REJECTED_INVALID_TOPIC_ID:
                for topic, reference in list(self._topic_ids.items()):
                    if reference == (sn.TopicIdType.NORMAL, message.topic_id):
                        self.forget_topic(topic)
        elif code is sn.ReturnCode.ACCEPTED:
            if outgoing.qos == 1 and outgoing.was_sent:
                self.counters.acknowledged += 1
                self._finish(outgoing, None)
        elif code is sn.ReturnCode.REJECTED_INVALID_TOPIC_ID and outgoing.registrations < _MOST_REFUSALS:
            if outgoing.stage is Stage.SENT:
                outgoing.registrations += 1
                outgoing.stage = Stage.WAITING
                self.forget_topic(outgoing.topic)
                self._waiting.append(outgoing)
                self._send_waiting()
        elif code is not sn.ReturnCode.REJECTED_CONGESTION:
            # After congestion it is sent again when it is due.
            self.counters.refused += 1
            self._finish(outgoing, refused(f"publishing to {outgoing.topic!r}", code))

    def _receive_qos_2(self, message: sn.PubRec | sn.PubComp) -> None:
        """The two answers to a QoS 2 message; late copies change nothing."""
        outgoing = self._messages.get(message.message_id)
        if outgoing is None or outgoing.qos != 2 or not outgoing.was_sent:
            return
        if isinstance(message, sn.PubRec):
            # From now on only PUBREL is sent.
            outgoing.stage, outgoing.attempts = Stage.RELEASED, 0
            self._send(outgoing)
        elif outgoing.stage is Stage.RELEASED:
            self.counters.acknowledged += 1
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
        # The counters have it, too: asyncio need not warn that it was not retrieved.
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
            return sn.TopicIdType.PREDEFINED, topic_id
    if len(topic.encode()) == 2:
        return sn.TopicIdType.SHORT, sn.short_topic_id(topic)
    return None


def filter_reference(topic: str | int) -> tuple[sn.TopicIdType, str | int]:
    """How a SUBSCRIBE names a filter: by a predefined id, as a short name, or in full.

    >>> filter_reference("floor3/+"), filter_reference("ab"), filter_reference(7)
    ((<TopicIdType.NORMAL: 0>, 'floor3/+'), (<TopicIdType.SHORT: 2>, 'ab'), (<TopicIdType.PREDEFINED: 1>, 7))
    """
    if isinstance(topic, int):
        return _predefined(topic)
    if not sn.valid_topic_filter(topic):
        raise ParameterError(
            "topic",
            f"{topic!r} is no topic filter: + is a whole level, # the whole last one, "
            "no control characters, at most 200 levels",
        )
    if sn.is_shared(topic):
        raise ParameterError("topic", f"{topic!r} is a shared subscription, which MQTT-SN does not have")
    if len(topic.encode()) == 2 and sn.valid_topic_name(topic):
        return sn.TopicIdType.SHORT, topic
    return sn.TopicIdType.NORMAL, topic


def require_topic_name(topic: str) -> None:
    """ParameterError unless events can be published to it.

    >>> require_topic_name("floor3/+")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: topic: 'floor3/+' is no topic name to publish to: no wildcards, ...
    """
    if not sn.publishable_topic_name(topic):
        raise ParameterError(
            "topic",
            f"{topic!r} is no topic name to publish to: no wildcards, not empty, no control characters, "
            "at most 200 levels, and neither $SYS nor $share in front",
        )


def _predefined(topic_id: int) -> TopicReference:
    if not 0 < topic_id < 0xFFFF:
        raise ParameterError("topic", f"a predefined topic id is from 1 to 65534, not {topic_id}")
    return sn.TopicIdType.PREDEFINED, topic_id


def pause_before(attempt: int, retry_seconds: float) -> float:
    """How long to wait for an answer to the n-th sending before the next.

    >>> [pause_before(attempt, 2.0) for attempt in (1, 2, 3, 9)]
    [2.0, 3.0, 4.5, 10.0]
    """
    return retry_seconds * min(_BACKOFF ** (attempt - 1), _LONGEST_RETRY)


def refused(what: str, return_code: sn.ReturnCode) -> RefusedError:
    """The gateway's answer to `what` was no.

    >>> str(refused("registering topic 'smoke'", sn.ReturnCode.REJECTED_CONGESTION))
    "registering topic 'smoke' was refused: the gateway or its broker cannot take more now"
    """
    return RefusedError(what, return_code, _MEANING.get(return_code, return_code.name))
