"""Clusters of a head broker and edge brokers, who is served where, and what that asks of every broker.

Heads serve publishers and forward what is subscribed, edges serve subscribers (PEER-WD section 3). A subscriber has a
connection to every broker that serves one of its topics, so that what is placed and moved are subscriptions; and a
publisher one to the head of each of its publications.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.plan.demands import sum_by, total_by, wire_sizes
from triagemq.scenario import Floats, Integers, Scenario, broker_routes

Flags = NDArray[np.bool_]
Rows = NDArray[np.integer] | slice


class Metric(IntEnum):
    """What a broker can have too much of: the first three in parts of its capacity, queue depth against a threshold."""

    DOWNLINK = 0
    MATCHING = 1
    UPLINK = 2
    QUEUE_DEPTH = 3

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ")


CAPACITIES = (Metric.DOWNLINK, Metric.MATCHING, Metric.UPLINK)


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The edge broker of every subscription, and the head of every publication."""

    subscriptions: Integers
    publications: Integers


@dataclass(frozen=True, slots=True, eq=False)
class BrokerClusters:
    """What placement and balancing read of a scenario, worked out once.

    `capacity` has a row for each metric, in bytes and events a second; heads match nothing (PEER-WD Table 1).
    `delay_seconds` are the propagation delays from the head of each cluster to each broker, infinite without a path;
    `publisher_seconds` and `subscriber_seconds` are those between clients and their brokers.
    Event sizes are those on the wire. `by_topic` are the subscriptions topic by topic, and `first_of_topic` where each
    begins.
    """

    scenario: Scenario
    names: tuple[str, ...]
    cluster: Integers
    heads: Integers
    edge: Flags
    capacity: Floats
    delay_seconds: Floats
    publisher_seconds: Floats
    subscriber_seconds: Floats
    publication_bytes: Floats
    topic_bytes: Floats
    by_topic: NDArray[np.int64]
    first_of_topic: NDArray[np.int64]
    stated: Placement

    @classmethod
    def of(cls, scenario: Scenario) -> BrokerClusters:
        """The clusters of a scenario in which every broker has a cluster."""
        brokers = scenario.brokers
        if not all(brokers.cluster):
            lone = next(
                name for name, cluster in zip(brokers.name, brokers.cluster, strict=True) if not cluster
            )
            raise ParameterError(
                "brokers", f"{lone} has no cluster; write cluster: NAME, and head: true at one broker of each"
            )
        clusters = tuple(sorted(set(brokers.cluster)))
        cluster = np.array([clusters.index(each) for each in brokers.cluster], dtype=np.int32)
        heads = np.full(len(clusters), -1, dtype=np.int32)
        head = np.flatnonzero(brokers.head > 0)
        heads[cluster[head]] = head
        if (heads < 0).any():
            raise ParameterError("brokers", f"{clusters[int(heads.argmin())]} is a cluster without a head")
        published = scenario.publications
        size, rate = wire_sizes(scenario).event_bytes, published.rate_per_second
        topics = len(scenario.topics)
        bytes_of, events_of = (total_by(published.topic, values, topics) for values in (rate * size, rate))
        return cls(
            scenario=scenario,
            names=clusters,
            cluster=cluster,
            heads=heads,
            edge=brokers.head == 0,
            capacity=np.stack(
                [
                    brokers.downlink_bps / 8,
                    np.where(brokers.head > 0, np.inf, brokers.inbound_rate_per_second),
                    brokers.uplink_bps / 8,
                ]
            ),
            delay_seconds=_delays(scenario, heads),
            publisher_seconds=scenario.publishers.propagation_seconds.copy(),
            subscriber_seconds=scenario.subscribers.propagation_seconds.copy(),
            publication_bytes=size,
            topic_bytes=np.divide(bytes_of, events_of, out=np.ones(topics), where=events_of > 0),
            by_topic=np.argsort(scenario.subscriptions.topic, kind="stable"),
            first_of_topic=np.append(
                0, np.cumsum(np.bincount(scenario.subscriptions.topic, minlength=topics))
            ),
            stated=Placement(
                scenario.subscribers.broker[scenario.subscriptions.subscriber],
                scenario.publishers.broker[published.publisher],
            ),
        )

    def edges_of(self, cluster: int) -> NDArray[np.int64]:
        """The edge brokers of a cluster."""
        return np.flatnonzero(self.edge & (self.cluster == cluster))

    def published(self, placement: Placement, rate_per_second: Floats | None = None) -> tuple[Floats, Floats]:
        """Events and bytes a second of every topic that publishers bring to the head of every cluster."""
        publications = self.scenario.publications
        rate = publications.rate_per_second if rate_per_second is None else rate_per_second
        shape = (len(self.names), len(self.scenario.topics))
        cluster = self.cluster[placement.publications]
        return (
            sum_by(cluster, publications.topic, shape, rate),
            sum_by(cluster, publications.topic, shape, rate * self.publication_bytes),
        )

    def served(
        self, placement: Placement, present: Flags | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The brokers and topics of which a broker serves a topic to any subscription (of those present)."""
        rows = slice(None) if present is None else present
        topics = len(self.scenario.topics)
        found = np.zeros(len(self.cluster) * topics, dtype=np.bool_)
        broker = placement.subscriptions[rows].astype(np.int64)
        found[broker * topics + self.scenario.subscriptions.topic[rows]] = True
        at_broker, at_topic = np.divmod(np.flatnonzero(found), topics)
        return at_broker, at_topic

    def edges_with(self, broker: NDArray[np.int64], topic: NDArray[np.int64]) -> Floats:
        """Per cluster and topic, at how many of these brokers it is served."""
        shape = len(self.names), len(self.scenario.topics)
        return sum_by(self.cluster[broker], topic.astype(np.int32), shape, np.ones(len(topic)))

    def use(
        self,
        placement: Placement,
        rate_per_second: Floats | None = None,
        present: Flags | None = None,
    ) -> Floats:
        """Per metric and broker, the part of its capacity that is required (PEER-WD Tables 1 and 2).

        An edge gets each of its topics once and sends it to every subscriber. A head gets what is published at it and
        what its cluster wants of others, and sends each topic to every edge and every other head that wants it.
        """
        rows = slice(None) if present is None else present
        broker, topic = placement.subscriptions[rows], self.scenario.subscriptions.topic[rows]
        brokers = len(self.cluster)
        events, size = self.published(placement, rate_per_second)
        all_events, all_bytes = events.sum(axis=0), size.sum(axis=0)
        at_broker, at_topic = self.served(placement, present)
        required = np.stack(
            [
                total_by(at_broker, all_bytes[at_topic], brokers),
                total_by(at_broker, all_events[at_topic], brokers),
                total_by(broker, all_bytes[topic], brokers),
            ]
        )
        edges = self.edges_with(at_broker, at_topic)
        required[[Metric.DOWNLINK, Metric.UPLINK], self.heads[:, None]] = head_traffic(size, edges)
        return np.asarray(required / self.capacity)

    def delays(self, placement: Placement, wait_seconds: Floats | None = None) -> TopicDelays:
        """The delays of all topics to their subscribers, with the waits in front of brokers, if there are any."""
        scenario = self.scenario
        publications = scenario.publications
        longest = np.full((len(self.names), len(scenario.topics)), -np.inf)
        np.maximum.at(
            longest,
            (self.cluster[placement.publications], publications.topic),
            self.publisher_seconds[publications.publisher],
        )
        wait = np.zeros(len(self.cluster)) if wait_seconds is None else wait_seconds
        return TopicDelays(self, longest, wait)

    def notification_seconds(self, broker: Integers, rows: Rows = slice(None)) -> Floats:
        """How long news of its cluster's head take to every subscription of `rows`, if `broker` serves it."""
        return np.asarray(self.delay_seconds[self.cluster[broker], broker] + self.last_seconds(rows))

    def last_seconds(self, rows: Rows) -> Floats:
        """From an edge to every subscription of `rows`."""
        return np.asarray(self.subscriber_seconds[self.scenario.subscriptions.subscriber[rows]])

    def subscriptions_of(self, topic: int) -> NDArray[np.int64]:
        """The rows of a topic's subscriptions."""
        return self.by_topic[self.first_of_topic[topic] : self.first_of_topic[topic + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class TopicDelays:
    """How long events take to subscriptions, wherever these are served.

    `longest_seconds` is the longest delay of any publisher of a topic to the head of each cluster, minus infinity where
    there is none; `wait_seconds` how long events wait in front of each broker.
    """

    clusters: BrokerClusters
    longest_seconds: Floats
    wait_seconds: Floats

    def seconds(self, broker: Integers, rows: Rows = slice(None)) -> Floats:
        """The longest delay of any publisher's events to every subscription of `rows`, if `broker` served it."""
        clusters, wait = self.clusters, self.wait_seconds
        topic = clusters.scenario.subscriptions.topic[rows]
        # From the head of each cluster to each broker; where both are of one cluster, its head waits once.
        other = np.arange(len(clusters.heads))[:, None] != clusters.cluster
        between = (
            clusters.delay_seconds
            + wait[clusters.heads, None]
            + other * wait[clusters.heads[clusters.cluster]]
        )
        before = np.full(len(topic), -np.inf)
        for longest, seconds in zip(self.longest_seconds, between, strict=True):
            if (longest > -np.inf).any():
                np.maximum(before, longest[topic] + seconds[broker], out=before)
        unpublished = before == -np.inf
        return np.asarray(np.where(unpublished, 0.0, before) + wait[broker] + clusters.last_seconds(rows))

    def allowed_seconds(self, broker: Integers, rows: Rows = slice(None)) -> Floats:
        """How long an event may wait in the output queue of every subscription of `rows`, if `broker` served it;
        infinity for no limit.

        What it may take in all, less its path, and its arrival, matching and departure there (PEER-WD 4.2.6).
        """
        clusters, wanted = self.clusters, self.clusters.scenario.subscriptions
        size = clusters.topic_bytes[wanted.topic[rows]]
        down, matching, up = clusters.capacity[:, broker]
        on_path = self.seconds(broker, rows)
        return np.asarray(wanted.max_latency_seconds[rows] - on_path - size / down - 1 / matching - size / up)


def head_traffic(published: Floats, edges: Floats) -> Floats:
    """Per cluster, the bytes a second that its head gets and sends.

    `published` are bytes a second and `edges` the edge brokers that serve a topic, per cluster and topic.
    """
    total = published.sum(axis=0)
    wanted = edges > 0
    arriving = published + wanted * (total - published)
    elsewhere = wanted.sum(axis=0) - wanted
    return np.stack([arriving.sum(axis=1), (published * elsewhere + arriving * edges).sum(axis=1)], axis=1)


def _delays(scenario: Scenario, heads: Integers) -> Floats:
    routes, links = broker_routes(scenario), scenario.broker_links
    found = np.full((len(heads), len(scenario.brokers)), np.inf)
    for row, head in enumerate(heads.tolist()):
        for broker in range(len(scenario.brokers)):
            if head == broker or routes.next_link[head, broker] >= 0:
                path = routes.path(head, broker, links.target_broker)
                found[row, broker] = links.propagation_seconds[path].sum()
    return found
