"""From the publishers to each home broker: rates, delays and arrival variability of every topic there.

The path is the first half of PrioDeX eq. 10: unmanaged switch (FIFO), link, broker inbound queue and, with several
brokers, the links and brokers on the way to the subscriber's own. Arrivals that are not Poisson multiply waits by the
factor of Allen and Cunneen; variability is that of publications, whatever queues before have done to it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

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
    gg1_factor,
    merged_ca2,
    mm1_sojourn,
    on_off_ca2,
    pareto_ca2,
    priority_waits,
    queue_times,
)
from triagemq.theory.cumulants import ByRow

NOT_POISSON = 0.44
"""How irregular a process that is not Poisson is at least, as a deviation of its ca2 from 1. A ca2 does not say all: of
a Poisson process' gaps 44 % are shorter than the shortest of a Pareto process of the same ca2."""


@dataclass(frozen=True, slots=True, eq=False)
class Streams(ByRow):
    """Columns over streams of events at some queues: rate, variability, and the publications behind each.

    Where all publications are `poisson` processes the factor is 1.
    """

    queue: Integers
    rate: Floats
    ca2: Floats
    publications: Floats

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def waits(self, wait: Floats, load: Floats, scv: Floats, *, poisson: bool) -> tuple[Floats, Floats]:
        """Per queue, its wait for Poisson arrivals corrected for these, and the part of it that may be wrong."""
        if poisson:
            return wait, np.zeros_like(wait)
        factor, doubt = self.factor(load, scv)
        return weighted(wait, factor), weighted(wait, doubt)

    def factor(self, load: Floats, scv: Floats) -> tuple[Floats, Floats]:
        """Per queue, the factor on a wait for Poisson arrivals, and the part of that wait that may be wrong."""
        merged = merged_ca2(
            self.rate, self.ca2, np.minimum(load, 1.0), queues=self.queue, streams=self.publications
        )
        factor = gg1_factor(merged, scv)
        deviation = np.where(self.ca2 == 1.0, 0.0, np.fmax(np.abs(self.ca2 - 1.0), NOT_POISSON))
        total, uneven, squares = (
            total_by(self.queue, each, len(load))
            for each in (self.rate, weighted(self.rate, deviation), self.rate**2 / self.publications)
        )
        irregular, alone = _ratio(uneven, total), _ratio(squares, total**2)
        changed = np.abs(factor - 1.0)
        # A factor near 1 stands for Poisson arrivals; many streams come like these, a single one may not at all.
        unlike = 1.2 * np.minimum(irregular, NOT_POISSON) * alone - changed
        return factor, np.fmax(np.fmax(0.5 * changed, 0.12 * irregular), unlike)


@dataclass(frozen=True, slots=True, eq=False)
class TopicArrivals:
    """Matrices of one row per broker and one column per topic: what leaves that broker's inbound queue.

    `publications` is the effective number of independent ones behind a topic, which QNA's merging needs.
    `queued_seconds` is the part of the delay in unmanaged switches and in the queues of links.
    `doubtful_seconds` is the part of the delay that may be wrong because arrivals are not Poisson.
    """

    rate: Floats
    delay: Cumulants
    ca2: Floats
    publications: Floats
    queued_seconds: Floats
    doubtful_seconds: Floats
    poisson: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Entering(TopicArrivals):
    """What enters at a broker from its own publishers, with its sizes."""

    bytes_per_second: Floats
    square_bytes_per_second: Floats

    def streams(self, broker: int, queue: int, share: float, topics: NDArray[np.bool_]) -> Streams:
        """Of these topics, at a queue where a share of what enters at a broker comes."""
        rate = share * self.rate[broker, topics]
        return Streams(
            np.full(len(rate), queue), rate, self.ca2[broker, topics], self.publications[broker, topics]
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Queues:
    """Of brokers' inbound queues, or of links: the time at each, the share served, what may be wrong."""

    seconds: Cumulants
    share: Floats
    doubt: Floats


def topic_arrivals(scenario: Scenario) -> TopicArrivals:
    """Follow every publication to every broker with subscribers of its topic."""
    publications, publishers = scenario.publications, scenario.publishers
    # What comes over a publisher's link has lost no packet, and so is smaller than what was sent.
    sizes = wire_sizes(scenario, packet_survival=1 - publishers.error_rate[publications.publisher])
    poisson = bool((publications.arrival_process == ArrivalProcess.POISSON).all())
    rate, delay, queued, doubtful = _cross_unmanaged_switches(scenario, wire_sizes(scenario), sizes, poisson)
    home, shape = publishers.broker[publications.publisher], (len(scenario.brokers), len(scenario.topics))

    def by_topic(values: Floats) -> Floats:
        return sum_by(home, publications.topic, shape, values)

    total, squares = by_topic(rate), by_topic(rate**2)
    ca2 = _ratio(by_topic(weighted(rate, publication_ca2(publications))), total)
    entering = _Entering(
        rate=total,
        delay=_mixed(total, [by_topic(weighted(rate, each)) for each in delay.moments]),
        ca2=np.where(total > 0, ca2, 1.0),
        publications=np.maximum(_ratio(total**2, squares), 1.0),
        bytes_per_second=by_topic(rate * sizes.event_bytes),
        square_bytes_per_second=by_topic(rate * sizes.event_square_bytes),
        poisson=poisson,
        queued_seconds=_ratio(by_topic(weighted(rate, queued)), total),
        doubtful_seconds=_ratio(by_topic(weighted(rate, doubtful)), total),
    )
    routes = broker_routes(scenario)
    brokers, links = _cross_brokers(scenario, routes, entering)
    mean_bytes = _ratio(entering.bytes_per_second, total)
    scv = np.maximum(_ratio(_ratio(entering.square_bytes_per_second, total), mean_bytes**2) - 1, 0.0)
    table = scenario.broker_links
    to_brokers = survival_to_brokers(scenario)
    rates, squared, moments = np.zeros(shape), np.zeros(shape), [np.zeros(shape) for _ in range(3)]
    deviations, queued_seconds, doubtful_seconds = (np.zeros(shape) for _ in range(3))
    for target in range(shape[0]):
        # Links between brokers lose packets too: an event is whole if none of its packets is lost on any link.
        whole = wire_sizes(scenario, packet_survival=to_brokers[target]).survival
        share_whole = _ratio(by_topic(rate * _ratio(whole, sizes.survival)), total)
        for source in range(shape[0]):
            if routes.reach[source, target] == 0.0:
                continue
            route = routes.path(source, target, table.target_broker)
            passed = [source, *table.target_broker[route]]
            seconds = entering.delay[source]
            for broker in passed:
                seconds += brokers.seconds[np.full(shape[1], broker)]
            queued_here = entering.queued_seconds[source].copy()
            for link in route:
                service = mean_bytes[source] * 8 / table.bandwidth_bps[link]
                waited = links.seconds[np.full(shape[1], link)]
                seconds += Cumulants.service(service, scv[source]) + waited
                seconds = seconds.later(np.full(shape[1], table.propagation_seconds[link]))
                queued_here += service + waited.mean
            doubt = entering.doubtful_seconds[source] + brokers.doubt[passed].sum() + links.doubt[route].sum()
            survival = share_whole[source] * brokers.share[passed].prod() * links.share[route].prod()
            arriving = total[source] * survival
            rates[target] += arriving
            squared[target] += _ratio(arriving**2, entering.publications[source])
            # Thinning by losses pulls variability towards 1, Whitt's split.
            deviations[target] += weighted(arriving * survival, entering.ca2[source] - 1.0)
            for summed, each in (
                *zip(moments, seconds.moments, strict=True),
                (queued_seconds, queued_here),
                (doubtful_seconds, doubt),
            ):
                summed[target] += weighted(arriving, each)
    return TopicArrivals(
        rate=rates,
        delay=_mixed(rates, moments),
        ca2=np.maximum(1.0 + _ratio(deviations, rates), 0.0),
        publications=np.maximum(_ratio(rates**2, squared), 1.0),
        queued_seconds=_ratio(queued_seconds, rates),
        doubtful_seconds=_ratio(doubtful_seconds, rates),
        poisson=poisson,
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


def _cross_unmanaged_switches(
    scenario: Scenario, sizes: WireSizes, surviving: WireSizes, poisson: bool
) -> tuple[Floats, Cumulants, Floats, Floats]:
    """FIFO switches between publishers and their broker (Pollaczek-Khinchine, not PrioDeX eq. 12): over publications,
    the rate behind their links, the delay, and what of it was queueing and may be wrong.

    `sizes` are of what is sent, `surviving` of what the publishers' links do not lose.
    """
    publications, publishers = scenario.publications, scenario.publishers
    rate = publications.rate_per_second.copy()
    delay = Cumulants.constant(publishers.propagation_seconds[publications.publisher].copy())
    switch = publishers.unmanaged_switch[publications.publisher]
    crossing = np.flatnonzero(switch >= 0)
    queued, doubtful = np.zeros(len(rate)), np.zeros(len(rate))
    if crossing.size:
        queue, count = switch[crossing], len(scenario.unmanaged_switches)
        seconds_per_byte = 8 / scenario.unmanaged_switches.bandwidth_bps[queue]
        service, scv = sizes.event_bytes[crossing] * seconds_per_byte, sizes.event_scv[crossing]
        load = total_by(queue, rate[crossing] * service, count)
        square = total_by(queue, rate[crossing] * service**2 * (1 + scv), count)
        service_scv = np.maximum(_ratio(square * total_by(queue, rate[crossing], count), load**2) - 1, 0.0)
        one_class = np.zeros(crossing.size, np.int64)
        wait = priority_waits(rate[crossing], service, scv, one_class, queues=queue)
        by_switch = np.zeros(count)
        by_switch[queue] = wait
        streams = Streams(
            queue, rate[crossing], publication_ca2(publications)[crossing], np.ones(crossing.size)
        )
        corrected, doubt = (
            each[queue] for each in streams.waits(by_switch, load, service_scv, poisson=poisson)
        )
        law = queue_times(rate[crossing], service, scv, one_class, queues=queue)
        own_service = surviving.event_bytes[crossing] * seconds_per_byte
        delay[crossing] = delay[crossing] + law.with_mean(corrected + own_service).overall
        queued[crossing], doubtful[crossing] = corrected + service, doubt
        rate[crossing] *= np.minimum(1.0, 1.0 / np.maximum(load, 1e-300))[queue]
    return rate * surviving.survival, delay, queued, doubtful


def _cross_brokers(scenario: Scenario, routes: BrokerRoutes, entering: _Entering) -> tuple[_Queues, _Queues]:
    """Load and delay of every broker's inbound queue (G/M/1), and of every link between brokers (G/G/1 FIFO), the
    transmission not included."""
    brokers, links, poisson = scenario.brokers, scenario.broker_links, entering.poisson
    every = np.ones(len(scenario.topics), dtype=np.bool_)
    rate, size, square = (np.zeros(len(links)) for _ in range(3))
    over_links: list[Streams] = []
    to_brokers = [entering.streams(broker, broker, 1.0, every) for broker in range(len(brokers))]
    for source in range(len(brokers)):
        for link, topics in _links_used(scenario, routes, source).items():
            share = float(routes.reach[source, links.source_broker[link]])
            over_links.append(entering.streams(source, link, share, topics))
            behind = share * float(1 - links.error_rate[link])
            to_brokers.append(entering.streams(source, int(links.target_broker[link]), behind, topics))
            rate[link] += share * entering.rate[source, topics].sum()
            size[link] += share * entering.bytes_per_second[source, topics].sum()
            square[link] += share * entering.square_bytes_per_second[source, topics].sum()
    load = np.where(rate > 0, size * 8 / links.bandwidth_bps, 0.0)
    waited, link_doubt = Cumulants.constant(np.zeros(len(links))), np.zeros(len(links))
    rows = np.flatnonzero(np.isfinite(links.bandwidth_bps) & (rate > 0))
    if rows.size:
        mean_bytes = size[rows] / rate[rows]
        scv = np.maximum(square[rows] / rate[rows] / mean_bytes**2 - 1, 0.0)
        service = mean_bytes * 8 / links.bandwidth_bps[rows]
        found = queue_times(
            rate[rows], service, scv, np.zeros(rows.size, np.int64), queues=np.arange(rows.size)
        )
        by_link, link_scv = np.zeros(len(links)), np.zeros(len(links))
        by_link[rows], link_scv[rows] = found.mean - service, scv
        corrected, link_doubt = Streams.joined(over_links).waits(by_link, load, link_scv, poisson=poisson)
        # First in, first out: the wait does not depend on the own size.
        overall = found.with_mean(corrected[rows] + service).overall
        waited[rows] = overall - Cumulants.service(service, scv)
    inbound = entering.rate.sum(axis=1) + total_by(
        links.target_broker, rate * (1 - links.error_rate), len(brokers)
    )
    mu = brokers.inbound_rate_per_second
    corrected, doubt = Streams.joined(to_brokers).waits(
        mm1_sojourn(inbound, mu) - 1 / mu, inbound / mu, np.ones(len(brokers)), poisson=poisson
    )
    return (
        _Queues(Cumulants.exponential(1 / mu + corrected), _served_share(inbound / mu), doubt),
        _Queues(waited, _served_share(load), link_doubt),
    )


def _served_share(load: Floats) -> Floats:
    return np.minimum(1.0, 1.0 / np.maximum(load, 1e-300))


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


def weighted(weight: Floats, values: Floats) -> Floats:
    """Products, in which nothing weighs nothing however long it takes."""
    return np.where(weight > 0, weight * np.where(weight > 0, values, 0.0), 0.0)


def _mixed(rate: Floats, moments: list[Floats]) -> Cumulants:
    first, second, third = (_ratio(each, rate) for each in moments)
    return Cumulants.of_moments(first, second, third)


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
