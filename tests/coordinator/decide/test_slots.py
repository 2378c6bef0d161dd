"""Flows keep their slots from plan to plan as far as they can, and orders say exactly what the plan says."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.coordinator.decide.decide import (
    Decided,
    PlannerSettings,
    Question,
    decide,
    flows_per_subscriber,
)
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.decide.orders import Orders, client_id_of, subscriber_of
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.rates.watch import Rates
from triagemq.intents import (
    Declared,
    PublisherIntent,
    SubscriberIntent,
    Utility,
    Wanted,
)

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
                Declared(topic, rate or None, 20.0 + 30 * place)
                for place, (topic, rate) in enumerate(zip(TOPICS, rates, strict=True))
            ),
        )
    )
    for name, (wishes, flows) in subscribers.items():
        book.announce(
            SubscriberIntent(
                name=name,
                subscriptions=tuple(
                    Wanted(topic, Utility("log", float(weight))) for topic, weight in wishes.items()
                ),
                flows=flows,
            )
        )
    return Question(
        book.scenario(NETWORK, Rates()),
        settings=PlannerSettings(priority_classes=3),
    )


def treatment(orders: Orders, name: str, topic: str) -> tuple[int, float]:
    flow = orders.flows[client_id_of(name, orders.slots[name][topic])]
    return flow.priority_class, flow.drop_rate


def check_orders(decided: Decided, world: World) -> None:
    """The orders carry out the plan, a flow for each subscription, with slot 0 in use and no slot to spare."""
    scenario, plan, orders = decided.scenario, decided.plan, decided.orders
    wanted = scenario.subscriptions
    pairs = {
        (scenario.subscribers.name[who], scenario.topics.name[what])
        for who, what in zip(wanted.subscriber, wanted.topic, strict=True)
    }
    assert pairs == {(name, topic) for name, slots in orders.slots.items() for topic in slots}
    assert set(orders.slots) == set(world[0])
    drop = plan.flows.drop_rate[plan.flow]
    for row in range(len(wanted)):
        name = scenario.subscribers.name[wanted.subscriber[row]]
        found = treatment(orders, name, scenario.topics.name[wanted.topic[row]])
        assert found[0] == plan.subscription_class[row]
        assert abs(found[1] - drop[row]) < 0.005
    used = {(name, slot) for name, slots in orders.slots.items() for slot in slots.values()}
    # Slot 0 is there for everyone, whether or not anything is planned for it.
    used |= {(name, 0) for name in world[0]}
    assert used == {subscriber_of(client_id) for client_id in orders.flows}
    for name, slot in used:
        assert slot < flows_per_subscriber(scenario)
        assert (name, 0) in used
    numbers = [flow.flow_id for flow in orders.flows.values()]
    assert len(set(numbers)) == len(numbers)


def fewest_moves(before: dict[str, int], groups: list[set[str]], limit: int) -> int:
    """By trying every assignment of groups to slots that uses slot 0: how many kept topics must change slots."""
    kept = {topic for group in groups for topic in group} & before.keys()
    return min(
        sum(
            before[topic] != slot for slot, group in zip(slots, groups, strict=True) for topic in group & kept
        )
        for slots in permutations(range(limit), len(groups))
        if 0 in slots
    )


@settings(deadline=None, max_examples=150)
@given(WORLDS, WORLDS)
def test_orders_follow_the_plan_and_move_no_topic_without_need(first: World, second: World) -> None:
    earlier = decide(situation(first))
    check_orders(earlier, first)
    later = decide(situation(second), earlier)
    check_orders(later, second)
    for name, slots in later.orders.slots.items():
        before = earlier.orders.slots.get(name, {})
        groups = [{topic for topic, own in slots.items() if own == slot} for slot in set(slots.values())]
        moved = sum(before[topic] != slot for topic, slot in slots.items() if topic in before)
        assert moved == (fewest_moves(before, groups, flows_per_subscriber(later.scenario)) if groups else 0)
        if name in earlier.orders.slots and before == slots:
            assert slots is before


@settings(deadline=None)
@given(WORLDS, WORLDS)
def test_topics_that_are_treated_alike_stay_in_flows_that_are_treated_alike(
    first: World, second: World
) -> None:
    """Orders are applied at once: old slots never meet new flows, so it is the pairs that matter."""
    earlier = decide(situation(first))
    later = decide(situation(second), earlier)
    for client_id, flow in earlier.orders.flows.items():
        if client_id in later.orders.flows:
            assert later.orders.flows[client_id].flow_id == flow.flow_id
    for name, slots in later.orders.slots.items():
        for topic, slot in slots.items():
            if topic not in earlier.orders.slots.get(name, {}):
                continue
            before, after = treatment(earlier.orders, name, topic), treatment(later.orders, name, topic)
            if before[0] == after[0] and earlier.orders.slots[name][topic] == slot:
                client_id = client_id_of(name, slot)
                old, new = earlier.orders.flows[client_id], later.orders.flows[client_id]
                assert old.priority_class == new.priority_class


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
def test_those_whose_connections_slots_or_classes_change_are_named_and_nobody_else(
    first: World, second: World
) -> None:
    """Neither numbers of flows count nor drop rates."""

    def seen(orders: Orders, name: str) -> object:
        classes = {
            client_id: flow.priority_class
            for client_id, flow in orders.flows.items()
            if subscriber_of(client_id)[0] == name
        }
        return orders.slots.get(name), classes

    earlier = decide(situation(first))
    later = decide(situation(second), earlier)
    assert set(earlier.changed_for) == set(first[0])
    assert set(later.changed_for) == {
        name for name in second[0] if seen(earlier.orders, name) != seen(later.orders, name)
    }


def test_a_new_subscriber_takes_its_flows_in_the_order_of_their_worth() -> None:
    wishes = {topic: 2**place for place, topic in enumerate(TOPICS)}
    decided = decide(situation(({"anna": (wishes, 4)}, [5.0] * len(TOPICS))))
    slot_of = decided.orders.slots["anna"]
    rank = dict(zip(decided.scenario.topics.name, decided.plan.rank, strict=True))
    best = [max(rank[topic] for topic, own in slot_of.items() if own == slot) for slot in range(len(TOPICS))]
    assert best == sorted(best, reverse=True)
    assert np.unique(list(slot_of.values())).tolist() == list(range(len(TOPICS)))
