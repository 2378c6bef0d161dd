"""Control of a simulated network: the ports with queue rates of a scenario, divided while `simulate` runs.

Requirements are the subscriptions with `max_latency_seconds` that pass such a port; a plan says their class. The plan
is that of the start: where conditions plan anew, requirements keep the class that they began with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.constraints import (
    PROBE_PER_SECOND,
    Administrator,
    Pace,
    Place,
    Refusal,
    Requirement,
    SlowDown,
)
from triagemq.delay.control import SPAN, ControlledPort, PortController, PortDecision
from triagemq.delay.estimators import Estimator, make_estimator
from triagemq.delay.learning.models import DelayModel
from triagemq.delay.learning.training import switch_constants
from triagemq.delay.samples import Sample, check_counters
from triagemq.errors import ParameterError
from triagemq.lab.queue_delay import EVERY_ESTIMATOR, ReadErrors
from triagemq.plan.model import Decision, Plan
from triagemq.scenario import Discipline, Floats, Scenario
from triagemq.scenario.routes import port_hops
from triagemq.simulate import Steering

RECORDED_CHANGE = 0.05
"""Constraints that change by less are in force, but not worth a decision of their own."""


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """How a network is controlled.

    Without `read_errors` counters are exact. `paper_weights` are q + 1, of which 8 is class 0's. Publishers follow
    requests to slow down by `Pace` if they `slow_down`.
    """

    estimator: str = "idm"
    counters: str = "openflow"
    model: DelayModel | None = None
    read_errors: ReadErrors | None = None
    paper_weights: bool = False
    slow_down: bool = True


class SimulatedControl:
    """A Control for `simulate`: make one for every replication."""

    def __init__(self, scenario: Scenario, plan: Plan, settings: ControlSettings, seed: int = 0) -> None:
        self._scenario, self._settings = scenario, settings
        self._has_backlog = "backlog_bytes" in check_counters(settings.counters)
        rows = np.flatnonzero(scenario.ports.discipline == Discipline.QUEUE_RATES).tolist()
        if not rows:
            raise ParameterError(
                "control", "no port has the discipline queue rates; there is nothing to divide"
            )
        self._rows = {scenario.ports.name[row]: row for row in rows}
        self._readers = {
            (row, queue): settings.read_errors.reader((seed, row, queue))
            for row in rows
            for queue in range(len(scenario.ports.queue_rates_bps[row]))
            if settings.read_errors is not None
        }
        packet_bytes = min(
            scenario.mtu_bytes, float(scenario.publications.size_bytes.max()) + scenario.overhead_bytes
        )
        self._controllers = {name: self._controller(row) for name, row in self._rows.items()}
        self._paces = [Pace() for _ in range(len(scenario.publications))]
        self._shares = np.ones(len(self._paces))
        self._recorded: dict[Place, float] = {}
        self._periods = 0
        self._administrator = Administrator()
        smallest = {
            name: each.port.smallest_seconds(packet_bytes) for name, each in self._controllers.items()
        }
        refused = self._administrator.require(requirements(scenario, plan), smallest)
        self._first = [*self._constrain(), *map(_refusal, refused)]
        for each in self._controllers.values():  # Every queue begins empty, with counters at zero.
            each.feed(_at_rest(each.width_bps))

    def sampled(self, seconds: float, queue_samples: Mapping[str, NDArray[Any]]) -> Steering:
        """Decide the queue rates of one period and, every `SPAN` periods, the constraints."""
        decisions, self._first = self._first, []
        samples = self._samples(queue_samples)
        width_bps: dict[int, NDArray[np.float64]] = {}
        delays: dict[Place, float] = {}
        cannot_hold: list[Place] = []
        for name, controller in self._controllers.items():
            before, row = controller.width_bps, self._rows[name]
            decision = controller.feed(samples[row])
            delays |= {(name, queue): delay for queue, delay in enumerate(decision.delay_seconds)}
            cannot_hold += ((name, queue) for queue in decision.cannot_hold)
            if decision.width_bps is not None:
                width_bps[row] = np.array(decision.width_bps, dtype=np.float64)
                decisions.append(_queue_rates_decision(decision, before))
        self._periods += 1
        if self._periods % SPAN == 0:
            requests = self._administrator.adjust(delays, cannot_hold)
            decisions += [*self._constrain(), *self._slow_down(requests, seconds)]
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
        queues = range(len(ports.queue_rates_bps[row]))
        port = ControlledPort(
            ports.name[row],
            queue_rates := tuple(round(width) for width in ports.queue_rates_bps[row].tolist()),
            tuple(map(min, map(math.ceil, ports.floors_bps[row].tolist()), queue_rates)),
            tuple(8.0 - queue for queue in queues) if settings.paper_weights else (),
        )
        known = switch_constants(self._scenario, row)

        def estimator() -> Estimator:
            return make_estimator(
                settings.estimator,
                settings.counters,
                model=settings.model,
                switch=known,
                estimators=EVERY_ESTIMATOR,
            )

        return PortController(port, estimator)

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

    def _constrain(self) -> list[Decision]:
        """Give the controllers the constraints in force; what there is to record of it."""
        seconds, found = self._administrator.seconds, []
        for name, controller in self._controllers.items():
            controller.constrain({queue: each for (port, queue), each in seconds.items() if port == name})
        for place, allowed in seconds.items():
            before = self._recorded.get(place, math.inf)
            if math.isinf(before) or abs(allowed - before) > RECORDED_CHANGE * before:
                self._recorded[place] = allowed
                found.append(
                    Decision(
                        "constraint",
                        f"{place[0]}, class {place[1]}",
                        _milliseconds(before),
                        _milliseconds(allowed),
                        "the administrator divides the requirements along their paths",
                    )
                )
        return found

    def _slow_down(self, requests: Iterable[SlowDown], seconds: float) -> list[Decision]:
        """Slow the publications of each topic down to the smallest share requested."""
        shares: dict[str, float] = {}
        for request in requests:
            topic = request.requirement.topic
            shares[topic] = min(shares.get(topic, 1.0), request.share)
        found = []
        for topic, share in shares.items():
            rows = np.flatnonzero(
                self._scenario.publications.topic == self._scenario.topics.name.index(topic)
            ).tolist()
            before = max(self._paces[row].share(seconds) for row in rows)
            for row in rows:
                self._paces[row].requested(share, seconds)
            after = max(self._paces[row].share(seconds) for row in rows)
            reason = "what is published comes later than required, and its switches cannot be quicker"
            found.append(Decision("slow_down", topic, f"{before:.3g}", f"{after:.3g}", reason))
        return found


def _refusal(refusal: Refusal) -> Decision:
    requirement = refusal.requirement
    offer = _milliseconds(refusal.offer_seconds)
    return Decision(
        "refused",
        f"{requirement.subscriber}, {requirement.topic}",
        _milliseconds(requirement.delay_seconds),
        offer,
        str(refusal),
    )


def requirements(scenario: Scenario, plan: Plan) -> list[Requirement]:
    """Those of subscriptions that say how late events may come, over the ports with queue rates that they pass."""
    ports, subscriptions = scenario.ports, scenario.subscriptions
    hops, level = port_hops(scenario), plan.subscription_class
    found = []
    for row in np.flatnonzero(np.isfinite(subscriptions.max_latency_seconds) & (plan.flow >= 0)).tolist():
        subscriber = int(subscriptions.subscriber[row])
        crossed = [port for port in hops[scenario.subscribers.port[subscriber]].tolist() if port >= 0]
        path = tuple(ports.name[port] for port in crossed if ports.discipline[port] == Discipline.QUEUE_RATES)
        if path:
            found.append(
                Requirement(
                    scenario.subscribers.name[subscriber],
                    path,
                    int(level[row]),
                    float(subscriptions.max_latency_seconds[row]),
                    scenario.topics.name[int(subscriptions.topic[row])],
                )
            )
    return found


def _at_rest(width_bps: tuple[int, ...]) -> list[Sample]:
    return [Sample(0, 0, 0, 0, 0, 0, float(width), 0, 0) for width in width_bps]


def _queue_rates_decision(decision: PortDecision, before: tuple[int, ...]) -> Decision:
    def listed(queue_rates: Iterable[int]) -> str:
        return " ".join(str(width) for width in queue_rates)

    return Decision(
        "queue_rates", decision.port, listed(before), listed(decision.width_bps or before), decision.reason
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms" if math.isfinite(seconds) else ""
