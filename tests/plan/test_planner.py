"""Plans as a whole: composition, options, trees of ports, users' own algorithms, and what errors say."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from types import ModuleType

import numpy as np
import pytest

from triagemq.errors import ParameterError, PlanError
from triagemq.forecast import forecast
from triagemq.lab.generators import table2
from triagemq.plan import (
    DROP_POLICIES,
    FLOW_ALGORITHMS,
    PRIORITY_ALGORITHMS,
    LatencyFactors,
    demand,
    diff,
    explain,
    make_plan,
)
from triagemq.scenario import PlanningSettings, Scenario, Switches, maximum_utility
from triagemq.scenario.model import filled


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Table 2 with ports narrow enough that everything must be decided."""
    full = table2(seed=3)
    ports = replace(
        full.ports, bandwidth_bps=full.ports.bandwidth_bps * np.linspace(0.3, 1.5, len(full.ports))
    )
    return replace(full, ports=ports)


@pytest.fixture(scope="module")
def tree(scenario) -> Scenario:
    """The same with every port but the first on a second switch that the first port feeds."""
    (rate,) = scenario.switches.inbound_rate_per_second
    switches = filled(Switches, 2, name=("access", "core"), inbound_rate_per_second=rate, fed_by_port=[0, -1])
    below = np.array([1] + [0] * (len(scenario.ports) - 1), dtype=np.int32)
    wide = scenario.ports.bandwidth_bps.copy()
    wide[0] = wide[1:].sum() * 0.5
    return replace(
        scenario, switches=switches, ports=replace(scenario.ports, switch=below, bandwidth_bps=wide)
    )


@pytest.mark.parametrize(
    ("flows", "priorities", "drops"), list(product(FLOW_ALGORITHMS, PRIORITY_ALGORITHMS, DROP_POLICIES))
)
def test_every_combination_makes_a_plan_within_capacity(scenario, tree, flows, priorities, drops):
    for given, scope in ((scenario, "port"), (tree, "global")):
        plan = make_plan(given, flows=flows, priorities=priorities, drops=drops, scope=scope)
        allowed = 1 - plan.made_by.rho_tolerance
        assert (plan.ports.rho_offered > allowed).any()
        if drops != "none":
            assert (plan.ports.rho_planned <= allowed * (1 + 1e-12)).all()
        plan.require(given)
        assert np.bincount(plan.flow, minlength=len(plan.flows)).min() >= 1
        per_subscriber = np.bincount(plan.flows.subscriber)
        assert per_subscriber.max() <= plan.made_by.flows_per_subscriber
        assert plan.flows.value.sum() == pytest.approx(plan.rank.sum())


def test_the_same_seed_makes_the_same_plan(scenario):
    one, other = (make_plan(scenario, flows="random", priorities="random", seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.flow, other.flow)
    np.testing.assert_array_equal(one.flows.priority_class, other.flows.priority_class)
    assert (make_plan(scenario, flows="random", seed=6).flow != one.flow).any()


def test_rank_is_worth_per_byte_and_info_leaves_the_bytes_out(scenario):
    asked, worth = demand(scenario), maximum_utility(scenario.subscriptions)
    np.testing.assert_allclose(make_plan(scenario).rank, worth / asked.load_bytes_per_second)
    np.testing.assert_allclose(make_plan(scenario, priorities="info").rank, worth)


def test_trunk_ports_carry_the_sum_of_what_is_below_them(tree):
    plan = make_plan(tree, drops="flat")
    kept = (1 - plan.flows.drop_rate) * plan.flows.load_bytes_per_second
    assert plan.ports.rho_planned[0] * tree.ports.bandwidth_bps[0] / 8 == pytest.approx(kept.sum())
    assert plan.ports.rho_planned[0] == pytest.approx(0.9, rel=1e-12)


@pytest.mark.parametrize("drops", ["flat", "exponential", "optimal"])
def test_what_a_trunk_loses_takes_no_room_below_it(tree, drops):
    """A leaf behind a trunk that loses a third is filled all the same: more is sent towards it."""
    trunk, wide = 0, tree.ports.bandwidth_bps.copy()
    wide[trunk] *= 1000
    roomy = replace(tree, ports=replace(tree.ports, bandwidth_bps=wide))
    error_rate = np.zeros(len(wide))
    error_rate[trunk] = 1 / 3
    lossy = replace(roomy, ports=replace(roomy.ports, error_rate=error_rate))
    sound, plan = make_plan(roomy, drops=drops), make_plan(lossy, drops=drops)
    np.testing.assert_allclose(plan.ports.rho_offered[1:], sound.ports.rho_offered[1:] * 2 / 3)
    full = plan.ports.rho_offered > 0.9
    assert full.any()
    np.testing.assert_allclose(plan.ports.rho_planned[full], 0.9)
    assert (plan.subscription_keep >= sound.subscription_keep - 1e-12).all()
    expected = demand(lossy).ideal_success * plan.subscription_keep
    np.testing.assert_allclose(expected, forecast(lossy, plan, formulas=True).success, rtol=1e-9)


def test_optimal_is_worth_at_least_as_much_as_any_other_policy(scenario, tree):
    for given in (scenario, tree):
        asked = demand(given)
        worth = {}
        for drops in ("flat", "linear", "exponential", "optimal"):
            plan = make_plan(given, drops=drops)
            success = asked.ideal_success * plan.subscription_keep
            worth[drops] = float(np.sum(given.subscriptions.utility_weight * np.log1p(success)))
        assert max(worth, key=worth.__getitem__) == "optimal"


def test_options_override_the_scenario_and_stand_in_the_plan(scenario):
    plan = make_plan(scenario, flows_per_subscriber=3, priority_classes=2, rho_tolerance=0.5)
    made = plan.made_by
    assert (made.flows_per_subscriber, made.priority_classes, made.rho_tolerance) == (3, 2, 0.5)
    assert plan.flows.priority_class.max() == 1
    assert (plan.ports.rho_planned <= 0.5 * (1 + 1e-12)).all()
    changed = replace(scenario, planning=PlanningSettings(2, 3, 0.0))
    assert make_plan(changed).made_by.flows_per_subscriber == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rho_tolerance", 1.0),
        ("rho_tolerance", -0.1),
        ("rho_tolerance", float("nan")),
        ("priority_classes", 0),
        ("flows_per_subscriber", -1),
        ("flows_per_subscriber", 1.5),
        ("scope", "planet"),
        ("seed", -1),
    ],
)
def test_impossible_options_are_refused_by_name(scenario, option, value):
    with pytest.raises(ParameterError) as caught:
        make_plan(scenario, **{option: value})
    assert caught.value.parameter == option


@pytest.mark.parametrize(
    ("factor", "urgency", "said"),
    [(1.1, 0.0, "outside"), (np.nan, 0.0, "outside"), (0.5, -1.0, "below 0"), (0.5, np.inf, "without bound")],
)
def test_latency_factors_outside_their_range_are_refused(scenario, factor, urgency, said):
    count = len(scenario.subscriptions)
    with pytest.raises(ParameterError, match=said):
        make_plan(scenario, latency=LatencyFactors(np.full(count, factor), np.full(count, urgency)))
    with pytest.raises(ParameterError, match="one per subscription"):
        make_plan(scenario, latency=LatencyFactors(np.ones(1), np.ones(1)))


def test_more_classes_than_queues_is_refused_with_the_port(scenario):
    queues = scenario.ports.queues.copy()
    queues[2] = 4
    narrow = replace(scenario, ports=replace(scenario.ports, queues=queues))
    with pytest.raises(PlanError, match=scenario.ports.name[2]):
        make_plan(narrow, priority_classes=9)
    assert make_plan(narrow, priority_classes=4).flows.priority_class.max() == 3
    assert make_plan(narrow, priorities="none", priority_classes=9).flows.priority_class.max() == 0


def test_unknown_names_are_refused_with_the_known_ones(scenario):
    for option in ("flows", "priorities", "drops"):
        with pytest.raises(ParameterError, match="known: ") as caught:
            make_plan(scenario, **{option: "gredy"})
        assert "gredy" in str(caught.value)


@pytest.fixture
def own_module(monkeypatch):
    module = ModuleType("own_policies")
    module.half = lambda problem: replace(
        DROP_POLICIES["none"](problem), drop_rate=np.full(len(problem.flow_class), 0.5)
    )
    module.one_class = lambda problem: np.zeros(len(problem.value), dtype=np.int64)
    module.too_high = lambda problem: np.full(len(problem.value), 99)
    module.not_a_result = lambda problem: 3
    module.too_much = lambda problem: replace(
        DROP_POLICIES["none"](problem), drop_rate=np.full(len(problem.flow_class), 1.5)
    )
    module.number = 5
    monkeypatch.setitem(sys.modules, "own_policies", module)


@pytest.mark.usefixtures("own_module")
def test_a_users_own_functions_are_loaded(scenario):
    plan = make_plan(scenario, priorities="own_policies:one_class", drops="own_policies:half")
    assert (plan.flows.drop_rate == 0.5).all()
    assert plan.made_by.drops == "own_policies:half"


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drops": "no_such_module:f"}, "cannot be imported"),
        ({"drops": "own_policies:missing"}, "has no attribute 'missing'"),
        ({"drops": "own_policies:number"}, "not a function"),
        ({"drops": ":f"}, "module:function"),
        ({"drops": "own_policies:not_a_result"}, "DropResult"),
        ({"drops": "own_policies:too_much"}, r"outside \[0, 1\]"),
        ({"priorities": "own_policies:too_high"}, "0..8 are allowed"),
    ],
)
def test_own_functions_that_cannot_be_used_are_refused(scenario, options, said):
    with pytest.raises((ParameterError, PlanError), match=said):
        make_plan(scenario, **options)


def test_a_plan_says_what_it_changes(scenario):
    before = make_plan(scenario, drops="flat")
    told = [each.kind for each in make_plan(scenario, previous=before).decisions]
    assert "replanned" in told
    assert "replanned" not in [
        each.kind for each in make_plan(scenario, drops="flat", previous=before).decisions
    ]


def test_difference_counts_what_changed(scenario):
    before = make_plan(scenario, priority_classes=9)
    after = make_plan(scenario, priority_classes=3)
    difference = diff(before, after, scenario)
    assert difference.changed + difference.unchanged == len(scenario.subscriptions)
    assert difference.better == (after.subscription_class < before.subscription_class).sum() > 0
    assert difference.higher == (after.subscription_keep < before.subscription_keep).sum()
    assert f"class: {difference.better} better" in str(difference)


def test_difference_matches_scenarios_by_names(scenario):
    fewer = Scenario.of(
        name=scenario.name,
        topics=scenario.topics,
        brokers=scenario.brokers,
        unmanaged_switches=scenario.unmanaged_switches,
        switches=scenario.switches,
        ports=scenario.ports,
        publishers=scenario.publishers,
        publications=scenario.publications,
        subscribers=scenario.subscribers,
        subscriptions=replace(
            scenario.subscriptions,
            **{
                name: getattr(scenario.subscriptions, name)[5:]
                for name in scenario.subscriptions.__dataclass_fields__
            },
        ),
    )
    difference = diff(make_plan(scenario), make_plan(fewer), scenario, fewer)
    assert len(difference.removed) == 5
    assert not difference.added
    back = diff(make_plan(fewer), make_plan(scenario), fewer, scenario)
    assert back.added == difference.removed


def test_explain_tells_worth_rank_flow_class_and_drop(scenario, tree):
    for given in (scenario, tree):
        for drops in ("optimal", "linear", "none"):
            plan = make_plan(given, drops=drops)
            for row in (0, len(given.subscriptions) // 2, len(given.subscriptions) - 1):
                subscriber = given.subscribers.name[given.subscriptions.subscriber[row]]
                topic = given.topics.name[given.subscriptions.topic[row]]
                text = explain(given, plan, subscriber, topic)
                assert text.startswith(f"{subscriber} gets ")
                assert f"{subscriber} wants {topic}: worth " in text
                assert f"Class: {plan.subscription_class[row]};" in text
                assert f"Drop rate: {plan.flows.drop_rate[plan.flow[row]]:.6g};" in text
                assert given.ports.name[plan.flows.port[plan.flow[row]]] in text


def test_explain_gives_the_rule_with_its_parameter(scenario):
    plan = make_plan(scenario, drops="linear")
    row = int(np.flatnonzero(plan.ports.rho_offered[plan.flows.port[plan.flow]] > 0.9)[0])
    names = scenario.subscribers.name[scenario.subscriptions.subscriber[row]]
    topic = scenario.topics.name[scenario.subscriptions.topic[row]]
    assert "* class)" in explain(scenario, plan, names, topic)


def test_explain_offers_the_nearest_names(scenario):
    plan = make_plan(scenario)
    known = scenario.subscribers.name[0]
    with pytest.raises(ParameterError, match=f"nearest: .*{known}"):
        explain(scenario, plan, known + "x", "anything")
    topic = scenario.topics.name[scenario.subscriptions.topic[0]]
    owner = scenario.subscribers.name[scenario.subscriptions.subscriber[0]]
    with pytest.raises(ParameterError, match=topic):
        explain(scenario, plan, owner, topic + "x")


def test_plans_of_another_scenario_are_refused(scenario, tree):
    plan = make_plan(scenario)
    for use in (
        lambda: explain(tree, plan, "a", "b"),
        lambda: diff(plan, plan, tree),
    ):
        with pytest.raises(PlanError, match="another scenario"):
            use()


def test_a_topic_that_nobody_publishes_ranks_zero_and_loads_nothing(scenario):
    silent = scenario.publications.rate_per_second.copy()
    topic = int(scenario.subscriptions.topic[0])
    silent[scenario.publications.topic == topic] = 0.0
    quiet = replace(scenario, publications=replace(scenario.publications, rate_per_second=silent))
    plan = make_plan(quiet)
    assert plan.rank[0] == 0.0
    assert np.isfinite(plan.flows.value).all()
