"""Promised traffic beside utility flows: what a forecast leaves out, what it has above them at the ports, and what it
says of promised subscriptions themselves.

Promised messages cross ports in the upper classes, in the batch model like everything else: each is a batch of its own,
whose packets come together unless the link before is slower than the port; then they come one by one. A publisher is
taken to send as often as it may, at its least separation, and so more regularly than a Poisson process; the variability
factor accounts for that, with its doubts. A promised subscription has no mean here: its latency is the bound, which no
message exceeds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.model import COLUMNS, Forecast, Reason
from triagemq.forecast.ports import AtPorts, Variability
from triagemq.plan.demands import total_by, wire_sizes
from triagemq.plan.model import NO_HOPS, NO_LIMITERS, NO_PROMISES, Plan
from triagemq.scenario import Floats, Integers, Scenario, achieved_utility, maximum_utility
from triagemq.scenario.model import take
from triagemq.theory import Cumulants, LatencyDistribution


@dataclass(frozen=True, slots=True, eq=False)
class PromisedLoad:
    """Promised publications at the ports they cross: a row for every pair of them."""

    copies: AtPorts

    def __len__(self) -> int:
        return len(self.copies.port)

    @classmethod
    def of(cls, scenario: Scenario, plan: Plan) -> PromisedLoad:
        """The promised traffic of a plan."""
        publication, before, port, level = _crossings(scenario, plan)
        packet_bytes = float(scenario.switches.packet_bytes.min(initial=np.inf))
        sizes = wire_sizes(replace(scenario, mtu_bytes=packet_bytes), publication)
        bandwidth = scenario.ports.bandwidth_bps[port] / 8
        apart = before < scenario.ports.bandwidth_bps[port]
        packet, square = (
            sizes.event_bytes / sizes.packets / bandwidth,
            sizes.packet_square_bytes / bandwidth**2,
        )

        def seconds(whole: Floats) -> Floats:
            """Of what a message takes, or a packet where they come one by one."""
            return np.where(apart, packet, whole / bandwidth)

        rate = 1.0 / scenario.publications.min_separation_seconds[publication]
        return cls(
            AtPorts(
                buffer_packets=scenario.ports.buffer_packets,
                port=port,
                batch=(len(scenario.brokers) * len(scenario.topics) + publication).astype(np.int32),
                priority_class=level,
                rate=rate * np.where(apart, sizes.packets, 1.0),
                present=np.ones(len(port)),
                event_seconds=seconds(sizes.event_bytes),
                event_scv=np.where(apart, np.maximum(square / packet**2 - 1.0, 0.0), sizes.event_scv),
                packets=np.where(apart, 1.0, sizes.packets),
                packet_square_seconds=square,
                own_event_seconds=seconds(sizes.event_bytes),
                last_packet_seconds=seconds(sizes.last_packet_bytes),
                first_packet_seconds=seconds(sizes.first_packet_bytes),
                first_product=np.where(apart, square, sizes.first_packet_product / bandwidth**2),
                single_packet_seconds=seconds(sizes.single_packet_bytes),
            )
        )

    def join(self, copies: AtPorts, first_port: int) -> tuple[AtPorts, PromisedLoad]:
        """The copies at some ports, numbered from the first of them, with what is promised there behind them."""
        rows = np.isin(self.copies.port, np.unique(copies.port) + first_port)
        here = self.copies.with_columns(lambda _, values: values[rows])
        here = replace(here, port=here.port - np.int32(first_port))
        joined = copies.with_columns(lambda name, values: np.append(values, getattr(here, name)))
        return joined, PromisedLoad(here)

    def with_variability(self, known: Variability) -> Variability:
        """The variability of copies, and of the promised traffic behind them: single streams, regular ones."""
        none, one = np.zeros(len(self)), np.ones(len(self))
        return Variability(
            np.append(known.ca2, none), np.append(known.streams, one), np.append(known.irregular, one)
        )


def _crossings(scenario: Scenario, plan: Plan) -> tuple[Integers, Floats, Integers, Integers]:
    """Every promised publication at every port it crosses: it, the rate of the link before, the port, the level."""
    admitted = plan.promises.admitted > 0
    publication = np.repeat(plan.promises.publication[admitted], plan.promises.hop_count[admitted])
    hops = plan.hops
    access = scenario.publishers.access_bps[scenario.publications.publisher[publication]]
    rate = np.where(hops.port >= 0, np.append(scenario.ports.bandwidth_bps, np.inf)[hops.port], access)
    before = np.append(np.inf, rate[:-1])
    at = np.flatnonzero(hops.port >= 0)
    key = publication[at].astype(np.int64) << 32 | hops.port[at]
    at = at[np.unique(key, return_index=True)[1]]
    return publication[at], before[at], hops.port[at], hops.level[at]


def without_promised(scenario: Scenario, plan: Plan) -> tuple[Scenario, Plan, NDArray[np.int64]]:
    """What goes through brokers: the scenario and the plan without subscriptions that no flow carries, and the rows of
    the rest.

    A publication that only promised subscriptions get does not go to a broker at all.
    """
    left = np.flatnonzero(plan.flow >= 0)
    subscriptions = take(scenario.subscriptions, left)
    brokered = np.ones(len(scenario.publications), dtype=np.bool_)
    brokered[plan.promises.publication[plan.promises.admitted > 0]] = False
    brokered |= np.isin(scenario.publications.topic, subscriptions.topic)
    rest = scenario.with_tables(
        subscriptions=subscriptions, publications=take(scenario.publications, np.flatnonzero(brokered))
    )
    latency = plan.latency
    reduced = replace(
        plan,
        scenario_fingerprint=rest.fingerprint,
        flow=plan.flow[left],
        rank=plan.rank[left],
        latency=latency and replace(latency, factor=latency.factor[left], urgency=latency.urgency[left]),
        promises=NO_PROMISES,
        hops=NO_HOPS,
        limiters=NO_LIMITERS,
    )
    return rest, reduced, left


def with_promised(
    scenario: Scenario, plan: Plan, rest: Forecast, left: NDArray[np.int64], published_rate: Floats
) -> Forecast:
    """The forecast of all subscriptions, from that of those which are not promised."""
    wanted, promises = scenario.subscriptions, plan.promises
    admitted = np.flatnonzero(promises.admitted)
    row, rate = (
        promises.subscription[admitted],
        scenario.publications.rate_per_second[promises.publication[admitted]],
    )
    received = total_by(row, rate * _whole_share(scenario, plan, admitted), len(wanted))
    bound = np.zeros(len(wanted))
    np.maximum.at(bound, row, promises.bound_seconds[admitted])
    success = np.divide(received, published_rate, out=np.zeros_like(received), where=published_rate > 0)
    found = Forecast(
        published_rate=published_rate,
        received_rate=received,
        success=np.minimum(success, 1.0),
        latency_seconds=np.where(plan.promised, bound, np.nan),
        times=LatencyDistribution.of(Cumulants.constant(bound.copy())),
        share_within=np.where(plan.promised, 1.0, np.nan),
        utility=achieved_utility(wanted, np.minimum(success, 1.0), bound, np.ones(len(wanted))),
        maximum_utility=maximum_utility(wanted),
        reason=np.where(plan.promised, Reason.PROMISED, Reason.NONE).astype(np.int8),
        latency_error=np.zeros(len(wanted)),
        success_error=np.zeros(len(wanted)),
        sampled=np.zeros(len(wanted), dtype=np.bool_),
    )
    for name in COLUMNS:
        getattr(found, name)[left] = getattr(rest, name)
    return found


def _whole_share(scenario: Scenario, plan: Plan, admitted: NDArray[np.int64]) -> Floats:
    """Per admitted promise, the share of messages that lose no packet on the links of its path."""
    promises, hops = plan.promises, plan.hops
    publisher = scenario.publications.publisher[promises.publication[admitted]]
    subscriber = scenario.subscriptions.subscriber[promises.subscription[admitted]]
    survives = (1 - scenario.publishers.error_rate[publisher]) * (
        1 - scenario.subscribers.error_rate[subscriber]
    )
    for number, row in enumerate(admitted.tolist()):
        ports = hops.port[plan.hops_of(row)][1:-1]
        survives[number] *= float(np.prod(1 - scenario.ports.error_rate[ports]))
    packet_bytes = float(scenario.switches.packet_bytes.min(initial=np.inf))
    sizes = wire_sizes(replace(scenario, mtu_bytes=packet_bytes), promises.publication[admitted], survives)
    return sizes.survival
