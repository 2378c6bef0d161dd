"""The MQTT-SN session of one client, without I/O: octets and the time come in; octets, events and outcomes go out.

Requests and messages of QoS 1 and 2 outlive the connection: they are sent until the gateway answers.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from triagemq.client.events import Event, Inbox
from triagemq.client.outbox import (
    MOST_REFUSALS,
    PROBE_AFTER_ATTEMPTS,
    CallResult,
    Outbox,
    TopicReference,
    filter_reference,
    pause_before,
    refused,
    resolve,
    without_registration,
)
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.errors import ClientError, DecodeError, ParameterError, RefusedError
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    Message,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    UnsubAck,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    decode,
    encode,
)

_CONNECT_BACKOFF = 1.7
_LATE_CONNECT_SECONDS = 30.0
_SHORT_LIFE_SECONDS = 1.0
_SUBSCRIBE_AT_ONCE = 32
_NEVER = float("inf")

Answer = RegAck | SubAck | UnsubAck


class State(Enum):
    """Where a connection is in its life."""

    NEW = "new"
    CONNECTING = "connecting"
    ACTIVE = "active"
    ASLEEP = "asleep"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class _Request:
    """REGISTER, SUBSCRIBE or UNSUBSCRIBE; `message` takes the message id, and whether it is a repetition."""

    what: str
    message: Callable[[int, bool], Message]
    answer: type[Answer]
    settle: Callable[[Any], None]
    outcome: CallResult | None = None
    attempts: int = 0
    refusals: int = 0
    due: float = 0.0


@dataclass(slots=True, eq=False)
class _Probe:
    """PINGREQ or DISCONNECT, which have no message id: one at a time. The result is whether the gateway answers."""

    message: PingReq | Disconnect
    outcome: CallResult | None = None
    attempts: int = 0
    due: float = 0.0


class ClientSession:
    """`advance` does what is due and returns when it wants to be called again; `on_due` says that it is sooner.

    `transmit` returns False when the system has no room. `on_lost` gets True if the gateway has become silent.
    """

    def __init__(
        self,
        client_id: str,
        settings: ConnectionSettings,
        *,
        clock: Callable[[], float],
        transmit: Callable[[bytes], bool],
        on_event: Callable[[Event], None],
        on_active: Callable[[], None],
        on_lost: Callable[[bool], None],
        on_due: Callable[[], None],
        on_room: Callable[[], None],
        on_refused: Callable[[RefusedError], None],
        keep_session: bool,
        clear_first: bool,
        will: Will | None,
    ) -> None:
        self.client_id = client_id
        self.state = State.NEW
        self.problem = ""
        """Why the connection was lost, until it is made again."""
        self.refusal: ReturnCode | None = None
        """The answer to the last CONNECT, if it was no."""
        self.inbox = Inbox(self.send, on_event, settings.predefined_topics)
        self.heard_at = self._sent_at = 0.0
        self.connected = self.refused = self.malformed = 0
        self.outbox = Outbox(self, settings.retry_seconds, on_room)
        self.now = clock
        self._settings, self._transmit = settings, transmit
        self._on_active, self._on_lost, self._on_due = on_active, on_lost, on_due
        self._on_refused = on_refused
        self._keep_session, self._clear_first, self._will = keep_session, clear_first, will
        self._due = _NEVER
        # The handshake: CONNECT until it is accepted, with growing pauses.
        self._attempts, self._delay, self._handshake_due = 0, 0.0, 0.0
        self._awaits_connack = self._is_accepted = self._is_fresh = self._is_leaving = False
        self._cleared_at = self._active_at = -_NEVER
        self._reconnect_pause = 0.0
        self._probe: _Probe | None = None
        self._doubts = False
        # Requests that the gateway has not answered, by message id.
        self._next_message_id = random.randint(1, 0xFFFF)
        self._requests: dict[int, _Request] = {}
        self._topic_ids: dict[str | int, TopicReference] = {}
        self._registrations: dict[str, list[CallResult]] = {}
        self._subscriptions: dict[str | int, int] = {}
        self._resubscribing: deque[str | int] = deque()

    @property
    def is_active(self) -> bool:
        """May messages be sent now?"""
        return self.state is State.ACTIVE

    # Time.

    def advance(self) -> float:
        """Do what is due by now; the time of the next thing to do."""
        now, self._due = self.now(), _NEVER
        if self.state is State.CONNECTING:
            self._advance_handshake(now)
        if self.state in (State.ACTIVE, State.ASLEEP):
            self._advance_probe(now)
        if self.is_active:
            for message_id, request in list(self._requests.items()):
                if request.outcome is not None and request.outcome.done():
                    # The caller has given up.
                    del self._requests[message_id]
                elif request.due <= now:
                    self._send_request(message_id, request)
                else:
                    self.wake_at(request.due)
            self.outbox.advance(now)
        return self._due

    def wake_at(self, due: float) -> None:
        """Have `advance` called by then."""
        if due < self._due:
            self._due = due
            self._on_due()

    # Connecting.

    def connect(self) -> None:
        """Begin; `on_active` is called when the gateway has accepted."""
        self.state = State.CONNECTING
        self._begin_handshake(self.now())

    def redirect(self, client_id: str) -> None:
        """Go on as another client, at another gateway."""
        self.client_id = client_id
        self.lose("it goes on under another name")
        if self.state is State.CONNECTING:
            self._begin_handshake(self.now())

    def lose(self, problem: str, *, silent: bool = False) -> None:
        """The connection is lost, and made again."""
        if self.state not in (State.ACTIVE, State.ASLEEP) or self._is_leaving:
            return
        self.state, self.problem = State.CONNECTING, problem
        self._doubts = False
        self._resubscribing.clear()
        self._end_probe(False)
        # A gateway that accepts clients only to send them away, or two clients of one id, must not go in circles.
        longer = max(self._settings.first_delay_seconds, self._reconnect_pause * 2)
        lived = self.now() - self._active_at
        self._reconnect_pause = (
            0.0 if lived > _SHORT_LIFE_SECONDS else min(longer, self._settings.longest_delay_seconds)
        )
        self._begin_handshake(self.now() + self._reconnect_pause)
        self._on_lost(silent)

    def _begin_handshake(self, due: float) -> None:
        self._attempts, self._delay = 0, self._settings.first_delay_seconds
        self._awaits_connack = self._is_accepted = False
        self._handshake_at(due)

    def _handshake_at(self, due: float) -> None:
        self._handshake_due = due
        self.wake_at(due)

    @property
    def _clears(self) -> bool:
        """Whether this handshake is to clear a session away."""
        return self._clear_first or self._is_leaving

    def _advance_handshake(self, now: float) -> None:
        if now < self._handshake_due:
            self.wake_at(self._handshake_due)
        elif self._is_accepted:
            self._finish_handshake(now)
        else:
            if self._awaits_connack:
                self.refusal = None
                self._slow_down()
            self._attempts += 1
            self._awaits_connack = True
            self._handshake_at(now + self._delay)
            keep_alive, has_will = self._settings.keep_alive_seconds, self._will is not None
            self.send(Connect(self.client_id, keep_alive, clean_session=self._clears, will=has_will))

    def _slow_down(self) -> None:
        self._delay = min(self._delay * _CONNECT_BACKOFF, self._settings.longest_delay_seconds)

    def _receive_connack(self, message: ConnAck) -> None:
        now = self.now()
        if self.state is not State.CONNECTING or not self._awaits_connack:
            if now - self._cleared_at < _LATE_CONNECT_SECONDS:
                # A copy of the CONNECT that cleared the session may have cleared it once more.
                self.lose("an old CONNECT arrived late")
            return
        self._awaits_connack = False
        if message.return_code is ReturnCode.ACCEPTED:
            self._is_accepted = True
            # Answers to the other attempts must not be taken for the answer to the next CONNECT.
            several = self._clears and self._attempts > 1
            self._handshake_due = now + (self._delay if several else 0.0)
            self._advance_handshake(now)
        else:
            self.refusal = message.return_code
            # Spread out, so that the clients of a gateway do not all come at the same instant.
            self._handshake_at(now + self._delay * random.uniform(0.8, 1.2))
            self._slow_down()

    def _finish_handshake(self, now: float) -> None:
        self.refusal = None
        if self._is_leaving:
            self._say_goodbye()
        elif self._clear_first:
            self._clear_first, self._is_fresh, self._cleared_at = False, True, now
            self._begin_handshake(now)
            self._advance_handshake(now)
        else:
            self.inbox.begin(fresh=self._is_fresh)
            self.state, self._is_fresh, self.problem, self._active_at = State.ACTIVE, False, "", now
            self.connected += 1
            self._begin(now)
            self._on_active()

    def _begin(self, now: float) -> None:
        """Connected: topic ids are void, answers to earlier requests too, and everything unfinished is sent again."""
        self._topic_ids.clear()
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            # Those of `_subscribe_again` begin again below.
            if request.answer is not SubAck or request.outcome is not None:
                self._enqueue(request)
        self.outbox.begin()
        # CONNACK does not tell whether the gateway has kept the session.
        self._resubscribing = deque(self._subscriptions)
        for _ in range(_SUBSCRIBE_AT_ONCE):
            self._subscribe_again()
        self.wake_at(now + self._settings.ping_seconds)

    # Being connected: keep-alive, sleep, leaving.

    def probe(self) -> None:
        """Find out whether the gateway is there: an answer is missing."""
        self._doubts = True
        self.wake_at(self.now())

    def sleep(self, duration_seconds: int, outcome: CallResult) -> None:
        """Have the gateway store events for that long."""
        self.state = State.ASLEEP
        self._begin_probe(_Probe(Disconnect(duration_seconds), outcome))

    def check(self, outcome: CallResult) -> None:
        """While asleep: get the stored events; the result comes after the last one."""
        if self.state is State.ASLEEP:
            self._begin_probe(_Probe(PingReq(self.client_id), outcome))
        else:
            outcome.set_result(False)

    def leave(self, outcome: CallResult, *, end_session: bool) -> None:
        """Take leave of the gateway; it forgets the session if that is to end."""
        self._is_leaving = True
        self._end_probe(False)
        self._probe = _Probe(Disconnect(None), outcome)
        if end_session or not self._keep_session:
            self.state = State.CONNECTING
            self._begin_handshake(self.now())
        else:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        if self._probe is not None:
            self.state = State.ASLEEP
            self._begin_probe(self._probe)

    def _begin_probe(self, probe: _Probe) -> None:
        self._probe = probe
        self.wake_at(self.now())

    def _end_probe(self, is_there: bool) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            resolve(probe.outcome, is_there)

    def _advance_probe(self, now: float) -> None:
        settings, probe = self._settings, self._probe
        if probe is None:
            if self.state is State.ASLEEP:
                return
            idle_at = min(self._sent_at, self.heard_at) + settings.ping_seconds
            if not self._doubts and now < idle_at:
                self.wake_at(idle_at)
                return
            self._doubts = False
            probe = self._probe = _Probe(PingReq())
        elif now < probe.due:
            self.wake_at(probe.due)
            return
        elif self._may_bring_more(probe):
            probe.due = self.heard_at + settings.retry_seconds
            self.wake_at(probe.due)
            return
        if probe.attempts > settings.retries:
            self._end_probe(False)
            self.lose("the gateway does not answer", silent=True)
            return
        probe.attempts += 1
        probe.due = now + settings.retry_seconds
        self.wake_at(probe.due)
        self.send(probe.message)

    def _may_bring_more(self, probe: _Probe) -> bool:
        """Whether stored events still came in the time in which the gateway should have answered a check."""
        is_check = self.state is State.ASLEEP and isinstance(probe.message, PingReq)
        return is_check and probe.attempts > 0 and self.heard_at > probe.due - self._settings.retry_seconds

    # Messages.

    def send(self, message: Message) -> bool:
        """Send it, or lose it; False if the system cannot take it now."""
        self._sent_at = self.now()
        return self._transmit(encode(message))

    def receive(self, datagram: bytes) -> None:
        """A datagram of the gateway."""
        self.heard_at = self.now()
        try:
            message = decode(datagram)
        except DecodeError:
            self.malformed += 1
            return
        match message:
            case Publish():
                self.inbox.publish(message)
            case PubRel():
                self.inbox.release(message)
            case Register():
                self.inbox.register(message)
            case PubAck():
                self._receive_puback(message)
            case PubRec() | PubComp():
                self.outbox.receive_qos_2(message)
            case RegAck() | SubAck() | UnsubAck():
                self._receive_answer(message)
            case ConnAck():
                self._receive_connack(message)
            case WillTopicReq():
                will = self._will
                self.send(WillTopic(None) if will is None else WillTopic(will.topic, will.qos, will.retain))
            case WillMsgReq():
                self.send(WillMsg(b"" if self._will is None else self._will.payload))
            case PingReq():
                # The gateway measures the round-trip time.
                self.send(PingResp())
            case PingResp():
                if self._probe is not None and isinstance(self._probe.message, PingReq):
                    self._end_probe(True)
                    self.wake_at(self.now())
            case Disconnect():
                if self._probe is not None and isinstance(self._probe.message, Disconnect):
                    self._end_probe(True)
                else:
                    self.lose("the gateway has ended the connection")
            case _:
                self.malformed += 1

    def take_message_id(self) -> int:
        """One that nothing unanswered has; each comes round again as late as possible, for old copies may be about."""
        while True:
            message_id = self._next_message_id
            self._next_message_id = message_id % 0xFFFF + 1
            if message_id not in self.outbox and message_id not in self._requests:
                return message_id

    # Requests.

    def _enqueue(self, request: _Request, pause_seconds: float = 0.0) -> None:
        """Under a new message id: an answer to an earlier one is void."""
        message_id = self.take_message_id()
        self._requests[message_id] = request
        request.attempts = 0
        request.due = self.now() + pause_seconds
        if self.is_active and not pause_seconds:
            self._send_request(message_id, request)
        else:
            self.wake_at(request.due)

    def _send_request(self, message_id: int, request: _Request) -> None:
        if request.attempts >= PROBE_AFTER_ATTEMPTS:
            self.probe()
        request.attempts += 1
        request.due = self.now() + pause_before(request.attempts, self._settings.retry_seconds)
        self.wake_at(request.due)
        try:
            self.send(request.message(message_id, request.attempts > 1))
        except ParameterError as error:
            del self._requests[message_id]
            request.settle(error)

    def _receive_answer(self, message: Answer) -> None:
        request = self._requests.get(message.message_id)
        if request is None or not isinstance(message, request.answer):
            # A late copy.
            return
        del self._requests[message.message_id]
        code = ReturnCode.ACCEPTED if isinstance(message, UnsubAck) else message.return_code
        if code is ReturnCode.ACCEPTED:
            request.settle(message)
        elif code is ReturnCode.REJECTED_CONGESTION and request.refusals < MOST_REFUSALS - 1:
            request.refusals += 1
            self._enqueue(request, self._settings.retry_seconds * request.refusals / 2)
        else:
            request.settle(refused(request.what, code))

    def subscribe(self, topic: str | int, qos: int, outcome: CallResult | None) -> None:
        """Subscribe to a filter, a short name, or a predefined id; the result is the QoS that the gateway grants."""
        id_type, name = filter_reference(topic)

        def settle(answer: SubAck | ClientError) -> None:
            if isinstance(answer, SubAck):
                self._subscriptions[topic] = qos
                if answer.topic_id and isinstance(topic, str) and id_type is TopicIdType.NORMAL:
                    self._learn(topic, answer.topic_id)
            elif outcome is None and isinstance(answer, RefusedError):
                self.refused += 1
                self.problem = str(answer)
                self._on_refused(answer)
            resolve(outcome, answer.qos if isinstance(answer, SubAck) else answer)
            if outcome is None:
                self._subscribe_again()

        def message(message_id: int, repeated: bool) -> Message:
            return Subscribe(id_type, name, message_id, qos, repeated)

        self._enqueue(_Request(f"subscribing to {topic!r}", message, SubAck, settle, outcome))

    def _subscribe_again(self) -> None:
        if self._resubscribing and self.is_active:
            topic = self._resubscribing.popleft()
            if topic in self._subscriptions:
                self.subscribe(topic, self._subscriptions[topic], None)
            else:
                self._subscribe_again()

    def unsubscribe(self, topic: str | int, outcome: CallResult) -> None:
        """No more events of that filter."""
        id_type, name = filter_reference(topic)
        self._subscriptions.pop(topic, None)

        def message(message_id: int, _: bool) -> Message:
            return Unsubscribe(id_type, name, message_id)

        def settle(answer: UnsubAck | ClientError) -> None:
            resolve(outcome, answer if isinstance(answer, ClientError) else None)

        self._enqueue(_Request(f"unsubscribing from {topic!r}", message, UnsubAck, settle, outcome))

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

            def message(message_id: int, _: bool) -> Message:
                return Register(0, message_id, topic)

            def settle(answer: RegAck | ClientError) -> None:
                self._registered(topic, answer)

            self._enqueue(_Request(f"registering topic {topic!r}", message, RegAck, settle))
        if outcome is not None:
            self._registrations[topic].append(outcome)

    def _registered(self, topic: str, answer: RegAck | ClientError) -> None:
        if isinstance(answer, RegAck):
            self._learn(topic, answer.topic_id)
        else:
            self.outbox.registration_refused(topic, answer)
        for outcome in self._registrations.pop(topic, ()):
            resolve(outcome, self._topic_ids[topic] if isinstance(answer, RegAck) else answer)
        self.outbox.send_waiting()

    def forget_topic(self, topic: str | int) -> None:
        """Its id is void."""
        self._topic_ids.pop(topic, None)

    def _receive_puback(self, message: PubAck) -> None:
        unknown = message.message_id not in self.outbox
        if message.return_code is ReturnCode.REJECTED_INVALID_TOPIC_ID and unknown:
            for topic, reference in list(self._topic_ids.items()):
                if reference == (TopicIdType.NORMAL, message.topic_id):
                    self.forget_topic(topic)
        self.outbox.receive_puback(message)

    def _learn(self, topic: str, topic_id: int) -> None:
        self._topic_ids[topic] = TopicIdType.NORMAL, topic_id
        self.inbox.learn(topic_id, topic)

    def close(self, error: ClientError) -> None:
        """Nothing is sent any more; every call that waits gets the error."""
        self.state, self._due = State.CLOSED, _NEVER
        self._resubscribing.clear()
        self._end_probe(False)
        self.outbox.close(error)
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            request.settle(error)
