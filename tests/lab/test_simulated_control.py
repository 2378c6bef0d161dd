"""Control of simulated queues: what it changes while a run goes on, what it records, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.errors import ParameterError
from triagemq.lab.papers.runs import RecordedRun
from triagemq.lab.papers.shi.network import (
    FLOORS_BPS,
    PORT_BPS,
    QUEUES,
    shi_plan,
    shi_scenario,
)
from triagemq.lab.queue_delay import ReadErrors
from triagemq.lab.simulated_control import ControlSettings, SimulatedControl, requirements
from triagemq.scenario import ArrivalProcess, Scenario
from triagemq.simulate import Change, Steering, simulate


def _run(
    scenario: Scenario, settings: ControlSettings, seconds: float = 3.0, **more: Any
) -> tuple[RecordedRun, Any]:
    seen, plan = RecordedRun(), shi_plan(scenario)
    result = simulate(
        scenario,
        plan,
        duration_seconds=seconds,
        warmup=0.0,
        seed=1,
        threads=1,
        sink=seen,
        control=lambda replication: SimulatedControl(scenario, plan, settings, replication),
        **more,
    )
    return seen, result


def _queue_rates(seen: RecordedRun) -> np.ndarray[Any, Any]:
    """A row for every instant and port, a column for every queue."""
    columns = seen.table("queue_samples")
    order = np.lexsort((columns["queue"], columns["port_id"], columns["sampled_ns"]))
    return columns["width_bps"][order].reshape(-1, len(QUEUES))


class _Nothing:
    def sampled(self, seconds: float, queue_samples: Any) -> Steering:
        assert set(np.unique(queue_samples["sampled_ns"])) == {round(seconds * 1e9) - 1}
        return Steering()


def test_a_control_that_changes_nothing_changes_no_figure() -> None:
    scenario = shi_scenario([9_000, 4_000, 500], ArrivalProcess.POISSON)
    plan, runs = shi_plan(scenario), []
    for control in (None, lambda number: _Nothing()):
        seen = RecordedRun()
        result = simulate(scenario, plan, duration_seconds=2.0, seed=3, sink=seen, threads=1, control=control)
        report = result.as_json()
        del report["wall_seconds"], report["compile_seconds"]
        runs.append((report, seen.table("hops"), seen.table("queue_samples")))
    assert runs[0][0] == runs[1][0]
    for before, after in zip(runs[0][1:], runs[1][1:], strict=True):
        assert all(np.array_equal(before[name], after[name]) for name in before)


@settings(max_examples=15, deadline=None)
@given(
    rates=st.lists(st.integers(0, 15_000), min_size=3, max_size=3).filter(any),
    traffic=st.sampled_from([ArrivalProcess.PERIODIC, ArrivalProcess.POISSON, ArrivalProcess.ON_OFF]),
    estimator=st.sampled_from(["idm", "backlog", "model", "red"]),
    errors=st.booleans(),
)
def test_at_all_times_queue_rates_are_above_floors_and_add_up(
    rates: list[int], traffic: ArrivalProcess, estimator: str, errors: bool
) -> None:
    counters = "linux" if estimator == "backlog" else "openflow"
    control = ControlSettings(estimator, counters, read_errors=ReadErrors() if errors else None)
    queue_rates = _queue_rates(_run(shi_scenario(rates, traffic), control, 1.2)[0])
    assert (queue_rates.sum(axis=1) == PORT_BPS).all()
    assert (queue_rates >= FLOORS_BPS).all()


def test_a_congested_queue_gets_what_others_do_not_use_and_the_trace_says_so() -> None:
    seen, _ = _run(shi_scenario([20_000, 0, 0], ArrivalProcess.POISSON), ControlSettings())
    assert _queue_rates(seen)[-1].tolist() == [88_000_000, 10_000_000, 2_000_000]
    decisions = seen.table("decisions")
    assert decisions["kind"].tolist() == ["queue_rates"]
    assert decisions["after"][0] == "88000000 10000000 2000000"
    assert "class 0 waits" in decisions["reason"][0]


def test_a_port_that_becomes_slower_is_divided_in_the_same_shares() -> None:
    scenario = shi_scenario([1_000, 500, 100], ArrivalProcess.POISSON)
    slower = Change(1.1, bandwidth_bps=np.array([PORT_BPS / 2.0]))
    overload = Change(1.6, publication_rate=np.array([10_000.0, 500.0, 100.0]))
    seen, _ = _run(scenario, ControlSettings(), changes=[slower, overload])
    queue_rates = _queue_rates(seen)
    assert queue_rates[0].tolist() == [60_000_000, 30_000_000, 10_000_000]
    assert queue_rates[-1].sum() == PORT_BPS // 2
    assert queue_rates[-1][0] > 40_000_000


def test_requirements_are_the_latencies_that_subscriptions_ask_for_over_ports_with_queue_rates() -> None:
    scenario = shi_scenario([1_000, 500, 100], switches=3, max_latency_seconds=(0.01, 0.06, np.inf))
    found = sorted(requirements(scenario, shi_plan(scenario)), key=lambda each: each.priority)
    assert [(each.topic, each.priority, each.path, each.delay_seconds) for each in found] == [
        (QUEUES[0], 0, ("sw1", "sw2", "sw3"), 0.01),
        (QUEUES[1], 1, ("sw1", "sw2", "sw3"), 0.06),
    ]


def test_an_impossible_requirement_is_refused_in_the_trace() -> None:
    scenario = shi_scenario([1_000, 500, 100], switches=3, max_latency_seconds=(0.0002, 0.06, np.inf))
    decisions = _run(scenario, ControlSettings(), 0.5)[0].table("decisions")
    refused = decisions["kind"] == "refused"
    assert decisions["subject"][refused].tolist() == [f"S3, {QUEUES[0]}"]
    assert "less than 3 switches take" in decisions["reason"][refused][0]


def test_publishers_that_are_asked_to_slow_down_do_and_queues_get_shorter() -> None:
    scenario = shi_scenario([15_000, 500, 100], switches=3, max_latency_seconds=(0.01, np.inf, np.inf))
    slowed, ignored = (
        _run(scenario, ControlSettings(slow_down=slow_down), 6.0) for slow_down in (True, False)
    )
    decided = slowed[0].table("decisions")
    assert decided["subject"][decided["kind"] == "slow_down"][0] == QUEUES[0]
    last = [
        float(np.mean(seen.table("queue_samples")["backlog_bytes"][-9 * 5 :]))
        for seen, _ in (slowed, ignored)
    ]
    assert last[0] < 0.2 * last[1]
    assert slowed[1].publications < ignored[1].publications


def test_a_control_needs_a_port_with_queue_rates() -> None:
    scenario = shi_scenario([1_000, 0, 0], ArrivalProcess.POISSON)
    plan = shi_plan(scenario)
    fifo = scenario.with_tables(
        ports=replace(scenario.ports, discipline=np.zeros_like(scenario.ports.discipline))
    )
    with pytest.raises(ParameterError, match="nothing to divide"):
        SimulatedControl(fifo, plan, ControlSettings())
