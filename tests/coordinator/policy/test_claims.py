"""Claims are planned for within a role: the operator's terms as they are, a client's own as far as it may."""

from __future__ import annotations

from triagemq.coordinator.policy.claims import entitle, observed_intent
from triagemq.coordinator.policy.record import (
    NO_POLICY,
    ClientIdentity,
    ClientRole,
    ClientRule,
    OperatorPolicy,
)
from triagemq.intents import SubscriberIntent, SubscriptionIntent

OPERATORS = (
    SubscriptionIntent("building/+/smoke", "log:14", max_rate_per_second=2.0, min_share=0.2),
    SubscriptionIntent("#", "log:0.5"),
)
POLICY = OperatorPolicy(
    {
        "command": ClientRole("command", 400.0, 0),
        "crew": ClientRole("crew", 200.0, 1, may_reserve=True),
        "visitor": ClientRole("visitor", 5.0, 9, ("lobby/#", "building/hall/+")),
    },
    (
        ClientRule("command", "panel-*", subscriptions=OPERATORS, port="wire"),
        ClientRule("crew", "ff-*"),
        ClientRule("visitor"),
    ),
)


def intent(name: str, *subscriptions: SubscriptionIntent) -> SubscriberIntent:
    return SubscriberIntent(subscriptions, name=name)


def worths(planned: SubscriberIntent) -> list[tuple[str, float]]:
    return [(each.topic, each.utility.weight) for each in planned.subscriptions]


def test_what_the_policy_says_holds_for_the_part_of_a_silent_filter_that_it_is_about() -> None:
    silent = observed_intent("panel-1", {"building/#": "", "lobby/news": ""})
    assert silent is not None
    found = entitle(POLICY, ClientIdentity("panel-1"), silent)
    assert worths(found.intent) == [("building/+/smoke", 14.0), ("building/#", 0.5), ("lobby/news", 0.5)]
    assert found.intent.subscriptions[0].min_share == 0.2
    assert found.granted == {"building/+/smoke", "building/#", "lobby/news"}
    assert (found.intent.port, found.rank, found.refused) == ("wire", 0, ())


def test_a_filter_that_the_policy_does_not_name_is_worth_little_and_counts_in_the_budget() -> None:
    silent = observed_intent("ff-7", {"floor/1": ""})
    assert silent is not None
    found = entitle(POLICY, ClientIdentity("ff-7"), silent)
    assert (worths(found.intent), found.granted, found.budget) == ([("floor/1", 1.0)], frozenset(), 200.0)


def test_terms_that_a_client_states_itself_are_its_claim() -> None:
    spoken = observed_intent("panel-1", {"building/7/smoke": "log:3;min_share=0.9", "x": "no terms"})
    assert spoken is not None
    found = entitle(POLICY, ClientIdentity("panel-1"), spoken)
    assert worths(found.intent) == [("building/7/smoke", 3.0), ("x", 0.5)]
    assert found.granted == {"x"}
    assert found.intent.subscriptions[0].min_share is None
    assert [each.topic for each in found.refused] == ["building/7/smoke"]


def test_a_filter_outside_what_a_role_may_is_worth_nothing_but_where_it_lies_inside() -> None:
    claim = SubscriptionIntent("building/#", "log:1e9", qos=1)
    found = entitle(POLICY, ClientIdentity("guest"), intent("guest", claim))
    assert worths(found.intent) == [("building/hall/+", 1e9), ("building/#", 0.0)]
    assert [each.qos for each in found.intent.subscriptions] == [1, 1]
    assert [(each.topic, "visitor may subscribe to lobby/#" in each.reason) for each in found.refused] == [
        ("building/#", True)
    ]


def test_only_roles_that_may_reserve_claim_shares_and_promises() -> None:
    claim = SubscriptionIntent("lobby/x", min_share=1.0, guaranteed=True, max_latency_seconds=0.1)
    visitor = entitle(POLICY, ClientIdentity("guest"), intent("guest", claim))
    (planned,) = visitor.intent.subscriptions
    assert (planned.min_share, planned.guaranteed, planned.max_latency_seconds) == (None, False, 0.1)
    assert "may not reserve" in visitor.refused[0].reason
    for policy, name in ((POLICY, "ff-7"), (NO_POLICY, "guest")):
        found = entitle(policy, ClientIdentity(name), intent(name, claim))
        assert (found.intent.subscriptions, found.refused) == ((claim,), ())


def test_what_a_scenario_states_is_no_claim() -> None:
    stated, more = SubscriptionIntent("a", "log:70", min_share=0.5), SubscriptionIntent("b", "log:71")
    found = entitle(
        POLICY,
        ClientIdentity("guest"),
        intent("guest", stated, more),
        stated=lambda name: {"a": 70.0, "b": 70.0} if name == "guest" else {},
    )
    assert found.granted >= {"a"}
    assert found.intent.subscriptions[0] is stated
    assert worths(found.intent)[1] == ("b", 0.0)


def test_without_a_policy_everyone_has_the_same_budget_and_may_everything() -> None:
    claim = SubscriptionIntent("#", "log:1e12")
    wanted = intent("guest", claim)
    found = entitle(NO_POLICY, ClientIdentity("guest"), wanted, default_budget=1000.0)
    assert found.intent is wanted
    assert (found.budget, found.granted) == (1000.0, frozenset())


def test_a_client_id_may_be_any_text_and_what_is_no_filter_is_left_out() -> None:
    found = observed_intent("mosqsub|12-ü", {"$share/g/a/+": "", "b#": "", "": ""})
    assert found is not None
    assert (found.name, [each.topic for each in found.subscriptions]) == ("mosqsub|12-ü", ["a/+"])
    assert observed_intent("x", {"b#": ""}) is None
    assert observed_intent("\x00", {"a": ""}) is None
