"""Topics that were not seen yet: the class of their events, by the worth of the filter that matches them.

No rate is known of them, so no plan has them. An event of such a topic is ranked as if its topic brought one event of
the usual size a second, and goes with the class of planned subscriptions that are worth as much. Where nothing is
planned on a port yet, filters share its classes by their worth.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from triagemq.coordinator.decide.orders import UnseenTopics
from triagemq.plan import Plan
from triagemq.scenario import Floats, Scenario

SUPPOSED_EVENTS_PER_SECOND = 1.0
USUAL_SIZE_BYTES = 100.0
"""The size of events of which none is known."""

Worths = Mapping[str, Mapping[str, float]]
"""By subscriber and filter, what a topic that it matches is worth if all of it arrives."""


def unseen_topics(
    scenario: Scenario, plan: Plan, worths: Worths, classes: int
) -> dict[str, dict[str, UnseenTopics]]:
    """By subscriber and filter; `classes` are those that utility may use."""
    supposed = SUPPOSED_EVENTS_PER_SECOND * (USUAL_SIZE_BYTES + scenario.overhead_bytes)
    port_of = dict(zip(scenario.subscribers.name, scenario.subscribers.port.tolist(), strict=True))
    by_port: dict[int, set[float]] = {}
    for name, filters in worths.items():
        by_port.setdefault(port_of[name], set()).update(filters.values())
    class_of: dict[tuple[int, float], int] = {}
    for port, several in by_port.items():
        ranks = np.array(sorted(several, reverse=True))
        found = _classes(scenario, plan, port, ranks / supposed, classes)
        class_of |= {(port, worth): found[place] for place, worth in enumerate(ranks.tolist())}
    return {
        name: {
            pattern: UnseenTopics(class_of[port_of[name], worth], worth) for pattern, worth in filters.items()
        }
        for name, filters in worths.items()
        if filters
    }


def _classes(scenario: Scenario, plan: Plan, port: int, ranks: Floats, classes: int) -> list[int]:
    """The class of each rank, the highest first: that of planned subscriptions which rank no higher on average."""
    planned = (scenario.subscribers.port[scenario.subscriptions.subscriber] == port) & (plan.flow >= 0)
    if not planned.any():
        return (plan.level_offset + np.arange(len(ranks)) * classes // max(len(ranks), 1)).tolist()
    level, rank = plan.subscription_class[planned], plan.rank[planned]
    used = np.unique(level)
    means = [float(rank[level == one].mean()) for one in used]
    return [
        int(next((one for one, mean in zip(used, means, strict=True) if mean <= each), used[-1]))
        for each in ranks.tolist()
    ]
