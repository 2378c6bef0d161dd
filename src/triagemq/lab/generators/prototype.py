"""The papers' prototype: Table 2 and Figure 10 of PrioDeX (2021), as experiments.md reads them."""

from __future__ import annotations

import numpy as np

from triagemq.lab.generators import columns
from triagemq.scenario.building import checked_count, checked_number, numbered, random_streams
from triagemq.scenario.model import PlanningSettings, Scenario

MEAN_WEIGHT, LEAST_WEIGHT, MOST_WEIGHT = 5.0, 0.01, 100.0
"""The utility weights of the prototype in Table 2: exponential with this mean, redrawn while outside."""


def prototype(
    *,
    subscribers: int = 10,
    rho: float = 1.7,
    topics: int = 7,
    publishers_per_topic: int = 10,
    event_bytes: float = 100,
    overhead_bytes: float = 49,
    bandwidth_bps_per_subscriber: float = 32_000,
    sizes: str = "constant",
    buffer_packets: float = np.inf,
    rho_tolerance: float = 0.1,
    seed: int = 0,
) -> Scenario:
    """Everyone subscribes to every topic over one shared port (experiments.md, priodex 10).

    As in Table 2, the same `publishers_per_topic` publishers publish all topics, with Poisson arrivals and at
    one rate: the rate that offers the port `rho` times its bandwidth, overhead included. A subscriber has a
    flow per topic. Weights are drawn per subscription, so that a topic has flows in several classes.

    >>> situation = prototype(subscribers=20, rho=0.9)
    >>> situation.topics.name[-1], len(situation.publications), len(situation.subscriptions)
    ('topic-07', 70, 140)
    >>> float(situation.ports.bandwidth_bps[0])
    640000.0
    """
    (random,) = random_streams(seed, 1)
    subscribers, topics = checked_count("subscribers", subscribers), checked_count("topics", topics)
    publishers = checked_count("publishers_per_topic", publishers_per_topic)
    event_bytes = checked_number("event_bytes", event_bytes)
    overhead_bytes = checked_number("overhead_bytes", overhead_bytes, zero=True)
    bandwidth_bps = subscribers * checked_number("bandwidth_bps_per_subscriber", bandwidth_bps_per_subscriber)
    events_per_second = checked_number("rho", rho) * bandwidth_bps / 8 / (event_bytes + overhead_bytes)
    weights = columns.truncated_exponential(
        random.random(subscribers * topics), MEAN_WEIGHT, LEAST_WEIGHT, MOST_WEIGHT
    )
    return columns.one_switch_scenario(
        name="prototype",
        topics=numbered("topic", topics),
        ports=numbered("port", 1),
        bandwidth_bps=bandwidth_bps,
        buffer_packets=checked_number("buffer_packets", buffer_packets, infinite=True),
        publishers=numbered("publisher", publishers),
        publications={
            "publisher": np.repeat(np.arange(publishers), topics),
            "topic": np.tile(np.arange(topics), publishers),
            "rate_per_second": events_per_second / (subscribers * topics * publishers),
            "size_bytes": event_bytes,
            "size_distribution": columns.checked_distribution("sizes", sizes),
        },
        subscribers=numbered("subscriber", subscribers),
        port=np.zeros(subscribers),
        subscriptions={
            "subscriber": np.repeat(np.arange(subscribers), topics),
            "topic": np.tile(np.arange(topics), subscribers),
            "utility_weight": weights,
        },
        planning=PlanningSettings(
            flows_per_subscriber=topics,
            priority_classes=topics,
            rho_tolerance=checked_number("rho_tolerance", rho_tolerance, zero=True, below=1),
        ),
        overhead_bytes=overhead_bytes,
    )
