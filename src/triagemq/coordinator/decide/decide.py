"""The control loop as a function: what is known now and what was decided before, in; a plan, orders and reasons, out.

No I/O, no clock, no chance: the same question after the same decision gives the same decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from triagemq.coordinator.decide.account import account
from triagemq.coordinator.decide.changes import TableChange
from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.decide.slots import SlotTable, earlier, match_slots, recall
from triagemq.forecast import plan_ahead
from triagemq.plan import Decision, Plan, SetPort
from triagemq.scenario import Integers, Scenario


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Which algorithms plan, and how many classes the data plane has (embedded 8, linux and openflow 7)."""

    flows: str = "greedy"
    priorities: str = "greedy"
    drops: str = "optimal"
    scope: str = "port"
    seed: int = 0
    priority_classes: int = 8

    @classmethod
    def no_triage(cls) -> PlannerSettings:
        """What a plain exchange does: one class, and only full buffers drop."""
        return cls(priorities="none", drops="none", priority_classes=1)

    def classes_for(self, scenario: Scenario) -> int:
        """The classes to plan with: no more than the scenario allows, the data plane has and any port has queues."""
        queues = scenario.ports.queues[scenario.ports.queues > 0]
        return min(
            scenario.planning.priority_classes, self.priority_classes, int(queues.min(initial=2**31 - 1))
        )


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What there is to decide on. `flow_limits` has one entry per subscriber; `why` says what has changed.

    `paced_bps` is how fast ports send that are planned with another bandwidth, which was measured; `measured` says so.
    """

    scenario: Scenario
    flow_limits: Integers | None = None
    why: tuple[str, ...] = ()
    settings: PlannerSettings = PlannerSettings()
    paced_bps: Mapping[str, float] = field(default_factory=dict)
    measured: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """A plan and the orders that carry it out.

    `changed` is False where the orders are those from before; then there is nothing to send. `changed_for` are the
    subscribers whose connections, slots or classes change. `decisions` is what is new and worth recording, bounded in
    number.
    """

    scenario: Scenario
    plan: Plan
    orders: Orders
    decisions: tuple[Decision, ...]
    why: tuple[str, ...]
    changed: bool
    changed_for: Sequence[str]
    table: SlotTable

    @property
    def subscribed_topics(self) -> list[str]:
        """The topics of the scenario that somebody subscribes to, for `RateWatch.listen`."""
        wanted = np.bincount(self.scenario.subscriptions.topic, minlength=len(self.scenario.topics)) > 0
        return [name for name, own in zip(self.scenario.topics.name, wanted.tolist(), strict=True) if own]


def decide(question: Question, previous: Decided | Orders | None = None) -> Decided:
    """Plan for it and say what changes since `previous` (orders alone, after a restart).

    >>> from triagemq.scenario.generators import building
    >>> first = decide(Question(building()))
    >>> first.orders.generation, first.orders.slots["occupant-01"]["building/floor-2/evacuation"]
    (1, 0)
    >>> again = decide(Question(building()), first)
    >>> again.changed, again.orders is first.orders
    (False, True)
    """
    scenario, settings = question.scenario, question.settings
    classes = settings.classes_for(scenario)
    most = scenario.planning.flows_per_subscriber
    limits = np.full(len(scenario.subscribers), most, dtype=np.int32)
    if question.flow_limits is not None:
        limits = np.minimum(limits, question.flow_limits).astype(np.int32)
    orders_before, table_before, plan_before, scenario_before = _before(previous)
    plan = plan_ahead(
        scenario,
        previous=plan_before,
        before=scenario_before,
        **asdict(replace(settings, priority_classes=classes)),
        flow_limits=limits,
    )
    plan = replace(plan, decisions=(*plan.decisions, *question.measured))
    was = earlier(table_before, scenario, int(limits.max(initial=1)))
    change = TableChange(match_slots(scenario, plan, limits, was), was)
    table, orders = change.table, orders_before
    changed_for: Sequence[str] = ()
    ports = _ports(scenario, 1 if settings.priorities == "none" else classes, question.paced_bps)
    if table_before is not None and ports == orders_before.ports and change.is_next_to_nothing:
        # The drop rates that stay in force are those to compare with next time: small steps must not add up unseen.
        table = replace(table, flow_drop=was.flow_drop[table.flow_subscriber, table.flow_slot])
    else:
        orders = change.orders(orders_before, ports).after(orders_before)
        changed_for = change.for_whom()
    return Decided(
        scenario=scenario,
        plan=plan,
        orders=orders,
        decisions=account(scenario.name, question.why, (plan_before, plan), (orders_before, orders), change),
        why=question.why,
        changed=orders is not orders_before,
        changed_for=changed_for,
        table=table,
    )


def _before(
    previous: Decided | Orders | None,
) -> tuple[Orders, SlotTable | None, Plan | None, Scenario | None]:
    match previous:
        case None:
            return Orders(), None, None, None
        case Orders():
            return previous, recall(previous), None, None
        case Decided():
            return previous.orders, previous.table, previous.plan, previous.scenario


def _ports(scenario: Scenario, classes: int, paced_bps: Mapping[str, float]) -> dict[str, SetPort]:
    """The scenario's ports, each with the classes that the data plane keeps apart.

    The number is that of the settings and not of the classes in use: a port is not changed when a plan uses one fewer.
    `paced_bps` is how fast ports send that are planned with another bandwidth.
    """
    ports = scenario.ports
    return {
        name: SetPort(name, paced_bps.get(name, bandwidth_bps), buffer_packets, classes)
        for name, bandwidth_bps, buffer_packets in zip(
            ports.name, ports.bandwidth_bps.tolist(), ports.buffer_packets.tolist(), strict=True
        )
    }
