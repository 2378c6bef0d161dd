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

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import compiled, inlined
from triagemq.plan.drops.problem import FITS
from triagemq.plan.drops.worth import ConcaveFlows
from triagemq.plan.ranking import Rows, group_rows
from triagemq.scenario import Floats, Integers

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

    >>> from triagemq.plan.drops.worth import concave_flows
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
        _fill_level(
            offsets,
            rows,
            capacity,
            flows.load,
            flows.linear_gain,
            flows.log_start,
            flows.log_gain,
            flows.log_rate,
            keep,
            price,
        )
    return keep, price


@compiled
def _fill_level(
    offsets: Rows,
    rows: Rows,
    capacity: Floats,
    load: Floats,
    linear_gain: Floats,
    log_start: Rows,
    log_gain: Floats,
    log_rate: Floats,
    keep: Floats,
    price: Floats,
) -> None:
    """Water-filling at every exceeded port of one depth. `keep` holds the limits and receives the answer."""
    for port in range(len(capacity)):
        flows = rows[offsets[port] : offsets[port + 1]]
        total = 0.0
        for flow in flows:
            total += load[flow] * keep[flow]
        if total > capacity[port] * FITS:
            price[port] = _fill_port(
                flows, capacity[port], load, linear_gain, log_start, log_gain, log_rate, keep
            )


@compiled
def _fill_port(
    flows: Rows,
    capacity: float,
    load: Floats,
    linear_gain: Floats,
    log_start: Rows,
    log_gain: Floats,
    log_rate: Floats,
    keep: Floats,
) -> float:
    count = len(flows)
    limit = np.empty(count)
    density_at_zero = np.empty(count)  # worth of the first byte, and of the last one
    density_at_limit = np.empty(count)
    jumps = np.zeros(count, dtype=np.bool_)
    weightless = np.zeros(count, dtype=np.bool_)
    for row in range(count):
        flow = flows[row]
        limit[row] = keep[flow]
        if load[flow] * limit[row] <= 0.0:
            weightless[row] = True
            continue
        first, last = linear_gain[flow], linear_gain[flow]
        for term in range(log_start[flow], log_start[flow + 1]):
            first += log_gain[term]
            last += log_gain[term] / (1.0 + log_rate[term] * limit[row])
        density_at_zero[row] = first / load[flow]
        density_at_limit[row] = last / load[flow]
        jumps[row] = density_at_limit[row] >= density_at_zero[row]

    breakpoints = _distinct_jumps(density_at_zero, jumps)
    share = limit.copy()

    # 1. Between which jumps does the answer lie? The first at which the capacity holds, all flows tied there
    # off.
    first, end = 0, len(breakpoints)
    while first < end:
        middle = (first + end) // 2
        bytes_on, _ = _loads_at(
            breakpoints[middle], False, flows, load, linear_gain, log_start, log_gain, log_rate,
            limit, density_at_zero, density_at_limit, jumps, weightless, share,
        )  # fmt: skip
        if bytes_on <= capacity:
            end = middle
        else:
            first = middle + 1
    low, high = np.inf, 0.0
    for row in range(count):
        if not jumps[row] and not weightless[row]:
            low = min(low, density_at_limit[row])
            high = max(high, density_at_zero[row])
    if first > 0:
        low = max(low, breakpoints[first - 1])
    if first < len(breakpoints):
        jump = breakpoints[first]
        high = min(high, jump)
        bytes_on, _ = _loads_at(
            jump, False, flows, load, linear_gain, log_start, log_gain, log_rate,
            limit, density_at_zero, density_at_limit, jumps, weightless, share,
        )  # fmt: skip
        tied = 0.0
        for row in range(count):
            if jumps[row] and density_at_zero[row] == jump:
                tied += load[flows[row]] * limit[row]
        # Without smooth flows in between only a jump can be the answer, whatever the last digit of the sum
        # says.
        if bytes_on + tied >= capacity or low >= high:
            left = capacity - bytes_on
            for row in range(count):
                if jumps[row] and density_at_zero[row] == jump:
                    share[row] = min(limit[row], left / load[flows[row]])
                    left -= share[row] * load[flows[row]]
                keep[flows[row]] = share[row]
            return float(jump)

    # 2. The answer lies strictly between two jumps, where the load is a continuous function of nu.
    share_low, share_high = limit.copy(), limit.copy()
    bytes_low, _ = _loads_at(
        low, False, flows, load, linear_gain, log_start, log_gain, log_rate,
        limit, density_at_zero, density_at_limit, jumps, weightless, share_low,
    )  # fmt: skip
    bytes_high, _ = _loads_at(
        high, True, flows, load, linear_gain, log_start, log_gain, log_rate,
        limit, density_at_zero, density_at_limit, jumps, weightless, share_high,
    )  # fmt: skip
    # In 1/nu the load of log flows between their limits is a straight line: secant first, then Newton.
    fraction = _fraction(bytes_high, capacity, bytes_low)
    nu = 1.0 / (1.0 / high + fraction * (1.0 / low - 1.0 / high))
    for iteration in range(OUTER_ITERATIONS):
        if not low < nu < high:
            nu = np.sqrt(low * high)
            if not low < nu < high:
                break
        bytes_on, slope = _loads_at(
            nu, False, flows, load, linear_gain, log_start, log_gain, log_rate,
            limit, density_at_zero, density_at_limit, jumps, weightless, share,
        )  # fmt: skip
        if bytes_on > capacity:
            low, bytes_low = nu, bytes_on
            share_low[:] = share
        else:
            high, bytes_high = nu, bytes_on
            share_high[:] = share
        if abs(bytes_on - capacity) <= MET * capacity:
            for row in range(count):
                keep[flows[row]] = share[row]
            return float(nu)
        if slope > 0.0 and iteration < NEWTON_ITERATIONS:
            nu = 1.0 / (1.0 / nu + (capacity - bytes_on) / (nu * nu * slope))
        else:
            nu = np.sqrt(low * high)

    # 3. No number lies between the two ends of the bracket: nearly linear flows pass from one share to another
    # within its last digit, and between the two answers lies the one that meets the capacity.
    fraction = _fraction(bytes_high, capacity, bytes_low)
    for row in range(count):
        keep[flows[row]] = share_high[row] + fraction * (share_low[row] - share_high[row])
    return float(nu)


@inlined
def _fraction(first: float, between: float, last: float) -> float:
    """How far `between` lies on the way from `first` to `last`."""
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
    nu: float,
    tied_on: bool,
    flows: Rows,
    load: Floats,
    linear_gain: Floats,
    log_start: Rows,
    log_gain: Floats,
    log_rate: Floats,
    limit: Floats,
    density_at_zero: Floats,
    density_at_limit: Floats,
    jumps: NDArray[np.bool_],
    weightless: NDArray[np.bool_],
    share: Floats,
) -> tuple[float, float]:
    """Bytes per second kept at the price nu, and how fast they fall with nu; `share` is start and answer."""
    total, slope = 0.0, 0.0
    for row in range(len(flows)):
        if weightless[row]:
            continue
        flow = flows[row]
        if jumps[row]:
            on = density_at_zero[row] > nu or (tied_on and density_at_zero[row] == nu)
            share[row] = limit[row] if on else 0.0
        elif nu <= density_at_limit[row]:
            share[row] = limit[row]
        elif nu >= density_at_zero[row]:
            share[row] = 0.0
        else:
            share[row], bend = _share_at(
                nu * load[flow] - linear_gain[flow],
                log_start[flow],
                log_start[flow + 1],
                log_gain,
                log_rate,
                share[row],
                limit[row],
            )
            slope += load[flow] * load[flow] / bend
        total += load[flow] * share[row]
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
