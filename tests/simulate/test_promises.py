"""What promised messages meet in a run: by hand to the microsecond, and at random never later than was proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triagemq.errors import ParameterError
from triagemq.plan import make_plan
from triagemq.scenario import (
    Brokers,
    LimiterKind,
    OutputPorts,
    PlanningSettings,
    Publications,
    Publishers,
    Scenario,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
)
from triagemq.scenario.model import filled
from triagemq.simulate import Change, DirectRoute, DirectRoutes, Limit, simulate


def one_port(scenario_of: Any) -> Scenario:
    """One port of a byte a microsecond; topics 0 and 1 from publishers of their own, topic 2 brokered. Packets carry
    100 bytes and 20 of overhead; a switch takes 10 microseconds."""
    scenario = scenario_of(
        topics=3,
        publications=[(0, 0), (1, 1), (2, 2)],
        publisher_broker=(0, 0, 0),
        subscriptions=[(0, 0), (0, 1), (0, 2)],
        overhead=20.0,
    )
    return scenario.with_tables(
        switches=replace(
            scenario.switches, packet_bytes=np.array([120.0]), multiplexing_seconds=np.array([1e-5])
        ),
        publishers=replace(
            scenario.publishers, access_switch=np.zeros(3, dtype=np.int32), access_bps=np.full(3, 8e6)
        ),
    )


def latencies(
    scenario: Scenario, plan_of: Any, sink: Any, events: list[tuple[int, int, float]], **options: Any
) -> Any:
    """Microseconds by (event, subscription) of events (publication, microsecond, bytes)."""
    routes = DirectRoutes(
        (DirectRoute(0, 0, (0,), (0,)), DirectRoute(1, 1, (0,), (1,))), options.pop("limits", {})
    )
    replay = {
        "published_ns": np.array([1000 * at for _, at, _ in events]),
        "publication": np.array([publication for publication, _, _ in events]),
        "size_bytes": np.array([size for _, _, size in events]),
    }
    simulate(scenario, plan_of(scenario, 2), routes=routes, replay=replay, warmup=0.0, sink=sink, **options)
    rows = sink.table("deliveries")
    return {
        int(event): round((delivered - published) / 1000)
        for event, published, delivered in zip(
            rows["publication_id"], rows["published_ns"], rows["delivered_ns"], strict=True
        )
    }


def test_a_message_of_several_packets_pays_its_length_once_and_a_packet_for_the_further_link(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    # 120, 120 and 70 on the access link; the last is behind the first two at the port: 10 + 3 * 120 + 70.
    found = latencies(one_port(scenario_of), plan_of, memory_sink(), [(0, 0, 250.0)])
    assert found == {0: 440}


def test_one_packet_of_a_lower_class_is_waited_for_and_no_more(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = one_port(scenario_of)
    # Five brokered packets of 120 each wait at the port when the first promised packet comes, 130 after its release:
    # the second of them is being sent until 240.
    brokered = [(2, 0, 100.0)] * 5
    found = latencies(scenario, plan_of, memory_sink(), [*brokered, (0, 0, 250.0)])
    assert found[5] == 240 + 120 + 120 + 70
    # Those that had not begun wait for all three of its packets.
    assert [found[event] for event in range(5)] == [120, 240, 670, 790, 910]


def test_a_lower_level_waits_for_a_higher_one_and_brokered_copies_for_both(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = one_port(scenario_of)
    found = latencies(scenario, plan_of, memory_sink(), [(0, 0, 250.0), (1, 0, 250.0), (2, 131, 100.0)])
    # Both levels come at 130, 250 and 320. At 250 the port is free a moment before the second packets are there, and
    # takes the first of level 1: one lower packet is all that level 0 waits for.
    assert found == {0: 440 + 120, 1: 440 + 310, 2: 750 + 120 - 131}


def test_a_publisher_that_sends_too_much_is_cut_and_a_message_without_a_packet_is_lost(
    scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = one_port(scenario_of)
    sink = memory_sink()
    limits = {0: Limit(310.0, 310.0 / 0.001)}
    # The bucket holds one message. The second comes when a third of it is back: its first packet only passes.
    latencies(scenario, plan_of, sink, [(0, 0, 250.0), (0, 330, 250.0), (0, 2000, 250.0)], limits=limits)
    rows = sink.table("deliveries")
    outcome = dict(zip(rows["publication_id"].tolist(), rows["outcome"].tolist(), strict=True))
    assert outcome == {0: 0, 1: 3, 2: 0}
    decisions = sink.table("decisions")
    assert decisions["kind"].tolist() == ["limited"]
    assert decisions["subject"].tolist() == ["publisher0000 on topic0000"]


def random_network(seed: int) -> Scenario:
    """Two to four switches in a row or a ring, publishers with one topic or several, a subscriber port per switch, and
    brokered traffic at the first of them; all at 100 Mbit/s."""
    draw = np.random.default_rng(seed)
    switches, topics, publishers = int(draw.integers(2, 5)), 6, 5
    ring = bool(draw.random() < 0.5)
    trunks = [
        (one, (one + 1) % switches) for one in range(switches if ring and switches > 2 else switches - 1)
    ]
    trunks += [(second, first) for first, second in trunks]
    ends = list(range(switches))
    guaranteed = sorted(
        {
            (int(draw.integers(0, switches)), topic)
            for topic in range(topics)
            for _ in range(int(draw.integers(1, 3)))
        }
    )
    subscriptions = [*guaranteed, (switches, topics)]
    size = draw.uniform(200.0, 20_000.0, topics)
    separation = draw.choice([0.005, 0.008, 0.02, 0.05], topics)
    fed = np.full(switches, -1, dtype=np.int32)
    return Scenario.of(
        name="random",
        topics=Topics(tuple(f"t{row}" for row in range(topics + 1))),
        brokers=filled(Brokers, 1, name=("b",)),
        switches=filled(
            Switches,
            switches,
            name=tuple(f"s{row}" for row in range(switches)),
            fed_by_port=fed,
            packet_bytes=1538.0,
            multiplexing_seconds=draw.choice([0.0, 5e-6], switches),
            limiter_precision=0.01,
        ),
        ports=filled(
            OutputPorts,
            len(trunks) + switches,
            name=tuple(f"p{row:02}" for row in range(len(trunks) + switches)),
            switch=[first for first, _ in trunks] + ends,
            to_switch=[second for _, second in trunks] + [-1] * switches,
            bandwidth_bps=1e8,
            queues=8,
            propagation_seconds=draw.choice([0.0, 1e-5]),
        ),
        publishers=filled(
            Publishers,
            publishers + 1,
            name=tuple(f"u{row}" for row in range(publishers + 1)),
            broker=0,
            access_switch=[*draw.integers(0, switches, publishers), -1],
            access_bps=[1e8] * publishers + [np.inf],
        ),
        publications=filled(
            Publications,
            topics + 1,
            publisher=[*draw.integers(0, publishers, topics), publishers],
            topic=range(topics + 1),
            rate_per_second=[*(1 / separation), 5000.0],
            min_separation_seconds=[*separation, 0.0],
            size_bytes=[*size, 1000.0],
            max_size_bytes=[*size, np.inf],
            size_distribution=[1] * topics + [0],
        ),
        subscribers=filled(
            Subscribers,
            switches + 1,
            name=tuple(f"a{row}" for row in range(switches + 1)),
            broker=0,
            port=[*(len(trunks) + row for row in ends), len(trunks)],
        ),
        subscriptions=filled(
            Subscriptions,
            len(subscriptions),
            subscriber=[subscriber for subscriber, _ in subscriptions],
            topic=[topic for _, topic in subscriptions],
            guaranteed=[1] * len(guaranteed) + [0],
            max_latency_seconds=[0.03] * len(guaranteed) + [np.inf],
            utility_weight=[0.0] * len(guaranteed) + [1.0],
        ),
        planning=PlanningSettings(priority_classes=2),
        mtu_bytes=1538.0,
        overhead_bytes=66.0,
    )


def assert_kept(scenario: Scenario, others: Any = None, **options: Any) -> Any:
    plan = make_plan(scenario)
    assert plan.promises.admitted.sum() >= 3
    found = simulate(scenario, plan, duration_seconds=2.0, warmup=0.0, **options)
    promises = found.promises
    rows = np.arange(len(promises)) if others is None else others(promises)
    assert (promises.messages[rows] > 0).all()
    assert promises.lost[rows].sum() == promises.limited[rows].sum() == promises.late[rows].sum() == 0
    assert (promises.worst_latency_seconds[rows] <= promises.bound_seconds[rows]).all()
    assert found.subscriptions.delivered[plan.flow >= 0].sum() > 0
    return promises


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("synchronised", [False, True])
def test_no_message_is_lost_or_later_than_its_bound_beside_brokered_traffic(
    seed: int, synchronised: bool
) -> None:
    assert_kept(random_network(seed), synchronised=synchronised, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 60))
def test_no_message_is_later_than_its_bound_in_many_networks(seed: int) -> None:
    assert_kept(random_network(seed), synchronised=bool(seed % 2), seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_babbling_publisher_behind_a_window_harms_nobody(seed: int) -> None:
    scenario = random_network(seed)
    name = next(
        scenario.publishers.name[row]
        for row in scenario.publications.publisher
        if row < len(scenario.publishers) - 1
    )

    def others(promises: Any) -> Any:
        return np.array([row for row, each in enumerate(promises.publisher) if each != name])

    promises = assert_kept(scenario, others, babbling=(name,), limiter="window", synchronised=True, seed=seed)
    cut = np.array([each == name for each in promises.publisher])
    assert promises.limited[cut].sum() > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_babbling_publisher_behind_a_token_bucket_harms_nobody_whose_bound_counts_it(seed: int) -> None:
    drawn = random_network(seed)
    kind = np.full_like(drawn.switches.limiter, LimiterKind.BUCKET)
    scenario = drawn.with_tables(switches=replace(drawn.switches, limiter=kind))
    name = scenario.publishers.name[scenario.publications.publisher[0]]

    def others(promises: Any) -> Any:
        return np.array([row for row, each in enumerate(promises.publisher) if each != name])

    promises = assert_kept(scenario, others, babbling=(name,), synchronised=True, seed=seed)
    windows = simulate(drawn, make_plan(drawn), duration_seconds=0.1, warmup=0.0).promises
    both = [
        (bound, windows.bound_seconds[row])
        for row, pair in enumerate(zip(windows.topic, windows.subscriber, strict=True))
        for other, bound in enumerate(promises.bound_seconds)
        if pair == (promises.topic[other], promises.subscriber[other])
    ]
    assert any(behind > before for behind, before in both)


def test_a_rate_above_what_was_declared_is_cut_from_then_on() -> None:
    scenario = random_network(2)
    plan = make_plan(scenario)
    promised = int(plan.promises.publication[0])
    rate = scenario.publications.rate_per_second.copy()
    rate[promised] *= 3
    changes = (Change(1.0, publication_rate=rate),)
    kept = simulate(scenario, plan, duration_seconds=1.0, warmup=0.0, changes=changes)
    broken = simulate(scenario, plan, duration_seconds=2.0, warmup=0.0, changes=changes)
    assert kept.promises.limited.sum() == 0
    assert kept.decisions == ()
    publisher = scenario.publishers.name[scenario.publications.publisher[promised]]
    topic = scenario.topics.name[scenario.publications.topic[promised]]
    assert [each.subject for each in broken.decisions] == [f"{publisher} on {topic}"]
    cut = np.array([each == topic for each in broken.promises.topic])
    assert (broken.promises.limited[cut] > 0).all()
    assert broken.promises.limited[~cut].sum() == 0


def test_the_same_seed_gives_the_same_run_whatever_the_threads_and_blocks() -> None:
    scenario = random_network(3)
    plan = make_plan(scenario)
    first = simulate(scenario, plan, duration_seconds=0.5, replications=3, threads=1)
    second = simulate(scenario, plan, duration_seconds=0.5, replications=3, threads=3, block_events=5)
    for name in ("messages", "delivered", "worst_latency_seconds", "mean_latency_seconds"):
        assert getattr(first.promises, name).tolist() == getattr(second.promises, name).tolist()
    assert first.copies == second.copies


def test_brokered_copies_wait_for_promised_ones() -> None:
    scenario = random_network(1)
    plan = make_plan(scenario)
    brokered = np.flatnonzero(plan.flow >= 0)
    beside = simulate(scenario, plan, duration_seconds=2.0, seed=1)
    alone = simulate(
        scenario, plan, duration_seconds=2.0, seed=1, routes=DirectRoutes((DirectRoute(0, 0, (0,), (0,)),))
    )
    assert (beside.subscriptions.mean_latency_seconds > alone.subscriptions.mean_latency_seconds)[
        brokered
    ].all()


def test_who_is_said_to_babble_must_have_promised_something() -> None:
    scenario = random_network(1)
    plan = make_plan(scenario)
    with pytest.raises(ParameterError, match="no publisher is called"):
        simulate(scenario, plan, duration_seconds=0.1, babbling=("nobody",))
    with pytest.raises(ParameterError, match="is promised"):
        simulate(scenario, plan, duration_seconds=0.1, babbling=(scenario.publishers.name[-1],))
    with pytest.raises(ParameterError, match="window or bucket"):
        simulate(scenario, plan, duration_seconds=0.1, limiter="fence")
