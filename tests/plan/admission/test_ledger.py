"""Admission: what is promised is kept, what is refused is offered what would be, and changes are safe step by step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.plan.admission.ledger import Admitted, Ledger, Refused
from triagemq.plan.admission.links import safe_order
from triagemq.plan.admission.promises import PromiseNetwork, PromiseRequest, matching, promise_request
from triagemq.scenario import Scenario


def _asked(scenario: Scenario) -> list[PromiseRequest]:
    publication, subscription, often = matching(scenario)
    assert often.all()
    found = [
        promise_request(scenario, *key)
        for key in zip(publication.tolist(), subscription.tolist(), strict=True)
    ]
    assert all(isinstance(each, PromiseRequest) for each in found)
    return found


def _holds(ledger: Ledger) -> None:
    """Every bound, recomputed, is within its deadline, and every sum of them within what was asked for."""
    for link, flows in ledger.links.items():
        bound = flows.bounds(ledger.network.link(link), flows.level)
        assert (bound <= flows.deadline).all()
        np.testing.assert_allclose(bound, flows.bound, rtol=1e-9)
        assert flows.level.max(initial=0) < ledger.network.link(link).levels
    for entry in ledger.entries.values():
        flows_of = [ledger.links[link] for link in entry.path.links]
        bounds = [each.bound[each.row(entry.request.publication)] for each in flows_of]
        assert sum(bounds) + entry.path.fixed_seconds <= entry.request.max_latency_seconds
        assert entry.deadline.sum() + entry.path.fixed_seconds <= entry.request.max_latency_seconds * (
            1 + 1e-12
        )
        for hop, link in enumerate(entry.path.links):
            flows = ledger.links[link]
            row = flows.row(entry.request.publication)
            assert flows.deadline[row] <= entry.deadline[hop]
            assert flows.jitter[row] >= entry.jitter[hop]


def _is_safe(ledger: Ledger, before: dict) -> None:
    """There is an order of changing levels in which every state keeps the deadlines of what was there."""
    for link, flows in before.items():
        if ledger.network.port(link) >= 0 and len(flows.publication):
            now = ledger.links[link]
            after = np.array([now.level[now.row(int(each))] for each in flows.publication])
            order = safe_order(flows.deadline_check(ledger.network.link(link)), flows.level, after)
            assert order is not None
            level = flows.level.copy()
            for row in order:
                level[row] = after[row]
                assert flows.keeps(ledger.network.link(link), level)
            assert (level == after).all()


def _random_wishes(draw: np.random.Generator, wish, count: int, switches: int):
    wishes = []
    for _ in range(count):
        separation = float(draw.choice([5e-3, 1e-2, 2e-2, 5e-2]))
        wishes.append(
            wish(
                size_bytes=float(draw.integers(10, 6000)),
                separation_seconds=separation,
                max_latency_seconds=separation * float(draw.uniform(0.4, 3.0)),
                source=int(draw.integers(switches)),
                target=int(draw.integers(switches)),
            )
        )
    return wishes


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), queues=st.sampled_from([0, 3, 4, 8]), ring=st.booleans())
def test_whatever_is_admitted_keeps_every_bound_in_every_state(make_network, wish, seed, queues, ring):
    draw = np.random.default_rng(seed)
    switches = int(draw.integers(1, 5))
    wishes = _random_wishes(draw, wish, int(draw.integers(2, 25)), switches)
    scenario = make_network(
        wishes,
        switches=switches,
        ring=ring and switches > 2,
        bps=2e7,
        queues=queues,
        publishers=int(draw.integers(1, len(wishes) + 1)),
        multiplexing_seconds=1e-5,
    )
    ledger = Ledger(PromiseNetwork(scenario))
    refused = []
    for number in draw.permutation(len(wishes)):
        one = _asked(scenario)[number]
        before = dict(ledger.links)
        found = ledger.admit(one)
        if isinstance(found, Refused):
            refused.append((one, found))
            assert ledger.links == before
        else:
            _is_safe(ledger, before)
        _holds(ledger)
        if ledger.entries and draw.random() < 0.2:
            key = list(ledger.entries)[int(draw.integers(len(ledger.entries)))]
            ledger.release([key])
            _holds(ledger)
    for one, _ in refused:
        decided = ledger.decide(one)
        if isinstance(decided, Refused) and decided.offer_seconds > 0:
            assert decided.offer_seconds > one.max_latency_seconds
            accepted = dataclasses.replace(one, max_latency_seconds=decided.offer_seconds)
            assert isinstance(ledger.decide(accepted), Admitted)


def test_the_topics_of_midas_are_admitted_at_the_latencies_of_the_paper(make_network, midas):
    ledger = Ledger(PromiseNetwork(make_network(midas, multiplexing_seconds=5e-6)))
    assert all(isinstance(ledger.admit(each), Admitted) for each in _asked(ledger.network.scenario))
    _holds(ledger)


def test_while_others_come_and_go_every_offer_is_admitted(make_network, wish):
    """Those who leave make room in the midst of levels."""
    wishes = [wish(200 + 150 * (row % 3), 0.04 + 0.01 * (row // 3), 0.2) for row in range(9)]
    network = PromiseNetwork(make_network(wishes, bps=1e6, access_bps=4e6, queues=8))
    ledger, random, offers = Ledger(network), np.random.default_rng(3), 0
    everyone = _asked(network.scenario)
    for _ in range(60):
        one = everyone[random.integers(len(everyone))]
        if one.key in ledger.entries:
            ledger.release([one.key])
            continue
        one = dataclasses.replace(one, max_latency_seconds=random.choice([0.012, 0.02, 0.04, 0.2]))
        decided = ledger.admit(one)
        if isinstance(decided, Refused) and decided.offer_seconds > 0:
            offers += 1
            offered = dataclasses.replace(one, max_latency_seconds=decided.offer_seconds)
            assert isinstance(ledger.admit(offered), Admitted)
    assert offers > 3
    _holds(ledger)


def test_a_refusal_names_the_flow_that_would_miss_by_how_much_and_offers_what_is_then_admitted(
    make_network, wish
):
    scenario = make_network([wish(50_000, 5e-3, 1.2e-3)] * 3)
    ledger = Ledger(PromiseNetwork(scenario))
    found = [ledger.admit(each) for each in _asked(scenario)]
    refused = [each for each in found if isinstance(each, Refused)]
    assert len(refused) == 1
    assert "more than the" in refused[0].reason
    assert refused[0].missed.bound_seconds > refused[0].missed.deadline_seconds
    last = _asked(scenario)[2]
    offered = dataclasses.replace(last, max_latency_seconds=refused[0].offer_seconds)
    assert isinstance(ledger.admit(offered), Admitted)
    _holds(ledger)


def test_a_latency_below_the_wire_time_is_refused_with_the_number_that_would_do(make_network, wish):
    scenario = make_network([wish(100_000, 1e-2, 1e-5)])
    ledger = Ledger(PromiseNetwork(scenario))
    refused = ledger.decide(_asked(scenario)[0])
    assert isinstance(refused, Refused)
    assert 8e-4 < refused.offer_seconds < 2e-3


def test_another_path_is_taken_when_the_shortest_admits_no_more(make_network, wish):
    heavy = [wish(9_000, 1e-2, 6e-2, 0, 1)] * 2
    scenario = make_network(heavy, switches=3, ring=True, bps=1e7, one_port=False)
    ledger = Ledger(PromiseNetwork(scenario))
    found = [ledger.admit(each) for each in _asked(scenario)]
    assert all(isinstance(each, Admitted) for each in found)
    assert sorted(len(entry.path.links) for entry in ledger.entries.values()) == [3, 4]
    _holds(ledger)


@pytest.mark.parametrize(("column", "limit"), [("rate_limiters", 2.0), ("rules", 2.0)])
def test_switches_have_only_so_many_limiters_and_rules(make_network, wish, column, limit):
    scenario = make_network([wish(100, 1.0, 0.5)] * 3, **{column: limit})
    ledger = Ledger(PromiseNetwork(scenario))
    found = [ledger.admit(each) for each in _asked(scenario)]
    assert [isinstance(each, Admitted) for each in found] == [True, True, False]
    assert "s0" in found[2].reason
    ledger.release([found[0].entry.request.key])
    assert isinstance(ledger.admit(_asked(scenario)[2]), Admitted)


def test_ports_with_two_queues_have_none_for_promises(make_network, wish):
    scenario = make_network([wish(100, 1.0, 0.5)], queues=2)
    refused = Ledger(PromiseNetwork(scenario)).decide(_asked(scenario)[0])
    assert isinstance(refused, Refused)
    assert "2 queues" in refused.reason


def test_flows_of_one_publisher_share_its_access_link_in_order(make_network, wish):
    scenario = make_network([wish(10_000, 1e-1, 5e-2)] * 3, publishers=1, bps=1e8, access_bps=1e7)
    ledger = Ledger(PromiseNetwork(scenario))
    for each in _asked(scenario):
        assert isinstance(ledger.admit(each), Admitted)
    access = ledger.links[ledger.network.access_link(0)]
    assert (access.bound > 3 * 10_000 * 8 / 1e7).all()
    assert set(access.level.tolist()) == {0}


def test_several_subscribers_of_a_publication_share_ports_and_are_carried_once(make_network, wish):
    scenario = make_network(
        [wish(5_000, 1e-2, 1e-2, 0, 1), wish(5_000, 1e-2, 9e-3, 0, 1)], switches=2, bps=1e8
    )
    topic = np.array([0, 0], dtype=np.int32)
    scenario = scenario.with_tables(
        subscriptions=dataclasses.replace(
            scenario.subscriptions, topic=topic, subscriber=np.array([0, 1], dtype=np.int32)
        )
    )
    ledger = Ledger(PromiseNetwork(scenario))
    first, second = _asked(scenario)
    assert isinstance(ledger.admit(first), Admitted)
    shared = ledger.admit(second)
    assert isinstance(shared, Admitted)
    assert all(len(flows.publication) == 1 for flows in ledger.links.values())
    _holds(ledger)
    ledger.release([first.key])
    _holds(ledger)
    assert all(len(flows.publication) == 1 for flows in ledger.links.values())
    ledger.release([second.key])
    assert not any(len(flows.publication) for flows in ledger.links.values())
