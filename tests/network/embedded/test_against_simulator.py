"""The embedded port and the simulator's agree on every packet: which are dropped, and when the others leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.network.bench import Offer, VirtualBench
from tests.network.eight_classes import BANDWIDTH_BPS, eight_classes, simulated_deliveries
from tests.simulate.port_alone import port_alone

from triagemq.plan.dataplane import SetFlow, SetPort
from triagemq.scenario import Discipline, Scenario
from triagemq.trace import Outcome

WAKE_UPS_APART_NS = 200_000
"""Of the embedded data plane."""


@pytest.mark.parametrize(("rho", "buffer_packets"), [(0.8, ".inf"), (0.95, "20"), (1.7, "50"), (1.2, "1")])
def test_same_arrivals_same_departures(rho: float, buffer_packets: str) -> None:
    _compare(
        eight_classes(rho, buffer_packets),
        SetPort("radio", BANDWIDTH_BPS, float(buffer_packets.strip(".")), 8),
    )


@pytest.mark.parametrize("borrowing", [False, True])
@pytest.mark.parametrize(("rho", "buffer_packets"), [(0.8, ".inf"), (1.5, "12")])
def test_same_departures_from_queues_with_queue_rates(
    rho: float, buffer_packets: str, borrowing: bool
) -> None:
    scenario = eight_classes(rho, buffer_packets)
    queue_rates = BANDWIDTH_BPS * np.array([5, 3, 3, 2, 2, 2, 2, 1]) / 20
    ports = replace(
        scenario.ports,
        discipline=np.array([Discipline.QUEUE_RATES], dtype=np.int8),
        queue_rates_bps=(queue_rates,),
        floors_bps=(0.1 * queue_rates,),
        borrowing=np.array([borrowing], dtype=np.int8),
    )
    limit = float(buffer_packets.strip("."))
    port = SetPort("radio", BANDWIDTH_BPS, limit, 8, tuple(queue_rates.tolist()), borrowing)
    # Several queues send at once, and what ends soon after a wake-up leaves with the next one.
    _compare(scenario.with_tables(ports=ports), port, off_ns=2 if borrowing else WAKE_UPS_APART_NS + 100)


def _compare(scenario: Scenario, port: SetPort, off_ns: int = 2) -> None:
    """Every packet of a simulation comes to the embedded port, too, and leaves at the same time or is dropped."""
    simulated = simulated_deliveries(scenario, publications=20_000)
    bench = VirtualBench(8)
    _one_class_per_flow(bench, port)
    offers = [
        Offer(int(at_ns), int(topic))
        for at_ns, topic in zip(simulated["enqueued_ns"], simulated["topic_id"], strict=True)
    ]
    departed = np.full(len(offers), -1)
    for arrival in bench.play(offers):
        departed[arrival.offer] = arrival.arrived_ns
    delivered = simulated["outcome"] == Outcome.delivered
    assert 0.0 < delivered.mean() <= 1.0
    # The simulator's times are fractions of a nanosecond until they are written down, which can turn a near tie.
    assert np.mean((departed >= 0) != delivered) < 1e-3
    both = delivered & (departed >= 0)
    assert np.mean(np.abs(departed[both] - simulated["dequeued_ns"][both]) > off_ns) < 1e-3
    for priority_class in range(8):
        mine = both & (simulated["topic_id"] == priority_class)
        if mine.sum() > 100:
            latency = (departed - simulated["enqueued_ns"])[mine].mean()
            expected = (simulated["dequeued_ns"] - simulated["enqueued_ns"])[mine].mean()
            assert latency == pytest.approx(expected, rel=1e-3, abs=off_ns)


def test_mean_latencies_are_those_of_a_priority_queue() -> None:
    """Independent random arrivals: the means per class are within 10 % of the simulator's."""
    seconds, rho = 142 * 8 / BANDWIDTH_BPS, 0.7
    rate = rho / seconds / 8
    expected = port_alone([rate] * 8, seconds, 0, range(8), customers=1_000_000, seed=3).mean_sojourn
    bench = VirtualBench(8)
    _one_class_per_flow(bench, SetPort("radio", BANDWIDTH_BPS, float("inf"), 8))
    source = np.random.default_rng(11)
    count = 100_000
    times = np.cumsum(source.exponential(1 / (8 * rate), count))
    flow = source.integers(0, 8, count)
    offers = [Offer(int(at * 1e9), int(each)) for at, each in zip(times, flow, strict=True)]
    latency: list[list[int]] = [[] for _ in range(8)]
    for arrival in bench.play(offers):
        latency[arrival.flow].append(arrival.arrived_ns - arrival.offered_ns)
    means = [float(np.mean(each)) * 1e-9 for each in latency]
    assert means == pytest.approx(list(expected), rel=0.1)


def _one_class_per_flow(bench: VirtualBench, port: SetPort) -> None:
    bench.plane.apply(
        [
            port,
            *(SetFlow(key, "radio", flow, flow, 0.0) for flow, key in enumerate(bench.keys)),
        ]
    )
