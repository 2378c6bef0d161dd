"""The control loop as a function: what is known now and what was decided before, in; a plan, orders and reasons, out.

No I/O, no clock, no chance: the same question after the same decision gives the same decision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from triagemq.coordinator.decide.account import account
from triagemq.coordinator.decide.changes import TableChange, TreatmentTable, recall
from triagemq.coordinator.decide.network import USUAL_SIZE_BYTES
from triagemq.coordinator.decide.orders import Orders, UnseenTopics
from triagemq.coordinator.decide.promised import (
    DEFAULT_RANGE,
    MulticastRange,
    moves_in_order,
    promise_orders,
    promised_anew,
    restored,
    staged,
)
from triagemq.plan import Decision, Plan, SetPort, rounds
from triagemq.plan.admission.promises import CONTROL_QUEUES
from triagemq.scenario import Floats, Scenario

MOST_FLOWS = 64
"""Of one subscriber."""

NO_SWITCHES = (
    "the embedded data plane has no switches: what is promised would pass by it, without a level or a limiter; "
    "use linux or openflow"
)


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Which algorithms plan, and how many classes the data plane has (embedded 8, linux and openflow 7).

    `flows_per_subscriber` is for who looks what fewer would be worth: without it each subscription is a flow.
    `no_promises` is why it keeps none, where it does not.
    """

    flows: str = "greedy"
    priorities: str = "greedy"
    drops: str = "optimal"
    scope: str = "port"
    seed: int = 0
    priority_classes: int = 8
    no_promises: str = ""
    flows_per_subscriber: int | None = None

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
    """What there is to decide on. `why` says what has changed.

    `unseen` is what topics without a rate are worth, by subscriber and filter.
    `listening` are the addresses at which subscribers take promised topics by now, and `sources` those that publishers
    send them from.
    `paced_bps` is how fast ports send that are planned with another bandwidth, which was measured; `measured` says so.
    """

    scenario: Scenario
    why: tuple[str, ...] = ()
    settings: PlannerSettings = PlannerSettings()
    paced_bps: Mapping[str, float] = field(default_factory=dict)
    measured: tuple[Decision, ...] = ()
    multicast: MulticastRange = DEFAULT_RANGE
    listening: Mapping[str, Collection[str]] = field(default_factory=dict)
    unseen: Worths = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """A plan and the orders that carry it out, by way of the `stages`, the last of which they are.

    `changed` is False where the orders are those from before; then there is nothing to send. `changed_for` are the
    subscribers whose topics or classes change. `decisions` is what is new and worth recording, bounded in
    number.
    """

    scenario: Scenario
    plan: Plan
    orders: Orders
    stages: tuple[Orders, ...]
    decisions: tuple[Decision, ...]
    why: tuple[str, ...]
    changed: bool
    changed_for: Sequence[str]
    table: TreatmentTable

    @property
    def subscribed_topics(self) -> list[str]:
        """The topics of the scenario that have a subscription, for `RateWatch.listen`."""
        wanted = np.bincount(self.scenario.subscriptions.topic, minlength=len(self.scenario.topics)) > 0
        return [name for name, own in zip(self.scenario.topics.name, wanted.tolist(), strict=True) if own]


def decide(question: Question, previous: Decided | Orders | None = None) -> Decided:
    """Plan for it and say what changes since `previous` (orders alone, after a restart).

    >>> from triagemq.scenario.building import building
    >>> first = decide(Question(building()))
    >>> first.orders.generation, first.orders.topics["occupant-01"]["building/floor-2/evacuation"]
    (1, (0, 0.35...))
    >>> again = decide(Question(building()), first)
    >>> again.changed, again.orders is first.orders
    (False, True)
    """
    settings = question.settings
    scenario = _with_queues(question.scenario, settings)
    classes = settings.classes_for(scenario)
    most = settings.flows_per_subscriber or flows_per_subscriber(scenario)
    orders_before, table_before, plan_before, scenario_before = _before(previous, scenario)
    plan = rounds.plan(
        scenario,
        previous=plan_before,
        before=scenario_before,
        **asdict(replace(settings, priority_classes=classes, flows_per_subscriber=most)),
    )
    plan = replace(plan, decisions=(*plan.decisions, *question.measured))
    if isinstance(previous, Orders):
        # Of the plan before there are promises only: what else it said cannot be compared with.
        kept = (each for each in plan.decisions if each.kind != "replanned")
        plan, compared = replace(plan, decisions=tuple(kept)), None
    else:
        compared = plan_before
    utility_classes = 1 if settings.priorities == "none" else classes
    ports = _ports(scenario, min(_room(scenario, settings), plan.level_offset + utility_classes), question)
    fewest = min((port.classes for port in ports.values()), default=1)
    lowest = min(fewest, plan.level_offset + utility_classes) - 1
    change = TableChange(scenario, plan, table_before, lowest)
    table, orders = change.table, orders_before
    promises = promise_orders(
        scenario,
        plan,
        orders_before,
        question.multicast,
        table.next_number,
        question.listening,
        question.sources,
    )
    table = replace(table, next_number=promises.next_number)
    stages: tuple[Orders, ...] = (orders,)
    news: tuple[Decision, ...] = ()
    changed_for: Sequence[str] = ()
    filters = unseen_topics(scenario, plan, {} if utility_classes == 1 else question.unseen, utility_classes)
    if (
        table_before is not None
        and ports == orders_before.ports
        and change.is_next_to_nothing
        and promises.same_as(orders_before)
        and filters == orders_before.filters
    ):
        # The drop rates that stay in force are those to compare with next time: small steps must not add up unseen.
        table = replace(table, drop_rate=change.drop_before[change.class_after >= 0])
    else:
        orders = replace(
            change.orders(orders_before, ports).after(orders_before),
            copies=promises.copies,
            limiters=promises.limiters,
            promised=promises.promised,
            direct=promises.direct,
            filters=filters,
        )
        moves = moves_in_order(scenario, plan, plan_before, scenario_before, orders_before, orders)
        if moves is None:
            news = (_at_once(scenario.name),)
        stages = staged(orders_before, orders, moves or ())
        orders = stages[-1]
        concerned = promised_anew(orders_before, orders)
        changed_for = [*dict.fromkeys((*change.for_whom(), *concerned))]
    return Decided(
        scenario=scenario,
        plan=plan,
        orders=orders,
        stages=stages,
        decisions=(
            *account(scenario.name, question.why, (compared, plan), (orders_before, orders), change),
            *news,
        ),
        why=question.why,
        changed=orders is not orders_before,
        changed_for=changed_for,
        table=table,
    )


def _before(
    previous: Decided | Orders | None, scenario: Scenario
) -> tuple[Orders, TreatmentTable | None, Plan | None, Scenario | None]:
    match previous:
        case None:
            return Orders(), None, None, None
        case Orders():
            plan = restored(scenario, previous)
            return previous, recall(previous), plan, None if plan is None else scenario
        case Decided():
            return previous.orders, previous.table, previous.plan, previous.scenario


def _room(scenario: Scenario, settings: PlannerSettings) -> int:
    """The classes that data plane and ports have room for, those of promises included."""
    queues = scenario.ports.queues[scenario.ports.queues > 0]
    return min(settings.priority_classes, int(queues.min(initial=2**31 - 1)))


def flows_per_subscriber(scenario: Scenario) -> int:
    """Each subscription is a flow: a drop rate costs no connection. Of very many of one subscriber some share one."""
    return min(int(np.bincount(scenario.subscriptions.subscriber).max(initial=1)), MOST_FLOWS)


def _with_queues(scenario: Scenario, settings: PlannerSettings) -> Scenario:
    """Where promises are asked for, ports have no more queues than the data plane: its classes, and one for control."""
    if not scenario.subscriptions.guaranteed.any():
        return scenario
    ports, most = scenario.ports, settings.priority_classes + CONTROL_QUEUES
    queues = np.where(ports.queues > 0, np.minimum(ports.queues, most), most).astype(ports.queues.dtype)
    return replace(scenario, ports=replace(ports, queues=queues))


def _at_once(name: str) -> Decision:
    return Decision(
        kind="reconfigured_at_once",
        subject=name,
        before="",
        after="",
        reason="no order of changing levels is known that keeps every promise meanwhile; all change in one step",
    )


def _ports(scenario: Scenario, classes: int, question: Question) -> dict[str, SetPort]:
    """The scenario's ports, each with the classes that the data plane keeps apart.

    The number is that of the settings and not of the classes in use: a port is not changed when a plan uses one fewer.
    Ports that are planned with another bandwidth, which was measured, send as fast as is stated (`paced_bps`).
    """
    ports = scenario.ports
    found = {}
    for row, name in enumerate(ports.name):
        widths = tuple(ports.widths_bps[row].tolist())
        stated = SetPort(
            name,
            float(ports.bandwidth_bps[row]),
            float(ports.buffer_packets[row]),
            len(widths) or classes,
            widths,
            bool(ports.borrowing[row]),
            tuple(ports.floors_bps[row].tolist()),
        )
        found[name] = stated.with_bandwidth(question.paced_bps.get(name, stated.bandwidth_bps))
    return found


SUPPOSED_EVENTS_PER_SECOND = 1.0
"""Of a topic that was not seen yet."""

Worths = Mapping[str, Mapping[str, float]]
"""By subscriber and filter, what a topic that it matches is worth if all of it arrives."""


def unseen_topics(
    scenario: Scenario, plan: Plan, worths: Worths, classes: int
) -> dict[str, dict[str, UnseenTopics]]:
    """By subscriber and filter; `classes` are those that utility may use."""
    supposed = SUPPOSED_EVENTS_PER_SECOND * (USUAL_SIZE_BYTES + scenario.overhead_bytes)
    port_of = dict(zip(scenario.subscribers.name, scenario.subscribers.port.tolist(), strict=True))
    by_port: dict[int, set[float]] = {}
    for name, filters in worths.items():
        by_port.setdefault(port_of[name], set()).update(filters.values())
    class_of: dict[tuple[int, float], int] = {}
    for port, several in by_port.items():
        ranks = np.array(sorted(several, reverse=True))
        found = _classes(scenario, plan, port, ranks / supposed, classes)
        class_of |= {(port, worth): found[place] for place, worth in enumerate(ranks.tolist())}
    return {
        name: {
            pattern: UnseenTopics(class_of[port_of[name], worth], worth) for pattern, worth in filters.items()
        }
        for name, filters in worths.items()
        if filters
    }


def _classes(scenario: Scenario, plan: Plan, port: int, ranks: Floats, classes: int) -> list[int]:
    """The class of each rank, the highest first: that of planned subscriptions which rank no higher on average."""
    planned = (scenario.subscribers.port[scenario.subscriptions.subscriber] == port) & (plan.flow >= 0)
    if not planned.any():
        return (plan.level_offset + np.arange(len(ranks)) * classes // max(len(ranks), 1)).tolist()
    level, rank = plan.subscription_class[planned], plan.rank[planned]
    used = np.unique(level)
    means = [float(rank[level == one].mean()) for one in used]
    return [
        int(next((one for one, mean in zip(used, means, strict=True) if mean <= each), used[-1]))
        for each in ranks.tolist()
    ]
