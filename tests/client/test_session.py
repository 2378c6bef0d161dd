"""The session without I/O, in virtual time: what it sends when, and what becomes of every call."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import pytest

from triagemq.client import ClosedError, Event
from triagemq.client.session import ClientSession, State
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.errors import ParameterError
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
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    decode,
    encode,
)

ACCEPTED = ReturnCode.ACCEPTED
SETTINGS = ConnectionSettings(retry_seconds=1.0, retries=2, ping_seconds=3.0, first_delay_seconds=0.25)


class Scene:
    """A session and its clock; `sent` is what it has sent since it was last looked at."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.sent: list[Message] = []
        self.events: list[Event] = []
        self.lost: list[bool] = []
        self.problems: list[str] = []
        self.room = 0
        given: dict[str, Any] = {"keep_session": True, "clear_first": False, "will": None, **options}
        self.session = ClientSession(
            "pump",
            given.pop("settings", SETTINGS),
            clock=lambda: self.now,
            transmit=self._transmit,
            on_event=self.events.append,
            on_active=lambda: None,
            on_lost=self.lost.append,
            on_due=lambda: None,
            on_room=self._has_room,
            on_refused=lambda error: self.problems.append(str(error)),
            **given,
        )

    def _transmit(self, octets: bytes) -> bool:
        self.sent.append(decode(octets))
        return True

    def _has_room(self) -> None:
        self.room += 1

    def take(self, kind: type[Any] = object) -> list[Any]:
        """What was sent since then, of one kind."""
        self.session.advance()
        found, self.sent = [each for each in self.sent if isinstance(each, kind)], []
        return found

    def get(self, *messages: Message) -> None:
        for message in messages:
            self.session.receive(encode(message))

    def pass_time(self, seconds: float) -> None:
        """Let it do what is due meanwhile, each at its time."""
        end = self.now + seconds
        while (due := self.session.advance()) <= end:
            self.now = max(self.now, due)
        self.now = end
        self.session.advance()

    def connect(self) -> None:
        self.session.connect()
        self.session.advance()
        self.get(ConnAck(ACCEPTED))
        assert self.session.is_active
        self.sent.clear()

    def publish(self, payload: bytes, qos: int = 1, topic: str = "ab") -> Future[None]:
        outcome: Future[None] = Future()
        self.session.publish(topic, payload, qos, False, outcome)
        return outcome


def test_a_connection_is_tried_with_growing_pauses_and_begins_with_a_fresh_session() -> None:
    scene = Scene(clear_first=True, will=Will("wills/pump", b"gone", 1, True))
    scene.session.connect()
    scene.pass_time(1.2)
    tries = scene.take(Connect)
    # At 0, 0.25 and 0.25 + 0.425 s.
    assert [each.clean_session for each in tries] == [True] * 3
    scene.get(WillTopicReq(), WillMsgReq())
    assert scene.take() == [WillTopic("wills/pump", 1, True), WillMsg(b"gone")]
    scene.get(ConnAck(ReturnCode.REJECTED_CONGESTION))
    assert scene.session.refusal is ReturnCode.REJECTED_CONGESTION
    scene.pass_time(3.0)
    assert scene.take(Connect)[0].clean_session
    scene.get(ConnAck(ACCEPTED))
    # Answers to the other attempts may still come; they are not for the next CONNECT.
    scene.get(ConnAck(ACCEPTED))
    assert scene.session.state is State.CONNECTING
    scene.pass_time(3.0)
    assert not scene.take(Connect)[0].clean_session
    scene.get(ConnAck(ACCEPTED))
    assert (scene.session.state, scene.session.counters.connected) == (State.ACTIVE, 1)
    # A CONNECT that cleared the session and arrives late may have cleared it again.
    scene.get(ConnAck(ACCEPTED))
    assert scene.session.state is State.CONNECTING


def test_a_silent_gateway_is_pinged_and_lost() -> None:
    scene = Scene()
    scene.connect()
    scene.pass_time(3.5)
    assert scene.take(PingReq) == [PingReq(None)]
    scene.get(PingResp())
    scene.pass_time(2.0)
    assert not scene.take(PingReq)
    scene.pass_time(5.0)
    assert scene.lost == [True]
    assert scene.session.problem == "the gateway does not answer"
    assert scene.take(Connect)


def test_a_request_is_sent_again_under_a_new_id_when_its_connection_is_lost() -> None:
    scene = Scene()
    scene.connect()
    granted: Future[int] = Future()
    scene.session.subscribe("floor/+", 1, granted)
    done = scene.publish(b"x", topic="floor/1")
    first, register = scene.take()
    scene.pass_time(1.1)
    [again] = scene.take(Subscribe)
    assert (again.message_id, again.dup) == (first.message_id, True)
    scene.get(Disconnect(None))
    scene.pass_time(1.0)
    scene.get(ConnAck(ACCEPTED))
    sent = scene.take()
    [second] = [each for each in sent if isinstance(each, Subscribe)]
    [registered] = [each for each in sent if isinstance(each, Register)]
    # An answer of the earlier connection names topic ids of that one.
    scene.get(SubAck(0, first.message_id, ACCEPTED, 1), RegAck(7, register.message_id, ACCEPTED))
    assert not granted.done()
    assert not scene.take(Publish)
    scene.get(SubAck(0, second.message_id, ACCEPTED, 1), RegAck(9, registered.message_id, ACCEPTED))
    assert granted.result() == 1
    [published] = scene.take(Publish)
    assert published.topic_id == 9
    scene.get(PubAck(9, published.message_id, ACCEPTED))
    assert done.done()


def test_subscriptions_are_made_again_once_however_often_the_connection_is_lost() -> None:
    scene = Scene()
    scene.connect()
    for number in range(100):
        granted: Future[int] = Future()
        scene.session.subscribe(f"floor/{number}/+", 1, granted)
        [request] = scene.take(Subscribe)
        scene.get(SubAck(0, request.message_id, ACCEPTED, 1))
    for _ in range(5):
        scene.get(Disconnect(None))
        scene.pass_time(2.5)
        scene.take()
        scene.get(ConnAck(ACCEPTED))
    found: list[str] = []
    while requests := scene.take(Subscribe):
        found += [each.topic for each in requests]
        code = ReturnCode.REJECTED_NOT_SUPPORTED
        for each in requests:
            refused = each.topic == "floor/7/+"
            scene.get(SubAck(0, each.message_id, code if refused else ACCEPTED, 1))
    assert sorted(found) == sorted(f"floor/{number}/+" for number in range(100))
    assert scene.problems == [
        "subscribing to 'floor/7/+' was refused: not allowed, or not supported by the gateway or its broker"
    ]


def test_a_check_waits_as_long_as_stored_events_come() -> None:
    scene = Scene()
    scene.connect()
    asleep: Future[bool] = Future()
    scene.session.sleep(60, asleep)
    assert scene.take() == [Disconnect(60)]
    scene.get(Disconnect(None))
    assert asleep.result()
    checked: Future[bool] = Future()
    scene.session.check(checked)
    assert scene.take() == [PingReq("pump")]
    for number in range(5):
        scene.pass_time(0.8)
        scene.get(Publish(TopicIdType.SHORT, 0x6162, b"%d" % number))
    assert not scene.take(PingReq)
    scene.get(PingResp())
    assert checked.result()
    assert [each.payload for each in scene.events] == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_acknowledged_once_and_first_sent_in_order_over_any_loss(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene()
    scene.connect()
    topics: list[str] = []
    arrived: list[bytes] = []
    unreleased: set[int] = set()
    outcomes = []

    def answers(message: Message) -> list[Message]:
        match message:
            case Connect():
                return [ConnAck(ACCEPTED)]
            case PingReq():
                return [PingResp()]
            case Register():
                if message.topic_name not in topics:
                    topics.append(message.topic_name)
                return [RegAck(1 + topics.index(message.topic_name), message.message_id, ACCEPTED)]
            case Publish() if message.qos == 1:
                arrived.append(message.payload)
                return [PubAck(message.topic_id, message.message_id, ACCEPTED)]
            case Publish():
                if message.message_id not in unreleased:
                    unreleased.add(message.message_id)
                    arrived.append(message.payload)
                return [PubRec(message.message_id)]
            case PubRel():
                unreleased.discard(message.message_id)
                return [PubComp(message.message_id)]
        return []

    for number in range(60):
        payload = b"%d" % number
        outcomes.append(scene.publish(payload, 1 + number % 2, f"floor/{number % 3}"))
        for message in [*scene.take(), *([Disconnect(None)] if chance.random() < 0.03 else [])]:
            replies = [message] if isinstance(message, Disconnect) else answers(message)
            if chance.random() < 0.7:
                scene.get(*replies)
        scene.pass_time(chance.uniform(0, 0.5))
    for _ in range(200):
        for message in scene.take():
            scene.get(*answers(message))
        scene.pass_time(0.5)
    assert all(each.done() and each.exception() is None for each in outcomes)
    assert (scene.session.unacknowledged, scene.room) == (0, 60)
    once = [int(each) for each in arrived if int(each) % 2]
    assert once == sorted(set(once))
    assert {int(each) for each in arrived} == set(range(60))


def test_the_end_of_a_session_ends_every_call() -> None:
    scene = Scene()
    scene.connect()
    calls: list[Future[Any]] = [Future() for _ in range(4)]
    scene.session.subscribe("floor/+", 1, calls[0])
    scene.session.unsubscribe("floor/2", calls[1])
    scene.session.register("floor/1", calls[2])
    scene.session.check(calls[3])
    calls += [scene.publish(b"x", qos, topic) for qos in (1, 2) for topic in ("ab", "floor/3")]
    scene.session.close(ClosedError("closed"))
    assert calls.pop(3).result() is False
    assert {type(each.exception()) for each in calls} == {ClosedError}
    assert scene.session.advance() == float("inf")
    with pytest.raises(ClosedError):
        scene.publish(b"y")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retry_seconds", 0),
        ("retry_seconds", None),
        ("answer_timeout_seconds", -1),
        ("in_flight_messages", 0),
    ],
)
def test_settings_are_checked_and_only_an_answer_may_be_waited_for_for_ever(name: str, value: Any) -> None:
    assert ConnectionSettings(answer_timeout_seconds=None).answer_timeout_seconds is None
    with pytest.raises(ParameterError, match=name):
        ConnectionSettings(**{name: value})
