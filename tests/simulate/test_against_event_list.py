"""The engine against a slow, obvious simulator: one list of events, one object per queue, whole networks at random.

Both draw the same numbers for the same things, so every copy must end in the same way at the same nanosecond.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.simulate.slow_network import TERMS, Network, with_terms

from triagemq.scenario import SendingOrder
from triagemq.simulate import Change, simulate


def run_both(scenario: Any, plan: Any, sink: Any, replay: Any, changes: Any = (), **options: Any) -> Any:
    ends = options.get("duration_seconds", np.inf)
    oracle = Network(scenario, plan, changes, replay, 7, ends)
    oracle.events.run()
    simulate(scenario, plan, seed=7, warmup=0.0, replay=replay, sink=sink, changes=changes, **options)
    rows = sink.table("deliveries")
    names = ("outcome", "priority_class", "enqueued_ns", "dequeued_ns", "delivered_ns")
    ours = {
        (int(event), int(row)): tuple(int(rows[name][place]) for name in names)
        for place, (event, row) in enumerate(
            zip(rows["publication_id"], rows["subscription_id"], strict=True)
        )
    }
    assert len(ours) == len(rows["outcome"]), "a copy ended twice"
    return ours, oracle.ended


def random_case(seed: int, scenario_of: Any, plan_of: Any) -> tuple[Any, Any, Any]:
    """A network with several brokers both ways, a tree of switches, shared ports, small buffers and lossy links."""
    draw = np.random.default_rng(seed)
    brokers = int(draw.integers(1, 5))
    links = [(a, b) for a in range(brokers) for b in range(brokers) if abs(a - b) == 1]
    if brokers > 2 and seed % 2:
        links += [(0, brokers - 1), (brokers - 1, 0)]
    links = sorted(set(links))
    if seed % 5 == 0:
        links = links[:-1]
    topics, publishers, subscribers = 5, 4, 6
    publications = [(p, t) for p in range(publishers) for t in range(topics) if draw.random() < 0.5] or [
        (0, 0)
    ]
    subscriptions = [(s, t) for s in range(subscribers) for t in range(topics) if draw.random() < 0.7]
    # Switch 0 hangs at the brokers with ports 0-2, switch 1 below port 0 with ports 3-4, switch 2 below port 3
    # with port 5, switch 3 at the brokers with port 6.
    exact = seed % 4 == 3
    scenario = scenario_of(
        topics=topics,
        publications=publications,
        publisher_broker=draw.integers(0, brokers, publishers).tolist(),
        publisher_switch=draw.integers(-1, 2, publishers).tolist(),
        publisher_error=0.0 if exact else draw.random(publishers) * 0.1,
        publisher_propagation=draw.choice([0.0, 0.001, 0.05], publishers),
        unmanaged_bandwidth=[4e5, 1e6],
        brokers=brokers,
        inbound_rate=np.inf if exact else draw.choice([400.0, 2000.0], brokers),
        outbound_rate=np.inf if exact else draw.choice([150.0, 1000.0], brokers),
        links=links,
        link_bandwidth=3e5,
        link_error=0.0 if exact else 0.05,
        link_propagation=draw.choice([0.001, 0.002], len(links)) if not exact else 0.001,
        fed_by=(-1, 0, 3, -1),
        switch_rate=np.inf if exact else draw.choice([800.0, 5000.0], 4),
        port_switch=(0, 0, 0, 1, 1, 2, 3),
        bandwidth=draw.choice([1e5, 2e5, 4e5], 7),
        buffer=draw.choice([1.0, 2.0, 5.0, 20.0, np.inf], 7),
        port_error=0.0 if exact else 0.03,
        port_propagation=draw.choice([0.0, 0.004], 7),
        subscriber_broker=draw.integers(0, brokers, subscribers).tolist(),
        subscriber_port=draw.choice([0, 1, 2, 3, 4, 5, 5, 6, 6], subscribers).tolist(),
        subscriber_error=0.0 if exact else draw.random(subscribers) * 0.1,
        subscriber_propagation=draw.choice([0.0, 0.01], subscribers),
        subscriptions=subscriptions,
        mtu=np.inf if seed % 3 else 220.0,
        overhead=20.0,
        sending_order=SendingOrder(seed // 2 % 2),
    )
    rows = 400
    times = np.sort(draw.integers(0, 2_000_000_000, rows))
    if exact:
        times = times // 50_000_000 * 50_000_000
    replay = {
        "published_ns": times,
        "publication": draw.integers(0, len(publications), rows),
        "size_bytes": draw.choice([40.0, 100.0, 500.0, 900.0], rows)
        if exact
        else draw.exponential(150.0, rows),
    }
    drops = 0.0 if seed % 2 else draw.choice([0.0, 0.3, 1.0], len(subscriptions), p=[0.5, 0.4, 0.1])
    return scenario, plan_of(scenario, draw.integers(0, 4, len(subscriptions)), drops), replay


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("block_events", [None, 7])
def test_every_copy_ends_as_in_an_event_list(
    seed: int, block_events: int | None, scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario, plan, replay = random_case(seed, scenario_of, plan_of)
    ours, theirs = run_both(scenario, plan, memory_sink(), replay, block_events=block_events)
    assert ours == theirs


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("block_events", [None, 7])
def test_thinned_superseded_and_expired_copies_end_as_in_an_event_list(
    seed: int, block_events: int | None, scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario, plan, replay = random_case(seed, scenario_of, plan_of)
    scenario = with_terms(scenario, seed)
    plan = plan_of(scenario, plan.subscription_class, 1 - plan.subscription_keep)
    options = {"duration_seconds": 1.7} if seed % 4 == 1 else {}
    ours, theirs = run_both(scenario, plan, memory_sink(), replay, block_events=block_events, **options)
    assert ours == theirs
    assert {ended[0] for ended in ours.values()} >= TERMS


@pytest.mark.parametrize("seed", range(6))
def test_changes_and_the_end_of_time_as_in_an_event_list(
    seed: int, scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario, plan, replay = random_case(100 + seed, scenario_of, plan_of)
    draw = np.random.default_rng(seed)
    count, ports = len(scenario.subscriptions), len(scenario.ports)
    changes = [
        Change(0.4, active_subscriptions=draw.random(count) < 0.6),
        Change(0.7, plan=plan_of(scenario, draw.integers(0, 6, count), 0.2)),
        Change(0.8, port_error=draw.random(ports) * 0.2, subscriber_error=draw.random(6) * 0.3),
        Change(0.9, bandwidth_bps=draw.choice([5e4, 3e5], ports)),
        Change(1.0, publisher_error=draw.random(4) * 0.4),
        Change(1.2, active_subscriptions=draw.random(count) < 0.8, bandwidth_bps=np.full(ports, 4e5)),
        Change(2.5, active_subscriptions=np.ones(count, dtype=bool)),
    ]
    options = {"duration_seconds": 1.7} if seed % 2 else {}
    ours, theirs = run_both(scenario, plan, memory_sink(), replay, changes, **options)
    assert ours == theirs


@pytest.mark.parametrize("seed", range(4))
def test_trees_whose_trunks_outgrow_their_buffers_as_in_an_event_list(
    seed: int, tree_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario = tree_of(seed)
    draw = np.random.default_rng(seed)
    rows = 240
    replay = {
        "published_ns": np.sort(draw.integers(0, 1_500_000_000, rows)),
        "publication": draw.integers(0, len(scenario.publications), rows),
        "size_bytes": draw.exponential(250.0, rows),
    }
    plan = plan_of(scenario, draw.integers(0, 4, len(scenario.subscriptions)), 0.1)
    ours, theirs = run_both(scenario, plan, memory_sink(), replay)
    assert ours == theirs
