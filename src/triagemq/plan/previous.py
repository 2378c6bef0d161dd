"""What an earlier plan still says once the scenario has changed: the hysteresis of plans.

A rate that is measured anew every few seconds is never twice the same. Were every plan made from nothing, two
subscriptions of nearly equal rank would change places, flows and classes each time; so a rank stays until it is wrong
by a band.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triagemq.plan.difference import matched
from triagemq.plan.model import LatencyFactors, Plan, PlannerChoice
from triagemq.scenario import Floats, Integers, Scenario

__all__ = ["RANK_BAND", "Carried", "carry"]

RANK_BAND = 0.05
"""A rank that has changed by a smaller share since it was set stays as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """The earlier plan's columns over the subscriptions of the new scenario; NaN for those that are new."""

    made_by: PlannerChoice
    rank: Floats
    keep: Floats
    latency: LatencyFactors | None

    def held(self, rank: Floats) -> Floats:
        """These ranks, but those within the band of the earlier ones as they were.

        What is compared with is the rank that was set, not the one last seen: small steps add up until they count.
        """
        return np.where(np.abs(rank - self.rank) <= RANK_BAND * np.abs(self.rank), self.rank, rank)

    def flow_keep(self, flow: Integers, count: int) -> Floats:
        """What was kept of the subscriptions that each flow carries now, in the mean; what is new counts as dropped."""
        kept = np.bincount(flow, np.nan_to_num(self.keep), minlength=count)
        return np.asarray(kept / np.bincount(flow, minlength=count))


def carry(previous: Plan, before: Scenario, scenario: Scenario) -> Carried:
    """The earlier plan, which was made for `before`, as the new scenario's subscriptions know it, by their names."""
    previous.require(before)
    old, new = matched(before, scenario)

    def moved(values: Floats) -> Floats:
        column = np.full(len(scenario.subscriptions), np.nan)
        column[new] = values[old]
        return column

    factors = previous.latency
    return Carried(
        made_by=previous.made_by,
        rank=moved(previous.rank),
        keep=moved(previous.subscription_keep),
        latency=None if factors is None else LatencyFactors(moved(factors.factor), moved(factors.urgency)),
    )
