"""Counts of a port's bandwidth and loss, and when they leave the band around the value that is planned with.

No I/O and no clock.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Generic, Self, TypeVar

DEVIATIONS = 4.0
"""Half the width of an interval in standard deviations."""

BAND = 0.2
"""A value within a fifth of the planned one needs no plan of its own, as for rates."""

LEAST_LOSS_CHANGE = 0.01
"""A change of the error rate by less needs none either."""

DECAY = 0.9
"""The weight of earlier windows in a moving average after one more window."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The values that counts leave possible, and the most likely one."""

    low: float
    value: float
    high: float


def share_interval(successes: float, trials: float, variance: float = 0.0) -> Interval:
    """A share from counts; `variance` is that of `successes` beyond chance.

    >>> share_interval(0, 1_000).high < 0.02, share_interval(1_000, 1_000).low > 0.98
    (True, True)
    """
    share = min(max(successes / trials, 0.0), 1.0)
    # One more trial keeps shares of 0 and 1 in doubt.
    deviation = math.sqrt(share * (1 - share) * trials + 1 + variance) / trials
    return Interval(max(share - DEVIATIONS * deviation, 0.0), share, share + DEVIATIONS * deviation)


class Tally:
    """Counts that add up and fade."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(operator.add, astuple(self), astuple(other)))  # type: ignore[call-overload]

    def scaled(self, factor: float) -> Self:
        return type(self)(*(factor * value for value in astuple(self)))  # type: ignore[call-overload]


AnyTally = TypeVar("AnyTally", bound=Tally)


@dataclass(frozen=True, slots=True)
class Drain(Tally):
    """Bytes that left a port, in how many seconds, and at how many of the looks it had something to send.

    A port that sends whenever it has something uses its bandwidth for the share of time in which it is busy; looks at
    random moments sample that share.

    >>> Drain(125_000, 10.0, 50, 50).bandwidth_bps().value
    100000.0
    """

    octets: float = 0.0
    seconds: float = 0.0
    looks: float = 0.0
    busy: float = 0.0

    def bandwidth_bps(self) -> Interval:
        """Infinite where the port was never seen busy."""
        busy, left_bps = share_interval(self.busy, self.looks), 8 * self.octets / self.seconds
        low, value, high = (
            left_bps / share if share > 0 else math.inf for share in (busy.high, busy.value, busy.low)
        )
        return Interval(low, value, high)

    def side(self, planned_bps: float, most_bps: float) -> int:
        """-1 if the port has less than is planned with, 1 if it has more (up to `most_bps`), else 0."""
        found = self.bandwidth_bps()
        if found.high < planned_bps and found.value < (1 - BAND) * planned_bps:
            return -1
        return int(
            min(found.low, most_bps) > planned_bps and min(found.value, most_bps) > (1 + BAND) * planned_bps
        )


@dataclass(frozen=True, slots=True)
class Copies(Tally):
    """Copies of events that left a port, in how many packets, and how many of them subscribers report.

    `expected` would arrive at the stated error rates. `variance` is that of `received`, because the sender and the
    subscriber do not count at the same instant.
    """

    sent: float = 0.0
    packets: float = 0.0
    received: float = 0.0
    expected: float = 0.0
    variance: float = 0.0

    def loss(self) -> Interval:
        return share_interval(self.sent - self.received, self.sent, self.variance)

    def planned_loss(self, survival: float) -> float:
        """The loss of copies if a packet survives by this ratio more often than stated."""
        return float(1 - self.expected * survival ** (self.packets / self.sent) / self.sent)

    def survival(self) -> float:
        """The ratio by which a packet survives more often than stated."""
        return float((self.received / max(self.expected, 1e-9)) ** (self.sent / max(self.packets, self.sent)))

    def side(self, survival: float) -> int:
        """1 if more is lost than planned, -1 if less, 0 if the plan may be right or is near."""
        if self.sent <= 0:
            return 0
        planned, found = self.planned_loss(survival), self.loss()
        if abs(found.value - planned) <= max(LEAST_LOSS_CHANGE, BAND * planned):
            return 0
        return 1 if found.low > planned else -1 if found.high < planned else 0


class Loss:
    """Loss behind a port by the copies of each reporter.

    No single reporter decides: more is lost only if that holds without the one that lost most, and less only if it
    holds without the one that lost least. `alone` is a reporter that is the only subscriber of its port.
    """

    def __init__(self, reporters: Sequence[Copies], *, alone: bool) -> None:
        ranked = sorted(reporters, key=lambda copies: copies.expected - copies.received)
        self.total = sum(ranked, Copies())
        self.without_worst = self.total if alone else sum(ranked[:-1], Copies())
        self.without_best = self.total if alone else sum(ranked[1:], Copies())

    def interval(self) -> Interval:
        """The share of copies lost."""
        low = self.without_worst.loss().low if self.without_worst.sent > 0 else 0.0
        high = self.without_best.loss().high if self.without_best.sent > 0 else 1.0
        value = self.total.loss().value
        return Interval(min(low, value), value, min(max(high, value), 1.0))

    def side(self, survival: float) -> int:
        return max(self.without_worst.side(survival), 0) or min(self.without_best.side(survival), 0)

    def agreed(self, survival: float) -> Copies:
        """The copies to plan by where `side` is not 0."""
        return self.without_worst if self.side(survival) > 0 else self.without_best


class MovingAverage(Generic[AnyTally]):
    """A tally of the current window, of the last one, and an exponentially weighted sum of all."""

    def __init__(self, nothing: AnyTally) -> None:
        self._nothing = self.current = self.window = self.average = nothing

    def add(self, tally: AnyTally) -> None:
        self.current = self.current + tally

    def drop_window(self) -> None:
        """Forget what the current window has counted."""
        self.current = self._nothing

    def end_window(self) -> None:
        self.window, self.current = self.current, self._nothing
        self.average = self.average.scaled(DECAY) + self.window

    def restart(self) -> None:
        """Forget everything before the last window."""
        self.average = self.window


class TwiceInARow:
    """A value leaves its band when its last window or its average is on the same side of it two times in a row.

    One window may have been disturbed, by a report that came late or a busy machine.
    """

    def __init__(self) -> None:
        self._sides = [0, 0]

    def reset(self) -> None:
        self._sides = [0, 0]

    def find(self, *sides: int) -> int | None:
        """The index of the first side that stands out for the second time, None if there is none."""
        before, self._sides = self._sides, list(sides)
        for index, (side, last) in enumerate(zip(sides, before, strict=True)):
            if side and side == last:
                self.reset()
                return index
        return None
