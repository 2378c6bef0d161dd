"""The Plan: what has been decided. Frozen, columnar, and tied to the scenario it was made for.

A plan says for each subscription which flow carries it, and for each flow its priority class and drop rate. It
carries the reason for everything a reader would ask about as `decisions`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triagemq.errors import PlanError
from triagemq.scenario import Floats, Integers, Scenario, Table

LEAST_GAIN = 0.005
"""What a plan stays for unless another is worth this share more: the forecast itself may be off by as much."""

LEAST_PRECEDENCE = 1e-9
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class PlannerChoice:
    """Which algorithms made a plan, with which settings: enough to make it again."""

    flows: str
    priorities: str
    drops: str
    scope: str
    seed: int
    flows_per_subscriber: int
    priority_classes: int
    rho_tolerance: float


@dataclass(frozen=True, slots=True, eq=False)
class Flows(Table):
    """One row per flow, ordered by subscriber and then by the flow's place in that subscriber's ranking.

    `value` is the sum of the ranks of its subscriptions (PrioDeX eq. 21); `load_bytes_per_second` is what it would
    put on its port without drops.
    """

    subscriber: Integers
    port: Integers
    priority_class: Integers
    drop_rate: Floats
    value: Floats
    load_bytes_per_second: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PortLoads(Table):
    """Per output port of the scenario: its load if nothing is dropped, and its load under the plan."""

    rho_offered: Floats
    rho_planned: Floats


@dataclass(frozen=True, slots=True, eq=False)
class LatencyFactors(Table):
    """What latency does to the worth of every subscription, by an earlier forecast.

    `factor`, from 0 to 1, multiplies its worth; 1 where latency does not matter. `urgency` is how fast that factor
    falls, by the second of latency; 0 where it does not.
    """

    factor: Floats
    urgency: Floats

    @property
    def precedence(self) -> Floats:
        """Urgency beside the largest; what loses nothing by waiting has next to none, and goes by its rank alone."""
        return self.urgency / max(float(self.urgency.max(initial=0.0)), TINY) + LEAST_PRECEDENCE


@dataclass(frozen=True, slots=True)
class Decision:
    """Something decided that is not plain from the columns, and why. The same fields stand in every trace."""

    kind: str
    subject: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Flows, classes and drop rates for one scenario. `flow` and `rank` have one entry per subscription.

    `latency` holds what the plan supposed that latency does to worth; None where it was made without.
    """

    scenario_fingerprint: str
    made_by: PlannerChoice
    flow: Integers
    rank: Floats
    flows: Flows
    ports: PortLoads
    decisions: tuple[Decision, ...] = ()
    latency: LatencyFactors | None = None

    def require(self, scenario: Scenario) -> None:
        """Refuse to be used with any scenario but the one this plan was made for."""
        if self.scenario_fingerprint != scenario.fingerprint:
            raise PlanError(
                f"this plan was made for another scenario (fingerprint {self.scenario_fingerprint[:12]}, "
                f"here {scenario.fingerprint[:12]}); make a new one with `triage plan`"
            )

    @property
    def subscription_class(self) -> Integers:
        """The priority class of every subscription."""
        return self.flows.priority_class[self.flow]

    @property
    def subscription_keep(self) -> Floats:
        """The share of every subscription's events that is not dropped on purpose."""
        return 1.0 - self.flows.drop_rate[self.flow]
