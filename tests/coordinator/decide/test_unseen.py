"""Events of topics that were not seen before go in the class of their filter's worth, and are never dropped."""

from __future__ import annotations

from triagemq.channel.orders import dump_orders, parse_orders, reranked
from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.policy.claims import Entitlement
from triagemq.coordinator.rates import Rates
from triagemq.intents import SubscriberIntent, SubscriptionIntent, Utility
from triagemq.plan.dataplane import CopyTerms

NETWORK = Network.plain(bandwidth_bps=200_000.0)


def subscriber(name: str, **worths: float) -> SubscriberIntent:
    return SubscriberIntent(
        tuple(
            SubscriptionIntent(each.replace("_", "/"), Utility("log", worth))
            for each, worth in worths.items()
        ),
        name=name,
    )


def wanting(*intents: SubscriberIntent, budget: float = 1e12) -> IntentBook:
    book = IntentBook()
    for intent in intents:
        book.announce(Entitlement(intent, budget))
    return book


def planned(book: IntentBook, rates: dict[str, float], previous: Decided | None = None) -> Decided:
    known = Rates(rates, dict.fromkeys(rates, 200.0))
    return decide(
        Question(book.scenario(NETWORK, known), unseen=book.unseen(NETWORK), terms=book.terms(NETWORK)),
        previous,
    )


FIRE = SubscriberIntent(
    (
        SubscriptionIntent("b1/fire/+", Utility("log", 1000.0)),
        SubscriptionIntent("alarms", Utility("log", 50.0)),
        SubscriptionIntent("telemetry/#", Utility("log", 5.0)),
        SubscriptionIntent("camera", Utility("log", 1.0)),
    ),
    name="chief",
)


def test_before_anything_is_measured_filters_share_the_classes_by_their_worth() -> None:
    orders = planned(wanting(FIRE), {}).orders
    topics = ["b1/fire/7", "alarms", "telemetry/a/b", "camera"]
    classes = [orders.treatment("chief", topic).priority_class for topic in topics]
    assert classes == sorted(set(classes))
    assert {orders.treatment("chief", topic).drop_rate for topic in topics} == {0.0}


def test_an_overload_drops_what_is_planned_and_never_what_was_not_seen() -> None:
    decided = planned(wanting(FIRE), {"telemetry/1": 200.0, "camera": 20.0, "alarms": 5.0})
    orders = decided.orders
    assert orders.treatment("chief", "telemetry/1").drop_rate > 0.1
    first = orders.treatment("chief", "b1/fire/never-seen")
    assert (first.priority_class, first.drop_rate) == (0, 0.0)
    assert first.worth > orders.treatment("chief", "telemetry/new").worth > 0.0
    # Exact topics have a rate by now, and are planned.
    assert orders.treatment("chief", "alarms").worth == 0.0


def test_a_topic_that_falls_silent_is_treated_as_one_that_was_not_seen() -> None:
    book = wanting(FIRE)
    before = planned(book, {"telemetry/1": 200.0, "alarms": 5.0})
    after = planned(book, {"telemetry/1": 200.0}, before)
    assert after.orders.treatment("chief", "alarms").worth > 0.0
    assert after.orders.treatment("chief", "alarms").drop_rate == 0.0


def test_everyone_has_a_flow_at_its_own_port_before_anything_is_known() -> None:
    orders = planned(wanting(FIRE, subscriber("visitor", chat_x=1.0)), {"alarms": 5.0}).orders
    assert {"chief~0", "visitor~0"} <= set(orders.flows)


def test_orders_keep_what_they_say_of_filters() -> None:
    orders = planned(wanting(FIRE), {"telemetry/1": 200.0}).orders
    assert parse_orders(dump_orders(orders)) == orders
    assert orders.since(orders).filters == {}
    assert orders.part_for({"somebody else"}, {}).filters == {}
    assert orders.part_for({"chief"}, {}).filters == orders.filters


def test_orders_have_the_terms_that_gateways_keep() -> None:
    picky = SubscriberIntent(
        (
            SubscriptionIntent("alarms"),
            SubscriptionIntent("+/alarms", expires_seconds=1.0),
            SubscriptionIntent("#", max_rate_per_second=2.0, newest_only=True, min_share=0.5),
        ),
        name="chief",
    )
    wanted = wanting(
        picky, subscriber("visitor", chat_x=1.0), SubscriberIntent(FIRE.subscriptions, name="ff")
    )
    orders = planned(wanted, {"telemetry/1": 200.0, "alarms": 5.0}).orders
    assert list(orders.terms) == ["chief"]
    found = {topic: orders.treatment("chief", topic).terms for topic in ("alarms", "a/alarms", "telemetry/1")}
    assert found == {
        "alarms": None,
        "a/alarms": CopyTerms(expires_seconds=1.0),
        "telemetry/1": CopyTerms(max_rate_per_second=2.0, newest_only=True),
    }
    assert orders.treatment("ff", "alarms").terms is None
    assert parse_orders(dump_orders(orders)) == orders
    assert parse_orders('{"generation":3}').terms == {}
    assert orders.part_for({"ff"}, {}).terms == {}
    without = planned(wanting(FIRE, subscriber("visitor", chat_x=1.0)), {"alarms": 5.0}).orders
    change = without.since(orders)
    assert change.terms == {"chief": None}
    assert "chief" in (reranked(orders, without, change) or ())


def test_without_triage_nothing_goes_first() -> None:
    book = wanting(FIRE)
    question = Question(book.scenario(NETWORK, Rates()), unseen=book.unseen(NETWORK))
    decided = decide(
        Question(question.scenario, unseen=question.unseen, settings=PlannerSettings.no_triage())
    )
    assert decided.orders.filters == {}


def test_an_absurd_claim_is_capped_and_takes_nobody_else_away() -> None:
    mayday = subscriber("crew", mayday=50.0)
    greedy = subscriber("visitor", chat_1=1e12)
    rates = {"mayday": 3.0, "chat/1": 400.0}
    starved = planned(wanting(mayday, greedy), rates)
    assert starved.orders.treatment("crew", "mayday").priority_class > 0
    capped = planned(wanting(mayday, greedy, budget=1000.0), rates)
    treated = capped.orders.treatment("crew", "mayday")
    assert (treated.priority_class, treated.drop_rate) == (0, 0.0)
