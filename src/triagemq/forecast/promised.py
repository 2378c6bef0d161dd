"""Promised traffic next to utility flows: the load that it puts on ports, and what a forecast says of promised
subscriptions themselves.

Promised messages cross ports in the upper classes: the flows below have what they leave of the bandwidth. A publisher
is taken to send as often as it may, at its least separation. A promised subscription has no mean here: its latency is
the bound, which no message exceeds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.model import COLUMNS, Forecast, Reason
from triagemq.plan.demands import total_by, wire_sizes
from triagemq.plan.model import NO_HOPS, NO_LIMITERS, NO_PROMISES, Plan
from triagemq.scenario import Floats, Scenario, achieved_utility, maximum_utility
from triagemq.scenario.model import take
from triagemq.theory import Cumulants, LatencyDistribution


def promised_load(scenario: Scenario, plan: Plan) -> tuple[Floats, Floats]:
    """The share of every port that the promised messages of a plan take, and the mean wait for one that is being sent.

    Each message crosses a port once, and all of its packets go before the flows below. Its mean residual time is that
    of an M/G/1 queue; behind it come those that arrive meanwhile.
    """
    admitted = plan.promises.admitted > 0
    publication = np.repeat(plan.promises.publication[admitted], plan.promises.hop_count[admitted])
    port = plan.hops.port
    crossings = np.unique(np.stack([publication, port], axis=1)[port >= 0], axis=0)
    publication, port = crossings.T
    packet_bytes = float(scenario.switches.packet_bytes.min(initial=np.inf))
    sizes = wire_sizes(replace(scenario, mtu_bytes=packet_bytes), publication)
    seconds = sizes.event_bytes * 8 / scenario.ports.bandwidth_bps[port]
    rate = 1.0 / scenario.publications.min_separation_seconds[publication]
    load, residual = (
        total_by(port, values, len(scenario.ports)) for values in (rate * seconds, rate * seconds**2 / 2)
    )
    return load, np.divide(residual, 1 - load, out=np.zeros_like(load), where=load < 1)


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
