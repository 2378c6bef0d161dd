"""Messages in virtual time: topics of every kind, every QoS both ways, retained, overlapping, refused, repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.gateway.memory_broker import MemoryBroker
from tests.gateway.virtual import VirtualGateway

from triagemq.gateway.core.sessions import Group
from triagemq.mqttsn import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    Subscribe,
    TopicIdType,
    UnsubAck,
    Unsubscribe,
    short_topic_id,
)
from triagemq.trace import Outcome

VERSIONS = pytest.mark.parametrize("versions", [(5,), (4,)], ids=["mqtt5", "mqtt3.1.1"])


def test_one_datagram_serves_all_subscribers_of_a_topic() -> None:
    gateway = VirtualGateway()
    clients = list(gateway.clients(10))
    ids = set()
    for number, client in enumerate(clients):
        ids.add(client.connect(f"c{number}").subscribe("a").topic_id)
    assert len(ids) == 1
    gateway.publish("a", b"x")
    assert all(client.payloads() == [b"x"] for client in clients)
    (route,) = gateway.core.routes.values()
    (group,) = route.recipients
    assert isinstance(group, Group)
    assert len(group.members) == 10


def test_payloads_up_to_the_largest_datagram_arrive_and_larger_ones_are_counted() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    client.subscribe("a")
    for size in (0, 248, 249, 65_000):
        gateway.publish("a", b"x" * size)
    assert [len(payload) for payload in client.payloads()] == [0, 248, 249, 65_000]
    gateway.publish("a", b"x" * 70_000)
    assert client.payloads() == []
    assert [outcome for _, _, outcome in gateway.outcomes] == [Outcome.limited]


def test_wildcards_register_the_topic_before_the_first_message_and_keep_the_order() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    client.answers = False
    assert client.subscribe("floor/+").topic_id == 0
    for number in range(3):
        gateway.publish("floor/1", b"%d" % number)
    (register,) = client.take(Register)
    assert register.topic_name == "floor/1"
    assert client.payloads() == []
    client.answers = True
    client.send(RegAck(register.topic_id, register.message_id, ReturnCode.ACCEPTED))
    gateway.publish("floor/1", b"3")
    assert client.payloads() == [b"0", b"1", b"2", b"3"]
    assert client.take(Register) == []


def test_register_is_repeated_and_a_client_that_never_answers_is_lost() -> None:
    gateway = VirtualGateway(retry_seconds=1, retries=2)
    client = gateway.client().connect()
    client.subscribe("#")
    client.answers = False
    gateway.publish("a", b"x")
    gateway.wait(10)
    # At once, half a second later, and after each Tretry.
    assert len(client.take(Register)) == 4
    assert gateway.core.counters.clients_lost == 1
    assert gateway.outcomes == [("c", b"x", Outcome.subscriber_gone)]


def test_topic_refused_by_the_client_is_counted() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    client.subscribe("#")
    client.answers = False
    gateway.publish("a", b"x")
    (register,) = client.take(Register)
    client.send(RegAck(register.topic_id, register.message_id, ReturnCode.REJECTED_NOT_SUPPORTED))
    assert gateway.outcomes == [("c", b"x", Outcome.limited)]


def test_predefined_and_short_topics_need_no_registration() -> None:
    gateway = VirtualGateway(predefined_topics={7: "floor/smoke"})
    client = gateway.client().connect()
    assert client.subscribe(7).return_code is ReturnCode.ACCEPTED
    assert client.subscribe(8).return_code is ReturnCode.REJECTED_INVALID_TOPIC_ID
    client.subscribe_as(TopicIdType.SHORT, "ab")
    gateway.publish("floor/smoke", b"1")
    gateway.publish("ab", b"2")
    assert client.take(Publish) == [
        Publish(TopicIdType.PREDEFINED, 7, b"1"),
        Publish(TopicIdType.SHORT, short_topic_id("ab"), b"2"),
    ]
    assert client.take(Register) == []
    client.send(Publish(TopicIdType.PREDEFINED, 7, b"3"))
    client.send(Publish(TopicIdType.SHORT, short_topic_id("ab"), b"4"))
    assert [(topic, payload) for topic, payload, _, _ in gateway.broker.published] == [
        ("floor/smoke", b"3"),
        ("ab", b"4"),
    ]


def test_qos_minus_1_needs_no_connection() -> None:
    gateway = VirtualGateway(predefined_topics={7: "floor/smoke"})
    stranger = gateway.client()
    stranger.send(Publish(TopicIdType.PREDEFINED, 7, b"x", qos=-1))
    stranger.send(Publish(TopicIdType.SHORT, short_topic_id("ab"), b"y", qos=-1, retain=True))
    stranger.send(Publish(TopicIdType.PREDEFINED, 8, b"z", qos=-1))
    assert gateway.broker.published == [("floor/smoke", b"x", 0, False), ("ab", b"y", 0, True)]
    assert stranger.received == []
    assert gateway.core.counters.refused == {"publish: unknown topic id": 1}


def test_qos_1_is_acknowledged_only_after_the_broker_has_it() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    topic_id = client.register("a")
    gateway.broker.holds_acknowledgements = True
    message = Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=3)
    client.send(message)
    assert client.received == []
    gateway.broker.holds_acknowledgements = False
    for session in gateway.broker.crash():
        session.owner.mqtt_lost(session)
    gateway.run()
    assert client.received == [PubAck(topic_id, 3, ReturnCode.ACCEPTED)]
    count = len(gateway.broker.published)
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=3, dup=True))
    assert client.received == [PubAck(topic_id, 3, ReturnCode.ACCEPTED)] * 2
    assert len(gateway.broker.published) == count


@pytest.mark.parametrize("qos", [1, 2])
def test_an_equal_message_under_the_same_id_is_new_when_it_comes_after_the_time_of_a_retry(qos: int) -> None:
    """Many clients have one message id for everything; what is lost of the second message is its first copy."""
    gateway = VirtualGateway()
    client = gateway.client().connect()
    topic_id = client.register("a")

    def publish(*, dup: bool) -> None:
        client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=qos, message_id=1, dup=dup))
        if qos == 2:
            client.send(PubRel(1))

    publish(dup=False)
    gateway.wait(9)
    publish(dup=True)
    assert len(gateway.broker.published) == 1
    gateway.wait(11)
    publish(dup=True)
    assert gateway.broker.published == [("a", b"x", qos, False)] * 2
    assert len(client.take(PubAck)) == (3 if qos == 1 else 0)


def test_qos_1_is_not_acknowledged_from_memory_when_its_client_connects_again() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    topic_id = client.register("a")
    gateway.lose_broker()
    message = Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=1)
    client.send(message)
    client.send(Disconnect())
    client.connect()
    client.send(replace(message, dup=True))
    assert client.take(PubAck) == []
    gateway.return_broker()
    assert gateway.broker.published == [("a", b"x", 1, False)]
    assert client.take(PubAck) == [PubAck(topic_id, 1, ReturnCode.ACCEPTED)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_has_forgotten_its_messages_is_not_answered_for_another_one(qos: int) -> None:
    """It was started anew and counts from 1 again, while the broker has not taken what it published before."""
    gateway = VirtualGateway()
    client = gateway.client().connect()
    topic_id = client.register("a")

    def publish(payload: bytes) -> None:
        client.send(Publish(TopicIdType.NORMAL, topic_id, payload, qos=qos, message_id=1))
        if qos == 2:
            client.send(PubRel(1))

    gateway.lose_broker()
    publish(b"old")
    client.connect()
    client.received.clear()
    publish(b"new")
    if qos == 2:
        assert client.take(PubRec) == []
        assert client.take(PubAck) == [PubAck(topic_id, 1, ReturnCode.REJECTED_CONGESTION)]
    gateway.return_broker()
    if qos == 2:
        publish(b"new")
    assert [payload for _, payload, *_ in gateway.broker.published] == [b"old", b"new"]
    assert len(client.take(PubAck)) == (1 if qos == 1 else 0)


def test_qos_2_from_a_client_is_published_once_however_often_it_is_sent() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    topic_id = client.register("a")
    message = Publish(TopicIdType.NORMAL, topic_id, b"x", qos=2, message_id=3)
    client.send(message)
    client.send(message)
    assert gateway.broker.published == []
    client.send(PubRel(3))
    client.send(PubRel(3))
    assert client.take(PubRec) == [PubRec(3)] * 2
    assert client.take(PubComp) == [PubComp(3)] * 2
    assert gateway.broker.published == [("a", b"x", 2, False)]


def test_qos_2_to_a_client_is_repeated_step_by_step_until_it_is_finished() -> None:
    gateway = VirtualGateway(retry_seconds=1)
    client = gateway.client().connect()
    client.subscribe("a", 2)
    client.answers = False
    gateway.publish("a", b"x", 2)
    gateway.wait(1.5)
    first, second = client.take(Publish)
    assert (first.dup, second.dup) == (False, True)
    assert first.message_id == second.message_id
    client.send(PubRec(first.message_id))
    gateway.wait(1.5)
    assert client.take(Publish) == []
    assert client.take(PubRel) == [PubRel(first.message_id)] * 2
    client.send(PubComp(first.message_id))
    gateway.wait(5)
    assert client.received == []
    assert gateway.outcomes == [("c", b"x", Outcome.delivered)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_have_the_lower_qos_of_message_and_subscription(qos: int) -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    client.subscribe("a", qos)
    for published in range(3):
        gateway.publish("a", b"x", published)
    assert [message.qos for message in client.take(Publish)] == [min(qos, one) for one in range(3)]


def test_publish_to_an_unknown_topic_id_is_refused_at_every_qos() -> None:
    gateway = VirtualGateway()
    client, other = gateway.clients(2)
    client.connect("c")
    topic_id = other.connect("other").register("a")
    for qos in (0, 1, 2):
        client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=qos, message_id=qos))
    assert client.received == [
        PubAck(topic_id, message_id, ReturnCode.REJECTED_INVALID_TOPIC_ID) for message_id in range(3)
    ]


def test_client_that_has_forgotten_a_topic_id_is_told_again() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    topic_id = client.subscribe("a", 1).topic_id
    client.answers = False
    gateway.publish("a", b"x", 1)
    (message,) = client.take(Publish)
    client.answers = True
    client.send(PubAck(topic_id, message.message_id, ReturnCode.REJECTED_INVALID_TOPIC_ID))
    register, again = client.received
    assert isinstance(register, Register)
    assert isinstance(again, Publish)
    assert again.payload == b"x"


def test_who_published_is_known_where_the_broker_cannot_tell_it() -> None:
    gateway = VirtualGateway(MemoryBroker(versions=(4,)))
    subscriber, one, two = gateway.clients(3)
    subscriber.connect("subscriber").subscribe("a/#")
    # Over a second connection to the broker, since filters overlap: its copies are of the same publications.
    gateway.client(2000).connect("other").subscribe("a/b")
    gateway.wait(1)
    for number, (name, client) in enumerate({"one": one, "two": two}.items()):
        topic_id = client.connect(name).register("a/b")
        for qos in (0, 1, 2):
            message = Publish(TopicIdType.NORMAL, topic_id, b"%d" % qos, qos, message_id=qos)
            client.send(message)
            if qos == 2:
                client.send(PubRel(2))
        expected = [(name, b"0"), (name, b"1"), (name, b"2")]
        assert gateway.publishers == expected, number
        # The same messages of somebody who publishes elsewhere are nobody's.
        gateway.publishers.clear()
        gateway.publish("a/b", b"0")
        assert gateway.publishers == [("", b"0")]
        gateway.publishers.clear()


@VERSIONS
def test_retained_messages_go_to_each_new_subscriber_and_to_nobody_else(versions: tuple[int, ...]) -> None:
    gateway = VirtualGateway(MemoryBroker(versions=versions))
    gateway.publish("a", b"kept", 1, retain=True)
    one, two, three = gateway.clients(3)
    one.connect("one").subscribe("a", 1)
    assert [(message.payload, message.retain) for message in one.take(Publish)] == [(b"kept", True)]
    two.connect("two")
    two.send(Subscribe(TopicIdType.NORMAL, "a", 1, 1))
    gateway.wait(2)
    assert two.payloads() == [b"kept"]
    gateway.publish("a", b"new", 1, retain=True)
    assert one.payloads() == two.payloads() == [b"new"]
    three.connect("three")
    three.send(Subscribe(TopicIdType.NORMAL, "+", 1, 0))
    gateway.wait(2)
    assert three.payloads() == [b"new"]
    assert one.payloads() == two.payloads() == []
    gateway.publish("a", b"", retain=True)
    one.send(Subscribe(TopicIdType.NORMAL, "a", 9, 0))
    gateway.wait(2)
    assert one.payloads() == [b""]


@VERSIONS
def test_overlapping_filters_deliver_once_to_each_client_at_the_highest_qos(
    versions: tuple[int, ...],
) -> None:
    gateway = VirtualGateway(MemoryBroker(versions=versions))
    filters = ["a/b", "a/+", "+/b", "a/#", "#"]
    clients = list(gateway.clients(6))
    for number, client in enumerate(clients):
        client.connect(f"c{number}")
    for number, topic_filter in enumerate(filters):
        clients[0].subscribe(topic_filter, number % 3)
        clients[number + 1].subscribe(topic_filter)
    for number in range(20):
        gateway.publish("a/b", b"%d" % number, 2)
    expected = [b"%d" % number for number in range(20)]
    messages = clients[0].take(Publish)
    assert [message.payload for message in messages] == expected
    assert {message.qos for message in messages} == {2}
    assert [client.payloads() for client in clients[1:]] == [expected] * 5
    clients[0].send(Unsubscribe(TopicIdType.NORMAL, "+/b", 99))
    assert clients[0].take(UnsubAck) == [UnsubAck(99)]
    gateway.publish("a/b", b"after", 2)
    assert clients[0].payloads() == [b"after"]


@VERSIONS
def test_subscriptions_survive_a_broker_that_forgets_everything(versions: tuple[int, ...]) -> None:
    gateway = VirtualGateway(MemoryBroker(versions=versions))
    client = gateway.client().connect()
    for topic_filter in ("a", "+", "#"):
        client.subscribe(topic_filter, 1)
    gateway.lose_broker()
    gateway.return_broker()
    gateway.publish("a", b"x", 1)
    assert client.payloads() == [b"x"]


def test_broker_refusals_reach_the_client() -> None:
    gateway = VirtualGateway()
    gateway.broker.forbidden_filters.add("secret")
    gateway.broker.forbidden_topics.add("secret")
    client, other = gateway.clients(2)
    client.connect("c")
    assert client.subscribe("secret").return_code is ReturnCode.REJECTED_NOT_SUPPORTED
    assert "secret" not in gateway.core.link.filters
    topic_id = client.register("secret")
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=1))
    assert client.received == [PubAck(topic_id, 1, ReturnCode.REJECTED_NOT_SUPPORTED)]
    other.connect("o")
    assert other.subscribe("secret").return_code is ReturnCode.REJECTED_NOT_SUPPORTED


def test_silent_client_is_lost_after_the_retries_and_gets_its_messages_when_it_returns() -> None:
    gateway = VirtualGateway(retry_seconds=1, retries=3, in_flight_messages=2)
    client = gateway.client().connect()
    client.subscribe("a", 1)
    client.answers = False
    for number in range(5):
        gateway.publish("a", b"%d" % number, 1)
    gateway.wait(20)
    assert [message.payload for message in client.take(Publish)] == [b"0", b"1"] * 4
    assert gateway.core.counters.clients_lost == 1
    client.answers = True
    client.received.clear()
    client.connect()
    assert client.payloads() == [b"0", b"1", b"2", b"3", b"4"]


def test_qos_0_for_a_client_that_is_away_is_counted_and_not_kept() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    client.subscribe("a", 1)
    client.send(Disconnect())
    gateway.publish("a", b"x", 0)
    assert gateway.outcomes == [("c", b"x", Outcome.subscriber_gone)]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7])
def test_octets_of_the_broker_may_be_cut_anywhere(pieces: int) -> None:
    gateway = VirtualGateway(pieces=pieces)
    client = gateway.client().connect()
    client.subscribe("a", 2)
    for size in (0, 1, 120, 130, 300):
        for qos in range(3):
            gateway.publish("a", b"x" * size, qos)
    assert [len(payload) for payload in client.payloads()] == [
        size for size in (0, 1, 120, 130, 300) for _ in range(3)
    ]
