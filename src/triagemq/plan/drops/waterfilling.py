"""The best use of the ports' capacities by flows of concave worth: exact water-filling over trees of ports.

The problem: maximise sum_f V_f(x_f), V_f concave, subject to sum_{f crossing p} l_f x_f <= C_p for every port
p and 0 <= x_f <= limit_f. Let x_f(nu) be the share at which a further byte of flow f is worth nu: V_f'(x) =
nu l_f, held within [0, limit_f]; it falls as nu grows.

From the ports next to the subscribers up, let nu_p be the least nu >= 0 at which port p carries its flows
when flow f is held at x_f(max(nu, nu_q of the ports q below p on f's path)). Since x_f falls with nu, that is
min(what the ports below left of f, x_f(nu)): each port solves one water-filling with the shares found below
it as limits. This is optimal:

    A port's flows all share the path from it up to the broker. Write N_p = max of nu over p and the ports
    above it, and lambda_p = N_p - N_(port above p) >= 0 (N = 0 above the top). The lambdas along a path add
    up to N of its last port, so f sits at x_f(sum of lambda over its path): stationarity. Raising nu only
    lowers loads, so the capacity that holds at nu_p holds at N: feasibility. lambda_p > 0 means that nu_p
    exceeds every nu above p; then the flows of p are exactly at the state that defined nu_p > 0, at which p's
    load equals its capacity: complementary slackness. The problem is concave, so a KKT point is an optimum.

Where worth is linear, x_f(nu) jumps from limit to 0 at nu = gain/load; at the jump any share is optimal, and
flows are filled in their order, one in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import compiled, inlined
from triagemq.plan.drops.problem import FITS, DropProblem
from triagemq.plan.ranking import Rows, group_rows
from triagemq.scenario import Floats, Integers, UtilityShape

REACHED = 1 - 1e-12
"""A level is reached at this share of it: the tolerance that `scenario.achieved_utility` grants."""


class ConcaveFlows(NamedTuple):
    """Flow f held at the share x, 0 <= x <= limit, takes load * x bytes per second and is worth

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
        return _worth(keep, self)

    def above(self, floor: Floats) -> ConcaveFlows:
        """The same flows with a share `floor` of each already given: what remains is as concave as the whole.

        With x = c + y, gain / (1 + rate * x) = (gain / (1 + rate * c)) / (1 + rate / (1 + rate * c) * y).
        """
        shrink = 1.0 / (1.0 + self.log_rate * np.repeat(floor, np.diff(self.log_start)))
        return self._replace(
            limit=np.maximum(self.limit - floor, 0.0),
            log_gain=self.log_gain * shrink,
            log_rate=self.log_rate * shrink,
        )

    def of(self, flows: Rows) -> ConcaveFlows:
        """Some of the flows, in the given order; a flow may be repeated."""
        log_start, terms = _members(self.log_start, flows)
        return ConcaveFlows(
            load=self.load[flows],
            limit=self.limit[flows],
            linear_gain=self.linear_gain[flows],
            log_start=log_start,
            log_gain=self.log_gain[terms],
            log_rate=self.log_rate[terms],
        )


def _members(start: Rows, groups: Rows) -> tuple[Rows, Rows]:
    """Of some groups of rows, which begin at `start`: where they begin among themselves, and all their rows."""
    sizes = np.diff(start)[groups]
    begin = np.concatenate([[0], np.cumsum(sizes)])
    return begin, np.arange(begin[-1]) + np.repeat(start[groups] - begin[:-1], sizes)


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
def _worth(keep: Floats, flows: ConcaveFlows) -> Floats:
    worth = flows.linear_gain * keep
    for flow in range(len(keep)):
        for term in range(flows.log_start[flow], flows.log_start[flow + 1]):
            gain, rate = flows.log_gain[term], flows.log_rate[term]
            worth[flow] += gain / rate * np.log1p(rate * keep[flow])
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
        start, rows = _members(self.start, flows)
        flow = np.repeat(np.arange(len(flows)), np.diff(start))
        return StepLevels(start, flow, self.share[rows], self.gain[rows], 0.0)

    def envelope(self, keep: Floats) -> float:
        """The steps replaced by their concave envelopes: gain * min(x / share, 1)."""
        return self.always + float(np.sum(self.gain * np.minimum(keep[self.flow] / self.share, 1.0)))

    def above(self, floor: Floats) -> StepLevels:
        """What is to be gained beyond a share `floor` of each flow that is given already."""
        ahead = self.share * REACHED > floor[self.flow]
        flow = self.flow[ahead]
        start = np.concatenate([[0], np.cumsum(np.bincount(flow, minlength=len(floor)))]).astype(np.int64)
        gained = float(self.gain[~ahead].sum())
        return StepLevels(
            start, flow, self.share[ahead] - floor[flow], self.gain[ahead], self.always + gained
        )

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
        open_ended[has_levels] = self.share[last[has_levels]] < flows.limit[has_levels]
        # One piece ends at every level, and one more reaches from the last level to the limit.
        owner = np.concatenate([self.flow, np.flatnonzero(open_ended)])
        end = np.concatenate([self.share, flows.limit[open_ended]])
        gain = np.concatenate([self.gain, np.zeros(int(open_ended.sum()))])
        order = np.lexsort((end, owner))
        owner, end, gain = owner[order], end[order], gain[order]
        # A flow that is at its limit already has one empty piece.
        begin, slope = _pieces(owner, end, np.divide(gain, end, out=np.zeros(len(end)), where=end > 0))
        cut = flows.of(owner).above(begin)
        return owner, cut._replace(limit=end - begin, linear_gain=cut.linear_gain + slope)


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


SAME_DENSITY = 1e-12
"""Linear flows whose worth per byte differs by less than this are tied: the difference is rounding."""

MET = 1e-14
"""Relative distance from the capacity that counts as met; sums of many flows do not get much closer."""

OUTER_ITERATIONS = 300
INNER_ITERATIONS = 100
NEWTON_ITERATIONS = 30
"""After this many trials the bracket is halved only: safe where Newton's model is poor."""


def fill_ports(
    flows: ConcaveFlows, ports_by_depth: list[Integers], capacity: Floats
) -> tuple[Floats, Floats]:
    """The optimal share of every flow, and per port nu_p: what one more byte per second would be worth there.

    nu is NaN at ports whose flows fit, and an exceeded port is filled to its capacity exactly.

    >>> from triagemq.plan.drops.waterfilling import concave_flows
    >>> from triagemq.plan.drops.problem import one_port
    >>> problem = one_port(loads=[100.0, 100.0], capacity=120.0, weights=[1.2, 1.0])
    >>> keep, nu = fill_ports(
    ...     concave_flows(problem), problem.ports_by_depth(), problem.port_capacity_bytes_per_second
    ... )
    >>> [round(float(share), 3) for share in keep], round(float(nu[0]), 6)
    ([0.745, 0.455], 0.006875)
    """
    capacity = capacity.copy()  # numba would compile a second variant for read-only columns
    keep = flows.limit.copy()
    price = np.full(len(capacity), np.nan)
    for port in reversed(ports_by_depth):
        offsets, rows = group_rows(port, len(capacity))
        _fill_level(offsets, rows, capacity, flows, keep, price)
    return keep, price


@compiled
def _fill_level(
    offsets: Rows, rows: Rows, capacity: Floats, flows: ConcaveFlows, keep: Floats, price: Floats
) -> None:
    """Water-filling at every exceeded port of one depth. `keep` holds the limits and receives the answer."""
    for port in range(len(capacity)):
        crossing = rows[offsets[port] : offsets[port + 1]]
        total = 0.0
        for flow in crossing:
            total += flows.load[flow] * keep[flow]
        if total > capacity[port] * FITS:
            price[port] = _fill_port(crossing, capacity[port], flows, keep)


class _Crossing(NamedTuple):
    """The flows that cross a port: which they are, their limits, the worth per byte of their first and their last byte,
    whether they jump from all to nothing at one price, and whether they take no room."""

    flow: Rows
    limit: Floats
    density_at_zero: Floats
    density_at_limit: Floats
    jumps: NDArray[np.bool_]
    weightless: NDArray[np.bool_]


@compiled
def _crossing(rows: Rows, flows: ConcaveFlows, keep: Floats) -> _Crossing:
    count = len(rows)
    limit, density_at_zero, density_at_limit = keep[rows], np.zeros(count), np.zeros(count)
    jumps, weightless = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    for row in range(count):
        flow = rows[row]
        if flows.load[flow] * limit[row] <= 0.0:
            weightless[row] = True
            continue
        first, last = flows.linear_gain[flow], flows.linear_gain[flow]
        for term in range(flows.log_start[flow], flows.log_start[flow + 1]):
            first += flows.log_gain[term]
            last += flows.log_gain[term] / (1.0 + flows.log_rate[term] * limit[row])
        density_at_zero[row] = first / flows.load[flow]
        density_at_limit[row] = last / flows.load[flow]
        jumps[row] = density_at_limit[row] >= density_at_zero[row]
    return _Crossing(rows, limit, density_at_zero, density_at_limit, jumps, weightless)


@compiled
def _fill_port(rows: Rows, capacity: float, flows: ConcaveFlows, keep: Floats) -> float:
    """The price at one port; `keep` receives the shares."""
    crossing = _crossing(rows, flows, keep)
    jumps = _distinct_jumps(crossing.density_at_zero, crossing.jumps)
    share = crossing.limit.copy()

    # 1. Between which jumps does the answer lie? The first at which the capacity holds, all flows tied there
    # off.
    first, end = 0, len(jumps)
    while first < end:
        middle = (first + end) // 2
        bytes_on, _ = _loads_at(jumps[middle], False, flows, crossing, share)
        if bytes_on <= capacity:
            end = middle
        else:
            first = middle + 1
    smooth = ~crossing.jumps & ~crossing.weightless
    low, high = np.inf, 0.0
    for row in np.flatnonzero(smooth):
        low = min(low, crossing.density_at_limit[row])
        high = max(high, crossing.density_at_zero[row])
    if first > 0:
        low = max(low, jumps[first - 1])
    if first < len(jumps):
        jump = jumps[first]
        high = min(high, jump)
        bytes_on, _ = _loads_at(jump, False, flows, crossing, share)
        tied = np.flatnonzero(crossing.jumps & (crossing.density_at_zero == jump))
        tied_bytes = 0.0
        for row in tied:
            tied_bytes += flows.load[rows[row]] * crossing.limit[row]
        # Without smooth flows in between only a jump can be the answer, whatever the last digit of the sum
        # says.
        if bytes_on + tied_bytes >= capacity or low >= high:
            left = capacity - bytes_on
            for row in tied:
                share[row] = min(crossing.limit[row], left / flows.load[rows[row]])
                left -= share[row] * flows.load[rows[row]]
            keep[rows] = share
            return float(jump)

    # 2. The answer lies strictly between two jumps, where the load is a continuous function of nu.
    share_low, share_high = crossing.limit.copy(), crossing.limit.copy()
    bytes_low, _ = _loads_at(low, False, flows, crossing, share_low)
    bytes_high, _ = _loads_at(high, True, flows, crossing, share_high)
    # In 1/nu the load of log flows between their limits is a straight line: secant first, then Newton.
    fraction = _fraction(bytes_high, capacity, bytes_low)
    nu = 1.0 / (1.0 / high + fraction * (1.0 / low - 1.0 / high))
    for iteration in range(OUTER_ITERATIONS):
        if not low < nu < high:
            nu = np.sqrt(low * high)
            if not low < nu < high:
                break
        bytes_on, slope = _loads_at(nu, False, flows, crossing, share)
        if bytes_on > capacity:
            low, bytes_low = nu, bytes_on
            share_low[:] = share
        else:
            high, bytes_high = nu, bytes_on
            share_high[:] = share
        if abs(bytes_on - capacity) <= MET * capacity:
            keep[rows] = share
            return float(nu)
        if slope > 0.0 and iteration < NEWTON_ITERATIONS:
            nu = 1.0 / (1.0 / nu + (capacity - bytes_on) / (nu * nu * slope))
        else:
            nu = np.sqrt(low * high)

    # 3. No number lies between the two ends of the bracket: nearly linear flows pass from one share to another
    # within its last digit, and between the two answers lies the one that meets the capacity.
    keep[rows] = share_high + _fraction(bytes_high, capacity, bytes_low) * (share_low - share_high)
    return float(nu)


@inlined
def _fraction(first: float, between: float, last: float) -> float:
    """How far `between` lies between `first` to `last`."""
    return min(max((between - first) / (last - first), 0.0), 1.0) if last > first else 0.0


@compiled
def _distinct_jumps(density: Floats, jumps: NDArray[np.bool_]) -> Floats:
    """The densities at which flows jump, ascending; nearly equal ones are made equal, in `density` too."""
    rows = np.flatnonzero(jumps)
    rows = rows[np.argsort(density[rows])]
    distinct = np.empty(len(rows))
    count = 0
    for row in rows:
        if count > 0 and density[row] <= distinct[count - 1] * (1.0 + SAME_DENSITY):
            density[row] = distinct[count - 1]
        else:
            distinct[count] = density[row]
            count += 1
    return distinct[:count]


@compiled
def _loads_at(
    nu: float, tied_on: bool, flows: ConcaveFlows, crossing: _Crossing, share: Floats
) -> tuple[float, float]:
    """Bytes per second held at the price nu, and how fast they fall with nu; `share` is start and answer."""
    total, slope = 0.0, 0.0
    for row in range(len(crossing.flow)):
        if crossing.weightless[row]:
            continue
        flow, limit, highest = crossing.flow[row], crossing.limit[row], crossing.density_at_zero[row]
        load = flows.load[flow]
        if crossing.jumps[row]:
            share[row] = limit if highest > nu or (tied_on and highest == nu) else 0.0
        elif nu <= crossing.density_at_limit[row]:
            share[row] = limit
        elif nu >= highest:
            share[row] = 0.0
        else:
            share[row], bend = _share_at(
                nu * load - flows.linear_gain[flow],
                flows.log_start[flow],
                flows.log_start[flow + 1],
                flows.log_gain,
                flows.log_rate,
                share[row],
                limit,
            )
            slope += load * load / bend
        total += load * share[row]
    return total, slope


@inlined
def _share_at(
    target: float, first: int, end: int, log_gain: Floats, log_rate: Floats, start: float, limit: float
) -> tuple[float, float]:
    """The x in [0, limit] at which H(x) = sum of gain / (1 + rate x) is `target`, and -H' there.

    Newton on 1/H: it is concave and nearly straight (exactly so for one term or equal rates), so one or two
    steps do. From either side the first step lands left of the root, the next ones rise to it.
    """
    x = start
    bend = 1.0
    for _ in range(INNER_ITERATIONS):
        height, bend = 0.0, 0.0
        for term in range(first, end):
            part = 1.0 / (1.0 + log_rate[term] * x)
            height += log_gain[term] * part
            bend += log_gain[term] * log_rate[term] * part * part
        moved = min(max(x + height * (height - target) / (target * bend), 0.0), limit)
        step = abs(moved - x)
        x = moved
        if step <= 1e-15:
            break
    return x, bend
