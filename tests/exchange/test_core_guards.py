"""What one client cannot do to the others, in virtual time: with topics, with other clients' ids, with numbers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exchange.virtual import VirtualGateway

from triagemq.mqttsn import (
    ConnAck,
    Connect,
    PubAck,
    Publish,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    UnsubAck,
    Unsubscribe,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
    encode,
)

REJECTED = ReturnCode.REJECTED_NOT_SUPPORTED
UNFIT = ["a\0", "a\x01", "a\x1f", "a\x7f", "a\x9f", "a\ufdd0", "a\ufffe", "a\uffff", "\U0010ffff", "/" * 200]


def _octets(message: Any, topic: str) -> bytes:
    """A message with a topic that the codec does not encode, in place of one of as many octets."""
    stand_in = "t" * len(topic.encode())
    datagram = encode(message(stand_in))
    assert datagram.endswith(stand_in.encode())
    return datagram[: -len(stand_in)] + topic.encode()


@pytest.mark.parametrize("topic", UNFIT)
@pytest.mark.parametrize("node", [None, b"node"])
def test_topics_that_brokers_end_connections_over_are_refused_with_a_return_code(
    topic: str, node: bytes | None
) -> None:
    gateway = VirtualGateway()
    client = gateway.client(node=node).connect()

    def send(message: Any) -> None:
        octets = _octets(message, topic)
        if node is not None:
            octets = bytes((3 + len(node), 0xFE, 0)) + node + octets
        gateway.core.datagram(client.address, octets)
        gateway.run()

    send(lambda name: Register(0, 7, name))
    send(lambda name: Subscribe(TopicIdType.NORMAL, name, 8, 1))
    send(lambda name: WillTopicUpd(name))
    assert client.received == [RegAck(0, 7, REJECTED), SubAck(0, 8, REJECTED), WillTopicResp(REJECTED)]
    client.received.clear()
    send(lambda name: Unsubscribe(TopicIdType.NORMAL, name, 9))
    assert client.received == [UnsubAck(9)]
    client.received.clear()
    client.send(Connect("with will", 60, will=True))
    send(lambda name: WillTopic(name))
    assert client.received == [WillTopicReq(), ConnAck(REJECTED)]
    assert not gateway.core.handshakes
    assert not gateway.core.link.filters
    assert gateway.broker.published == []


@pytest.mark.parametrize("name", ["\x01a", "a\x7f", "\x80"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_short_names_with_control_characters_are_refused_with_a_return_code(name: str, qos: int) -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    octets = name.encode()
    message_id = 5 if qos else 0
    flags = bytes((qos << 5 | TopicIdType.SHORT,))
    gateway.core.datagram(client.address, b"\x08\x0c" + flags + octets + bytes((0, message_id)) + b"x")
    gateway.run()
    assert client.received == [PubAck(int.from_bytes(octets), message_id, REJECTED)]
    assert gateway.broker.published == []


def test_topics_of_the_broker_can_be_read_but_not_published_to() -> None:
    gateway = VirtualGateway(predefined_topics={4: "$SYS/broker/uptime"})
    client, willing = gateway.clients(2)
    client.connect()
    topic_id = client.subscribe("$SYS/load", 1).topic_id
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=1))
    client.send(Publish(TopicIdType.PREDEFINED, 4, b"x"))
    client.send(Publish(TopicIdType.PREDEFINED, 4, b"x", qos=-1))
    client.send(WillTopicUpd("$share/pumps/a"))
    assert client.received == [PubAck(topic_id, 1, REJECTED), PubAck(4, 0, REJECTED), WillTopicResp(REJECTED)]
    client.received.clear()
    willing.send(Connect("willing", 60, will=True))
    willing.send(WillTopic("$SYS/will"))
    assert willing.received == [WillTopicReq(), ConnAck(REJECTED)]
    assert willing.take(WillMsgReq) == []
    gateway.publish("$SYS/load", b"7", 1)
    assert client.payloads() == [b"7"]
    assert gateway.broker.published == []


def test_shared_subscriptions_are_refused() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    assert client.subscribe("$share/pumps/a").return_code is REJECTED
    assert not gateway.core.link.filters
