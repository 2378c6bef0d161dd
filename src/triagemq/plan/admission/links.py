"""The promised flows of one link: whether one more fits, in which level, and the smallest deadline it could have.

Deadlines and jitters are fixed at admission, so links are checked one by one (MIDAS V.B). On the access link all flows
of a publisher go in order of arrival; at a port they have levels, with control traffic above and utility below them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats
from triagemq.theory import assign_classes, delay_bounds
from triagemq.theory.worst_case import bounds_of_class, port_flows

Rows = NDArray[np.int64]

MOST_FURTHER_STATES = 40
"""States that are checked, beyond one for each move, before no safe order is taken to exist."""


@dataclass(frozen=True, slots=True)
class LevelStep:
    """One step of a reconfiguration: a publication's flow has another level at a port; -1 is none, new or gone."""

    publication: int
    port: int
    before: int
    after: int


def safe_order(keeps: Callable[[Rows], bool], before: Rows, after: Rows) -> list[int] | None:
    """An order of moving flows from their levels to others in which every state holds; None if none is found.

    Here no two may share a level, so the lower one makes room first:

    >>> safe_order(lambda level: len(set(level.tolist())) == 2, np.array([0, 1]), np.array([1, 2]))
    [1, 0]
    """
    moving = np.flatnonzero(before != after)
    lowest_first = moving[np.lexsort((moving, -before[moving], -after[moving]))].tolist()
    seen: set[tuple[int, ...]] = set()
    most = len(lowest_first) + MOST_FURTHER_STATES

    def search(level: Rows, left: list[int]) -> list[int] | None:
        if not left:
            return []
        for row in left:
            moved = level.copy()
            moved[row] = after[row]
            state = tuple(moved.tolist())
            if state in seen or len(seen) >= most:
                continue
            seen.add(state)
            if keeps(moved):
                rest = search(moved, [each for each in left if each != row])
                if rest is not None:
                    return [row, *rest]
        return None

    return search(before, lowest_first)


NEARLY = 1.0 + 1e-9
"""A deadline is so much above the bound that it is made of."""

LONGEST_SECONDS = 1e6
"""A deadline that is none; but to have no bound at all misses it."""

NARROW, MOST_HALVINGS = 1.05, 2
"""A smaller deadline for which others have to move is searched for to this precision, and so often: it is worth a few
milliseconds, not a wait for everybody who asks."""

MOST_MOVED = 32
"""Where more flows share a port, no flow is moved for an offer."""


@dataclass(frozen=True, slots=True)
class PromiseLink:
    """A transmitter as promises see it. `levels` is what its queues have room for, `in_order` that it has but one.

    `blocking_seconds` is the longest packet of utility traffic, `control_seconds` one of control traffic.
    """

    name: str
    bytes_per_second: float
    levels: int
    blocking_seconds: float
    control_seconds: float
    control_separation_seconds: float
    in_order: bool


class LinkArrival(NamedTuple):
    """A flow as it comes to a link, by when it has to leave, whether a token bucket has let it in, and if so whether it
    goes on behind the link; seconds."""

    transmission: float
    separation: float
    jitter: float
    packet: float
    spread: float
    deadline: float
    bucket: bool
    passing: bool


@dataclass(frozen=True, slots=True, eq=False)
class LinkFlows:
    """The promised flows of a link, by publication; a flow without a level (-1) is yet to get one."""

    publication: Rows
    transmission: Floats
    separation: Floats
    jitter: Floats
    packet: Floats
    spread: Floats
    deadline: Floats
    bucket: NDArray[np.bool_]
    passing: NDArray[np.bool_]
    level: Rows
    bound: Floats

    @classmethod
    def none(cls) -> LinkFlows:
        whole, real = np.empty(0, dtype=np.int64), np.empty(0)
        no = np.empty(0, dtype=np.bool_)
        return cls(whole, real, real, real, real, real, real, no, no, whole, real)

    @property
    def levels(self) -> dict[int, int]:
        """The level of every flow, by publication."""
        return dict(zip(self.publication.tolist(), self.level.tolist(), strict=True))

    def row(self, publication: int) -> int:
        """The row of a publication's flow, -1 if it does not cross this link."""
        found = np.flatnonzero(self.publication == publication)
        return int(found[0]) if found.size else -1

    def with_flow(self, publication: int, arrival: LinkArrival) -> tuple[LinkFlows, int]:
        """The same with one more flow, and its row. A flow that is there already has the sharper of two deadlines and
        the larger of two jitters, and goes on if either does."""
        row = self.row(publication)
        if row < 0:
            more = (publication, *arrival, -1, np.inf)
            columns = [
                np.append(getattr(self, each.name), value)
                for each, value in zip(fields(self), more, strict=True)
            ]
            return LinkFlows(*columns), len(self.publication)
        jitter, deadline, passing = self.jitter.copy(), self.deadline.copy(), self.passing.copy()
        jitter[row] = max(jitter[row], arrival.jitter)
        deadline[row] = min(deadline[row], arrival.deadline)
        passing[row] |= arrival.passing
        return replace(self, jitter=jitter, deadline=deadline, passing=passing), row

    def without(self, row: int) -> LinkFlows:
        """The same without one of the flows."""
        return LinkFlows(*(np.delete(getattr(self, each.name), row) for each in fields(self)))

    def some(self, rows: NDArray[np.bool_] | Rows) -> LinkFlows:
        """Some of the flows."""
        return LinkFlows(*(getattr(self, each.name)[rows] for each in fields(self)))

    @property
    def load(self) -> float:
        return float((self.transmission / self.separation).sum())

    def bounds(self, link: PromiseLink, level: Rows) -> Floats:
        """The bound of every flow if these were their levels."""
        classes = np.append(level, 0 if link.in_order else -1).astype(np.int64)
        arguments = self.with_control(link)
        bounds = delay_bounds(**arguments, classes=classes, lower_priority_blocking=link.blocking_seconds)
        return bounds[:-1]

    def with_control(self, link: PromiseLink) -> dict[str, Any]:
        """What bounds are made of, by the names of arguments: columns with control traffic as the last row."""
        packet, separation = link.control_seconds, link.control_separation_seconds
        return {
            "transmission": np.append(self.transmission, packet),
            "separation": np.append(self.separation, separation),
            "jitter": np.append(self.jitter, 0.0),
            "packet": np.append(self.packet, packet),
            "spread": np.append(self.spread, 0.0),
            "bucket": np.append(self.bucket, False),
            "passing": np.append(self.passing, False),
        }

    def deadline_check(self, link: PromiseLink) -> Callable[[Rows], bool]:
        """Whether every deadline would hold with given levels; which takes less than to know all bounds."""
        flows = port_flows(**self.with_control(link))
        control = np.int64(0 if link.in_order else -1)
        deadline = np.append(self.deadline, np.inf)
        # Most levels of one try are those of another.
        known: dict[tuple[bytes, bytes, float], bool] = {}

        def keeps(level: Rows) -> bool:
            classes = np.append(level, control)
            for each in np.unique(level).tolist():
                members = np.flatnonzero(classes == each)
                longest = float(flows.packet[classes > each].max(initial=link.blocking_seconds))
                higher = np.flatnonzero(classes < each)
                key = members.tobytes(), higher.tobytes(), longest
                if key not in known:
                    enough = deadline[members]
                    found = bounds_of_class(members, higher, longest, flows, "exact", enough)
                    known[key] = bool((found <= enough).all())
                if not known[key]:
                    return False
            return True

        return keeps

    def keeps(self, link: PromiseLink, level: Rows) -> bool:
        """Whether every deadline would hold with these levels."""
        return self.deadline_check(link)(level)


@dataclass(frozen=True, slots=True)
class Missed:
    """Whose flow would miss its deadline, and with what bound; or that levels cannot be changed safely."""

    link: str
    publication: int
    bound_seconds: float
    deadline_seconds: float
    no_safe_order: bool = False


def place(link: PromiseLink, flows: LinkFlows, new: int) -> LinkFlows | Missed:
    """These flows with levels and bounds, of which the one in row `new` has come or wants to be sooner.

    The others stay where they are if the new one keeps its deadline in any of their levels, the lowest first. If not,
    all levels are given anew, as few as needed.
    """
    if link.in_order:
        level = np.zeros(len(flows.level), dtype=np.int64)
        bound = flows.bounds(link, level)
        if (bound <= flows.deadline).all():
            return replace(flows, level=level, bound=bound)
        worst = int(np.argmax(bound / flows.deadline))
        return _missed(link, flows, worst, float(bound[worst]))
    lowest, keeps = int(flows.level.max(initial=-1)), flows.deadline_check(link)
    for tried in range(lowest, -1, -1):
        placed = _placed_in(link, flows, new, tried, keeps)
        if placed is not None:
            return placed
    found = assign_classes(
        **flows.with_control(link),
        deadline=np.append(flows.deadline, np.inf),
        levels=link.levels,
        above=np.arange(len(flows.level) + 1) == len(flows.level),
        lower_priority_blocking=link.blocking_seconds,
    )
    if found.missed is not None and found.bound is not None:
        return _missed(link, flows, found.missed, found.bound)
    level, bound = found.classes[:-1], found.bounds[:-1]
    there = flows.level >= 0
    before = flows.some(there)
    if safe_order(before.deadline_check(link), before.level, level[there]) is not None:
        return replace(flows, level=level, bound=bound)
    # Below all others no flow has to make room.
    below = _placed_in(link, flows, new, lowest + 1, keeps) if lowest + 1 < link.levels else None
    return below or replace(_missed(link, flows, new, float(bound[new])), no_safe_order=True)


def _placed_in(
    link: PromiseLink, flows: LinkFlows, new: int, tried: int, keeps: Callable[[Rows], bool]
) -> LinkFlows | None:
    """The new flow in this level and all others where they are, if that keeps every deadline."""
    level = flows.level.copy()
    level[new] = tried
    return replace(flows, level=level, bound=flows.bounds(link, level)) if keeps(level) else None


def _missed(link: PromiseLink, flows: LinkFlows, row: int, bound: float) -> Missed:
    return Missed(link.name, int(flows.publication[row]), bound, float(flows.deadline[row]))


def least_bound(link: PromiseLink, flows: LinkFlows, arrival: LinkArrival) -> float:
    """What a flow's bound is at least, wherever it is placed: above all other promises, or among all in order."""
    if link.in_order:
        among, row = flows.with_flow(-1, arrival)
        return float(among.bounds(link, np.zeros(len(among.level), dtype=np.int64))[row])
    longest = float(flows.packet.max(initial=link.blocking_seconds))
    alone, _ = LinkFlows.none().with_flow(-1, arrival)
    return float(alone.bounds(replace(link, blocking_seconds=longest), np.zeros(1, dtype=np.int64))[0])


def smallest_deadline(
    link: PromiseLink, flows: LinkFlows, publication: int, arrival: LinkArrival
) -> float | Missed:
    """The smallest deadline with which a flow can be placed: in the highest level that takes it while the others stay
    where they are, or with less if a few tries find how others can move for that."""
    among, row = flows.with_flow(publication, arrival._replace(deadline=LONGEST_SECONDS))
    high = _highest(link, among, row)
    if isinstance(high, Missed) or link.in_order or len(among.level) > MOST_MOVED:
        return high
    others = among.without(row)
    low = least_bound(link, others, arrival) * NEARLY
    tried = low
    for _ in range(MOST_HALVINGS):
        if high <= low * NARROW:
            break
        found = _placed_with(link, flows, publication, arrival, tried)
        if isinstance(found, Missed):
            low = tried
        else:
            least = float(found.bound[row]) * NEARLY
            fits = least < tried and isinstance(
                _placed_with(link, flows, publication, arrival, least), LinkFlows
            )
            high = least if fits else tried
        tried = 0.5 * (low + high)
    return high


def _placed_with(
    link: PromiseLink, flows: LinkFlows, publication: int, arrival: LinkArrival, deadline: float
) -> LinkFlows | Missed:
    among, row = flows.with_flow(publication, arrival._replace(deadline=deadline))
    return place(link, among, row)


def _highest(link: PromiseLink, flows: LinkFlows, new: int) -> float | Missed:
    """A deadline with which a flow can be placed: its bound in the highest level that takes it while others stay; if
    there is none, not much more than it would be with others in other levels."""
    levels = [] if link.in_order else range(min(int(flows.level.max(initial=-1)) + 2, link.levels))
    keeps = flows.deadline_check(link)
    for tried in levels:
        placed = _placed_in(link, flows, new, tried, keeps)
        if placed is not None:
            return float(placed.bound[new]) * NEARLY
    found = place(link, flows, new)
    if isinstance(found, Missed):
        return found
    enough, deadline = float(flows.deadline[new]), flows.deadline.copy()
    deadline[new] = float(found.bound[new]) * NEARLY
    # Who asks for less may be placed otherwise, and perhaps not at all.
    while deadline[new] < enough and isinstance(place(link, replace(flows, deadline=deadline), new), Missed):
        deadline[new] *= 2.0
    return min(float(deadline[new]), enough)
