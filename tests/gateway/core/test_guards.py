"""What one client cannot do to the others, in virtual time: with topics, with other clients' ids, with numbers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.virtual import Client, VirtualGateway

from triagemq.gateway.core import Policy, broker_link
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    Unsubscribe,
    WillMsg,
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
def test_topics_that_brokers_end_connections_over_are_counted_and_go_no_further(
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
    send(lambda name: Unsubscribe(TopicIdType.NORMAL, name, 9))
    client.send(Connect("with will", 60, will=True))
    send(lambda name: WillTopic(name))
    assert client.received == [WillTopicReq()]
    assert gateway.core.counters.rejected.total() == 5
    assert not gateway.core.link.filters
    assert gateway.broker.published == []


@pytest.mark.parametrize("name", ["\x01a", "a\x7f", "\x80"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_short_names_with_control_characters_are_counted_and_go_no_further(name: str, qos: int) -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    flags = bytes((qos << 5 | TopicIdType.SHORT,))
    message_id = 5 if qos else 0
    gateway.core.datagram(client.address, b"\x08\x0c" + flags + name.encode() + bytes((0, message_id)) + b"x")
    gateway.run()
    assert client.received == []
    assert gateway.core.counters.rejected.total() == 1
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


def _accepts(gateway: VirtualGateway, client: Client, message: Connect) -> bool:
    client.received.clear()
    client.send(message)
    (answer,) = client.take(ConnAck)
    assert answer.return_code in (ReturnCode.ACCEPTED, ReturnCode.REJECTED_CONGESTION)
    return answer.return_code is ReturnCode.ACCEPTED


def test_an_address_has_no_more_clients_than_it_may_and_locks_no_other_out() -> None:
    gateway = VirtualGateway(policy=Policy(maximum_clients_per_address=50))
    accepted = sum(
        _accepts(gateway, gateway.client(number), Connect(f"client{number}", 60)) for number in range(1, 201)
    )
    assert accepted == 50
    elsewhere = gateway.client(1, host="10.0.0.2")
    assert _accepts(gateway, elsewhere, Connect("elsewhere", 60))
    # A client of another address cannot move to a full one, and stays where it is.
    assert not _accepts(gateway, gateway.client(300), Connect("elsewhere", 60))
    elsewhere.send(PingReq())
    assert elsewhere.take(PingResp)
    # One leaves for good, and there is room for one.
    gateway.client(7).send(Connect("client7", 60, clean_session=True))
    gateway.client(7).send(Disconnect())
    assert _accepts(gateway, gateway.client(301), Connect("late", 60))
    assert not _accepts(gateway, gateway.client(302), Connect("too late", 60))


def test_loopback_may_have_a_fifth_of_all_clients() -> None:
    policy = Policy(maximum_clients=1_000, maximum_clients_per_address=50)
    assert [policy.clients_per_address(host) for host in ("127.0.0.1", "::1", "10.0.0.1")] == [200, 200, 50]


@pytest.mark.parametrize("limit", ["maximum_clients", "maximum_clients_per_address"])
def test_silent_clients_without_keep_alive_make_room_for_new_ones(limit: str) -> None:
    gateway = VirtualGateway(policy=Policy(**{limit: 20}), silent_seconds=600)
    silent = [gateway.client(number) for number in range(1, 11)]
    talking = [gateway.client(number) for number in range(11, 16)]
    supervised = [gateway.client(number) for number in range(16, 21)]
    for number, client in enumerate((*silent, *talking, *supervised)):
        assert _accepts(gateway, client, Connect(f"client{number}", 60_000 if client in supervised else 0))
    silent[0].subscribe("a", 1)
    assert not _accepts(gateway, gateway.client(100), Connect("new", 60))
    gateway.wait(599)
    for client in talking:
        client.send(PingReq())
    gateway.wait(2)
    # Those who never said when they would be heard again go first; whoever is heard, or promised to be, stays.
    accepted = sum(
        _accepts(gateway, gateway.client(200 + number), Connect(f"new{number}", 60)) for number in range(30)
    )
    assert accepted == 10
    assert len(gateway.core.sessions) == 20
    for client in (*talking, *supervised):
        client.received.clear()
        client.send(PingReq())
        assert client.take(PingResp)


def test_stored_sessions_that_hold_nothing_make_room() -> None:
    gateway = VirtualGateway(policy=Policy(maximum_clients_per_address=30))
    client = gateway.client()
    client.connect("with a subscription")
    client.subscribe("a", 1)
    client.send(Disconnect())
    for number in range(500):
        assert _accepts(gateway, client, Connect(f"client{number}", 60))
        client.send(Disconnect())
    assert len(gateway.core.sessions) == 30
    assert "with a subscription" in gateway.core.sessions
    assert "client499" in gateway.core.sessions


@pytest.mark.parametrize("known", [False, True])
def test_unfinished_handshakes_are_few_and_lock_nobody_out(known: bool) -> None:
    gateway = VirtualGateway(handshakes=64, policy=Policy(maximum_clients=10))
    victim = gateway.client(1).connect("victim")
    for number in range(2_000):
        client_id = "victim" if known else f"client{number}"
        gateway.core.datagram(("10.0.0.9", number), encode(Connect(client_id, 60, will=True)))
        gateway.core.datagram((f"10.1.0.{number % 250}", 7), encode(Connect(client_id, 60, will=True)))
        gateway.core.take_actions()
        assert len(gateway.core.handshakes) <= 64
    assert len(gateway.core.sessions) == 1
    # A client that does finish comes in, with its will.
    client = gateway.client(5, host="10.0.0.3")
    client.send(Connect("good", 60, will=True))
    client.send(WillTopic("w"))
    client.send(WillMsg(b"x"))
    assert client.take(ConnAck) == [ConnAck(ReturnCode.ACCEPTED)]
    victim.send(PingReq())
    assert victim.take(PingResp)


def test_the_oldest_handshake_of_an_address_goes_for_a_new_one() -> None:
    gateway = VirtualGateway(handshakes=64)
    first, second = gateway.clients(2)
    first.send(Connect("first", 60, will=True))
    for number in range(4):
        gateway.core.datagram(("10.0.0.1", 5000 + number), encode(Connect(f"c{number}", 60, will=True)))
    second.send(WillTopic("w"))
    first.send(WillTopic("w"))
    assert first.take(Disconnect) == [Disconnect()]


def test_messages_that_a_client_never_releases_are_bounded() -> None:
    gateway = VirtualGateway(arrival_messages=10, arrival_bytes=5_000)
    client, other = gateway.clients(2)
    client.connect("client")
    other.connect("other")
    for number in range(1, 50):
        client.send(Publish(TopicIdType.SHORT, 0x6162, b"x", qos=2, message_id=number))
        other.send(Publish(TopicIdType.SHORT, 0x6162, bytes(1_000), qos=2, message_id=number))
    assert len(client.take(PubRec)) == 10
    assert len(other.take(PubRec)) == 4
    assert {answer.return_code for answer in client.take(PubAck)} == {ReturnCode.REJECTED_CONGESTION}
    client.send(Connect("client", 60, clean_session=True))
    other.send(Connect("other", 60, clean_session=True))
    assert gateway.core.inbound_bytes == 0


def test_more_filters_than_packets_have_numbers_are_subscribed_to_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_link, "_MOST_REQUESTS", 10)
    gateway = VirtualGateway()
    client = gateway.client().connect()
    for number in range(100):
        client.subscribe(f"{number}/#", 1)
    gateway.lose_broker()
    client.send(Unsubscribe(TopicIdType.NORMAL, "7/#", 1))
    gateway.return_broker()
    subscribed = gateway.broker.subscribers["triage-gateway"].filters
    assert set(subscribed) == {f"{number}/#" for number in range(100) if number != 7}
    gateway.publish("99/x", b"x", 1)
    assert client.payloads() == [b"x"]


def test_a_client_waits_for_no_more_subscriptions_than_the_broker_can_answer() -> None:
    gateway = VirtualGateway(broker_backlog=50)
    client = gateway.client().connect()
    gateway.lose_broker()
    for number in range(1, 101):
        client.send(Subscribe(TopicIdType.NORMAL, f"{number}/#", number, 1))
    assert len(client.take(SubAck)) == 50
    assert len(gateway.core.link.filters) == 50
    # It leaves, and nobody waits any more.
    client.send(Disconnect())
    assert not gateway.core.link.filters
    assert not gateway.core.link.is_busy
    gateway.return_broker()
    assert gateway.broker.subscribers["triage-gateway"].filters == {}
