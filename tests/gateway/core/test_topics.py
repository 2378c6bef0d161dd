"""Topic ids in virtual time: a table for each client, limits, and no message under a wrong name."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.gateway.core.naming_client import NamingClient
from tests.gateway.virtual import VirtualGateway

from triagemq.gateway.core import GatewaySettings
from triagemq.gateway.core.sessions import Group
from triagemq.gateway.core.topics import ClientTopics, SharedTopics
from triagemq.gateway.store import RowChanges
from triagemq.mqttsn import Publish, RegAck, Register, ReturnCode, TopicIdType
from triagemq.trace import Outcome

LONGEST_DELAY_SECONDS = 10


def publish(gateway: VirtualGateway, topic: str, number: int, qos: int) -> None:
    gateway.publish(topic, b"%s|%d" % (topic.encode(), number), qos)


@pytest.mark.parametrize("qos", [0, 1])
def test_wildcard_subscriber_gets_as_many_topics_as_it_may_have_ids_and_the_others_are_counted(
    qos: int,
) -> None:
    gateway = VirtualGateway(topic_ids=50)
    client = NamingClient(gateway)
    client.connect()
    client.subscribe("#", qos)
    for number in range(80):
        publish(gateway, f"topic/{number}", number, qos)
    assert [payload.partition(b"|")[0] for payload in client.heard] == [b"topic/%d" % n for n in range(50)]
    assert [outcome for *_, outcome in gateway.outcomes].count(Outcome.limited) == 30
    assert gateway.core.counters.undelivered == {"limited: no more topic ids": 30}
    publish(gateway, "topic/7", 7, qos)
    assert client.heard[-1] == b"topic/7|7"
    assert client.registers == 50


def test_one_client_cannot_take_the_ids_of_others() -> None:
    gateway = VirtualGateway(topic_ids=100)
    greedy, other = gateway.clients(2)
    greedy.connect("greedy")
    for number in range(100):
        assert greedy.register(f"greedy/{number}")
    greedy.send(Register(0, 1, "greedy/100"))
    assert greedy.take(RegAck) == [RegAck(0, 1, ReturnCode.REJECTED_CONGESTION)]
    assert greedy.register("greedy/7") == 8, "what it has it may ask for again"
    other.connect("other")
    assert other.register("greedy/7") == 8
    assert other.register("other") > 0


def test_id_that_a_client_asked_for_holds_as_long_as_its_session() -> None:
    gateway = VirtualGateway(topic_ids=4)
    client = gateway.client().connect()
    topic_id = client.register("mine")
    assert client.subscribe("hers", 1).topic_id
    client.subscribe("floor/#")
    for number in range(50):
        gateway.publish(f"floor/{number}", b"x")
    assert len(client.payloads()) == 2
    client.take(Register)
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"y"))
    assert gateway.broker.published == [("mine", b"y", 0, False)]
    gateway.publish("hers", b"z", 1)
    assert client.payloads() == [b"z"]
    assert client.take(Register) == []


def test_client_whose_ids_are_all_its_own_gets_no_topics_beyond_them_and_that_is_counted() -> None:
    gateway = VirtualGateway(topic_ids=2)
    client = gateway.client().connect()
    client.register("one")
    client.register("two")
    client.subscribe("#")
    gateway.publish("three", b"x")
    assert gateway.outcomes == [("c", b"x", Outcome.limited)]
    gateway.publish("two", b"y")
    assert client.payloads() == [b"y"]


def test_ids_of_a_state_in_which_they_changed_their_topics_are_given_anew(
    tmp_path: Path,
) -> None:
    """Versions before gave an id to another topic after a while; a late message must not be taken for that one's."""
    gateway = VirtualGateway(store=tmp_path)
    client = gateway.client().connect()
    client.subscribe("t/#")
    rows = {("c", 5): ("c", 5, "", 16), ("c", 6): ("c", 6, "t/6", 8), ("c", 7): ("c", 7, "t/7", 4)}
    assert gateway._store is not None
    gateway._store.save({"client_topics": rows})
    for _ in range(2):
        gateway.kill()
        client.send(Publish(TopicIdType.NORMAL, 6, b"late"))
        client.send(Publish(TopicIdType.NORMAL, 7, b"known"))
        assert gateway.broker.published.pop() == ("t/7", b"known", 0, False)
        assert gateway.broker.published == []
    client.received.clear()
    gateway.publish("t/6", b"x")
    assert client.payloads() == [b"x"]
    (topic_id,) = [topic_id for topic_id, name in client.topics.items() if name == "t/6"]
    client.send(Publish(TopicIdType.NORMAL, topic_id, b"known, too"))
    assert gateway.broker.published == [("t/6", b"known, too", 0, False)]
    client.connect(clean=True)
    client.connect()
    assert gateway._store.load()["client_topics"] == []


def test_normal_id_without_a_connection_means_nothing() -> None:
    gateway = VirtualGateway(predefined_topics={7: "floor/smoke"})
    assert gateway.client(1).connect().register("a/b") == 1
    stranger = gateway.client(2)
    gateway.core.datagram(stranger.address, bytes.fromhex("080c60000100007a"))
    stranger.send(Publish(TopicIdType.PREDEFINED, 7, b"y", qos=-1))
    assert gateway.broker.published == [("floor/smoke", b"y", 0, False)]


def test_client_for_whom_an_id_is_taken_gets_another_and_the_rest_share_a_datagram() -> None:
    gateway = VirtualGateway(last_topic_id=4, topic_ids=4)
    clients = list(gateway.clients(3))
    for number, client in enumerate(clients):
        client.connect(f"c{number}")
    assert [clients[2].register(f"last/{number}") for number in range(3)] == [1, 2, 3]
    assert clients[0].register("other") == 4
    assert [client.subscribe("a").topic_id for client in clients] == [1, 1, 4]
    gateway.publish("a", b"x")
    assert [client.payloads() for client in clients] == [[b"x"]] * 3
    (route,) = gateway.core.routes.values()
    sizes = sorted(len(group.members) for group in route.recipients if isinstance(group, Group))
    assert sizes == [1, 2]


def test_all_clients_together_have_a_bounded_number_of_ids() -> None:
    gateway = VirtualGateway(topic_ids=1000, topic_ids_in_all=1500)
    one, other = gateway.clients(2)
    one.connect("one").subscribe("#")
    other.connect("other").subscribe("#")
    for number in range(3000):
        gateway.publish(f"topic/{number}", b"x")
        one.received.clear()
        other.received.clear()
    assert gateway.core.topics.given_out == 1500
    third = gateway.client(2000)
    third.connect("third").subscribe("#")
    for number in range(300):
        gateway.publish(f"topic/{number}", b"x")
    assert len(third.payloads()) == 256
    for client, name in ((one, "one"), (other, "other"), (third, "third")):
        client.connect(name, clean=True)
    assert gateway.core.topics.given_out == len(gateway.core.topics) == 0


def test_id_costs_less_than_half_a_kilobyte() -> None:
    table = SharedTopics(GatewaySettings(topic_ids=10_000), RowChanges(enabled=False))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        client = ClientTopics(table, "client")
        for number in range(10_000):
            assert client.assign(f"building/floor/room/{number}") is not None
        assert (tracemalloc.get_traced_memory()[0] - before) / 10_000 < 512
    finally:
        tracemalloc.stop()


TOPICS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), TOPICS, st.integers(0, 2)),
        st.tuples(st.just("publish"), TOPICS, st.just(0)),
        st.tuples(st.just("client"), TOPICS, st.integers(0, 2)),
        st.tuples(st.just("register"), TOPICS, st.just(0)),
        st.tuples(st.sampled_from(["hold", "release"]), st.integers(0, 1), st.just(0)),
        st.tuples(
            st.sampled_from(["hold", "wait", "rest", "kill", "reconnect"]), st.integers(0, 1), st.just(0)
        ),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, spare_ids=st.integers(0, 1))
@example(
    steps=[
        ("publish", 0, 0),
        ("hold", 0, 0),
        ("publish", 0, 0),
        ("publish", 1, 1),
        ("kill", 0, 0),
        ("publish", 1, 0),
        ("release", 0, 0),
    ],
    spare_ids=0,
)
def test_no_message_is_ever_taken_for_another_topics(
    steps: list[tuple[str, int, int]],
    spare_ids: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A network that delays and reorders, kills and new connections: every message has its topic's name at the client
    and at the broker, and QoS 1 and 2 arrive.
    """
    gateway = VirtualGateway(
        store=tmp_path_factory.mktemp("state"),
        topic_ids=4,
        last_topic_id=4 + spare_ids,
        in_flight_messages=2,
        retry_seconds=4,
        retries=30,
    )
    client = NamingClient(gateway)
    client.connect()
    client.subscribe("t/#", 2)
    held_seconds = 0
    expected = set()
    for number, (step, argument, qos) in enumerate(steps):
        match step:
            case "publish":
                publish(gateway, f"t/{argument}", number, qos)
                if qos:
                    expected.add(b"t/%d|%d" % (argument, number))
            case "client":
                client.publish(argument, qos, b"c%d" % number)
            case "register":
                client.register(f"t/{argument}")
            case "hold":
                client.holds = True
            case "release":
                client.release(bool(argument))
            case "wait":
                if client.holds and held_seconds + 3 >= LONGEST_DELAY_SECONDS:
                    client.release(bool(argument))
                gateway.wait(3)
                held_seconds += 3
            case "rest":
                client.release(bool(argument))
                gateway.wait(LONGEST_DELAY_SECONDS + 1)
            case "kill":
                gateway.kill()
            case "reconnect":
                client.release(bool(argument))
                client.connect()
        if not client.holds:
            held_seconds = 0
        assert len(gateway.core.sessions["n"].topics) <= 4
    client.release(False)
    for _ in range(60):
        gateway.wait(LONGEST_DELAY_SECONDS)
    assert expected <= set(client.heard)
    for topic, payload, *_ in gateway.broker.published:
        assert payload.partition(b"|")[0].decode() == topic
