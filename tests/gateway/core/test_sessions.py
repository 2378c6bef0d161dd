"""Sessions in virtual time: finding the gateway, CONNECT and wills, keep-alive, sleep, addresses that change."""

from __future__ import annotations

import pytest
from tests.gateway.memory_broker import MemoryBroker
from tests.gateway.virtual import VirtualGateway

from triagemq.gateway.core import Policy
from triagemq.gateway.core.lifecycle import detach_sessions_at, send_elsewhere
from triagemq.mqttsn import (
    Advertise,
    ConnAck,
    Connect,
    Disconnect,
    GwInfo,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    Register,
    ReturnCode,
    SearchGw,
    SubAck,
    Subscribe,
    TopicIdType,
    WillMsg,
    WillMsgReq,
    WillMsgResp,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
    decode,
)
from triagemq.trace import Outcome


def test_gateway_advertises_itself_and_answers_searches() -> None:
    gateway = VirtualGateway(gateway_id=9, advertise_seconds=60)
    gateway.wait(125)
    assert [decode(datagram) for datagram in gateway.broadcasts] == [Advertise(9, 60)] * 3
    client = gateway.client()
    client.send(SearchGw())
    assert client.received == [GwInfo(9)]


def test_clients_that_are_sent_elsewhere_find_no_gateway_here_for_a_while_and_no_will_is_published() -> None:
    gateway = VirtualGateway(gateway_id=9)
    client, other = gateway.clients(2)
    client.send(Connect("c", 10, will=True))
    client.send(WillTopic("alarm"))
    client.send(WillMsg(b"gone"))
    other.send(Connect("d", 10))
    client.received.clear()
    other.received.clear()
    assert send_elsewhere(gateway.core, ["c", "nobody"], 15.0) == 1
    gateway.wait(0)
    client.send(SearchGw())
    client.send(Connect("c", 10))
    assert client.received == [Disconnect(), ConnAck(ReturnCode.REJECTED_CONGESTION)]
    other.send(SearchGw())
    assert other.received == [GwInfo(9)]
    assert gateway.broker.published == []
    # Whoever knows no other gateway is served again.
    gateway.wait(15)
    client.received.clear()
    client.send(SearchGw())
    client.send(Connect("c", 10))
    assert client.received == [GwInfo(9), ConnAck(ReturnCode.ACCEPTED)]


def test_unknown_senders_are_disconnected_and_answers_do_not_ping_pong() -> None:
    gateway = VirtualGateway()
    client = gateway.client()
    client.send(PingReq())
    client.send(Publish(TopicIdType.NORMAL, 1, b"x", qos=1, message_id=1))
    client.send(PingReq("nobody"))
    assert client.received == [Disconnect()] * 3
    assert gateway.core.counters.unknown_senders == 3
    client.received.clear()
    client.send(Disconnect())
    assert client.received == []


def test_will_is_asked_for_and_published_when_the_client_is_silent_for_one_and_a_half_keep_alives() -> None:
    gateway = VirtualGateway()
    client = gateway.client()
    client.send(Connect("c", 10, will=True))
    assert client.take(WillTopicReq)
    client.send(WillTopic("alarm", qos=1, retain=True))
    assert client.take(WillMsgReq)
    client.send(WillMsg(b"gone"))
    assert client.received == [ConnAck(ReturnCode.ACCEPTED)]
    gateway.wait(14)
    client.send(PingReq())
    assert client.take(PingResp)
    gateway.wait(14.9)
    assert gateway.broker.published == []
    gateway.wait(0.2)
    assert gateway.broker.published == [("alarm", b"gone", 1, True)]
    client.received.clear()
    client.send(PingReq())
    assert client.received == [Disconnect()]


def test_will_can_be_changed_and_deleted() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect(duration=10)
    client.send(WillMsgUpd(b"early"))
    client.send(WillTopicUpd("alarm"))
    client.send(WillMsgUpd(b"gone"))
    assert client.take(WillMsgResp) == [
        WillMsgResp(ReturnCode.REJECTED_NOT_SUPPORTED),
        WillMsgResp(ReturnCode.ACCEPTED),
    ]
    assert client.take(WillTopicResp) == [WillTopicResp(ReturnCode.ACCEPTED)]
    gateway.wait(16)
    assert gateway.broker.published == [("alarm", b"gone", 0, False)]
    client.connect(duration=10)
    client.send(WillTopicUpd(None))
    gateway.wait(16)
    assert len(gateway.broker.published) == 1


def test_will_request_is_repeated_when_the_client_asks_again() -> None:
    gateway = VirtualGateway()
    client = gateway.client()
    for _ in range(2):
        client.send(Connect("c", 10, will=True))
        assert len(client.take(WillTopicReq)) == 1
    for _ in range(2):
        client.send(WillTopic("alarm"))
        assert len(client.take(WillMsgReq)) == 1
    client.send(WillMsg(b"gone"))
    assert client.take(ConnAck) == [ConnAck(ReturnCode.ACCEPTED)]
    assert not gateway.core.handshakes


def test_disconnect_publishes_no_will_and_ends_a_clean_session() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect(clean=True, duration=10)
    client.send(WillTopicUpd("alarm"))
    client.subscribe("a")
    client.received.clear()
    client.send(Disconnect())
    assert client.received == [Disconnect()]
    gateway.wait(60)
    assert gateway.broker.published == []
    assert not gateway.core.sessions
    assert not gateway.core.link.filters


def test_policy_refuses_with_congestion() -> None:
    gateway = VirtualGateway(policy=Policy(maximum_clients=1, maximum_subscriptions=1))
    first, second = gateway.clients(2)
    first.connect("first")
    second.send(Connect("second", 10))
    assert second.received == [ConnAck(ReturnCode.REJECTED_CONGESTION)]
    assert first.subscribe("a").return_code is ReturnCode.ACCEPTED
    assert first.subscribe("b").return_code is ReturnCode.REJECTED_CONGESTION
    assert gateway.core.counters.refused == {"connect: policy": 1, "subscribe: policy": 1}


def test_sleeping_client_gets_everything_once_in_order_of_class() -> None:
    policy = Policy(priorities=[("urgent", 0), ("normal", 1)], lowest_class=2)
    gateway = VirtualGateway(policy=policy, burst_messages=50)
    client = gateway.client().connect(duration=10)
    for topic in ("urgent", "normal", "rest"):
        client.subscribe(topic)
    client.send(Disconnect(100))
    client.received.clear()
    for number in range(300):
        gateway.publish(("rest", "urgent", "normal")[number % 3], b"%d" % number)
    assert client.received == []
    client.send(PingReq("c"))
    gateway.wait(1)
    payloads = [int(payload) for payload in client.payloads()]
    assert payloads == [*range(1, 300, 3), *range(2, 300, 3), *range(0, 300, 3)]
    assert client.received == [PingResp()]
    client.send(PingReq("c"))
    assert client.received == [PingResp()] * 2
    gateway.publish("rest", b"later")
    assert client.payloads() == []
    client.connect()
    assert client.payloads() == [b"later"]
    gateway.publish("rest", b"live")
    assert client.payloads() == [b"live"]


def test_sleeping_client_with_qos_1_and_lost_answers_loses_and_repeats_nothing() -> None:
    gateway = VirtualGateway(retry_seconds=1, in_flight_messages=4)
    client = gateway.client().connect(duration=10)
    client.subscribe("a", 1)
    client.send(Disconnect(100))
    for number in range(20):
        gateway.publish("a", b"%d" % number, 1)
    client.received.clear()
    client.answers = False
    client.send(PingReq("c"))
    first = client.take(Publish)
    assert [message.payload for message in first] == [b"0", b"1", b"2", b"3"]
    assert not client.take(PingResp)
    for message in first[:2]:
        client.send(PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
    gateway.wait(10)
    # Not answered any more: asleep again, and nothing that is unanswered is forgotten.
    client.received.clear()
    client.answers = True
    client.send(PingReq("c"))
    again = client.take(Publish)
    assert [message.payload for message in again] == [b"%d" % number for number in range(2, 20)]
    assert [message.dup for message in again[:4]] == [True] * 4
    assert client.received == [PingResp()]


def test_sleeping_client_that_never_wakes_is_lost_with_its_will() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect(duration=10)
    client.send(WillTopicUpd("alarm"))
    client.send(Disconnect(100))
    gateway.wait(149)
    assert gateway.broker.published == []
    gateway.wait(2)
    assert len(gateway.broker.published) == 1


def test_full_buffer_pushes_out_the_least_important_and_says_so() -> None:
    policy = Policy(priorities=[("urgent", 0)], lowest_class=1)
    gateway = VirtualGateway(policy=policy, buffer_messages=3)
    client = gateway.client().connect()
    client.subscribe("urgent")
    client.subscribe("rest")
    client.send(Disconnect(100))
    for number in range(4):
        gateway.publish("rest", b"rest%d" % number)
    gateway.publish("urgent", b"urgent")
    client.send(PingReq("c"))
    assert client.payloads() == [b"urgent", b"rest0", b"rest1"]
    dropped = [payload for _, payload, outcome in gateway.outcomes if outcome is Outcome.dropped_by_buffer]
    assert dropped == [b"rest3", b"rest2"]
    assert gateway.core.counters.undelivered == {"dropped_by_buffer: buffer full": 2}


def test_client_whose_address_changes_connects_anew_and_keeps_its_session() -> None:
    gateway = VirtualGateway()
    old, new = gateway.clients(2)
    old.connect("c", duration=60)
    topic_id = old.subscribe("a", 1).topic_id
    new.send(PingReq())
    assert new.received == [Disconnect()]
    new.received.clear()
    new.send(Connect("c", 60))
    gateway.publish("a", b"x", 1)
    assert old.take(Publish) == []
    (message,) = new.take(Publish)
    assert (message.topic_id, message.payload) == (topic_id, b"x")
    assert gateway.core.counters.clients_moved == 1
    old.received.clear()
    old.send(PingReq())
    assert old.received == [Disconnect()]


def test_nobody_takes_an_active_session_over_by_naming_its_client_id() -> None:
    gateway = VirtualGateway()
    client, stranger = gateway.clients(2)
    client.connect("c", duration=60)
    client.subscribe("a", 1)
    stranger.send(PingReq("c"))
    assert stranger.received == [Disconnect()]
    gateway.publish("a", b"x", 1)
    assert client.payloads() == [b"x"]
    assert stranger.received == [Disconnect()]
    client.send(PingReq())
    assert client.take(PingResp)
    assert gateway.core.counters.clients_moved == 0


def test_sleeping_client_connects_anew_at_another_address() -> None:
    gateway = VirtualGateway()
    old, new = gateway.clients(2)
    old.connect("c", duration=60)
    old.subscribe("a", 1)
    old.send(Disconnect(100))
    gateway.publish("a", b"x", 1)
    new.send(PingReq("c"))
    # Nothing is lost by that.
    assert new.received == [Disconnect()]
    assert new.payloads() == []
    new.send(Connect("c", 60))
    assert new.payloads() == [b"x"]
    assert old.take(Publish) == []


def test_reconnecting_client_is_told_topic_ids_again() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    topic_id = client.subscribe("a").topic_id
    client.send(Disconnect())
    client.received.clear()
    client.connect()
    gateway.publish("a", b"x")
    registered, published = client.received
    assert isinstance(registered, Register)
    assert (registered.topic_id, registered.topic_name) == (topic_id, "a")
    assert isinstance(published, Publish)


def test_subscriptions_come_back_with_the_broker() -> None:
    gateway = VirtualGateway()
    client, late = gateway.clients(2)
    client.connect("client")
    client.subscribe("a", 1)
    gateway.lose_broker()
    gateway.wait(10)
    late.connect("late")
    assert client.received == []
    gateway.return_broker()
    gateway.publish("a", b"again", 1)
    assert client.payloads() == [b"again"]


def test_clients_that_are_kept_get_their_answers_when_the_broker_is_back() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    topic_id = client.register("a")
    gateway.lose_broker()
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"one", qos=1, message_id=5))
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"one", qos=1, message_id=5, dup=True))
    client.send(Subscribe(TopicIdType.NORMAL, "b", 6))
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"zero"))
    # QoS 0 cannot wait: the client is told at once.
    assert client.received == [PubAck(topic_id, 0, ReturnCode.REJECTED_CONGESTION)]
    client.received.clear()
    gateway.wait(30)
    gateway.return_broker()
    assert gateway.broker.published == [("a", b"one", 1, False)]
    assert client.take(PubAck) == [PubAck(topic_id, 5, ReturnCode.ACCEPTED)]
    assert [answer.return_code for answer in client.take(SubAck)] == [ReturnCode.ACCEPTED]


def test_clients_behind_a_forwarder_share_its_address() -> None:
    gateway = VirtualGateway()
    one, two = gateway.client(node=b"\1"), gateway.client(node=b"\2")
    one.connect("one")
    two.connect("two")
    one.subscribe("a")
    two.subscribe("a")
    gateway.publish("a", b"x")
    assert one.payloads() == two.payloads() == [b"x"]


def test_clean_connect_forgets_and_counts_what_was_kept() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect()
    client.subscribe("a", 1)
    client.send(Disconnect())
    gateway.publish("a", b"x", 1)
    client.received.clear()
    client.connect(clean=True)
    assert client.received == []
    assert gateway.outcomes == [("c", b"x", Outcome.subscriber_gone)]
    assert "a" not in gateway.broker.subscribers["triage-gateway"].filters


def test_gateway_works_with_a_broker_of_mqtt_3_1_1() -> None:
    gateway = VirtualGateway(MemoryBroker(versions=(4,)))
    client = gateway.client().connect()
    client.subscribe("a", 2)
    gateway.publish("a", b"x", 2)
    assert client.payloads() == [b"x"]
    assert gateway.core.link.lanes[0].version == 4


@pytest.mark.parametrize("node", [None, b"node"])
def test_a_new_association_at_an_address_inherits_no_session_and_its_owner_comes_back(
    node: bytes | None,
) -> None:
    """After a DTLS handshake nobody knows who is at an address until there is a CONNECT."""
    gateway = VirtualGateway()
    first = gateway.client(1000, node).connect("first")
    first.subscribe("a", 1)
    gateway.publish("a", b"before", 1)
    assert first.payloads() == [b"before"]
    detach_sessions_at(gateway.core, first.address)
    second = gateway.client(1000, node)
    second.send(PingReq())
    assert second.received == [Disconnect()]
    second.received.clear()
    second.connect("second")
    gateway.publish("a", b"not for the second", 1)
    assert second.received == []
    back = gateway.client(2000, node).connect("first")
    assert back.payloads() == [b"not for the second"]
    gateway.publish("a", b"after", 1)
    assert back.payloads() == [b"after"]
    assert second.received == []
    assert gateway.core.counters.clients_lost == 0


def test_a_client_that_does_not_come_back_after_a_new_association_is_lost_with_its_will() -> None:
    gateway = VirtualGateway()
    client, watcher = gateway.client(), gateway.client(1001).connect("watcher")
    watcher.subscribe("w")
    client.send(Connect("c", 10, will=True))
    client.send(WillTopic("w"))
    client.send(WillMsg(b"gone"))
    detach_sessions_at(gateway.core, client.address)
    gateway.wait(16)
    assert watcher.payloads() == [b"gone"]
