"""The control loop decides, says why, leaves alone what need not change, and never the same situation in two ways."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.coordinator.announcing import publisher_intents, subscriber_intents

from triagemq.channel.orders import (
    Orders,
    dump_orders,
    parse_orders,
    subscriber_of,
)
from triagemq.coordinator.decide.decide import (
    MOST_ROWS,
    Decided,
    PlannerSettings,
    Question,
    decide,
    flows_per_subscriber,
)
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.rates import Rates
from triagemq.errors import ParameterError
from triagemq.forecast import forecast
from triagemq.lab.generators import table2
from triagemq.plan import Decision, explain, rounds
from triagemq.plan.dataplane import SetPort
from triagemq.scenario import Scenario, UtilityShape, load, loads
from triagemq.scenario.building import building

EXAMPLE = Path(__file__).parents[3] / "examples" / "building-fire.yaml"


def book_of(scenario: Scenario) -> IntentBook:
    book = IntentBook()
    for intent in (*publisher_intents(scenario), *subscriber_intents(scenario)):
        book.announce(intent)
    return book


def faster(scenario: Scenario, topic: str, factor: float) -> Scenario:
    """The scenario with another rate of one topic."""
    published = scenario.publications
    rate = np.array(published.rate_per_second)
    rate[published.topic == scenario.topics.name.index(topic)] *= factor
    return replace(scenario, publications=replace(published, rate_per_second=rate))


def wider(scenario: Scenario, port: str, factor: float) -> Scenario:
    width = float(scenario.ports.bandwidth_bps[scenario.ports.name.index(port)])
    return Network(scenario).with_bandwidths({port: width * factor}).scenario


def kinds(decided: Decided) -> list[str]:
    return [decision.kind for decision in decided.decisions]


def test_the_same_situation_is_decided_in_the_same_way() -> None:
    first, second = decide(Question(building())), decide(Question(building()))
    assert first.orders == second.orders
    assert first.decisions == second.decisions


def test_a_situation_that_has_not_changed_keeps_its_orders() -> None:
    first = decide(Question(building()))
    again = decide(Question(building(), why=("someone asked",)), first)
    assert again.orders is first.orders
    assert not again.changed
    assert kinds(again) == ["plan_kept"]
    assert again.decisions[0].reason == "someone asked"


def test_orders_grow_by_a_generation_and_name_every_port() -> None:
    fire = building()
    first = decide(Question(fire))
    second = decide(Question(wider(fire, "crew-radio", 2.0)), first)
    assert (first.orders.generation, second.orders.generation) == (1, 2)
    width = float(fire.ports.bandwidth_bps[fire.ports.name.index("crew-radio")])
    assert second.orders.ports["crew-radio"] == SetPort("crew-radio", 2 * width, 200.0, 7)
    assert second.orders.ports["building-wifi"] == first.orders.ports["building-wifi"]


def test_queue_rates_of_queues_are_ordered_and_stay_shares_of_the_bandwidth() -> None:
    hall = loads("""
planning: {priority_classes: 2}
brokers: {hall: }
switches: {core: }
ports:
  radio: {switch: core, bandwidth_bps: 1e6, discipline: queue_rates, queue_rates_bps: [7e5, 3e5], borrowing: true}
publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
""")
    first = decide(Question(hall))
    expected = SetPort("radio", 1e6, np.inf, 2, (7e5, 3e5), borrowing=True, floors_bps=(7e4, 3e4))
    assert first.orders.ports["radio"] == expected
    second = decide(Question(wider(hall, "radio", 2.0)), first)
    assert second.orders.ports["radio"].queue_rates_bps == (1.4e6, 6e5)
    written = dump_orders(second.orders)
    assert parse_orders(written) == parse_orders(json.loads(written)) == second.orders


def test_the_planner_is_the_one_that_the_command_line_uses() -> None:
    fire = building()
    decided = decide(Question(fire))
    plan = rounds.plan(fire, flows_per_subscriber=flows_per_subscriber(fire))
    np.testing.assert_array_equal(decided.plan.subscription_class, plan.subscription_class)
    np.testing.assert_array_equal(decided.plan.flows.drop_rate, plan.flows.drop_rate)


def test_classes_are_no_more_than_the_data_plane_has() -> None:
    scenario = table2(seed=1, shared_port=True)
    for count in (8, 7, 1):
        decided = decide(Question(scenario, settings=PlannerSettings(priority_classes=count)))
        assert max(priority_class for priority_class, _ in treatments(decided)) == count - 1
        assert {flow.priority_class for flow in decided.orders.flows.values()} == {count - 1}
        assert {port.classes for port in decided.orders.ports.values()} == {count}
    short = replace(scenario, ports=replace(scenario.ports, queues=np.array([4], dtype=np.int32)))
    assert {port.classes for port in decide(Question(short)).orders.ports.values()} == {4}


def test_without_triage_there_is_one_class_and_no_drop() -> None:
    decided = decide(Question(building(), settings=PlannerSettings.no_triage()))
    assert set(treatments(decided)) == {(0, 0.0)}
    assert {flow.priority_class for flow in decided.orders.flows.values()} == {0}
    assert {port.classes for port in decided.orders.ports.values()} == {1}


def test_an_unknown_algorithm_is_an_error_in_one_line() -> None:
    with pytest.raises(ParameterError, match="optimul"):
        decide(Question(building(), settings=PlannerSettings(drops="optimul")))


def test_a_change_behind_one_port_leaves_the_flows_behind_the_other_alone() -> None:
    fire = building()
    first = decide(Question(fire))
    second = decide(Question(wider(fire, "crew-radio", 0.5)), first)
    port_of = dict(zip(fire.subscribers.name, fire.subscribers.port, strict=True))
    wifi = fire.ports.name.index("building-wifi")
    same = [name for name in first.orders.flows if port_of[subscriber_of(name)[0]] == wifi]
    assert same
    for name in same:
        assert second.orders.flows[name] is first.orders.flows[name]
    for name in fire.subscribers.name:
        same_topics = second.orders.topics[name] is first.orders.topics[name]
        assert same_topics == (port_of[name] == wifi)


@pytest.mark.parametrize("subscriptions", [slice(1, None), slice(None, -1), slice(None)])
def test_orders_after_a_change_are_those_of_a_decision_that_knows_nothing_of_before(
    subscriptions: slice,
) -> None:
    scenario = table2(seed=3, subscribers=6)
    book = book_of(scenario)
    first = decide(Question(book.scenario(Network(scenario), Rates())))
    intent = next(each for each in subscriber_intents(scenario) if each.name == scenario.subscribers.name[2])
    # Its rows move those of later subscribers; with all of them the same number of others takes their places.
    wanted = intent.subscriptions[subscriptions]
    swapped = [replace(one, topic=other.topic) for one, other in zip(wanted, reversed(wanted), strict=True)]
    book.announce(replace(intent, subscriptions=tuple(swapped)))
    question = Question(book.scenario(Network(scenario), Rates()))
    assert decide(question, first).orders.topics == decide(question).orders.topics


def test_small_changes_are_left_alone_until_they_add_up() -> None:
    """A hundred steps of a thousandth: what is in force is never far from what the plan would have."""
    fire = load(EXAMPLE)
    # A bandwidth that stays, so that only drop rates can tell: the rates creep up instead.
    decided = first = decide(Question(fire))
    changes = 0
    for step in range(1, 101):
        rate = fire.publications.rate_per_second * 1.001**step
        crept = replace(fire, publications=replace(fire.publications, rate_per_second=rate))
        decided = decide(Question(crept, why=("drift",)), decided)
        changes += decided.changed
        in_force = [drop_rate for _, drop_rate in treatments(decided)]
        np.testing.assert_allclose(in_force, 1 - decided.plan.subscription_keep, atol=0.005)
    assert 0 < changes < 50
    assert decided.orders.flows == first.orders.flows


def test_rates_that_waver_by_one_per_cent_change_no_class() -> None:
    fire = load(EXAMPLE)
    draw = np.random.default_rng(1)
    decided = first = decide(Question(fire))
    for _ in range(10):
        rate = fire.publications.rate_per_second * (1 + draw.choice([-0.01, 0.01], len(fire.publications)))
        wavered = replace(fire, publications=replace(fire.publications, rate_per_second=rate))
        decided = decide(Question(wavered, why=("measured",)), decided)
        assert classes(decided) == classes(first)
        np.testing.assert_array_equal(decided.plan.subscription_class, first.plan.subscription_class)
        assert "planned_by_forecast" not in kinds(decided)


def treatments(decided: Decided) -> list[tuple[int, float]]:
    """The class and drop rate of every subscription, in the scenario's order."""
    scenario = decided.scenario
    wanted = scenario.subscriptions
    return [
        decided.orders.topics[scenario.subscribers.name[who]][scenario.topics.name[what]]
        for who, what in zip(wanted.subscriber.tolist(), wanted.topic.tolist(), strict=True)
    ]


def classes(decided: Decided) -> list[int]:
    return [priority_class for priority_class, _ in treatments(decided)]


def test_decisions_say_why_and_what_changed_for_whom() -> None:
    fire = load(EXAMPLE)
    first = decide(Question(fire, why=("the exchange starts",)))
    assert kinds(first)[0] == "replanned"
    assert "the exchange starts" in first.decisions[0].reason
    assert f"{len(fire.subscriptions)} subscriptions new" in first.decisions[0].reason
    assert kinds(first).count("port_overloaded") == 2
    why = "rate of topic crew/1/location from 10 to 20 events/s"
    second = decide(Question(faster(fire, "crew/1/location", 2.0), why=(why,)), first)
    rows = [row for row in second.decisions if row.kind == "treated_differently"]
    assert rows
    assert all(why in row.reason for row in (second.decisions[0], *rows))
    assert all(row.before != row.after for row in rows)
    assert len({row.subject for row in rows}) == len(rows)


def test_a_port_that_carries_everything_again_is_said_to() -> None:
    fire = load(EXAMPLE)
    first = decide(Question(fire))
    second = decide(Question(wider(wider(fire, "crew-radio", 9.0), "building-wifi", 9.0)), first)
    assert {row.subject for row in second.decisions if row.kind == "port_relieved"} == {
        "crew-radio",
        "building-wifi",
    }
    assert {drop_rate for _, drop_rate in treatments(second)} == {0.0}


def test_decisions_are_bounded_in_number_however_much_changes() -> None:
    scenario = table2(seed=1, subscribers=200)
    first = decide(Question(scenario))
    assert len(first.decisions) <= 2 + 2 * MOST_ROWS
    halved = replace(scenario, ports=replace(scenario.ports, bandwidth_bps=scenario.ports.bandwidth_bps / 2))
    second = decide(Question(halved, why=("storm",)), first)
    assert second.changed
    assert len(second.decisions) <= 3 + 2 * MOST_ROWS
    assert "with another drop rate" in second.decisions[0].reason


def test_whoever_leaves_leaves_nothing_behind_and_its_bandwidth_to_the_others() -> None:
    fire = load(EXAMPLE)
    book, network = book_of(fire), Network(fire)
    first = decide(Question(book.scenario(network, Rates())))
    dropped = first.plan.flows.drop_rate @ first.plan.flows.load_bytes_per_second
    for name in ("fire-fighter-1", "fire-fighter-2", "fire-fighter-3"):
        book.withdraw("subscriber", name)
    second = decide(Question(book.scenario(network, Rates())), first)
    assert not any("fire-fighter-1" in name for name in (*second.orders.topics, *second.orders.flows))
    assert second.plan.flows.drop_rate @ second.plan.flows.load_bytes_per_second < dropped
    assert "3 subscribers leave" in second.decisions[0].reason
    back = book_of(fire)
    third = decide(Question(back.scenario(network, Rates())), second)
    ids = [flow.flow_id for flow in third.orders.flows.values()]
    assert len(set(ids)) == len(ids)
    np.testing.assert_array_equal(third.plan.flows.drop_rate, first.plan.flows.drop_rate)


def test_an_exchange_with_nobody_in_it_is_planned_too() -> None:
    empty = IntentBook().scenario(Network.plain(), Rates())
    first = decide(Question(empty))
    assert first.orders == Orders(1, {"port": SetPort("port", 10e6, 200.0, 8)})
    fire = building()
    full = decide(Question(fire), first)
    gone = decide(Question(replace_nobody(fire)), full)
    assert (gone.orders.flows, gone.orders.topics) == ({}, {})


def replace_nobody(scenario: Scenario) -> Scenario:
    book = IntentBook()
    for intent in publisher_intents(scenario):
        book.announce(intent)
    return book.scenario(Network(scenario), Rates())


def test_the_building_fire_delivers_what_matters_most_and_forecasts_it() -> None:
    """The example: at most 300 publications a second, 1.7 times what the radio carries, class 0 whole and fast."""
    fire = load(EXAMPLE)
    decided = decide(Question(fire))
    assert fire.publications.rate_per_second.sum() <= 300
    assert fire.publications.rate_per_second.min() >= 0.2
    assert decided.plan.ports.rho_offered.max() == pytest.approx(1.7, abs=0.02)
    assert decided.plan.made_by.priority_classes == 7
    predicted = forecast(fire, decided.plan, formulas=True)
    first = decided.plan.subscription_class == 0
    # A step is kept at its threshold: more would be worth no more.
    whole = first & (fire.subscriptions.utility_shape != UtilityShape.STEP)
    assert decided.plan.subscription_keep[whole].min() == 1.0
    assert predicted.success[whole].min() > 0.9999
    assert predicted.latency_seconds[first].max() < 0.03
    assert np.nanmean(predicted.success) < 0.9


def test_a_measured_bandwidth_is_planned_with_and_said_once_and_the_port_is_paced_as_stated() -> None:
    fire = load(EXAMPLE)
    stated = float(fire.ports.bandwidth_bps[fire.ports.name.index("crew-radio")])
    found = Decision(
        "bandwidth_measured", "crew-radio", f"{stated:.4g} bit/s", "half of it", "it sent no more"
    )
    first = decide(Question(fire))
    slower = Question(
        wider(fire, "crew-radio", 0.5), paced_bps={"crew-radio": stated}, measured=(found,), why=("measured",)
    )
    second = decide(slower, first)
    assert second.orders.ports == first.orders.ports
    assert second.plan.flows.drop_rate.sum() > first.plan.flows.drop_rate.sum()
    assert found in second.decisions
    assert found not in decide(slower, second).decisions
    wanted = second.scenario.subscriptions
    on_radio = second.scenario.ports.name.index("crew-radio")
    row = int(np.flatnonzero(second.scenario.subscribers.port[wanted.subscriber] == on_radio)[0])
    words = explain(
        second.scenario,
        second.plan,
        second.scenario.subscribers.name[wanted.subscriber[row]],
        second.scenario.topics.name[wanted.topic[row]],
    )
    assert "crew-radio (bandwidth_measured)" in words
