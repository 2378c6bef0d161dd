"""Does what a file says fit together: names, the tree of switches, links, queues and conditions among themselves; and
what is published and wanted to the network, in the size of packets and with a path to every subscription.

An entry that is invalid by itself still counts as existing, so that one error is one problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from triagemq.mqttsn.filters import TopicTree
from triagemq.scenario.files.document import (
    USUAL_PROFILE,
    BrokerLinkEntry,
    PublisherEntry,
    SubscriberEntry,
)
from triagemq.scenario.files.explain import filter_error, listed, number_text, topic_error
from triagemq.scenario.files.reading import Document
from triagemq.scenario.files.rules import PublicationRows, SubscriptionRows
from triagemq.scenario.kinds import SizeDistribution
from triagemq.scenario.model import Floats, Integers

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


NAMES = (
    ("publishers", "broker", "brokers", "broker"),
    ("subscribers", "broker", "brokers", "broker"),
    ("publishers", "switch", "unmanaged_switches", "unmanaged switch"),
    ("subscribers", "port", "ports", "port"),
    ("switches", "fed_by", "ports", "port"),
    ("switches", "backup", "ports", "port"),
    ("ports", "switch", "switches", "switch"),
    ("ports", "to", "switches", "switch"),
    ("publishers", "access", "switches", "switch"),
    ("conditions", "port", "ports", "port"),
    ("conditions", "publisher", "publishers", "publisher"),
    ("conditions", "subscriber", "subscribers", "subscriber"),
)
"""Keys that name something else: the section and key, the section of what is named, and what that is called."""


def check_references(document: Document) -> None:
    """Report everything between entries that does not fit."""
    _check_names(document)
    _check_links(document)
    check_clusters(document)
    _check_tree(document)
    _check_queues(document)
    _check_backups(document)
    _check_conditions(document)


def _check_names(document: Document) -> None:
    file, valid = document.file, document.valid
    for title, key, target, kind in NAMES:
        known = document.names[target]
        # A section that is required and not there has been reported; others may be empty.
        if not known and target in ("brokers", "ports", "switches") and title != "conditions":
            continue
        for name, entry in getattr(valid, title).items():
            named = getattr(entry, key)
            if named is not None and named not in known:
                file.report_at((title, name, key), *file.unknown(kind, named, known, target))
            elif named is None and target == "brokers" and len(known) > 1 and entry.cluster is None:
                what, fix = "is missing where there are several", f"write one of {listed(known)}"
                file.report_at((title, name, key), what, fix)


def _check_links(document: Document) -> None:
    file, brokers = document.file, document.names["brokers"]
    first_line: dict[tuple[str, str], int] = {}
    for number, link in document.valid.broker_links.items():
        place = ("broker_links", number)
        for path, broker in zip(_link_ends(link), link.ends, strict=True):
            if brokers and broker not in brokers:
                line, _ = file.locate((*place, *path))
                field = ".".join((*place, str(path[0])))
                file.report(line, field, *file.unknown("broker", broker, brokers, "brokers"))
        for source, target in link.directions:
            line, _ = file.locate(place)
            if (source, target) in first_line:
                what = f"joins {source} to {target} again, after line {first_line[source, target]}"
                file.report_at(place, what, "remove one of the two links")
                break
            first_line[source, target] = line


def _link_ends(entry: BrokerLinkEntry) -> tuple[tuple[str | int, ...], tuple[str | int, ...]]:
    """Where in an entry its two brokers stand."""
    return (("between", 0), ("between", 1)) if entry.between is not None else (("from",), ("to",))


def _check_tree(document: Document) -> None:
    file, switches = document.file, document.valid.switches
    feeds: dict[str, str] = {}
    for name, switch in switches.items():
        if switch.fed_by is None or switch.fed_by not in document.names["ports"]:
            continue
        if switch.fed_by in feeds:
            what = f"is {switch.fed_by}, which feeds {feeds[switch.fed_by]} already"
            file.report_at(("switches", name, "fed_by"), what, "give each switch a port of its own upstream")
        else:
            feeds[switch.fed_by] = name
    for name, port in document.valid.ports.items():
        if port.to is not None and port.to == port.switch:
            file.report_at(("ports", name, "to"), f"is {port.to}, its own switch", "name another switch")
        elif port.to is not None and name in feeds:
            what = f"is {port.to}, and {name} feeds {feeds[name]} already"
            file.report_at(("ports", name, "to"), what, "give each link a port of its own")
        elif port.to in switches:
            feeds[name] = port.to
    for loop in _loops(document):
        if len(loop) == 1:
            what = f"is {switches[loop[0]].fed_by}, a port of {loop[0]} itself"
        else:
            what = f"closes a loop: {' is fed by '.join([*loop, loop[0]])}"
        fix = "name a port of a switch nearer to the brokers"
        file.report_at(("switches", loop[0], "fed_by"), what, fix)
        for name in loop:
            feeds.pop(switches[name].fed_by or "", None)  # which of its ports is meant is not known
    for name, subscriber in document.valid.subscribers.items():
        if subscriber.port in feeds:
            file.report_at(
                ("subscribers", name, "port"),
                f"is {subscriber.port}, which feeds the switch {feeds[subscriber.port]}",
                f"put it on a port of its own, or on one of {feeds[subscriber.port]}",
            )


def _loops(document: Document) -> Iterator[list[str]]:
    """Every loop of switches once, each switch followed by the one that feeds it."""
    done: set[str] = set()
    for start in document.valid.switches:
        path: list[str] = []
        name: str | None = start
        while name is not None and name not in done:
            done.add(name)
            path.append(name)
            name = _upstream(document, name)
        if name in path:
            yield path[path.index(name) :]


def _upstream(document: Document, name: str) -> str | None:
    """The switch that feeds a switch, as far as what is right says so."""
    switch = document.valid.switches.get(name)
    port = document.valid.ports.get((switch.fed_by if switch is not None else None) or "")
    return port.switch if port is not None and port.switch in document.valid.switches else None


def _check_queues(document: Document) -> None:
    if "planning" in document.invalid_keys:
        return
    classes = document.valid.planning.priority_classes
    for name, port in document.valid.ports.items():
        if port.queues is not None and port.queues < classes:
            document.file.report_at(
                ("ports", name, "queues"),
                f"is {port.queues}, fewer than the {classes} priority classes",
                f"write planning: {{priority_classes: {port.queues}}}, or more queues",
            )
        if port.widths_bps is not None and len(port.widths_bps) != classes:
            document.file.report_at(
                ("ports", name, "widths_bps"),
                f"has {len(port.widths_bps)} numbers for {classes} priority classes",
                f"write planning: {{priority_classes: {len(port.widths_bps)}}}, or {classes} widths",
            )


def _check_backups(document: Document) -> None:
    """A backup is a port reserved for one switch, on another that does not itself hang below it."""
    valid = document.valid
    feeds = {name: port.to for name, port in valid.ports.items() if port.to is not None}
    feeds |= {switch.fed_by: name for name, switch in valid.switches.items() if switch.fed_by}
    holders = {
        subscriber.port: f"has the subscriber {name}" for name, subscriber in valid.subscribers.items()
    }
    backs: dict[str, str] = {}
    for name, switch in valid.switches.items():
        port = switch.backup
        if port is None or port not in valid.ports:
            continue
        what = None
        if port in feeds:
            what = f"feeds the switch {feeds[port]} already"
        elif port in backs:
            what = f"is the backup of {backs[port]} already"
        elif port in holders:
            what = holders[port]
        elif name in _above(document, valid.ports[port].switch):
            what = f"is behind {name} itself"
        backs.setdefault(port, name)
        if what is not None:
            fix = "name a port of its own, on a switch that is nearer to the brokers"
            document.file.report_at(("switches", name, "backup"), f"is {port}, which {what}", fix)


def _above(document: Document, start: str) -> list[str]:
    """A switch and all that it is fed by, the nearest first; stops at what is invalid elsewhere."""
    found: list[str] = []
    name: str | None = start if start in document.valid.switches else None
    while name is not None and name not in found:
        found.append(name)
        name = _upstream(document, name)
    return found


def _check_conditions(document: Document) -> None:
    """Conditions name worth profiles that exist, and links that join two switches; other names are checked above."""
    file, profiles, switches = document.file, document.names["worth_profiles"], document.names["switches"]
    whole = len(document.valid.switches) == len(switches)
    for number, entry in document.valid.conditions.items():
        place = ("conditions", number)
        profile, ends = entry.worth_profile, entry.link
        if profile is not None and profile not in (USUAL_PROFILE, *profiles):
            what, fix = file.unknown("worth profile", profile, profiles, "worth_profiles")
            file.report_at((*place, "worth_profile"), what, fix)
        if ends is None:
            continue
        unknown = [row for row, name in enumerate(ends) if name not in switches]
        for row in unknown:
            line, _ = file.locate((*place, "link", row))
            file.report(
                line, ".".join((*place, "link")), *file.unknown("switch", ends[row], switches, "switches")
            )
        if not unknown and whole and joining_port(document, ends) is None:
            what = f"no port of {ends[0]} or {ends[1]} feeds the other"
            file.report_at((*place, "link"), what, "name a switch and the one that it is fed by")


def joining_port(document: Document, ends: Collection[str]) -> str | None:
    """The port whose link joins two switches, whichever is named first: the one that feeds, else the backup."""
    for key in ("fed_by", "backup"):
        for name, switch in document.valid.switches.items():
            port = document.valid.ports.get(getattr(switch, key) or "")
            if port is not None and {name, port.switch} == set(ends):
                return str(getattr(switch, key))
    return None


def check_condition_topics(document: Document, published: PublicationRows) -> None:
    """Conditions and worth profiles name topics that are published, by the publisher that stands beside them."""
    file, tree = document.file, TopicTree(published.published)
    for name, profile in document.names["worth_profiles"].items():
        for topic in profile if isinstance(profile, dict) else ():
            error = _unpublished(document, topic, tree, published.published)
            if error is not None:
                file.report_at(("worth_profiles", name, topic), *error)
    names, publishers = list(published.topics), list(document.names["publishers"])
    for number, entry in document.valid.conditions.items():
        if entry.topic is None:
            continue
        error = _unpublished(document, entry.topic, tree, published.published)
        if error is None and entry.publisher in publishers:
            own = published.table.topic[published.table.publisher == publishers.index(entry.publisher)]
            topics = [names[row] for row in np.unique(own)]
            if not TopicTree(topics).names_matching(entry.topic):
                error = (
                    f"{entry.publisher} does not publish {entry.topic}",
                    f"it publishes {listed(topics)}",
                )
        if error is not None:
            file.report_at(("conditions", number, "topic"), *error)


def _unpublished(
    document: Document, topic: str, tree: TopicTree, published: Collection[str]
) -> tuple[str, str] | None:
    error = filter_error(topic)
    return error if error is not None or tree.names_matching(topic) else document.unmatched(topic, published)


def check_rows(document: Document, publications: PublicationRows, subscriptions: SubscriptionRows) -> None:
    """Report listed topics without a proper name, events that do not fit a packet, and lost subscriptions."""
    for name in document.names["topics"]:
        error = topic_error(name)
        if error is not None:
            document.file.report_at(("topics", name), *error)
    _check_largest_sizes(publications)
    _check_packet_sizes(document, publications)
    _check_paths(document, publications, subscriptions)


def _check_packet_sizes(document: Document, publications: PublicationRows) -> None:
    file = document.valid
    if (
        document.invalid_keys & {"overhead_bytes", "fragmentation"}
        or file.mtu_bytes is None
        or file.fragmentation
    ):
        return
    room = file.mtu_bytes - file.overhead_bytes
    largest = _largest_sizes(publications)
    publications.report(
        np.flatnonzero(largest > room),
        "size_bytes",
        lambda row: (
            f"is up to {number_text(largest[row])}, and a packet has room for {number_text(room)}",
            f"write fragmentation: true, or at most {number_text(room)}",
        ),
    )


def _check_largest_sizes(publications: PublicationRows) -> None:
    largest, stated = _largest_sizes(publications), publications.table.max_size_bytes
    publications.report(
        np.flatnonzero(stated < largest),
        "max_size_bytes",
        lambda row: (
            f"is {number_text(stated[row])}, and sizes are {number_text(largest[row])}",
            f"write at least {number_text(largest[row])}",
        ),
    )


def _largest_sizes(publications: PublicationRows) -> Floats:
    """The size that must fit: the largest of an empirical distribution, the mean of an exponential one."""
    table = publications.table
    largest = np.array([sizes.max() for sizes in publications.samples.size_bytes] or [0.0])
    empirical = table.size_distribution == SizeDistribution.EMPIRICAL
    return np.where(empirical, largest[np.where(empirical, table.size_samples, 0)], table.size_bytes)


def broker_column(document: Document, title: Literal["publishers", "subscribers"]) -> Integers:
    """The broker of every publisher or subscriber; the only one where none is named, -1 where it is not known."""
    numbers = {name: number for number, name in enumerate(document.names["brokers"])}
    only = 0 if len(numbers) == 1 else -1
    clusters = clusters_of(document)
    valid: Mapping[str, PublisherEntry | SubscriberEntry] = getattr(document.valid, title)
    found = []
    for name in document.names[title]:
        entry = valid.get(name)
        named = None if entry is None else first_broker(clusters, title, entry)
        found.append(-1 if entry is None else only if named is None else numbers.get(named, -1))
    return np.array(found, dtype=np.int32)


def _check_paths(document: Document, publications: PublicationRows, subscriptions: SubscriptionRows) -> None:
    """A subscription needs a path from the broker of at least one publisher of its topic."""
    brokers = {name: number for number, name in enumerate(document.names["brokers"])}
    links = list(document.valid.broker_links.values())
    # An invalid link might be the path that is looked for.
    doubtful = len(links) < len(document.names["broker_links"]) or "broker_links" in document.invalid_keys
    if len(brokers) < 2 or doubtful or not all(set(link.ends) <= brokers.keys() for link in links):
        return
    reaches = _reachability(links, brokers)
    if reaches.all():
        return
    source = broker_column(document, "publishers")[publications.table.publisher]
    target = broker_column(document, "subscribers")[subscriptions.table.subscriber]
    arrives = np.zeros((len(publications.topics), len(brokers)), dtype=bool)
    known = source >= 0
    np.logical_or.at(arrives, publications.table.topic[known], reaches[source[known]])
    arrives[publications.table.topic[~known]] = True
    arrives[[publications.topics[topic] for topic in publications.doubtful]] = True
    topic = subscriptions.table.topic
    lost = np.flatnonzero((target >= 0) & (topic >= 0) & ~arrives[topic, target])
    names, topics = list(brokers), list(publications.topics)
    subscriptions.report(
        lost,
        "",
        lambda row: (
            f"no broker with a publisher of {topics[topic[row]]} has a path to {names[target[row]]}",
            f"add a broker link that leads to {names[target[row]]}",
        ),
    )


def _reachability(links: Iterable[BrokerLinkEntry], brokers: Mapping[str, int]) -> NDArray[np.bool_]:
    """Per pair of brokers, whether events of the first can come to the second."""
    next_brokers: list[list[int]] = [[] for _ in brokers]
    for link in links:
        for source, target in link.directions:
            next_brokers[brokers[source]].append(brokers[target])
    reaches = np.eye(len(brokers), dtype=bool)
    for start in range(len(brokers)):
        waiting = [start]
        while waiting:
            for broker in next_brokers[waiting.pop()]:
                if not reaches[start, broker]:
                    reaches[start, broker] = True
                    waiting.append(broker)
    return reaches
