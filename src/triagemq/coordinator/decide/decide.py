"""The control loop as a function: what is known now and what was decided before, in; a plan, orders and reasons, out.

No I/O, no clock, no chance: the same question after the same decision gives the same decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from triagemq.channel.orders import (
    Orders,
    Promised,
    StoredPromise,
    TopicOrders,
    UnseenTopics,
    client_id_of,
)
from triagemq.client.coordinator import LimitedClaim
from triagemq.coordinator.decide.network import USUAL_SIZE_BYTES
from triagemq.coordinator.decide.promised import (
    moves_in_order,
    promised_anew,
    restored,
    staged,
    with_promises,
)
from triagemq.plan import Decision, Plan, rounds
from triagemq.plan.admission.promises import CONTROL_QUEUES
from triagemq.plan.dataplane import CopyTerms, SetFlow, SetPort
from triagemq.scenario import Floats, Scenario

LEAST_DROP_CHANGE = 0.005
"""Drop rates that change by less, with all else as before, stay as they are (hysteresis) and have no row."""

MOST_ROWS = 20
"""Topics, or else subscribers, or ports, that one decision names; the others are counted."""

MOST_FLOWS = 64
"""Of one subscriber."""

NO_SWITCHES = (
    "the embedded data plane has no switches: what is promised would pass by it, without a level or a limiter; "
    "use linux or openflow"
)


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Which algorithms plan, and how many classes the data plane has (embedded 8, linux and openflow 7).

    `flows_per_subscriber` shows what fewer flows would be worth: without it each subscription is a flow.
    `no_promises` is why it makes none, where it does not.
    """

    flows: str = "greedy"
    priorities: str = "greedy"
    drops: str = "optimal"
    scope: str = "port"
    seed: int = 0
    priority_classes: Annotated[int, Field(ge=1, le=256)] = 8
    no_promises: str = ""
    flows_per_subscriber: int | None = None

    @classmethod
    def no_triage(cls) -> PlannerSettings:
        """What a plain exchange does: one class, and only full buffers drop."""
        return cls(priorities="none", drops="none", priority_classes=1)

    def classes_for(self, scenario: Scenario) -> int:
        """The classes to plan with: no more than the scenario allows, the data plane has and any port has queues."""
        return min(scenario.planning.priority_classes, _room(scenario, self))


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What there is to decide on. `why` says what has changed.

    `unseen` is what topics without a rate are worth, and `terms` are what gateways keep, by subscriber and filter.
    `listening` are the addresses at which subscribers take promised topics by now, and `sources` those that publishers
    send them from.
    `paced_bps` is how fast ports send that are planned with another bandwidth, which was measured; `measured` says so.
    """

    scenario: Scenario
    why: tuple[str, ...] = ()
    settings: PlannerSettings = PlannerSettings()
    paced_bps: Mapping[str, float] = field(default_factory=dict)
    measured: tuple[Decision, ...] = ()
    listening: Mapping[str, Collection[str]] = field(default_factory=dict)
    unseen: Worths = field(default_factory=dict)
    terms: Mapping[str, Mapping[str, CopyTerms]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """A plan and the orders that carry it out, through the `stages`, the last of which they are.

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
    next_number: int
    limited: Mapping[str, tuple[LimitedClaim, ...]] = field(default_factory=dict)
    """By subscriber, which of its claims the policy limits."""

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
    orders_before, plan_before, scenario_before, next_number = _before(previous, scenario)
    plan = rounds.plan(
        scenario,
        previous=plan_before,
        before=scenario_before,
        **asdict(replace(settings, priority_classes=classes, flows_per_subscriber=most)),
    )
    plan = replace(plan, decisions=(*plan.decisions, *question.measured))
    if isinstance(previous, Orders):
        # Of the plan before there are promises only: what else it said cannot be compared with.
        comparable = (each for each in plan.decisions if each.kind != "replanned")
        plan, compared = replace(plan, decisions=tuple(comparable)), None
    else:
        compared = plan_before
    utility_classes = 1 if settings.priorities == "none" else classes
    ports = _ports(scenario, min(_room(scenario, settings), plan.level_offset + utility_classes), question)
    fewest = min((port.classes for port in ports.values()), default=1)
    lowest = min(fewest, plan.level_offset + utility_classes) - 1
    flows, next_number = planned_flows(scenario, lowest, orders_before, next_number)
    promising, next_number = with_promises(
        orders_before, scenario, plan, next_number, question.listening, question.sources
    )
    filters = unseen_topics(scenario, plan, {} if utility_classes == 1 else question.unseen, utility_classes)
    orders = replace(promising, ports=ports, filters=filters, flows=flows, terms=question.terms)
    decided = previous if isinstance(previous, Decided) else None
    change = TopicChange(orders_before.topics, planned_topics(scenario, plan, orders_before, decided))
    news: tuple[Decision, ...] = ()
    stages: tuple[Orders, ...] = (orders_before,)
    changed_for: Sequence[str] = ()
    is_unchanged = orders == orders_before and change.is_next_to_nothing
    if is_unchanged:
        # The drop rates that stay in force are those to compare with next time: small steps must not add up unseen.
        orders = orders_before
    else:
        orders = replace(orders, generation=orders_before.generation + 1, topics=change.after)
        moves = moves_in_order(scenario, plan, plan_before, scenario_before, orders_before, orders)
        if moves is None:
            reason = "no order of changing levels is known that keeps every promise meanwhile; all change in one step"
            news = (Decision("reconfigured_at_once", scenario.name, "", "", reason),)
        stages = staged(orders_before, orders, moves or ())
        orders = stages[-1]
        changed_for = [*dict.fromkeys((*change.concerned, *promised_anew(orders_before, orders)))]
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
        changed=not is_unchanged,
        changed_for=changed_for,
        next_number=next_number,
    )


def _before(
    previous: Decided | Orders | None, scenario: Scenario
) -> tuple[Orders, Plan | None, Scenario | None, int]:
    """Orders, plan and scenario before, and the number of the next new flow."""
    if isinstance(previous, Decided):
        return previous.orders, previous.plan, previous.scenario, previous.next_number
    orders = previous or Orders()
    plan = restored(scenario, orders)
    numbers = [flow.flow_id for flow in orders.flows.values()]
    numbers += [copy.flow_id for copy in orders.copies.values()]
    return orders, plan, None if plan is None else scenario, 1 + max(numbers, default=-1)


def _room(scenario: Scenario, settings: PlannerSettings) -> int:
    """The classes that data plane and ports have room for, those of promises included."""
    queues = scenario.ports.queues[scenario.ports.queues > 0]
    return min(settings.priority_classes, int(queues.min(initial=2**31 - 1)))


def flows_per_subscriber(scenario: Scenario) -> int:
    """Each subscription is a flow: a drop rate costs no connection. Of very many of one subscriber some share one."""
    return min(int(np.bincount(scenario.subscriptions.subscriber).max(initial=1)), MOST_FLOWS)


def _with_queues(scenario: Scenario, settings: PlannerSettings) -> Scenario:
    """Where promises are requested, ports have no more queues than the data plane: its classes, and one for control."""
    if not scenario.subscriptions.guaranteed.any():
        return scenario
    ports, most = scenario.ports, settings.priority_classes + CONTROL_QUEUES
    queues = np.where(ports.queues > 0, np.minimum(ports.queues, most), most).astype(ports.queues.dtype)
    return replace(scenario, ports=replace(ports, queues=queues))


def _ports(scenario: Scenario, classes: int, question: Question) -> dict[str, SetPort]:
    """The scenario's ports, each with the classes that the data plane keeps apart.

    The number is that of the settings and not of the classes in use: a port is not changed when a plan uses one fewer.
    Ports that are planned with another bandwidth, which was measured, send as fast as is stated (`paced_bps`).
    """
    ports = scenario.ports
    found = {}
    for row, name in enumerate(ports.name):
        queue_rates = tuple(ports.queue_rates_bps[row].tolist())
        stated = SetPort(
            name,
            float(ports.bandwidth_bps[row]),
            float(ports.buffer_packets[row]),
            len(queue_rates) or classes,
            queue_rates,
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


# What a plan changes in the orders before it, and the reasons for an operator to read.


def planned_topics(
    scenario: Scenario, plan: Plan, before: Orders, previous: Decided | None = None
) -> dict[str, TopicOrders]:
    """By subscriber what no promise carries; the same objects as before where nothing is different."""
    wanted, people, names = scenario.subscriptions, scenario.subscribers.name, scenario.topics.name
    alike = _treated_alike(scenario, plan, previous)
    level, drop_rate = _treatments(plan)
    rows = np.flatnonzero((level >= 0) & ~alike[wanted.subscriber])
    topics = (names[topic] for topic in wanted.topic[rows].tolist())
    treatments = zip(topics, zip(level[rows].tolist(), drop_rate[rows].tolist(), strict=True), strict=True)
    counts = np.bincount(wanted.subscriber[rows], minlength=len(people)).tolist()
    found: dict[str, TopicOrders] = {}
    for name, count, is_alike in zip(people, counts, alike.tolist(), strict=True):
        if is_alike:
            found[name] = before.topics[name]
            continue
        planned, known = dict(islice(treatments, count)), before.topics.get(name)
        found[name] = known if known == planned and known is not None else planned
    return found


def _treatments(plan: Plan) -> tuple[NDArray[Any], NDArray[Any]]:
    """Class and drop rate of each subscription; -1 and 0 of what is promised."""
    return np.append(plan.flows.priority_class, -1)[plan.flow], np.append(plan.flows.drop_rate, 0.0)[
        plan.flow
    ]


def _treated_alike(scenario: Scenario, plan: Plan, previous: Decided | None) -> NDArray[np.bool_]:
    """By subscriber, whether the plan says of all its subscriptions what the previous one said.

    Columns are compared: a table of all subscriptions in Python takes a fifth of the time of a large plan.
    """
    wanted, people = scenario.subscriptions, scenario.subscribers.name
    alike = np.zeros(len(people), np.bool_)
    if previous is None:
        return alike
    before = previous.scenario
    if (before.subscribers.name, before.topics.name) == (people, scenario.topics.name):
        owners = wanted.subscriber, before.subscriptions.subscriber
        alike = np.equal(*(np.bincount(each, minlength=len(people)) for each in owners))
        # Rows are in the order of subscribers: those of subscribers with as many as before are in the same places.
        rows, rows_before = (np.flatnonzero(alike[each]) for each in owners)
        columns: list[tuple[NDArray[Any], NDArray[Any]]] = [
            (wanted.topic, before.subscriptions.topic),
            *zip(_treatments(plan), _treatments(previous.plan), strict=True),
        ]
        for now, then in columns:
            alike[wanted.subscriber[rows[now[rows] != then[rows_before]]]] = False
    return alike


def planned_flows(
    scenario: Scenario, lowest_class: int, before: Orders, next_number: int
) -> tuple[dict[str, SetFlow[str]], int]:
    """The flow of each subscriber, which has the same number for as long as it is there; and the next free number."""
    ports = [scenario.ports.name[port] for port in scenario.subscribers.port.tolist()]
    flows: dict[str, SetFlow[str]] = {}
    for name, port in zip(scenario.subscribers.name, ports, strict=True):
        client_id = client_id_of(name)
        known = before.flows.get(client_id)
        if known is None or (known.port, known.priority_class, known.drop_rate) != (port, lowest_class, 0.0):
            number = next_number if known is None else known.flow_id
            next_number += known is None
            known = SetFlow(client_id, port, number, lowest_class, 0.0)
        flows[client_id] = known
    return flows, next_number


class TopicChange:
    """How subscriptions are treated after a plan, next to how they were before.

    `concerned` are the subscribers with other topics or classes. Drop rates do not count: with every client that comes
    or goes, all may change a little, and no client has to do anything about it.
    """

    def __init__(self, before: Mapping[str, TopicOrders], after: Mapping[str, TopicOrders]) -> None:
        self.before, self.after = before, after
        self.gone = before.keys() - after.keys()
        self.concerned: list[str] = []
        # By subscriber the topics with another class or a visibly different drop rate.
        self.changed: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        for name, planned in after.items():
            if (known := before.get(name)) is not planned:
                self._compare(name, known, planned)

    def _compare(self, name: str, known: TopicOrders | None, planned: TopicOrders) -> None:
        counts: Counter[str] = Counter()
        changed = []
        known_topics = known or {}
        for topic, (level, drop_rate) in planned.items():
            if (was := known_topics.get(topic)) is None:
                counts["subscriptions new"] += 1
                continue
            is_rated = abs(drop_rate - was[1]) >= LEAST_DROP_CHANGE
            if level != was[0]:
                counts["to a better class" if level < was[0] else "to a worse class"] += 1
            counts["with another drop rate"] += is_rated
            if is_rated or level != was[0]:
                changed.append(topic)
        if changed:
            self.changed[name] = changed
        is_reclassed = counts["to a better class"] or counts["to a worse class"]
        if known is None or known.keys() != planned.keys() or is_reclassed:
            self.concerned.append(name)
        counts["subscribers join"] += known is None
        self.counts += counts

    @property
    def is_next_to_nothing(self) -> bool:
        """Whether nothing but drop rates changes, and those by next to nothing."""
        return not self.gone and not self.concerned and not self.changed

    def summary(self) -> str:
        """How many subscriptions the plan treats differently."""
        counts = self.counts + Counter({"subscribers leave": len(self.gone)})
        words = [f"{count} {what}" for what, count in sorted(counts.items())]
        return ", ".join(words) or "no subscription is treated differently"

    def decisions(self, reason: str) -> list[Decision]:
        """A row for each changed subscription if they are few, else for each subscriber if those are."""
        if sum(map(len, self.changed.values())) <= MOST_ROWS:
            return [
                self._row(f"{name} {topic}", name, [topic], "", reason)
                for name, topics in self.changed.items()
                for topic in topics
            ]
        if len(self.changed) > MOST_ROWS:
            return []
        return [
            self._row(name, name, topics, "mean ", f"{len(topics)} topics: {reason}")
            for name, topics in self.changed.items()
        ]

    def _row(self, subject: str, name: str, topics: Sequence[str], of: str, reason: str) -> Decision:
        before, after = (
            np.mean([orders[name][topic] for topic in topics], axis=0) for orders in (self.before, self.after)
        )
        before_words, after_words = (
            f"{of}class {each[0]:.3g}, {of}drop {each[1]:.4g}" for each in (before, after)
        )
        return Decision("treated_differently", subject, before_words, after_words, reason)


def account(
    name: str,
    why: Sequence[str],
    plans: tuple[Plan | None, Plan],
    orders: tuple[Orders, Orders],
    change: TopicChange,
) -> tuple[Decision, ...]:
    """The rows of one decision about the exchange `name`; plans and orders are those before and after."""
    reason = "; ".join(why) or "requested"
    before, after = orders
    ports = _port_news(*plans)
    if before is after:
        return (Decision("plan_kept", name, _generation(before), _generation(before), reason), *ports)
    words = f"{reason}: {change.summary()}"
    replanned = Decision("replanned", name, _generation(before), _generation(after), words)
    promises = _promise_news(before.promised, after.promised)
    return (replanned, *ports, *promises, *change.decisions(reason))


def bounded(news: Sequence[Decision], kind: str, subject: str, words: str) -> list[Decision]:
    """The first of many, and how many more there are."""
    if len(news) <= MOST_ROWS:
        return [*news]
    return [*news[:MOST_ROWS], Decision(kind, subject, "", "", f"{len(news) - MOST_ROWS} {words}")]


def _port_news(before: Plan | None, after: Plan) -> list[Decision]:
    """The decisions of the plan itself that are not those of the plan before."""
    known = set() if before is None else set(before.decisions)
    kinds = {decision.kind for decision in known}
    # What the forecasts gained has other figures each time; `explain` has them.
    news = [
        decision
        for decision in after.decisions
        if decision not in known and (decision.kind != "planned_by_forecast" or decision.kind not in kinds)
    ]
    if before is not None:
        overloaded = {each.subject for each in after.decisions if each.kind == "port_overloaded"}
        news += [
            Decision("port_relieved", each.subject, each.after, "all it is offered", "everything fits again")
            for each in before.decisions
            if each.kind == "port_overloaded" and each.subject not in overloaded
        ]
    return bounded(news, "more_ports", "all ports", "more decisions about ports are in the plan")


def _promise_news(before: Promised, after: Promised) -> list[Decision]:
    """What is admitted, what is promised otherwise than before, and what is promised no more."""
    news = [
        Decision(
            "admitted",
            f"{new.subscriber} {new.topic}",
            f"requested {new.max_latency_seconds:.6g} s"
            if old is None
            else f"bound {old.bound_seconds:.4g} s",
            f"bound {new.bound_seconds:.4g} s",
            f"proven from {new.publisher} over {', '.join(hop.port or 'its access link' for hop in new.hops)}; "
            f"{new.max_latency_seconds - new.bound_seconds:.4g} s to spare",
        )
        for name, new in after.promises.items()
        if (old := before.promises.get(name)) is None or _terms(old) != _terms(new)
    ]
    news += [
        Decision(
            "released",
            f"{old.subscriber} {old.topic}",
            f"bound {old.bound_seconds:.4g} s",
            "no promise",
            f"what {old.publisher} publishes is not requested with a promise any more, or not admitted",
        )
        for name, old in before.promises.items()
        if name not in after.promises
    ]
    return bounded(news, "more_promises", "all promises", "more were admitted or released")


def _terms(promise: StoredPromise) -> tuple[float, list[str]]:
    return promise.max_latency_seconds, [hop.port for hop in promise.hops]


def _generation(orders: Orders) -> str:
    return f"generation {orders.generation}"
