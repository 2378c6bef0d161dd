"""Can what a scenario asks for with a guarantee be promised at all: the terms of its publications, a way to each of its
subscribers, and time enough for the wires. Whether it is promised beside all others is up to admission.

It is looked at in a scenario that is right in everything else, so that one mistake is one problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import islice

import numpy as np

from triagemq.scenario.files.explain import listed
from triagemq.scenario.files.quantities import number_text
from triagemq.scenario.files.reading import Document
from triagemq.scenario.files.rules import PublicationRows, SubscriptionRows
from triagemq.scenario.kinds import Discipline
from triagemq.scenario.model import Scenario
from triagemq.scenario.routes import SwitchLinks, direct_paths, switch_links, wire_seconds

WAYS_TRIED = 16
"""The way with the fewest hops is not always the fastest; so many are looked at before a wish is called impossible."""


def check_promises(
    scenario: Scenario, document: Document, publications: PublicationRows, subscriptions: SubscriptionRows
) -> None:
    """Report every guarantee that nobody could keep."""
    if scenario.subscriptions.guaranteed.any():
        _Promises(scenario, document, publications, subscriptions).check()


class _Promises:
    def __init__(
        self,
        scenario: Scenario,
        document: Document,
        publications: PublicationRows,
        subscriptions: SubscriptionRows,
    ) -> None:
        self.scenario = scenario
        self.document = document
        self.file_publications = publications
        self.file_subscriptions = subscriptions
        self.links = switch_links(scenario)
        self.ways: dict[tuple[int, int], tuple[int, ...] | None] = {}

    def check(self) -> None:
        self._check_packets()
        stated: set[int] = set()
        plugged: set[int] = set()
        for subscription, publication in self._pairs():
            if publication not in stated:
                stated.add(publication)
                self._check_terms(publication, subscription)
            self._check_separation(publication, subscription)
            publisher = int(self.scenario.publications.publisher[publication])
            if self.scenario.publishers.access_switch[publisher] >= 0:
                self._check_way(publication, subscription)
            elif publisher not in plugged:
                plugged.add(publisher)
                fix = f"write one of {listed(self.scenario.switches.name)}"
                place = ("publishers", self.scenario.publishers.name[publisher], "access")
                self.document.file.complain(place, f"is missing, and {self._asked(subscription)}", fix)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Every guaranteed subscription with every publication on its topic."""
        topics = self.scenario.publications.topic
        by_topic = np.argsort(topics, kind="stable")
        wanted = np.flatnonzero(self.scenario.subscriptions.guaranteed)
        topic = self.scenario.subscriptions.topic[wanted]
        first, last = (np.searchsorted(topics[by_topic], topic, side) for side in ("left", "right"))
        for subscription, start, stop in zip(wanted.tolist(), first.tolist(), last.tolist(), strict=True):
            for publication in by_topic[start:stop].tolist():
                yield subscription, publication

    def _check_packets(self) -> None:
        overhead = self.scenario.overhead_bytes
        for name, room in zip(self.scenario.switches.name, self.scenario.switches.packet_bytes, strict=True):
            if room <= overhead:
                what = f"is {number_text(room)}, no more than the overhead of each packet"
                fix = f"write more than {number_text(overhead)}"
                self.document.file.complain(("switches", name, "packet_bytes"), what, fix)

    def _check_terms(self, publication: int, subscription: int) -> None:
        table = self.scenario.publications
        what = f"is missing, and {self._asked(subscription)}"
        if table.min_separation_seconds[publication] == 0:
            rate = number_text(table.rate_per_second[publication])
            fix = f"add the least time between two events, at most 1/{rate} at this rate"
            self._report_publication(publication, "min_separation_seconds", what, fix)
        if np.isinf(table.max_size_bytes[publication]):
            fix = f"add the largest size, at least {number_text(table.size_bytes[publication])}"
            self._report_publication(publication, "max_size_bytes", what, fix)

    def _check_separation(self, publication: int, subscription: int) -> None:
        """MIDAS, section II: a publication matches if it comes at least as often as the subscriber needs it."""
        offered = self.scenario.publications.max_separation_seconds[publication]
        needed = self.scenario.subscriptions.max_separation_seconds[subscription]
        if offered > needed:
            stated = "is missing" if np.isinf(offered) else f"is {number_text(offered)}"
            fix = f"write at most {number_text(needed)}, or more in the subscription"
            what = f"{stated}, and {self._asked(subscription)} every {number_text(needed)} seconds"
            self._report_publication(publication, "max_separation_seconds", what, fix)

    def _check_way(self, publication: int, subscription: int) -> None:
        scenario = self.scenario
        publisher = int(scenario.publications.publisher[publication])
        subscriber = int(scenario.subscriptions.subscriber[subscription])
        access, port = (
            int(scenario.publishers.access_switch[publisher]),
            int(scenario.subscribers.port[subscriber]),
        )
        if (access, port) not in self.ways:
            self.ways[access, port] = next(direct_paths(scenario, publisher, subscriber, self.links), None)
        way = self.ways[access, port]
        if way is None:
            self._report_subscription(subscription, "", *self._no_way(publisher, subscriber))
            return
        if np.isinf(scenario.publications.max_size_bytes[publication]):
            return
        latest = scenario.subscriptions.max_latency_seconds[subscription]
        if latest < (fastest := self._wire_seconds(publication, subscriber, way)):
            paths = direct_paths(scenario, publisher, subscriber, self.links)
            tried = (self._wire_seconds(publication, subscriber, path) for path in islice(paths, WAYS_TRIED))
            fastest = min(fastest, *tried)
        if latest < fastest:
            name = scenario.publishers.name[publisher]
            what = f"is {number_text(latest)}, less than the wires from {name} take"
            fix = f"write at least {number_text(_rounded_up(fastest))}"
            self._report_subscription(subscription, "max_latency_seconds", what, fix)

    def _wire_seconds(self, publication: int, subscriber: int, path: tuple[int, ...]) -> float:
        if (self.scenario.switches.packet_bytes <= self.scenario.overhead_bytes).any():
            return 0.0  # has been reported
        return wire_seconds(self.scenario, publication, subscriber, path) * (1 - 1e-9)

    def _no_way(self, publisher: int, subscriber: int) -> tuple[str, str]:
        scenario = self.scenario
        ports, switches = scenario.ports, scenario.switches.name
        port = int(scenario.subscribers.port[subscriber])
        access = switches[scenario.publishers.access_switch[publisher]]
        fair = [port] if ports.discipline[port] != Discipline.PRIORITY else self._fair_ports(publisher, port)
        if fair:
            what = f"leads over {listed(ports.name[each] for each in fair)}, which does not serve by priority"
            return what, "write discipline: priority there, or ask for no guarantee"
        what = f"there is no way from {access}, where {scenario.publishers.name[publisher]} is, to {ports.name[port]}"
        return (
            what,
            f"add a port of {access} with to: {switches[ports.switch[port]]}, or a switch between them",
        )

    def _fair_ports(self, publisher: int, port: int) -> list[int]:
        """The ports of another discipline on the way that there would be without them."""
        scenario = self.scenario
        subscriber = int(np.flatnonzero(scenario.subscribers.port == port)[0])
        way = next(direct_paths(scenario, publisher, subscriber, self._any_links), ())
        return [each for each in way if scenario.ports.discipline[each] != Discipline.PRIORITY]

    @cached_property
    def _any_links(self) -> SwitchLinks:
        return switch_links(self.scenario, of_any_discipline=True)

    def _asked(self, subscription: int) -> str:
        table = self.scenario.subscriptions
        name = self.scenario.subscribers.name[table.subscriber[subscription]]
        return f"{name} asks for {self.scenario.topics.name[table.topic[subscription]]} with a guarantee"

    def _report_publication(self, row: int, column: str, what: str, fix: str) -> None:
        table, source = self.scenario.publications, self.file_publications
        owner = list(self.document.names["publishers"]).index(
            self.scenario.publishers.name[table.publisher[row]]
        )
        topic = source.topics[self.scenario.topics.name[table.topic[row]]]
        found = np.flatnonzero((source.table.publisher == owner) & (source.table.topic == topic))
        source.report(found, column, partial(_said, what, fix))

    def _report_subscription(self, row: int, column: str, what: str, fix: str) -> None:
        table, source = self.scenario.subscriptions, self.file_subscriptions
        owner = list(self.document.names["subscribers"]).index(
            self.scenario.subscribers.name[table.subscriber[row]]
        )
        topic = self.file_publications.topics[self.scenario.topics.name[table.topic[row]]]
        found = np.flatnonzero((source.table.subscriber == owner) & (source.table.topic == topic))
        source.report(found, column, partial(_said, what, fix))


def _said(what: str, fix: str, row: int) -> tuple[str, str]:
    return what, fix


def _rounded_up(seconds: float) -> float:
    """A time of four digits that is no less.

    >>> _rounded_up(0.00012301)
    0.0001231
    """
    digits = 3 - math.floor(math.log10(seconds))
    return math.ceil(seconds * 10.0**digits) / 10.0**digits
