"""Finite buffers against direct sums over the states, and where naive powers overflow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.theory import finite_buffer_loss, finite_buffer_sojourn, served_share

loads_of_classes = st.lists(st.floats(0.0, 2.0), min_size=1, max_size=6)


def states(load: float, buffer: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    weights = load ** np.arange(buffer + 1.0)
    return weights / weights.sum()


@pytest.mark.parametrize("load", [0.2, 0.9, 0.999, 1.0, 1.001, 1.7, 5.0])
@pytest.mark.parametrize("buffer", [1, 2, 7, 40])
def test_one_class_is_mm1k_by_direct_sum(load: float, buffer: int) -> None:
    probabilities = states(load, buffer)
    assert finite_buffer_loss([load], buffer)[0] == pytest.approx(probabilities[-1], rel=1e-10)
    in_system = probabilities @ np.arange(buffer + 1)
    sojourn = in_system / (load * (1 - probabilities[-1])) * 3.0
    assert float(finite_buffer_sojourn(load, buffer, 3.0)) == pytest.approx(sojourn, rel=1e-10)


def test_class_losses_are_differences_of_cumulative_losses() -> None:
    # sigma = 1/2, 1; K = 1: P = 1/3, 1/2, so class 1 loses (1/2 - 1/6) / (1/2)
    assert finite_buffer_loss([0.5, 0.5], 1) == pytest.approx([1 / 3, 2 / 3])


def test_losses_of_two_thousand_packets_do_not_overflow() -> None:
    assert finite_buffer_loss([2.0], 2000) == pytest.approx([0.5], rel=1e-12)
    assert finite_buffer_loss([0.5, 1.5, 1.0], 2000) == pytest.approx([0.0, 2 / 3, 1.0], abs=1e-9)
    assert finite_buffer_loss([1e6], 10**9) == pytest.approx([1 - 1e-6])
    assert float(finite_buffer_sojourn(2.0, 2000, 1.0)) == pytest.approx(1999.0)


def test_loss_at_load_one_is_one_in_k_plus_one() -> None:
    for buffer in (1, 10, 2000):
        assert finite_buffer_loss([1.0], buffer)[0] == 1 / (buffer + 1)


@pytest.mark.parametrize("buffer", [1, 10, 2000])
@pytest.mark.parametrize("distance", [1e-15, 1e-12, 1e-9, 1e-7])
def test_loss_and_sojourn_are_continuous_at_load_one(buffer: int, distance: float) -> None:
    # dP/dload = 1/2 K/(K+1) < 1/2 at 1, and dT/dload = (K^2 - 1)/12 services.
    for load in (1 - distance, 1 + distance):
        assert abs(finite_buffer_loss([load], buffer)[0] - 1 / (buffer + 1)) <= distance + 1e-15
        middle = (buffer + 1) / 2
        slope = (buffer**2 - 1) / 12
        change = float(finite_buffer_sojourn(load, buffer, 1.0)) - middle
        assert change == pytest.approx((load - 1) * slope, rel=1e-3, abs=1e-12 * buffer)


@given(loads=loads_of_classes, buffer=st.integers(1, 3000))
def test_losses_add_up_to_the_loss_of_all_classes_together(loads: list[float], buffer: int) -> None:
    losses = finite_buffer_loss(loads, buffer)
    assert np.all((losses >= 0) & (losses <= 1))
    together = sum(loads) * finite_buffer_loss([sum(loads)], buffer)[0]
    assert np.sum(losses * loads) == pytest.approx(together, rel=1e-5, abs=1e-6)


@given(loads=loads_of_classes, buffer=st.integers(1, 3000))
def test_a_lower_class_never_loses_a_smaller_share(loads: list[float], buffer: int) -> None:
    losses = finite_buffer_loss(loads, buffer)
    assert np.all(np.diff(losses) >= -1e-5)


def test_a_class_without_load_gets_the_limit_of_a_small_load() -> None:
    for above, buffer in itertools.product([0.3, 0.9, 1.0, 1.4], [1, 20, 2000]):
        none, small = (finite_buffer_loss([above, load], buffer)[1] for load in (0.0, 1e-5 / buffer))
        assert none == pytest.approx(small, rel=1e-4, abs=1e-6)
    assert finite_buffer_loss([0.0, 0.0], 1).tolist() == [0.0, 0.0]


def test_queues_in_rows_with_a_buffer_each_equal_separate_calls() -> None:
    loads = np.array([[0.5, 0.4, 0.3], [0.2, 0.0, 2.0], [0.9, 0.9, 0.9]])
    buffers = [3, 2000, np.inf]
    expected = [finite_buffer_loss(row, buffer) for row, buffer in zip(loads, buffers, strict=True)]
    np.testing.assert_array_equal(finite_buffer_loss(loads, buffers), expected)
    np.testing.assert_array_equal(finite_buffer_loss(loads, 3)[0], expected[0])


def test_an_infinite_buffer_loses_what_the_server_cannot_carry() -> None:
    for loads in ([0.5, 0.4], [0.5, 1.0, 0.3], [2.0, 0.0]):
        np.testing.assert_array_equal(finite_buffer_loss(loads, np.inf), 1 - served_share(loads))


def test_sojourn_of_an_infinite_buffer_is_mm1() -> None:
    assert finite_buffer_sojourn([0.0, 0.75, 1.0, 2.0], np.inf, 0.5).tolist() == [0.5, 2.0, np.inf, np.inf]


def test_sojourn_of_a_large_buffer_approaches_mm1_below_full_load() -> None:
    assert float(finite_buffer_sojourn(0.9, 10**12, 1.0)) == pytest.approx(10.0, rel=1e-12)


def test_an_idle_finite_buffer_takes_the_service_time() -> None:
    assert float(finite_buffer_sojourn(0.0, 5, 0.25)) == 0.25


def test_a_buffer_of_one_never_waits() -> None:
    assert finite_buffer_sojourn([0.1, 1.0, 50.0], 1, 2.0) == pytest.approx([2.0, 2.0, 2.0])


def test_no_queues_or_no_classes_give_no_losses() -> None:
    assert finite_buffer_loss([], 5).shape == (0,)
    assert finite_buffer_loss(np.zeros((0, 3)), []).shape == (0, 3)
    assert finite_buffer_sojourn([], 5, 1.0).shape == (0,)
