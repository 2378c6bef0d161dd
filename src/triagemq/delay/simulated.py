"""Control of a simulated network: the ports with widths of a scenario, divided while `simulate` runs.

Requirements are the subscriptions with `max_latency_seconds` that pass such a port; a plan says their class. The plan
is that of the start: where conditions plan anew, requirements keep the class that they began with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.administrator import Administered, Administrator, ClusterController
from triagemq.delay.constraints import PROBE_PER_SECOND, Pace, Requirement
from triagemq.delay.control import ControlledPort, PortController, PortDecision
from triagemq.delay.estimators import ESTIMATORS, Estimator, make_estimator
from triagemq.delay.learning.models import DelayModel
from triagemq.delay.learning.training import switch_constants
from triagemq.delay.samples import ReadErrorModel, Sample, check_counters
from triagemq.errors import ParameterError
from triagemq.plan.model import Decision, Plan
from triagemq.scenario import Discipline, Floats, Scenario
from triagemq.scenario.routes import port_hops
from triagemq.simulate import Steering

TOLD_CHANGE = 0.05
"""Constraints that change by less are in force, but not worth a decision of their own."""


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """How a network is controlled.

    Without `read_errors` counters are read without any. `clusters` names the switches of each; those of no cluster
    are one, too. `paper_weights` are q + 1, of which 8 is class 0's. Publishers follow requests to slow down by `Pace`
    if they `slow_down`.
    """

    estimator: str = "idm"
    counters: str = "openflow"
    model: DelayModel | None = None
    read_errors: ReadErrorModel | None = None
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paper_weights: bool = False
    slow_down: bool = True
    estimators: Mapping[str, Callable[[], Estimator]] = field(default_factory=lambda: ESTIMATORS)


class SimulatedControl:
    """A Control for `simulate`: make one for every replication."""

    def __init__(self, scenario: Scenario, plan: Plan, settings: ControlSettings, seed: int = 0) -> None:
        self._scenario, self._settings = scenario, settings
        self._has_backlog = "backlog_bytes" in check_counters(settings.counters)
        rows = np.flatnonzero(scenario.ports.discipline == Discipline.WIDTHS).tolist()
        if not rows:
            raise ParameterError("control", "no port has the discipline widths; there is nothing to divide")
        self._rows = {scenario.ports.name[row]: row for row in rows}
        self._readers = {
            (row, queue): settings.read_errors.reader((seed, row, queue))
            for row in rows
            for queue in range(len(scenario.ports.widths_bps[row]))
            if settings.read_errors is not None
        }
        self._packet_bytes = min(
            scenario.mtu_bytes, float(scenario.publications.size_bytes.max()) + scenario.overhead_bytes
        )
        self._clusters = [
            ClusterController(name, [self._controller(row) for row in own])
            for name, own in _by_cluster(scenario, rows, settings.clusters).items()
        ]
        self._paces = [Pace() for _ in range(len(scenario.publications))]
        self._shares = np.ones(len(self._paces))
        self._told: dict[tuple[str, int], float] = {}
        self._administrator = Administrator()
        for cluster in self._clusters:
            self._administrator.joined(cluster.joined(self._packet_bytes))
        self._first = self._follow(self._administrator.require(requirements(scenario, plan)), 0.0)
        for cluster in self._clusters:  # Everything begins empty, and with counters that show nothing.
            cluster.feed({name: _at_rest(each.width_bps) for name, each in cluster.ports.items()})

    def sampled(self, seconds: float, queue_samples: Mapping[str, NDArray[Any]]) -> Steering:
        """One period of every cluster, and what the administrator has to say to it."""
        decisions, self._first = self._first, []
        samples = self._samples(queue_samples)
        width_bps = {}
        for cluster in self._clusters:
            before = {name: each.width_bps for name, each in cluster.ports.items()}
            for decision in cluster.feed({name: samples[row] for name, row in self._rows_of(cluster)}):
                if decision.width_bps is not None:
                    row = self._rows[decision.port]
                    width_bps[row] = np.array(decision.width_bps, dtype=np.float64)
                    decisions.append(_widths_decision(decision, before[decision.port]))
        for cluster in self._clusters:
            if (report := cluster.report()) is not None:
                decisions += self._follow(self._administrator.measured(report), seconds)
        return Steering(width_bps, self._changed_shares(seconds), decisions)

    def _changed_shares(self, seconds: float) -> Floats | None:
        """What publications publish at, if it has changed by as much as it may in a second."""
        shares = np.array([pace.share(seconds) for pace in self._paces])
        if not self._settings.slow_down or np.abs(shares - self._shares).max() < PROBE_PER_SECOND:
            return None
        self._shares = shares
        return shares

    def _controller(self, row: int) -> PortController:
        ports, settings = self._scenario.ports, self._settings
        queues = range(len(ports.widths_bps[row]))
        port = ControlledPort(
            ports.name[row],
            widths := tuple(round(width) for width in ports.widths_bps[row].tolist()),
            tuple(map(min, map(math.ceil, ports.floors_bps[row].tolist()), widths)),
            tuple(8.0 - queue for queue in queues) if settings.paper_weights else (),
        )
        known = switch_constants(self._scenario, row)

        def estimator() -> Estimator:
            return make_estimator(
                settings.estimator,
                settings.counters,
                model=settings.model,
                switch=known,
                estimators=settings.estimators,
            )

        return PortController(port, estimator)

    def _rows_of(self, cluster: ClusterController) -> Iterable[tuple[str, int]]:
        return ((name, self._rows[name]) for name in cluster.ports)

    def _samples(self, columns: Mapping[str, NDArray[Any]]) -> dict[int, list[Sample]]:
        names = ("sampled_ns", "bytes_in", "packets_in", "bytes_out", "packets_out", "drops", "width_bps")
        backlog = ("backlog_bytes", "backlog_packets") if self._has_backlog else ()
        found: dict[int, list[Sample]] = {}
        values = zip(
            *(columns[name].tolist() for name in ("port_id", "queue", *names, *backlog)), strict=True
        )
        for row, queue, *counters in sorted(values):
            if row in self._rows.values():
                sample = Sample(*counters)
                if (row, queue) in self._readers:
                    sample = self._readers[row, queue](sample)
                found.setdefault(row, []).append(sample)
        return found

    def _follow(self, answer: Administered, seconds: float) -> list[Decision]:
        """Pass on what the administrator says; what there is to record of it."""
        found = []
        for constraints in answer.constraints:
            cluster = next(each for each in self._clusters if each.name == constraints.cluster)
            cluster.constrain(constraints)
            for place in constraints.allowed:
                before = self._told.get((place.switch, place.priority), math.inf)
                if math.isinf(before) or abs(place.seconds - before) > TOLD_CHANGE * before:
                    self._told[place.switch, place.priority] = place.seconds
                    found.append(
                        Decision(
                            "constraint",
                            f"{place.switch}, class {place.priority}",
                            _milliseconds(before),
                            _milliseconds(place.seconds),
                            "the administrator divides the requirements along their paths",
                        )
                    )
        for refusal in answer.refused:
            wanted = refusal.requirement
            subject = f"{wanted.subscriber}, {wanted.topic}"
            offer = _milliseconds(refusal.offer_seconds)
            found.append(
                Decision("refused", subject, _milliseconds(wanted.delay_seconds), offer, str(refusal))
            )
        requests: dict[str, float] = {}
        for request in answer.slow_down:
            topic = request.requirement.topic
            requests[topic] = min(requests.get(topic, 1.0), request.share)
        for topic, share in requests.items():
            found.append(self._slow_down(topic, share, seconds))
        return found

    def _slow_down(self, topic: str, share: float, seconds: float) -> Decision:
        rows = np.flatnonzero(
            self._scenario.publications.topic == self._scenario.topics.name.index(topic)
        ).tolist()
        before = max(self._paces[row].share(seconds) for row in rows)
        for row in rows:
            self._paces[row].requested(share, seconds)
        after = max(self._paces[row].share(seconds) for row in rows)
        reason = "what is published comes later than required, and its switches cannot be quicker"
        return Decision("slow_down", topic, f"{before:.3g}", f"{after:.3g}", reason)


def requirements(scenario: Scenario, plan: Plan) -> list[Requirement]:
    """Those of subscriptions that say how late events may come, over the ports with widths that they pass."""
    ports, wanted = scenario.ports, scenario.subscriptions
    hops, level = port_hops(scenario), plan.subscription_class
    found = []
    for row in np.flatnonzero(np.isfinite(wanted.max_latency_seconds) & (plan.flow >= 0)).tolist():
        subscriber = int(wanted.subscriber[row])
        crossed = [port for port in hops[scenario.subscribers.port[subscriber]].tolist() if port >= 0]
        path = tuple(ports.name[port] for port in crossed if ports.discipline[port] == Discipline.WIDTHS)
        if path:
            found.append(
                Requirement(
                    scenario.subscribers.name[subscriber],
                    path,
                    int(level[row]),
                    float(wanted.max_latency_seconds[row]),
                    scenario.topics.name[int(wanted.topic[row])],
                )
            )
    return found


def _at_rest(width_bps: tuple[int, ...]) -> list[Sample]:
    return [Sample(0, 0, 0, 0, 0, 0, float(width), 0, 0) for width in width_bps]


def _by_cluster(
    scenario: Scenario, rows: list[int], clusters: Mapping[str, tuple[str, ...]]
) -> dict[str, list[int]]:
    """Ports by the cluster of their switch."""
    cluster_of = {switch: name for name, switches in clusters.items() for switch in switches}
    unknown = [switch for switch in cluster_of if switch not in scenario.switches.name]
    if unknown:
        raise ParameterError("clusters", f"there is no switch {', '.join(unknown)}")
    found: dict[str, list[int]] = {}
    for row in rows:
        switch = scenario.switches.name[int(scenario.ports.switch[row])]
        found.setdefault(cluster_of.get(switch, ""), []).append(row)
    return found


def _widths_decision(decision: PortDecision, before: tuple[int, ...]) -> Decision:
    def listed(widths: Iterable[int]) -> str:
        return " ".join(str(width) for width in widths)

    return Decision(
        "widths", decision.port, listed(before), listed(decision.width_bps or before), decision.reason
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms" if math.isfinite(seconds) else ""
