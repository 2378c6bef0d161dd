"""The simulator's source, output port and statistics without the network around them, for textbooks and Ciw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.compiled import kernel
from triagemq.scenario import Floats, Integers
from triagemq.simulate.changes import Epochs
from triagemq.simulate.endings import BATCHES, Tally, count_endings, new_tally
from triagemq.simulate.network import NetworkSide, drawn_losses
from triagemq.simulate.ports import catch_up_all
from triagemq.simulate.random import Seeds, alias_table, seeds_for
from triagemq.simulate.records import (
    ENDED,
    EVENT,
    HOP,
    PACKET,
    SAMPLE,
    Buffer,
    Clock,
    Outlets,
    PortState,
    append,
    enlarged_pool,
    new_buffer,
    new_port_queues,
)
from triagemq.simulate.result import class_latencies
from triagemq.simulate.source import Publishing, Sizes, new_source, publish
from triagemq.simulate.switches import cross_switches
from triagemq.trace.schema import Outcome

__all__ = ["QueueResults", "port_alone"]

_BLOCK = 1 << 13


@dataclass(frozen=True, slots=True, eq=False)
class QueueResults:
    """Columns over classes: customers after warm-up, the share served, and the mean time from arrival to departure.

    `mean_wait` ends when service starts. `ci95` is the half-width of the 95 % interval of `mean_sojourn`, by
    batch means.
    """

    priority_class: Integers
    customers: NDArray[np.int64]
    served: NDArray[np.int64]
    loss_rate: Floats
    mean_sojourn: Floats
    mean_wait: Floats
    ci95: Floats


def port_alone(
    arrival_rates: ArrayLike,
    mean_service: ArrayLike,
    scv: int,
    classes: ArrayLike,
    *,
    customers: int,
    seed: int = 0,
    replication: int = 0,
    buffer_packets: float = np.inf,
    warmup: float = 0.1,
) -> QueueResults:
    """A non-preemptive priority queue of Poisson streams: stream i arrives at arrival_rates[i], is served for
    mean_service[i] on average (exponentially if `scv` is 1, always the same if 0) and belongs to classes[i].

    With `buffer_packets` customers, the one in service included, an arrival of a higher class pushes out the newest of
    the lowest. The first `warmup` share of the customers does not count. Times are in the unit of `mean_service`.
    """
    rate = np.asarray(arrival_rates, dtype=np.float64)
    service = np.broadcast_to(np.asarray(mean_service, dtype=np.float64), rate.shape).copy()
    priority_class = np.asarray(classes, dtype=np.int32)
    # The engine counts nanoseconds: with a mean service of a second, rounding is nothing.
    unit = float((rate * service).sum() / rate.sum())
    queue = _Queue(
        rate * unit, service / unit, scv, priority_class, buffer_packets, seeds_for(seed, replication)
    )
    tally = queue.run(customers, warmup)
    return _results(tally, rate, service, priority_class, unit)


class _Queue:
    """One port, one subscription per stream; bytes are service time."""

    def __init__(
        self,
        rate: Floats,
        service: Floats,
        scv: int,
        priority_class: Integers,
        buffer_packets: float,
        seeds: Seeds,
    ) -> None:
        streams, classes = len(rate), int(priority_class.max()) + 1
        share, alias = alias_table(rate)
        nothing, zeros = np.zeros(streams), np.zeros(streams, dtype=np.int32)
        self._rate = float(rate.sum())
        self._law = Publishing(
            np.arange(streams, dtype=np.int32),
            share,
            alias,
            self._rate,
            zeros,
            rate,
            nothing,
            nothing,
            nothing,
        )
        # Bytes are service time here: the port sends one a second. Distribution 0 is exponential, 1 constant.
        self._sizes = Sizes(
            np.full(streams, 1 - scv, dtype=np.int32),
            service,
            zeros,
            np.zeros(1, dtype=np.int64),
            np.empty(0),
            np.empty(0),
            np.empty(0, dtype=np.int32),
            np.inf,
        )
        limit = int(buffer_packets) if np.isfinite(buffer_packets) else np.iinfo(np.int64).max
        one, none = np.ones(1), np.zeros(1)
        self._below = NetworkSide(
            route=np.zeros((streams, 1), dtype=np.int32),
            path_length=np.ones(streams, dtype=np.int32),
            subscriber_propagation=nothing,
            hop_of_port=np.zeros(1, dtype=np.int32),
            switch_of_port=np.zeros(1, dtype=np.int32),
            inbound_seconds=none,
            buffer_packets=np.array([limit], dtype=np.int64),
            link_propagation=none,
            classes=classes,
            subscriptions=streams,
            overhead_bytes=0.0,
            payload_bytes=np.inf,
            losses=drawn_losses(),
            newest_only=np.zeros(0, dtype=np.int8),
            expires_seconds=np.zeros(0),
        )
        self._epochs = Epochs(
            ends=np.array([np.inf]),
            active=np.ones((1, streams), dtype=np.uint8),
            priority_class=priority_class.reshape(1, -1),
            drop_rate=nothing.reshape(1, -1),
            seconds_per_byte=one.reshape(1, 1),
            queue_seconds_per_byte=np.ones((1, 1, classes)),
            port_error=none.reshape(1, 1),
            publisher_error=nothing.reshape(1, -1),
            subscriber_error=nothing.reshape(1, -1),
        )
        self._seeds = seeds
        self._source = new_source(self._law, seeds)
        self._ports = new_port_queues(self._below, np.inf)
        self._clock = Clock(0, np.inf, np.inf, False)
        self._published, self._inbox = new_buffer(EVENT, _BLOCK), new_buffer(PACKET, _BLOCK)
        self._outlets = Outlets(
            new_buffer(PACKET, 1), new_buffer(ENDED, 2 * _BLOCK), new_buffer(HOP, 2), new_buffer(SAMPLE, 1)
        )
        self._order, self._switch_free = np.arange(_BLOCK, dtype=np.int32), np.zeros(1)
        self._tally = new_tally(streams, classes)

    def run(self, customers: int, warmup: float) -> Tally:
        expected = customers / self._rate
        measured_from_ns = round(warmup * expected * 1e9)
        batches_per_ns = BATCHES / max(expected * 1e9 - measured_from_ns, 1.0)

        def count() -> None:
            one_phase = np.zeros(1, dtype=np.int64)
            count_endings(self._tally, self._outlets.ended, measured_from_ns, batches_per_ns, one_phase)
            self._outlets.ended.filled[0] = 0

        left = customers
        while left > 0:
            most = min(left, _BLOCK)
            self._published.filled[0] = self._inbox.filled[0] = 0
            publish(self._law, self._sizes, self._seeds, self._source, self._published, most, np.inf)
            _to_port(self._published, self._inbox)
            left -= most
            done = 0
            while (done := self._arrivals(done, most)) < most:
                self._make_room()
                count()
            count()
        while self._departures() < 1:
            count()
        count()
        return self._tally

    def _arrivals(self, begin: int, end: int) -> int:
        return cross_switches(self._state(), 0, self._inbox, self._order, begin, end)

    def _departures(self) -> int:
        return catch_up_all(self._state(), 0, 0, np.inf)

    def _state(self) -> PortState:
        return PortState(
            self._below,
            self._epochs,
            self._seeds,
            self._switch_free,
            self._ports,
            self._outlets,
            self._clock,
        )

    def _make_room(self) -> None:
        if self._ports.packets.free_count[0] == 0:
            self._ports = self._ports._replace(packets=enlarged_pool(self._ports.packets, _BLOCK))


@kernel
def _to_port(published: Buffer, inbox: Buffer) -> None:
    """Every customer becomes one packet that arrives when it is published; its stream is its subscription."""
    for number in range(published.filled[0]):
        customer = published.records[number]
        packet = inbox.records[append(inbox)]
        packet.time = customer.time
        packet.published_ns = customer.published_ns
        packet.event = customer.event
        packet.size_bytes = customer.size_bytes
        packet.subscription = customer.publication
        packet.fragment = 0
        packet.group = -1


def _results(
    tally: Tally, rate: Floats, service: Floats, priority_class: Integers, unit: float
) -> QueueResults:
    mean, half_width = class_latencies([tally])
    rows = np.unique(priority_class)
    customers = tally.class_outcomes.sum(axis=1)
    served = tally.class_outcomes[:, Outcome.delivered]
    delivered = tally.outcomes[:, Outcome.delivered]
    mean_service = np.bincount(priority_class, delivered * service) / np.maximum(served, 1)
    return QueueResults(
        priority_class=rows.astype(np.int32),
        customers=customers[rows],
        served=served[rows],
        loss_rate=1 - served[rows] / np.maximum(customers[rows], 1),
        mean_sojourn=mean[rows] * unit,
        mean_wait=mean[rows] * unit - mean_service[rows],
        ci95=half_width[rows] * unit,
    )
