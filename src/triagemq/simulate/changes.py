"""What changes during a run: plans, subscriptions, bandwidths and rates, cut into epochs between changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.plan.model import Plan
from triagemq.scenario import Floats, Integers, Scenario
from triagemq.simulate.kernel import step

__all__ = ["MOST_CLASSES", "Change", "Epochs", "Timeline", "epoch_at", "timeline"]

MOST_CLASSES = 64
"""A port remembers in one 64-bit word which of its classes have packets waiting."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Something that happens at a given time of a run; None leaves things as they are.

    A new plan applies to copies that reach a switch from then on; packets that wait stay in the class in which they
    were queued. `active_subscriptions` has one entry per subscription. A new bandwidth applies to packets whose
    transmission starts from then on; `bandwidth_bps` has one entry per output port, `publication_rate` (events
    per second) one per publication.
    """

    at_seconds: float
    plan: Plan | None = None
    active_subscriptions: NDArray[np.bool_] | None = None
    bandwidth_bps: Floats | None = None
    publication_rate: Floats | None = None


class Epochs(NamedTuple):
    """One row per stretch of time between changes; `ends` is when it is over, infinity for the last."""

    ends: Floats
    active: NDArray[np.uint8]
    priority_class: Integers
    drop_rate: Floats
    seconds_per_byte: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The epochs of a run as kernels read them, and what only the engine needs of each."""

    epochs: Epochs
    classes: int
    publication_rates: tuple[Floats, ...]
    plans: tuple[Plan, ...]


def timeline(scenario: Scenario, plan: Plan, changes: Sequence[Change]) -> Timeline:
    """Check the plan and the changes against the scenario and lay them out in time."""
    plan.require(scenario)
    ordered = sorted(changes, key=lambda change: change.at_seconds)
    plans, active = [plan], [np.ones(len(scenario.subscriptions), dtype=np.uint8)]
    bandwidths, rates = [scenario.ports.bandwidth_bps], [scenario.publications.rate_per_second]
    for change in ordered:
        _check(scenario, change)
        plans.append(change.plan or plans[-1])
        given = change.active_subscriptions
        active.append(active[-1] if given is None else np.asarray(given).astype(np.uint8))
        bandwidths.append(bandwidths[-1] if change.bandwidth_bps is None else change.bandwidth_bps)
        rates.append(rates[-1] if change.publication_rate is None else change.publication_rate)
    priority_class = np.array([each.subscription_class for each in plans], dtype=np.int32, ndmin=2)
    classes = 1 + max(int(each.flows.priority_class.max(initial=0)) for each in plans)
    if classes > MOST_CLASSES:
        raise ParameterError("plan", f"has {classes} priority classes; the simulator takes {MOST_CLASSES}")
    epochs = Epochs(
        ends=np.array([*(change.at_seconds for change in ordered), np.inf], dtype=np.float64),
        active=np.array(active, dtype=np.uint8, ndmin=2),
        priority_class=priority_class,
        drop_rate=np.array([1 - each.subscription_keep for each in plans], dtype=np.float64, ndmin=2),
        seconds_per_byte=8 / np.array(bandwidths, dtype=np.float64, ndmin=2),
    )
    return Timeline(epochs, classes, tuple(np.array(each, dtype=np.float64) for each in rates), tuple(plans))


@step
def epoch_at(ends: Floats, epoch: int, time: float) -> int:
    """The epoch that holds `time`, looking forward from `epoch`."""
    while time >= ends[epoch]:
        epoch += 1
    return epoch


def _check(scenario: Scenario, change: Change) -> None:
    if not (np.isfinite(change.at_seconds) and change.at_seconds >= 0):
        raise ParameterError("changes", f"at_seconds is {change.at_seconds}; must be a time from 0 on")
    if change.plan is not None:
        change.plan.require(scenario)
    for name, values, length, lowest in (
        ("active_subscriptions", change.active_subscriptions, len(scenario.subscriptions), None),
        ("bandwidth_bps", change.bandwidth_bps, len(scenario.ports), "positive"),
        ("publication_rate", change.publication_rate, len(scenario.publications), "not negative"),
    ):
        if values is None:
            continue
        array: NDArray[Any] = np.asarray(values)
        if array.shape != (length,):
            raise ParameterError(f"changes.{name}", f"has shape {array.shape}; must be ({length},)")
        if lowest and not (
            np.isfinite(array).all() and (array > 0 if lowest == "positive" else array >= 0).all()
        ):
            raise ParameterError(f"changes.{name}", f"must be finite and {lowest}")
