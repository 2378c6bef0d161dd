"""A scenario's publishers and subscribers as the intents that they would announce."""

from __future__ import annotations

import math

from triagemq.intents import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
    Utility,
)
from triagemq.scenario import Scenario, UtilityShape


def publisher_intents(scenario: Scenario) -> list[PublisherIntent]:
    """One intent per publisher, with the scenario's rates and sizes."""
    published = scenario.publications
    return [
        PublisherIntent(
            name=name,
            publications=tuple(
                PublicationIntent(
                    scenario.topics.name[published.topic[row]],
                    float(published.rate_per_second[row]),
                    float(published.size_bytes[row]),
                )
                for row in (published.publisher == number).nonzero()[0]
            ),
        )
        for number, name in enumerate(scenario.publishers.name)
    ]


def subscriber_intents(scenario: Scenario) -> list[SubscriberIntent]:
    """One intent per subscriber, topic by topic."""
    wanted = scenario.subscriptions
    return [
        SubscriberIntent(
            name=name,
            subscriptions=tuple(
                SubscriptionIntent(
                    scenario.topics.name[wanted.topic[row]],
                    Utility(
                        UtilityShape(int(wanted.utility_shape[row])).name.lower(),  # type: ignore[arg-type]
                        float(wanted.utility_weight[row]),
                        float(wanted.utility_threshold[row]) or None,
                        _or_none(float(wanted.freshness_seconds[row])),
                    ),
                    _or_none(float(wanted.max_latency_seconds[row])),
                    _or_none(float(wanted.max_separation_seconds[row])),
                    max_latency_share=float(wanted.max_latency_share[row]) or None,
                    guaranteed=bool(wanted.guaranteed[row]),
                    min_share=float(wanted.min_share[row]) or None,
                    max_rate_per_second=_or_none(float(wanted.max_rate_per_second[row])),
                    newest_only=bool(wanted.newest_only[row]),
                    expires_seconds=_or_none(float(wanted.expires_seconds[row])),
                )
                for row in (wanted.subscriber == number).nonzero()[0]
            ),
        )
        for number, name in enumerate(scenario.subscribers.name)
    ]


def _or_none(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds
