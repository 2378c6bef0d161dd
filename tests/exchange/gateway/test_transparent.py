"""Transparent mode in virtual time: a broker connection for every client."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.exchange.memory_broker import MemoryBroker
from tests.exchange.virtual import VirtualGateway

from triagemq.exchange.gateway import Credentials, Mode
from triagemq.mqttsn import ConnAck, Connect, Disconnect, Publish, ReturnCode, TopicIdType, short_topic_id

VERSIONS = pytest.mark.parametrize("versions", [(5,), (4,)], ids=["mqtt5", "mqtt3.1.1"])


@VERSIONS
def test_each_client_has_its_own_connection_and_overlapping_filters_deliver_once(
    versions: tuple[int, ...],
) -> None:
    gateway = VirtualGateway(MemoryBroker(versions=versions), mode=Mode.TRANSPARENT)
    one, two = gateway.clients(2)
    one.connect("one").subscribe("a/+", 1)
    one.subscribe("a/b", 2)
    two.connect("two").subscribe("#", 1)
    assert {"one", "two", "triage-gateway"} <= gateway.broker.subscribers.keys()
    gateway.publish("a/b", b"x", 2)
    assert one.payloads() == two.payloads() == [b"x"]


def test_credentials_are_the_clients_own_and_a_refusal_reaches_it() -> None:
    broker = MemoryBroker()
    broker.passwords = {"alice": "a", "gateway": "g"}
    gateway = VirtualGateway(
        broker,
        mode=Mode.TRANSPARENT,
        user="gateway",
        password="g",
        credentials={"one": Credentials("alice", "a"), "two": Credentials("alice", "wrong")},
    )
    one, two = gateway.clients(2)
    one.connect("one")
    two.send(Connect("two", 10))
    assert two.take(ConnAck) == [ConnAck(ReturnCode.REJECTED_NOT_SUPPORTED)]
    two.send(Publish(TopicIdType.SHORT, short_topic_id("ab"), b"x", qos=-1))
    assert gateway.broker.published == [("ab", b"x", 0, False)]


def test_client_is_refused_with_congestion_when_the_broker_does_not_answer() -> None:
    gateway = VirtualGateway(mode=Mode.TRANSPARENT, connect_timeout_seconds=3)
    gateway.lose_broker()
    client = gateway.client()
    client.send(Connect("c", 10))
    gateway.wait(4)
    assert client.received == [ConnAck(ReturnCode.REJECTED_CONGESTION)]


def test_broker_keeps_messages_for_a_client_that_is_away() -> None:
    gateway = VirtualGateway(mode=Mode.TRANSPARENT)
    client = gateway.client().connect()
    client.subscribe("a", 1)
    client.send(Disconnect())
    gateway.publish("a", b"x", 1)
    client.received.clear()
    client.connect()
    assert client.payloads() == [b"x"]


def test_clean_client_leaves_nothing_behind() -> None:
    gateway = VirtualGateway(mode=Mode.TRANSPARENT)
    client = gateway.client()
    for _ in range(10):
        client.connect(clean=True)
        client.subscribe("a")
        client.send(Disconnect())
        client.received.clear()
    assert not gateway.core.links
    assert not gateway.core.sessions
    assert len(gateway._wanted) == 1


def test_sessions_and_their_connections_survive_a_restart(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path, mode=Mode.TRANSPARENT)
    client = gateway.client().connect()
    client.subscribe("a/+", 1)
    gateway.kill()
    gateway.publish("a/b", b"x", 1)
    assert client.payloads() == [b"x"]
    client.send(Disconnect())
    gateway.kill()
    gateway.publish("a/b", b"y", 1)
    client.received.clear()
    client.connect()
    assert client.payloads() == [b"y"]
