"""Steps are planned with a margin: success is judged by counting events, and counts scatter.

Kept exactly at its threshold, a step is missed in every second period (theory.md section 3).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from triagemq.plan.demands import Demand
from triagemq.scenario import Floats, Scenario, Subscriptions, UtilityShape

DEVIATIONS = 1.6449
"""Standard deviations between what is planned and the threshold: 95 of 100 periods reach it."""


def success_needed(threshold: ArrayLike, events: ArrayLike) -> Floats:
    """The x that is DEVIATIONS * sqrt(x (1 - x) / events) above the threshold (Wilson's bound of a share).

    >>> [round(float(share), 3) for share in success_needed(0.8, [10, 1000, np.inf])]
    [0.931, 0.82, 0.8]
    >>> float(success_needed(1.0, 10))
    1.0
    """
    share = np.asarray(threshold, dtype=np.float64)
    spread = DEVIATIONS**2 / np.asarray(events, dtype=np.float64)
    middle = share + spread / 2
    return np.asarray((middle + np.sqrt(spread * (share * (1 - share) + spread / 4))) / (1 + spread))


def step_targets(scenario: Scenario, asked: Demand) -> Floats:
    """Per subscription, the success rate to plan so that its step is reached; the threshold of those without a step.

    Where the links let less arrive than that, but as much as the threshold, all of it is the target.
    """
    threshold = scenario.subscriptions.utility_threshold
    stepped = (scenario.subscriptions.utility_shape == UtilityShape.STEP) & (threshold > 0)
    reachable = np.maximum(asked.ideal_success, threshold)
    needed = np.minimum(success_needed(threshold, _events(scenario, asked)), reachable)
    return np.where(stepped, needed, threshold)


def with_margin(scenario: Scenario, asked: Demand) -> Subscriptions:
    """The subscriptions as drops are planned for them: steps at their targets, worth what is to be expected there.

    A step that even an undropped flow reaches in some periods only is worth its share of them.
    """
    wanted = scenario.subscriptions
    if not (wanted.utility_shape == UtilityShape.STEP).any():
        return wanted
    target, weight = step_targets(scenario, asked), wanted.utility_weight.copy()
    events = _events(scenario, asked)
    short = np.flatnonzero(
        (target > wanted.utility_threshold) & (success_needed(wanted.utility_threshold, events) > target)
    )
    if len(short):
        # 0.1 s to import, which few scenarios need.
        from scipy.special import ndtr

        share = target[short]
        deviation = np.sqrt(share * (1 - share) / events[short])
        weight[short] *= ndtr((share - wanted.utility_threshold[short]) / deviation)
    return replace(wanted, utility_threshold=target, utility_weight=weight)


def _events(scenario: Scenario, asked: Demand) -> Floats:
    """Per subscription, the events of the period in which its success is judged."""
    return np.maximum(asked.published_rate * scenario.planning.judged_over_seconds, 1e-9)
