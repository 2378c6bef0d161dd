"""Do the clusters of a file fit together: each with one head, publishers at heads, subscribers at edges; and which
broker is meant where a client names its cluster only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from triagemq.scenario.files.document import PublisherEntry, SubscriberEntry
from triagemq.scenario.files.explain import listed
from triagemq.scenario.files.reading import Document

Clients = Literal["publishers", "subscribers"]


@dataclass(slots=True)
class BrokerCluster:
    """The brokers of one cluster, by name and in that order."""

    heads: list[str] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)

    def serving(self, title: Clients) -> list[str]:
        """Those that serve publishers, or subscribers."""
        return self.heads if title == "publishers" else self.edges


def clusters_of(document: Document) -> Mapping[str, BrokerCluster]:
    """The clusters that brokers name."""
    found: dict[str, BrokerCluster] = {}
    for name, broker in sorted(document.valid.brokers.items()):
        if broker.cluster is not None:
            cluster = found.setdefault(broker.cluster, BrokerCluster())
            (cluster.heads if broker.head else cluster.edges).append(name)
    return found


def first_broker(
    clusters: Mapping[str, BrokerCluster], title: Clients, client: PublisherEntry | SubscriberEntry
) -> str | None:
    """The broker of a client: the one it names, else the head of its cluster, or the first edge until it is placed."""
    if client.broker is not None or client.cluster is None:
        return client.broker
    serving = clusters[client.cluster].serving(title) if client.cluster in clusters else []
    return serving[0] if serving else None


def check_clusters(document: Document) -> None:
    """Report clusters without a head or with two, and clients that are not where their kind is served."""
    file, clusters = document.file, clusters_of(document)
    # A broker that is wrong by itself might be the head, or the cluster, that is looked for.
    whole = len(document.valid.brokers) == len(document.names["brokers"])
    for name, cluster in clusters.items():
        if not cluster.heads and whole:
            what, fix = (
                f"is {name}, a cluster without a head",
                f"add head: true to one of {listed(cluster.edges)}",
            )
            file.report_at(("brokers", cluster.edges[0], "cluster"), what, fix)
        for second in cluster.heads[1:]:
            what = f"makes a second head of {name}, beside {cluster.heads[0]}"
            file.report_at(("brokers", second, "head"), what, "keep one of the two")
    if whole:
        _check_clients(document, clusters, "publishers")
        _check_clients(document, clusters, "subscribers")


def _check_clients(document: Document, clusters: Mapping[str, BrokerCluster], title: Clients) -> None:
    file, brokers = document.file, document.valid.brokers
    kind = "a head" if title == "publishers" else "an edge"
    clients: Mapping[str, PublisherEntry | SubscriberEntry] = getattr(document.valid, title)
    for name, client in clients.items():
        if client.cluster is not None:
            place = (title, name, "cluster")
            if client.broker is not None:
                file.report_at(place, "stands beside broker", "keep one of the two")
            elif client.cluster not in clusters:
                file.report_at(place, *file.unknown("cluster", client.cluster, clusters, "brokers"))
            elif clusters[client.cluster].heads and first_broker(clusters, title, client) is None:
                what = f"is {client.cluster}, which has no edge broker"
                file.report_at(place, what, f"add a broker with cluster: {client.cluster}")
        elif client.broker in brokers and brokers[client.broker].cluster is not None:
            serving = clusters[brokers[client.broker].cluster or ""].serving(title)
            if serving and client.broker not in serving:
                what = f"is {client.broker}, and {title} of a cluster are served by {kind}"
                file.report_at((title, name, "broker"), what, f"write {listed(serving)}")
