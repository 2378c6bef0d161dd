"""Control of one port: its bandwidth is divided among its queues (Shi et al., Algorithm 1), period by period.

Minimise sum c_q t_q with w_q t_q = avgQ_q, sum w_q = port, w_q >= floor_q: (8) to (12). Without floors w_q is
proportional to sqrt(c_q avgQ_q), as printed. Where that is below a floor, the queue gets its floor and the others
divide what is left; the multiplier of the sum only grows by that, so that a queue once at its floor stays there, and
what is found is the optimum. The floor is the largest of what keeps a queue from starving, avgQ_q / T_q (t_q <= T_q),
and what the queue needs: the paper takes avgQ as given, but a queue that gets less than what comes grows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.delay.estimators import Estimator
from triagemq.delay.samples import Increments, Sample
from triagemq.errors import ParameterError
from triagemq.theory.validate import per_row

HYSTERESIS = 0.001
"""Queue rates change if that takes a larger share off the weighted delay. It is flat around its minimum: of two equal
queues that cost so much more than they have to, each is 3 % off its best width."""

URGENT = 0.05
"""Queue rates that were changed a moment ago change again if that takes a larger share off the weighted delay."""

BEST_EFFORT = 6 / 7
"""The weight of the last class, in parts of its configured width squared: as the paper's lowest queue
next to the one above it. Where all queues are full it gives a fifteenth of its width. By delay times loss, which goes
with 1 / width, that costs a narrow queue more than the others gain: so it is no more."""

NEED_SLACK = 0.05
"""By how much a width in force may miss what its queue needs: rates that are measured are never the same twice."""


@dataclass(frozen=True, slots=True)
class PortDivision:
    """How a port is divided: whole bits per second that add up to the port, never below the floors.

    `cannot_hold` are the queues whose delay constraint does not fit with those that matter more; the administrator
    has to know. Their floor is what keeps them from starving.
    """

    width_bps: NDArray[np.int64]
    floor_bps: NDArray[np.int64]
    delay_seconds: NDArray[np.float64]
    cannot_hold: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DividedPort:
    """The constants of a port: bandwidth, least queue rates against starvation, and weights of queues.

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
    """Weights for queues with these configured queue rates, class 0 first: where all hold the same, they get these
    back.

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
    guaranteed_bps: ArrayLike = 0.0,
    needed_bps: ArrayLike = 0.0,
    committed_bps: ArrayLike | None = None,
) -> PortDivision:
    """The queue rates that minimise the weighted delay of what the queues hold, each within its constraint if it can
    be.

    Floors are raised one after the other, as far as bandwidth is left: against starvation; to `committed_bps`, the
    guarantee without its precaution (by default all of the guarantee); then queue by queue, the largest weights first,
    to `needed_bps` and the constraint of those that have one; to `guaranteed_bps`; and to what the others need. Where
    this does not fit, a queue with a constraint gets what is left; one without stays as it was. Where no queue holds
    anything, the rest is divided as if all held the same.

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
    rights, needed = (
        per_row("guaranteed_bps", guaranteed_bps, count),
        per_row("needed_bps", needed_bps, count),
    )
    _raise(port, floors, rights if committed_bps is None else per_row("committed_bps", committed_bps, count))
    cannot_hold = _raise(port, floors, np.where(constrained > 0.0, needed, 0.0), constrained)
    _raise(port, floors, rights)
    _raise(port, floors, needed)
    queue_rates = _optimum(float(port.bandwidth_bps), np.sqrt(weights * held), weights, floors)
    whole = np.maximum(np.floor(queue_rates).astype(np.int64), floors)
    # Rounding leaves less than a bit per second and queue; the widest takes it, or gives what is too much.
    whole[np.argmax(whole - floors)] += port.bandwidth_bps - int(whole.sum())
    return PortDivision(whole, floors, 8.0 * held / whole, cannot_hold)


class WidthControl:
    """The queue rates of one port from period to period; they change only where it matters.

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
        """`width_bps` are those in force to begin with; without them, the first decision is. Queue rates stay in force
        for `rest` periods but where floors or much delay forbid it."""
        self._port = port
        self._hysteresis, self._rest, self._age = hysteresis, rest, rest
        self._width_bps = None if width_bps is None else np.asarray(width_bps, np.int64)

    def decide(
        self,
        queue_bytes: ArrayLike,
        constraint_seconds: ArrayLike = math.inf,
        *,
        guaranteed_bps: ArrayLike = 0.0,
        least_bps: ArrayLike | None = None,
        **floors: ArrayLike,
    ) -> PortDivision:
        """The division to be in force from now on; see `divide_port`. Queue rates in force stay down to `least_bps` of
        what is reserved, a little less than that where nothing is said."""
        best = divide_port(
            self._port, queue_bytes, constraint_seconds, guaranteed_bps=guaranteed_bps, **floors
        )
        old = self._width_bps
        self._age += 1
        if old is not None:
            rights = per_row("guaranteed_bps", guaranteed_bps, len(old))
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
    queue_rates = floors.astype(np.float64)
    free = np.ones(len(floors), bool)
    while free.any():
        left = bandwidth - float(queue_rates[~free].sum())
        shares = roots[free] if roots[free].any() else np.sqrt(weights[free])
        shares_bps = left * shares / shares.sum()
        below = shares_bps < floors[free]
        if not below.any():
            queue_rates[free] = shares_bps
            break
        free[np.flatnonzero(free)[below]] = False
    return queue_rates


SPAN = 5
"""Windows that queues and rates are means over, 1 s: what a lightly loaded queue holds at one moment is chance."""

CALM_PACKETS, CALM_SECONDS = 2.0, 0.01
"""A queue without a constraint that holds no more than this in the mean is not congested: it holds the packet that is
being sent, and what chance and reads of different moments make of it. No reason to change queue rates."""

BANDWIDTH_CHANGE = 1e-3
"""Queue rates that are read and add up to another bandwidth than the port's by more than this are those of another
port."""

LOAD = 0.9
"""A queue needs a width at which what comes is this part of it: closer to its width, chance makes queues long."""


@dataclass(frozen=True, slots=True)
class ControlledPort:
    """A port of the discipline `queue_rates` as configured, class 0 first. By default, weights are
    `weights_by_width`."""

    name: str
    width_bps: tuple[int, ...]
    floor_bps: tuple[int, ...]
    weights: tuple[float, ...] = ()

    @property
    def divided(self) -> DividedPort:
        weights = self.weights or weights_by_width(self.width_bps)
        return DividedPort(sum(self.width_bps), self.floor_bps, weights)

    def scaled(self, share: float) -> ControlledPort:
        """The same port with that part of its bandwidth."""
        return replace(
            self, width_bps=_scaled(self.width_bps, share), floor_bps=_scaled(self.floor_bps, share)
        )

    def smallest_seconds(self, packet_bytes: float) -> float:
        """The least delay of a packet of class 0: its transmission at the bandwidth that the floors of others leave."""
        return 8.0 * packet_bytes / (sum(self.width_bps) - sum(self.floor_bps[1:]))


@dataclass(frozen=True, slots=True)
class PortDecision:
    """The decision for a port in a period; `width_bps` is None where the queue rates in force stay.

    `delay_seconds` are those measured, a mean over a second. `cannot_hold` are classes whose constraint does not fit.
    """

    port: str
    width_bps: tuple[int, ...] | None
    delay_seconds: tuple[float, ...]
    cannot_hold: tuple[int, ...]
    reason: str


class PortController:
    """Algorithm 1 of Shi et al. for one port, fed every 200 ms with a sample of each queue, class 0 first.

    What a queue holds is its estimated delay times the width it was read at, (8), a mean over `SPAN` windows. Besides
    its floor and its constraint, a queue has at least what it needs for what comes: up to its configured width all
    classes but the last, then all of them as far as it fits. Without this, a queue that keeps up with what comes would
    hold nothing, get nothing, and be full a second later.

    >>> from triagemq.delay.estimators import make_estimator
    >>> port = ControlledPort("p", (60_000_000, 30_000_000, 10_000_000), (30_000_000, 10_000_000, 2_000_000))
    >>> controller = PortController(port, lambda: make_estimator("idm", "openflow"))
    >>> for n in range(10):  # 10 MB/s for class 0, which has 7.5 MB/s, and nothing for the others.
    ...     came, went = 2_000_000 * n, 1_500_000 * n
    ...     busy = Sample(200_000_000 * n, came, came // 1000, went, went // 1000, 0, controller.width_bps[0])
    ...     idle = [Sample(200_000_000 * n, 0, 0, 0, 0, 0, width) for width in controller.width_bps[1:]]
    ...     decision = controller.feed([busy, *idle])
    ...     if decision.width_bps:
    ...         print(decision.reason)
    queue rates 60, 30, 10 -> 88, 10, 2 Mbit/s: class 0 waits 33.3 ms
    """

    def __init__(
        self,
        port: ControlledPort,
        estimator: Callable[[], Estimator],
        *,
        width_bps: tuple[int, ...] | None = None,
    ) -> None:
        """`width_bps` are the queue rates in force to begin with, if they are others than those configured."""
        in_force = port.width_bps if width_bps is None else width_bps
        self._queues = [_Queue(estimator()) for _ in port.width_bps]
        self._constraints: dict[int, float] = {}
        self._begin(port, in_force)

    def _begin(self, port: ControlledPort, width_bps: tuple[int, ...]) -> None:
        self.port, self.width_bps = port, width_bps
        self._control = WidthControl(port.divided, rest=SPAN, width_bps=width_bps)
        self._rights_bps = divide_port(port.divided, np.ones(len(port.width_bps))).width_bps

    def _follow(self, bandwidth_bps: float) -> None:
        """The port has become faster or slower: queue rates and floors are the same shares of it as before."""
        before = sum(self.port.width_bps)
        if math.isfinite(bandwidth_bps) and abs(bandwidth_bps - before) > BANDWIDTH_CHANGE * before:
            share = bandwidth_bps / before
            self._begin(self.port.scaled(share), _scaled(self.width_bps, share))

    def constrain(self, constraint_seconds: Mapping[int, float]) -> None:
        """Set the longest delays of classes; classes that are not named have none."""
        self._constraints = dict(constraint_seconds)

    def feed(self, samples: Sequence[Sample]) -> PortDecision:
        """Take the next sample of every queue; decide."""
        if len(samples) != len(self._queues):
            raise ParameterError(
                "samples", f"of {self.port.name} are {len(samples)} for {len(self._queues)} queues"
            )
        self._follow(sum(sample.width_bps for sample in samples))
        for queue, sample in zip(self._queues, samples, strict=True):
            queue.feed(sample)
        constraint = np.array([self._constraints.get(number, math.inf) for number in range(len(samples))])
        held = np.array(
            [
                queue.held_bytes(math.isfinite(limit))
                for queue, limit in zip(self._queues, constraint, strict=True)
            ]
        )
        rates = np.array([queue.mean_bps for queue in self._queues])
        needed = rates / LOAD
        most = np.array([1.0 + queue.rate_error for queue in self._queues]) * needed
        division = self._control.decide(
            held,
            constraint,
            guaranteed_bps=np.minimum(most, self._rights_bps),
            needed_bps=np.where(np.isfinite(constraint), rates / self._load(rates), rates),
            committed_bps=np.minimum(rates, self._rights_bps),
            least_bps=np.minimum((1.0 - NEED_SLACK) * needed, self._rights_bps),
        )
        before, self.width_bps = self.width_bps, tuple(division.width_bps.tolist())
        delays = tuple(queue.mean_seconds for queue in self._queues)
        changed = self.width_bps != before
        reason = _reason(before, self.width_bps, delays, held) if changed else ""
        return PortDecision(
            self.port.name, self.width_bps if changed else None, delays, division.cannot_hold, reason
        )

    def _load(self, rates_bps: NDArray[np.float64]) -> float:
        """The load at which queues get their needs: the same for all, and all of it fits if the traffic does."""
        return min(1.0, max(LOAD, float(rates_bps.sum()) / sum(self.port.width_bps)))


class _Queue:
    """The last windows of one queue."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._increments = Increments()
        self._came: deque[tuple[int, int, float]] = deque(maxlen=SPAN)
        self._held: deque[tuple[float, float]] = deque(maxlen=SPAN)

    def feed(self, sample: Sample) -> None:
        self._estimator.feed(sample)
        gained = self._increments.after(sample)
        if gained is not None:
            self._came.append((gained.bytes_in, gained.packets_in, gained.seconds))
            self._held.append(
                (self._estimator.now_seconds, self._estimator.next_seconds * sample.width_bps / 8.0)
            )

    @property
    def mean_bps(self) -> float:
        seconds = sum(seconds for _, _, seconds in self._came)
        return 8.0 * sum(came for came, _, _ in self._came) / seconds if seconds else 0.0

    @property
    def rate_error(self) -> float:
        """By what share more may come than came: two standard errors of it, as of packets that come by chance."""
        packets = sum(packets for _, packets, _ in self._came)
        return 2.0 / math.sqrt(packets) if packets else 0.0

    @property
    def packet_bytes(self) -> float:
        packets = sum(packets for _, packets, _ in self._came)
        return sum(came for came, _, _ in self._came) / max(packets, 1)

    @property
    def mean_seconds(self) -> float:
        return sum(seconds for seconds, _ in self._held) / max(len(self._held), 1)

    def held_bytes(self, constrained: bool) -> float:
        """The mean length of the queue; where there is a constraint, its present length if that is more."""
        mean = sum(held for _, held in self._held) / max(len(self._held), 1)
        if constrained:
            return max(mean, self._held[-1][1] if self._held else 0.0)
        calm = mean <= CALM_PACKETS * self.packet_bytes or self.mean_seconds <= CALM_SECONDS
        return 0.0 if calm else mean


def _scaled(width_bps: Sequence[int], share: float) -> tuple[int, ...]:
    return tuple(max(1, round(share * width)) for width in width_bps)


def _reason(
    before: Sequence[int], after: Sequence[int], delays: Sequence[float], held: NDArray[np.float64]
) -> str:
    most = int(np.argmax(held))
    waits = f"class {most} waits {1e3 * delays[most]:.3g} ms" if held[most] > 0 else "by what comes"

    def listed(queue_rates: Sequence[int]) -> str:
        return ", ".join(f"{width / 1e6:.3g}" for width in queue_rates)

    return f"queue rates {listed(before)} -> {listed(after)} Mbit/s: {waits}"
