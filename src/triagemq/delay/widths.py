"""Local bandwidth adjustment: how a port's bandwidth is divided among its queues (Shi et al., Algorithm 1).

Minimise sum c_q t_q with w_q t_q = avgQ_q, sum w_q = port, w_q >= floor_q: (8) to (12). Without floors w_q is
proportional to sqrt(c_q avgQ_q), as printed. Where that is below a floor, the queue gets its floor and the others
divide what is left; the multiplier of the sum only grows by that, so that a queue once at its floor stays there, and
what is found is the optimum. The floor is the largest of what keeps a queue from starving, avgQ_q / T_q (t_q <= T_q),
and what the queue needs: the paper takes avgQ as given, but a queue that gets less than what comes grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.theory.validate import per_row

HYSTERESIS = 0.001
"""Widths change if that takes a larger share off the weighted delay. It is flat around its minimum: of two equal queues
that cost so much more than they have to, each is 3 % off its best width."""

URGENT = 0.05
"""Widths that were changed a moment ago change again if that takes a larger share off the weighted delay."""

BEST_EFFORT = 6 / 7
"""What the last class counts beside the others, in parts of its configured width squared: as the paper's lowest queue
beside the one above it. Where all queues are full it gives a fifteenth of its width. By delay times loss, which goes
with 1 / width, that costs a narrow queue more than the others gain: so it is no more."""

NEED_SLACK = 0.05
"""By how much a width in force may miss what its queue needs: rates that are measured are never the same twice."""


@dataclass(frozen=True, slots=True)
class PortDivision:
    """How a port is divided: whole bits per second that add up to the port, never below the floors.

    `cannot_hold` are the queues whose delay constraint does not fit beside those that matter more; the administrator
    has to know. Their floor is what keeps them from starving.
    """

    width_bps: NDArray[np.int64]
    floor_bps: NDArray[np.int64]
    delay_seconds: NDArray[np.float64]
    cannot_hold: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DividedPort:
    """What does not change between periods: bandwidth, least widths against starving, and what queues matter.

    The papers' weights are q + 1 for queue q, of which 7 is the highest; ours are those of `weights_by_width`.
    """

    bandwidth_bps: int
    starvation_bps: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.weights or len(self.weights) != len(self.starvation_bps):
            raise ParameterError("weights", f"are {len(self.weights)} for {len(self.starvation_bps)} queues")
        if not all(0 < weight < math.inf for weight in self.weights):
            raise ParameterError("weights", "must be above 0")
        if min(self.starvation_bps) < 1:
            raise ParameterError(
                "starvation_bps", "must be 1 or more: a queue without bandwidth never empties"
            )
        if sum(self.starvation_bps) > self.bandwidth_bps:
            raise ParameterError(
                "starvation_bps", f"add up to {sum(self.starvation_bps)}; the port has {self.bandwidth_bps}"
            )


def weights_by_width(width_bps: Sequence[int]) -> tuple[float, ...]:
    """Weights for queues with these configured widths, class 0 first: where all hold the same, they get these back.

    Shares go by the root of a weight, so weights are squares. The last class is best effort and counts a little less
    (`BEST_EFFORT`): it is the one to give when all are in need.

    >>> weights_by_width([60, 30, 10])
    (3600.0, 900.0, 85.71428571428571)
    """
    last = len(width_bps) - 1
    return tuple(
        (BEST_EFFORT if queue == last > 0 else 1.0) * float(width) ** 2
        for queue, width in enumerate(width_bps)
    )


def divide_port(
    port: DividedPort,
    queue_bytes: ArrayLike,
    constraint_seconds: ArrayLike = math.inf,
    *,
    kept_bps: ArrayLike = 0.0,
    needed_bps: ArrayLike = 0.0,
    sure_bps: ArrayLike | None = None,
) -> PortDivision:
    """The widths that minimise the weighted delay of what the queues hold, each within its constraint if it can be.

    Floors come one after the other, as far as there is something left: against starving; `sure_bps`, the part of what
    queues have a right to that is no precaution (without it, all of that); then queue by queue, the largest weights
    first, `needed_bps` and what the constraint takes of those that have one; `kept_bps`, all that queues have a right
    to; and what the others need. Where this does not fit, a queue with a constraint gets what is left, and one without
    has only what it had. Where no queue without a floor to keep holds anything, the rest is divided as if all held the
    same.

    >>> port = DividedPort(100_000_000, starvation_bps=(2_000_000, 10_000_000, 30_000_000), weights=(6, 7, 8))
    >>> divide_port(port, [0, 0, 920_000]).width_bps
    array([ 2000000, 10000000, 88000000])
    >>> divide_port(port, [115_000, 345_000, 920_000]).width_bps
    array([16295097, 30485336, 53219567])
    >>> crowded = divide_port(port, [100_000, 500_000, 920_000], constraint_seconds=[0.15, 0.06, 0.1])
    >>> crowded.cannot_hold, crowded.width_bps
    ((0, 1), array([ 2000000, 24400000, 73600000]))
    """
    count = len(port.weights)
    held = per_row("queue_bytes", queue_bytes, count)
    constraint = per_row("constraint_seconds", constraint_seconds, count, positive=True, infinite=True)
    weights = np.asarray(port.weights, np.float64)
    # Far above any port and below what an integer holds: more than that fits nowhere either.
    constrained = np.where(np.isfinite(constraint), np.clip(8.0 * held / constraint, 1.0, 1e18), 0.0)
    floors = np.asarray(port.starvation_bps, np.int64)
    rights, needed = per_row("kept_bps", kept_bps, count), per_row("needed_bps", needed_bps, count)
    _raise(port, floors, rights if sure_bps is None else per_row("sure_bps", sure_bps, count))
    cannot_hold = _raise(port, floors, np.where(constrained > 0.0, needed, 0.0), constrained)
    _raise(port, floors, rights)
    _raise(port, floors, needed)
    widths = _optimum(float(port.bandwidth_bps), np.sqrt(weights * held), weights, floors)
    whole = np.maximum(np.floor(widths).astype(np.int64), floors)
    # Rounding leaves less than a bit per second and queue; the widest takes it, or gives what is too much.
    whole[np.argmax(whole - floors)] += port.bandwidth_bps - int(whole.sum())
    return PortDivision(whole, floors, 8.0 * held / whole, cannot_hold)


class WidthControl:
    """The widths of one port from period to period; they change only where it matters.

    They do when the new ones take more than a share (`hysteresis`) off the weighted delay, or when one in force is
    below a floor: constraints change, and so do the queues they are to hold for. Needs may be missed by a little.

    >>> control = WidthControl(DividedPort(100, (10, 10), (1.0, 1.0)))
    >>> control.decide([400, 100]).width_bps, control.decide([410, 100]).width_bps
    (array([67, 33]), array([67, 33]))
    >>> control.decide([0, 0]).width_bps, control.decide([100, 400]).width_bps
    (array([67, 33]), array([33, 67]))
    """

    def __init__(
        self,
        port: DividedPort,
        *,
        hysteresis: float = HYSTERESIS,
        rest: int = 1,
        width_bps: Sequence[int] | None = None,
    ) -> None:
        """`width_bps` are those in force to begin with; without them, the first decision is. Widths stay in force for
        `rest` periods but where floors or much delay forbid it."""
        if not 0 <= hysteresis < 1:
            raise ParameterError("hysteresis", f"is {hysteresis:g}; must be 0 or more and below 1")
        self._port = port
        self._hysteresis, self._rest, self._age = hysteresis, rest, rest
        self._width_bps = None if width_bps is None else np.asarray(width_bps, np.int64)

    def decide(
        self,
        queue_bytes: ArrayLike,
        constraint_seconds: ArrayLike = math.inf,
        *,
        kept_bps: ArrayLike = 0.0,
        needed_bps: ArrayLike = 0.0,
        sure_bps: ArrayLike | None = None,
        least_bps: ArrayLike | None = None,
    ) -> PortDivision:
        """The division to be in force from now on; see `divide_port`. Widths in force stay down to `least_bps` of what
        is reserved, a little less than that where nothing is said."""
        best = divide_port(
            self._port,
            queue_bytes,
            constraint_seconds,
            kept_bps=kept_bps,
            needed_bps=needed_bps,
            sure_bps=sure_bps,
        )
        old = self._width_bps
        self._age += 1
        if old is not None:
            rights = per_row("kept_bps", kept_bps, len(old))
            least = (
                (1.0 - NEED_SLACK) * rights
                if least_bps is None
                else per_row("least_bps", least_bps, len(old))
            )
            # What is needed beyond the rights changes with every reading, and may be missed by a little.
            least = np.where(best.floor_bps > np.ceil(rights), (1.0 - NEED_SLACK) * best.floor_bps, least)
            least = np.minimum(least, best.floor_bps)
            strict = divide_port(self._port, queue_bytes, constraint_seconds).floor_bps
            if (old >= np.maximum(least, np.minimum(strict, best.floor_bps))).all():
                held = per_row("queue_bytes", queue_bytes, len(old))
                stays = PortDivision(old, best.floor_bps, 8.0 * held / old, best.cannot_hold)
                worth = self._hysteresis if self._age >= self._rest else URGENT
                if self._cost(best) >= (1.0 - max(worth, self._hysteresis)) * self._cost(stays):
                    return stays
        self._width_bps, self._age = best.width_bps, 0
        return best

    def _cost(self, division: PortDivision) -> float:
        return float(np.dot(self._port.weights, division.delay_seconds))


def _raise(
    port: DividedPort,
    floors: NDArray[np.int64],
    needed_bps: NDArray[np.float64],
    constrained_bps: NDArray[np.float64] | None = None,
) -> tuple[int, ...]:
    """Raise floors, the largest weights first; the queues for which what constraints take did not fit."""
    spare, missing = port.bandwidth_bps - int(floors.sum()), []
    for queue in sorted(range(len(floors)), key=lambda queue: -port.weights[queue]):
        more = max(0, math.ceil(needed_bps[queue]) - int(floors[queue]))
        if constrained_bps is not None and constrained_bps[queue] > 0:
            constrained = math.ceil(constrained_bps[queue]) - int(floors[queue])
            if constrained > spare:
                missing.append(queue)
            more = min(max(more, constrained), spare)
        more = more if more <= spare else 0
        floors[queue] += more
        spare -= more
    return tuple(sorted(missing))


def _optimum(
    bandwidth: float, roots: NDArray[np.float64], weights: NDArray[np.float64], floors: NDArray[np.int64]
) -> NDArray[np.float64]:
    widths = floors.astype(np.float64)
    free = np.ones(len(floors), bool)
    while free.any():
        left = bandwidth - float(widths[~free].sum())
        shares = roots[free] if roots[free].any() else np.sqrt(weights[free])
        wanted = left * shares / shares.sum()
        below = wanted < floors[free]
        if not below.any():
            widths[free] = wanted
            break
        free[np.flatnonzero(free)[below]] = False
    return widths
