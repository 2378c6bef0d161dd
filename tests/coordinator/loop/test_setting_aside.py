"""What no plan can be made with is set aside by itself, with a reason; everyone else is planned for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triagemq.channel.orders import Orders
from triagemq.coordinator.decide.decide import Decided, PlannerSettings
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.loop import replanning
from triagemq.coordinator.loop.replanning import Replanner
from triagemq.coordinator.ports import PortsNow
from triagemq.coordinator.rates import Rates, RateWatch
from triagemq.intents import SubscriberIntent, SubscriptionIntent, Utility
from triagemq.scenario.utility import maximum_utility

RATES = {"mayday": 3.0, "lamp/7": 2.0}


def subscriber(name: str, *topics: str, worth: float = 1.0) -> SubscriberIntent:
    return SubscriberIntent(
        tuple(SubscriptionIntent(topic, Utility("log", worth)) for topic in topics), name=name
    )


def intents(*several: SubscriberIntent) -> dict[Key, Record]:
    return {(each.kind, each.name): Record(each, "", "") for each in several}


def replanner(default_budget: float = 1e12) -> Replanner:
    return Replanner(Network.plain(), PlannerSettings(), Orders(), default_budget)


def plan(here: Replanner, rates: dict[str, float], **sizes: float) -> Decided:
    measured = Rates(rates, {topic.replace("_", "/"): size for topic, size in sizes.items()})
    return here.plan(measured, {}, PortsNow(), ["asked for"])


def set_aside(planned: Decided) -> list[str]:
    return [each.subject for each in planned.decisions if each.kind == "set_aside"]


def fail_for(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Plans fail that have one of these topics or subscribers."""
    decide = replanning.decide

    def failing(question: Any, previous: Any) -> Any:
        scenario = question.scenario
        if not set(names).isdisjoint((*scenario.topics.name, *scenario.subscribers.name)):
            raise FloatingPointError("invalid value")
        return decide(question, previous)

    monkeypatch.setattr(replanning, "decide", failing)


def test_an_empty_message_is_planned_like_any_other() -> None:
    watch = RateWatch()
    for window in range(1, 20):
        watch.observe(0.2 * window, {"lamp/7": (2, 0), "mayday": (1, 20)})
    here = replanner()
    here.take(intents(subscriber("crew", "mayday", "lamp/7")))
    planned = here.plan(watch.rates(), {}, PortsNow(), ["asked for"])
    assert set(planned.orders.topics["crew"]) == {"mayday", "lamp/7"}
    # As the mean size that was measured of messages that were not empty before.
    planned = plan(here, RATES, mayday=0.0, lamp_7=0.0)
    assert set(planned.orders.topics["crew"]) == {"mayday", "lamp/7"}


def test_a_measured_rate_or_size_counts_for_no_more_than_one_that_is_announced() -> None:
    here = replanner()
    here.take(intents(subscriber("crew", "mayday", "lamp/7")))
    planned = plan(here, {"mayday": 1e300, "lamp/7": 2.0}, lamp_7=1e300)
    assert planned.scenario.publications.rate_per_second.max() == 1e9
    assert planned.scenario.publications.size_bytes.max() == 65_535
    assert set(planned.orders.topics["crew"]) == set(RATES)


def test_a_client_that_cannot_be_planned_for_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replanner()
    crew = subscriber("crew", "mayday")
    here.take(intents(crew))
    plan(here, RATES)
    fail_for(monkeypatch, "bad-1", "bad-2")
    names = ("good-1", "bad-1", "good-2", "bad-2", "good-3")
    here.take(intents(crew, *(subscriber(name, "mayday") for name in names)))
    planned = plan(here, RATES)
    assert sorted(set_aside(planned)) == ["subscriber bad-1", "subscriber bad-2"]
    assert set(planned.orders.topics) == {"crew", "good-1", "good-2", "good-3"}
    assert set_aside(plan(here, RATES)) == []


def test_an_intent_that_cannot_be_planned_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replanner()
    other = subscriber("other", "mayday")
    here.take(intents(subscriber("crew", "mayday"), other))
    plan(here, {"mayday": 3.0, "lamp/7": 2.0})
    decide = replanning.decide

    def failing(question: Any, previous: Any) -> Any:
        if len(question.scenario.subscriptions) > 2:
            raise FloatingPointError("invalid value")
        return decide(question, previous)

    monkeypatch.setattr(replanning, "decide", failing)
    here.take(intents(subscriber("crew", "mayday", "lamp/7"), other))
    planned = plan(here, RATES)
    assert set_aside(planned) == ["subscriber crew"]
    assert planned.orders.topics["crew"].keys() == {"mayday"}


def test_planning_that_fails_for_another_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replanner()
    here.take(intents(subscriber("crew", "mayday")))

    def failing(question: Any, previous: Any) -> Any:
        raise FloatingPointError("nothing can be planned")

    with monkeypatch.context() as patch:
        patch.setattr(replanning, "decide", failing)
        with pytest.raises(FloatingPointError, match="nothing can be planned"):
            plan(here, RATES)
    assert set(plan(here, RATES).orders.topics["crew"]) == {"mayday"}


def test_claims_beyond_the_budget_are_scaled_to_it_and_recorded_once() -> None:
    here = replanner(1000.0)
    visitor, crew = subscriber("visitor", "lamp/7", worth=1e12), subscriber("crew", "mayday", worth=50.0)
    here.take(intents(visitor, crew))
    planned = plan(here, RATES)
    wanted = planned.scenario.subscriptions
    topics = [planned.scenario.topics.name[topic] for topic in wanted.topic]
    worth = dict(zip(topics, maximum_utility(wanted).tolist(), strict=True))
    assert worth == {"lamp/7": pytest.approx(1000.0), "mayday": pytest.approx(50 * np.log(2))}
    assert [each.subject for each in planned.decisions if each.kind == "claims_scaled"] == ["visitor"]
    assert [each.topic for each in planned.limited["visitor"]] == [""]
    assert "claims_scaled" not in [each.kind for each in plan(here, RATES).decisions]
