"""What was sent and what arrived, by the functions that TriageMQ's own figures are made with: the same for all.

Every subscription wants every event of its topic. A copy that has not come when the run ends was not delivered. The
classes are those that TriageMQ plans, whoever carried the events: the same subscriptions for all.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.live.figures import subscription_figures
from triagemq.plain import plain
from triagemq.scenario import Floats, Integers, Scenario
from triagemq.simulate.changes import Phase
from triagemq.simulate.result import worth
from triagemq.trace.latency_bins import BINS, bins_of, percentile_ns

_LATEST_NS = 1_000_000_000
"""A publisher that is further behind its schedule has another one."""


def as_scheduled(
    schedule: NDArray[np.void], sent: NDArray[np.void], begun_ns: int, between_ns: tuple[int, int]
) -> NDArray[np.void]:
    """Of what was sent the events that were due between two times from the beginning; ValueError if some of these, or
    others than these, were sent."""
    chosen = []
    for topic in np.unique(schedule["topic"]):
        due, went = schedule[schedule["topic"] == topic], sent[sent["topic"] == topic]
        rows = np.flatnonzero((due["due_ns"] >= between_ns[0]) & (due["due_ns"] < between_ns[1]))
        if len(rows) and rows[-1] >= len(went):
            raise ValueError(f"topic {topic}: {len(went)} events were sent, and {rows[-1] + 1} were due")
        late_ns = went["published_ns"][rows] - begun_ns - due["due_ns"][rows]
        same = went["size_bytes"][rows] == due["size_bytes"][rows]
        if (np.abs(late_ns) > _LATEST_NS).any() or not same.all():
            raise ValueError(f"topic {topic}: other events were sent than were due")
        chosen.append(went[rows])
    return np.concatenate(chosen)


def evaluated(
    scenario: Scenario, level: Integers, sent: NDArray[np.void], receipts: NDArray[np.void]
) -> dict[str, Any]:
    """Utility, and of each class its copies, success and latencies. `level` is the class of each subscription."""
    subscription, published_ns = _copies(scenario, sent)
    subscriber = scenario.subscriptions.subscriber[subscription]
    topic = scenario.subscriptions.topic[subscription]
    arrived_ns = _first_arrivals(receipts)
    keys = zip(subscriber.tolist(), topic.tolist(), published_ns.tolist(), strict=True)
    received_ns = np.array([arrived_ns.get(key, -1) for key in keys], dtype=np.int64)
    delivered = received_ns >= 0
    latency_ns = np.where(delivered, received_ns - published_ns, 0)
    at_once = np.zeros(len(subscription), dtype=np.int64)
    _, rates = subscription_figures(scenario, subscription, delivered, latency_ns, at_once)
    classes = level[subscription]
    return {
        "copies": len(subscription),
        "delivered": int(delivered.sum()),
        "utility": _utility(scenario, rates),
        "classes": [
            _class_row(int(each), delivered[classes == each], latency_ns[classes == each])
            for each in np.unique(classes)
        ],
    }


def _utility(scenario: Scenario, rates: tuple[Floats, Floats, Floats]) -> dict[str, float | None]:
    """Achieved utility."""
    utility, _ = worth(
        scenario,
        [Phase(0.0, scenario.subscriptions.utility_weight)],
        np.empty(0, dtype=np.int64),
        rates,
        False,
        (0.0, 0.0),
    )
    return plain(asdict(utility))  # type: ignore[no-any-return]


def _copies(scenario: Scenario, sent: NDArray[np.void]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Of each copy of each event its subscription, and when it was published."""
    subscription, published_ns = [], []
    for topic in np.unique(sent["topic"]):
        wanting = np.flatnonzero(scenario.subscriptions.topic == topic).astype(np.int32)
        times = sent["published_ns"][sent["topic"] == topic]
        subscription.append(np.repeat(wanting, len(times)))
        published_ns.append(np.tile(times, len(wanting)))
    return np.concatenate(subscription), np.concatenate(published_ns)


def _first_arrivals(receipts: NDArray[np.void]) -> dict[tuple[int, int, int], int]:
    """By subscriber, topic and the time of publishing. What comes twice counts once."""
    found: dict[tuple[int, int, int], int] = {}
    for subscriber, topic, published_ns, received_ns in receipts.tolist():
        key = (subscriber, topic, published_ns)
        found[key] = min(found.get(key, received_ns), received_ns)
    return found


def _class_row(number: int, delivered: NDArray[np.bool_], latency_ns: NDArray[np.int64]) -> dict[str, Any]:
    arrived = latency_ns[delivered]
    histogram = np.bincount(bins_of(arrived), minlength=BINS)
    longest_ns = int(arrived.max(initial=0))
    return {
        "priority_class": number,
        "count": len(delivered),
        "delivered": int(delivered.sum()),
        "success_rate": float(delivered.mean()),
        **{
            f"p{round(100 * share)}_seconds": plain(percentile_ns(histogram, share, longest_ns) * 1e-9)
            for share in (0.5, 0.95)
        },
    }
