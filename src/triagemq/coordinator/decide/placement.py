"""Which gateway serves which client: as the scenario says, else as the rules of placement choose; and balancing.

Balancing live clusters of brokers: what its gateways measure becomes a load report, and migrations become moves of
clients. The decisions are those of `triagemq.plan.balancing`. A subscriber has one gateway: if one of its subscriptions
is to go, all of them do, if the other broker takes them all. While it moves both gateways serve it: it waits for
nothing, but the old one is relieved of it only when it has left, and a balancing is complete then. What a head sends to
others is worked out from the rates of the plan: it is their gateways that take it. How long events wait in front of
brokers is not measured, and taken to be nothing.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from triagemq.channel.orders import client_id_of
from triagemq.coordinator.intents.registry import Key, Registry
from triagemq.errors import TriageError
from triagemq.intents import PUBLISHER, SUBSCRIBER, SubscriberIntent
from triagemq.mqttsn.filters import matches
from triagemq.plan.balancing.balancer import Balancer, BalancingPolicy, balancing_policy
from triagemq.plan.balancing.detection import BalancingSettings, Completed, LoadReport, Migration, Thresholds
from triagemq.plan.clusters import BrokerClusters, Metric, Placement
from triagemq.plan.dataplane import FlowCounters
from triagemq.plan.placement import Newcomers
from triagemq.scenario import Floats, Integers, Scenario


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway with its broker, and why it can serve no client now, if that is so.

    In a `cluster` the head serves publishers, and the others subscribers.
    """

    name: str
    problem: str = ""
    cluster: str = ""
    head: bool = False

    def serves(self, kind: str) -> bool:
        """Whether it is for clients of a kind."""
        return not self.cluster or self.head == (kind == PUBLISHER)


@dataclass(frozen=True, slots=True)
class ClientMove:
    """A client leaves one gateway for another, and why."""

    key: Key
    source: str
    target: str
    why: str


_MOST_PREVIOUS = 100_000
"""Clients that are gone, of which is known where they were."""

LINKS = (Metric.DOWNLINK, Metric.UPLINK)

FRESH_SECONDS = 1.0
"""How long newcomers are added to the same load: many come at once, and it is measured every second."""


class ClusterPlaces:
    """Knows the load of broker clusters for a moment, and counts those who have come since."""

    def __init__(self) -> None:
        self._made_at = -np.inf
        self._scenario: Scenario | None = None
        self._clusters: BrokerClusters | None = None
        self._arrivals: Newcomers | None = None

    def choice(
        self,
        filters: Sequence[str],
        sites: Sequence[str],
        scenario: Scenario,
        placements: Mapping[Key, str],
        now: float,
    ) -> str | None:
        """Which of these sites serves a subscriber with these filters; None without brokers that have bandwidths."""
        if scenario is not self._scenario or now - self._made_at > FRESH_SECONDS:
            self._look(scenario, placements, now)
        clusters, arrivals = self._clusters, self._arrivals
        rows = {name: row for row, name in enumerate(scenario.brokers.name)}
        brokers = [rows[site] for site in sites if site in rows]
        if clusters is None or arrivals is None or len(brokers) != len(sites):
            return None
        if not np.isfinite(clusters.capacity[np.ix_(LINKS, brokers)]).any():
            return None
        topics = [
            row
            for row, name in enumerate(scenario.topics.name)
            if any(matches(each, name) for each in filters)
        ]
        return scenario.brokers.name[arrivals.take(topics, brokers)]

    def _look(self, scenario: Scenario, placements: Mapping[Key, str], now: float) -> None:
        """Who is served where now."""
        self._scenario, self._made_at, self._clusters = scenario, now, None
        try:
            clusters = BrokerClusters.of(scenario)
        except TriageError:
            return
        rows = {name: row for row, name in enumerate(scenario.brokers.name)}
        at = [rows.get(placements.get((SUBSCRIBER, name), ""), -1) for name in scenario.subscribers.name]
        broker = np.array(at, dtype=np.int32)[scenario.subscriptions.subscriber]
        self._clusters = clusters
        self._arrivals = Newcomers(clusters, Placement(broker, clusters.stated.publications))


class Placements:
    """By kind and name of a client, the name of its gateway. `stated` is what a scenario says, `clients` are those that
    are announced.

    >>> placements = Placements({("subscriber", "ff-7"): "north"})
    >>> sites = [Site("north"), Site("south")]
    >>> [placements.of(("subscriber", name), sites) for name in ("ff-7", "ff-8", "ff-9")]
    ['north', 'south', 'north']
    >>> [(key[1], where) for key, where in placements.evacuations([Site("north", "it is away"), Site("south")])]
    [('ff-7', 'south'), ('ff-9', 'south')]
    """

    def __init__(self, stated: Mapping[Key, str] | None = None, clients: Registry | None = None) -> None:
        self._stated = stated or {}
        self.clients = Registry() if clients is None else clients
        self._gateways: dict[Key, str] = {}
        # Of clients that are gone: where a stored session may wait for them.
        self._previous: dict[Key, str] = {}
        self._changed = False
        self._clusters = ClusterPlaces()
        self.scenario: Scenario | None = None
        """Of the last plan: newcomers are placed by its brokers and rates."""

    @classmethod
    def of_scenario(cls, scenario: Scenario, clients: Registry | None = None) -> Placements:
        """Where a scenario puts its clients."""
        brokers = scenario.brokers.name
        return cls(
            {
                (kind, name): brokers[broker]
                for kind, table in (("publisher", scenario.publishers), ("subscriber", scenario.subscribers))
                for name, broker in zip(table.name, table.broker.tolist(), strict=True)
            },
            clients,
        )

    def __iter__(self) -> Iterator[tuple[Key, str]]:
        return iter(tuple(self._gateways.items()))

    def of(self, key: Key, sites: Sequence[Site]) -> str:
        """The gateway of a client, which gets one if it has none."""
        if key not in self._gateways:
            previous = self._previous.pop(key, None)
            is_there = any(site.name == previous and not site.problem for site in sites)
            self._gateways[key] = (
                str(previous) if is_there else self._choice(key, sites, Counter(self._gateways.values()))
            )
            self._changed = True
        return self._gateways[key]

    def has(self, key: Key) -> bool:
        """Whether a client has a gateway."""
        return key in self._gateways

    def move(self, key: Key, gateway: str) -> None:
        self._gateways[key] = gateway
        self._changed = True

    def forget(self, key: Key) -> None:
        """A client is gone; if it comes again, its session may be where it was."""
        gateway = self._gateways.pop(key, None)
        if gateway is not None:
            self._changed = True
            self.remember(key, gateway)

    def remember(self, key: Key, gateway: str) -> None:
        """A client that is away has a session there."""
        self._previous.pop(key, None)
        self._previous[key] = gateway
        if len(self._previous) > _MOST_PREVIOUS:
            del self._previous[next(iter(self._previous))]

    def take_changed(self) -> bool:
        """Has anything changed since the last call?"""
        changed, self._changed = self._changed, False
        return changed

    def evacuations(self, sites: Sequence[Site]) -> list[tuple[Key, str]]:
        """Clients of gateways that cannot serve them, and where each is to go; none if there is no other gateway."""
        bad = {site.name for site in sites if site.problem}
        if not bad or len(bad) == len(sites):
            return []
        count = Counter(gateway for gateway in self._gateways.values() if gateway not in bad)
        found = []
        for key, gateway in self._gateways.items():
            if gateway in bad:
                found.append((key, self._choice(key, sites, count)))
                count[found[-1][1]] += 1
        return found

    def _choice(self, key: Key, sites: Sequence[Site], count: Counter[str]) -> str:
        """What is stated, else one of the same cluster: the one that placement chooses, or with the fewest clients."""
        good = [site for site in sites if not site.problem] or list(sites)
        stated = self._stated.get(key)
        if any(site.name == stated for site in good):
            return str(stated)
        near = self._gateways.get(key, stated)
        clusters = {site.name: site.cluster for site in sites}
        fit = [site for site in good if site.serves(key[0])] or good
        cluster = [site for site in fit if site.cluster == clusters.get(near or "", "")] or fit
        chosen = self._by_load(key, [site.name for site in cluster])
        return chosen or min(cluster, key=lambda site: count[site.name]).name

    def _by_load(self, key: Key, sites: Sequence[str]) -> str | None:
        """The site that placement chooses for a subscriber, where there are clusters of brokers with bandwidths."""
        record = self.clients.get(key)
        if self.scenario is None or record is None or not isinstance(record.intent, SubscriberIntent):
            return None
        filters = [each.topic for each in record.intent.subscriptions]
        return self._clusters.choice(filters, sites, self.scenario, self._gateways, time.monotonic())


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


class ClusterBalance:
    """`moves` is called once a second. Without clusters there is nothing to balance."""

    def __init__(self, balancing: str = "ours") -> None:
        self._policy: Callable[[BrokerClusters], BalancingPolicy] = balancing_policy(balancing)
        if balancing == "ours":
            self._policy = partial(Balancer, settings=BalancingSettings(relief_seconds=MOVING_SECONDS))
        self._shape: object = None
        self._clusters: BrokerClusters | None = None
        self._balancer: BalancingPolicy | None = None
        self._moving: dict[int, _Moving] = {}

    def moves(
        self,
        scenario: Scenario,
        placements: Mapping[Key, str],
        loads: Mapping[str, GatewayLoad],
        now: float,
    ) -> list[ClientMove]:
        """Who is to go where, by what was measured in the last second; no client while a gateway is not measured."""
        clusters = self._known(scenario)
        if clusters is None or self._balancer is None or set(loads) != set(scenario.brokers.name):
            return []
        self._complete(loads, now)
        _take_measured_delays(clusters, placements, loads)
        report = _report(clusters, scenario, placements, loads, now)
        found: list[ClientMove] = []
        names, brokers = scenario.subscribers.name, scenario.brokers.name
        for migration in self._balancer.handle(report):
            rows, report = whole_subscribers(clusters, report, migration)
            publishing = np.unique(scenario.publications.publisher[migration.publications]).tolist()
            clients = [(SUBSCRIBER, names[row]) for row in rows]
            clients += [(PUBLISHER, scenario.publishers.name[row]) for row in publishing]
            source, target = brokers[migration.source], brokers[migration.target]
            found += [ClientMove(key, source, target, f"at {source} {migration.reason}") for key in clients]
            under_way = self._moving.setdefault(migration.balancing, _Moving(now))
            under_way.clients.setdefault((source, target), []).extend(names[row] for row in rows)
        return found

    def _known(self, scenario: Scenario) -> BrokerClusters | None:
        """The broker clusters of a scenario; a balancer goes on as long as the same clients want and publish the
        same."""
        shape = (scenario.brokers.name, scenario.subscribers.name, scenario.publishers.name, scenario.topics.name,
                 len(scenario.subscriptions), len(scenario.publications))  # fmt: skip
        if shape != self._shape:
            self._shape, self._clusters, self._balancer, self._moving = shape, None, None, {}
            if all(scenario.brokers.cluster) and len(scenario.subscriptions):
                try:
                    self._clusters = BrokerClusters.of(scenario)
                except TriageError:
                    return None
                self._balancer = self._policy(self._clusters)
        return self._clusters

    def _complete(self, loads: Mapping[str, GatewayLoad], now: float) -> None:
        assert self._balancer is not None
        for number, each in list(self._moving.items()):
            flows = [
                (client_id_of(name), loads[source].flows, loads[target].flows)
                for (source, target), names in each.clients.items()
                for name in names
            ]
            if all(client in target and client not in source for client, source, target in flows):
                del self._moving[number]
                self._balancer.handle(Completed(now, number, 0.0, now - each.began_seconds))


def whole_subscribers(
    clusters: BrokerClusters, report: LoadReport, migration: Migration
) -> tuple[list[int], LoadReport]:
    """The subscribers that go with a migration, and the report as it would be then: they go with all that they want, of
    which the migration has perhaps only a part. So many of them go as the target takes without having too much."""
    wanted, thresholds = clusters.scenario.subscriptions, Thresholds()
    most = np.array([thresholds.high, thresholds.high, thresholds.full])
    named, first = np.unique(wanted.subscriber[migration.subscriptions], return_index=True)
    order = named[np.argsort(first)]
    before = clusters.use(report.placement, report.rate_per_second)

    def after(count: int) -> LoadReport:
        broker = report.placement.subscriptions.copy()
        broker[np.isin(wanted.subscriber, order[:count])] = migration.target
        placement = replace(report.placement, subscriptions=broker)
        use = report.use + clusters.use(placement, report.rate_per_second) - before
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


def _take_measured_delays(
    clusters: BrokerClusters, placements: Mapping[Key, str], loads: Mapping[str, GatewayLoad]
) -> None:
    """Measured delays from heads to brokers, and to and from clients, replace those of the scenario."""
    scenario = clusters.scenario
    for kind, clients, own_seconds in (
        (PUBLISHER, scenario.publishers.name, clusters.publisher_seconds),
        (SUBSCRIBER, scenario.subscribers.name, clusters.subscriber_seconds),
    ):
        for row, client in enumerate(clients):
            load = loads.get(placements.get((kind, client), ""))
            called = client if kind == PUBLISHER else client_id_of(client)
            if load is not None and called in load.client_seconds:
                own_seconds[row] = load.client_seconds[called]
    names = scenario.brokers.name
    for cluster, head in enumerate(clusters.heads.tolist()):
        for broker, name in enumerate(names):
            seconds = loads[name].broker_seconds.get(names[head])
            if seconds is not None:
                clusters.delay_seconds[cluster, broker] = seconds


def _report(
    clusters: BrokerClusters,
    scenario: Scenario,
    placements: Mapping[Key, str],
    loads: Mapping[str, GatewayLoad],
    now: float,
) -> LoadReport:
    rate = scenario.publications.rate_per_second
    row_of = {name: row for row, name in enumerate(scenario.brokers.name)}

    def at(kind: str, names: tuple[str, ...], stated: Integers) -> Integers:
        placements_of = [placements.get((kind, name)) for name in names]
        rows = [
            row if gateway is None else row_of[gateway]
            for gateway, row in zip(placements_of, stated.tolist(), strict=True)
        ]
        return np.array(rows, dtype=np.int32)

    of_subscriber = at(SUBSCRIBER, scenario.subscribers.name, scenario.subscribers.broker)
    of_publisher = at(PUBLISHER, scenario.publishers.name, scenario.publishers.broker)
    placement = Placement(
        of_subscriber[scenario.subscriptions.subscriber], of_publisher[scenario.publications.publisher]
    )
    use = clusters.use(placement, rate)
    for name, load in loads.items():
        row = row_of[name]
        use[Metric.DOWNLINK, row] = load.downlink_bps / 8 / clusters.capacity[Metric.DOWNLINK, row]
        use[Metric.MATCHING, row] = load.matched_per_second / clusters.capacity[Metric.MATCHING, row]
        if clusters.edge[row]:
            use[Metric.UPLINK, row] = load.uplink_bps / 8 / clusters.capacity[Metric.UPLINK, row]
    queued, left = _queues(scenario, placements, loads)
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


def _queues(
    scenario: Scenario,
    placements: Mapping[Key, str],
    loads: Mapping[str, GatewayLoad],
) -> tuple[Floats, Floats]:
    """Of subscriptions: packets that wait, and that left in a second; topics of one flow have parts by their rates."""
    published = scenario.publications
    by_topic = np.bincount(published.topic, published.rate_per_second, len(scenario.topics))
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
