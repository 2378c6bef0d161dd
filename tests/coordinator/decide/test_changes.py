"""Orders say exactly what the plan says, change where it changes, and a restart makes no difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.channel.orders import Orders, client_id_of
from triagemq.coordinator.decide.decide import (
    Decided,
    PlannerSettings,
    Question,
    decide,
)
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.rates import Rates
from triagemq.intents import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
    Utility,
)
from triagemq.scenario.model import take

TOPICS = [f"t{number}" for number in range(8)]
NETWORK = Network.plain(bandwidth_bps=20_000.0)

WISHES = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1, max_size=8)
SUBSCRIBERS = st.dictionaries(
    st.sampled_from(["anna", "bert", "cleo"]), st.tuples(WISHES, st.integers(1, 4)), max_size=3
)
RATES = st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, 11.0]), min_size=len(TOPICS), max_size=len(TOPICS))
WORLDS = st.tuples(SUBSCRIBERS, RATES)

World = tuple[dict[str, tuple[dict[str, int], int]], list[float]]


def situation(world: World) -> Question:
    subscribers, rates = world
    book = IntentBook()
    book.announce(
        PublisherIntent(
            name="room",
            publications=tuple(
                PublicationIntent(topic, rate or None, 20.0 + 30 * place)
                for place, (topic, rate) in enumerate(zip(TOPICS, rates, strict=True))
            ),
        )
    )
    for name, (wishes, flows) in subscribers.items():
        book.announce(
            SubscriberIntent(
                name=name,
                subscriptions=tuple(
                    SubscriptionIntent(topic, Utility("log", float(weight)))
                    for topic, weight in wishes.items()
                ),
                flows=flows,
            )
        )
    return Question(
        book.scenario(NETWORK, Rates()),
        settings=PlannerSettings(priority_classes=3),
    )


def treatment(orders: Orders, name: str, topic: str) -> tuple[int, float]:
    found = orders.treatment(name, topic)
    return found.priority_class, found.drop_rate


def check_orders(decided: Decided, world: World) -> None:
    """The orders carry out the plan, with a connection for each subscriber."""
    scenario, plan, orders = decided.scenario, decided.plan, decided.orders
    wanted = scenario.subscriptions
    pairs = {
        (scenario.subscribers.name[who], scenario.topics.name[what])
        for who, what in zip(wanted.subscriber, wanted.topic, strict=True)
    }
    assert pairs == {(name, topic) for name, topics in orders.topics.items() for topic in topics}
    assert set(orders.topics) == set(world[0])
    drop = plan.flows.drop_rate[plan.flow]
    for row in range(len(wanted)):
        name = scenario.subscribers.name[wanted.subscriber[row]]
        found = treatment(orders, name, scenario.topics.name[wanted.topic[row]])
        assert found[0] == plan.subscription_class[row]
        assert abs(found[1] - drop[row]) < 0.005
    assert {client_id_of(name) for name in world[0]} == set(orders.flows)
    for client_id, flow in orders.flows.items():
        assert (flow.key, flow.port, flow.drop_rate) == (client_id, "port", 0.0)
    numbers = [flow.flow_id for flow in orders.flows.values()]
    assert len(set(numbers)) == len(numbers)


@settings(deadline=None, max_examples=150)
@given(WORLDS, WORLDS)
def test_orders_follow_the_plan_and_who_is_not_concerned_keeps_the_same_ones(
    first: World, second: World
) -> None:
    earlier = decide(situation(first))
    check_orders(earlier, first)
    later = decide(situation(second), earlier)
    check_orders(later, second)
    for name, topics in later.orders.topics.items():
        before = earlier.orders.topics.get(name)
        if before == topics:
            assert topics is before
    for client_id, flow in earlier.orders.flows.items():
        if client_id in later.orders.flows:
            assert later.orders.flows[client_id].flow_id == flow.flow_id


@settings(deadline=None)
@given(WORLDS, WORLDS)
def test_orders_from_the_store_are_as_good_as_a_memory(first: World, second: World) -> None:
    earlier = decide(situation(first))
    remembered = decide(situation(second), earlier)
    recalled = decide(situation(second), earlier.orders)
    assert recalled.orders == remembered.orders
    assert recalled.changed == remembered.changed


@settings(deadline=None)
@given(WORLDS, WORLDS)
def test_those_whose_topics_or_classes_change_are_named_and_nobody_else(first: World, second: World) -> None:
    """Drop rates do not count."""

    def seen(orders: Orders, name: str) -> dict[str, int] | None:
        topics = orders.topics.get(name)
        return None if topics is None else {topic: planned[0] for topic, planned in topics.items()}

    earlier = decide(situation(first))
    later = decide(situation(second), earlier)
    assert set(earlier.changed_for) == set(first[0])
    assert set(later.changed_for) == {
        name for name in second[0] if seen(earlier.orders, name) != seen(later.orders, name)
    }


def test_a_subscriber_that_is_moved_to_another_port_has_its_flow_there_under_the_same_number() -> None:
    book = IntentBook()
    book.announce(PublisherIntent((PublicationIntent("t", 5.0, 50.0),), name="room"))
    scenario = Network.plain(bandwidth_bps=20_000.0).scenario
    ports = replace(take(scenario.ports, np.zeros(2, dtype=np.int64)), name=("left", "right"))
    network = Network(replace(scenario, ports=ports))

    def decided(port: str, previous: Decided | None = None) -> Decided:
        book.announce(SubscriberIntent((SubscriptionIntent("t"),), port, name="anna"))
        return decide(Question(book.scenario(network, Rates())), previous)

    first = decided("left")
    second = decided("right", first)
    before, after = first.orders.flows["anna~0"], second.orders.flows["anna~0"]
    assert (before.port, after.port) == ("left", "right")
    assert before.flow_id == after.flow_id
