"""The generated scenarios: the papers' counts, ranges and loads, and a building that a person recognises."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triagemq.errors import ParameterError
from triagemq.lab.generators import prototype, table2
from triagemq.lab.generators.columns import truncated_exponential
from triagemq.plan import make_plan
from triagemq.scenario import (
    ArrivalProcess,
    Floats,
    Scenario,
    SizeDistribution,
    UtilityShape,
    maximum_utility,
)
from triagemq.scenario.building import building

NAN = math.nan


def topic_bytes_per_second(scenario: Scenario) -> Floats:
    """Per topic, (event bytes + overhead) times rate, over all its publishers."""
    published = scenario.publications
    on_the_wire = (published.size_bytes + scenario.overhead_bytes) * published.rate_per_second
    return np.asarray(
        np.bincount(published.topic, on_the_wire, minlength=len(scenario.topics)), dtype=np.float64
    )


def offered_rho(scenario: Scenario) -> Floats:
    """Per port, what its subscribers ask for over what it can carry."""
    wanted = scenario.subscriptions
    load = np.bincount(
        scenario.subscribers.port[wanted.subscriber],
        topic_bytes_per_second(scenario)[wanted.topic],
        minlength=len(scenario.ports),
    )
    return load / (scenario.ports.bandwidth_bps / 8)


def rank(scenario: Scenario) -> Floats:
    """U_r(1) per byte per second (theory.md section 3)."""
    wanted = scenario.subscriptions
    return maximum_utility(wanted) / topic_bytes_per_second(scenario)[wanted.topic]


def sizes_by_topic(scenario: Scenario) -> dict[str, float]:
    published = scenario.publications
    return {
        scenario.topics.name[topic]: size
        for topic, size in zip(published.topic, published.size_bytes, strict=True)
    }


def published_rates(scenario: Scenario) -> dict[tuple[str, str], float]:
    published = scenario.publications
    return {
        (scenario.publishers.name[publisher], scenario.topics.name[topic]): rate
        for publisher, topic, rate in zip(
            published.publisher, published.topic, published.rate_per_second, strict=True
        )
    }


def weights(scenario: Scenario) -> dict[tuple[str, str], float]:
    wanted = scenario.subscriptions
    return {
        (scenario.subscribers.name[subscriber], scenario.topics.name[topic]): weight
        for subscriber, topic, weight in zip(
            wanted.subscriber, wanted.topic, wanted.utility_weight, strict=True
        )
    }


def is_event(scenario: Scenario) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([name.startswith("event-") for name in scenario.topics.name])


@pytest.mark.parametrize("generate", [table2, building, prototype])
def test_the_same_seed_gives_the_same_scenario_and_another_seed_another(
    generate: Callable[..., Scenario],
) -> None:
    assert generate(seed=3).fingerprint == generate(seed=3).fingerprint
    assert generate(seed=3).fingerprint != generate(seed=4).fingerprint


@pytest.mark.parametrize("generate", [table2, building, prototype])
def test_every_subscribed_topic_is_published_and_no_pair_comes_twice(
    generate: Callable[..., Scenario],
) -> None:
    scenario = generate(seed=5)
    assert set(scenario.subscriptions.topic) <= set(scenario.publications.topic)
    assert len(weights(scenario)) == len(scenario.subscriptions)
    assert len(published_rates(scenario)) == len(scenario.publications)


@pytest.mark.parametrize("generate", [table2, building, prototype])
def test_what_a_generator_does_not_set_is_none(generate: Callable[..., Scenario]) -> None:
    scenario = generate(seed=0)
    assert (scenario.publications.size_samples == -1).all()
    assert (scenario.publications.pareto_shape == 0).all()
    assert (scenario.publications.min_separation_seconds == 0).all()
    assert np.isinf(scenario.publications.max_separation_seconds).all()
    assert np.isinf(scenario.subscriptions.max_latency_seconds).all()
    assert np.isinf(scenario.subscriptions.max_separation_seconds).all()
    assert (scenario.switches.fed_by_port == -1).all()
    assert (scenario.ports.queues == 0).all()


class TestTruncatedExponential:
    def test_agrees_with_redrawing_in_mean_and_deviation(self) -> None:
        stream = np.random.default_rng(1)
        redrawn = stream.exponential(110, 400_000)
        redrawn = redrawn[(redrawn >= 90) & (redrawn <= 500)]
        inverse = truncated_exponential(stream.random(len(redrawn)), 110, 90, 500)
        error = redrawn.std() * math.sqrt(2 / len(redrawn))
        assert inverse.mean() == pytest.approx(redrawn.mean(), abs=4 * error)
        assert inverse.std() == pytest.approx(redrawn.std(), rel=0.02)

    def test_without_upper_bound_is_a_shifted_exponential(self) -> None:
        values = truncated_exponential(np.array([0.0, 0.5]), 2.0, 1.0, np.inf)
        assert values == pytest.approx([1.0, 1.0 + 2.0 * math.log(2)])

    def test_of_one_point_is_that_point(self) -> None:
        assert (truncated_exponential(np.array([0.0, 0.3, 0.999]), 2.0, 5.0, 5.0) == 5.0).all()


class TestTable2:
    def test_has_the_counts_of_the_table(self) -> None:
        scenario = table2()
        assert (len(scenario.topics), len(scenario.publishers)) == (200, 160)
        assert (len(scenario.subscribers), len(scenario.ports)) == (10, 10)
        assert (len(scenario.brokers), len(scenario.switches)) == (1, 1)
        events = is_event(scenario)
        of_events = events[scenario.subscriptions.topic]
        assert (np.bincount(scenario.subscriptions.subscriber[of_events]) == 42).all()
        assert (np.bincount(scenario.subscriptions.subscriber[~of_events]) == 70).all()
        events_published = events[scenario.publications.topic]
        assert (np.bincount(scenario.publications.publisher[events_published]) == 4).all()
        assert (np.bincount(scenario.publications.publisher[~events_published]) == 4).all()
        assert scenario.planning.flows_per_subscriber == scenario.planning.priority_classes == 9
        assert scenario.planning.rho_tolerance == 0.1

    def test_pads_names_to_the_width_of_their_count(self) -> None:
        scenario = table2()
        assert {"telemetry-001", "telemetry-140", "event-01", "event-60"} <= set(scenario.topics.name)
        assert scenario.publishers.name[6] == "publisher-007"
        assert scenario.subscribers.name[0] == "subscriber-01"
        assert scenario.ports.name[0] == "port-01"

    @pytest.mark.parametrize("seed", range(3))
    def test_stays_inside_every_range_and_fills_it(self, seed: int) -> None:
        scenario = table2(seed=seed)
        published, wanted, events = scenario.publications, scenario.subscriptions, is_event(scenario)
        for values, rows, low, high in [
            (published.rate_per_second, ~events[published.topic], 4, 7),
            (published.rate_per_second, events[published.topic], 3, 5),
            (published.size_bytes, ~events[published.topic], 90, 500),
            (published.size_bytes, events[published.topic], 500, 1100),
            (wanted.utility_weight, ~events[wanted.topic], 0.01, 2),
            (wanted.utility_weight, events[wanted.topic], 0.1, 4),
        ]:
            assert low <= values[rows].min() < low + 0.1 * (high - low)
            assert low + 0.7 * (high - low) < values[rows].max() <= high

    def test_gives_a_topic_one_size_at_all_its_publishers(self) -> None:
        published = table2().publications
        for topic in np.unique(published.topic):
            assert len(set(published.size_bytes[published.topic == topic])) == 1

    @pytest.mark.parametrize(
        ("subscriptions", "rho"), [((70, 42), 1.666), ((21, 15), 0.577), ((42, 24), 0.963)]
    )
    def test_offers_the_loads_of_the_papers(self, subscriptions: tuple[int, int], rho: float) -> None:
        loads = [offered_rho(table2(seed=seed, subscriptions=subscriptions)).mean() for seed in range(10)]
        assert np.mean(loads) == pytest.approx(rho, rel=0.03)

    def test_offers_one_shared_port_the_same_load(self) -> None:
        shared = table2(shared_port=True)
        assert shared.ports.name == ("port-01",)
        assert shared.ports.bandwidth_bps[0] == 80e6
        assert (shared.subscribers.port == 0).all()
        assert offered_rho(shared)[0] == pytest.approx(offered_rho(table2()).mean())

    def test_gives_a_shared_port_the_bandwidth_it_is_told(self) -> None:
        assert table2(shared_port=True, bandwidth_bps=5e6).ports.bandwidth_bps[0] == 5e6
        assert (table2(bandwidth_bps=5e6).ports.bandwidth_bps == 5e6).all()

    def test_fewer_subscriptions_are_a_part_of_more_and_change_nothing_else(self) -> None:
        few, many = table2(seed=2, subscriptions=(21, 15)), table2(seed=2)
        assert weights(few).items() <= weights(many).items()
        assert published_rates(few) == published_rates(many)
        assert sizes_by_topic(few) == sizes_by_topic(many)

    def test_more_subscribers_leave_the_first_ones_as_they_were(self) -> None:
        ten, fifty = weights(table2(seed=2)), weights(table2(seed=2, subscribers=50))
        assert ten.items() <= fifty.items()

    def test_another_range_of_event_sizes_leaves_telemetry_and_rates_alone(self) -> None:
        usual, other = table2(seed=2), table2(seed=2, size_ranges=((90, 500), (200, 300)))
        assert published_rates(usual) == published_rates(other)
        assert weights(usual) == weights(other)
        changed = {
            topic for topic, size in sizes_by_topic(usual).items() if sizes_by_topic(other)[topic] != size
        }
        assert {topic.split("-")[0] for topic in changed} == {"event"}

    def test_the_event_weight_factor_multiplies_event_weights_only(self) -> None:
        usual, heavy = weights(table2()), weights(table2(event_weight_factor=10))
        for pair, weight in usual.items():
            assert heavy[pair] == pytest.approx(weight * (10 if pair[1].startswith("event-") else 1))

    def test_passes_on_sizes_buffer_freshness_and_planning(self) -> None:
        scenario = table2(
            sizes="constant",
            buffer_packets=2000,
            freshness_seconds=0.5,
            flows_per_subscriber=70,
            priority_classes=3,
            rho_tolerance=0,
        )
        assert (scenario.publications.size_distribution == SizeDistribution.CONSTANT).all()
        assert (scenario.ports.buffer_packets == 2000).all()
        assert (scenario.subscriptions.freshness_seconds == 0.5).all()
        assert scenario.planning.flows_per_subscriber == 70
        assert scenario.planning.priority_classes == 3
        assert scenario.planning.rho_tolerance == 0

    def test_may_leave_one_kind_unsubscribed(self) -> None:
        scenario = table2(subscriptions=(5, 0))
        assert len(scenario.subscriptions) == 50
        assert not is_event(scenario)[scenario.subscriptions.topic].any()

    def test_says_how_many_subscriptions_are_possible(self) -> None:
        with pytest.raises(
            ParameterError, match=r"asks for 70 telemetry .* write at most \d+, or more topics"
        ):
            table2(publishers=10)

    @pytest.mark.parametrize(
        ("wrong", "parameter"),
        [
            ({"seed": -1}, "seed"),
            ({"seed": 1.5}, "seed"),
            ({"subscribers": 0}, "subscribers"),
            ({"publishers": 0}, "publishers"),
            ({"publishers": True}, "publishers"),
            ({"topics": (0, 60)}, "topics"),
            ({"topics": 200}, "topics"),
            ({"topics": (1, 2, 3)}, "topics"),
            ({"subscriptions": (-1, 1)}, "subscriptions"),
            ({"subscriptions": (0, 0)}, "subscriptions"),
            ({"subscriptions": (70, 61)}, "subscriptions"),
            ({"topics_per_publisher": (4, 61)}, "topics_per_publisher"),
            ({"topics_per_publisher": (0, 4)}, "topics_per_publisher"),
            ({"rate_means": (NAN, 4)}, "rate_means"),
            ({"rate_means": (6, 0)}, "rate_means"),
            ({"rate_ranges": ((7, 4), (3, 5))}, "rate_ranges"),
            ({"rate_ranges": ((0, 4), (3, 5))}, "rate_ranges"),
            ({"rate_ranges": (4, 7)}, "rate_ranges"),
            ({"size_ranges": ((90, NAN), (500, 1100))}, "size_ranges"),
            ({"weight_ranges": ((-1, 2), (0.1, 4))}, "weight_ranges"),
            ({"event_weight_factor": -1}, "event_weight_factor"),
            ({"freshness_seconds": 0}, "freshness_seconds"),
            ({"sizes": "empirical"}, "sizes"),
            ({"bandwidth_bps": math.inf}, "bandwidth_bps"),
            ({"bandwidth_bps": 0}, "bandwidth_bps"),
            ({"buffer_packets": 0}, "buffer_packets"),
            ({"flows_per_subscriber": 0}, "flows_per_subscriber"),
            ({"priority_classes": 2.0}, "priority_classes"),
            ({"rho_tolerance": 1}, "rho_tolerance"),
            ({"rho_tolerance": NAN}, "rho_tolerance"),
        ],
    )
    def test_refuses_impossible_arguments_by_name(self, wrong: dict[str, Any], parameter: str) -> None:
        with pytest.raises(ParameterError) as refused:
            table2(**wrong)
        assert refused.value.parameter == parameter
        assert "write" in refused.value.problem


class TestPrototype:
    @pytest.mark.parametrize("rho", [0.5, 0.9, 1.7])
    @pytest.mark.parametrize("subscribers", [10, 100])
    def test_offers_the_load_asked_for_on_one_port(self, rho: float, subscribers: int) -> None:
        scenario = prototype(rho=rho, subscribers=subscribers)
        assert scenario.ports.bandwidth_bps == pytest.approx([32_000 * subscribers])
        assert offered_rho(scenario) == pytest.approx([rho])

    def test_has_the_counts_of_the_table(self) -> None:
        scenario = prototype()
        assert (len(scenario.topics), len(scenario.publishers), len(scenario.publications)) == (7, 10, 70)
        assert (np.bincount(scenario.subscriptions.subscriber) == 7).all()
        assert (scenario.publications.arrival_process == ArrivalProcess.POISSON).all()
        assert (scenario.publications.size_distribution == SizeDistribution.CONSTANT).all()
        assert scenario.overhead_bytes == 49

    def test_gives_the_papers_load_at_the_papers_rate_without_headers(self) -> None:
        """One event a second on every topic of ten publishers is 1.75 times the port (experiments.md)."""
        assert (prototype(rho=1.75, overhead_bytes=0).publications.rate_per_second == 1.0).all()

    def test_draws_the_weight_of_each_subscription_with_the_mean_and_range_of_the_table(self) -> None:
        weights = np.concatenate(
            [prototype(subscribers=100, seed=seed).subscriptions.utility_weight for seed in range(30)]
        )
        assert weights.min() >= 0.01
        assert weights.max() <= 100
        assert weights.mean() == pytest.approx(5, abs=4 * weights.std() / np.sqrt(len(weights)))

    @pytest.mark.parametrize(("subscribers", "topics"), [(10, 7), (100, 7), (3, 5), (1, 1)])
    def test_has_one_subscription_a_flow_and_as_many_flows_in_each_class(
        self, subscribers: int, topics: int
    ) -> None:
        scenario = prototype(subscribers=subscribers, topics=topics)
        assert scenario.planning.flows_per_subscriber == scenario.planning.priority_classes == topics
        assert np.bincount(make_plan(scenario).subscription_class).tolist() == [subscribers] * topics

    @pytest.mark.parametrize(
        "wrong",
        [
            {"seed": -1},
            {"subscribers": 0},
            {"topics": 0},
            {"publishers_per_topic": 0},
            {"rho": 0},
            {"rho": NAN},
            {"event_bytes": 0},
            {"overhead_bytes": -1},
            {"bandwidth_bps_per_subscriber": math.inf},
            {"sizes": "pareto"},
            {"buffer_packets": NAN},
            {"rho_tolerance": -0.1},
        ],
    )
    def test_refuses_impossible_arguments_by_name(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ParameterError) as refused:
            prototype(**wrong)
        assert refused.value.parameter == next(iter(wrong))


class TestBuilding:
    @pytest.mark.parametrize("overload", [0.8, 1.7, 3.0])
    @pytest.mark.parametrize("seed", [0, 9])
    def test_overloads_both_ports_as_asked(self, overload: float, seed: int) -> None:
        scenario = building(seed=seed, overload=overload)
        assert scenario.ports.name == ("building-wifi", "crew-radio")
        assert offered_rho(scenario) == pytest.approx([overload, overload])

    def test_publishes_at_most_three_hundred_events_a_second(self) -> None:
        assert 50 < building().publications.rate_per_second.sum() < 300

    def test_has_topics_a_person_recognises(self) -> None:
        assert {
            "building/floor-2/room-04/smoke",
            "building/floor-2/room-04/occupancy",
            "building/floor-1/water-pressure",
            "building/floor-3/corridor/video-thumbnail",
            "building/floor-3/evacuation",
            "crew/ff-03/location",
            "crew/ff-03/air-pressure",
            "crew/ff-03/heart-rate",
            "command/orders",
        } <= set(building().topics.name)

    def test_counts_follow_the_arguments(self) -> None:
        scenario = building(floors=4, rooms_per_floor=3, fire_fighters=5, occupants=7)
        assert len(scenario.topics) == 4 * (3 * 4 + 3) + 5 * 3 + 1
        assert len(scenario.publishers) == 4 * 3 + 4 + 5 + 2
        assert len(scenario.subscribers) == 5 + 7 + 2

    def test_crew_and_commander_share_the_radio_and_the_others_the_wifi(self) -> None:
        scenario = building()
        for name, port in zip(scenario.subscribers.name, scenario.subscribers.port, strict=True):
            on_radio = name.startswith("ff-") or name == "incident-commander"
            assert scenario.ports.name[port] == ("crew-radio" if on_radio else "building-wifi")

    def test_has_one_broker_and_a_sensor_network_that_is_nearly_idle(self) -> None:
        scenario = building()
        assert scenario.brokers.name == ("bms",)
        assert len(scenario.switches) == len(scenario.unmanaged_switches) == 1
        assert (scenario.publishers.unmanaged_switch == 0).all()
        published_bps = 8 * topic_bytes_per_second(scenario).sum()
        assert published_bps < 0.01 * scenario.unmanaged_switches.bandwidth_bps[0]

    def test_the_commander_wants_everything_but_the_orders(self) -> None:
        scenario = building()
        wanted = {topic for name, topic in weights(scenario) if name == "incident-commander"}
        assert set(scenario.topics.name) - wanted == {"command/orders"}

    def test_smoke_ranks_above_water_pressure_for_every_fire_fighter(self) -> None:
        scenario = building()
        worth: dict[tuple[str, str], list[float]] = {}
        wanted = scenario.subscriptions
        for subscriber, topic, value in zip(wanted.subscriber, wanted.topic, rank(scenario), strict=True):
            signal = scenario.topics.name[topic].rsplit("/")[-1]
            worth.setdefault((scenario.subscribers.name[subscriber], signal), []).append(value)
        for number in range(1, 7):
            assert min(worth[f"ff-{number:02}", "smoke"]) > max(worth[f"ff-{number:02}", "water-pressure"])

    def test_nobody_inside_watches_the_smoke_of_another_floor(self) -> None:
        floors: dict[str, set[str]] = {}
        for name, topic in weights(building()):
            if topic.endswith("/smoke"):
                floors.setdefault(name, set()).add(topic.split("/")[1])
        assert len(floors.pop("incident-commander")) == 3
        assert {len(seen) for seen in floors.values()} == {1}

    def test_no_fire_fighter_is_told_where_they_are_themselves(self) -> None:
        wanted = weights(building())
        assert ("ff-01", "crew/ff-02/location") in wanted
        assert not any(f"crew/{name}/" in topic for name, topic in wanted)

    def test_mixes_arrivals_sizes_and_utilities(self) -> None:
        scenario = building()
        published, wanted = scenario.publications, scenario.subscriptions
        assert set(published.arrival_process) == {
            ArrivalProcess.PERIODIC,
            ArrivalProcess.POISSON,
            ArrivalProcess.ON_OFF,
        }
        bursts = published.arrival_process == ArrivalProcess.ON_OFF
        assert (published.on_seconds[bursts] > 0).all()
        assert (published.off_seconds[bursts] > 0).all()
        assert (published.on_seconds[~bursts] == 0).all()
        assert set(published.size_distribution) == {SizeDistribution.CONSTANT, SizeDistribution.EXPONENTIAL}
        assert set(wanted.utility_shape) == set(UtilityShape)
        steps = wanted.utility_shape == UtilityShape.STEP
        assert (wanted.utility_threshold[steps] == 0.5).all()
        assert (wanted.utility_threshold[~steps] == 0).all()
        located = np.array([name.endswith("/location") for name in scenario.topics.name])[wanted.topic]
        assert np.isfinite(wanted.freshness_seconds[located]).all()
        assert np.isinf(wanted.freshness_seconds[~located]).all()

    def test_rooms_differ_by_at_most_a_tenth_and_smoke_doubles_on_the_fire_floor(self) -> None:
        rates: dict[str, list[float]] = {}
        for (_, topic), rate in published_rates(building()).items():
            if topic.endswith("/smoke"):
                rates.setdefault(topic.split("/")[1], []).append(rate)
        for floor, usual in {"floor-1": 2.0, "floor-2": 4.0, "floor-3": 2.0}.items():
            assert len(set(rates[floor])) == 6
            assert rates[floor] == pytest.approx([usual] * 6, rel=0.1)

    def test_the_seed_changes_rates_and_bandwidths_alone(self) -> None:
        one, other = building(seed=1), building(seed=2)
        same = replace(
            other,
            publications=replace(other.publications, rate_per_second=one.publications.rate_per_second),
            ports=replace(other.ports, bandwidth_bps=one.ports.bandwidth_bps),
        )
        assert same.fingerprint == one.fingerprint

    @pytest.mark.parametrize(
        "wrong",
        [
            {"seed": -1},
            {"floors": 0},
            {"rooms_per_floor": 0},
            {"fire_fighters": 0},
            {"occupants": 2.5},
            {"overload": 0},
            {"overload": NAN},
            {"overload": math.inf},
            {"buffer_packets": 0},
        ],
    )
    def test_refuses_impossible_arguments_by_name(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ParameterError) as refused:
            building(**wrong)
        assert refused.value.parameter == next(iter(wrong))
