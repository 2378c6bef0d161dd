"""A broker that ends the connection over a packet, in virtual time: the packet is set aside and the rest flows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.exchange.memory_broker import MemoryBroker
from tests.exchange.virtual import Client, VirtualGateway

from triagemq.exchange.gateway import Policy
from triagemq.mqttsn import (
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    WillMsg,
    WillTopic,
)

REJECTED = ReturnCode.REJECTED_NOT_SUPPORTED
# Reconnections that finding one of a hundred packets may take.
MOST_LOSSES = 12


def poisoned(*topics: str) -> MemoryBroker:
    broker = MemoryBroker()
    broker.poison = set(topics)
    return broker


def publish(client: Client, topic_id: int, number: int, qos: int) -> None:
    message_id = number if qos else 0
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"%d" % number, qos=qos, message_id=message_id))
    if qos == 2:
        client.send(PubRel(message_id))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("waiting", [0, 1, 100])
def test_a_poisonous_message_is_set_aside_and_all_others_arrive_once(qos: int, waiting: int) -> None:
    gateway = VirtualGateway(poisoned("poison"), broker_loss="keep")
    good, bad, subscriber = gateway.clients(3)
    good.connect("good")
    bad.connect("bad")
    subscriber.connect("subscriber")
    subscriber.subscribe("good", qos)
    topic_id, poison_id = good.register("good"), bad.register("poison")
    gateway.lose_broker()
    # All of them wait for the broker, with the poison in between.
    for number in range(1, waiting // 2 + 1):
        publish(good, topic_id, number, qos)
    publish(bad, poison_id, 1000, qos)
    for number in range(waiting // 2 + 1, waiting + 1):
        publish(good, topic_id, number, qos)
    gateway.return_broker()
    assert gateway.broker.losses <= MOST_LOSSES
    assert gateway.core.counters.quarantined == 1
    (record,) = gateway.core.quarantine.records
    assert (record.sender, record.topic, record.qos, record.payload) == ("bad", "poison", qos, b"1000")
    assert "'bad'" in str(record)
    assert "'poison'" in str(record)
    if qos == 1:
        assert bad.take(PubAck) == [PubAck(poison_id, 1000, REJECTED)]
        assert {answer.return_code for answer in good.take(PubAck)} <= {ReturnCode.ACCEPTED}
    else:
        assert bad.take(PubComp) == [PubComp(1000)]
        assert not gateway.core.sessions["bad"].arrivals
    expected = [b"%d" % number for number in range(1, waiting + 1)]
    arrived = subscriber.payloads()
    if qos == 1:
        # Acknowledgements went with the connection: what was sent again came twice, and in order.
        arrived = list(dict.fromkeys(arrived))
    assert arrived == expected
    # The same again costs no connection; other topics of the same client are as good as ever.
    losses = gateway.broker.losses
    publish(bad, poison_id, 1001, qos)
    publish(bad, bad.register("good"), 1002, qos)
    assert gateway.broker.losses == losses
    assert subscriber.payloads() == [b"1002"]
    assert gateway.core.counters.refused["publish: quarantined"] == 1


@pytest.mark.parametrize("answered", [False, True])
def test_a_sender_of_poison_at_qos_0_is_found_when_it_goes_on(answered: bool) -> None:
    gateway = VirtualGateway(poisoned("poison"))
    gateway.broker.answers_poison = answered
    good, bad, subscriber = gateway.clients(3)
    good.connect("good")
    bad.connect("bad")
    subscriber.connect("subscriber")
    subscriber.subscribe("good", 1)
    topic_id, poison_id = good.register("good"), bad.register("poison")
    for number in range(1, 200):
        publish(good, topic_id, number, 1)
        publish(bad, poison_id, number, 0)
    assert gateway.broker.losses <= 5
    assert gateway.core.counters.quarantined == 1
    assert gateway.core.quarantine.records[0].sender == "bad"
    assert subscriber.payloads() == [b"%d" % number for number in range(1, 200)]
    answers = bad.take(PubAck)
    assert answers[-1] == PubAck(poison_id, 0, REJECTED)


def test_a_broker_that_answers_before_it_ends_the_connection_is_seen_through() -> None:
    gateway = VirtualGateway(poisoned("poison"))
    gateway.broker.answers_poison = True
    bad = gateway.client().connect("bad")
    poison_id = bad.register("poison")
    for number in range(1, 20):
        publish(bad, poison_id, number, 1)
    assert gateway.broker.losses <= 5
    assert bad.take(PubAck)[-1] == PubAck(poison_id, 19, REJECTED)


def test_a_poisonous_filter_is_refused_and_other_subscriptions_stay() -> None:
    gateway = VirtualGateway(poisoned("poison/#"))
    good, bad = gateway.clients(2)
    good.connect("good")
    good.subscribe("a", 1)
    bad.connect("bad")
    bad.subscribe("a", 1)
    bad.send(Subscribe(TopicIdType.NORMAL, "poison/#", 77, 1))
    assert bad.take(SubAck) == [SubAck(0, 77, REJECTED)]
    assert gateway.broker.losses <= 4
    assert gateway.core.counters.quarantined == 1
    gateway.publish("a", b"x", 1)
    assert good.payloads() == bad.payloads() == [b"x"]
    losses = gateway.broker.losses
    assert good.subscribe("poison/#").return_code is REJECTED
    assert gateway.broker.losses == losses
    assert list(gateway.core.link.filters) == ["a"]


def test_poison_from_the_store_is_set_aside_after_a_restart(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path / "store", broker_loss="keep")
    good, bad, other = gateway.clients(3)
    good.connect("good")
    good.subscribe("good", 2)
    good.subscribe("filter", 1)
    bad.connect("bad")
    topic_id, poison_id = bad.register("good"), bad.register("poison")
    gateway.lose_broker()
    publish(bad, poison_id, 1, 2)
    publish(bad, topic_id, 2, 2)
    assert bad.take(PubRec)
    assert not bad.take(PubComp)
    gateway.broker.poison = {"poison", "filter"}
    gateway.kill()
    gateway.return_broker()
    assert good.payloads() == [b"2"]
    assert {message.message_id for message in bad.take(PubComp)} == {1, 2}
    assert {record.topic for record in gateway.core.quarantine.records} == {"poison", "filter"}
    assert not gateway.core.sessions["bad"].arrivals
    losses = gateway.broker.losses
    gateway.kill()
    assert gateway.broker.losses == losses
    assert list(gateway.core.sessions["good"].subscriptions) == ["good"]
    other.connect("other")
    publish(other, other.register("good"), 3, 2)
    assert good.payloads() == [b"3"]


def test_a_client_of_many_poisonous_messages_is_set_aside_as_a_whole() -> None:
    topics = [f"poison/{number}" for number in range(50)]
    gateway = VirtualGateway(poisoned(*topics), broker_loss="keep")
    bad, subscriber = gateway.clients(2)
    bad.connect("bad")
    subscriber.connect("subscriber")
    subscriber.subscribe("good", 1)
    topic_ids = [bad.register(topic) for topic in topics]
    gateway.lose_broker()
    for number, topic_id in enumerate(topic_ids, 1):
        publish(bad, topic_id, number, 1)
    gateway.return_broker()
    assert gateway.broker.losses <= 20
    assert gateway.core.counters.quarantined == 50
    assert {answer.return_code for answer in bad.take(PubAck)} == {REJECTED}
    good_id = bad.register("good")
    publish(bad, good_id, 100, 1)
    assert bad.take(PubAck) == [PubAck(good_id, 100, REJECTED)]
    gateway.wait(601)
    publish(bad, good_id, 101, 1)
    assert subscriber.payloads() == [b"101"]


def test_a_poisonous_will_is_set_aside() -> None:
    gateway = VirtualGateway(poisoned("poison"))
    bad = gateway.client()
    bad.send(Connect("bad", 1, will=True))
    bad.send(WillTopic("poison", qos=1))
    bad.send(WillMsg(b"gone"))
    gateway.wait(5)
    assert gateway.core.counters.quarantined == 1
    assert gateway.core.quarantine.records[0].sender == "bad"
    assert gateway.core.link.available
    assert not gateway.core.link.lanes[0].backlog


def test_what_is_said_of_a_sender_holds_no_key() -> None:
    gateway = VirtualGateway(poisoned("poison"))
    bad = gateway.client().connect("pump.Zm9vYmFyYmF6cXV4Y29ycg~1")
    publish(bad, bad.register("poison"), 1, 1)
    (record,) = gateway.core.quarantine.records
    assert record.sender == "pump.***~1"
    assert "Zm9v" not in str(record)


def test_messages_of_a_sender_that_is_no_longer_allowed_go_with_its_session(tmp_path: Path) -> None:
    revoked: set[str] = set()

    class Revoking(Policy):
        def forbids_connection(self, client_id: str) -> bool:
            return client_id in revoked

    gateway = VirtualGateway(store=tmp_path / "store", broker_loss="keep", policy=Revoking())
    good, bad = gateway.clients(2)
    good.connect("good")
    bad.connect("bad")
    good_id, bad_id = good.register("a"), bad.register("b")
    gateway.lose_broker()
    for number in (1, 2):
        publish(good, good_id, number, number)
        publish(bad, bad_id, number, number)
    revoked.add("bad")
    gateway.core.policy_changed()
    gateway.run()
    gateway.return_broker()
    assert {topic for topic, *_ in gateway.broker.published} == {"a"}
    gateway.kill()
    assert {topic for topic, *_ in gateway.broker.published} == {"a"}


def test_losses_of_the_broker_alone_set_nothing_aside() -> None:
    gateway = VirtualGateway(broker_loss="keep")
    client = gateway.client().connect()
    client.subscribe("a", 1)
    topic_id = client.register("b")
    gateway.broker.holds_acknowledgements = True
    for number in range(1, 30):
        publish(client, topic_id, number, 1)
        gateway.lose_broker()
        gateway.return_broker()
    gateway.broker.holds_acknowledgements = False
    gateway.lose_broker()
    gateway.return_broker()
    assert gateway.core.counters.quarantined == 0
    assert len(client.take(PubAck)) == 29
