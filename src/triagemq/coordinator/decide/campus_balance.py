"""Balancing a live campus: what its gateways measure becomes a load report, and migrations become moves of clients.

The decisions are those of `triagemq.plan.balancing`. A subscriber has one home: if one of its subscriptions is to go,
all of them do, if the other broker takes them all. While it moves both gateways serve it: it waits for nothing, but the
old one is relieved of it only when it has left, and a balancing is complete then. What a head sends to others is worked
out from the rates that were measured: it is their gateways that take it. How long events wait in front of brokers is
not measured, and taken to be nothing.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from triagemq.coordinator.decide.orders import Orders, client_id_of
from triagemq.coordinator.decide.placement import ClientMove
from triagemq.coordinator.intents.registry import Key
from triagemq.errors import TriageError
from triagemq.intents import PUBLISHER, SUBSCRIBER
from triagemq.plan import FlowCounters
from triagemq.plan.balancing import (
    Balancer,
    BalancingPolicy,
    BalancingSettings,
    Completed,
    LoadReport,
    Migration,
    Thresholds,
    balancing_policy,
)
from triagemq.plan.campus import Campus, Metric, Placement
from triagemq.scenario import Floats, Integers, Scenario

MOVING_SECONDS = 3.0
"""Until moves have shown it: what a subscriber takes to come to another gateway, to get what waits at the old one, and
to be sure that nothing more comes from there."""


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """What a gateway had to do in a second: bits and messages, and what its flows have counted, now and before that."""

    downlink_bps: float
    matched_per_second: float
    uplink_bps: float
    flows: Mapping[str, FlowCounters]
    flows_before: Mapping[str, FlowCounters]
    seconds: float
    broker_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long events take to it from the brokers of others."""
    client_seconds: Mapping[str, float] = field(default_factory=dict)
    """And to or from clients: subscribers by their first flow, and publishers by their name."""


@dataclass(slots=True)
class _Moving:
    began_seconds: float
    clients: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Of subscribers, by the gateways from which and to which they go."""


class CampusBalance:
    """`moves` is called once a second. Without clusters there is nothing to balance."""

    def __init__(self, balancing: str = "ours") -> None:
        self._policy: Callable[[Campus], BalancingPolicy] = balancing_policy(balancing)
        if balancing == "ours":
            self._policy = partial(Balancer, settings=BalancingSettings(relief_seconds=MOVING_SECONDS))
        self._shape: object = None
        self._campus: Campus | None = None
        self._balancer: BalancingPolicy | None = None
        self._moving: dict[int, _Moving] = {}

    def moves(
        self,
        scenario: Scenario,
        orders: Orders,
        placements: Mapping[Key, str],
        loads: Mapping[str, GatewayLoad],
        topic_rates: Mapping[str, float],
        now: float,
    ) -> list[ClientMove]:
        """Who is to go where, by what was measured in the last second; no client while a gateway is not measured."""
        campus = self._known(scenario)
        if campus is None or self._balancer is None or set(loads) != set(scenario.brokers.name):
            return []
        self._complete(loads, now)
        _heed_ways(campus, placements, loads)
        report = _report(campus, orders, placements, loads, topic_rates, now)
        found: list[ClientMove] = []
        names, brokers = scenario.subscribers.name, scenario.brokers.name
        for migration in self._balancer.handle(report):
            rows, report = whole_subscribers(campus, report, migration)
            publishing = np.unique(scenario.publications.publisher[migration.publications]).tolist()
            clients = [(SUBSCRIBER, names[row]) for row in rows]
            clients += [(PUBLISHER, scenario.publishers.name[row]) for row in publishing]
            source, target = brokers[migration.source], brokers[migration.target]
            found += [ClientMove(key, source, target, f"at {source} {migration.reason}") for key in clients]
            under_way = self._moving.setdefault(migration.balancing, _Moving(now))
            under_way.clients.setdefault((source, target), []).extend(names[row] for row in rows)
        return found

    def _known(self, scenario: Scenario) -> Campus | None:
        """The campus of a scenario; a balancer goes on as long as the same clients want and publish the same."""
        shape = (scenario.brokers.name, scenario.subscribers.name, scenario.publishers.name, scenario.topics.name,
                 len(scenario.subscriptions), len(scenario.publications))  # fmt: skip
        if shape != self._shape:
            self._shape, self._campus, self._balancer, self._moving = shape, None, None, {}
            if all(scenario.brokers.cluster) and len(scenario.subscriptions):
                try:
                    self._campus = Campus.of(scenario)
                except TriageError:
                    return None
                self._balancer = self._policy(self._campus)
        return self._campus

    def _complete(self, loads: Mapping[str, GatewayLoad], now: float) -> None:
        assert self._balancer is not None
        for number, each in list(self._moving.items()):
            flows = [
                (client_id_of(name), loads[source].flows, loads[target].flows)
                for (source, target), names in each.clients.items()
                for name in names
            ]
            if all(client in there and client not in here for client, here, there in flows):
                del self._moving[number]
                self._balancer.handle(Completed(now, number, 0.0, now - each.began_seconds))


def whole_subscribers(
    campus: Campus, report: LoadReport, migration: Migration
) -> tuple[list[int], LoadReport]:
    """The subscribers that go with a migration, and the report as it would be then: they go with all that they want, of
    which the migration has perhaps only a part. So many of them go as the target takes without having too much."""
    wanted, thresholds = campus.scenario.subscriptions, Thresholds()
    most = np.array([thresholds.high, thresholds.high, thresholds.full])
    named, first = np.unique(wanted.subscriber[migration.subscriptions], return_index=True)
    order = named[np.argsort(first)]
    before = campus.use(report.placement, report.rate_per_second)

    def after(count: int) -> LoadReport:
        broker = report.placement.subscriptions.copy()
        broker[np.isin(wanted.subscriber, order[:count])] = migration.target
        placement = replace(report.placement, subscriptions=broker)
        use = report.use + campus.use(placement, report.rate_per_second) - before
        return replace(report, placement=placement, use=use)

    count = len(order)
    if np.isin(wanted.subscriber, order).sum() > len(migration.subscriptions):
        # What more of them take only grows.
        count = bisect.bisect_left(
            range(1, count + 1),
            True,
            key=lambda many: bool((after(many).use[:, migration.target] > most).any()),
        )
    return order[:count].tolist(), after(count)


def _heed_ways(campus: Campus, placements: Mapping[Key, str], loads: Mapping[str, GatewayLoad]) -> None:
    """From heads to brokers, and to and from clients, events take as long as was measured, whatever the scenario
    states."""
    scenario = campus.scenario
    for kind, clients, own_seconds in (
        (PUBLISHER, scenario.publishers.name, campus.publisher_seconds),
        (SUBSCRIBER, scenario.subscribers.name, campus.subscriber_seconds),
    ):
        for row, client in enumerate(clients):
            load = loads.get(placements.get((kind, client), ""))
            called = client if kind == PUBLISHER else client_id_of(client)
            if load is not None and called in load.client_seconds:
                own_seconds[row] = load.client_seconds[called]
    names = scenario.brokers.name
    for cluster, head in enumerate(campus.heads.tolist()):
        for broker, name in enumerate(names):
            seconds = loads[name].broker_seconds.get(names[head])
            if seconds is not None:
                campus.delay_seconds[cluster, broker] = seconds


def _report(
    campus: Campus,
    orders: Orders,
    placements: Mapping[Key, str],
    loads: Mapping[str, GatewayLoad],
    topic_rates: Mapping[str, float],
    now: float,
) -> LoadReport:
    scenario = campus.scenario
    row_of = {name: row for row, name in enumerate(scenario.brokers.name)}

    def at(kind: str, names: tuple[str, ...], stated: Integers) -> Integers:
        placements_of = [placements.get((kind, name)) for name in names]
        rows = [
            row if home is None else row_of[home]
            for home, row in zip(placements_of, stated.tolist(), strict=True)
        ]
        return np.array(rows, dtype=np.int32)

    of_subscriber = at(SUBSCRIBER, scenario.subscribers.name, scenario.subscribers.broker)
    of_publisher = at(PUBLISHER, scenario.publishers.name, scenario.publishers.broker)
    placement = Placement(
        of_subscriber[scenario.subscriptions.subscriber], of_publisher[scenario.publications.publisher]
    )
    rate = _rates(scenario, topic_rates)
    use = campus.use(placement, rate)
    for name, load in loads.items():
        row = row_of[name]
        use[Metric.DOWNLINK, row] = load.downlink_bps / 8 / campus.capacity[Metric.DOWNLINK, row]
        use[Metric.MATCHING, row] = load.matched_per_second / campus.capacity[Metric.MATCHING, row]
        if campus.edge[row]:
            use[Metric.UPLINK, row] = load.uplink_bps / 8 / campus.capacity[Metric.UPLINK, row]
    queued, left = _queues(scenario, orders, placements, loads, rate)
    return LoadReport(
        at_seconds=now,
        placement=placement,
        present=np.ones(len(scenario.subscriptions), dtype=bool),
        use=use,
        wait_seconds=np.zeros(len(scenario.brokers)),
        rate_per_second=rate,
        queue_events=queued,
        output_per_second=left,
    )


def _rates(scenario: Scenario, topic_rates: Mapping[str, float]) -> Floats:
    """Of publications: what was measured of a topic, shared as its publishers declare."""
    published = scenario.publications
    planned = np.bincount(published.topic, published.rate_per_second, len(scenario.topics))
    measured = np.array([topic_rates.get(name, 0.0) for name in scenario.topics.name])
    factor = np.divide(measured, planned, out=np.zeros_like(planned), where=planned > 0)
    return np.asarray(published.rate_per_second * factor[published.topic])


def _queues(
    scenario: Scenario,
    orders: Orders,
    placements: Mapping[Key, str],
    loads: Mapping[str, GatewayLoad],
    rate: Floats,
) -> tuple[Floats, Floats]:
    """Of subscriptions: packets that wait, and that left in a second; topics of one flow have parts by their rates."""
    by_topic = np.bincount(scenario.publications.topic, rate, len(scenario.topics))
    rows: dict[str, list[int]] = {}
    names = scenario.subscribers.name
    for row, subscriber in enumerate(scenario.subscriptions.subscriber.tolist()):
        rows.setdefault(names[subscriber], []).append(row)
    queued, left = np.zeros(len(scenario.subscriptions)), np.zeros(len(scenario.subscriptions))
    for name, own in rows.items():
        client_id = client_id_of(name)
        load = loads.get(placements.get((SUBSCRIBER, name), ""))
        flow = None if load is None else load.flows.get(client_id)
        if load is None or flow is None:
            continue
        before = load.flows_before.get(client_id, FlowCounters(flow.flow_id))
        share = by_topic[scenario.subscriptions.topic[own]]
        share = share / share.sum() if share.sum() > 0 else np.full(len(own), 1 / len(own))
        # What waits at one moment may be gone at the next: a queue is what was there a second before, too.
        queued[own] = share * min(_waiting(flow), _waiting(before))
        left[own] = share * max(flow.packets_out - before.packets_out, 0) / load.seconds
    return queued, left


def _waiting(flow: FlowCounters) -> int:
    return max(flow.backlog_packets, 0)
