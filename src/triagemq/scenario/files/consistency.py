"""Does what is published and wanted fit the network: packet sizes, and a path to every subscription."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.files.document import BrokerLinkEntry, PublisherEntry, SubscriberEntry
from triagemq.scenario.files.quantities import number_text
from triagemq.scenario.files.reading import Document
from triagemq.scenario.files.rules import PublicationRows, SubscriptionRows
from triagemq.scenario.kinds import SizeDistribution
from triagemq.scenario.model import Floats, Integers
from triagemq.scenario.wildcards import topic_mistake

__all__ = ["broker_column", "check_rows"]


def check_rows(document: Document, publications: PublicationRows, subscriptions: SubscriptionRows) -> None:
    """Report listed topics without a proper name, events that do not fit a packet, and lost subscriptions."""
    for name in document.names["topics"]:
        wrong = topic_mistake(name)
        if wrong is not None:
            document.file.complain(("topics", name), *wrong)
    _check_packet_sizes(document, publications)
    _check_paths(document, publications, subscriptions)


def _check_packet_sizes(document: Document, publications: PublicationRows) -> None:
    file = document.right
    if document.wrong & {"overhead_bytes", "fragmentation"} or file.mtu_bytes is None or file.fragmentation:
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
    right: Mapping[str, PublisherEntry | SubscriberEntry] = getattr(document.right, title)
    found = []
    for name in document.names[title]:
        entry = right.get(name)
        named = None if entry is None else entry.broker
        found.append(-1 if entry is None else only if named is None else numbers.get(named, -1))
    return np.array(found, dtype=np.int32)


def _check_paths(document: Document, publications: PublicationRows, subscriptions: SubscriptionRows) -> None:
    """A subscription needs a path from the broker of at least one publisher of its topic."""
    brokers = {name: number for number, name in enumerate(document.names["brokers"])}
    links = list(document.right.broker_links.values())
    # A link that is wrong might be the path that is looked for.
    doubtful = len(links) < len(document.names["broker_links"]) or "broker_links" in document.wrong
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
