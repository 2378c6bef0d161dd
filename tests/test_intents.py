"""What clients ask for: only what is possible can be made, here and by pydantic, and JSON tells all of it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from triagemq.errors import ParameterError
from triagemq.intents import PublicationIntent, PublisherIntent, SubscriberIntent, SubscriptionIntent, Utility

NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (SubscriptionIntent, {"topic": "floor/1+"}),
        (SubscriptionIntent, {"topic": ""}),
        (SubscriptionIntent, {"topic": "$share/all/floor"}),
        (SubscriptionIntent, {"topic": 7}),
        (SubscriptionIntent, {"topic": None}),
        (SubscriptionIntent, {"topic": "a", "qos": 3}),
        (SubscriptionIntent, {"topic": "a", "qos": True}),
        (SubscriptionIntent, {"topic": "a", "utility": "sqrt:1"}),
        (SubscriptionIntent, {"topic": "a", "utility": "step:3@1.5"}),
        (SubscriptionIntent, {"topic": "a", "max_latency_seconds": -1.0}),
        (SubscriptionIntent, {"topic": "a", "max_latency_seconds": 0}),
        (SubscriptionIntent, {"topic": "a", "max_latency_seconds": math.inf}),
        (SubscriptionIntent, {"topic": "a", "max_latency_seconds": "1"}),
        (SubscriptionIntent, {"topic": "a", "max_latency_share": 0.9}),
        (SubscriptionIntent, {"topic": "a", "max_latency_seconds": 1.0, "max_latency_share": 1.5}),
        (SubscriptionIntent, {"topic": "a", "guaranteed": True}),
        (SubscriptionIntent, {"topic": "a", "max_latency_seconds": 1.0, "guaranteed": 1}),
        (SubscriptionIntent, {"topic": "a", "min_share": 0}),
        (SubscriptionIntent, {"topic": "a", "min_share": 1.1}),
        (SubscriptionIntent, {"topic": "a", "max_rate_per_second": 0.0}),
        (SubscriptionIntent, {"topic": "a", "max_rate_per_second": math.inf}),
        (SubscriptionIntent, {"topic": "a", "newest_only": 1}),
        (SubscriptionIntent, {"topic": "a", "expires_seconds": 0}),
        (Utility, {"shape": "log", "weight": NAN}),
        (Utility, {"shape": "log", "weight": -1.0}),
        (Utility, {"shape": "log", "weight": math.inf}),
        (Utility, {"shape": "log", "weight": 1.0, "freshness_seconds": NAN}),
        (Utility, {"shape": "log", "weight": 1.0, "threshold": 0.5}),
        (Utility, {"shape": "step", "weight": 1.0}),
        (Utility, {"shape": "cubic", "weight": 1.0}),
        (PublicationIntent, {"topic": "a/#", "rate_per_second": 1.0}),
        (PublicationIntent, {"topic": "$SYS/load", "rate_per_second": 1.0}),
        (PublicationIntent, {"topic": "a", "rate_per_second": -1.0}),
        (PublicationIntent, {"topic": "a", "rate_per_second": NAN}),
        (PublicationIntent, {"topic": "a", "rate_per_second": 1.0, "size_bytes": 0.0}),
        (PublicationIntent, {"topic": "a", "min_separation_seconds": 0.0}),
        (PublicationIntent, {"topic": "a", "min_separation_seconds": 2.0, "max_separation_seconds": 1.0}),
        (PublicationIntent, {"topic": "a", "min_separation_seconds": 0.5, "rate_per_second": 3.0}),
        (PublicationIntent, {"topic": "a", "size_bytes": 60.0, "max_size_bytes": 50.0}),
        (SubscriberIntent, {"name": "ff", "subscriptions": (), "flows": 0}),
        (SubscriberIntent, {"name": "ff", "subscriptions": (), "port": ""}),
        (SubscriberIntent, {"name": "f~f", "subscriptions": ()}),
        (SubscriberIntent, {"name": "ff", "subscriptions": (), "lease_seconds": 0.5}),
        (
            SubscriberIntent,
            {
                "name": "ff",
                "subscriptions": (SubscriptionIntent("a"), SubscriptionIntent("b"), SubscriptionIntent("a")),
            },
        ),
        (
            PublisherIntent,
            {"name": "pump", "publications": (PublicationIntent("a"), PublicationIntent("a", 1.0))},
        ),
    ],
)
def test_what_is_impossible_cannot_be_made(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        kind(**given)
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(given)


def test_a_mistake_names_the_field_and_the_topic() -> None:
    with pytest.raises(
        ParameterError, match=r"^rate_per_second: must be from 1e-06 .* is -2.0 \(topic 'a/b'\)$"
    ):
        PublicationIntent("a/b", -2.0)


def test_a_utility_is_taken_as_text_or_as_a_mapping() -> None:
    spelled_out = {"shape": "step", "weight": 3, "threshold": 0.8}
    wanted = [
        SubscriptionIntent("a", utility) for utility in ("step:3@0.8", spelled_out, Utility("step", 3.0, 0.8))
    ]  # type: ignore[arg-type]
    read = [
        TypeAdapter(SubscriptionIntent).validate_python({"topic": "a", "utility": u})
        for u in ("step:3@0.8", spelled_out)
    ]
    assert {*wanted, *read} == {SubscriptionIntent("a", Utility("step", 3.0, 0.8))}


seconds = st.floats(1e-6, 1e6)
levels = st.text("abc$+ é", min_size=1, max_size=3).filter(lambda level: "+" not in level or level == "+")
filters = st.lists(levels, min_size=1, max_size=4).map("/".join)
utilities = st.builds(
    Utility, st.sampled_from(["log", "linear"]), st.floats(0, 1e12), st.none(), st.none() | seconds
) | st.builds(Utility, st.just("step"), st.floats(0, 1e12), st.floats(1e-9, 1), st.none() | seconds)
subscriptions = st.builds(
    SubscriptionIntent,
    filters,
    utilities,
    seconds,
    st.none() | seconds,
    st.integers(0, 2),
    st.none() | st.floats(0.01, 1),
    st.booleans(),
    st.none() | st.floats(0.01, 1),
    st.none() | st.floats(1e-6, 1e9),
    st.booleans(),
    st.none() | seconds,
    st.booleans(),
) | st.builds(SubscriptionIntent, filters)


@given(
    st.lists(subscriptions, unique_by=lambda each: each.topic),
    st.none() | st.text(min_size=1, max_size=9),
    st.none() | st.integers(1, 9),
)
def test_intents_survive_as_text(
    wanted: list[SubscriptionIntent], port: str | None, flows: int | None
) -> None:
    intent = SubscriberIntent(tuple(wanted), port, flows, name="name")
    text = json.dumps(intent.as_json(), allow_nan=False)
    assert TypeAdapter(SubscriberIntent).validate_python(json.loads(text) | {"name": "name"}) == intent


numbers = [None, True, 0, 1, 2, 3, -1, 0.0, 0.5, 1.0, 1.5, 1e-7, 1e13, math.inf, NAN]
anything = st.sampled_from([*numbers, "", "a", "a/+", "a#", "log:10", "log", []])
terms = (
    *("utility", "max_latency_seconds", "max_separation_seconds", "qos", "max_latency_share", "guaranteed"),
    *("min_share", "max_rate_per_second", "newest_only", "expires_seconds", "properties"),
)


@given(st.fixed_dictionaries({"topic": st.just("a") | anything}, optional=dict.fromkeys(terms, anything)))
def test_whoever_makes_a_record_is_held_to_the_same_rules(given: dict[str, Any]) -> None:
    def made(make: Any) -> SubscriptionIntent | None:
        try:
            found: SubscriptionIntent = make()
        except (ParameterError, ValidationError, TypeError):
            return None
        return found

    assert made(lambda: SubscriptionIntent(**given)) == made(
        lambda: TypeAdapter(SubscriptionIntent).validate_python(given)
    )


def test_records_that_say_nothing_of_promises_are_written_as_before_there_were_any() -> None:
    assert PublicationIntent("a", 2.0, 60.0).as_json() == {
        "topic": "a",
        "rate_per_second": 2.0,
        "size_bytes": 60.0,
    }
    assert "guaranteed" not in SubscriptionIntent("a", max_latency_seconds=0.5).as_json()


def test_what_a_promise_needs_survives_as_text() -> None:
    declared = PublicationIntent("a", 2.0, 60.0, 0.4, 1.0, 1e6)
    wanted = SubscriptionIntent("a", max_latency_seconds=0.008, guaranteed=True)
    for record in (declared, wanted):
        text = json.dumps(record.as_json())
        assert TypeAdapter(type(record)).validate_python(json.loads(text)) == record
    assert wanted.as_json()["guaranteed"] is True
    with pytest.raises(ParameterError, match="rate_per_second: must be at most 2, one over min_separation"):
        PublicationIntent("a", 3.0, min_separation_seconds=0.5)


def test_terms_are_read_from_one_line() -> None:
    text = "log:10;max_rate=2;min_share=0.2;newest_only;expires=1;freshness=5;max_latency=0.5"
    assert SubscriptionIntent.parse("a", text) == SubscriptionIntent(
        "a",
        Utility("log", 10.0, freshness_seconds=5.0),
        max_latency_seconds=0.5,
        min_share=0.2,
        max_rate_per_second=2.0,
        newest_only=True,
        expires_seconds=1.0,
    )
    assert SubscriptionIntent.parse("a", "properties; guaranteed; max_latency=1").properties
    assert SubscriptionIntent.parse("a", "step:3@0.8") == SubscriptionIntent("a", Utility("step", 3.0, 0.8))
    assert SubscriptionIntent.parse("a", " ") == SubscriptionIntent("a")
    assert SubscriptionIntent.parse("a", "freshness = 5").utility == Utility(
        "log", 1.0, freshness_seconds=5.0
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_rate", "terms: 'max_rate' is not a utility as log:10, newest_only"),
        ("log:10;", "terms: '' is not"),
        ("max_rate=fast", "'max_rate=fast' is not"),
        ("newest_only=1", "'newest_only=1' is not"),
        ("speed=2", "min_share=NUMBER, max_rate=NUMBER"),
        ("max_rate=2;max_rate=3", "terms: 'max_rate=2;max_rate=3' has max_rate_per_second twice"),
        ("min_share=2", r"min_share: must be above 0 and at most 1, is 2.0 \(topic 'a'\)"),
        ("log:10;log:10", "has utility twice"),
        ("sqrt:4", "'sqrt:4' is not log:10"),
        ("max_latency_share=0.9", "give max_latency_seconds"),
    ],
)
def test_a_line_of_wrong_terms_is_refused_with_what_would_be_right(text: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        SubscriptionIntent.parse("a", text)


def test_devices_need_no_pydantic() -> None:
    program = "import sys, triagemq.client, triagemq.intents; print({'pydantic', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "set()"


@pytest.mark.parametrize("text", ["log:1e300", "linear:1e99999", "step:-1@0.5", "log:nan", "log:2e12"])
def test_a_weight_out_of_its_limits_is_told_them(text: str) -> None:
    with pytest.raises(ParameterError, match=r"must be from 0 to 1e\+12"):
        Utility.parse(text)
