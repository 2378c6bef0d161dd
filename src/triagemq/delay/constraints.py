"""Global control: delay requirements become constraints of the switches on their paths (Shi et al., section 6.2).

A constraint is of a switch and a priority, and all paths that cross there share it. `first_constraints` is Algorithm 2,
`adjusted_constraints` is Algorithm 3 by the equations (16) and (17); line 6 of the algorithm prints another product.
The `Administrator` applies both; `Pace` is a publisher that slows down.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from triagemq.errors import ParameterError

RESERVE = 0.1
"""Share of a requirement that is left to what is sent and received outside of switches (1 - lambda of Algorithm 2)."""

Place: TypeAlias = tuple[str, int]
"""A switch and a priority there."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """How late a subscriber's events may be, and the switches they pass with their priority.

    A switch is named by the output port that events leave it by: that is where they wait.
    """

    subscriber: str
    path: tuple[str, ...]
    priority: int
    delay_seconds: float
    topic: str = ""

    def __post_init__(self) -> None:
        if not self.path or len(set(self.path)) != len(self.path):
            raise ParameterError("path", f"of {self.subscriber} must name switches, each once")
        if not 0 < self.delay_seconds < math.inf:
            raise ParameterError(
                "delay_seconds", f"of {self.subscriber} is {self.delay_seconds:g}; must be above 0"
            )

    @property
    def places(self) -> list[Place]:
        return [(switch, self.priority) for switch in self.path]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A requirement that no division of bandwidth can meet; `offer_seconds` is the least that could be."""

    requirement: Requirement
    offer_seconds: float

    def __str__(self) -> str:
        hops = len(self.requirement.path)
        return (
            f"{self.requirement.subscriber}: {self.requirement.delay_seconds:g} s is less than {hops} switches take; "
            f"ask for {self.offer_seconds:g} s or more"
        )


@dataclass(frozen=True, slots=True)
class SlowDown:
    """Asks the publishers of a subscriber to slow down: a switch would have to be quicker than it can be.

    `share` is the part of its smallest delay that the switch would have to take, a measure of how much less.
    """

    requirement: Requirement
    switch: str
    share: float


@dataclass(frozen=True, slots=True)
class Constraints:
    """The longest delay of each priority at each switch, refused requirements and requests to slow down."""

    seconds: Mapping[Place, float]
    refused: tuple[Refusal, ...] = ()
    slow_down: tuple[SlowDown, ...] = ()


def first_constraints(
    requirements: Iterable[Requirement], smallest_seconds: Mapping[str, float], *, reserve: float = RESERVE
) -> Constraints:
    """Constraints to begin with; `smallest_seconds` is what each switch takes at least.

    A path alone gives each switch requirement / hops * (1 - reserve), and none less than it takes at least. Where
    paths cross, the smallest counts. What a path does not get there, its other switches get: constraints rise
    together until a path has used up what it may (15), then those off it rise on.

    >>> tight = Requirement("b", ("s1", "s3"), 0, 0.004)
    >>> loose = Requirement("a", ("s1", "s2"), 0, 0.010)
    >>> smallest = {"s1": 0.001, "s2": 0.001, "s3": 0.001}
    >>> found = first_constraints([loose, tight], smallest, reserve=0.0)
    >>> {switch: round(seconds, 6) for (switch, _), seconds in found.seconds.items()}
    {'s1': 0.002, 's2': 0.008, 's3': 0.002}
    >>> print(first_constraints([Requirement("c", ("s1", "s2"), 0, 0.0015)], smallest).refused[0])
    c: 0.0015 s is less than 2 switches take; ask for 0.002 s or more
    """
    with_least = [(each, _least_seconds(each, smallest_seconds)) for each in requirements]
    refused = tuple(Refusal(each, least) for each, least in with_least if each.delay_seconds < least)
    admitted = [each for each, least in with_least if each.delay_seconds >= least]
    least = {place: smallest_seconds[place[0]] for requirement in admitted for place in requirement.places}
    seconds, rising = dict(least), set(least)
    paths = {
        number: (requirement.places, _budget_seconds(requirement, smallest_seconds, reserve))
        for number, requirement in enumerate(admitted)
    }
    while rising:
        levels = {
            number: _level(places, budget, seconds, rising) for number, (places, budget) in paths.items()
        }
        number = min(levels, key=levels.__getitem__)
        places, _ = paths.pop(number)
        for place in rising.intersection(places):
            seconds[place] = max(least[place], levels[number])
            rising.discard(place)
        # What has nothing left that could rise is settled.
        paths = {number: path for number, path in paths.items() if rising.intersection(path[0])}
    return Constraints(seconds, refused)


def adjusted_constraints(
    requirements: Iterable[Requirement],
    constraints: Constraints,
    measured_seconds: Mapping[Place, float],
    smallest_seconds: Mapping[str, float],
    *,
    reserve: float = RESERVE,
    cannot_hold: Collection[Place] = (),
) -> Constraints:
    """New constraints from the delays that switches report: T' = T * requirement / sum of delays, (16) and (17).

    The sum of T' along a path stays within the requirement less its reserve. Where paths cross, the smallest counts.
    A T' below what the switch takes at least requests the publisher to slow down, and the constraint is that least.
    So does a path that takes longer than required over a switch that `cannot_hold` its constraint: it can give no
    more.

    >>> wish = Requirement("a", ("s1", "s2"), 0, 0.010)
    >>> smallest = {"s1": 0.001, "s2": 0.001}
    >>> first = first_constraints([wish], smallest, reserve=0.0)
    >>> late = adjusted_constraints([wish], first, {("s1", 0): 0.015, ("s2", 0): 0.005}, smallest, reserve=0.0)
    >>> [round(seconds, 6) for seconds in late.seconds.values()], late.slow_down
    ([0.0025, 0.0025], ())
    >>> calm = adjusted_constraints([wish], late, {("s1", 0): 0.001, ("s2", 0): 0.001}, smallest, reserve=0.0)
    >>> [round(seconds, 6) for seconds in calm.seconds.values()]
    [0.005, 0.005]
    """
    factor: dict[Place, float] = {}
    binding: dict[Place, Requirement] = {}
    late: dict[Place, float] = {}
    for requirement in requirements:
        places = requirement.places
        if any(place not in constraints.seconds for place in places):
            continue  # It was refused.
        measured = sum(measured_seconds.get(place, 0.0) for place in places)
        degree = requirement.delay_seconds / measured if measured > 0.0 else math.inf
        for place in places:
            late[place] = min(degree, late.get(place, math.inf))
        budget = _budget_seconds(requirement, smallest_seconds, reserve)
        degree = min(degree, budget / sum(constraints.seconds[place] for place in places))
        for place in places:
            if degree < factor.get(place, math.inf):
                factor[place], binding[place] = degree, requirement
    seconds, slow_down = {}, []
    for place, degree in factor.items():
        least, target = smallest_seconds[place[0]], degree * constraints.seconds[place]
        seconds[place] = max(least, target)
        if target < least * (1.0 - 1e-9):
            slow_down.append(SlowDown(binding[place], place[0], target / least))
        elif place in cannot_hold and late[place] < 1.0:
            slow_down.append(SlowDown(binding[place], place[0], late[place]))
    return Constraints(seconds, constraints.refused, tuple(slow_down))


def _least_seconds(requirement: Requirement, smallest_seconds: Mapping[str, float]) -> float:
    unknown = [switch for switch in requirement.path if switch not in smallest_seconds]
    if unknown:
        raise ParameterError(
            "smallest_seconds", f"lack {', '.join(unknown)} on the path of {requirement.subscriber}"
        )
    return math.fsum(smallest_seconds[switch] for switch in requirement.path)


def _budget_seconds(requirement: Requirement, smallest_seconds: Mapping[str, float], reserve: float) -> float:
    """The delay that switches may have together; where they need it, with the reserve."""
    least = _least_seconds(requirement, smallest_seconds)
    return max(least, (1.0 - reserve) * requirement.delay_seconds)


def _level(places: list[Place], budget: float, seconds: Mapping[Place, float], rising: set[Place]) -> float:
    """How high the rising constraints of a path can go together, those that begin above that level staying there."""
    left = budget - math.fsum(seconds[place] for place in places if place not in rising)
    starts = sorted(seconds[place] for place in places if place in rising)
    for count in range(len(starts), 0, -1):
        level = (left - math.fsum(starts[count:])) / count
        if level >= starts[count - 1]:
            return level
    return starts[0]


class Administrator:
    """Holds requirements along their paths: Algorithm 2 when they change, Algorithm 3 with every report of delays.

    >>> administrator = Administrator(reserve=0.0)
    >>> administrator.require([Requirement("hut", ("n1", "s1"), 0, 0.010)], {"n1": 0.001, "s1": 0.001})
    ()
    >>> administrator.seconds
    {('n1', 0): 0.005, ('s1', 0): 0.005}
    >>> administrator.adjust({("n1", 0): 0.036, ("s1", 0): 0.004})
    ()
    >>> {switch: round(seconds, 5) for (switch, _), seconds in administrator.seconds.items()}
    {'n1': 0.00125, 's1': 0.00125}
    """

    def __init__(self, *, reserve: float = RESERVE) -> None:
        self._reserve = reserve
        self._smallest: Mapping[str, float] = {}
        self._requirements: tuple[Requirement, ...] = ()
        self._constraints = Constraints({})
        self._measured: dict[Place, float] = {}

    @property
    def seconds(self) -> Mapping[Place, float]:
        """The constraints in force."""
        return self._constraints.seconds

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """All requirements that are refused now."""
        return self._constraints.refused

    def require(
        self, requirements: Iterable[Requirement], smallest_seconds: Mapping[str, float]
    ) -> tuple[Refusal, ...]:
        """Take the requirements from now on, and return what is refused anew; paths over unknown switches wait."""
        before = {refusal.requirement for refusal in self.refused}
        self._smallest = smallest_seconds
        self._requirements = tuple(
            each for each in requirements if all(switch in smallest_seconds for switch in each.path)
        )
        self._constraints = first_constraints(self._requirements, smallest_seconds, reserve=self._reserve)
        return tuple(each for each in self.refused if each.requirement not in before)

    def adjust(
        self, measured_seconds: Mapping[Place, float], cannot_hold: Collection[Place] = ()
    ) -> tuple[SlowDown, ...]:
        """Adjust the constraints to the delays that ports report, and return whom to slow down."""
        self._measured.update(measured_seconds)
        refused = {refusal.requirement for refusal in self.refused}
        self._constraints = adjusted_constraints(
            [each for each in self._requirements if each not in refused],
            self._constraints,
            self._measured,
            self._smallest,
            reserve=self._reserve,
            cannot_hold=cannot_hold,
        )
        return self._constraints.slow_down


LEAST_STEP = 0.5
"""The least part of its rate that one request leaves: delays measured in a full queue ask for more than is needed."""

LEAST = 0.05
"""The least part of its own rate that a publisher is slowed down to: it is never silenced."""

HOLD_SECONDS = 5.0
"""How long it stays where it is after the last request: queues empty, and their delays are means over a second."""

RETURN_PER_SECOND = 0.1
"""How much of its own rate it takes back every second after that."""

BEYOND, PROBE_PER_SECOND = 1.1, 0.01
"""From halfway back to the rate of the last request to so much more than that, it takes back no more than this: a
queue that is offered a hundredth too much fills so slowly that requests come before it is full."""


class Pace:
    """The part of its own rate that a publisher publishes at; times are seconds of any clock.

    >>> pace = Pace()
    >>> pace.requested(0.8, at_seconds=1.0)
    >>> pace.requested(0.1, at_seconds=2.0)
    >>> [round(pace.share(seconds), 2) for seconds in (2.0, 7.0, 9.0, 20.0, 60.0)]
    [0.4, 0.4, 0.6, 0.8, 1.0]
    """

    def __init__(self) -> None:
        self._share = 1.0
        self._too_much = 1.0
        self._requested_seconds = -HOLD_SECONDS

    def requested(self, share: float, at_seconds: float) -> None:
        """A request to publish only this part of what it publishes now."""
        now = self.share(at_seconds)
        if at_seconds - self._requested_seconds >= HOLD_SECONDS:
            self._too_much = now
        self._share = max(LEAST, now * min(max(share, LEAST_STEP), 1.0))
        self._requested_seconds = at_seconds

    def share(self, at_seconds: float) -> float:
        """The part of its own rate at a time that is not before the last request."""
        returning = max(0.0, at_seconds - self._requested_seconds - HOLD_SECONDS)
        low = 0.5 * (self._share + self._too_much)
        high = max(low, BEYOND * self._too_much)
        quick, slow = (low - self._share) / RETURN_PER_SECOND, (high - low) / PROBE_PER_SECOND
        probing = min(max(0.0, returning - quick), slow)
        return min(1.0, self._share + RETURN_PER_SECOND * (returning - probing) + PROBE_PER_SECOND * probing)
