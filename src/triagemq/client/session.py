"""The MQTT-SN session of one client, without I/O: octets and the time come in; octets, events and outcomes go out.

Requests and messages of QoS 1 and 2 outlive the connection: they are sent until the gateway answers.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from triagemq import mqttsn as sn
from triagemq.client.events import Event
from triagemq.client.outbox import (
    NEVER,
    CallResult,
    Outbox,
    Request,
    Unanswered,
    filter_reference,
    resolve,
)
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.errors import ClientError, DecodeError, RefusedError

_CONNECT_BACKOFF = 1.7
_LATE_CONNECT_SECONDS = 30.0
_SHORT_LIFE_SECONDS = 1.0
_SUBSCRIBE_AT_ONCE = 32


class State(Enum):
    """Where a connection is in its life."""

    NEW = "new"
    CONNECTING = "connecting"
    ACTIVE = "active"
    ASLEEP = "asleep"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class _Probe(Unanswered):
    """PINGREQ or DISCONNECT, which have no message id: one at a time. The result is whether the gateway answers."""

    message: sn.PingReq | sn.Disconnect


class ClientSession(Outbox):
    """`advance` does what is due and returns when it wants to be called again.

    `on_lost` gets True if the gateway has become silent.
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
        super().__init__(
            settings, clock=clock, transmit=transmit, on_event=on_event, on_due=on_due, on_room=on_room
        )
        self.client_id = client_id
        self.state = State.NEW
        self.problem = ""
        """Why the connection was lost, until it is made again."""
        self.refusal: sn.ReturnCode | None = None
        """The answer to the last CONNECT, if it was no."""
        self.heard_at = 0.0
        self._on_active, self._on_lost, self._on_refused = on_active, on_lost, on_refused
        self._keep_session, self._clear_first, self._will = keep_session, clear_first, will
        # The handshake: CONNECT until it is accepted, with growing pauses.
        self._attempts, self._delay, self._handshake_due = 0, 0.0, 0.0
        self._awaits_connack = self._is_accepted = self._is_fresh = self._is_leaving = False
        self._cleared_at = self._active_at = -NEVER
        self._reconnect_pause = 0.0
        self._probe: _Probe | None = None
        self._subscriptions: dict[str | int, int] = {}
        self._resubscribing: deque[str | int] = deque()

    @property
    def is_active(self) -> bool:
        """May messages be sent now?"""
        return self.state is State.ACTIVE

    # Time.

    def advance(self) -> float:
        """Do what is due by now; the time of the next thing to do."""
        now, self._due = self.now(), NEVER
        if self.state is State.CONNECTING:
            self._advance_handshake(now)
        if self.state in (State.ACTIVE, State.ASLEEP):
            self._advance_probe(now)
        if self.is_active:
            self._send_again(now)
        return self._due

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
            self.send(sn.Connect(self.client_id, keep_alive, clean_session=self._clears, will=has_will))

    def _slow_down(self) -> None:
        self._delay = min(self._delay * _CONNECT_BACKOFF, self._settings.longest_delay_seconds)

    def _receive_connack(self, message: sn.ConnAck) -> None:
        now = self.now()
        if self.state is not State.CONNECTING or not self._awaits_connack:
            if now - self._cleared_at < _LATE_CONNECT_SECONDS:
                # A copy of the CONNECT that cleared the session may have cleared it once more.
                self.lose("an old CONNECT arrived late")
            return
        self._awaits_connack = False
        if message.return_code is sn.ReturnCode.ACCEPTED:
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
            self.counters.connected += 1
            self._begin()
            # CONNACK does not state whether the gateway has stored the session.
            self._resubscribing = deque(self._subscriptions)
            for _ in range(_SUBSCRIBE_AT_ONCE):
                self._subscribe_again()
            self.wake_at(now + self._settings.ping_seconds)
            self._on_active()

    # Being connected: keep-alive, sleep, leaving.

    def sleep(self, duration_seconds: int, outcome: CallResult) -> None:
        """Have the gateway store events for that long."""
        self.state = State.ASLEEP
        self._begin_probe(_Probe(sn.Disconnect(duration_seconds), outcome=outcome))

    def check(self, outcome: CallResult) -> None:
        """While asleep: get the stored events; the result comes after the last one."""
        if self.state is State.ASLEEP:
            self._begin_probe(_Probe(sn.PingReq(self.client_id), outcome=outcome))
        else:
            outcome.set_result(False)

    def leave(self, outcome: CallResult, *, end_session: bool) -> None:
        """Take leave of the gateway; it forgets the session if that is to end."""
        self._is_leaving = True
        self._end_probe(False)
        self._probe = _Probe(sn.Disconnect(None), outcome=outcome)
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
            probe = self._probe = _Probe(sn.PingReq())
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
        is_check = self.state is State.ASLEEP and isinstance(probe.message, sn.PingReq)
        return is_check and probe.attempts > 0 and self.heard_at > probe.due - self._settings.retry_seconds

    # Messages.

    def receive(self, datagram: bytes) -> None:
        """A datagram of the gateway."""
        self.heard_at = self.now()
        try:
            message = sn.decode(datagram)
        except DecodeError:
            self.counters.malformed += 1
            return
        match message:
            case sn.Publish():
                self.inbox.publish(message)
            case sn.PubRel():
                self.inbox.release(message)
            case sn.Register():
                self.inbox.register(message)
            case sn.PubAck():
                self._receive_puback(message)
            case sn.PubRec() | sn.PubComp():
                self._receive_qos_2(message)
            case sn.RegAck() | sn.SubAck() | sn.UnsubAck():
                self._receive_answer(message)
            case sn.ConnAck():
                self._receive_connack(message)
            case sn.WillTopicReq():
                will = self._will
                self.send(
                    sn.WillTopic(None) if will is None else sn.WillTopic(will.topic, will.qos, will.retain)
                )
            case sn.WillMsgReq():
                self.send(sn.WillMsg(b"" if self._will is None else self._will.payload))
            case sn.PingReq():
                # The gateway measures the round-trip time.
                self.send(sn.PingResp())
            case sn.PingResp():
                if self._probe is not None and isinstance(self._probe.message, sn.PingReq):
                    self._end_probe(True)
                    self.wake_at(self.now())
            case sn.Disconnect():
                if self._probe is not None and isinstance(self._probe.message, sn.Disconnect):
                    self._end_probe(True)
                else:
                    self.lose("the gateway has ended the connection")
            case _:
                self.counters.malformed += 1

    # Subscriptions.

    def subscribe(self, topic: str | int, qos: int, outcome: CallResult | None) -> None:
        """Subscribe to a filter, a short name, or a predefined id; the result is the QoS that the gateway grants."""
        id_type, name = filter_reference(topic)

        def settle(answer: sn.SubAck | ClientError) -> None:
            if isinstance(answer, sn.SubAck):
                self._subscriptions[topic] = qos
                if answer.topic_id and isinstance(topic, str) and id_type is sn.TopicIdType.NORMAL:
                    self._learn(topic, answer.topic_id)
            elif outcome is None and isinstance(answer, RefusedError):
                self.counters.refused += 1
                self.problem = str(answer)
                self._on_refused(answer)
            resolve(outcome, answer.qos if isinstance(answer, sn.SubAck) else answer)
            if outcome is None:
                self._subscribe_again()

        message = sn.Subscribe(id_type, name, 0, qos)
        self.enqueue(Request(f"subscribing to {topic!r}", message, sn.SubAck, settle, outcome=outcome))

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

        def settle(answer: sn.UnsubAck | ClientError) -> None:
            resolve(outcome, answer if isinstance(answer, ClientError) else None)

        message = sn.Unsubscribe(id_type, name, 0)
        self.enqueue(Request(f"unsubscribing from {topic!r}", message, sn.UnsubAck, settle, outcome=outcome))

    def close(self, error: ClientError) -> None:
        """Nothing is sent any more; every call that waits gets the error."""
        self.state = State.CLOSED
        self._resubscribing.clear()
        self._end_probe(False)
        self._end(error)
