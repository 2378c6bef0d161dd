"""What flows are worth by what is kept of them, as flat columns that compiled loops read in order: log and linear
utilities, which are concave, and steps, as levels at which a flow gains something at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from triagemq.compiled import compiled
from triagemq.plan.drops.problem import DropProblem
from triagemq.plan.ranking import Rows, group_rows
from triagemq.scenario import Floats, UtilityShape

REACHED = 1 - 1e-12
"""A level is reached at this share of it: the tolerance that `scenario.achieved_utility` grants."""


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


@dataclass(frozen=True, slots=True, eq=False)
class StepLevels:
    """One row per flow and distinct share at which it gains, sorted by both. `always` is gained at any share.

    The rows of flow f are those from start[f] to start[f + 1]; keeping `share` of the flow adds `gain`.
    """

    start: Rows
    flow: Rows
    share: Floats
    gain: Floats
    always: float

    def gained(self, keep: Floats) -> float:
        """What the steps are worth at these shares."""
        return self.always + float(np.sum(self.gain[keep[self.flow] >= self.share * REACHED]))

    def below(self, keep: Floats) -> Rows:
        """How many of each flow's levels these shares reach."""
        reached = keep[self.flow] >= self.share * REACHED
        return np.bincount(self.flow[reached], minlength=len(self.start) - 1)

    def floors(self, reached: Rows) -> Floats:
        """The least share of every flow that reaches the given number of its levels."""
        return np.where(reached > 0, np.append(self.share, 0.0)[self.start[:-1] + reached - 1], 0.0)

    def of(self, flows: Rows) -> StepLevels:
        """The levels of some flows, which are renumbered in the given order."""
        sizes = np.diff(self.start)[flows]
        start = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.arange(start[-1]) + np.repeat(self.start[flows] - start[:-1], sizes)
        return StepLevels(
            start, np.repeat(np.arange(len(flows)), sizes), self.share[rows], self.gain[rows], 0.0
        )

    def envelope(self, keep: Floats) -> float:
        """The steps replaced by their concave envelopes: gain * min(x / share, 1)."""
        return self.always + float(np.sum(self.gain * np.minimum(keep[self.flow] / self.share, 1.0)))

    def segments(self, flows: ConcaveFlows) -> tuple[Rows, ConcaveFlows]:
        """Every flow cut where its envelope bends: the flow of each piece, and the pieces as concave flows.

        Within a piece the envelope is a straight line, whose slope joins the linear gain; slopes fall from
        piece to piece, so an optimum over independent pieces fills them in order and is an optimum over
        flows.
        """
        count = len(flows.load)
        open_ended = np.ones(count, dtype=bool)
        last = self.start[1:] - 1
        has_levels = np.diff(self.start) > 0
        open_ended[has_levels] = self.share[last[has_levels]] < 1.0
        # One piece ends at every level, and one more reaches from the last level to 1.
        owner = np.concatenate([self.flow, np.flatnonzero(open_ended)])
        end = np.concatenate([self.share, np.ones(int(open_ended.sum()))])
        gain = np.concatenate([self.gain, np.zeros(int(open_ended.sum()))])
        order = np.lexsort((end, owner))
        owner, end, gain = owner[order], end[order], gain[order]
        begin, slope = _pieces(owner, end, gain / end)
        cut = flows.of(owner).above(begin)
        return owner, replace(cut, limit=end - begin, linear_gain=cut.linear_gain + slope)


def step_levels(problem: DropProblem) -> StepLevels:
    """The levels of all step subscriptions; thresholds that even an undropped flow misses are worth nothing.

    >>> from triagemq.plan.drops.problem import one_port
    >>> levels = step_levels(one_port(loads=[1.0, 1.0], capacity=1.0, shape="step", threshold=0.8))
    >>> levels.share.tolist(), levels.gain.tolist()
    ([0.8, 0.8], [1.0, 1.0])
    """
    wanted = problem.subscriptions
    success = problem.subscription_success
    rows = np.flatnonzero(wanted.utility_shape == UtilityShape.STEP)
    gain = (problem.subscription_freshness * wanted.utility_weight)[rows]
    threshold = wanted.utility_threshold[rows]
    share = np.divide(threshold, success[rows], out=np.full(len(rows), np.inf), where=success[rows] > 0)
    share[threshold <= 0] = 0.0
    always = float(gain[share <= 0].sum())
    useful = (share > 0) & (share * REACHED <= 1.0) & (gain > 0)
    flow = problem.subscription_flow[rows[useful]].astype(np.int64)
    share, gain = np.minimum(share[useful], 1.0), gain[useful]
    order = np.lexsort((share, flow))
    flow, share, gain = flow[order], share[order], gain[order]
    # Steps at the same share of the same flow are one level.
    distinct = np.ones(len(flow), dtype=bool)
    distinct[1:] = (flow[1:] != flow[:-1]) | (share[1:] != share[:-1])
    level = np.cumsum(distinct) - 1
    flows = len(problem.flow_load_bytes_per_second)
    start = np.concatenate([[0], np.cumsum(np.bincount(flow[distinct], minlength=flows))])
    return StepLevels(
        start=start.astype(np.int64),
        flow=flow[distinct],
        share=share[distinct],
        gain=np.bincount(level, gain, minlength=int(distinct.sum())).astype(np.float64),
        always=always,
    )


@compiled
def _pieces(owner: Rows, end: Floats, slope: Floats) -> tuple[Floats, Floats]:
    """Where each piece begins, and its slope: that of the levels where it and later pieces end."""
    begin = np.zeros(len(owner))
    total = slope.copy()
    for piece in range(len(owner) - 2, -1, -1):
        if owner[piece] == owner[piece + 1]:
            begin[piece + 1] = end[piece]
            total[piece] += total[piece + 1]
    return begin, total
