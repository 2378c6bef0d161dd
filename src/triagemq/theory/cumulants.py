"""Mean, variance and third central moment of times: three figures that add up along a path of independent queues."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ByRow:
    """Base of columns that are read and written row by row, all of them together."""

    __slots__ = ()

    def __getitem__(self, rows: Any) -> Self:
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))  # type: ignore[arg-type]

    def __setitem__(self, rows: Any, other: Self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            getattr(self, each.name)[rows] = getattr(other, each.name)


@dataclass(frozen=True, slots=True, eq=False)
class Cumulants(ByRow):
    """Columns over times; infinite where a queue grows without end.

    >>> (Cumulants.constant(np.ones(1)) + Cumulants.exponential(np.full(1, 2.0))).third
    array([16.])
    """

    mean: Floats
    variance: Floats
    third: Floats

    @classmethod
    def constant(cls, seconds: Floats) -> Cumulants:
        return cls(seconds, np.zeros_like(seconds), np.zeros_like(seconds))

    @classmethod
    def exponential(cls, mean: Floats) -> Cumulants:
        """Of an exponential time, which the time in an M/M/1 queue is."""
        square = mean * mean
        return cls(mean, square, 2 * mean * square)

    @classmethod
    def service(cls, mean: Floats, scv: Floats) -> Cumulants:
        """Of a service time with this squared coefficient of variation, as skewed as exponential times are.

        Right for constant and for exponential times, with a constant part or without.
        """
        deviation = mean * np.sqrt(scv)
        variance = deviation * deviation
        return cls(mean, variance, 2 * deviation * variance)

    @classmethod
    def of_moments(cls, first: Floats, second: Floats, third: Floats) -> Cumulants:
        """From the means of a time, of its square and of its cube.

        >>> Cumulants.of_moments(*Cumulants.exponential(np.ones(1)).moments).third
        array([2.])
        """
        known = np.isfinite(third)
        one, two, three = (np.where(known, each, 0.0) for each in (first, second, third))
        return cls(
            first,
            np.where(known, np.maximum(two - one * one, 0.0), first),
            np.where(known, three + one * (2 * one * one - 3 * two), first),
        )

    @property
    def columns(self) -> tuple[Floats, Floats, Floats]:
        return self.mean, self.variance, self.third

    @property
    def moments(self) -> tuple[Floats, Floats, Floats]:
        """The means of the time, of its square and of its cube: what is mixed by weight."""
        with np.errstate(invalid="ignore"):
            square = self.mean * self.mean
            second = self.variance + square
            third = self.third + self.mean * (3 * second - 2 * square)
        return self.mean, second, np.where(np.isinf(self.mean), np.inf, third)

    def __add__(self, other: Cumulants) -> Cumulants:
        return Cumulants(self.mean + other.mean, self.variance + other.variance, self.third + other.third)

    def __sub__(self, part: Cumulants) -> Cumulants:
        """What is left of a time without an independent part of it."""
        return Cumulants(self.mean - part.mean, self.variance - part.variance, self.third - part.third)

    def later(self, seconds: Floats) -> Cumulants:
        """After a constant time."""
        return Cumulants(self.mean + seconds, self.variance, self.third)

    def copy(self) -> Cumulants:
        return Cumulants(self.mean.copy(), self.variance.copy(), self.third.copy())

    def times(self, factor: Floats) -> Cumulants:
        """Of the times multiplied by a factor each."""
        square = factor * factor
        return Cumulants(factor * self.mean, square * self.variance, factor * square * self.third)
