"""kill -9 of the gateway in virtual time: what was promised is kept, whatever the moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.virtual import VirtualGateway

from triagemq.errors import GatewayError
from triagemq.gateway.core import Policy
from triagemq.gateway.store import GatewayStore
from triagemq.mqttsn import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Register,
    ReturnCode,
    TopicIdType,
    WillTopicUpd,
)


def test_connected_client_does_not_notice_a_restart(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client().connect(duration=10)
    topic_id = client.subscribe("a", 1).topic_id
    client.subscribe("b/+")
    gateway.publish("b/1", b"0")
    client.received.clear()
    gateway.kill()
    gateway.publish("a", b"1", 1)
    gateway.publish("b/1", b"2")
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"3", qos=1, message_id=1))
    assert client.payloads() == [b"1", b"2", b"3"]
    assert client.take(Register) == []
    client.send(PingReq())
    assert client.take(PingResp)


def test_a_topic_that_is_new_after_a_restart_can_be_published_to_at_once(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client().connect(duration=10)
    client.register("a")
    gateway.kill()
    topic_id = client.register("b")
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=1, message_id=1))
    assert [answer.return_code for answer in client.take(PubAck)] == [ReturnCode.ACCEPTED]
    assert gateway.broker.published == [("b", b"x", 1, False)]


def test_will_survives_a_restart(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client().connect(duration=10)
    client.send(WillTopicUpd("alarm"))
    gateway.kill()
    gateway.wait(16)
    assert gateway.broker.published == [("alarm", b"", 0, False)]


def test_thousand_messages_to_a_sleeping_client_survive_a_restart_once_each_in_order_of_class(
    tmp_path: Path,
) -> None:
    policy = Policy(priorities=[("class/0", 0), ("class/1", 1), ("class/2", 2)], lowest_class=3)
    gateway = VirtualGateway(store=tmp_path, policy=policy)
    client = gateway.client().connect(duration=10)
    client.subscribe("class/+", 1)
    client.send(Disconnect(3000))
    for number in range(1000):
        gateway.publish(f"class/{number % 4}", b"%d" % number, number % 2)
        if number == 500:
            gateway.kill()
    client.received.clear()
    gateway.kill()
    client.send(PingReq("c"))
    gateway.wait(1)
    numbers = [int(payload) for payload in client.payloads()]
    assert numbers == [number for start in range(4) for number in range(start, 1000, 4)]
    assert client.take(PingResp) == [PingResp()]
    gateway.kill()
    client.send(PingReq("c"))
    assert client.payloads() == []
    assert client.take(PingResp) == [PingResp()]


def test_qos_2_from_a_client_is_published_once_over_a_restart_at_any_step(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client().connect()
    topic_id = client.register("a")
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=2, message_id=3))
    gateway.kill()
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"x", qos=2, message_id=3, dup=True))
    assert client.take(PubRec) == [PubRec(3)] * 2
    gateway.broker.holds_acknowledgements = True
    client.send(PubRel(3))
    assert client.take(PubComp) == []
    gateway.broker.holds_acknowledgements = False
    gateway.kill()
    assert client.take(PubComp) == [PubComp(3)]
    assert gateway.broker.published == [("a", b"x", 2, False)]


def test_qos_2_to_a_client_keeps_its_message_id_and_step_over_a_restart(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client().connect()
    client.subscribe("a", 2)
    client.answers = False
    gateway.publish("a", b"x", 2)
    (first,) = client.take(Publish)
    gateway.kill()
    (second,) = client.take(Publish)
    assert (second.message_id, second.dup) == (first.message_id, True)
    client.send(PubRec(first.message_id))
    client.received.clear()
    gateway.kill()
    assert client.received == [PubRel(first.message_id)]
    client.send(PubComp(first.message_id))
    client.received.clear()
    gateway.kill()
    assert client.received == []


def test_messages_that_wait_at_the_broker_find_their_subscribers_after_a_restart(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path)
    one, two = gateway.clients(2)
    one.connect("one").subscribe("a/+", 1)
    two.connect("two").subscribe("a/b", 1)
    two.subscribe("#", 1)
    for session in list(gateway._wanted):
        gateway.broker.lose(session)
    gateway._wanted.clear()
    gateway.broker.publish("a/b", b"x", 1)
    gateway.kill()
    assert one.payloads() == two.payloads() == [b"x"]


def test_clean_sessions_that_ended_leave_nothing_in_the_store(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client()
    for number in range(20):
        client.connect(f"c{number}", clean=True)
        client.subscribe("a/+", 1)
        client.register(f"topic{number}")
        client.send(Disconnect(100))
        gateway.publish("a/b", b"x", 1)
        client.connect(f"c{number}", clean=True)
        client.send(Disconnect())
        client.received.clear()
    assert gateway._store is not None
    rows = gateway._store.load()
    assert {table: len(found) for table, found in rows.items() if found} == {}


def test_store_is_used_by_one_gateway_at_a_time(tmp_path: Path) -> None:
    first = GatewayStore(tmp_path)
    with pytest.raises(GatewayError, match="another gateway"):
        GatewayStore(tmp_path)
    first.close()
    GatewayStore(tmp_path).close()


STEPS = st.lists(
    st.sampled_from(
        ["publish", "publish", "publish", "kill", "sleep", "ping", "wake", "lose", "mute", "hear"]
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_qos_1_and_2_reach_the_client_whatever_happens_in_between(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """QoS 2 exactly once, QoS 1 at least once, over any order of kills, sleeps and lost connections."""
    gateway = VirtualGateway(store=tmp_path_factory.mktemp("state"), retry_seconds=1, retries=3)
    client = gateway.client().connect()
    client.subscribe("one", 1)
    client.subscribe("two", 2)
    heard: list[tuple[bytes, int, int]] = []
    expected = 0

    def listen() -> None:
        heard.extend((one.payload, one.qos, one.message_id) for one in client.take(Publish))

    for step in [*steps, "hear", "wake"]:
        match step:
            case "publish":
                gateway.publish("one", b"%d" % expected, 1)
                gateway.publish("two", b"%d" % expected, 2)
                expected += 1
            case "kill":
                gateway.kill()
            case "sleep":
                client.send(Disconnect(1000))
            case "ping":
                client.send(PingReq("c"))
                gateway.wait(0.5)
            case "wake":
                client.received = [one for one in client.received if isinstance(one, Publish)]
                client.connect()
            case "lose":
                for session in list(gateway._wanted):
                    gateway.broker.lose(session)
                    session.owner.mqtt_lost(session)
                gateway.run()
            case "mute":
                client.answers = False
            case "hear":
                client.answers = True
        listen()
    gateway.wait(30)
    listen()
    numbers = {b"%d" % number for number in range(expected)}
    assert {payload for payload, qos, _ in heard if qos == 1} == numbers
    # A client knows a QoS 2 message again by its id, which it remembers until PUBREL.
    seen = [(payload, message_id) for payload, qos, message_id in heard if qos == 2]
    assert {payload for payload, _ in seen} == numbers
    assert len(set(seen)) == expected
