"""The papers' prototype: Table 2 and Figure 10 of PrioDeX (2021), as experiments.md reads them."""

from __future__ import annotations

import numpy as np

from triagemq.scenario.generators import columns
from triagemq.scenario.generators.columns import checked_count, checked_number, numbered
from triagemq.scenario.model import PlanningSettings, Scenario, Topics

MEAN_WEIGHT = 5.0
"""The mean utility weight of the prototype in Table 2."""


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
    flow per topic. Topics differ in weight alone, and evenly: the greedy cut of all flows into as many
    classes as there are topics puts the flows of the first topic, and no others, into class 0, and so on.

    Nothing here is random: `seed` is there because every generator takes one, and changes nothing.

    >>> situation = prototype(subscribers=20, rho=0.9)
    >>> situation.topics.name[-1], len(situation.publications), len(situation.subscriptions)
    ('topic-07', 70, 140)
    >>> float(situation.ports.bandwidth_bps[0])
    640000.0
    """
    checked_count("seed", seed, minimum=0)
    subscribers, topics = checked_count("subscribers", subscribers), checked_count("topics", topics)
    publishers = checked_count("publishers_per_topic", publishers_per_topic)
    event_bytes = checked_number("event_bytes", event_bytes)
    overhead_bytes = checked_number("overhead_bytes", overhead_bytes, zero=True)
    bandwidth_bps = subscribers * checked_number("bandwidth_bps_per_subscriber", bandwidth_bps_per_subscriber)
    events_per_second = checked_number("rho", rho) * bandwidth_bps / 8 / (event_bytes + overhead_bytes)
    falling = np.arange(topics, 0, -1)
    weights = MEAN_WEIGHT * falling / falling.mean()
    return Scenario.of(
        name="prototype",
        topics=Topics(numbered("topic", topics)),
        brokers=columns.one_broker("broker"),
        switches=columns.one_switch("switch"),
        ports=columns.output_ports(
            numbered("port", 1),
            bandwidth_bps,
            checked_number("buffer_packets", buffer_packets, infinite=True),
        ),
        publishers=columns.publishers(numbered("publisher", publishers)),
        publications=columns.publications(
            publisher=np.repeat(np.arange(publishers), topics),
            topic=np.tile(np.arange(topics), publishers),
            rate_per_second=events_per_second / (subscribers * topics * publishers),
            size_bytes=event_bytes,
            size_distribution=columns.checked_distribution("sizes", sizes),
        ),
        subscribers=columns.subscribers(numbered("subscriber", subscribers), port=np.zeros(subscribers)),
        subscriptions=columns.subscriptions(
            subscriber=np.repeat(np.arange(subscribers), topics),
            topic=np.tile(np.arange(topics), subscribers),
            utility_weight=np.tile(weights, subscribers),
        ),
        planning=PlanningSettings(
            flows_per_subscriber=topics,
            priority_classes=topics,
            rho_tolerance=checked_number("rho_tolerance", rho_tolerance, zero=True, below=1),
        ),
        overhead_bytes=overhead_bytes,
    )
