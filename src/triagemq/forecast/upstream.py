"""From the publishers to each home broker: rates, delays and arrival variability of every topic there.

The path is the first half of PrioDeX eq. 10: unmanaged switch (FIFO), link, broker inbound queue and, with several
brokers, the links and brokers on the way to the subscriber's own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.demands import WireSizes, sum_by, survival_to_brokers, total_by, wire_sizes
from triagemq.scenario import (
    ArrivalProcess,
    BrokerRoutes,
    Floats,
    Integers,
    Publications,
    Scenario,
    broker_routes,
)
from triagemq.theory import (
    Cumulants,
    departure_ca2,
    gg1_factor,
    merged_ca2,
    mm1_sojourn,
    on_off_ca2,
    pareto_ca2,
    priority_waits,
    queue_times,
    split_ca2,
)

NOT_POISSON = 0.44
"""How irregular a process that is not Poisson is at least, as a deviation of its ca2 from 1. A ca2 does not say all: of
a Poisson process' gaps 44 % are shorter than the shortest of a Pareto process of the same ca2."""


@dataclass(frozen=True, slots=True, eq=False)
class TopicArrivals:
    """Matrices of one row per broker and one column per topic: what leaves that broker's inbound queue.

    `streams` is the effective number of independent publications behind a topic, which QNA's merging needs.
    `irregular` says how far these are from Poisson processes, of which it is 0; what one has too much does not make up
    for what another has too little, as in the ca2 of all.
    `queued_seconds` is the part of the delay in unmanaged switches and in the queues of links.
    `doubtful_seconds` is the part of the delay that may be wrong because arrivals are not Poisson.
    """

    rate: Floats
    delay: Cumulants
    ca2: Floats
    irregular: Floats
    streams: Floats
    queued_seconds: Floats
    doubtful_seconds: Floats

    @property
    def poisson(self) -> bool:
        """Whether every stream is a Poisson process, so that no variability factor applies."""
        return bool((self.irregular == 0.0).all())


@dataclass(frozen=True, slots=True, eq=False)
class _Entering:
    """Columns over publications at their own broker's door."""

    rate: Floats
    delay: Cumulants
    ca2: Floats
    queued_seconds: Floats
    doubtful_seconds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """Columns over independent streams of events at some queues: rate, variability, and how many publications they are.

    `irregular` is as in TopicArrivals.
    """

    queue: Integers
    rate: Floats
    ca2: Floats
    irregular: Floats
    publications: Floats

    @classmethod
    def joined(cls, parts: list[Streams]) -> Streams:
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def of(self, rows: NDArray[Any], packets: Floats | float = 1.0) -> Streams:
        """Some of the streams; an event counts as so many arrivals."""
        some = Streams(*(getattr(self, each.name)[rows] for each in fields(self)))
        return replace(some, rate=some.rate * packets)

    def at(self, queue: Integers, share: float = 1.0) -> Streams:
        """The same at other queues, of which a share of the events comes; thinning pulls variability towards 1."""
        return replace(
            self,
            queue=queue,
            rate=self.rate * share,
            ca2=split_ca2(self.ca2, share),
            irregular=self.irregular * share,
        )

    def merged(self, load: Floats) -> Floats:
        """Per queue, the variability of everything that arrives."""
        return merged_ca2(
            self.rate, self.ca2, np.minimum(load, 1.0), queues=self.queue, streams=self.publications
        )

    def factor(self, load: Floats, scv: Floats) -> tuple[Floats, Floats]:
        """Per queue the factor on the wait of Poisson arrivals (Allen-Cunneen), and the part of that wait in doubt."""
        found = gg1_factor(self.merged(load), scv)
        total, uneven, squares = (
            total_by(self.queue, each, len(load))
            for each in (self.rate, self.rate * self.irregular, self.rate**2 / self.publications)
        )
        return found, arrivals_doubt(found, _ratio(uneven, total), _ratio(squares, total**2))


def arrivals_doubt(factor: Floats, irregular: Floats, alone: Floats) -> Floats:
    """The part of a wait that may be wrong where arrivals are not Poisson.

    `factor` is the one on the wait of Poisson arrivals, `irregular` the mean deviation of the streams from these, and
    `alone` is 1 for a single stream and 1/n for n equal ones.
    """
    beside = np.abs(factor - 1.0)
    # A factor near 1 stands for Poisson arrivals; many streams come like these, a single one may not at all.
    unlike = 1.2 * np.minimum(irregular, NOT_POISSON) * alone - beside
    return np.fmax(np.fmax(0.5 * beside, 0.12 * irregular), unlike)


@dataclass(frozen=True, slots=True, eq=False)
class _Hops:
    """What one crossing costs: per broker its inbound queue, per link its wait, and the share each carries."""

    scenario: Scenario
    routes: BrokerRoutes
    broker_seconds: Floats
    broker_share: Floats
    broker_doubt: Floats
    link_wait: Cumulants
    link_doubt: Floats
    link_share: Floats

    def links(self, source: int, target: int) -> list[int]:
        """The links from one broker to another, in order."""
        return self.routes.path(source, target, self.scenario.broker_links.target_broker)

    def passed(
        self, source: int, target: int, event_bytes: Floats, event_scv: Floats
    ) -> tuple[float, Cumulants, Floats, float]:
        """From one broker through another's inbound queue: the share of events that queues carry, the time taken, what
        part of it the links between brokers took, and how much of it may be wrong."""
        links, route = self.scenario.broker_links, self.links(source, target)
        survival = float(self.broker_share[source])
        seconds = Cumulants.exponential(np.full(len(event_bytes), self.broker_seconds[source]))
        queued = np.zeros_like(event_bytes)
        for link in route:
            broker, service = links.target_broker[link], event_bytes * 8 / links.bandwidth_bps[link]
            constant = np.full(len(event_bytes), links.propagation_seconds[link])
            waited = self.link_wait[np.full(len(event_bytes), link)]
            seconds += Cumulants.service(service, event_scv) + waited + Cumulants.constant(constant)
            seconds += Cumulants.exponential(np.full(len(event_bytes), self.broker_seconds[broker]))
            queued += service + waited.mean
            survival *= float(self.link_share[link])
            survival *= float(self.broker_share[broker])
        brokers = [source, *links.target_broker[route]]
        doubtful = float(self.broker_doubt[brokers].sum() + self.link_doubt[route].sum())
        return survival, seconds, queued, doubtful


def topic_arrivals(scenario: Scenario) -> TopicArrivals:
    """Follow every publication to every broker with subscribers of its topic."""
    publishers, publisher = scenario.publishers, scenario.publications.publisher
    # What comes over a publisher's link has lost no packet, and so is smaller than what was sent.
    sizes = wire_sizes(scenario, packet_survival=1 - publishers.error_rate[publisher])
    entering = _cross_unmanaged_switches(scenario, wire_sizes(scenario), sizes)
    routes = broker_routes(scenario)
    home = scenario.publishers.broker[scenario.publications.publisher]
    shape = (len(scenario.brokers), len(scenario.topics))

    def by_topic(values: Floats) -> Floats:
        return sum_by(home, scenario.publications.topic, shape, values)

    entering_rate = by_topic(entering.rate)
    entering_bytes = by_topic(entering.rate * sizes.event_bytes)
    entering_squares = by_topic(entering.rate * sizes.event_square_bytes)
    entering_delay = _mixed(
        entering_rate, [by_topic(weighted(entering.rate, each)) for each in entering.delay.moments]
    )
    mean_bytes = _ratio(entering_bytes, entering_rate)
    scv = np.maximum(_ratio(_ratio(entering_squares, entering_rate), mean_bytes**2) - 1, 0.0)
    ca2_entering = by_topic(entering.rate * (entering.ca2 - 1.0))
    irregular = by_topic(entering.rate * _irregular(scenario.publications.arrival_process, entering.ca2))
    squares_entering = by_topic(entering.rate**2)
    streams = [
        Streams(
            np.full(shape[1], broker),
            entering_rate[broker],
            np.maximum(1.0 + _ratio(ca2_entering, entering_rate)[broker], 0.0),
            _ratio(irregular, entering_rate)[broker],
            np.maximum(_ratio(entering_rate**2, squares_entering)[broker], 1.0),
        )
        for broker in range(shape[0])
    ]
    hops = _cross_brokers(scenario, routes, streams, entering_rate, entering_bytes, entering_squares)

    rate, delay_sums = np.zeros(shape), [np.zeros(shape) for _ in range(3)]
    queued_entering = _ratio(by_topic(weighted(entering.rate, entering.queued_seconds)), entering_rate)
    doubtful_entering = _ratio(by_topic(entering.rate * entering.doubtful_seconds), entering_rate)
    doubtful_sum, queued_sum = np.zeros(shape), np.zeros(shape)
    ca2_sum, irregular_sum, square_sum = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    to_brokers = survival_to_brokers(scenario)
    for target in range(shape[0]):
        # Links between brokers lose packets too: an event is whole if none of its packets is lost on any link.
        whole = wire_sizes(scenario, packet_survival=to_brokers[target]).survival
        share_whole = _ratio(by_topic(entering.rate * _ratio(whole, sizes.survival)), entering_rate)
        for source in range(shape[0]):
            if routes.reach[source, target] == 0.0:
                continue
            carried, path, queued, doubtful = hops.passed(source, target, mean_bytes[source], scv[source])
            survival = carried * share_whole[source]
            arriving = entering_rate[source] * survival
            rate[target] += arriving
            for total, moment in zip(delay_sums, (entering_delay[source] + path).moments, strict=True):
                total[target] += weighted(arriving, moment)
            doubtful_sum[target] += weighted(arriving, doubtful_entering[source] + doubtful)
            queued_sum[target] += weighted(arriving, queued_entering[source] + queued)
            # Thinning by losses pulls variability towards 1, Whitt's split; its deviation shrinks with the share.
            ca2_sum[target] += ca2_entering[source] * survival**2
            irregular_sum[target] += irregular[source] * survival**2
            square_sum[target] += squares_entering[source] * survival**2
    return TopicArrivals(
        rate=rate,
        delay=_mixed(rate, delay_sums),
        ca2=np.maximum(1.0 + _ratio(ca2_sum, rate), 0.0),
        irregular=_ratio(irregular_sum, rate),
        streams=np.maximum(_ratio(rate**2, square_sum), 1.0),
        queued_seconds=_ratio(queued_sum, rate),
        doubtful_seconds=_ratio(doubtful_sum, rate),
    )


def publication_ca2(publications: Publications) -> Floats:
    """Variability of every publication's arrival process: the ca2 that QNA starts from."""
    ca2 = np.ones(len(publications))
    process = publications.arrival_process
    ca2[process == ArrivalProcess.PERIODIC] = 0.0
    pareto, on_off = process == ArrivalProcess.PARETO, process == ArrivalProcess.ON_OFF
    ca2[pareto] = pareto_ca2(publications.pareto_shape[pareto])
    ca2[on_off] = on_off_ca2(
        publications.rate_per_second[on_off],
        publications.on_seconds[on_off],
        publications.off_seconds[on_off],
    )
    return ca2


def _irregular(process: NDArray[np.int8], ca2: Floats) -> Floats:
    """How far arrivals of a process with this variability are from Poisson ones."""
    return np.fmax(np.abs(ca2 - 1.0), np.where(process != ArrivalProcess.POISSON, NOT_POISSON, 0.0))


def _cross_unmanaged_switches(scenario: Scenario, sizes: WireSizes, spared: WireSizes) -> _Entering:
    """FIFO switches between publishers and their broker (Pollaczek-Khinchine, not PrioDeX eq. 12).

    `sizes` are of what is sent, `spared` of what the publishers' links do not lose.
    """
    publications, publishers = scenario.publications, scenario.publishers
    rate, ca2 = publications.rate_per_second.copy(), publication_ca2(publications)
    delay = Cumulants.constant(publishers.propagation_seconds[publications.publisher].copy())
    switch = publishers.unmanaged_switch[publications.publisher]
    crossing = np.flatnonzero(switch >= 0)
    queued, doubtful = np.zeros(len(rate)), np.zeros(len(rate))
    if crossing.size:
        queue = switch[crossing]
        seconds_per_byte = 8 / scenario.unmanaged_switches.bandwidth_bps[queue]
        service = sizes.event_bytes[crossing] * seconds_per_byte
        scv = sizes.event_scv[crossing]
        count = len(scenario.unmanaged_switches)
        load = total_by(queue, rate[crossing] * service, count)
        service_scv = _service_scv(queue, rate[crossing], service, scv, load)
        irregular = _irregular(publications.arrival_process[crossing], ca2[crossing])
        streams = Streams(queue, rate[crossing], ca2[crossing], irregular, np.ones(crossing.size))
        factor, doubt = (each[queue] for each in streams.factor(load, service_scv))
        wait = priority_waits(rate[crossing], service, scv, np.zeros(crossing.size, np.int64), queues=queue)
        law = queue_times(rate[crossing], service, scv, np.zeros(crossing.size, np.int64), queues=queue)
        delay[crossing] = (
            delay[crossing]
            + law.with_mean(wait * factor + spared.event_bytes[crossing] * seconds_per_byte).overall
        )
        queued[crossing], doubtful[crossing] = wait * factor + service, weighted(doubt, wait)
        # A sum of rates may be rounded to less than one of them.
        share_of_queue = np.minimum(rate[crossing] / total_by(queue, rate[crossing], count)[queue], 1.0)
        ca2[crossing] = _after_queue(
            ca2[crossing],
            departure_ca2(streams.merged(load), service_scv, load)[queue],
            share_of_queue,
            load[queue],
        )
        rate[crossing] *= np.minimum(1.0, 1.0 / np.maximum(load, 1e-300))[queue]
    return _Entering(rate * spared.survival, delay, split_ca2(ca2, spared.survival), queued, doubtful)


def _cross_brokers(
    scenario: Scenario,
    routes: BrokerRoutes,
    streams: list[Streams],
    entering_rate: Floats,
    entering_bytes: Floats,
    entering_squares: Floats,
) -> _Hops:
    """Load and delay of every broker's inbound queue (G/M/1) and every link between brokers (G/G/1 FIFO).

    `streams` are those that enter at each broker. What queues before do to their variability is not known here.
    """
    brokers, links = scenario.brokers, scenario.broker_links
    link_rate, link_bytes, link_squares = (np.zeros(len(links)) for _ in range(3))
    over_links, to_brokers = [], list(streams)
    for source in range(len(brokers)):
        for link, topics in _links_used(scenario, routes, source).items():
            share = routes.reach[source, links.source_broker[link]]
            some = streams[source].of(topics)
            over_links.append(some.at(np.full(len(some.rate), link), min(float(share), 1.0)))
            arriving = np.full(len(some.rate), links.target_broker[link])
            to_brokers.append(over_links[-1].at(arriving, float(1 - links.error_rate[link])))
            link_rate[link] += share * entering_rate[source, topics].sum()
            link_bytes[link] += share * entering_bytes[source, topics].sum()
            link_squares[link] += share * entering_squares[source, topics].sum()
    finite = np.isfinite(links.bandwidth_bps) & (link_rate > 0)
    link_load = np.where(finite, link_bytes * 8 / links.bandwidth_bps, 0.0)
    wait, link_doubt = Cumulants.constant(np.zeros(len(links))), np.zeros(len(links))
    rows = np.flatnonzero(finite)
    if rows.size:
        mean_bytes = link_bytes[rows] / link_rate[rows]
        scv = np.maximum(link_squares[rows] / link_rate[rows] / mean_bytes**2 - 1, 0.0)
        service = mean_bytes * 8 / links.bandwidth_bps[rows]
        found = queue_times(
            link_rate[rows], service, scv, np.zeros(rows.size, np.int64), queues=np.arange(rows.size)
        )
        link_scv = np.zeros(len(links))
        link_scv[rows] = scv
        factor, doubt = (each[rows] for each in Streams.joined(over_links).factor(link_load, link_scv))
        waited = found.mean - service
        link_doubt[rows] = doubt * waited
        # First in, first out: the wait does not depend on the own size.
        overall = found.with_mean(waited * factor + service).overall
        wait[rows] = wait[rows] + overall - Cumulants.service(service, scv)
    broker_rate = entering_rate.sum(axis=1) + total_by(
        links.target_broker, link_rate * (1 - links.error_rate), len(brokers)
    )
    mu = brokers.inbound_rate_per_second
    load = broker_rate / mu
    factor, doubt = Streams.joined(to_brokers).factor(load, np.ones(len(brokers)))
    waited = mm1_sojourn(broker_rate, mu) - 1 / mu
    return _Hops(
        scenario,
        routes,
        broker_seconds=1 / mu + weighted(factor, waited),
        broker_share=np.minimum(1.0, 1.0 / np.maximum(load, 1e-300)),
        broker_doubt=weighted(doubt, waited),
        link_wait=wait,
        link_doubt=link_doubt,
        link_share=np.minimum(1.0, 1.0 / np.maximum(link_load, 1e-300)),
    )


def _links_used(scenario: Scenario, routes: BrokerRoutes, source: int) -> dict[int, NDArray[np.bool_]]:
    """Per link, the topics that events from one broker travel over it: towards subscribers, once each."""
    broker = scenario.subscribers.broker[scenario.subscriptions.subscriber]
    wanted = np.zeros((len(scenario.brokers), len(scenario.topics)), dtype=np.bool_)
    wanted[broker, scenario.subscriptions.topic] = True
    used: dict[int, NDArray[np.bool_]] = {}
    for target in range(len(scenario.brokers)):
        if target == source or routes.next_link[source, target] < 0:
            continue
        for link in routes.path(source, target, scenario.broker_links.target_broker):
            used[link] = used.get(link, np.zeros(len(scenario.topics), dtype=np.bool_)) | wanted[target]
    return used


def _service_scv(queue: Integers, rate: Floats, service: Floats, scv: Floats, load: Floats) -> Floats:
    """Per queue, the variability of everything that is served."""
    total = total_by(queue, rate, len(load))
    square = _ratio(total_by(queue, rate * service**2 * (1 + scv), len(load)), total)
    return np.maximum(_ratio(square, _ratio(load, total) ** 2) - 1, 0.0)


def _after_queue(ca2: Floats, departing: Floats, share: Floats, load: Floats) -> Floats:
    """Variability of one stream after a queue it shares.

    Whitt's rule splits what departs at random, which forgets that a stream keeps its own events; in light traffic
    it leaves as it came. The load decides between the two.
    """
    busy = np.minimum(load, 1.0) ** 2
    calm = np.where(busy < 1, (1 - busy) * ca2, 0.0)
    return np.asarray(busy * split_ca2(departing, share) + calm)


def weighted(weight: Floats, values: Floats) -> Floats:
    """Products, in which nothing weighs nothing however long it takes."""
    return np.where(weight > 0, weight * np.where(weight > 0, values, 0.0), 0.0)


def _mixed(rate: Floats, moments: list[Floats]) -> Cumulants:
    first, second, third = (_ratio(each, rate) for each in moments)
    return Cumulants.of_moments(first, second, third)


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
