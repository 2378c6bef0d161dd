"""Does what is published and wanted fit the network: packet sizes, and a path to every subscription."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.document import PublisherEntry, SubscriberEntry
from triagemq.scenario.kinds import SizeDistribution
from triagemq.scenario.model import Floats, Integers
from triagemq.scenario.reader import Reader
from triagemq.scenario.rows import PublicationRows, SubscriptionRows
from triagemq.scenario.sections import Entries, Link, Sections
from triagemq.scenario.units import number_text
from triagemq.scenario.wildcards import topic_mistake

__all__ = ["broker_column", "check_rows"]


def check_rows(
    reader: Reader, sections: Sections, publications: PublicationRows, subscriptions: SubscriptionRows
) -> None:
    """Report listed topics without a proper name, events that do not fit a packet, and lost subscriptions."""
    for name, pair in sections.topics.pairs.items():
        wrong = topic_mistake(name)
        if wrong is not None:
            reader.report(pair.key, f"topics.{name}", *wrong)
    _check_packet_sizes(sections, publications)
    _check_paths(sections, publications, subscriptions)


def _check_packet_sizes(sections: Sections, publications: PublicationRows) -> None:
    header = sections.header
    if header is None or header.mtu_bytes is None or header.fragmentation:
        return
    room = header.mtu_bytes - header.overhead_bytes
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


def broker_column(
    section: Entries[PublisherEntry] | Entries[SubscriberEntry], brokers: Mapping[str, int]
) -> Integers:
    """The broker of every entry of a section; the only one where none is named, -1 where it is not known."""
    only = 0 if len(brokers) == 1 else -1
    right: Mapping[str, PublisherEntry | SubscriberEntry] = section.right
    return np.array(
        [
            -1
            if (entry := right.get(name)) is None
            else only
            if entry.broker is None
            else brokers.get(entry.broker, -1)
            for name in section
        ],
        dtype=np.int32,
    )


def _check_paths(sections: Sections, publications: PublicationRows, subscriptions: SubscriptionRows) -> None:
    """A subscription needs a path from the broker of at least one publisher of its topic."""
    if len(sections.brokers) < 2 or not all(
        _leads_somewhere(sections, link) for link in sections.broker_links
    ):
        return
    brokers = {name: number for number, name in enumerate(sections.brokers)}
    reaches = _reachability(sections, brokers)
    if reaches.all():
        return
    source = broker_column(sections.publishers, brokers)[publications.table.publisher]
    target = broker_column(sections.subscribers, brokers)[subscriptions.table.subscriber]
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


def _leads_somewhere(sections: Sections, link: Link) -> bool:
    """A link that is wrong might be the path that is looked for."""
    return link.entry is not None and all(broker in sections.brokers for broker in link.entry.ends)


def _reachability(sections: Sections, brokers: Mapping[str, int]) -> NDArray[np.bool_]:
    """Per pair of brokers, whether events of the first can come to the second."""
    next_brokers: list[list[int]] = [[] for _ in brokers]
    for link in sections.broker_links:
        for source, target in link.entry.directions if link.entry is not None else ():
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
