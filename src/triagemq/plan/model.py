"""The Plan: what has been decided. Frozen, columnar, and tied to the scenario it was made for.

A plan says for each subscription which flow carries it, and for each flow its priority class and drop rate; and of
guaranteed subscriptions which are promised what, hop by hop. It carries the reason for everything a reader would ask
about as `decisions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import PlanError
from triagemq.scenario import Floats, Integers, Scenario, Table
from triagemq.scenario.model import Codes, SomeTable, filled

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
        """Urgency as a share of the largest; what loses nothing by waiting has next to none: its rank alone counts."""
        return self.urgency / max(float(self.urgency.max(initial=0.0)), TINY) + LEAST_PRECEDENCE


@dataclass(frozen=True, slots=True, eq=False)
class Promises(Table):
    """One row per promise, a publication and a guaranteed subscription that match: in order of admission, then those
    refused.

    `bound_seconds` is the proven worst case from the publisher's beginning to transmit to the subscriber's interface,
    `max_latency_seconds` what was requested. Where a promise is refused the bound is 0, and `offer_seconds` the
    smallest max_latency that would be admitted instead, 0 if none would; `missed_publication` is whose flow would then
    be late, -1 if that is not why, and `missed_by_seconds` by how much, 0 if it would have no bound. `first_hop` and
    `hop_count` are its rows in Plan.hops.
    """

    publication: Integers
    subscription: Integers
    admitted: Codes
    bound_seconds: Floats
    max_latency_seconds: Floats
    offer_seconds: Floats
    missed_publication: Integers
    missed_by_seconds: Floats
    first_hop: Integers
    hop_count: Integers


@dataclass(frozen=True, slots=True, eq=False)
class PromisedHops(Table):
    """The links of admitted promises, the publisher's access link (port -1) first; seconds.

    A bound runs from the arrival of a message's last packet at the link to the end of its transmission, and stays
    below the `deadline_seconds` that was fixed at admission. `jitter_seconds` is how much later than the quickest a
    message may come. Promises of one publication that share a port are one flow there: they have the same level and
    bound, and its packets cross the port once.
    """

    port: Integers
    level: Integers
    deadline_seconds: Floats
    bound_seconds: Floats
    jitter_seconds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Limiters(Table):
    """What the publisher's first switch lets through of each promised publication, with the overhead of its packets.

    A message, `burst_bytes`, in the time in which the rate brings one, but for the jitter with which messages may come
    over the access link (docs/background/admission.md).
    """

    publication: Integers
    switch: Integers
    burst_bytes: Floats
    rate_bytes_per_second: Floats
    jitter_seconds: Floats


@dataclass(frozen=True, slots=True)
class Decision:
    """Something decided that is not plain from the columns, and why. The same fields stand in every trace."""

    kind: str
    subject: str
    before: str
    after: str
    reason: str


def table_of(kind: type[SomeTable], rows: Sequence[tuple[float, ...]]) -> SomeTable:
    """A table of rows, each with the values of all columns."""
    names = [column.name for column in fields(kind)]  # type: ignore[arg-type]
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), len(names)).T
    return filled(kind, len(rows), **dict(zip(names, columns, strict=True)))


NO_PROMISES, NO_HOPS, NO_LIMITERS = table_of(Promises, ()), table_of(PromisedHops, ()), table_of(Limiters, ())


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Flows, classes and drop rates for one scenario. `flow` and `rank` have one entry per subscription.

    `flow` is -1 where a promise carries the subscription, and where it was refused one and is worth nothing without:
    then it gets nothing. Promises take the classes from 0 up (levels), the classes of
    flows begin after the last level that any port uses (`level_offset`).

    `latency` holds what the plan supposed that latency does to worth; None where it was made without. `ledger` is what
    admission goes on with, in the process that has made the plan (`admission.Ledger`); it is in no file.
    """

    scenario_fingerprint: str
    made_by: PlannerChoice
    flow: Integers
    rank: Floats
    flows: Flows
    ports: PortLoads
    decisions: tuple[Decision, ...] = ()
    latency: LatencyFactors | None = None
    promises: Promises = NO_PROMISES
    hops: PromisedHops = NO_HOPS
    limiters: Limiters = NO_LIMITERS
    ledger: Any = None

    def require(self, scenario: Scenario) -> None:
        """Refuse to be used with any scenario but the one this plan was made for."""
        if self.scenario_fingerprint != scenario.fingerprint:
            raise PlanError(
                f"this plan was made for another scenario (fingerprint {self.scenario_fingerprint[:12]}, "
                f"here {scenario.fingerprint[:12]}); make a new one with `triage plan`"
            )

    @property
    def promised(self) -> NDArray[np.bool_]:
        """Per subscription, whether promises carry it."""
        found = np.zeros(len(self.flow), dtype=np.bool_)
        found[self.promises.subscription[self.promises.admitted > 0]] = True
        return found

    @property
    def levels(self) -> Integers:
        """Per port of the scenario, how many of its classes promises use."""
        levels = np.zeros(len(self.ports) + 1, dtype=np.int32)
        np.maximum.at(levels, self.hops.port, self.hops.level + np.int32(1))
        return levels[:-1]

    @property
    def level_offset(self) -> int:
        """The first class of utility flows."""
        return int(self.levels.max(initial=0))

    def hops_of(self, promise: int) -> slice:
        """The rows of a promise in `hops`."""
        first = int(self.promises.first_hop[promise])
        return slice(first, first + int(self.promises.hop_count[promise]))

    @property
    def subscription_class(self) -> Integers:
        """The priority class of every subscription; of promised ones the level at their own port."""
        classes = np.append(self.flows.priority_class, np.int32(0))[self.flow]
        admitted = self.promises.admitted > 0
        last = self.promises.first_hop[admitted] + self.promises.hop_count[admitted] - 1
        classes[self.promises.subscription[admitted]] = self.hops.level[last]
        return classes

    @property
    def subscription_keep(self) -> Floats:
        """The share of every subscription's events that is not dropped on purpose."""
        return np.where(self.promised, 1.0, 1.0 - np.append(self.flows.drop_rate, 1.0)[self.flow])
