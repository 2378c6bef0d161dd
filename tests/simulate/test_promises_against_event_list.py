"""Promised messages, brokered copies, fair ports and ports with queue rates on one list of events, against a slow
simulator.

Both draw the same numbers for the same things, so every copy must end in the same way at the same nanosecond.
"""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.simulate.slow_network import TERMS, with_terms
from tests.simulate.slow_promises import PromisingNetwork

from triagemq.simulate import Change, DirectRoute, DirectRoutes, Limit, simulate
from triagemq.trace import Outcome

CLASSES = 6


def ring_case(seed: int, scenario_of: Any, plan_of: Any) -> tuple[Any, Any, DirectRoutes, Any]:
    """Three switches in a ring, in which ports lead on to each other in a circle; brokered copies go down two of its
    links. Two subscriber ports at each switch, and publishers plugged in anywhere."""
    draw = np.random.default_rng(seed)
    topics, publishers, subscribers = 4, 4, 8
    publications = [(p, t) for p in range(publishers) for t in range(topics) if draw.random() < 0.5] or [
        (0, 0)
    ]
    subscriptions = [(s, t) for s in range(subscribers) for t in range(topics) if draw.random() < 0.6]
    ports = 9
    scenario = scenario_of(
        topics=topics,
        publications=publications,
        publisher_broker=[0] * publishers,
        publisher_error=draw.choice([0.0, 0.003], publishers),
        publisher_propagation=draw.choice([0.0, 0.001], publishers),
        inbound_rate=2000.0,
        outbound_rate=1000.0,
        fed_by=[-1, 0, 1],
        switch_rate=draw.choice([np.inf, 3e3], 3),
        port_switch=[0, 1, 2, 0, 0, 1, 1, 2, 2],
        bandwidth=draw.choice([4e5, 8e5, 2e6], ports),
        buffer=draw.choice([6.0, 40.0, np.inf], ports),
        port_propagation=draw.choice([0.0, 0.002], ports),
        subscriber_broker=[0] * subscribers,
        subscriber_port=(3 + draw.integers(0, 6, subscribers)).tolist(),
        subscriber_error=draw.choice([0.0, 0.01], subscribers),
        subscriber_propagation=draw.choice([0.0, 0.003], subscribers),
        subscriptions=subscriptions,
        mtu=float(draw.choice([np.inf, 300.0])),
        overhead=20.0,
    )
    onward = np.full(ports, -1, dtype=np.int32)
    onward[2] = 0
    kinds = [[0], [0, 0, 1], [0, 0, 1, 2], [2]][seed % 4]
    discipline = draw.choice(kinds, ports).astype(np.int8)
    shares = draw.integers(1, 9, (ports, CLASSES)).astype(float)
    queue_rates = scenario.ports.bandwidth_bps[:, None] * shares / shares.sum(axis=1, keepdims=True)
    scenario = scenario.with_tables(
        ports=replace(
            scenario.ports,
            to_switch=onward,
            discipline=discipline,
            queue_rates_bps=tuple(
                queue_rates[row] if kind == 2 else np.empty(0) for row, kind in enumerate(discipline)
            ),
            floors_bps=tuple(np.zeros(CLASSES) if kind == 2 else np.empty(0) for kind in discipline),
            borrowing=((discipline == 2) & (draw.random(ports) < 0.5)).astype(np.int8),
        ),
        switches=replace(
            scenario.switches,
            packet_bytes=draw.choice([220.0, 400.0], 3),
            multiplexing_seconds=draw.choice([0.0, 2e-4], 3),
        ),
        publishers=replace(
            scenario.publishers,
            access_switch=draw.integers(0, 3, publishers).astype(np.int32),
            access_bps=draw.choice([1e6, 4e6, 1e12], publishers),
        ),
    )
    levels = draw.integers(0, 3, (len(publications), ports))
    wanted = scenario.subscriptions
    direct = draw.random(len(wanted)) < 0.5
    routes, limits = [], {}
    for publication, (publisher, topic) in enumerate(publications):
        limits[publication] = Limit(float(draw.choice([700.0, 1500.0])), float(draw.choice([3e3, 5e4])))
        for subscription in np.flatnonzero(direct & (wanted.topic == topic)).tolist():
            last = int(scenario.subscribers.port[wanted.subscriber[subscription]])
            switch, path = int(scenario.publishers.access_switch[publisher]), []
            while switch != scenario.ports.switch[last]:
                path.append(switch)
                switch = (switch + 1) % 3
            path.append(last)
            shown = tuple(int(levels[publication, port]) for port in path)
            routes.append(
                DirectRoute(publication, subscription, tuple(path), shown, int(levels[publication, 0]))
            )
    rows = 220
    replay = {
        "published_ns": np.sort(draw.integers(0, 1_500_000_000, rows)),
        "publication": draw.integers(0, len(publications), rows),
        "size_bytes": draw.uniform(20.0, 1400.0, rows),
    }
    plan = plan_of(scenario, draw.integers(3, 6, len(wanted)), 0.1)
    return scenario, plan, DirectRoutes(tuple(routes), limits), replay


def run_both(case: Any, sink: Any, changes: Any = (), **options: Any) -> Any:
    """`changes` are those that the oracle is to make."""
    scenario, plan, routes, replay = case
    ends = options.get("duration_seconds", np.inf)
    oracle = PromisingNetwork(scenario, plan, routes, changes, replay, 7, ends)
    oracle.events.run()
    found = simulate(scenario, plan, routes=routes, seed=7, warmup=0.0, replay=replay, sink=sink, **options)
    rows = sink.table("deliveries")
    names = ("outcome", "priority_class", "enqueued_ns", "dequeued_ns", "delivered_ns")
    ours = {
        (int(event), int(row)): tuple(int(rows[name][place]) for name in names)
        for place, (event, row) in enumerate(
            zip(rows["publication_id"], rows["subscription_id"], strict=True)
        )
    }
    assert len(ours) == len(rows["outcome"]), "a copy ended twice"
    return found, ours, oracle.ended


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("block_events", [None, 7])
def test_every_copy_ends_as_in_an_event_list(
    seed: int, block_events: int | None, scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    case = ring_case(seed, scenario_of, plan_of)
    _, ours, theirs = run_both(case, memory_sink(), block_events=block_events)
    assert ours == theirs


@pytest.mark.parametrize("seed", range(12))
def test_thinned_superseded_and_expired_copies_end_as_in_an_event_list(
    seed: int, scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario, plan, routes, replay = ring_case(seed, scenario_of, plan_of)
    scenario = with_terms(scenario, seed)
    plan = plan_of(scenario, plan.subscription_class, 1 - plan.subscription_keep)
    options = {"duration_seconds": 0.9} if seed % 4 == 1 else {}
    _, ours, theirs = run_both((scenario, plan, routes, replay), memory_sink(), **options)
    assert ours == theirs
    assert {ended[0] for ended in ours.values()} & TERMS


@pytest.mark.parametrize("seed", [3, 7, 11])
def test_queue_rates_that_change_during_a_run_change_as_in_an_event_list(
    seed: int, scenario_of: Any, plan_of: Any, memory_sink: Any, queue_rates_from: Any
) -> None:
    scenario = (case := ring_case(seed, scenario_of, plan_of))[0]
    before = np.array(scenario.ports.queue_rates_bps)
    course = (0.4, before[:, ::-1]), (0.8, np.roll(before, 2, axis=1))
    unchanged = dict.fromkeys(each.name for each in fields(Change))
    changes = [
        SimpleNamespace(**unchanged | {"at_seconds": at + 1e-9}, width_bps=queue_rates)
        for at, queue_rates in course
    ]
    sink = memory_sink()
    _, ours, theirs = run_both(case, sink, changes, control=queue_rates_from(*course))
    assert ours == theirs
    assert ours != run_both(case, memory_sink())[1]
    samples = sink.table("queue_samples")
    for at_ns, queue_rates in (
        (0.2e9, before),
        (0.8e9, before[:, ::-1]),
        (1.2e9, np.roll(before, 2, axis=1)),
    ):
        rows = samples["sampled_ns"] == at_ns
        seen = np.rint(queue_rates[samples["port_id"][rows], samples["queue"][rows]])
        assert (samples["width_bps"][rows] == seen).all()
        assert rows.sum() == queue_rates.size


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_cut_off_ends_as_in_an_event_list(
    seed: int, scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    case = ring_case(50 + seed, scenario_of, plan_of)
    _, ours, theirs = run_both(case, memory_sink(), duration_seconds=0.9)
    assert ours == theirs
    assert Outcome.in_flight in {ended[0] for ended in ours.values()}


@pytest.mark.parametrize("seed", range(3))
def test_every_promised_message_ends_once_and_is_counted_where_it_ends(
    seed: int, scenario_of: Any, plan_of: Any, memory_sink: Any
) -> None:
    scenario, _, routes, replay = case = ring_case(seed, scenario_of, plan_of)
    sink = memory_sink(with_hops=True)
    found, ours, _ = run_both(case, sink)
    promises = found.promises
    ends = promises.delivered + promises.limited + promises.lost + promises.in_flight
    published = np.bincount(replay["publication"], minlength=len(scenario.publications))
    pairs = sorted((route.publication, route.subscription) for route in routes.routes)
    assert promises.messages.tolist() == [published[publication] for publication, _ in pairs]
    assert (promises.messages == ends).all()
    rows = {route.subscription for route in routes.routes}
    outcomes = [Outcome(ended[0]) for (_, row), ended in ours.items() if row in rows]
    assert promises.limited.sum() == outcomes.count(Outcome.limited) > 0
    assert found.subscriptions.limited.sum() == promises.limited.sum()
    assert promises.delivered.sum() == outcomes.count(Outcome.delivered) > 0
    samples, hops = sink.table("queue_samples"), sink.table("hops")
    assert (samples["backlog_packets"] >= 0).all()
    assert (samples["backlog_bytes"] >= 0).all()
    assert set(hops["port_id"].tolist()) <= set(range(len(scenario.ports)))
    assert [each.kind for each in found.decisions] == ["limited"] * len(found.decisions) != []
    assert sink.table("decisions")["reason"].tolist() == [each.reason for each in found.decisions]
