"""Intents as JSON text, for the store: what is at its default is left out, floats survive exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triagemq.coordinator.intents.asked import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
    Utility,
)
from triagemq.scenario import UtilityShape

__all__ = ["PUBLISHER", "SUBSCRIBER", "dump_intent", "intent_document", "kind_of", "parse_intent"]

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"

Intent = PublisherIntent | SubscriberIntent


def kind_of(intent: Intent) -> str:
    """`publisher` or `subscriber`: names of the two are apart."""
    return PUBLISHER if isinstance(intent, PublisherIntent) else SUBSCRIBER


def dump_intent(intent: Intent) -> str:
    """An intent without its name.

    >>> wanted = SubscriberIntent("ff-7", (SubscriptionIntent("floor3/#", max_latency_seconds=0.5),), flows=3)
    >>> dump_intent(wanted)
    '{"subscriptions":[{"topic":"floor3/#","utility":{"shape":"log","weight":1.0},"max_latency_seconds":0.5}],"flows":3}'
    >>> parse_intent("subscriber", "ff-7", dump_intent(wanted)) == wanted
    True
    """
    return json.dumps(intent_document(intent), separators=(",", ":"), allow_nan=False)


def intent_document(intent: Intent) -> dict[str, Any]:
    """The same before it is text; keys as REST takes them."""
    if isinstance(intent, PublisherIntent):
        return {"publications": [_publication(each) for each in intent.publications]}
    wanted = {"subscriptions": [_subscription(each) for each in intent.subscriptions]}
    return wanted | _given(port=intent.port, flows=intent.flows)


def parse_intent(kind: str, name: str, text: str) -> Intent:
    """What `dump_intent` wrote."""
    document = json.loads(text)
    if kind == PUBLISHER:
        return PublisherIntent(
            name,
            tuple(
                PublicationIntent(each["topic"], each.get("rate_per_second"), each.get("size_bytes"))
                for each in document["publications"]
            ),
        )
    return SubscriberIntent(
        name,
        tuple(_parsed_subscription(each) for each in document["subscriptions"]),
        port=document.get("port"),
        flows=document.get("flows"),
    )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _publication(intent: PublicationIntent) -> dict[str, Any]:
    return {"topic": intent.topic} | _given(
        rate_per_second=intent.rate_per_second, size_bytes=intent.size_bytes
    )


def _subscription(intent: SubscriptionIntent) -> dict[str, Any]:
    worth = intent.utility
    return {
        "topic": intent.topic_filter,
        "utility": {"shape": worth.shape.name.lower(), "weight": worth.weight}
        | _given(threshold=worth.threshold or None, freshness_seconds=worth.freshness_seconds),
    } | _given(
        max_latency_seconds=intent.max_latency_seconds,
        max_separation_seconds=intent.max_separation_seconds,
        qos=intent.qos or None,
        max_latency_share=intent.max_latency_share,
    )


def _parsed_subscription(document: Mapping[str, Any]) -> SubscriptionIntent:
    worth = document["utility"]
    return SubscriptionIntent(
        document["topic"],
        Utility(
            UtilityShape[worth["shape"].upper()],
            worth["weight"],
            worth.get("threshold", 0.0),
            worth.get("freshness_seconds"),
        ),
        max_latency_seconds=document.get("max_latency_seconds"),
        max_separation_seconds=document.get("max_separation_seconds"),
        qos=document.get("qos", 0),
        max_latency_share=document.get("max_latency_share"),
    )
