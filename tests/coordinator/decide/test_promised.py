"""Promises in decisions: what is admitted stays, also over a restart at any moment; who is refused touches nobody."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import numpy as np
import pytest
from tests.coordinator.promising import planned_for, publisher, subscriber, ward

from triagemq.channel.orders import Orders, dump_orders, parse_orders
from triagemq.coordinator.decide import promised
from triagemq.coordinator.decide.decide import NO_SWITCHES, Decided, PlannerSettings, Question, decide
from triagemq.coordinator.decide.promised import publication_name
from triagemq.coordinator.decide.what_if import promise_facts
from triagemq.errors import PlanError
from triagemq.intents import Intent, PublicationIntent, PublisherIntent, SubscriberIntent, SubscriptionIntent
from triagemq.plan.admission.planning import ledger_of

PULSE = (publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.02))
URGENT = (publisher("alarm", "fire"), subscriber("doctor", "fire", 0.0064))


def decided(*intents: Intent, previous: Decided | Orders | None = None, **more: object) -> Decided:
    return decide(Question(planned_for(*intents), **more), previous)  # type: ignore[arg-type]


def levels(orders: Orders) -> dict[str, int]:
    return {name: copy.priority_class for name, copy in orders.copies.items()}


def of_kind(found: Decided, kind: str) -> list[str]:
    return [decision.subject for decision in found.decisions if decision.kind == kind]


def keeps_every_bound(found: Decided, stage: Orders) -> bool:
    """Whether those who are on the wire by a stage keep the deadlines that they were admitted with."""
    scenario = found.scenario
    ledger = ledger_of(scenario, found.plan)
    for link, flows in ledger.links.items():
        if ledger.network.port(link) < 0:
            continue
        port, rows, at = scenario.ports.name[link], [], []
        for row, publication in enumerate(flows.publication.tolist()):
            published = scenario.publications
            name = publication_name(
                scenario.publishers.name[published.publisher[publication]],
                scenario.topics.name[published.topic[publication]],
            )
            copy = stage.copies.get(f"{stage.promised.addresses[name]} {port}")
            if copy is not None:
                rows.append(row)
                at.append(copy.priority_class)
        there = flows.some(rows)  # type: ignore[arg-type]
        if rows and not there.keeps(
            ledger.network.link(link), replace(there, level=there.level * 0 + at).level
        ):
            return False
    return True


def test_an_admitted_promise_has_an_address_a_level_at_every_port_and_a_limiter_where_it_enters() -> None:
    found = decided(*PULSE)
    assert levels(found.orders) == {"239.192.0.0:17000 over": 0, "239.192.0.0:17000 monitor": 0}
    limiter = found.orders.limiters["239.192.0.0:17000 over"]
    assert limiter.port == "over"
    assert limiter.burst_bytes >= 1_066
    (promise,) = promise_facts(found)
    assert promise.admitted
    assert promise.bound_seconds is not None
    assert promise.bound_seconds + (promise.slack_seconds or 0.0) == pytest.approx(0.02)
    assert [hop.port for hop in promise.hops] == ["", "over", "monitor"]
    assert of_kind(found, "admitted") == ["nurse pulse"]


def test_what_is_promised_is_no_topic_of_a_connection() -> None:
    both = SubscriberIntent(
        (SubscriptionIntent("pulse", max_latency_seconds=0.02, guaranteed=True), SubscriptionIntent("chat")),
        "monitor",
        name="nurse",
    )
    chat = PublisherIntent((PublicationIntent("chat", 1.0, 100.0),), name="pump")
    found = decided(PULSE[0], chat, both)
    assert found.orders.topics["nurse"] == {"chat": (1, 0.0)}
    again = decided(PULSE[0], chat, both, previous=found)
    assert not again.changed


def test_a_newcomer_comes_by_stages_that_each_keep_every_bound() -> None:
    first = decided(*PULSE)
    second = decided(*PULSE, *URGENT, previous=first)
    assert {each.subscriber for each in promise_facts(second) if each.admitted} == {"nurse", "doctor"}
    assert levels(second.orders)["239.192.0.0:17000 over"] == 1
    assert second.stages[-1] is second.orders
    assert [each.generation for each in second.stages] == list(
        range(first.orders.generation + 1, second.orders.generation + 1)
    )
    for stage in second.stages:
        assert keeps_every_bound(second, stage)
        # Nothing enters that is not limited, or does not lead on.
        for name in stage.copies:
            assert not name.endswith(" over") or name in stage.limiters
            key = name.removesuffix(" over")
            assert not name.endswith(" over") or f"{key} monitor" in stage.copies
        lowest_level = max(levels(stage).values())
        assert all(flow.priority_class > lowest_level for flow in stage.flows.values())
        assert all(one > lowest_level for topics in stage.topics.values() for one, _ in topics.values())


def test_who_leaves_leaves_the_others_where_they_are() -> None:
    first = decided(*PULSE, *URGENT)
    left = decided(*PULSE, previous=first)
    kept = {name: level for name, level in levels(first.orders).items() if name in left.orders.copies}
    assert levels(left.orders) == kept
    assert of_kind(left, "released") == ["doctor fire"]
    assert all(keeps_every_bound(left, stage) for stage in left.stages)


def test_after_a_restart_what_was_admitted_stays_admitted() -> None:
    first = decided(*PULSE, *URGENT)
    kept = parse_orders(dump_orders(first.orders))
    assert kept == first.orders
    again = decided(*PULSE, *URGENT, previous=kept)
    assert not again.changed
    # One that would not have been admitted beside it, had it come first, is the one that is refused.
    crowd = [
        each
        for number in range(12)
        for each in (
            publisher("pump", f"a{number}", 0.01, 1_400),
            subscriber(f"early-{number}", f"a{number}", 0.03),
        )
    ]
    pumps = PublisherIntent(
        tuple(each.publications[0] for each in crowd if isinstance(each, PublisherIntent)), name="pump"
    )
    crowd = [pumps, *(each for each in crowd if isinstance(each, SubscriberIntent))]
    crowded = decided(*PULSE, *URGENT, *crowd, previous=kept)
    assert {"nurse", "doctor"} <= {each.subscriber for each in promise_facts(crowded) if each.admitted}
    assert of_kind(crowded, "refused")


def test_a_restart_in_the_middle_completes_or_undoes_the_change() -> None:
    first = decided(*PULSE)
    second = decided(*PULSE, *URGENT, previous=first)
    assert len(second.stages) > 2
    for stage in second.stages:
        kept = parse_orders(dump_orders(stage))
        completed = decided(*PULSE, *URGENT, previous=kept)
        assert levels(completed.orders) == levels(second.orders)
        assert all(keeps_every_bound(completed, each) for each in completed.stages)
        undone = decided(*PULSE, previous=kept)
        assert set(levels(undone.orders)) == set(levels(first.orders))
        assert all(each.admitted for each in promise_facts(undone))
        assert all(keeps_every_bound(undone, each) for each in undone.stages)


def test_a_promise_whose_terms_changed_while_nobody_looked_is_decided_on_again() -> None:
    first = decided(*PULSE)
    larger = publisher("ecg", "pulse", max_size_bytes=60_000)
    again = decided(larger, PULSE[1], previous=parse_orders(dump_orders(first.orders)))
    (promise,) = promise_facts(again)
    assert not promise.admitted
    assert not again.orders.copies


@pytest.mark.parametrize(
    ("announced", "says"),
    [
        ([publisher("stray", "x"), subscriber("late", "x", 0.02)], "plugged into no managed switch"),
        ([publisher("pump", "x"), subscriber("late", "x", 1e-4)], "the path alone takes"),
        ([publisher("lamp", "x"), subscriber("late", "x", 0.02, "screen")], "no path"),
        ([publisher("pump", "x", 1e-4), subscriber("late", "x", 0.02)], "cannot carry it"),
        (
            [
                PublisherIntent((PublicationIntent("x", 1.0, 10.0),), name="pump"),
                subscriber("late", "x", 0.02),
            ],
            "max_size_bytes",
        ),
    ],
)
def test_what_cannot_be_promised_is_refused_and_nothing_that_runs_is_touched(
    announced: list[Intent], says: str
) -> None:
    first = decided(*PULSE)
    second = decided(*PULSE, *announced, previous=first)
    refused = next(each for each in promise_facts(second) if each.subscriber == "late")
    assert not refused.admitted
    assert says in refused.reason
    assert (second.orders.copies, second.orders.limiters) == (first.orders.copies, first.orders.limiters)
    assert second.orders.promised == first.orders.promised
    assert len(second.stages) == 1
    assert of_kind(second, "refused") == ["late x"]


def test_what_is_offered_instead_is_admitted() -> None:
    first = decided(*PULSE, publisher("pump", "x"), subscriber("late", "x", 1e-4))
    refused = next(each for each in promise_facts(first) if not each.admitted)
    assert refused.offer_seconds is not None
    again = decided(
        *PULSE, publisher("pump", "x"), subscriber("late", "x", refused.offer_seconds), previous=first
    )
    assert all(each.admitted for each in promise_facts(again))


def test_an_address_is_one_topics_and_publishers_of_a_topic_differ_by_port() -> None:
    first = decided(*PULSE, *URGENT)
    addresses = first.orders.promised.addresses
    assert len({key.address for key in addresses.values()}) == 2
    another = publisher("pump", "pulse")
    second = decided(*PULSE, another, *URGENT, previous=first)
    shared = second.orders.promised.addresses
    assert shared["ecg pulse"] == addresses["ecg pulse"]
    assert shared["pump pulse"].address == shared["ecg pulse"].address
    assert shared["pump pulse"].udp_port != shared["ecg pulse"].udp_port
    # What is given back is not the next one's.
    third = decided(*URGENT, publisher("pump", "new"), subscriber("nurse", "new", 0.02), previous=second)
    assert third.orders.promised.addresses["pump new"].address not in {key.address for key in shared.values()}


def test_when_there_is_no_address_left_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promised, "ADDRESSES", 1)
    with pytest.raises(PlanError, match="all 1 multicast addresses"):
        decided(*PULSE, *URGENT)


def test_the_network_says_where_publishers_are_plugged_in() -> None:
    scenario = planned_for(*PULSE)
    (row,) = (scenario.publishers.name.index(name) for name in ("ecg",))
    assert scenario.switches.name[scenario.publishers.access_switch[row]] == "bed"
    assert scenario.publishers.access_bps[row] == 10e6
    assert "screen" in ward().port_names


def test_going_on_with_the_book_decides_as_working_everything_out_again() -> None:
    """Publishers and subscribers join, change and leave at random, so that the rows of all tables move."""
    draw = random.Random(16)
    present: dict[str, Intent] = {}
    previous: Decided | None = None
    ended = admitted = 0
    for _ in range(40):
        name = draw.choice(["ecg", "pump", "alarm", "lamp"])
        if draw.random() < 0.5:
            intent: Intent = publisher(
                name, draw.choice("abcd"), draw.choice([0.02, 0.05]), draw.choice([200, 900])
            )
        else:
            latency, port = draw.choice([0.006, 0.01, 0.02, 0.1]), draw.choice(["monitor", "screen"])
            intent = subscriber(f"to-{name}", draw.choice("abcd"), latency, port)
        if intent.name in present and draw.random() < 0.4:
            del present[intent.name]
        else:
            present[intent.name] = intent
        if previous is None:
            previous = decided(*present.values())
            continue
        forgetful = replace(previous, plan=replace(previous.plan, ledger=None))
        again = decided(*present.values(), previous=forgetful)
        now = decided(*present.values(), previous=previous)
        for table in ("promises", "hops", "limiters"):
            for column in fields(getattr(now.plan, table)):
                one, other = (getattr(getattr(each.plan, table), column.name) for each in (now, again))
                np.testing.assert_allclose(one, other, rtol=1e-12, err_msg=f"{table}.{column.name}")
        assert now.orders.copies == again.orders.copies
        assert now.orders.promised.addresses == again.orders.promised.addresses
        ended += bool(previous.orders.promised.promises.keys() - now.orders.promised.promises.keys())
        admitted += bool(now.orders.promised.promises)
        previous = now
    assert ended > 3
    assert admitted > 10


def test_nobody_is_left_to_the_direct_way_before_it_is_laid_or_after_it_is_gone() -> None:
    first = decided(*PULSE)
    assert first.orders.direct == {}
    listening = {"nurse": ["239.192.0.0:17000"], "doctor": ["239.192.0.1:17000"]}
    heard = decided(*PULSE, previous=first, listening=listening)
    assert heard.orders.direct == {"nurse": {"pulse": {"ecg": first.orders.generation + 1}}}
    assert heard.changed_for == ["nurse"]
    assert [stage.direct for stage in heard.stages] == [heard.orders.direct]
    both = decided(*PULSE, *URGENT, previous=heard, listening=listening)
    assert all(stage.direct == heard.orders.direct for stage in both.stages[:-1])
    assert both.orders.direct["nurse"] == heard.orders.direct["nurse"]
    assert both.orders.direct["doctor"] == {"fire": {"alarm": heard.orders.generation + 1}}
    left = decided(*PULSE, previous=both, listening=listening)
    assert all(stage.direct == heard.orders.direct for stage in left.stages)
    assert parse_orders(dump_orders(both.orders)) == both.orders


def test_copies_are_those_of_the_publishers_address_and_follow_it() -> None:
    first = decided(*PULSE, *URGENT, sources={"ecg": "10.0.0.7"})
    sources = {copy.key.address: copy.source for copy in first.orders.copies.values()}
    addresses = first.orders.promised.addresses
    assert sources == {addresses["ecg pulse"].address: "10.0.0.7", addresses["alarm fire"].address: ""}
    moved = decided(*PULSE, *URGENT, previous=first, sources={"ecg": "10.0.0.8"})
    assert moved.changed
    assert {copy.source for copy in moved.orders.copies.values()} == {"10.0.0.8", ""}
    assert moved.orders.promised.addresses == addresses
    assert parse_orders(dump_orders(moved.orders)) == moved.orders


def test_where_nobody_could_keep_a_promise_all_are_refused_with_the_reason() -> None:
    found = decided(*PULSE, settings=PlannerSettings(no_promises=NO_SWITCHES))
    (promise,) = promise_facts(found)
    assert not promise.admitted
    assert promise.reason == NO_SWITCHES
    assert promise.offer_seconds is None
    assert not found.orders.copies


def test_a_refusal_says_whose_flow_would_be_late_and_by_how_much() -> None:
    alone = decided(publisher("ecg", "pulse"), subscriber("nurse", "pulse", 0.001))
    (promise,) = promise_facts(alone)
    assert (promise.missed_publisher, promise.missed_topic) == ("ecg", "pulse")
    assert promise.offer_seconds is not None
    assert promise.missed_by_seconds == pytest.approx(promise.offer_seconds - 0.001, rel=0.01)
    # Another one is in the way of a newcomer, and the newcomer in that of the other.
    crowd = [
        each
        for name in ("ecg", "pump", "alarm")
        for each in (publisher(name, name, 0.02, 8_000), subscriber(f"to-{name}", name, 0.03))
    ]
    late = [each for each in promise_facts(decided(*crowd)) if not each.admitted]
    assert late
    assert all(each.missed_topic in ("ecg", "pump", "alarm") for each in late)
    assert all(each.missed_by_seconds is None or each.missed_by_seconds > 0 for each in late)
