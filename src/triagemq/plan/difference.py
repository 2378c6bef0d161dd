"""What changes from one plan to another, subscription by subscription, and what an earlier plan still says once the
scenario has changed: the hysteresis of plans. Subscriptions are matched by names.

A rate that is measured anew every few seconds is never twice the same. Were every plan made from nothing, two
subscriptions of nearly equal rank would change places, flows and classes each time; so a rank stays until it is wrong
by a band.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.model import LatencyFactors, Plan, PlannerChoice
from triagemq.plan.ranking import Rows
from triagemq.scenario import Floats, Integers, Scenario

RANK_BAND = 0.05
"""A rank that has changed by a smaller share since it was set stays as it is."""


Pairs = tuple[tuple[str, str], ...]
"""Subscribers and topics."""


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """How many subscriptions two plans treat differently, and how many of these have a better or worse class, or a
    higher or lower drop rate.

    `added` and `removed` are (subscriber, topic) pairs that only one of the two scenarios has; `promised` and
    `no_longer_promised` those to which only one of the two plans promises a latency.
    """

    changed: int
    unchanged: int
    moved: int
    better: int
    worse: int
    higher: int
    lower: int
    added: Pairs
    removed: Pairs
    promised: Pairs = ()
    no_longer_promised: Pairs = ()

    def __str__(self) -> str:
        """The summary in words."""
        lines = [
            f"{self.changed} subscription{'' if self.changed == 1 else 's'} treated differently, "
            f"{self.unchanged} as before, {len(self.added)} added, {len(self.removed)} removed",
            f"flow: {self.moved} moved",
            f"class: {self.better} better, {self.worse} worse",
            f"drop rate: {self.higher} higher, {self.lower} lower",
        ]
        if self.promised or self.no_longer_promised:
            lines.append(f"promises: {len(self.promised)} made, {len(self.no_longer_promised)} ended")
        return "\n".join(lines)


def diff(
    before: Plan, after: Plan, scenario_before: Scenario, scenario_after: Scenario | None = None
) -> PlanDifference:
    """Compare two plans, of one scenario or of two.

    >>> from triagemq.plan.planner import make_plan
    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> plan = make_plan(scenario)
    >>> print(str(diff(plan, plan, scenario)).splitlines()[0])
    0 subscriptions treated differently, 364 as before, 0 added, 0 removed
    """
    scenario_after = scenario_before if scenario_after is None else scenario_after
    before.require(scenario_before)
    after.require(scenario_after)
    old, new = matched(scenario_before, scenario_after)
    moved = _place_in_subscriber(before)[old] != _place_in_subscriber(after)[new]
    lowered = after.subscription_class[new] - before.subscription_class[old]
    dropped = before.subscription_keep[old] - after.subscription_keep[new]
    changed = int(np.count_nonzero(moved | (lowered != 0) | (dropped != 0)))
    first, second = (
        set(_names(scenario, np.flatnonzero(plan.promised)))
        for scenario, plan in ((scenario_before, before), (scenario_after, after))
    )
    return PlanDifference(
        changed=changed,
        unchanged=len(old) - changed,
        moved=int(np.count_nonzero(moved)),
        better=int(np.count_nonzero(lowered < 0)),
        worse=int(np.count_nonzero(lowered > 0)),
        higher=int(np.count_nonzero(dropped > 0)),
        lower=int(np.count_nonzero(dropped < 0)),
        added=_names(scenario_after, np.delete(np.arange(len(after.flow)), new)),
        removed=_names(scenario_before, np.delete(np.arange(len(before.flow)), old)),
        promised=tuple(sorted(second - first)),
        no_longer_promised=tuple(sorted(first - second)),
    )


def matched(
    before: Scenario, after: Scenario, table: str = "subscriptions", owner: str = "subscriber"
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The subscriptions (or publications) that both scenarios have: their rows in the one and in the other."""
    ours, theirs = getattr(before, table), getattr(after, table)
    if (
        getattr(before, f"{owner}s").name == getattr(after, f"{owner}s").name
        and before.topics.name == after.topics.name
        and np.array_equal(getattr(ours, owner), getattr(theirs, owner))
        and np.array_equal(ours.topic, theirs.topic)
    ):
        return np.arange(len(ours)), np.arange(len(ours))
    owners = _shared_numbers(getattr(before, f"{owner}s").name, getattr(after, f"{owner}s").name)
    topics = _shared_numbers(before.topics.name, after.topics.name)
    # One number per row that is the same in both scenarios exactly if both names are.
    old_keys, new_keys = (
        owners[which][getattr(rows, owner)] << 32 | topics[which][rows.topic]
        for which, rows in enumerate((ours, theirs))
    )
    _, old, new = np.intersect1d(old_keys, new_keys, assume_unique=True, return_indices=True)
    return old, new


def new_rows(before: Scenario, after: Scenario, table: str, owner: str) -> Integers:
    """Per subscription or publication, its row in the other scenario; -1 where it is gone, and at the end."""
    found = np.full(len(getattr(before, table)) + 1, -1, dtype=np.int32)
    old, new = matched(before, after, table, owner)
    found[old] = new
    return found


def new_rows_by_name(before: Sequence[object], after: Sequence[object]) -> Integers:
    """Per name, its place among those of now; -1 where it is gone, and at the end."""
    place = {name: number for number, name in enumerate(after)}
    return np.array([*(place.get(name, -1) for name in before), -1], dtype=np.int32)


def _place_in_subscriber(plan: Plan) -> Integers:
    """Per subscription, which of its subscriber's flows carries it, from 1; 0 where none does."""
    owner = plan.flows.subscriber
    first = np.searchsorted(owner, owner, side="left")
    return np.asarray(np.append(np.arange(len(owner)) - first + 1, 0)[plan.flow], dtype=np.int32)


def _shared_numbers(first: Sequence[str], second: Sequence[str]) -> tuple[Rows, Rows]:
    number: dict[str, int] = {}
    numbered: list[NDArray[np.int64]] = [
        np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64)
        for names in (first, second)
    ]
    return numbered[0], numbered[1]


def _names(scenario: Scenario, rows: NDArray[np.intp]) -> Pairs:
    wanted = scenario.subscriptions
    subscribers = (scenario.subscribers.name[row] for row in wanted.subscriber[rows].tolist())
    topics = (scenario.topics.name[row] for row in wanted.topic[rows].tolist())
    return tuple(zip(subscribers, topics, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class EarlierPlan:
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

    def flow_keep(self, flow: Integers, count: int, rows: Rows | slice) -> Floats:
        """The mean share of `rows`, which flows carry now, that was not dropped; new subscriptions count as dropped."""
        total = np.bincount(flow, np.nan_to_num(self.keep[rows]), minlength=count)
        return np.asarray(total / np.bincount(flow, minlength=count))


def carry(previous: Plan, before: Scenario, scenario: Scenario) -> EarlierPlan:
    """The earlier plan, which was made for `before`, as the new scenario's subscriptions know it, by their names."""
    previous.require(before)
    old, new = matched(before, scenario)

    def moved(values: Floats) -> Floats:
        column = np.full(len(scenario.subscriptions), np.nan)
        column[new] = values[old]
        return column

    factors = previous.latency
    return EarlierPlan(
        made_by=previous.made_by,
        rank=moved(previous.rank),
        keep=moved(previous.subscription_keep),
        latency=None if factors is None else LatencyFactors(moved(factors.factor), moved(factors.urgency)),
    )
