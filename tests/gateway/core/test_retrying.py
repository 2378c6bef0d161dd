"""What a client does not answer, in virtual time: live sessions stay, messages are given up, the silent are lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gateway.virtual import Client, VirtualGateway

from triagemq.mqttsn import (
    Message,
    PingReq,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    Register,
    ReturnCode,
    WillTopicUpd,
    decode,
)
from triagemq.trace import Outcome


def pinging(gateway: VirtualGateway, client: Client, seconds: int, every: int = 5) -> None:
    """Time passes, and the client is heard now and then."""
    for _ in range(0, seconds, every):
        gateway.wait(every)
        client.send(PingReq())


@pytest.mark.parametrize("qos", [1, 2])
def test_live_client_that_never_answers_one_message_stays_and_the_message_is_given_up(qos: int) -> None:
    gateway = VirtualGateway(in_flight_messages=1)
    client = gateway.client().connect(duration=60)
    client.send(WillTopicUpd("alarm"))
    client.subscribe("a", qos)
    client.ignores.add(b"poison")
    for payload in (b"before", b"poison", b"after"):
        gateway.publish("a", payload, qos)
    pinging(gateway, client, 120)
    assert gateway.core.counters.clients_lost == 0
    assert gateway.broker.published == []
    assert client.payloads() == [b"before", *[b"poison"] * 5, b"after"]
    assert gateway.outcomes == [
        ("c", b"before", Outcome.delivered),
        ("c", b"poison", Outcome.unacknowledged),
        ("c", b"after", Outcome.delivered),
    ]
    assert gateway.core.counters.undelivered == {f"unacknowledged: QoS {qos}": 1}


def test_events_wait_for_half_a_second_when_a_register_is_lost() -> None:
    gateway = VirtualGateway(retry_seconds=10)
    client = gateway.client().connect(duration=60)
    client.subscribe("floor/+")
    client.ignores.add("floor/1")
    gateway.publish("floor/1", b"one")
    assert client.payloads() == []
    client.ignores.clear()
    gateway.wait(0.6)
    assert client.payloads() == [b"one"]
    gateway.wait(30)
    assert len(client.take(Register)) == 2


def test_live_client_that_never_answers_a_register_stays_and_what_waited_for_it_is_given_up() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect(duration=60)
    client.subscribe("floor/+", 1)
    client.ignores.add("floor/1")
    gateway.publish("floor/1", b"one", 1)
    gateway.publish("floor/1", b"two", 0)
    gateway.publish("floor/2", b"three", 1)
    pinging(gateway, client, 120)
    assert gateway.core.counters.clients_lost == 0
    assert sorted(gateway.outcomes) == [
        ("c", b"one", Outcome.unacknowledged),
        ("c", b"three", Outcome.delivered),
        ("c", b"two", Outcome.unacknowledged),
    ]
    # Four more before the first Tretry is over: after 0.5, 1, 2 and 4 seconds.
    assert len([one for one in client.take(Register) if one.topic_name == "floor/1"]) == 5 + 4
    client.ignores.clear()
    gateway.publish("floor/1", b"four", 1)
    assert client.payloads() == [b"three", b"four"]


def test_message_is_kept_for_a_client_that_was_out_of_reach_and_comes_back_before_it_is_lost() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect(duration=60)
    client.subscribe("a", 1)
    client.answers = False
    gateway.publish("a", b"x", 1)
    gateway.wait(48)
    client.answers = True
    client.send(PingReq())
    gateway.wait(10)
    assert gateway.outcomes == [("c", b"x", Outcome.delivered)]
    assert gateway.core.counters.clients_lost == 0


def test_client_that_falls_silent_in_the_midst_is_lost_and_gets_its_messages_when_it_returns() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect(duration=0)
    client.subscribe("a", 1)
    client.answers = False
    gateway.publish("a", b"x", 1)
    gateway.wait(15)
    client.send(PingReq())
    gateway.wait(60)
    assert gateway.core.counters.clients_lost == 1
    client.answers = True
    client.received.clear()
    client.connect()
    assert client.payloads() == [b"x"]
    assert gateway.outcomes == [("c", b"x", Outcome.delivered)]


def test_message_that_was_given_up_is_not_in_the_store(tmp_path: Path) -> None:
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client().connect(duration=60)
    client.subscribe("a", 1)
    client.ignores.add(b"poison")
    gateway.publish("a", b"poison", 1)
    pinging(gateway, client, 60)
    assert gateway._store is not None
    assert gateway._store.load()["deliveries"] == []
    client.received.clear()
    gateway.kill()
    gateway.wait(20)
    assert client.payloads() == []


def test_qos_2_message_that_the_client_has_counts_as_delivered_though_it_never_finishes() -> None:
    gateway = VirtualGateway()
    client = gateway.client().connect(duration=60)
    client.subscribe("a", 2)
    client.answers = False
    gateway.publish("a", b"x", 2)
    (message,) = client.take(Publish)
    client.send(PubRec(message.message_id))
    pinging(gateway, client, 120)
    assert gateway.outcomes == [("c", b"x", Outcome.delivered)]
    assert gateway.core.counters.clients_lost == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("wanted", ["gas/#", "gas/1", 7, "ab"])
@pytest.mark.parametrize("refused", [Publish, PubRel])
def test_client_that_refuses_every_topic_id_gets_a_bounded_number_of_copies(
    qos: int, wanted: str | int, refused: type[Message]
) -> None:
    gateway = VirtualGateway(predefined_topics={7: "gas/1"})
    client = gateway.client().connect()
    client.subscribe(wanted, qos)
    hear, sent = client.hear, [0]

    def refuse(datagram: bytes) -> None:
        client.answers = True
        message = decode(datagram)
        if isinstance(message, refused):
            sent[0] += 1
            assert sent[0] < 50, "sent again and again"
            client.answers = False
        hear(datagram)
        if isinstance(message, refused):
            topic_id = getattr(message, "topic_id", 1)
            client.answer(
                PubAck(topic_id, message.message_id, ReturnCode.REJECTED_INVALID_TOPIC_ID)  # type: ignore[union-attr]
            )

    client.hear = refuse  # type: ignore[method-assign]
    gateway.publish("ab" if wanted == "ab" else "gas/1", b"leak", qos)
    # The id is told again, and the message follows, once at once.
    assert sent[0] <= 2
    for _ in range(20):
        gateway.wait(5)
        client.send(PingReq())
    # Tretry apart, as often as any message that is not answered.
    assert sent[0] <= 2 + gateway.core.settings.retries
    assert not gateway.core.sessions["c"].in_flight
    assert client.address in gateway.core.by_endpoint
