"""Clusters of switches, each with a controller that divides its ports, and the administrator above them.

Clusters are joined at border switches. A path that crosses a border has switches in both clusters; their controllers
know only their own, and the administrator holds the sum to the requirement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from triagemq.delay.constraints import (
    RESERVE,
    Constraints,
    Place,
    Refusal,
    Requirement,
    SlowDown,
    adjusted_constraints,
    first_constraints,
)
from triagemq.delay.control import SPAN, PortController, PortDecision
from triagemq.delay.samples import Sample
from triagemq.errors import ParameterError


@dataclass(frozen=True, slots=True)
class PlaceSeconds:
    """How long a switch, named by its output port, holds or may hold a priority."""

    switch: str
    priority: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ClusterJoined:
    """To the administrator: the switches of a cluster, and what each takes at least."""

    cluster: str
    smallest_seconds: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ClusterDelays:
    """To the administrator, every second: what was measured, and which constraints do not fit beside the others."""

    cluster: str
    measured: tuple[PlaceSeconds, ...]
    cannot_hold: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ClusterConstraints:
    """From the administrator: all constraints that are in force in a cluster from now on."""

    cluster: str
    allowed: tuple[PlaceSeconds, ...]


class ClusterController:
    """Feeds the samples of every port to its controller, and reports after every `SPAN` of them."""

    def __init__(self, name: str, ports: Iterable[PortController]) -> None:
        self.name = name
        self.ports = {controller.port.name: controller for controller in ports}
        self._decisions: dict[str, PortDecision] = {}
        self._periods = 0

    def joined(self, packet_bytes: float) -> ClusterJoined:
        """The first report to the administrator; the largest packet says what a switch takes at least."""
        smallest = ((name, each.port.smallest_seconds(packet_bytes)) for name, each in self.ports.items())
        return ClusterJoined(self.name, tuple(smallest))

    def constrain(self, constraints: ClusterConstraints) -> None:
        """Constraints take the place of those before."""
        by_port: dict[str, dict[int, float]] = {}
        for place in constraints.allowed:
            by_port.setdefault(place.switch, {})[place.priority] = place.seconds
        unknown = [name for name in by_port if name not in self.ports]
        if unknown:
            raise ParameterError("constraints", f"cluster {self.name} has no port {', '.join(unknown)}")
        for name, controller in self.ports.items():
            controller.constrain(by_port.get(name, {}))

    def feed(self, samples: Mapping[str, Sequence[Sample]]) -> tuple[PortDecision, ...]:
        """One period: the samples of each port's queues, class 0 first. Ports that were not read are left alone."""
        decisions = tuple(self.ports[name].feed(read) for name, read in samples.items())
        self._decisions.update((decision.port, decision) for decision in decisions)
        self._periods += 1
        return decisions

    def report(self) -> ClusterDelays | None:
        """The report to the administrator after this period; None in most."""
        if self._periods % SPAN:
            return None
        measured = (
            PlaceSeconds(decision.port, priority, seconds)
            for decision in self._decisions.values()
            for priority, seconds in enumerate(decision.delay_seconds)
        )
        missing = (
            (decision.port, priority)
            for decision in self._decisions.values()
            for priority in decision.cannot_hold
        )
        return ClusterDelays(self.name, tuple(measured), tuple(missing))


@dataclass(frozen=True, slots=True)
class Administered:
    """What is to be sent: constraints to clusters, refusals to subscribers, and requests to those who publish to them.

    Refusals are sent once, requests to slow down as long as they hold.
    """

    constraints: tuple[ClusterConstraints, ...] = ()
    refused: tuple[Refusal, ...] = ()
    slow_down: tuple[SlowDown, ...] = ()


class Administrator:
    """Knows which switches each cluster has, and what is required along which paths.

    >>> administrator = Administrator(reserve=0.0)
    >>> for cluster, switch in (("north", "n1"), ("south", "s1")):
    ...     sent = administrator.joined(ClusterJoined(cluster, ((switch, 0.001),)))
    >>> wish = Requirement("hut", ("n1", "s1"), 0, 0.010)
    >>> for constraints in administrator.require([wish]).constraints:
    ...     print(constraints.cluster, constraints.allowed[0].seconds)
    north 0.005
    south 0.005
    >>> administrator.measured(ClusterDelays("north", (PlaceSeconds("n1", 0, 0.036),), ())).constraints
    ()
    >>> sent = administrator.measured(ClusterDelays("south", (PlaceSeconds("s1", 0, 0.004),), ()))
    >>> [(each.cluster, round(each.allowed[0].seconds, 5)) for each in sent.constraints]
    [('north', 0.00125), ('south', 0.00125)]
    """

    def __init__(self, *, reserve: float = RESERVE) -> None:
        self._reserve = reserve
        self._smallest: dict[str, dict[str, float]] = {}
        self._requirements: tuple[Requirement, ...] = ()
        self._constraints = Constraints({})
        self._measured: dict[Place, float] = {}
        self._cannot_hold: dict[str, tuple[Place, ...]] = {}
        self._heard: set[str] = set()
        self._told: dict[str, ClusterConstraints] = {}

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """All requirements that are refused now."""
        return self._constraints.refused

    def joined(self, cluster: ClusterJoined) -> Administered:
        """A cluster is there, or has other switches than before."""
        self._smallest[cluster.cluster] = dict(cluster.smallest_seconds)
        self._told.pop(cluster.cluster, None)
        return self.require(self._requirements)

    def require(self, requirements: Iterable[Requirement]) -> Administered:
        """These are the requirements from now on; Algorithm 2.

        Those over switches that no cluster has wait for them.
        """
        known, before = self._known_seconds(), {refusal.requirement for refusal in self.refused}
        self._requirements = tuple(requirements)
        reachable = [each for each in self._requirements if all(switch in known for switch in each.path)]
        self._constraints = first_constraints(reachable, known, reserve=self._reserve)
        self._heard.clear()
        news = tuple(each for each in self.refused if each.requirement not in before)
        return Administered(self._changed(), news)

    def measured(self, delays: ClusterDelays) -> Administered:
        """A cluster reports; once all have, or one has again before others did, Algorithm 3."""
        overdue = delays.cluster in self._heard
        answer = self._adjust() if overdue else Administered()
        self._heard.add(delays.cluster)
        self._cannot_hold[delays.cluster] = delays.cannot_hold
        self._measured.update(((place.switch, place.priority), place.seconds) for place in delays.measured)
        return answer if overdue or self._heard < self._smallest.keys() else self._adjust()

    def _adjust(self) -> Administered:
        self._heard.clear()
        refused = {refusal.requirement for refusal in self.refused}
        self._constraints = adjusted_constraints(
            [each for each in self._requirements if each not in refused],
            self._constraints,
            self._measured,
            self._known_seconds(),
            reserve=self._reserve,
            cannot_hold={place for places in self._cannot_hold.values() for place in places},
        )
        return Administered(self._changed(), (), self._constraints.slow_down)

    def _known_seconds(self) -> dict[str, float]:
        return {switch: seconds for own in self._smallest.values() for switch, seconds in own.items()}

    def _changed(self) -> tuple[ClusterConstraints, ...]:
        """The constraints that clusters do not know yet."""
        found = []
        for cluster, own in self._smallest.items():
            allowed = tuple(
                PlaceSeconds(switch, priority, seconds)
                for (switch, priority), seconds in self._constraints.seconds.items()
                if switch in own
            )
            wanted = ClusterConstraints(cluster, allowed)
            if self._told.get(cluster, ClusterConstraints(cluster, ())) != wanted:
                self._told[cluster] = wanted
                found.append(wanted)
        return tuple(found)
