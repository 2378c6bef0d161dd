"""Does what a file says fit together: names, the tree of switches, links, queues and conditions among themselves; and
what is published and wanted to the network, in the size of packets and with a path to every subscription.

Every entry is valid by itself here; and but for `check_names`, every name leads to an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from triagemq.mqttsn.filters import TopicTree
from triagemq.scenario.conditions import USUAL_PROFILE, Conditions, port_of_link
from triagemq.scenario.files.document import PublisherEntry, SubscriberEntry
from triagemq.scenario.files.explain import filter_error, listed, number_text, topic_error
from triagemq.scenario.files.reading import Document
from triagemq.scenario.files.rows import PublicationRows, SubscriptionRows
from triagemq.scenario.kinds import SizeDistribution
from triagemq.scenario.model import REFERENCES, Floats, Scenario
from triagemq.scenario.routes import broker_routes

Client = PublisherEntry | SubscriberEntry

KEYS = {
    ("switches", "fed_by_port"): "fed_by",
    ("ports", "to_switch"): "to",
    ("publishers", "unmanaged_switch"): "switch",
    ("publishers", "access_switch"): "access",
}
"""The keys of columns that have other names in files."""

NAMES = (
    *(
        (title, KEYS.get((title, column), column), target)
        for title in ("publishers", "subscribers", "switches", "ports")
        for column, target in REFERENCES[title].items()
    ),
    ("switches", "backup", "ports"),
)
"""Keys that name something else: the section and key, and the section of what is named."""


def check_names(document: Document) -> None:
    """Report names that lead nowhere."""
    valid = document.valid
    for title, key, target in NAMES:
        for name, entry in getattr(valid, title).items():
            _check_name(document, (title, name, key), getattr(entry, key), target)
    for number, link in enumerate(valid.broker_links):
        keys = ("between", "between") if link.between is not None else ("from", "to")
        for key, broker in zip(keys, link.ends, strict=True):
            _check_name(document, ("broker_links", number, key), broker, "brokers")
    for number, entry in enumerate(valid.conditions):
        place = ("conditions", number)
        for key in ("port", "publisher", "subscriber"):
            _check_name(document, (*place, key), getattr(entry, key), f"{key}s")
        for switch in entry.link or ():
            _check_name(document, (*place, "link"), switch, "switches")
        if entry.worth_profile != USUAL_PROFILE:
            _check_name(document, (*place, "worth_profile"), entry.worth_profile, "worth_profiles")
    clusters = {broker.cluster: name for name, broker in valid.brokers.items() if broker.cluster is not None}
    for title in ("publishers", "subscribers"):
        for name, client in getattr(valid, title).items():
            if client.cluster is not None and client.cluster not in clusters:
                unknown = document.file.unknown("cluster", client.cluster, clusters, "brokers")
                document.file.report_at((title, name, "cluster"), *unknown)
            elif client.cluster is client.broker is None and len(valid.brokers) > 1:
                what, fix = "is missing where there are several", f"write one of {listed(valid.brokers)}"
                document.file.report_at((title, name, "broker"), what, fix)


def _check_name(document: Document, path: tuple[str | int, ...], name: str | None, target: str) -> None:
    known = getattr(document.valid, target)
    if name is not None and name not in known:
        kind = target.removesuffix("es" if "switch" in target else "s").replace("_", " ")
        document.file.report_at(path, *document.file.unknown(kind, name, known, target))


def check_network(document: Document) -> None:
    """Report what does not fit between the entries of the network."""
    _check_links(document)
    _check_clusters(document)
    _check_queues(document)
    feeds: dict[str, str] = {}
    for name, switch in document.valid.switches.items():
        if switch.fed_by is not None:
            feeds.setdefault(switch.fed_by, name)
    loops = list(_loops(document))
    for loop in loops:
        what = f"closes a loop: {' is fed by '.join([*loop, loop[0]])}"
        if len(loop) == 1:
            what = f"is {document.valid.switches[loop[0]].fed_by}, a port of {loop[0]} itself"
        fix = "name a port of a switch nearer to the brokers"
        document.file.report_at(("switches", loop[0], "fed_by"), what, fix)
    if not loops:
        _check_tree(document, feeds)
        _check_backups(document, feeds)


def _check_links(document: Document) -> None:
    file = document.file
    first_line: dict[tuple[str, str], int] = {}
    for number, link in enumerate(document.valid.broker_links):
        place = ("broker_links", number)
        for ends in link.directions:
            if ends in first_line:
                what = f"joins {ends[0]} to {ends[1]} again, after line {first_line[ends]}"
                file.report_at(place, what, "remove one of the two links")
                break
            first_line[ends], _ = file.locate(place)


def _serving(document: Document, cluster: str, title: str) -> list[str]:
    """The brokers of a cluster that serve publishers, or subscribers, in order of their names."""
    head = title == "publishers"
    brokers = sorted(document.valid.brokers.items())
    return [name for name, broker in brokers if broker.cluster == cluster and broker.head == head]


def first_broker(document: Document, title: str, client: Client) -> str:
    """The broker of a client: the one it names, or the only one, else the head of its cluster, or the first edge until
    it is placed."""
    if client.broker is None and client.cluster is not None:
        return _serving(document, client.cluster, title)[0]
    return client.broker or next(iter(document.valid.brokers))


def _check_clusters(document: Document) -> None:
    """Report clusters without a head or with two, and clients that are not where their kind is served."""
    file, brokers = document.file, document.valid.brokers
    for name, broker in brokers.items():
        if broker.head and broker.cluster is None:
            fix = "add cluster, or remove head"
            file.report_at(("brokers", name, "head"), "stands without cluster", fix)
    for cluster in dict.fromkeys(broker.cluster for broker in brokers.values() if broker.cluster is not None):
        heads, edges = (_serving(document, cluster, title) for title in ("publishers", "subscribers"))
        if not heads:
            what, fix = f"is {cluster}, a cluster without a head", f"add head: true to one of {listed(edges)}"
            file.report_at(("brokers", edges[0], "cluster"), what, fix)
        for second in heads[1:]:
            what = f"makes a second head of {cluster}; the first is {heads[0]}"
            file.report_at(("brokers", second, "head"), what, "keep one of the two")
    for title, kind in (("publishers", "a head"), ("subscribers", "an edge")):
        clients: Mapping[str, Client] = getattr(document.valid, title)
        for name, client in clients.items():
            home = client.cluster or (brokers[client.broker].cluster if client.broker else None)
            if home is None:
                continue
            serving = _serving(document, home, title)
            if client.cluster is not None and client.broker is not None:
                file.report_at((title, name, "cluster"), "stands next to broker", "keep one of the two")
            elif client.broker is not None and serving and client.broker not in serving:
                what = f"is {client.broker}, and {title} of a cluster are served by {kind}"
                file.report_at((title, name, "broker"), what, f"write {listed(serving)}")
            elif client.broker is None and not serving and title == "subscribers":
                what = f"is {home}, which has no edge broker"
                file.report_at((title, name, "cluster"), what, f"add a broker with cluster: {home}")


def _check_queues(document: Document) -> None:
    classes = document.valid.planning.priority_classes
    for name, port in document.valid.ports.items():
        if port.queues is not None and port.queues < classes:
            document.file.report_at(
                ("ports", name, "queues"),
                f"is {port.queues}, fewer than the {classes} priority classes",
                f"write planning: {{priority_classes: {port.queues}}}, or more queues",
            )
        if port.queue_rates_bps is not None and len(port.queue_rates_bps) != classes:
            document.file.report_at(
                ("ports", name, "queue_rates_bps"),
                f"has {len(port.queue_rates_bps)} numbers for {classes} priority classes",
                f"write planning: {{priority_classes: {len(port.queue_rates_bps)}}}, or {classes} queue rates",
            )


def _path_to_broker(document: Document, name: str) -> Iterator[str]:
    """A switch, the one that feeds it, and so on; endless in a loop."""
    valid = document.valid
    yield name
    while (port := valid.switches[name].fed_by) is not None:
        name = valid.ports[port].switch
        yield name


def _loops(document: Document) -> Iterator[list[str]]:
    """Every loop of switches once, each switch followed by the one that feeds it."""
    done: set[str] = set()
    for start in document.valid.switches:
        path: list[str] = []
        for name in _path_to_broker(document, start):
            if name in path:
                yield path[path.index(name) :]
            if name in done:
                break
            done.add(name)
            path.append(name)


def _check_tree(document: Document, feeds: dict[str, str]) -> None:
    """Report ports that feed two switches, or a switch and a subscriber; links besides the tree join `feeds`."""
    file, valid = document.file, document.valid
    for name, switch in valid.switches.items():
        if switch.fed_by is not None and feeds[switch.fed_by] != name:
            what = f"is {switch.fed_by}, which feeds {feeds[switch.fed_by]} already"
            file.report_at(("switches", name, "fed_by"), what, "give each switch a port of its own upstream")
    for name, port in valid.ports.items():
        if port.to is None:
            continue
        if port.to == port.switch:
            file.report_at(("ports", name, "to"), f"is {port.to}, its own switch", "name another switch")
        elif name in feeds:
            what = f"is {port.to}, and {name} feeds {feeds[name]} already"
            file.report_at(("ports", name, "to"), what, "give each link a port of its own")
        feeds.setdefault(name, port.to)
    for name, subscriber in valid.subscribers.items():
        if subscriber.port in feeds:
            file.report_at(
                ("subscribers", name, "port"),
                f"is {subscriber.port}, which feeds the switch {feeds[subscriber.port]}",
                f"put it on a port of its own, or on one of {feeds[subscriber.port]}",
            )


def _check_backups(document: Document, feeds: Mapping[str, str]) -> None:
    """A backup is a port reserved for one switch, on another that does not itself hang below it."""
    valid = document.valid
    uses = {port: f"feeds the switch {switch} already" for port, switch in feeds.items()}
    uses |= {subscriber.port: f"has the subscriber {name}" for name, subscriber in valid.subscribers.items()}
    for name, switch in valid.switches.items():
        port = switch.backup
        if port is None:
            continue
        what = uses.setdefault(port, "")
        if not what and name in _path_to_broker(document, valid.ports[port].switch):
            what = f"is behind {name} itself"
        if what:
            fix = "name a port of its own, on a switch that is nearer to the brokers"
            document.file.report_at(("switches", name, "backup"), f"is {port}, which {what}", fix)
        uses[port] = uses[port] or f"is the backup of {name} already"


def check_rows(
    document: Document,
    scenario: Scenario,
    conditions: Conditions,
    published: PublicationRows,
    subscribed: SubscriptionRows,
) -> None:
    """Report topics without a proper name or a publisher, links of conditions that join no switches, events that do not
    fit a packet, and lost subscriptions.

    The scenario has its rows in the order of the file.
    """
    for name in document.valid.topics:
        if (error := topic_error(name)) is not None:
            document.file.report_at(("topics", name), *error)
    backups = conditions.backup_ports(scenario)
    for number, entry in enumerate(document.valid.conditions):
        if entry.link is not None and port_of_link(scenario, backups, entry.link) is None:
            what = f"no port of {entry.link[0]} or {entry.link[1]} feeds the other"
            fix = "name a switch and the one that it is fed by"
            document.file.report_at(("conditions", number, "link"), what, fix)
    _check_topics(document, scenario, published)
    _check_sizes(document, published)
    if len(scenario.brokers) > 1:
        _check_paths(scenario, subscribed)


def _check_topics(document: Document, scenario: Scenario, published: PublicationRows) -> None:
    """Conditions and worth profiles name topics that are published, by the publisher that is named with them."""
    tree, table = TopicTree(published.topics), published.table
    places: list[tuple[tuple[str | int, ...], str, str | None]] = [
        (("worth_profiles", name, topic), topic, None)
        for name, profile in document.valid.worth_profiles.items()
        for topic in profile
    ]
    for number, entry in enumerate(document.valid.conditions):
        if entry.topic is not None:
            places.append((("conditions", number, "topic"), entry.topic, entry.publisher))
    for place, topic, publisher in places:
        error = filter_error(topic)
        if error is None and not tree.names_matching(topic):
            error = document.unmatched(topic, published.topics)
        elif error is None and publisher is not None:
            own = table.topic[table.publisher == scenario.publishers.name.index(publisher)]
            topics = [scenario.topics.name[row] for row in np.unique(own)]
            if not TopicTree(topics).names_matching(topic):
                error = f"{publisher} does not publish {topic}", f"it publishes {listed(topics)}"
        if error is not None:
            document.file.report_at(place, *error)


def _check_sizes(document: Document, published: PublicationRows) -> None:
    largest, stated = _largest_sizes(published), published.table.max_size_bytes
    invalid = np.flatnonzero(stated < largest)
    sizes = zip(map(number_text, stated[invalid]), map(number_text, largest[invalid]), strict=True)
    published.report(
        invalid, "max_size_bytes", ((f"is {a}, and sizes are {b}", f"write at least {b}") for a, b in sizes)
    )
    file = document.valid
    if file.mtu_bytes is None or file.fragmentation:
        return
    room = number_text(file.mtu_bytes - file.overhead_bytes)
    invalid = np.flatnonzero(largest > file.mtu_bytes - file.overhead_bytes)
    fix = f"write fragmentation: true, or at most {room}"
    what = (f"is up to {number_text(size)}, and a packet has room for {room}" for size in largest[invalid])
    published.report(invalid, "size_bytes", ((each, fix) for each in what))


def _largest_sizes(publications: PublicationRows) -> Floats:
    """The size that must fit: the largest of an empirical distribution, the mean of an exponential one."""
    table = publications.table
    largest = np.array([sizes.max() for sizes in publications.samples.size_bytes] or [0.0])
    empirical = table.size_distribution == SizeDistribution.EMPIRICAL
    return np.where(empirical, largest[np.where(empirical, table.size_samples, 0)], table.size_bytes)


def _check_paths(scenario: Scenario, subscribed: SubscriptionRows) -> None:
    """A subscription needs a path from the broker of at least one publisher of its topic."""
    published, wanted = scenario.publications, subscribed.table
    arrives = np.zeros((len(scenario.topics), len(scenario.brokers)), dtype=np.bool_)
    source = scenario.publishers.broker[published.publisher]
    np.logical_or.at(arrives, published.topic, broker_routes(scenario).reach[source] > 0)
    target = scenario.subscribers.broker[wanted.subscriber]
    lost = np.flatnonzero(~arrives[wanted.topic, target])
    ends = [(scenario.topics.name[wanted.topic[row]], scenario.brokers.name[target[row]]) for row in lost]
    what = (f"no broker with a publisher of {topic} has a path to {broker}" for topic, broker in ends)
    fixes = (f"add a broker link that leads to {broker}" for _, broker in ends)
    subscribed.report(lost, "", zip(what, fixes, strict=True))
