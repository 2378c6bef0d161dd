"""What clients have asked for: frozen, plain data, as the store keeps it and the planner reads it.

A name is a publisher's or a subscriber's; a subscriber's connections carry it in their client ids (see orders.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from triagemq.scenario import UtilityShape

__all__ = ["PublicationIntent", "PublisherIntent", "SubscriberIntent", "SubscriptionIntent", "Utility"]


@dataclass(frozen=True, slots=True)
class Utility:
    """What a delivered share of a topic is worth; `freshness_seconds` None means that age does not matter."""

    shape: UtilityShape = UtilityShape.LOG
    weight: float = 1.0
    threshold: float = 0.0
    freshness_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionIntent:
    """A topic or a pattern of topics, what it is worth, and how late or how rarely it may come.

    With `max_latency_share` it is judged by its tail: this share of what arrives shall come within the latency.
    """

    topic_filter: str
    utility: Utility = Utility()
    max_latency_seconds: float | None = None
    max_separation_seconds: float | None = None
    qos: int = 0
    max_latency_share: float | None = None


@dataclass(frozen=True, slots=True)
class SubscriberIntent:
    """A subscriber behind an output port (None: the exchange's first). `flows` is how many connections it can open."""

    name: str
    subscriptions: tuple[SubscriptionIntent, ...]
    port: str | None = None
    flows: int | None = None


@dataclass(frozen=True, slots=True)
class PublicationIntent:
    """A topic and how often and how much is published; what is None is measured."""

    topic: str
    rate_per_second: float | None = None
    size_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class PublisherIntent:
    """A publisher and its topics."""

    name: str
    publications: tuple[PublicationIntent, ...]
