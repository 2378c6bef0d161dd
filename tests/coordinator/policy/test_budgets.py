"""No client moves what others get by more than its budget can pay for, whatever it claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.channel.orders import Orders
from triagemq.coordinator.decide.decide import Decided, PlannerSettings
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.registry import Record
from triagemq.coordinator.loop.replanning import Replanner
from triagemq.coordinator.policy.record import ClientRole, ClientRule, OperatorPolicy
from triagemq.coordinator.ports import PortsNow
from triagemq.coordinator.rates import Rates
from triagemq.errors import ParameterError
from triagemq.intents import SubscriberIntent, SubscriptionIntent, Utility
from triagemq.scenario.utility import achieved_utility, maximum_utility

TOPICS = {"smoke/1": 40.0, "smoke/2": 90.0, "video": 300.0, "news": 5.0}
FILTERS = ("#", "smoke/+", "+/1", *TOPICS)
GREEDY = "greedy"
WORTHS = st.one_of(st.floats(0, 1e12), st.sampled_from([0.0, 1e-12, 1.0, 1e12]))


@st.composite
def claims(draw: st.DrawFn, shapes: Sequence[str] = ("log", "linear")) -> tuple[SubscriptionIntent, ...]:
    filters = draw(st.lists(st.sampled_from(FILTERS), min_size=1, max_size=4, unique=True))
    return tuple(
        SubscriptionIntent(each, Utility(draw(st.sampled_from(shapes)), draw(WORTHS))) for each in filters
    )


def plan(budgets: Mapping[str, float], wanted: Mapping[str, Sequence[SubscriptionIntent]]) -> Decided:
    """The plan for clients whose roles have these budgets."""
    roles = {name: ClientRole(name, budget) for name, budget in budgets.items()}
    policy = OperatorPolicy(roles, tuple(ClientRule(name, name) for name in roles))
    network = Network.plain(bandwidth_bps=200_000.0)
    here = Replanner(network, PlannerSettings(), Orders())
    intents = (SubscriberIntent(tuple(each), name=name) for name, each in wanted.items())
    here.take({(each.kind, each.name): Record(each, "", "") for each in intents}, policy)
    return here.plan(Rates(TOPICS, dict.fromkeys(TOPICS, 200.0)), {}, PortsNow(), ["asked for"])


def planned_worth(decided: Decided, name: str) -> tuple[float, float]:
    """Of a client: what its planned shares are worth, and what all would be."""
    wanted = decided.scenario.subscriptions
    share = 1.0 - np.append(decided.plan.flows.drop_rate, 1.0)[decided.plan.flow]
    own = np.array(decided.scenario.subscribers.name)[wanted.subscriber] == name
    return float(achieved_utility(wanted, share)[own].sum()), float(maximum_utility(wanted)[own].sum())


@settings(deadline=None, max_examples=60)
@given(claims(), claims(), st.floats(0.001, 1e6), st.floats(0, 1e6))
def test_others_lose_no_more_worth_than_the_budget_of_the_client_that_comes(
    crew: tuple[SubscriptionIntent, ...], greedy: tuple[SubscriptionIntent, ...], ours: float, theirs: float
) -> None:
    budgets = {"crew": ours, GREEDY: theirs}
    alone, _ = planned_worth(plan(budgets, {"crew": crew}), "crew")
    beside = plan(budgets, {"crew": crew, GREEDY: greedy})
    left, most = planned_worth(beside, "crew")
    assert most <= ours * (1 + 1e-9)
    assert planned_worth(beside, GREEDY)[1] <= theirs * (1 + 1e-9)
    assert not [each for each in beside.decisions if each.kind == "set_aside"]
    assert alone - left <= theirs + 1e-3 * ours


@settings(deadline=None, max_examples=40)
@given(claims(("log", "linear", "step")[:2]), st.floats(1e-3, 1e3), st.floats(1, 1e9))
def test_what_is_claimed_beyond_the_budget_changes_nothing_for_anybody(
    greedy: tuple[SubscriptionIntent, ...], budget: float, factor: float
) -> None:
    crew = [SubscriptionIntent("smoke/+", "log:20"), SubscriptionIntent("video", "log:3")]
    filling = (*greedy, SubscriptionIntent("news", Utility("linear", 1e3)))
    filling = tuple({each.topic: each for each in filling}.values())
    more = tuple(
        SubscriptionIntent(each.topic, Utility(each.utility.shape, min(each.utility.weight, 1e3) * factor))
        for each in filling
    )
    less = tuple(
        SubscriptionIntent(each.topic, Utility(each.utility.shape, min(each.utility.weight, 1e3)))
        for each in filling
    )
    budgets = {"crew": 100.0, GREEDY: budget}
    one, other = (plan(budgets, {"crew": crew, GREEDY: each}) for each in (less, more))
    weights = [each.scenario.subscriptions.utility_weight for each in (one, other)]
    np.testing.assert_allclose(*weights, rtol=1e-9, atol=1e-300)
    assert planned_worth(one, "crew")[0] == pytest.approx(planned_worth(other, "crew")[0], rel=1e-3)


@pytest.mark.parametrize("worth", [math.nan, math.inf, -1.0, 1e300])
def test_a_claim_that_is_no_worth_is_refused_before_it_counts(worth: float) -> None:
    with pytest.raises(ParameterError, match="weight"):
        Utility("log", worth)


def test_many_filters_share_one_budget() -> None:
    many = [SubscriptionIntent(f"area/{number}/+", "log:1e12") for number in range(20_000)]
    crew = [SubscriptionIntent("smoke/1", "log:20")]
    decided = plan({"crew": 100.0, GREEDY: 5.0}, {"crew": crew, GREEDY: [*many, *_everything()]})
    assert planned_worth(decided, GREEDY)[1] == pytest.approx(5.0)
    treated = decided.orders.treatment("crew", "smoke/1")
    assert (treated.priority_class, treated.drop_rate) == (0, 0.0)
    # Of topics that nobody has seen yet, too.
    assert sum(each.worth for each in decided.orders.filters[GREEDY].values()) <= 5.0 * (1 + 1e-6)


def _everything() -> list[SubscriptionIntent]:
    return [SubscriptionIntent(topic, "log:1e12") for topic in TOPICS]
