"""What a drop policy is given and what it returns: columns over flows, ports and subscriptions; the smallest example of
them; and what every policy says about a port it had to relieve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.model import Decision
from triagemq.scenario import Floats, Integers, Subscriptions, UtilityShape, achieved_utility
from triagemq.scenario.model import filled
from triagemq.scenario.routes import hop_by_hop

FITS = 1 + 1e-13
"""A port is exceeded when its load passes capacity times this: sums of many flows are not exact beyond it."""


@dataclass(frozen=True, slots=True, eq=False)
class DropProblem:
    """Flows with their loads and classes, the ports they cross, and what their subscriptions are worth.

    `flow_ports` has one row per flow: the ports from the broker to the subscriber, padded with -1 in front,
    as `scenario.port_paths` gives them. A port's capacity is its bandwidth less the share to be left free, over
    `port_survival`, the share of what is sent towards it that the links before it let through: loads are as sent.
    `subscription_success` is s_r, what arrives when nothing is dropped; `subscription_freshness` is the
    factor exp(-T/tau) by which a previous forecast's latency lowers the worth, 1 where there is none.
    `subscriptions` have steps where they are to be planned, which is a margin above their thresholds.
    `flow_keep_before` is the share of each flow that an earlier plan did not drop, if there is one: to stay near it,
    all else equal. `flow_floor` is the least share of each flow, None without minima; ports carry these alone.
    """

    flow_load_bytes_per_second: Floats
    flow_class: Integers
    flow_ports: Integers
    port_names: tuple[str, ...]
    port_capacity_bytes_per_second: Floats
    subscription_flow: Integers
    subscription_success: Floats
    subscription_freshness: Floats
    subscriptions: Subscriptions
    port_survival: Floats | None = None
    flow_keep_before: Floats | None = None
    flow_floor: Floats | None = None

    def __post_init__(self) -> None:
        for column in fields(self):
            values = getattr(self, column.name)
            if isinstance(values, np.ndarray):
                values.setflags(write=False)

    def ports_by_depth(self) -> list[Integers]:
        """Per depth, brokers first, the port every flow crosses there; -1 for flows whose path is shorter.

        Ports form trees below the brokers, so a port stands at one depth only.
        """
        return list(np.ascontiguousarray(hop_by_hop(self.flow_ports).T))

    def port_loads(self, keep: Floats | None = None) -> Floats:
        """Bytes per second sent to every port when the given share of each flow is not dropped (all by default)."""
        load = self.flow_load_bytes_per_second if keep is None else self.flow_load_bytes_per_second * keep
        count = len(self.port_names)
        total = np.zeros(count)
        for column in self.flow_ports.T:
            crossed = column >= 0
            total += np.bincount(column[crossed], load[crossed], minlength=count)
        return total

    def left_above(self, floor: Floats) -> Floats:
        """What such shares of the flows leave of every port's capacity."""
        return np.maximum(self.port_capacity_bytes_per_second - self.port_loads(floor), 0.0)

    def arriving(self, sent: Floats) -> Floats:
        """What of these bytes per second, sent to every port, gets there."""
        return sent if self.port_survival is None else sent * self.port_survival

    def utility(self, drop_rate: Floats) -> float:
        """What all subscriptions together gain at these drop rates, buffer losses left out."""
        success = self.subscription_success * (1.0 - drop_rate)[self.subscription_flow]
        return float(np.sum(self.subscription_freshness * achieved_utility(self.subscriptions, success)))


@dataclass(frozen=True, slots=True, eq=False)
class DropResult:
    """The drop rate of every flow, what is worth telling, and where due an upper bound of the utility."""

    drop_rate: Floats
    decisions: tuple[Decision, ...] = ()
    bound: float | None = None


DropPolicy = Callable[[DropProblem], DropResult]


def subscription_columns(
    *,
    weight: Sequence[float] | Floats,
    shape: str | NDArray[np.int8] = "log",
    threshold: float | Floats = 0.5,
) -> Subscriptions:
    """Subscriptions with these utilities and nothing else stated: for examples, contract checks and tests.

    >>> subscription_columns(weight=[1.0, 2.0], shape="step", threshold=0.9).utility_threshold.tolist()
    [0.9, 0.9]
    """
    count = len(weight)
    code = UtilityShape[shape.upper()] if isinstance(shape, str) else shape
    return filled(
        Subscriptions,
        count,
        subscriber=0,
        topic=np.arange(count),
        utility_shape=code,
        utility_weight=weight,
        utility_threshold=threshold,
    )


def overloads(problem: DropProblem, drop_rate: Floats, rules: Sequence[str | None]) -> tuple[Decision, ...]:
    """One decision per port that is offered more than its capacity: loads before and after, and the rule.

    `rules` has one text per port, None where drops for other ports were enough.
    """
    loads = (
        problem.port_loads(),
        problem.port_loads(1.0 - drop_rate),
        problem.port_capacity_bytes_per_second,
    )
    exceeded = np.flatnonzero(loads[0] > loads[2] * FITS)
    offered, planned, capacity = map(problem.arriving, loads)
    return tuple(
        Decision(
            kind="port_overloaded",
            subject=problem.port_names[port],
            before=f"{offered[port]:.6g} bytes/s",
            after=f"{planned[port]:.6g} bytes/s",
            reason=f"the port may carry {capacity[port]:.6g} bytes/s; "
            + (rules[port] or "drops for other ports on the way relieve it"),
        )
        for port in exceeded.tolist()
    )


def one_port(
    *,
    loads: Sequence[float],
    capacity: float,
    classes: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    shape: str = "log",
    threshold: float = 0.5,
) -> DropProblem:
    """Flow i has class i and weight 1 unless stated; every link is free of errors.

    >>> one_port(loads=[50.0, 80.0], capacity=100.0).port_loads().tolist()
    [130.0]
    """
    count = len(loads)
    return DropProblem(
        flow_load_bytes_per_second=np.array(loads, dtype=np.float64),
        flow_class=np.array(range(count) if classes is None else classes, dtype=np.int32),
        flow_ports=np.zeros((count, 1), dtype=np.int32),
        port_names=("port",),
        port_capacity_bytes_per_second=np.array([capacity]),
        subscription_flow=np.arange(count, dtype=np.int32),
        subscription_success=np.ones(count),
        subscription_freshness=np.ones(count),
        subscriptions=subscription_columns(
            weight=[1.0] * count if weights is None else weights, shape=shape, threshold=threshold
        ),
    )
