"""Brokers that do not take everything, refuse filters, or crash again and again, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gateway.memory_broker import MemoryBroker
from tests.gateway.virtual import Client, VirtualGateway

from triagemq.gateway.core import Policy
from triagemq.gateway.core.lifecycle import policy_changed
from triagemq.gateway.core.state import LogLine
from triagemq.mqtt.packets import (
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RETAIN_AVAILABLE,
    WILDCARD_SUBSCRIPTION_AVAILABLE,
)
from triagemq.mqttsn import (
    Connect,
    Disconnect,
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


def limited(limits: dict[int, int]) -> MemoryBroker:
    broker = MemoryBroker()
    broker.limits = limits
    return broker


def publish(client: Client, topic_id: int, number: int, qos: int, *, retain: bool = False) -> None:
    message_id = number if qos else 0
    client.send(
        Publish(TopicIdType.NORMAL, topic_id, b"%d" % number, qos=qos, message_id=message_id, retain=retain)
    )
    if qos == 2:
        client.send(PubRel(message_id))


def test_qos_2_goes_to_a_broker_of_qos_1_as_that_and_is_complete_when_the_broker_has_it() -> None:
    gateway = VirtualGateway(limited({MAXIMUM_QOS: 1}))
    client, subscriber = gateway.clients(2)
    client.connect("sensor")
    subscriber.connect("subscriber").subscribe("a", 2)
    topic_id = client.register("a")
    gateway.broker.holds_acknowledgements = True
    publish(client, topic_id, 1, 2)
    assert client.take(PubRec) == [PubRec(1)]
    assert client.take(PubComp) == []
    gateway.broker.holds_acknowledgements = False
    gateway.lose_broker()
    gateway.return_broker()
    assert client.take(PubComp) == [PubComp(1)]
    for number in range(2, 60):
        publish(client, topic_id, number, 2)
    assert len(client.take(PubComp)) == 58
    assert set(subscriber.payloads()) == {b"%d" % number for number in range(1, 60)}
    assert gateway.broker.losses == 0


def test_a_broker_of_qos_0_acknowledges_nothing_and_so_neither_does_the_gateway() -> None:
    gateway = VirtualGateway(limited({MAXIMUM_QOS: 0}))
    client, subscriber, leaver = gateway.clients(3)
    client.connect("sensor")
    subscriber.connect("subscriber").subscribe("a", 0)
    topic_id = client.register("a")
    for qos in (0, 1, 2):
        publish(client, topic_id, 1 + qos, qos)
    assert client.take(PubAck) == [PubAck(topic_id, 2, REJECTED), PubAck(topic_id, 3, REJECTED)]
    # Nobody waits for the answer to a will.
    leaver.send(Connect("leaver", 1, will=True))
    leaver.send(WillTopic("a", qos=1))
    leaver.send(WillMsg(b"gone"))
    gateway.wait(5)
    assert subscriber.payloads() == [b"1", b"gone"]
    assert gateway.broker.losses == 0
    assert not gateway.core.link.lanes[0].backlog


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_broker_that_retains_nothing_gets_the_message_all_the_same(qos: int) -> None:
    gateway = VirtualGateway(limited({RETAIN_AVAILABLE: 0}))
    client = gateway.client().connect()
    client.subscribe("a", 1)
    publish(client, client.register("a"), 7, qos, retain=True)
    assert client.payloads() == [b"7"]
    assert (gateway.broker.losses, gateway.broker.retained) == (0, {})


def test_filters_that_the_broker_does_not_take_are_refused_without_asking_it() -> None:
    gateway = VirtualGateway(limited({WILDCARD_SUBSCRIPTION_AVAILABLE: 0, MAXIMUM_PACKET_SIZE: 100}))
    client = gateway.client().connect()
    assert client.subscribe("a/#").return_code is REJECTED
    assert client.subscribe("a/" + "b" * 100).return_code is REJECTED
    assert client.subscribe("a/b", 1).return_code is ReturnCode.ACCEPTED
    assert gateway.core.counters.refused["subscribe: broker"] == 2
    topic_id = client.register("a/b")
    client.send(Publish(TopicIdType.NORMAL, topic_id, bytes(100), qos=1, message_id=9))
    assert client.take(PubAck)[-1] == PubAck(topic_id, 9, REJECTED)
    publish(client, topic_id, 10, 1)
    assert client.payloads() == [b"10"]
    assert list(gateway.core.link.filters) == ["a/b"]
    assert gateway.broker.losses == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("limit", [False, True])
def test_a_filter_that_the_broker_refuses_after_a_restart_is_no_secret(version: int, limit: bool) -> None:
    if limit and version == 4:
        version = 5
    gateway = VirtualGateway(MemoryBroker(versions=(version,)))
    told, other = gateway.clients(2)
    told.connect("told").subscribe("a/#", 1)
    told.subscribe("b", 1)
    other.connect("other").subscribe("b", 1)
    gateway.lose_broker()
    if limit:
        gateway.broker.limits = {WILDCARD_SUBSCRIPTION_AVAILABLE: 0}
    else:
        gateway.broker.forbidden_filters.add("a/#")
    lines: list[str] = []
    act = gateway.core.act
    gateway.core.act = lambda action: (  # type: ignore[method-assign]
        lines.append(action.text) if isinstance(action, LogLine) else None,
        act(action),
    )[1]
    gateway.return_broker()
    assert [line for line in lines if "'a/#'" in line]
    assert gateway.core.counters.refused["subscribe: broker"] == 1
    # The client is sent away, and hears it when it subscribes again; nobody else notices.
    assert told.take(Disconnect) == [Disconnect()]
    assert other.take(Disconnect) == []
    told.connect("told")
    told.send(Subscribe(TopicIdType.NORMAL, "a/#", 77, 1))
    assert told.take(SubAck) == [SubAck(0, 77, REJECTED)]
    gateway.publish("b", b"x", 1)
    assert told.payloads() == other.payloads() == [b"x"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_broker_that_crashes_again_and_again_costs_nobody_a_filter_or_a_message(version: int) -> None:
    gateway = VirtualGateway(MemoryBroker(versions=(version,)))
    sender, subscriber, late = gateway.clients(3)
    sender.connect("sender")
    subscriber.connect("subscriber").subscribe("inn/#", 1)
    late.connect("late")
    topic_id = sender.register("inn/1")
    accepted = []
    for number in range(1, 60):
        gateway.broker.holds_acknowledgements = number % 2 == 1
        publish(sender, topic_id, number, 1)
        # The connection is lost right after a SUBSCRIBE, or with messages in flight.
        gateway.broker_is_up = False
        for session in gateway.broker.crash():
            session.owner.mqtt_lost(session)
        late.send(Subscribe(TopicIdType.NORMAL, "inn/+", number, 1))
        gateway.return_broker()
        accepted += [answer.message_id for answer in sender.take(PubAck)]
    gateway.broker.holds_acknowledgements = False
    gateway.lose_broker()
    gateway.return_broker()
    accepted += [answer.message_id for answer in sender.take(PubAck)]
    assert set(accepted) == set(range(1, 60))
    assert {int(payload) for payload in subscriber.payloads()} == set(range(1, 60))
    assert {answer.return_code for answer in late.take(SubAck)} == {ReturnCode.ACCEPTED}
    assert not gateway.core.counters.refused
    assert subscriber.take(Disconnect) == []


def test_messages_of_a_sender_that_is_no_longer_allowed_go_with_its_session(tmp_path: Path) -> None:
    revoked: set[str] = set()

    class Revoking(Policy):
        def forbids_connection(self, client_id: str) -> bool:
            return client_id in revoked

    gateway = VirtualGateway(store=tmp_path / "store", policy=Revoking())
    good, bad = gateway.clients(2)
    good.connect("good")
    bad.connect("bad")
    good_id, bad_id = good.register("a"), bad.register("b")
    gateway.lose_broker()
    for number in (1, 2):
        publish(good, good_id, number, number)
        publish(bad, bad_id, number, number)
    revoked.add("bad")
    policy_changed(gateway.core)
    gateway.run()
    gateway.return_broker()
    assert {topic for topic, *_ in gateway.broker.published} == {"a"}
    gateway.kill()
    assert {topic for topic, *_ in gateway.broker.published} == {"a"}
