"""What a plan changes, worked out once, from columns: orders, reasons and clients that wait for news read it here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.orders import Orders, OrdersChange, client_id_of
from triagemq.plan import Plan, SetFlow, SetPort
from triagemq.scenario import Floats, Integers, Scenario

LEAST_DROP_CHANGE = 0.005
"""Drop rates that would change by less than this, with all else as before, are left alone: hysteresis."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TreatmentTable:
    """Orders as columns: a row for each subscription that no promise carries, sorted by subscriber and topic.

    `port` and `number` are those of each subscriber; the number of its flow stays for as long as it is there.
    """

    subscribers: tuple[str, ...]
    topics: tuple[str, ...]
    ports: tuple[str, ...]
    subscriber: Integers
    topic: Integers
    priority_class: Integers
    drop_rate: Floats
    port: Integers
    number: Integers
    lowest_class: int
    next_number: int


def recall(orders: Orders) -> TreatmentTable:
    """The table of orders that were stored as they were sent: what a coordinator finds when it restarts."""
    subscribers = tuple(sorted(orders.topics))
    topics = tuple(sorted({topic for several in orders.topics.values() for topic in several}))
    ports = tuple(sorted(orders.ports))
    topic_number, port_number = _numbers(topics), _numbers(ports)
    rows = [
        (owner, topic_number[topic], *planned)
        for owner, name in enumerate(subscribers)
        for topic, planned in sorted(orders.topics[name].items())
    ]
    columns = np.array(rows, dtype=np.float64).reshape(-1, 4)
    flows = [orders.flows.get(client_id_of(name)) for name in subscribers]
    numbers = [flow.flow_id for flow in orders.flows.values()]
    numbers += [copy.flow_id for copy in orders.copies.values()]
    return TreatmentTable(
        subscribers=subscribers,
        topics=topics,
        ports=ports,
        subscriber=columns[:, 0].astype(np.int32),
        topic=columns[:, 1].astype(np.int32),
        priority_class=columns[:, 2].astype(np.int32),
        drop_rate=columns[:, 3],
        port=np.array([-1 if flow is None else port_number.get(flow.port, -1) for flow in flows], np.int32),
        number=np.array([-1 if flow is None else flow.flow_id for flow in flows], np.int32),
        lowest_class=next((flow.priority_class for flow in flows if flow is not None), -1),
        next_number=1 + max(numbers, default=-1),
    )


class TableChange:
    """A plan beside the table of the orders before it.

    Columns have a row for each subscription of the scenario; -1 and NaN stand for what no order names.
    """

    def __init__(
        self, scenario: Scenario, plan: Plan, before: TreatmentTable | None, lowest_class: int
    ) -> None:
        wanted, people = scenario.subscriptions, scenario.subscribers
        self.scenario = scenario
        self.class_after: Integers = np.append(plan.flows.priority_class, -1)[plan.flow].astype(np.int32)
        self.drop_after: Floats = np.append(plan.flows.drop_rate, np.nan)[plan.flow]
        self.class_before: Integers = np.full(len(wanted), -1, dtype=np.int32)
        self.drop_before: Floats = np.full(len(wanted), np.nan)
        self.is_new: NDArray[np.bool_] = np.ones(len(people), dtype=bool)
        self.gone: tuple[str, ...] = ()
        number = np.full(len(people), -1, dtype=np.int32)
        self._rerouted: NDArray[np.bool_] = np.ones(len(people), dtype=bool)
        self._lost_topic: NDArray[np.bool_] = np.zeros(len(people), dtype=bool)
        next_number = 0
        if before is not None:
            place = _renumbered(before.subscribers, people.name)
            stays = place >= 0
            self.is_new[place[stays]] = False
            self.gone = tuple(before.subscribers[row] for row in np.flatnonzero(~stays).tolist())
            number[place[stays]] = before.number[stays]
            port = np.append(_renumbered(before.ports, scenario.ports.name), -1)[before.port]
            same_port = port[stays] == people.port[place[stays]]
            self._rerouted[place[stays]] = ~same_port | (before.lowest_class != lowest_class)
            self._take_before(before, place)
            next_number = before.next_number
        new = np.flatnonzero(number < 0)
        number[new] = next_number + np.arange(len(new))
        self._reclassed: NDArray[np.bool_] = self.class_before != self.class_after
        rows = np.flatnonzero(self.class_after >= 0)
        self.table = TreatmentTable(
            subscribers=people.name,
            topics=scenario.topics.name,
            ports=scenario.ports.name,
            subscriber=wanted.subscriber[rows],
            topic=wanted.topic[rows],
            priority_class=self.class_after[rows],
            drop_rate=self.drop_after[rows],
            port=people.port,
            number=number,
            lowest_class=lowest_class,
            next_number=next_number + len(new),
        )

    def _take_before(self, before: TreatmentTable, subscriber: Rows) -> None:
        """Fill in what was ordered for subscriptions that are there still; mark those who have lost one."""
        wanted = self.scenario.subscriptions
        owner = subscriber[before.subscriber]
        topic = _renumbered(before.topics, self.scenario.topics.name)[before.topic]
        known = np.flatnonzero((owner >= 0) & (topic >= 0))
        keys = wanted.subscriber.astype(np.int64) << 32 | wanted.topic
        sought = owner[known] << 32 | topic[known]
        place = np.searchsorted(keys, sought)
        found = np.append(keys, -1)[place] == sought
        self.class_before[place[found]] = before.priority_class[known[found]]
        self.drop_before[place[found]] = before.drop_rate[known[found]]
        left = owner >= 0
        left[known[found]] = False
        self._lost_topic[owner[left]] = True

    @property
    def is_next_to_nothing(self) -> bool:
        """Whether nothing but drop rates changes, and those by next to nothing."""
        step = np.abs(self.drop_before - self.drop_after)[self.class_after >= 0]
        return (
            not self.gone
            and not self._rerouted.any()
            and not self._lost_topic.any()
            and not self._reclassed.any()
            and bool((step < LEAST_DROP_CHANGE).all())
        )

    def for_whom(self) -> list[str]:
        """The subscribers whose topics or classes change.

        Drop rates do not count: with every client that comes or goes, all may change a little, and no client has to
        do anything about it.
        """
        concerned = self.is_new | self._lost_topic
        concerned[self.scenario.subscriptions.subscriber[self._reclassed]] = True
        return self._names(concerned)

    def orders(self, before: Orders, ports: Mapping[str, SetPort]) -> OrdersChange:
        """The change that leads to the orders of the table, one generation after `before`."""
        return OrdersChange(before.generation + 1, ports, self._flows(), self._topics())

    def _topics(self) -> dict[str, Mapping[str, tuple[int, float]] | None]:
        table = self.table
        topics: dict[str, Mapping[str, tuple[int, float]] | None] = dict.fromkeys(self.gone)
        concerned = self.is_new | self._lost_topic
        moved = self._reclassed | (self.drop_before != self.drop_after) & (self.class_after >= 0)
        concerned[self.scenario.subscriptions.subscriber[moved]] = True
        bounds = np.searchsorted(table.subscriber, np.arange(len(table.subscribers) + 1)).tolist()
        for subscriber in np.flatnonzero(concerned).tolist():
            rows = slice(bounds[subscriber], bounds[subscriber + 1])
            names = (table.topics[topic] for topic in table.topic[rows].tolist())
            planned = zip(table.priority_class[rows].tolist(), table.drop_rate[rows].tolist(), strict=True)
            topics[table.subscribers[subscriber]] = dict(zip(names, planned, strict=True))
        return topics

    def _flows(self) -> dict[str, SetFlow[str] | None]:
        table = self.table
        flows: dict[str, SetFlow[str] | None] = {client_id_of(name): None for name in self.gone}
        for row in np.flatnonzero(self._rerouted).tolist():
            client_id = client_id_of(table.subscribers[row])
            port, number = table.ports[table.port[row]], int(table.number[row])
            flows[client_id] = SetFlow(client_id, port, number, table.lowest_class, 0.0)
        return flows

    def _names(self, chosen: NDArray[np.bool_]) -> list[str]:
        return [self.table.subscribers[row] for row in np.flatnonzero(chosen).tolist()]


def _numbers(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _renumbered(before: tuple[str, ...], after: tuple[str, ...]) -> Rows:
    """Per name of the first list its place in the second, -1 where it is not there."""
    if before is after or before == after:
        return np.arange(len(before), dtype=np.int64)
    number = _numbers(after)
    return np.array([number.get(name, -1) for name in before], dtype=np.int64)
