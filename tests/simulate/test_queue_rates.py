"""Ports whose queues have rates: as queues alone, as shares of a port, in samples, and as they change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triagemq.errors import ParameterError
from triagemq.scenario import Discipline, SizeDistribution
from triagemq.scenario.conditions import Condition, Conditions
from triagemq.simulate import simulate
from triagemq.simulate.changes import condition_changes

QUEUE_RATES = (6e5, 3e5, 1e5)
EVENT_BYTES = 250.0


@pytest.fixture
def port_of(scenario_of: Any, plan_of: Any) -> Any:
    """A port of 1 Mbit/s with one topic for each class, and the plan that puts it there; `loads` are of the queue
    rates."""

    def build(loads: Any, *, borrowing: bool = False, queue_rates: Any = QUEUE_RATES, **more: Any) -> Any:
        queue_rates = np.array(queue_rates)
        scenario = scenario_of(
            topics=len(queue_rates),
            rates=np.array(loads) * queue_rates / 8 / EVENT_BYTES,
            sizes=EVENT_BYTES,
            bandwidth=1e6,
            **more,
        )
        ports = replace(
            scenario.ports,
            discipline=np.array([Discipline.QUEUE_RATES], dtype=np.int8),
            queue_rates_bps=(queue_rates,),
            floors_bps=(0.1 * queue_rates,),
            borrowing=np.array([borrowing], dtype=np.int8),
        )
        scenario = scenario.with_tables(ports=ports)
        return scenario, plan_of(scenario, np.arange(len(queue_rates)))

    return build


@pytest.mark.parametrize("sizes", [SizeDistribution.EXPONENTIAL, SizeDistribution.CONSTANT])
def test_a_partitioned_queue_is_a_queue_alone_at_its_width(sizes: SizeDistribution, port_of: Any) -> None:
    loads = np.array([0.8, 0.5, 0.3])
    scenario, plan = port_of(loads, size_distribution=sizes)
    found = simulate(scenario, plan, publications=150_000, seed=3, replications=4)
    service = EVENT_BYTES * 8 / np.array(QUEUE_RATES)
    variance = 1.0 if sizes == SizeDistribution.EXPONENTIAL else 0.0
    expected = service * (1 + loads * (1 + variance) / 2 / (1 - loads))  # Pollaczek and Khinchine
    off = np.abs(found.classes.mean_latency_seconds - expected)
    assert (off < np.maximum(2 * found.classes.ci95_seconds, 0.002 * expected)).all()
    assert (found.classes.ci95_seconds < 0.05 * expected).all()
    assert found.ports.utilisation[0] == pytest.approx(loads @ QUEUE_RATES / 1e6, rel=0.02)


def test_a_partitioned_queue_gets_nothing_of_what_others_leave(port_of: Any) -> None:
    scenario, plan = port_of([3.0, 0.01, 3.0], buffer=20.0)
    found = simulate(scenario, plan, publications=40_000, warmup=0.2)
    seconds = found.simulated_seconds * 0.8
    sent_bps = found.classes.delivered * EVENT_BYTES * 8 / seconds
    assert sent_bps[[0, 2]] == pytest.approx([6e5, 1e5], rel=0.02)
    assert found.ports.utilisation[0] == pytest.approx(0.703, rel=0.02)


def test_queues_that_borrow_share_an_overloaded_port_by_their_queue_rates(port_of: Any) -> None:
    scenario, plan = port_of([3.0, 4.0, 8.0], borrowing=True, buffer=50.0)
    found = simulate(scenario, plan, publications=60_000, warmup=0.2)
    sent_bps = found.classes.delivered * EVENT_BYTES * 8 / (found.simulated_seconds * 0.8)
    assert sent_bps == pytest.approx(QUEUE_RATES, rel=0.01)
    assert found.ports.utilisation[0] == pytest.approx(1.0, abs=1e-3)


def test_queues_that_borrow_share_what_one_leaves_by_their_queue_rates(port_of: Any) -> None:
    scenario, plan = port_of([3.0, 0.5, 8.0], borrowing=True, buffer=50.0)
    found = simulate(scenario, plan, publications=60_000, warmup=0.2)
    sent_bps = found.classes.delivered * EVENT_BYTES * 8 / (found.simulated_seconds * 0.8)
    left = 1e6 - sent_bps[1]
    assert sent_bps[[0, 2]] == pytest.approx([left * 6 / 7, left / 7], rel=0.02)
    assert found.classes.success_rate[1] == 1.0


def test_a_port_whose_queues_borrow_is_never_idle_while_a_packet_waits(
    port_of: Any, memory_sink: Any
) -> None:
    """Packets of one size leave a work-conserving port at the same instants, whichever goes first."""
    scenario, plan = port_of([0.6, 1.4, 2.0], borrowing=True)
    plain = replace(
        scenario.ports,
        discipline=np.zeros(1, dtype=np.int8),
        borrowing=np.zeros(1, dtype=np.int8),
        queue_rates_bps=(np.empty(0),),
        floors_bps=(np.empty(0),),
    )
    by_priority = scenario.with_tables(ports=plain)
    left = []
    for each in (scenario, by_priority):
        sink = memory_sink()
        again = replace(plan, scenario_fingerprint=each.fingerprint)
        simulate(each, again, publications=5_000, seed=9, warmup=0.0, sink=sink)
        left.append(np.sort(sink.table("deliveries")["dequeued_ns"]))
    assert (np.abs(left[0] - left[1]) <= 1).all()


@pytest.mark.parametrize("borrowing", [False, True])
def test_samples_of_queues_add_up_with_several_packets_on_the_wire(
    borrowing: bool, port_of: Any, memory_sink: Any
) -> None:
    scenario, plan = port_of([1.5, 0.9, 2.0], borrowing=borrowing, buffer=12.0)
    sink = memory_sink()
    simulate(scenario, plan, publications=5_000, seed=5, warmup=0.0, sink=sink)
    rows, ended = sink.table("queue_samples"), sink.table("deliveries")
    assert (rows["width_bps"] == np.array(QUEUE_RATES)[rows["queue"]]).all()
    assert (rows["backlog_packets"] <= 12).all()
    for name in ("bytes_in", "bytes_out", "packets_in", "packets_out", "drops", "backlog_bytes"):
        assert (rows[name] >= 0).all()
    for instant in np.unique(rows["sampled_ns"])[::7]:
        for queue in range(3):
            (row,) = np.flatnonzero((rows["sampled_ns"] == instant) & (rows["queue"] == queue))
            own = (ended["priority_class"] == queue) & (ended["enqueued_ns"] <= instant)
            gone = own & (ended["dequeued_ns"] >= 0) & (ended["dequeued_ns"] <= instant)
            assert rows["packets_out"][row] == gone.sum()
            assert rows["bytes_out"][row] == gone.sum() * EVENT_BYTES
            assert (
                rows["packets_in"][row] - rows["packets_out"][row] - rows["drops"][row]
                == (rows["backlog_packets"][row])
            )
    busiest = rows["queue"] == 2
    if not borrowing:
        sent_bps = rows["bytes_out"][busiest][-1] * 8e9 / rows["sampled_ns"][busiest][-1]
        assert sent_bps == pytest.approx(1e5, rel=0.05)


def test_queue_rates_follow_a_change_and_a_transmission_that_has_begun_is_finished(
    port_of: Any, memory_sink: Any, queue_rates_from: Any
) -> None:
    scenario, plan = port_of([1.0, 1.0, 1.0])
    packets = {
        "published_ns": np.array([190_000_000, 191_000_000, 300_000_000]),
        "publication": np.array([2, 2, 2]),
        "size_bytes": np.full(3, EVENT_BYTES),
    }
    wider = queue_rates_from((0.2, [[4e5, 2e5, 4e5]]))
    sink = memory_sink()
    simulate(scenario, plan, replay=packets, control=wider, warmup=0.0, sink=sink)
    ended = sink.table("deliveries")
    # 2000 bits at 0.1 Mbit/s take 20 ms; the next begins at 210 ms, after the change, and takes 5.
    assert ended["dequeued_ns"].tolist() == [210_000_000, 215_000_000, 305_000_000]


def test_queue_rates_stay_the_same_shares_when_a_condition_changes_the_bandwidth(
    port_of: Any, memory_sink: Any
) -> None:
    scenario, plan = port_of([0.5, 0.5, 0.5])
    slower = Conditions((Condition(1.0, port=scenario.ports.name[0], bandwidth_bps=5e5),))
    changes = condition_changes(scenario, slower, None)
    sink = memory_sink()
    simulate(scenario, plan, duration_seconds=2.0, changes=changes, warmup=0.0, sink=sink)
    rows = sink.table("queue_samples")
    later = rows["sampled_ns"] > 1_100_000_000
    assert rows["width_bps"][later][:3].tolist() == [300_000, 150_000, 50_000]
    assert rows["width_bps"][~later][:3].tolist() == [600_000, 300_000, 100_000]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ([[6e5, 3e5, 2e5]], "those of port 'port0000' add up to 1.1e.06 of its 1e.06 bit/s"),
        ([[9e5, 1e4, 9e4]], "queue 1 of port 'port0000' gets 10000 bit/s, below its floor of 30000"),
        ([[9e5, 1e5, 0.0]], "port 'port0000' must have finite, positive queue rates"),
        ([[5e5, 5e5]], "port 'port0000' must have finite, positive queue rates"),
    ],
)
def test_a_change_of_queue_rates_that_does_not_fit_is_refused(
    changed: Any, said: str, port_of: Any, queue_rates_from: Any
) -> None:
    scenario, plan = port_of([0.5, 0.5, 0.5])
    with pytest.raises(ParameterError, match=said):
        simulate(scenario, plan, duration_seconds=1.0, control=queue_rates_from((0.2, changed)))


def test_queue_rates_of_a_port_that_has_none_are_refused(
    scenario_of: Any, plan_of: Any, queue_rates_from: Any
) -> None:
    scenario = scenario_of()
    with pytest.raises(ParameterError, match="port 'port0000' must have finite, positive queue rates"):
        simulate(scenario, plan_of(scenario), duration_seconds=1.0, control=queue_rates_from((0.2, [[8e6]])))


def test_a_plan_with_more_classes_than_queue_rates_is_refused(port_of: Any, plan_of: Any) -> None:
    scenario, _ = port_of([0.5, 0.5, 0.5])
    with pytest.raises(ParameterError, match="has 4 priority classes, and port 'port0000' 3 queue rates"):
        simulate(scenario, plan_of(scenario, np.array([0, 1, 3])), publications=10)
