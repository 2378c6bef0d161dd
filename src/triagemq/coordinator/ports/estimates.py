"""What counts say of a port's bandwidth and loss: estimates with intervals, and when a planned value has left them.

Tallies add up, so that short windows make long ones: a large change is seen soon, a small one when there is enough to
see it by. No I/O and no clock.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

SURENESS = 4.0
"""Half the width of an interval in standard deviations: one in 16,000 windows misses the truth by chance."""

BAND = 0.2
"""Values within a fifth of the one planned with are near enough, however well they are known: as for rates."""

LEAST_LOSS_CHANGE = 0.01
"""A change of the error rate by less is near enough, too."""

READING_SECONDS = 0.3
"""Counters are that old when they are read, and a packet counts when it has left as a whole."""

LENGTHS, GROUPED = 3, 4
"""Windows have so many lengths, each of so many of the one before: 10 s, 40 s and 160 s."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What a value may be, and what it is most likely."""

    low: float
    value: float
    high: float


def share_interval(successes: float, trials: float, wobble: float = 0.0) -> Interval:
    """A share from counts (Wilson's score interval), wider by a standard deviation of `wobble` in `successes`.

    >>> share_interval(0, 1_000).high < 0.02, share_interval(1_000, 1_000).low > 0.98
    (True, True)
    """
    squared = SURENESS**2
    share = min(max(successes / trials, 0.0), 1.0)
    centre = (share + squared / (2 * trials)) / (1 + squared / trials)
    width = (
        SURENESS
        * math.sqrt(share * (1 - share) / trials + squared / (4 * trials**2))
        / (1 + squared / trials)
    )
    width = math.hypot(width, SURENESS * wobble / trials)
    return Interval(max(centre - width, 0.0), share, min(centre + width, 1.0))


@dataclass(frozen=True, slots=True)
class Drain:
    """What left a port: bytes in some seconds, and at how many looks out of all it had something to send.

    A port that always sends when it has something sends with its bandwidth for the share of time for which it is busy,
    so that bandwidth is what left over that share. The looks sample the share, at moments of chance: what comes every
    second must not be met by every fifth of them. Where busy times are longer than the pauses between looks they do
    better than the interval says.

    >>> Drain(125_000, 10.0, 50, 50).bandwidth_bps().value
    100000.0
    """

    octets: float
    seconds: float
    looks: int
    busy: int

    def __add__(self, other: Drain) -> Drain:
        return Drain(*map(operator.add, astuple(self), astuple(other)))

    def bandwidth_bps(self) -> Interval:
        """Infinite where the port was never seen busy."""
        busy = share_interval(self.busy, self.looks)
        left = 8 * self.octets
        return Interval(
            left / (self.seconds + READING_SECONDS) / busy.high,
            left / self.seconds / busy.value if busy.value > 0 else math.inf,
            left / max(self.seconds - READING_SECONDS, READING_SECONDS) / busy.low
            if busy.low > 0
            else math.inf,
        )

    def side_of(self, planned_bps: float, most_bps: float) -> int:
        """-1 if the port has less than is planned with, 1 if it has more, as far as `most_bps`; 0 if it may have it."""
        found = self.bandwidth_bps()
        if found.high < planned_bps and found.value < (1 - BAND) * planned_bps:
            return -1
        return int(
            min(found.low, most_bps) > planned_bps and min(found.value, most_bps) > (1 + BAND) * planned_bps
        )


@dataclass(frozen=True, slots=True)
class ReportedCopies:
    """Copies of events that left a port, those that their subscribers have reported, and those expected by plan.

    `packets` are what the copies were sent in; `variance` is that of `received` for want of a common clock: sent and
    received are not counted at the same instant.
    """

    sent: float = 0.0
    packets: float = 0.0
    received: float = 0.0
    expected: float = 0.0
    variance: float = 0.0

    def __add__(self, other: ReportedCopies) -> ReportedCopies:
        """Of others in the same window."""
        return ReportedCopies(*map(operator.add, astuple(self), astuple(other)))

    def then(self, later: ReportedCopies) -> ReportedCopies:
        """Of the same in the next window: where one ends the other begins, and that instant no longer matters."""
        return replace(self + later, variance=max(self.variance, later.variance))

    @property
    def planned(self) -> float:
        """The share of copies that was expected to be lost."""
        return 1 - self.expected / self.sent

    def loss(self) -> Interval:
        return share_interval(self.sent - self.received, self.sent, math.sqrt(self.variance))

    def side(self) -> int:
        """1 if more is lost than planned, -1 if less, 0 if it may be as planned or is near it."""
        if self.sent <= 0:
            return 0
        planned, found = self.planned, self.loss()
        if abs(found.value - planned) <= max(LEAST_LOSS_CHANGE, BAND * planned):
            return 0
        return 1 if found.low > planned else -1 if found.high < planned else 0

    @property
    def survival_ratio(self) -> float:
        """By how much more packets come through than was planned; below 1: less."""
        ratio = (1 - self.loss().value) * self.sent / max(self.expected, 1e-9)
        return float(ratio ** (self.sent / max(self.packets, self.sent)))


@dataclass(frozen=True, slots=True)
class Loss:
    """Copies to everyone behind a port; the same without whoever lost most, and without whoever lost least.

    What only one subscriber says is about its own link, or not true; a port's error rate is what the others say, too.
    """

    everyone: ReportedCopies
    without_worst: ReportedCopies
    without_best: ReportedCopies

    def __add__(self, later: Loss) -> Loss:
        return Loss(
            self.everyone.then(later.everyone),
            self.without_worst.then(later.without_worst),
            self.without_best.then(later.without_best),
        )

    def interval(self) -> Interval:
        """Of the share of copies lost."""
        low = self.without_worst.loss().low if self.without_worst.sent > 0 else 0.0
        high = self.without_best.loss().high if self.without_best.sent > 0 else 1.0
        value = self.everyone.loss().value
        return Interval(min(low, value), value, max(high, value))

    def side(self) -> int:
        """1 if more is lost than planned even without the worst, -1 if less even without the best, else 0."""
        return max(self.without_worst.side(), 0) or min(self.without_best.side(), 0)

    @property
    def agreed(self) -> ReportedCopies:
        """Those to plan by where `side` is not 0: what is without the one that says most, and changes least."""
        return self.without_worst if self.side() > 0 else self.without_best


class Summable(Protocol):
    """What two windows have in common with the window that both make."""

    def __add__(self, later: Any, /) -> Any: ...


Counted = TypeVar("Counted", bound=Summable)


class Windows(Generic[Counted]):
    """Windows of several lengths; a value has left its band when two of one length say so one after the other.

    `side` says of a window on which side of the planned value it lies, 0 if neither. Two in a row, because one may
    have been disturbed: by a report that came late, or a machine that was busy.
    """

    def __init__(self, side: Callable[[Counted], int]) -> None:
        self._side = side
        self.shown: Counted | None = None
        """The longest window of late, for people."""
        self.clear()

    def clear(self) -> None:
        """Begin anew, with another planned value."""
        self._last = [0] * LENGTHS
        self._gathered: list[list[Counted]] = [[] for _ in range(LENGTHS)]
        self._shown_level = 0

    def add(self, window: Counted) -> Counted | None:
        """One more window of the shortest length; if the planned value has left its band, the window to plan with.

        That is the later of the two: in the earlier one the value may have been another for a while.
        """
        for level in range(LENGTHS):
            if level >= self._shown_level:
                self.shown, self._shown_level = window, level
            side, before = self._side(window), self._last[level]
            self._last[level] = side
            if side and before == side:
                self.clear()
                return window
            gathered = self._gathered[level]
            gathered.append(window)
            if len(gathered) < GROUPED:
                break
            window = gathered[0]
            for later in gathered[1:]:
                window = window + later
            gathered.clear()
        return None
