"""Bandwidths of queues: they add up, keep their floors, and are the best there are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from triagemq.delay.control import DividedPort, PortDivision, WidthControl, divide_port, weights_by_width
from triagemq.errors import ParameterError

PAPER = DividedPort(100_000_000, starvation_bps=(2_000_000, 10_000_000, 30_000_000), weights=(6, 7, 8))


@st.composite
def ports(draw: st.DrawFn) -> DividedPort:
    count = draw(st.integers(1, 8))
    floors = draw(st.lists(st.integers(1, 10**7), min_size=count, max_size=count))
    bandwidth = sum(floors) + draw(st.integers(0, 10**9))
    weights = draw(st.lists(st.floats(0.01, 100), min_size=count, max_size=count))
    return DividedPort(bandwidth, tuple(floors), tuple(weights))


def _held(draw: st.DrawFn, port: DividedPort) -> list[float]:
    count = len(port.weights)
    return draw(st.lists(st.sampled_from([0.0, 1.0]) | st.floats(0, 1e8), min_size=count, max_size=count))


@st.composite
def loads(draw: st.DrawFn) -> tuple[DividedPort, list[float], list[float]]:
    port = draw(ports())
    count = len(port.weights)
    constraints = st.just(math.inf) | st.floats(1e-4, 10)
    return port, _held(draw, port), draw(st.lists(constraints, min_size=count, max_size=count))


def _cost(port: DividedPort, division: PortDivision) -> float:
    return float(np.dot(port.weights, division.delay_seconds))


@given(loads())
def test_queue_rates_add_up_and_are_never_below_their_floors(
    load: tuple[DividedPort, list[float], list[float]],
) -> None:
    port, held, constraint = load
    division = divide_port(port, held, constraint)
    assert int(division.width_bps.sum()) == port.bandwidth_bps
    assert (division.width_bps >= division.floor_bps).all()
    assert (division.floor_bps >= port.starvation_bps).all()


@given(loads())
def test_a_constraint_holds_unless_it_is_said_that_it_cannot(
    load: tuple[DividedPort, list[float], list[float]],
) -> None:
    port, held, constraint = load
    division = divide_port(port, held, constraint)
    late = {
        queue for queue in range(len(held)) if division.delay_seconds[queue] > constraint[queue] * (1 + 1e-12)
    }
    assert late <= set(division.cannot_hold)


@given(loads())
def test_a_constraint_is_given_up_only_where_those_of_more_weight_leave_too_little(
    load: tuple[DividedPort, list[float], list[float]],
) -> None:
    port, held, constraint = load
    division = divide_port(port, held, constraint)
    needed = 8 * np.array(held) / np.array(constraint)
    for queue in division.cannot_hold:
        heavier = np.array(port.weights) >= port.weights[queue]
        heavier[queue] = False
        taken = np.where(heavier, division.floor_bps, port.starvation_bps)
        assert taken.sum() - taken[queue] + math.ceil(needed[queue]) > port.bandwidth_bps


@given(st.data())
def test_no_numerical_solver_finds_better_queue_rates(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5))
    numbers = st.floats(0.05, 1.0)
    weights = data.draw(st.lists(numbers, min_size=count, max_size=count))
    held = np.array(data.draw(st.lists(numbers, min_size=count, max_size=count)))
    starvation = np.array(data.draw(st.lists(st.floats(0.001, 0.9 / count), min_size=count, max_size=count)))
    bandwidth = 1e9
    port = DividedPort(int(bandwidth), tuple((starvation * bandwidth).astype(int).tolist()), tuple(weights))
    ours = divide_port(port, held * bandwidth / 8).width_bps / bandwidth
    cost = lambda queue_rates: float(np.sum(np.array(weights) * held / queue_rates))  # noqa: E731
    found = minimize(
        cost,
        starvation + (1 - starvation.sum()) / count,
        jac=lambda queue_rates: -np.array(weights) * held / queue_rates**2,
        bounds=[(least, 1.0) for least in starvation],
        constraints={"type": "eq", "fun": lambda queue_rates: queue_rates.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 300},
    )
    assert cost(ours) <= found.fun * (1 + 1e-6)
    if found.success:
        assert cost(ours) >= found.fun * (1 - 1e-4)


def test_the_papers_congested_queue_7_gets_88_of_100() -> None:
    assert divide_port(PAPER, [0, 0, 920_000]).width_bps.tolist() == [2_000_000, 10_000_000, 88_000_000]


def test_empty_queues_divide_the_port_as_if_they_held_the_same() -> None:
    port = DividedPort(100, (1, 1), (1.0, 9.0))
    assert (
        divide_port(port, [0, 0]).width_bps.tolist()
        == divide_port(port, [5, 5]).width_bps.tolist()
        == [25, 75]
    )


def test_rights_come_before_constraints_and_those_before_what_is_needed() -> None:
    port = DividedPort(100, starvation_bps=(30, 10, 2), weights=weights_by_width([60, 30, 10]))
    full = [0, 0, 10**6]
    assert divide_port(port, full).floor_bps.tolist() == [30, 10, 2]
    assert divide_port(port, full, guaranteed_bps=[60, 30, 2]).floor_bps.tolist() == [60, 30, 2]
    needed = divide_port(port, full, guaranteed_bps=[20, 30, 2], needed_bps=[20, 40, 40])
    assert needed.floor_bps.tolist() == [30, 40, 2]
    assert needed.width_bps.tolist() == [30, 40, 30]
    constrained = divide_port(port, [10, 0, 10**6], [1.0, math.inf, math.inf], guaranteed_bps=[20, 30, 2])
    assert constrained.floor_bps.tolist() == [68, 30, 2]
    assert constrained.cannot_hold == (0,)
    careful = divide_port(
        port, [10, 0, 10**6], [1.0, math.inf, math.inf], guaranteed_bps=[20, 60, 2], committed_bps=[20, 30, 2]
    )
    assert careful.floor_bps.tolist() == [68, 30, 2]


def test_with_weights_by_width_only_the_last_class_gives_when_all_are_full() -> None:
    configured, floors = [60_000, 30_000, 10_000], [30_000, 10_000, 2_000]
    port = DividedPort(100_000, tuple(floors), weights_by_width(configured))
    queue_rates = divide_port(port, [10**6] * 3).width_bps
    assert (queue_rates >= [60_001, 30_001, 9_000]).all()


def test_queue_rates_rest_unless_a_floor_or_much_delay_forbids_it() -> None:
    control = WidthControl(DividedPort(1000, (10, 10), (1.0, 1.0)), rest=3, width_bps=(500, 500))
    assert control.decide([100, 120]).width_bps.tolist() == [477, 523]
    resting = [control.decide([120, 100]).width_bps[0] for _ in range(3)]
    assert resting == [477, 477, 523]
    assert control.decide([120, 100], guaranteed_bps=[0, 600]).width_bps.tolist() == [400, 600]
    assert control.decide([100, 2500]).width_bps[1] > 800


@given(load=loads(), hysteresis=st.sampled_from([0.0, 0.05, 0.5]))
def test_what_does_not_change_changes_no_queue_rates(
    load: tuple[DividedPort, list[float], list[float]], hysteresis: float
) -> None:
    port, held, constraint = load
    control = WidthControl(port, hysteresis=hysteresis)
    first, second = control.decide(held, constraint), control.decide(held, constraint)
    assert first.width_bps.tolist() == second.width_bps.tolist()
    assert first.cannot_hold == second.cannot_hold


@given(data=st.data())
def test_over_random_loads_queue_rates_keep_floors_and_cost_little_more_than_the_best(
    data: st.DataObject,
) -> None:
    port = data.draw(ports())
    control = WidthControl(port, hysteresis=0.1)
    for _ in range(data.draw(st.integers(1, 6))):
        held = _held(data.draw, port)
        constraint = data.draw(st.sampled_from([math.inf, 0.001, 0.1]))
        division = control.decide(held, constraint)
        assert int(division.width_bps.sum()) == port.bandwidth_bps
        best = divide_port(port, held, constraint)
        assert (division.width_bps >= best.floor_bps).all()
        assert _cost(port, division) <= _cost(port, best) / (1 - 0.1) * (1 + 1e-9)


def test_idle_queues_change_nothing() -> None:
    control = WidthControl(PAPER)
    busy = control.decide([10_000, 0, 920_000]).width_bps
    assert control.decide([0, 0, 0]).width_bps.tolist() == busy.tolist()


@pytest.mark.parametrize(
    ("bandwidth", "floors", "weights", "said"),
    [
        (10, (6, 6), (1.0, 1.0), "add up to 12; the port has 10"),
        (10, (0, 6), (1.0, 1.0), "must be 1 or more"),
        (10, (1, 1), (1.0,), "are 1 for 2 queues"),
        (10, (1, 1), (1.0, 0.0), "must be above 0"),
    ],
)
def test_impossible_ports_are_refused(
    bandwidth: int, floors: tuple[int, ...], weights: tuple[float, ...], said: str
) -> None:
    with pytest.raises(ParameterError, match=said):
        DividedPort(bandwidth, floors, weights)
