"""Promises in plans: what was admitted stays, the rest is planned around it, and files and words tell of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triagemq.errors import PlanError
from triagemq.forecast import explanation, forecast, summary
from triagemq.plan import diff, dump_plan, load_plan, make_plan, parse_plan, save_plan
from triagemq.plan.admission.planning import reconfiguration
from triagemq.scenario import Scenario, save
from triagemq.scenario.model import take


@pytest.fixture(scope="module")
def scenario(make_network, midas, wish) -> Scenario:
    """The topics of MIDAS, one promise too many, and utility traffic below them."""
    return make_network([*midas, wish(50_000, 5e-3, 1.2e-3)], utility_subscribers=6, queues=9)


@pytest.fixture(scope="module")
def plan(scenario):
    return make_plan(scenario, priority_classes=8)


def _without(scenario: Scenario, subscription: int) -> Scenario:
    rows = np.delete(np.arange(len(scenario.subscriptions)), subscription)
    return scenario.with_tables(subscriptions=take(scenario.subscriptions, rows))


def test_promises_take_the_upper_classes_and_utility_flows_what_is_left(scenario, plan):
    assert plan.promises.admitted.tolist() == [1, 1, 1, 0]
    assert plan.level_offset == plan.levels.max() == 3
    assert plan.flows.priority_class.min() == 3
    # One queue is for control traffic.
    assert plan.flows.priority_class.max() < 9 - 1
    assert plan.subscription_class[plan.promised].tolist() == [0, 1, 2]
    assert (plan.flow[plan.promised] == -1).all()


def test_ports_have_the_capacity_that_promises_leave(scenario, make_network, midas):
    crowded = make_network(midas, utility_subscribers=60, queues=0, bps=1e9)
    rates = replace(
        crowded.publications,
        rate_per_second=np.where(crowded.publications.max_size_bytes < np.inf, 300.0, 1_000.0),
    )
    crowded = crowded.with_tables(publications=rates)
    made = make_plan(crowded)
    promised = sum(
        size / separation
        for size, separation in zip([198_310, 99_082, 66_070], [3e-3, 3e-3, 11e-3], strict=True)
    )
    assert made.promises.admitted.all()
    utility = (made.flows.load_bytes_per_second * (1 - made.flows.drop_rate)).sum()
    assert utility <= (1e9 / 8 * 0.9 - promised) * (1 + 1e-9)
    assert made.flows.drop_rate.max() > 0
    assert made.ports.rho_planned[0] == pytest.approx((utility + promised) * 8 / 1e9)


def test_limiters_pass_a_message_per_separation_with_its_overhead(scenario, plan):
    limiters = plan.limiters
    published = scenario.publications
    separation = published.min_separation_seconds[limiters.publication]
    wire = limiters.rate_bytes_per_second * separation
    assert (wire > published.max_size_bytes[limiters.publication]).all()
    np.testing.assert_allclose(limiters.burst_bytes, wire)
    # What may wait on the access link comes the closer behind it: the jitter that bounds count at the first port.
    first = plan.promises.first_hop[plan.promises.admitted > 0]
    np.testing.assert_allclose(limiters.jitter_seconds, plan.hops.jitter_seconds[first + 1])
    access = plan.hops.deadline_seconds[first]
    assert (limiters.jitter_seconds >= access - wire * 8 / 1e9).all()
    assert limiters.switch.tolist() == [0, 0, 0]


def test_what_a_limiter_tolerates_is_jitter_that_everybody_counts(make_network, wish):
    wishes = [wish(1000, 0.01, 0.008), wish(9000, 0.02, 0.018)]
    strict, lenient = (
        make_plan(make_network(wishes, bps=1e7, access_bps=1e9, limiter_tolerance_seconds=tolerance))
        for tolerance in (0.0, 0.004)
    )
    assert strict.promises.admitted.all()
    assert lenient.promises.admitted.all()
    np.testing.assert_allclose(lenient.limiters.jitter_seconds, strict.limiters.jitter_seconds + 0.004)
    np.testing.assert_allclose(
        lenient.hops.jitter_seconds[lenient.hops.port >= 0],
        strict.hops.jitter_seconds[strict.hops.port >= 0] + 0.004,
    )
    # The second of two small messages, 4 ms too soon, now meets the large one, too.
    assert lenient.promises.bound_seconds[1] > strict.promises.bound_seconds[1] + 0.0008


def test_a_refusal_is_a_decision_with_its_reason_and_what_would_be_admitted(scenario, plan):
    (refused,) = (each for each in plan.decisions if each.kind == "refused")
    assert refused.subject == "w0003 t0003"
    assert "asked for 0.0012 s" in refused.before
    offer = float(plan.promises.offer_seconds[3])
    assert refused.after == f"{offer:.6g} s would be admitted"
    relaxed = scenario.subscriptions.max_latency_seconds.copy()
    relaxed[3] = offer
    again = scenario.with_tables(subscriptions=replace(scenario.subscriptions, max_latency_seconds=relaxed))
    assert make_plan(again, previous=plan, before=scenario).promises.admitted.all()


def test_what_is_refused_and_worth_nothing_else_gets_nothing(scenario, plan):
    row = int(plan.promises.subscription[3])
    assert (plan.flow[row], plan.subscription_keep[row], bool(plan.promised[row])) == (-1, 0.0, False)
    assert forecast(scenario, plan, formulas=True).received_rate[row] == 0


def test_what_is_refused_but_worth_something_is_planned_by_that(scenario):
    weight = scenario.subscriptions.utility_weight.copy()
    weight[3] = 2.0
    worth = replace(scenario, mtu_bytes=1500.0).with_tables(
        subscriptions=replace(scenario.subscriptions, utility_weight=weight)
    )
    made = make_plan(worth, priority_classes=8)
    assert made.promises.admitted.tolist() == [1, 1, 1, 0]
    assert made.flow[3] >= 0


def test_what_a_plan_promised_stays_when_others_come_and_go(scenario, make_network, wish):
    scarce = make_network([wish(50_000, 5e-3, 1.2e-3)] * 4)
    later = _without(scarce, 0)
    first = make_plan(later)
    assert first.promises.admitted.tolist() == [1, 1, 0]
    after = make_plan(scarce, previous=first, before=later)
    kept = after.promises.admitted > 0
    # By name the newcomer would come first; but those before it stay, with the same deadlines.
    assert sorted(after.promises.subscription[kept].tolist()) == [1, 2]
    assert after.hops.deadline_seconds.tolist() == first.hops.deadline_seconds.tolist()
    alone = _without(scarce, 1)
    freed = make_plan(alone, previous=after, before=scarce)
    assert (freed.promises.admitted > 0).sum() == 2
    assert 1 in freed.promises.subscription[freed.promises.admitted > 0]
    assert reconfiguration(scarce, first, after, later) == ()
    between = diff(after, freed, scarce, alone)
    assert (between.promised, between.no_longer_promised) == ((("w0000", "t0000"),), (("w0001", "t0001"),))
    assert "promises: 1 made, 1 ended" in str(between)


def test_the_steps_between_two_plans_lead_from_the_one_to_the_other(make_network, wish):
    urgent = [wish(20_000, 5e-3, 3e-3, 0, 1), wish(20_000, 5e-3, 2.5e-3, 1, 1), wish(2_000, 5e-3, 8e-4, 0, 1)]
    whole = make_network(urgent, switches=2)
    some = _without(whole, 2)
    before = make_plan(some)
    after = make_plan(whole, previous=before, before=some)
    assert after.promises.admitted.all()
    steps = reconfiguration(whole, before, after, some)
    assert steps
    levels = {}
    for made, (rows, known) in ((before, (some, levels)),):
        for promise in range(len(made.promises)):
            for hop in range(*made.hops_of(promise).indices(len(made.hops))):
                topic = rows.publications.topic[made.promises.publication[promise]]
                known[topic, made.hops.port[hop]] = made.hops.level[hop]
    for step in steps:
        key = whole.publications.topic[step.publication], step.port
        assert levels.get(key, -1) == step.before
        levels[key] = step.after
    for promise in range(len(after.promises)):
        for hop in range(*after.hops_of(promise).indices(len(after.hops))):
            if after.hops.port[hop] >= 0:
                topic = whole.publications.topic[after.promises.publication[promise]]
                assert levels[topic, after.hops.port[hop]] == after.hops.level[hop]


def test_a_slower_link_has_its_promises_decided_on_again(scenario, plan):
    slow = scenario.with_tables(
        ports=replace(scenario.ports, bandwidth_bps=scenario.ports.bandwidth_bps * 0.6)
    )
    made = make_plan(slow, priority_classes=8, previous=plan, before=scenario)
    lost = [
        each for each in made.decisions if each.kind == "refused" and each.before.startswith("was promised")
    ]
    assert lost
    kept = made.promises.admitted > 0
    assert (made.promises.bound_seconds[kept] <= made.promises.max_latency_seconds[kept]).all()


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("publications", "max_size_bytes", np.inf, "max_size_bytes"),
        (
            "publications",
            "max_size_bytes",
            1e6,
            "688 packets, and limiters count 252; with a max_size_bytes of 366408",
        ),
        ("publications", "min_separation_seconds", 0.0, "min_separation_seconds"),
        ("publishers", "access_switch", -1, "plugged into no managed switch"),
        ("subscriptions", "max_separation_seconds", 1.0, "max_separation_seconds asks for a message every"),
    ],
)
def test_promises_that_cannot_be_stated_are_refused_with_what_is_missing(
    make_network, wish, table, column, value, said
):
    plain = make_network([wish(100, 0.1, 0.05)])
    rows = getattr(plain, table)
    changed = plain.with_tables(
        **{table: replace(rows, **{column: np.full_like(getattr(rows, column), value)})}
    )
    made = make_plan(changed)
    assert made.promises.admitted.tolist() == [0]
    assert said in made.decisions[0].reason


def test_promises_survive_files(plan, tmp_path):
    assert dump_plan(parse_plan(dump_plan(plan))) == dump_plan(plan)
    save_plan(plan, tmp_path / "plan.json")
    assert dump_plan(load_plan(tmp_path / "plan.json")) == dump_plan(plan)


def test_a_plan_without_promises_is_written_over_one_that_has_some(plan, make_network, tmp_path):
    other = make_plan(make_network([], utility_subscribers=3))
    save_plan(plan, tmp_path / "plan.json")
    save_plan(other, tmp_path / "plan.json")
    assert dump_plan(load_plan(tmp_path / "plan.json")) == dump_plan(other)
    assert "promises" not in dump_plan(other)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("promises", "subscription", 99),
        ("promises", "admitted", 2),
        ("hops", "port", 99),
        ("promises", "first_hop", 99),
    ],
)
def test_a_file_that_promises_nonsense_is_refused(plan, table, column, value):
    document = json.loads(dump_plan(plan))
    document[table][column][0] = value
    with pytest.raises(PlanError, match=f"{table}"):
        parse_plan(json.dumps(document))


def test_utility_traffic_waits_for_what_is_promised(scenario, plan, make_network):
    predicted = forecast(scenario, plan, formulas=True)
    rows = plan.flow >= 0
    without = make_network([], utility_subscribers=6)
    alone = forecast(without, make_plan(without), formulas=True)
    assert (predicted.latency_seconds[rows] > 3 * alone.latency_seconds.max()).all()
    kept = plan.promises.admitted > 0
    np.testing.assert_array_equal(
        predicted.latency_seconds[plan.promises.subscription[kept]], plan.promises.bound_seconds[kept]
    )


def test_an_explanation_says_bound_slack_and_who_interferes_hop_by_hop(scenario, plan):
    words = explanation(scenario, plan, "w0001", "t0001")["explanation"]
    assert "at worst it takes 2.578 ms, 422.4 µs are to spare" in words
    assert "- the access link of p0001: at worst 793.7 µs" in words
    assert "- port out0, level 1: at worst 1.784 ms of the 2.206 ms it has" in words
    assert "above it t0000 of p0000" in words
    refused = explanation(scenario, plan, "w0003", "t0003")["explanation"]
    assert refused.startswith("Refused: t0003 of p0003 to w0003 within 1.2 ms")


def test_the_commands_show_promises_and_refusals(scenario, tmp_path):
    save(scenario, tmp_path / "midas.yaml")
    command = [
        str(Path(sys.executable).parent / "triage"),
        "forecast",
        "midas.yaml",
        "--formulas",
        "--classes",
        "8",
    ]
    environment = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}
    shown, found = (
        subprocess.run(
            [*command, *more], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout
        for more in ((), ("--json",))
    )
    assert "t0001 from p0001 to w0001" in shown
    assert "would be admitted" in shown
    found = json.loads(found)
    made = make_plan(scenario, priority_classes=8)
    assert found["promises"] == summary(scenario, made, forecast(scenario, made, formulas=True))["promises"]
    assert [row["admitted"] for row in found["promises"]] == [True, True, True, False]
    assert [hop["level"] for hop in found["promises"][1]["hops"]] == [None, 1]
