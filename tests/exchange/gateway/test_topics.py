"""Topic ids in virtual time: a table for each client, ids that are used again, and no message under a wrong name."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.exchange.gateway.naming_client import NamingClient
from tests.exchange.virtual import VirtualGateway

from triagemq.exchange.gateway.model.sessions import Group
from triagemq.exchange.gateway.model.topics import ClientTopics, SharedTopics
from triagemq.mqttsn import Disconnect, Publish, RegAck, Register, ReturnCode, TopicIdType
from triagemq.trace import Outcome

REST_SECONDS = 10


def publish(gateway: VirtualGateway, topic: str, number: int, qos: int) -> None:
    gateway.publish(topic, b"%s|%d" % (topic.encode(), number), qos)


def spread_over_many_topics(topics: int, qos: int, per_second: int, **limits: int) -> NamingClient:
    gateway = VirtualGateway(**limits)
    client = NamingClient(gateway)
    client.connect()
    client.subscribe("#", qos)
    for number in range(topics):
        publish(gateway, f"topic/{number}", number, qos)
        if number % per_second == 0:
            gateway.wait(1)
    gateway.wait(60)
    assert len(client.heard) == topics == len(set(client.heard))
    assert len(gateway.core.sessions["n"].topics) <= gateway.core.settings.topic_ids
    assert gateway.core.counters.undelivered == {}
    return client


@pytest.mark.parametrize("qos", [0, 1])
def test_wildcard_subscriber_gets_more_topics_than_there_are_ids_each_under_its_name(qos: int) -> None:
    client = spread_over_many_topics(3000, qos, 100, last_topic_id=2000, topic_ids=500)
    assert client.registers == 3000


@pytest.mark.slow
@pytest.mark.parametrize("qos", [0, 1])
def test_hundred_thousand_topics_reach_one_wildcard_subscriber(qos: int) -> None:
    spread_over_many_topics(100_000, qos, 4_000)


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
    assert len(client.payloads()) == 50
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


def test_topics_that_are_in_use_keep_their_ids() -> None:
    gateway = VirtualGateway(topic_ids=10)
    client = gateway.client().connect()
    client.subscribe("#")
    for number in range(200):
        gateway.wait(0.1)
        gateway.publish("busy", b"")
        gateway.wait(0.1)
        gateway.publish(f"once/{number}", b"")
    assert [one.topic_name for one in client.take(Register)].count("busy") == 1


def test_id_means_nothing_while_messages_under_its_old_meaning_may_be_under_way() -> None:
    gateway = VirtualGateway(topic_ids=1, last_topic_id=1, topic_id_rest_seconds=REST_SECONDS)
    client = gateway.client().connect()
    client.subscribe("floor/#")
    gateway.publish("floor/1", b"one")
    gateway.publish("floor/2", b"two")
    assert client.payloads() == [b"one"]
    # The client still takes it for the former topic: refused, and it rests anew.
    gateway.wait(REST_SECONDS - 1)
    client.send(Publish(TopicIdType.NORMAL, 1, b"for one", qos=1, message_id=1))
    gateway.wait(REST_SECONDS - 1)
    assert client.payloads() == []
    client.answers = False
    gateway.wait(1)
    (register,) = [one for one in client.take(Register) if one.topic_name == "floor/2"]
    client.send(Publish(TopicIdType.NORMAL, 1, b"for one or two", qos=1, message_id=2))
    client.send(RegAck(1, register.message_id, ReturnCode.ACCEPTED))
    client.send(Publish(TopicIdType.NORMAL, 1, b"overtaken by the answer", qos=1, message_id=3))
    assert gateway.broker.published == []
    assert client.payloads() == [b"two"]
    gateway.wait(REST_SECONDS)
    client.send(Publish(TopicIdType.NORMAL, 1, b"for two", qos=1, message_id=4))
    assert [(topic, payload) for topic, payload, *_ in gateway.broker.published] == [("floor/2", b"for two")]


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
        client.connect(f"c{number}", clean=number == 2)
    last = clients[2]
    for number in range(4):
        last.register(f"last/{number}")
    last.send(Disconnect())
    last.connect("c2")
    taken = last.register("other")
    ids = [client.subscribe("a").topic_id for client in clients]
    assert ids[0] == ids[1]
    gateway.publish("a", b"x")
    assert [client.payloads() for client in clients] == [[b"x"]] * 3
    (route,) = gateway.core.link.routes.values()
    sizes = sorted(len(group.members) for group in route.recipients if isinstance(group, Group))
    assert sizes in ([3], [1, 2])
    assert taken not in ids[2:]


def test_all_clients_together_have_a_bounded_number_of_ids() -> None:
    gateway = VirtualGateway(topic_ids=1000, topic_ids_in_all=1500)
    one, other = gateway.clients(2)
    one.connect("one").subscribe("#")
    other.connect("other").subscribe("#")
    for number in range(3000):
        gateway.publish(f"topic/{number}", b"x")
        one.received.clear()
        other.received.clear()
    assert gateway.core.topics.given_out <= 1500 + 1
    assert gateway.core.counters.undelivered == {}
    one.send(Disconnect())
    one.connect("one", clean=True)
    other.connect("other", clean=True)
    assert gateway.core.topics.given_out == len(gateway.core.topics) == 0


def test_id_costs_less_than_half_a_kilobyte() -> None:
    table = SharedTopics({})
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        client = ClientTopics(table)
        for number in range(10_000):
            assert client.assign(f"building/floor/room/{number}", number, limit=10_000) is not None
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
@given(steps=STEPS, topic_ids=st.integers(1, 2), spare_ids=st.integers(0, 1))
@example(
    # REGISTER overtakes a message under the id's old meaning.
    steps=[("publish", 0, 0), ("hold", 0, 0), ("publish", 0, 0), ("publish", 1, 0), ("release", 0, 0)],
    topic_ids=1,
    spare_ids=0,
)
@example(
    # The same over a restart.
    steps=[
        ("publish", 0, 0),
        ("hold", 0, 0),
        ("publish", 0, 0),
        ("publish", 1, 1),
        ("kill", 0, 0),
        ("publish", 1, 0),
        ("release", 0, 0),
    ],
    topic_ids=1,
    spare_ids=0,
)
def test_no_message_is_ever_taken_for_another_topics(
    steps: list[tuple[str, int, int]],
    topic_ids: int,
    spare_ids: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Few ids for many topics, a network that delays and reorders for less than ids rest, kills and new connections:
    every message has its topic's name at the client and at the broker, and QoS 1 and 2 arrive.
    """
    gateway = VirtualGateway(
        store=tmp_path_factory.mktemp("state"),
        topic_ids=topic_ids,
        last_topic_id=topic_ids + spare_ids,
        topic_id_rest_seconds=REST_SECONDS,
        in_flight_messages=2,
        retry_seconds=4,
        retries=30,
    )
    client = NamingClient(gateway)
    client.connect()
    client.subscribe("t/#", 2)
    held_seconds = registered = 0
    expected = set()
    for number, (step, argument, qos) in enumerate(steps):
        match step:
            case "publish":
                publish(gateway, f"t/{argument}", number, qos)
                if qos:
                    expected.add(b"t/%d|%d" % (argument, number))
            case "client":
                client.publish(argument, qos, b"c%d" % number)
            case "register" if registered < topic_ids - 1:
                # One id is left for the topics of the wildcard.
                registered += 1
                client.register(f"t/{argument}")
            case "hold":
                client.holds = True
            case "release":
                client.release(bool(argument))
            case "wait":
                if client.holds and held_seconds + 3 >= REST_SECONDS:
                    client.release(bool(argument))
                gateway.wait(3)
                held_seconds += 3
            case "rest":
                client.release(bool(argument))
                gateway.wait(REST_SECONDS + 1)
            case "kill":
                gateway.kill()
            case "reconnect":
                client.release(bool(argument))
                client.connect()
                registered = 0
        if not client.holds:
            held_seconds = 0
        assert len(gateway.core.sessions["n"].topics) <= topic_ids
    client.release(False)
    for _ in range(60):
        gateway.wait(REST_SECONDS)
    assert expected <= set(client.heard)
    for topic, payload, *_ in gateway.broker.published:
        assert payload.partition(b"|")[0].decode() == topic
