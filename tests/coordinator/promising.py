"""A small network with promises: two switches in a row, publishers at the first, subscribers behind both."""

from __future__ import annotations

from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.rates import Rates
from triagemq.intents import Intent, PublicationIntent, PublisherIntent, SubscriberIntent, SubscriptionIntent
from triagemq.scenario import Scenario, loads

WARD = """
name: Ward
overhead_bytes: 66
mtu_bytes: 1500
fragmentation: true
planning: {priority_classes: 4, flows_per_subscriber: 2}
brokers: {hall: }
switches:
  bed: {}
  desk: {}
ports:
  screen: {switch: bed, bandwidth_bps: 10 Mbit/s}
  over: {switch: bed, bandwidth_bps: 10 Mbit/s, to: desk}
  monitor: {switch: desk, bandwidth_bps: 10 Mbit/s}
publishers:
  ecg: {access: bed, access_bps: 10 Mbit/s}
  pump: {access: bed, access_bps: 10 Mbit/s}
  alarm: {access: bed, access_bps: 10 Mbit/s}
  lamp: {access: desk, access_bps: 10 Mbit/s}
  stray: {}
subscribers:
  nurse: {port: monitor}
"""


def ward() -> Network:
    return Network(loads(WARD))


def publisher(
    name: str, topic: str, separation_seconds: float = 0.02, max_size_bytes: float = 1_000
) -> PublisherIntent:
    declared = PublicationIntent(
        topic, min_separation_seconds=separation_seconds, max_size_bytes=max_size_bytes
    )
    return PublisherIntent((declared,), name=name)


def subscriber(name: str, topic: str, max_latency_seconds: float, port: str = "monitor") -> SubscriberIntent:
    wanted = SubscriptionIntent(topic, max_latency_seconds=max_latency_seconds, guaranteed=True)
    return SubscriberIntent((wanted,), port, name=name)


def planned_for(*intents: Intent, network: Network | None = None) -> Scenario:
    book = IntentBook()
    for intent in intents:
        book.announce(intent)
    return book.scenario(network or ward(), Rates())
