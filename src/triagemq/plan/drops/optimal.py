"""The drop rates of greatest utility, flow by flow.

Where some utilities are steps the problem is a knapsack, which has no exact fast solution: an upper bound by concave
envelopes, then a search over levels. What is promised instead: never worse than ignoring the steps, never worse than
`flat`, and a bound with the answer that says how much could be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.drops.by_class import flat
from triagemq.plan.drops.minima import with_minima
from triagemq.plan.drops.problem import FITS, DropProblem, DropResult, overloads
from triagemq.plan.drops.waterfilling import ConcaveFlows, StepLevels, concave_flows, fill_ports, step_levels
from triagemq.plan.model import LEAST_GAIN, Decision
from triagemq.plan.ranking import Rows, group_rows
from triagemq.scenario import Floats, Integers, UtilityShape

SEARCH_WORK = 2_000_000
"""Flows that the local search may evaluate in all: it bounds the search on large plans to seconds."""

LEVEL_BAND = 0.02
"""A level within this share above what an earlier plan sent was that plan's."""

MOST_TRIALS = 2_000
FEWEST_TRIALS = 8


def optimal(problem: DropProblem) -> DropResult:
    """Maximise sum_r U_r(s_r x_f), x = 1 - drop, within every port's capacity (PrioDeX 4.3, "optimized").

    Exact for log and linear utilities (`waterfilling`, which holds the proof); for steps a search with an
    upper bound with it (`solve_steps`). Minima x >= floor are given first: what remains of the flows is as concave,
    and shares out what remains of the ports. Freshness factors scale the utilities; they come from an earlier forecast,
    so the result is exact for those factors only.

    >>> from triagemq.plan.drops.problem import one_port
    >>> drop_rate = optimal(one_port(loads=[100.0, 100.0], capacity=120.0, weights=[1.2, 1.0])).drop_rate
    >>> [round(float(rate), 4) for rate in drop_rate]
    [0.2545, 0.5455]
    """
    if bool((problem.subscriptions.utility_shape == UtilityShape.STEP).any()):
        keep, price, bound = solve_steps(problem)
    else:
        floor, flows, capacity = _above_minima(problem, concave_flows(problem))
        keep, price = fill_ports(flows, problem.ports_by_depth(), capacity)
        keep, bound = keep + floor, None
    drop_rate = np.clip(1.0 - keep, 0.0, 1.0)
    rules = [
        None
        if np.isnan(nu)
        else f"optimal: a byte per second is worth {nu:.6g} here, flows keep what is worth more"
        for nu in price
    ]
    decisions = overloads(problem, drop_rate, rules)
    if bound is not None:
        value = problem.utility(drop_rate)
        share = f"{value / bound:.2%} of it" if bound > 0 else "all of it"
        decisions = (
            *decisions,
            Decision(
                kind="utility_bound",
                subject="all ports",
                before=f"at most {bound:.9g}",
                after=f"{value:.9g}",
                reason=f"step utilities are searched, not solved; the plan reaches {share}",
            ),
        )
    return DropResult(drop_rate, decisions, bound)


def _above_minima(problem: DropProblem, flows: ConcaveFlows) -> tuple[Floats, ConcaveFlows, Floats]:
    """The minima, and the flows and capacities beyond them."""
    if problem.flow_floor is None:
        return np.zeros(len(flows.load)), flows, problem.port_capacity_bytes_per_second
    floor = problem.flow_floor.copy()
    return floor, flows.above(floor), problem.left_above(floor)


class StepSolution(NamedTuple):
    """Shares to keep, the price of a byte at every port (NaN where everything fits), and the bound."""

    keep: Floats
    price: Floats
    bound: float | None


def solve_steps(problem: DropProblem) -> StepSolution:
    """Search levels for every group of ports that share flows; leftover capacity goes to the concave rest.

    >>> from triagemq.plan.drops.problem import one_port
    >>> found = solve_steps(one_port(loads=[60.0, 50.0, 50.0], capacity=100.0, shape="step", threshold=1.0))
    >>> found.keep.tolist(), round(found.bound, 3)
    ([0.0, 1.0, 1.0], 2.0)
    """
    whole = concave_flows(problem)
    floor, flows, capacity = _above_minima(problem, whole)
    levels, base = step_levels(problem), 0.0
    if problem.flow_floor is not None:
        levels, base = levels.above(floor), float(whole.worth(floor).sum())
    depths = problem.ports_by_depth()
    owner, pieces = levels.segments(flows)
    piece_keep, piece_price = fill_ports(pieces, [port[owner] for port in depths], capacity)
    relaxed = np.bincount(owner, piece_keep, minlength=len(flows.load)).astype(np.float64)
    bound = base + float(flows.worth(relaxed).sum()) + levels.envelope(relaxed)

    keep, price = fill_ports(flows, depths, capacity)
    equal = np.maximum(1.0 - with_minima(flat, problem).drop_rate - floor, 0.0)
    top = depths[0]
    offsets, rows = group_rows(top, len(capacity))
    with_levels = np.zeros(len(capacity), dtype=bool)
    with_levels[top[levels.flow]] = True
    over = (problem.port_loads() > capacity * FITS)[problem.flow_ports] & (problem.flow_ports >= 0)
    exceeded = np.zeros(len(capacity), dtype=bool)
    exceeded[top[over.any(axis=1)]] = True
    searched = np.flatnonzero(with_levels & exceeded)
    size = sum(int(offsets[group + 1] - offsets[group]) for group in searched)
    trials = int(np.clip(SEARCH_WORK // max(size, 1), FEWEST_TRIALS, MOST_TRIALS))
    for group in searched:
        members = rows[offsets[group] : offsets[group + 1]]
        part = _Part.of(flows, levels, depths, capacity, piece_price, members)
        found = _search(part, [relaxed[members], keep[members], equal[members]], trials)
        if problem.flow_keep_before is not None:
            before = problem.flow_keep_before[members] * (1 + LEVEL_BAND) - floor[members]
            found = _rather_as_before(part, before, found)
        keep[members] = found.keep
        price[part.ports] = np.where(np.isnan(found.price), price[part.ports], found.price)
    # Sums over a million subscriptions round; a bound must not fall below what it bounds because of that.
    return StepSolution(keep + floor, price, bound * (1 + 1e-12))


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    reached: Rows
    keep: Floats
    price: Floats
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The flows below one port at the brokers, which no other flow competes with; ports renumbered."""

    flows: ConcaveFlows
    levels: StepLevels
    depths: list[Integers]
    capacity: Floats
    ports: Rows
    worth_at_level: Floats
    ambiguity: Floats

    @classmethod
    def of(
        cls,
        flows: ConcaveFlows,
        levels: StepLevels,
        depths: list[Integers],
        capacity: Floats,
        price: Floats,
        members: Rows,
    ) -> _Part:
        crossed = np.stack([port[members] for port in depths])
        ports = np.unique(crossed[crossed >= 0]).astype(np.int64)
        local = np.where(crossed >= 0, np.searchsorted(ports, crossed), -1).astype(np.int32)
        own_flows, own_levels = flows.of(members), levels.of(members)
        # Worth of a flow at each of its levels, and per byte since the level before.
        steps = np.cumsum(own_levels.gain)
        before_flow = np.concatenate([[0.0], steps])[own_levels.start[:-1]]
        worth = steps - before_flow[own_levels.flow] + own_flows.of(own_levels.flow).worth(own_levels.share)
        first = np.zeros(len(worth), dtype=bool)
        first[own_levels.start[:-1][np.diff(own_levels.start) > 0]] = True
        gain = worth - np.where(first, 0.0, np.concatenate([[0.0], worth[:-1]]))
        width = own_levels.share - np.where(first, 0.0, np.concatenate([[0.0], own_levels.share[:-1]]))
        bytes_more = own_flows.load[own_levels.flow] * width
        density = np.divide(gain, bytes_more, out=np.full(len(gain), np.inf), where=bytes_more > 0)
        paid = np.nan_to_num(price[ports])[np.maximum(local, 0)]
        highest = np.max(np.where(local >= 0, paid, 0.0), axis=0)[own_levels.flow]
        with np.errstate(divide="ignore"):
            ambiguity = np.abs(np.log(density) - np.log(np.maximum(highest, np.finfo(float).tiny)))
        return cls(own_flows, own_levels, list(local), capacity[ports], ports, worth, ambiguity)

    def floor_loads(self, reached: Rows) -> Floats:
        return self._loads(self.levels.floors(reached))

    def _loads(self, keep: Floats) -> Floats:
        total = np.zeros(len(self.capacity))
        for port in self.depths:
            on = port >= 0
            total += np.bincount(port[on], (self.flows.load * keep)[on], minlength=len(total))
        return total

    def settle(self, reached: Rows) -> _Answer | None:
        """Reach the given levels and give all that is left to the concave rest; None if they do not fit."""
        floors = self.levels.floors(reached)
        left = self.capacity - self._loads(floors)
        if (left < -self.capacity * (FITS - 1)).any():
            return None
        rest, price = fill_ports(self.flows.above(floors), self.depths, np.maximum(left, 0.0))
        return _Answer(reached, keep := np.minimum(floors + rest, 1.0), price, self._value(keep))

    def as_it_is(self, keep: Floats) -> _Answer:
        """Shares that are known to fit."""
        return _Answer(self.levels.below(keep), keep, np.full(len(self.ports), np.nan), self._value(keep))

    def _value(self, keep: Floats) -> float:
        return float(self.flows.worth(keep).sum()) + self.levels.gained(keep)


def _search(part: _Part, starts: list[Floats], trials: int) -> _Answer:
    """The best start, as it is or settled anew, improved by moves while they help and trials last."""
    answers = [part.as_it_is(keep) for keep in starts]
    settled = [part.settle(answer.reached) for answer in answers]
    best = max([*filter(None, settled), *answers], key=lambda answer: answer.value)
    # The relaxed shares, which come first, reach the bound of this part; nothing is left to gain near it.
    enough = (1 - 1e-9) * (float(part.flows.worth(starts[0]).sum()) + part.levels.envelope(starts[0]))
    moves = np.argsort(part.ambiguity, kind="stable")
    improved = True
    while improved and best.value < enough:
        improved = False
        for candidate in _neighbours(part, best, moves):
            if trials == 0:
                return best
            trials -= 1
            answer = part.settle(candidate)
            if answer is not None and answer.value > best.value * (1 + 1e-12):
                best, improved = answer, True
                break
    return best


def _rather_as_before(part: _Part, keep: Floats, found: _Answer) -> _Answer:
    """The levels that an earlier plan reached, if they fit and what was found gains less than LEAST_GAIN over them.

    Levels have moved a little since, as rates and margins do: `keep` has a band, so that one nearly reached counts.
    """
    before = part.settle(part.levels.below(keep))
    if before is not None and found.value <= before.value * (1 + LEAST_GAIN):
        return before
    return found


def _neighbours(part: _Part, best: _Answer, moves: Rows) -> Iterator[Rows]:
    """One flow moved to another level, then two; others lowered until it fits, then others raised.

    The levels whose worth per byte is nearest to the price of a byte are tried first: they are the ones a
    fractional optimum leaves open.
    """
    levels = part.levels
    targets = [
        (int(levels.flow[move]), int(move - levels.start[levels.flow[move]]) + up)
        for move in moves
        for up in (1, 0)
    ]
    targets = [(flow, level) for flow, level in dict.fromkeys(targets) if level != best.reached[flow]]
    singles = ((target,) for target in targets)
    pairs = ((one, other) for one, other in combinations(targets, 2) if one[0] != other[0])
    for changes in chain(singles, pairs):
        changed = best.reached.copy()
        moved = np.zeros(len(changed), dtype=bool)
        for flow, level in changes:
            changed[flow], moved[flow] = level, True
        # Per byte the best to give up, in all the best to give up: a large level can be the wrong one to
        # lose.
        fitted = [_lowered(part, changed, moved, per_byte=per_byte) for per_byte in (True, False)]
        for number, fitting in enumerate(fitted):
            if fitting is None or (number and fitted[0] is not None and (fitting == fitted[0]).all()):
                continue
            yield fitting
            raised = _raised(part, fitting, moved)
            if (raised != fitting).any():
                yield raised


def _lowered(part: _Part, reached: Rows, moved: NDArray[np.bool_], *, per_byte: bool) -> Rows | None:
    """Levels given up, the least worth (per byte) first, until every port carries what is left."""
    reached = reached.copy()
    worth = np.append(part.worth_at_level, 0.0)
    while True:
        loads = part.floor_loads(reached)
        over = loads > part.capacity * FITS
        if not over.any():
            return reached
        crossing = np.zeros(len(reached), dtype=bool)
        for port in part.depths:
            crossing |= (port >= 0) & over[np.maximum(port, 0)]
        crossing[moved] = False
        candidates = np.flatnonzero(crossing & (reached > 0) & (part.flows.load > 0))
        if len(candidates) == 0:
            return None
        now = part.levels.start[candidates] + reached[candidates] - 1
        has_lower = reached[candidates] > 1
        lost = worth[now] - np.where(has_lower, worth[now - 1], 0.0)
        width = part.levels.share[now] - np.where(has_lower, part.levels.share[now - 1], 0.0)
        freed = part.flows.load[candidates] * width
        reached[candidates[np.argmin(lost / freed if per_byte else lost)]] -= 1


def _raised(part: _Part, reached: Rows, moved: NDArray[np.bool_]) -> Rows:
    """Levels taken up, the most worth per byte first, while they fit; the moved flows stay where they are."""
    reached = reached.copy()
    levels = part.levels
    free = part.capacity * FITS - part.floor_loads(reached)
    above = np.arange(len(levels.flow)) - levels.start[levels.flow] + 1 > reached[levels.flow]
    rows = np.flatnonzero(above & ~moved[levels.flow])
    flow = levels.flow[rows]
    current = levels.start[flow] + reached[flow] - 1
    worth_now = np.where(reached[flow] > 0, np.append(part.worth_at_level, 0.0)[current], 0.0)
    more = part.flows.load[flow] * (levels.share[rows] - levels.floors(reached)[flow])
    gain = part.worth_at_level[rows] - worth_now
    density = np.divide(gain, more, out=np.full(len(rows), np.inf), where=more > 0)
    for row in rows[np.argsort(-density, kind="stable")]:
        which = int(levels.flow[row])
        target = int(row - levels.start[which]) + 1
        if target <= reached[which]:
            continue
        floor = levels.share[levels.start[which] + reached[which] - 1] if reached[which] > 0 else 0.0
        extra = part.flows.load[which] * (levels.share[row] - floor)
        ports = [int(port[which]) for port in part.depths if port[which] >= 0]
        if all(extra <= free[port] for port in ports):
            reached[which] = target
            free[ports] -= extra
    return reached
