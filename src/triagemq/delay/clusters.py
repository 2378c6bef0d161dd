"""The controller of a cluster of switches: it divides their ports, and tells the administrator how long they hold what.

Messages between the two are plain frozen dataclasses, so that they may be in one process or in several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
        """What the administrator is told first; the largest packet says what a switch takes at least."""
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
        """What the administrator is told after this period; None in most."""
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
