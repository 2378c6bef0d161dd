"""The widths of one port, period by period: samples of its queues in, what is to change out. No clock, no sockets."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.estimators import Estimator
from triagemq.delay.increments import Increments
from triagemq.delay.samples import Sample
from triagemq.delay.widths import HYSTERESIS, DividedPort, WidthControl, weights_by_width
from triagemq.errors import ParameterError

SPAN = 5
"""Windows that queues and rates are means over, 1 s: what a lightly loaded queue holds at one moment is chance."""

LOAD = 0.9
"""A queue needs a width at which what comes is this part of it: closer to its width, chance makes queues long."""


@dataclass(frozen=True, slots=True)
class ControlledPort:
    """A port of the discipline `widths` as configured, class 0 first. Without weights, they are `weights_by_width`."""

    name: str
    width_bps: tuple[int, ...]
    floor_bps: tuple[int, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.width_bps) != len(self.floor_bps) or not self.width_bps:
            raise ParameterError(
                "width_bps", f"of {self.name} are {len(self.width_bps)} for {len(self.floor_bps)} floors"
            )

    @property
    def divided(self) -> DividedPort:
        weights = self.weights or weights_by_width(self.width_bps, self.floor_bps)
        return DividedPort(sum(self.width_bps), self.floor_bps, weights)

    def smallest_seconds(self, packet_bytes: float) -> float:
        """What a packet of class 0 takes at least: its transmission at the most that the floors of others leave."""
        return 8.0 * packet_bytes / (sum(self.width_bps) - sum(self.floor_bps[1:]))


@dataclass(frozen=True, slots=True)
class PortDecision:
    """What was decided of a port in a period; `width_bps` is None where the widths in force stay.

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
    its floor and its constraint, a queue is kept at what it needs for what comes: up to its configured width all
    classes but the last, then all of them with what is left. Without this, a queue that keeps up with what comes
    would hold nothing, get nothing, and be full a second later.

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
    widths 60, 30, 10 -> 88, 10, 2 Mbit/s: class 0 waits 33.3 ms
    """

    def __init__(
        self,
        port: ControlledPort,
        estimator: Callable[[], Estimator],
        *,
        hysteresis: float = HYSTERESIS,
        width_bps: tuple[int, ...] | None = None,
    ) -> None:
        """`width_bps` are the widths in force to begin with, if they are others than those configured."""
        in_force = port.width_bps if width_bps is None else width_bps
        self.port = port
        self._control = WidthControl(port.divided, hysteresis=hysteresis, width_bps=in_force)
        self._queues = [_Queue(estimator()) for _ in port.width_bps]
        self._constraints: dict[int, float] = {}
        self._kept_bps = np.array([*port.width_bps[:-1], port.floor_bps[-1]])
        self.width_bps = in_force

    def constrain(self, constraint_seconds: Mapping[int, float]) -> None:
        """How long classes may wait here from now on; classes that are not named as long as may be."""
        self._constraints = dict(constraint_seconds)

    def feed(self, samples: Sequence[Sample]) -> PortDecision:
        """Take the next sample of every queue; decide."""
        if len(samples) != len(self._queues):
            raise ParameterError(
                "samples", f"of {self.port.name} are {len(samples)} for {len(self._queues)} queues"
            )
        for queue, sample in zip(self._queues, samples, strict=True):
            queue.feed(sample)
        held = np.array([queue.mean_bytes for queue in self._queues])
        rates = np.array([queue.mean_bps for queue in self._queues])
        needs = [np.minimum(rates / LOAD, self._kept_bps), rates, rates / LOAD]
        constraint = [self._constraints.get(number, math.inf) for number in range(len(samples))]
        division = self._control.decide(held, constraint, needs)
        before, self.width_bps = self.width_bps, tuple(division.width_bps.tolist())
        delays = tuple(queue.mean_seconds for queue in self._queues)
        changed = self.width_bps != before
        reason = _reason(before, self.width_bps, delays, held) if changed else ""
        return PortDecision(
            self.port.name, self.width_bps if changed else None, delays, division.cannot_hold, reason
        )


class _Queue:
    """What is remembered of one queue."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._increments = Increments()
        self._came: deque[tuple[float, float]] = deque(maxlen=SPAN)
        self._held: deque[tuple[float, float]] = deque(maxlen=SPAN)

    def feed(self, sample: Sample) -> None:
        self._estimator.feed(sample)
        gained = self._increments.after(sample)
        if gained is not None:
            self._came.append((8.0 * gained.bytes_in, gained.seconds))
            self._held.append(
                (self._estimator.now_seconds, self._estimator.next_seconds * sample.width_bps / 8.0)
            )

    @property
    def mean_bps(self) -> float:
        seconds = sum(seconds for _, seconds in self._came)
        return sum(bits for bits, _ in self._came) / seconds if seconds else 0.0

    @property
    def mean_seconds(self) -> float:
        return sum(seconds for seconds, _ in self._held) / max(len(self._held), 1)

    @property
    def mean_bytes(self) -> float:
        return sum(held for _, held in self._held) / max(len(self._held), 1)


def _reason(
    before: Sequence[int], after: Sequence[int], delays: Sequence[float], held: NDArray[np.float64]
) -> str:
    most = int(np.argmax(held))
    waits = f"class {most} waits {1e3 * delays[most]:.3g} ms" if held[most] > 0 else "by what comes"

    def listed(widths: Sequence[int]) -> str:
        return ", ".join(f"{width / 1e6:.3g}" for width in widths)

    return f"widths {listed(before)} -> {listed(after)} Mbit/s: {waits}"
