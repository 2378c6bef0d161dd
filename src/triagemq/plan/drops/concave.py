"""Flows whose worth is concave in what is kept of them, as flat columns that compiled loops read in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from triagemq.compiled import compiled
from triagemq.plan.drops.problem import DropProblem
from triagemq.plan.grouping import Rows, group_rows
from triagemq.scenario import Floats, UtilityShape

__all__ = ["ConcaveFlows", "concave_flows"]


@dataclass(frozen=True, slots=True, eq=False)
class ConcaveFlows:
    """Flow f kept to the share x, 0 <= x <= limit, takes load * x bytes per second and is worth

        linear_gain * x + sum over its log terms of (log_gain / log_rate) * log(1 + log_rate * x),

    so that its slope is linear_gain + sum of log_gain / (1 + log_rate * x). The log terms of flow f are those
    from log_start[f] to log_start[f + 1].
    """

    load: Floats
    limit: Floats
    linear_gain: Floats
    log_start: Rows
    log_gain: Floats
    log_rate: Floats

    def worth(self, keep: Floats) -> Floats:
        """The worth of every flow at these shares."""
        return _worth(keep, self.linear_gain, self.log_start, self.log_gain, self.log_rate)

    def above(self, floor: Floats) -> ConcaveFlows:
        """The same flows with a share `floor` of each already given: what remains is as concave as the whole.

        With x = c + y, gain / (1 + rate * x) = (gain / (1 + rate * c)) / (1 + rate / (1 + rate * c) * y).
        """
        shrink = 1.0 / (1.0 + self.log_rate * np.repeat(floor, np.diff(self.log_start)))
        return replace(
            self,
            limit=np.maximum(self.limit - floor, 0.0),
            log_gain=self.log_gain * shrink,
            log_rate=self.log_rate * shrink,
        )

    def of(self, flows: Rows) -> ConcaveFlows:
        """Some of the flows, in the given order; a flow may be asked for more than once."""
        sizes = np.diff(self.log_start)[flows]
        log_start = np.concatenate([[0], np.cumsum(sizes)])
        terms = np.arange(log_start[-1]) + np.repeat(self.log_start[flows] - log_start[:-1], sizes)
        return ConcaveFlows(
            load=self.load[flows],
            limit=self.limit[flows],
            linear_gain=self.linear_gain[flows],
            log_start=log_start,
            log_gain=self.log_gain[terms],
            log_rate=self.log_rate[terms],
        )


def concave_flows(problem: DropProblem) -> ConcaveFlows:
    """The log and linear subscriptions of a problem, gathered by flow; steps are left out.

    U_r(s_r x) = w a log(1 + s x) has slope w a s / (1 + s x); w a s x has slope w a s (w freshness, a
    weight).
    """
    wanted = problem.subscriptions
    flows = len(problem.flow_load_bytes_per_second)
    gain = problem.subscription_freshness * wanted.utility_weight * problem.subscription_success
    linear = wanted.utility_shape == UtilityShape.LINEAR
    logarithmic = (wanted.utility_shape == UtilityShape.LOG) & (gain > 0)
    log_start, terms = group_rows(np.where(logarithmic, problem.subscription_flow, -1), flows)
    return ConcaveFlows(
        # A copy: numba would compile a second variant for read-only columns.
        load=problem.flow_load_bytes_per_second.copy(),
        limit=np.ones(flows),
        linear_gain=np.bincount(
            problem.subscription_flow, np.where(linear, gain, 0.0), minlength=flows
        ).astype(np.float64),
        log_start=log_start,
        log_gain=gain[terms],
        log_rate=problem.subscription_success[terms],
    )


@compiled
def _worth(keep: Floats, linear_gain: Floats, log_start: Rows, log_gain: Floats, log_rate: Floats) -> Floats:
    worth = linear_gain * keep
    for flow in range(len(keep)):
        for term in range(log_start[flow], log_start[flow + 1]):
            worth[flow] += log_gain[term] / log_rate[term] * np.log1p(log_rate[term] * keep[flow])
    return worth
