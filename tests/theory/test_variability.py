"""Variability of arrivals: each rule against an exact moment, limits, and queues in one call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from triagemq.theory import (
    gg1_factor,
    merged_ca2,
    mm1_sojourn,
    on_off_ca2,
    pareto_ca2,
    priority_waits,
)


def merged(rates: ArrayLike, ca2: ArrayLike, load: float) -> float:
    """The variability of everything at one queue."""
    return float(merged_ca2(rates, ca2, [load], np.zeros(np.size(rates), np.int64))[0])


def test_poisson_input_leaves_a_wait_as_it_is() -> None:
    assert gg1_factor(1.0, [0.0, 0.3, 9.0]).tolist() == [1.0, 1.0, 1.0]


@given(ca2=st.floats(0, 20), cs2=st.floats(0, 20))
def test_factor_on_the_mg1_wait_is_half_the_sum_on_the_mm1_wait(ca2: float, cs2: float) -> None:
    mm1_wait = float(mm1_sojourn(0.8, 1.0)) - 1.0
    mg1_wait = priority_waits([0.8], 1.0, cs2, [0])[0]
    assert float(gg1_factor(ca2, cs2)) * mg1_wait == pytest.approx((ca2 + cs2) / 2 * mm1_wait, rel=1e-9)


def test_heavy_tailed_input_has_no_finite_factor() -> None:
    assert float(gg1_factor(np.inf, 1.0)) == np.inf


@given(
    rates=st.lists(st.floats(0.0, 100.0), max_size=20),
    load=st.floats(0.0, 2.0),
)
def test_poisson_streams_merge_to_exactly_poisson(rates: list[float], load: float) -> None:
    assert merged(rates, 1.0, load) == 1.0


def test_merge_of_two_streams_by_hand() -> None:
    # p = 1/4, 3/4: v = 1.6, w = 1/(1 + 4 * 0.25 * 0.6) = 0.625, mean = 0.25*5 + 0.75*1 = 2
    assert merged([1.0, 3.0], [5.0, 1.0], 0.5) == pytest.approx(0.625 * 2 + 0.375)


def test_one_stream_merges_to_itself_at_any_load() -> None:
    assert merged([7.0], [3.5], 0.1) == pytest.approx(3.5, rel=1e-15)


def test_many_streams_at_low_load_merge_towards_poisson() -> None:
    assert merged(np.ones(10_000), 9.0, 0.1) == pytest.approx(1.0, abs=0.01)


def test_overload_counts_as_full_load() -> None:
    assert merged([1.0, 1.0], [4.0, 2.0], 3.0) == 3.0


def test_merging_queues_in_one_call_equals_separate_calls() -> None:
    rng = np.random.default_rng(4)
    queues, rates, ca2 = rng.integers(0, 5, 40), rng.uniform(0, 3, 40), rng.uniform(0, 6, 40)
    loads = np.array([0.1, 0.5, 0.9, 1.0, 1.5, 0.3])
    together = merged_ca2(rates, ca2, loads, queues=queues)
    apart = [merged(rates[queues == q], ca2[queues == q], loads[q]) for q in range(6)]
    np.testing.assert_allclose(together, apart, rtol=1e-14)
    assert together[5] == 1.0


def test_a_silent_stream_of_infinite_variability_does_not_count() -> None:
    assert merged([0.0, 1.0], [np.inf, 2.0], 0.5) == 2.0
    assert merged([0.5, 1.0], [np.inf, 2.0], 0.5) == np.inf


def test_merging_nothing_is_poisson() -> None:
    assert merged([], [], 0.5) == 1.0
    assert merged_ca2([], [], [0.5, 0.6], queues=[]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("shape", [2.1, 3.0, 7.5])
def test_pareto_variability_from_its_moments(shape: float) -> None:
    mean, second = shape / (shape - 1), shape / (shape - 2)
    assert float(pareto_ca2(shape)) == pytest.approx(second / mean**2 - 1)


def test_pareto_without_a_second_moment_is_infinite() -> None:
    assert pareto_ca2([0.5, 1.5, 2.0]).tolist() == [np.inf, np.inf, np.inf]


@pytest.mark.parametrize(("rate", "on", "off"), [(10.0, 1.0, 1.0), (3.0, 0.2, 5.0), (0.5, 20.0, 0.1)])
def test_on_off_variability_from_phase_type_moments(rate: float, on: float, off: float) -> None:
    rate_on, stop, start = rate * (on + off) / on, 1 / on, 1 / off
    # The gap after an event starts in the on state: first moments of its absorption time.
    inverse = np.linalg.inv(np.array([[rate_on + stop, -stop], [-start, start]]))
    mean, second = inverse[0].sum(), 2 * (inverse @ inverse)[0].sum()
    assert mean == pytest.approx(1 / rate)
    assert float(on_off_ca2(rate, on, off)) == pytest.approx(second / mean**2 - 1, rel=1e-9)


def test_never_off_is_poisson() -> None:
    assert float(on_off_ca2(10.0, 1.0, 0.0)) == 1.0
