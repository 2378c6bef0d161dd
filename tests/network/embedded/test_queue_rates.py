"""Embedded ports whose queues have rates: buffers, control, changes of plan, removal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.network.bench import WIRE_BYTES, Offer, PlanChange, VirtualBench, datagram, number_of
from tests.network.virtual_time import VirtualTime

from triagemq.datagrams import Datagrams
from triagemq.errors import PlanError
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import (
    FlowKey,
    OutgoingPacket,
    RemoveFlow,
    RemovePort,
    SetFlow,
    SetPort,
    Treatment,
)

PACKET_NS = round(WIRE_BYTES * 8 / 2e6 * 1e9)
"""A packet at 2 Mbit/s."""
PORT = SetPort("radio", 2e6, 3, 2, (1.5e6, 0.5e6))


def bench_with(port: SetPort) -> VirtualBench:
    bench = VirtualBench(2)
    bench.plane.apply([port, *(SetFlow(bench.keys[flow], "radio", flow, flow, 0.0) for flow in range(2))])
    return bench


@pytest.mark.parametrize("borrowing", [False, True])
def test_a_full_queue_loses_its_own_packets_only(borrowing: bool) -> None:
    bench = bench_with(replace(PORT, borrowing=borrowing))
    arrivals = bench.play([Offer(0, 1)] * 9 + [Offer(1, 0)] * 2)
    assert sorted(each.flow for each in arrivals) == [0, 0, 1, 1, 1]
    queues = bench.plane.counters().ports["radio"].queues
    assert [queue.drops for queue in queues] == [0, 6]
    assert [queue.width_bps for queue in queues] == [1_500_000, 500_000]


def test_a_partitioned_queue_takes_as_long_as_at_its_width() -> None:
    arrivals = bench_with(PORT).play([Offer(0, 1), Offer(0, 1), Offer(0, 0)])
    took = {each.offer: each.arrived_ns - each.offered_ns for each in arrivals}
    assert took == {0: 4 * PACKET_NS, 1: 8 * PACKET_NS, 2: round(PACKET_NS / 0.75)}


def test_a_queue_that_borrows_sends_at_the_rate_of_the_port() -> None:
    arrivals = bench_with(replace(PORT, borrowing=True)).play([Offer(0, 1), Offer(0, 1), Offer(0, 0)])
    assert [each.arrived_ns for each in sorted(arrivals, key=lambda each: each.arrived_ns)] == [
        count * PACKET_NS + arrivals[0].offered_ns for count in (1, 2, 3)
    ]
    # The first is on the wire when the others come; of these the one of the wide queue would be done first.
    assert [each.offer for each in arrivals] == [0, 2, 1]


@pytest.mark.parametrize("borrowing", [False, True])
def test_control_goes_first(borrowing: bool) -> None:
    bench = bench_with(replace(PORT, borrowing=borrowing))
    arrivals = bench.play([Offer(0, 1), Offer(0, 1), Offer(1, 1, control=True)])
    order = [each.offer for each in sorted(arrivals, key=lambda each: each.arrived_ns)]
    assert order.index(2) < order.index(1)
    assert bench.plane.counters().ports["radio"].control.packets_out == 1


@pytest.mark.parametrize("borrowing", [False, True])
def test_a_port_that_is_removed_sends_what_it_holds(borrowing: bool) -> None:
    bench = bench_with(replace(PORT, borrowing=borrowing))
    gone = [*(RemoveFlow(key) for key in bench.keys), RemovePort("radio")]
    arrivals = bench.play([Offer(0, 0), Offer(0, 1), Offer(0, 1)], [PlanChange(10, gone)])
    assert len(arrivals) == 3
    assert bench.plane.counters().ports == {}


@pytest.mark.parametrize("other", [replace(PORT, borrowing=True), SetPort("radio", 2e6, 3, 2)])
def test_a_port_that_is_there_keeps_its_discipline(other: SetPort) -> None:
    bench = bench_with(PORT)
    before = bench.plane.counters()
    with pytest.raises(PlanError, match="'radio' cannot change the discipline of its queues"):
        bench.plane.apply([other])
    assert bench.plane.counters() == before


def test_a_port_that_was_removed_sends_its_last_before_it_serves_otherwise() -> None:
    bench = bench_with(PORT)
    gone = [*(RemoveFlow(key) for key in bench.keys), RemovePort("radio")]
    bench.play([Offer(0, 0), Offer(0, 1)], [PlanChange(10, gone)])
    bench.plane.apply([SetPort("radio", 2e6, 3, 2)])
    assert bench.plane.counters().ports["radio"].queues[0].packets_in == 0


@pytest.mark.parametrize("borrowing", [False, True])
def test_a_new_plan_moves_what_waits_between_queues_with_queue_rates_as_far_as_there_is_room(
    borrowing: bool,
) -> None:
    """An alarm that came before its topic was planned for does not wait out the backlog of the last class."""
    order: list[int] = []
    time = VirtualTime()

    def receive(datagrams: Datagrams, class_of: Callable[[int], int]) -> None:
        order.extend(number_of(received) for _, received in datagrams)

    plane = EmbeddedDataPlane(receive, clock=time.clock, alarm=time.alarm)
    key = FlowKey("10.0.0.1", 20000)
    plane.apply(
        [replace(PORT, buffer_packets=5, borrowing=borrowing), SetFlow(key, "radio", 0, 1, 0.0)],
    )
    plane.send([OutgoingPacket(key, datagram(number), False, number) for number in range(5)])
    plane.reclassify(lambda token: Treatment(0) if token in (3, 4) else Treatment(1))
    counted = plane.counters().ports["radio"].queues
    assert [queue.backlog_packets for queue in counted] == [2, 3]
    time.run_until_quiet()
    assert order.index(3) < order.index(1)
    assert order.index(4) < order.index(2)
    assert sorted(order) == list(range(5))
    # A queue takes no more than it has room for; what finds none stays where it was.
    plane.send([OutgoingPacket(key, datagram(number), False, number) for number in range(5, 10)])
    plane.send([OutgoingPacket(key, datagram(10), False, 10, Treatment(0))])
    plane.reclassify(lambda token: Treatment(0))
    counted = plane.counters().ports["radio"].queues
    assert [queue.backlog_packets for queue in counted] == [5, 1]
    time.run_until_quiet()
    assert sorted(order) == list(range(11))
    assert all(
        (queue.backlog_packets, queue.backlog_bytes, queue.drops) == (0, 0, 0)
        for queue in plane.counters().ports["radio"].queues
    )
