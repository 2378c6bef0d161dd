"""The widths of one port, period by period: samples of its queues in, what is to change out. No clock, no sockets."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.estimators import Estimator
from triagemq.delay.samples import Increments, Sample
from triagemq.delay.widths import (
    NEED_SLACK,
    DividedPort,
    WidthControl,
    divide_port,
    weights_by_width,
)
from triagemq.errors import ParameterError

SPAN = 5
"""Windows that queues and rates are means over, 1 s: what a lightly loaded queue holds at one moment is chance."""

CALM_PACKETS, CALM_SECONDS = 2.0, 0.01
"""A queue without a constraint that holds no more than this in the mean is not congested: it holds the packet that is
being sent, and what chance and reads of different moments make of it. No reason to change widths."""

BANDWIDTH_CHANGE = 1e-3
"""Widths that are read and add up to another bandwidth than the port's by more than this are those of another port."""

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
        weights = self.weights or weights_by_width(self.width_bps)
        return DividedPort(sum(self.width_bps), self.floor_bps, weights)

    def scaled(self, share: float) -> ControlledPort:
        """The same port with that part of its bandwidth."""
        return replace(
            self, width_bps=_scaled(self.width_bps, share), floor_bps=_scaled(self.floor_bps, share)
        )

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
    widths 60, 30, 10 -> 88, 10, 2 Mbit/s: class 0 waits 33.3 ms
    """

    def __init__(
        self,
        port: ControlledPort,
        estimator: Callable[[], Estimator],
        *,
        width_bps: tuple[int, ...] | None = None,
    ) -> None:
        """`width_bps` are the widths in force to begin with, if they are others than those configured."""
        in_force = port.width_bps if width_bps is None else width_bps
        self._queues = [_Queue(estimator()) for _ in port.width_bps]
        self._constraints: dict[int, float] = {}
        self._begin(port, in_force)

    def _begin(self, port: ControlledPort, width_bps: tuple[int, ...]) -> None:
        self.port, self.width_bps = port, width_bps
        self._control = WidthControl(port.divided, rest=SPAN, width_bps=width_bps)
        self._rights_bps = divide_port(port.divided, np.ones(len(port.width_bps))).width_bps

    def _follow(self, bandwidth_bps: float) -> None:
        """The port has become faster or slower: widths and floors are the same shares of it as before."""
        before = sum(self.port.width_bps)
        if math.isfinite(bandwidth_bps) and abs(bandwidth_bps - before) > BANDWIDTH_CHANGE * before:
            share = bandwidth_bps / before
            self._begin(self.port.scaled(share), _scaled(self.width_bps, share))

    def constrain(self, constraint_seconds: Mapping[int, float]) -> None:
        """How long classes may wait here from now on; classes that are not named as long as may be."""
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
            kept_bps=np.minimum(most, self._rights_bps),
            needed_bps=np.where(np.isfinite(constraint), rates / self._load(rates), rates),
            sure_bps=np.minimum(rates, self._rights_bps),
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
        """What comes in parts of what queues need: the same for all of them, and all of it fits if what comes does."""
        return min(1.0, max(LOAD, float(rates_bps.sum()) / sum(self.port.width_bps)))


class _Queue:
    """What is remembered of one queue."""

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
        """What the queue holds: a mean; where there is a constraint, what it holds now if that is more."""
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

    def listed(widths: Sequence[int]) -> str:
        return ", ".join(f"{width / 1e6:.3g}" for width in widths)

    return f"widths {listed(before)} -> {listed(after)} Mbit/s: {waits}"
