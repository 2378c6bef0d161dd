"""The book of intents gives the scenario that the intents describe, whatever order they came in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinator.announcing import publisher_intents, subscriber_intents

from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import UNANNOUNCED, IntentBook
from triagemq.coordinator.rates import Rates
from triagemq.errors import ParameterError
from triagemq.intents import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
    Utility,
)
from triagemq.mqttsn import matches
from triagemq.scenario import ArrivalProcess, Scenario, loads
from triagemq.scenario.building import building

NETWORK = Network.plain()


def publisher(name: str, **rates: float | None) -> PublisherIntent:
    return PublisherIntent(
        tuple(PublicationIntent(topic.replace("_", "/"), rate, 40.0) for topic, rate in rates.items()),
        name=name,
    )


def subscriber(name: str, *filters: str | tuple[str, float], **more: Any) -> SubscriberIntent:
    wishes = [each if isinstance(each, tuple) else (each, 1.0) for each in filters]
    return SubscriberIntent(
        tuple(SubscriptionIntent(topic, Utility("log", weight)) for topic, weight in wishes),
        name=name,
        **more,
    )


def book_of(*intents: PublisherIntent | SubscriberIntent) -> IntentBook:
    book = IntentBook()
    for intent in intents:
        book.announce(intent)
    return book


def wanted(scenario: Scenario, name: str) -> dict[str, float]:
    """The topics of a subscriber with their weights."""
    rows = scenario.subscriptions
    own = rows.subscriber == scenario.subscribers.name.index(name)
    return {
        scenario.topics.name[topic]: float(weight)
        for topic, weight in zip(rows.topic[own], rows.utility_weight[own], strict=True)
    }


def rates_of(scenario: Scenario) -> dict[tuple[str, str], float]:
    rows = scenario.publications
    return {
        (scenario.publishers.name[who], scenario.topics.name[what]): float(rate)
        for who, what, rate in zip(rows.publisher, rows.topic, rows.rate_per_second, strict=True)
    }


def test_the_intents_of_a_scenario_give_the_scenario_back() -> None:
    fire = building(seed=3)
    count = len(fire.subscriptions)
    hurried = {"max_latency_seconds": np.full(count, 0.2), "max_latency_share": np.linspace(0, 1, count)}
    others = {
        "min_share": np.linspace(0, 1, count),
        "max_rate_per_second": np.where(np.arange(count) % 2, 2.0, np.inf),
        "newest_only": (np.arange(count) % 3 == 0).astype(np.int8),
        "expires_seconds": np.where(np.arange(count) % 5, np.inf, 1.0),
    }
    fire = replace(fire, subscriptions=replace(fire.subscriptions, **hurried, **others))
    intents = [*publisher_intents(fire), *subscriber_intents(fire)]
    book = book_of(*reversed(intents))
    assert book.scenario(Network(fire), Rates()).fingerprint == fire.fingerprint


def test_what_the_network_says_about_a_name_holds_for_what_is_left_open() -> None:
    network = Network(
        loads(
            """
name: two ports
brokers: {hall: {}, annex: {}}
broker_links: [{between: [hall, annex], bandwidth_bps: 1e9}]
switches: {core: {}}
ports: {cable: {switch: core, bandwidth_bps: 1e6}, radio: {switch: core, bandwidth_bps: 1e5}}
publishers:
  camera:
    broker: annex
    error_rate: 0.01
    publishes: {video: {rate_per_second: 3, size_bytes: 900, sizes: constant,
                arrivals: {process: on_off, on_seconds: 2, off_seconds: 6}}}
subscribers: {chief: {broker: annex, port: radio, error_rate: 0.02, subscribes: {video: log:1}}}
"""
        )
    )
    book = book_of(publisher("camera", video=5.0), subscriber("chief", "video"), subscriber("stranger", "#"))
    scenario = book.scenario(network, Rates())
    assert scenario.publications.arrival_process.tolist() == [ArrivalProcess.ON_OFF]
    assert scenario.publications.rate_per_second.tolist() == [5.0]
    assert scenario.publications.size_bytes.tolist() == [40.0]
    assert scenario.publishers.error_rate.tolist() == [0.01]
    assert [scenario.ports.name[port] for port in scenario.subscribers.port] == ["radio", "cable"]
    assert scenario.subscribers.error_rate.tolist() == [0.02, 0.0]
    assert book.declared(network)["video"].silence_seconds > 6


def test_a_topic_that_appears_reaches_the_patterns_that_match_it() -> None:
    book = book_of(subscriber("ff", "floor/+/smoke"), publisher("room-1", floor_1_smoke=1.0))
    assert wanted(book.scenario(NETWORK, Rates()), "ff") == {"floor/1/smoke": 1.0}
    book.announce(publisher("room-2", floor_2_smoke=1.0, floor_2_co=1.0))
    scenario = book.scenario(NETWORK, Rates({"floor/3/smoke": 2.0}, {"floor/3/smoke": 10.0}))
    assert set(wanted(scenario, "ff")) == {"floor/1/smoke", "floor/2/smoke", "floor/3/smoke"}
    book.withdraw("publisher", "room-1")
    assert set(wanted(book.scenario(NETWORK, Rates()), "ff")) == {"floor/2/smoke"}


def test_an_exact_name_says_more_than_a_pattern_and_the_first_pattern_more_than_the_next() -> None:
    book = book_of(
        publisher("room", a_b=1.0, a_c=1.0, d=1.0),
        subscriber("ff", ("a/+", 2.0), ("#", 3.0), ("a/c", 5.0)),
    )
    assert wanted(book.scenario(NETWORK, Rates()), "ff") == {"a/b": 2.0, "a/c": 5.0, "d": 3.0}


def test_topics_without_a_rate_are_left_out_until_one_is_measured() -> None:
    book = book_of(publisher("room", silent=None, loud=4.0), subscriber("ff", "silent", "x"))
    scenario = book.scenario(NETWORK, Rates())
    assert scenario.topics.name == ("loud",)
    assert len(scenario.subscriptions) == 0
    assert scenario.subscribers.name == ("ff",)
    scenario = book.scenario(NETWORK, Rates({"silent": 3.0, "x": 1.0, "loud": 0.0}, {"x": 77.0}))
    assert wanted(scenario, "ff") == {"silent": 1.0, "x": 1.0}
    assert rates_of(scenario) == {("room", "silent"): 3.0, (UNANNOUNCED, "x"): 1.0}
    assert scenario.publications.size_bytes.tolist() == [77.0, 40.0]


def test_publishers_of_a_topic_share_what_is_measured_as_they_share_what_they_announce() -> None:
    book = book_of(publisher("a", t=1.0), publisher("b", t=3.0), publisher("c", t=None))
    assert rates_of(book.scenario(NETWORK, Rates())) == {("a", "t"): 1.0, ("b", "t"): 3.0}
    assert rates_of(book.scenario(NETWORK, Rates({"t": 12.0}))) == pytest.approx(
        {("a", "t"): 2.0, ("b", "t"): 6.0, ("c", "t"): 4.0}
    )
    assert book.declared(NETWORK)["t"].rate_per_second is None
    book.withdraw("publisher", "c")
    assert book.declared(NETWORK)["t"].rate_per_second == 4.0


def test_a_measured_size_scales_what_is_announced() -> None:
    book = book_of(publisher("a", t=1.0), PublisherIntent((PublicationIntent("t", 3.0, 80.0),), name="b"))
    sizes = book.scenario(NETWORK, Rates({}, {"t": 140.0})).publications.size_bytes
    assert sizes.tolist() == pytest.approx([80.0, 160.0])


def test_what_publishers_say_for_promises_counts_before_what_the_scenario_says() -> None:
    scenario = building(seed=1)
    table = replace(scenario.publications, max_size_bytes=scenario.publications.size_bytes * 2)
    network = Network(scenario.with_tables(publications=table))
    topic = scenario.topics.name[scenario.publications.topic[0]]
    name = scenario.publishers.name[scenario.publications.publisher[0]]
    said = PublicationIntent(topic, 2.0, 40.0, min_separation_seconds=0.25, max_separation_seconds=3.0)
    unknown = PublicationIntent("alarm", min_separation_seconds=0.5, max_size_bytes=9_000.0)
    book = book_of(PublisherIntent((said, unknown), name=name))
    found = book.scenario(network, Rates())
    assert found.topics.name == tuple(sorted(("alarm", topic)))
    rows = found.publications
    alarm, other = (found.topics.name.index(each) for each in ("alarm", topic))
    assert rows.min_separation_seconds[[alarm, other]].tolist() == [0.5, 0.25]
    assert rows.max_separation_seconds[[alarm, other]].tolist() == [np.inf, 3.0]
    assert rows.max_size_bytes[[alarm, other]].tolist() == [9_000.0, table.max_size_bytes[0]]
    # Nobody has measured it yet, and it is published as often as its separation allows.
    assert rows.rate_per_second[alarm] == 2.0
    assert book.declared(network)["alarm"].rate_per_second is None


def test_a_new_intent_replaces_the_old_one_and_a_withdrawn_one_is_gone() -> None:
    book = book_of(publisher("room", a=1.0, b=1.0), subscriber("ff", "a", "+"))
    book.announce(subscriber("ff", ("b", 9.0), flows=2))
    scenario = book.scenario(NETWORK, Rates())
    assert wanted(scenario, "ff") == {"b": 9.0}
    assert book.withdraw("subscriber", "ff")
    assert not book.withdraw("subscriber", "ff")
    assert len(book.scenario(NETWORK, Rates()).subscribers) == 0
    assert book.withdraw("publisher", "room")
    assert not book.withdraw("publisher", "room")
    assert book.scenario(NETWORK, Rates()).topics.name == ()


def test_topics_that_come_and_go_are_forgotten_and_nothing_else_changes() -> None:
    intents = (publisher("room", a=1.0, b=1.0), subscriber("ff", ("a", 3.0), "never", "once/#"))
    book = book_of(*intents)
    for hour in range(20):
        rates = Rates({f"once/{hour}/{number}": 1.0 for number in range(500)} | {"b": 7.0})
        scenario = book.scenario(NETWORK, rates)
        assert scenario.fingerprint == book_of(*intents).scenario(NETWORK, rates).fingerprint
        assert len(scenario.subscriptions) == 501
    assert len(book._topic_names) < 3_000


def test_a_subscriber_behind_a_port_that_does_not_exist_keeps_nobody_from_being_planned_for() -> None:
    book = book_of(
        publisher("room", a=1.0), subscriber("lost", "a", port="moon"), subscriber("ff", "a", flows=3)
    )
    assert book.scenario(NETWORK, Rates()).subscribers.name == ("ff",)


def test_bandwidths_change_and_nothing_else() -> None:
    slower = NETWORK.with_bandwidths({"port": 1e5})
    assert slower.scenario.ports.bandwidth_bps.tolist() == [1e5]
    assert NETWORK.scenario.ports.bandwidth_bps.tolist() == [1e7]


LEVELS = st.sampled_from(["a", "b", "$c", ""])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
PATTERNS = st.tuples(st.lists(LEVELS | st.just("+"), max_size=3), st.sampled_from(["#", "+", "a"])).map(
    lambda parts: "/".join([*parts[0], parts[1]])
)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("subscriber"),
            st.sampled_from("xyz"),
            st.lists(TOPICS | PATTERNS, max_size=4, unique=True),
        ),
        st.tuples(st.just("publisher"), st.sampled_from("pq"), st.lists(TOPICS, max_size=4, unique=True)),
        st.tuples(st.just("measured"), st.just(""), st.lists(TOPICS, max_size=3)),
    ),
    max_size=14,
)


@settings(deadline=None)
@given(STEPS)
def test_whatever_happened_before_only_what_is_in_force_counts(
    steps: list[tuple[str, str, list[str]]],
) -> None:
    book, in_force, rates = IntentBook(), {}, Rates()
    for kind, name, topics in steps:
        if kind == "measured":
            rates = Rates(dict.fromkeys(topics, 2.0), dict.fromkeys(topics, 50.0))
        elif not topics:
            in_force.pop((kind, name), None)
            book.withdraw(kind, name)
        else:
            intent = (
                subscriber(name, *topics)
                if kind == "subscriber"
                else PublisherIntent(
                    tuple(PublicationIntent(topic, 1.5, 30.0) for topic in topics), name=name
                )
            )
            in_force[kind, name] = intent
            book.announce(intent)
        book.scenario(NETWORK, rates)
    fresh = book_of(*in_force.values())
    scenario = book.scenario(NETWORK, rates)
    assert scenario.fingerprint == fresh.scenario(NETWORK, rates).fingerprint
    # What is written in canonical order from the start is not moved by putting it into order.
    tables = {name: getattr(scenario, name) for name in Scenario.__dataclass_fields__}
    assert Scenario.of(**tables).fingerprint == scenario.fingerprint
    pairs = scenario.subscriptions.subscriber.astype(np.int64) << 32 | scenario.subscriptions.topic
    assert (np.diff(pairs) > 0).all()
    expected = {
        (name, topic)
        for (kind, name), intent in in_force.items()
        if isinstance(intent, SubscriberIntent)
        for topic in scenario.topics.name
        if any(matches(each.topic, topic) for each in intent.subscriptions)
    }
    assert expected == {
        (name, topic) for name in scenario.subscribers.name for topic in wanted(scenario, name)
    }


def test_a_scenario_with_another_port_is_another_scenario() -> None:
    fire = building()
    book = book_of(*publisher_intents(fire), *subscriber_intents(fire))
    moved = replace(subscriber_intents(fire)[0], port="crew-radio")
    book.announce(moved)
    scenario = book.scenario(Network(fire), Rates())
    assert scenario.ports.name[scenario.subscribers.port[0]] == "crew-radio"


def test_a_publisher_says_where_it_sends_from() -> None:
    said = PublisherIntent((PublicationIntent("t", 3.0, 80.0),), source_address="10.0.0.7", name="b")
    book = book_of(publisher("a", t=1.0), said)
    assert book.sources() == {"b": "10.0.0.7"}
    book.announce(replace(said, source_address="fd00::7"))
    assert book.sources() == {"b": "fd00::7"}
    book.withdraw("publisher", "b")
    assert book.sources() == {}
    with pytest.raises(ParameterError, match=r"source_address: 'ward-3' is no IP address"):
        replace(said, source_address="ward-3")
