"""M/M/1 and FIFO M/G/1 against textbook values."""

from __future__ import annotations

import numpy as np
import pytest

from triagemq.theory import fifo_waits, mm1_sojourn


def test_mm1_sojourn_is_one_over_the_spare_rate() -> None:
    assert float(mm1_sojourn(3.0, 5.0)) == 0.5


def test_mm1_sojourn_is_infinite_at_and_above_saturation() -> None:
    assert mm1_sojourn([5.0, 6.0], 5.0).tolist() == [np.inf, np.inf]


def test_mm1_sojourn_broadcasts() -> None:
    assert mm1_sojourn([[1.0], [2.0]], [3.0, 4.0, 5.0]).shape == (2, 3)


def test_an_idle_mm1_takes_its_service_time() -> None:
    assert float(mm1_sojourn(0.0, 8.0)) == 0.125


def test_fifo_wait_of_md1_is_half_that_of_mm1() -> None:
    exponential, constant = fifo_waits([0.8], [1.0], 1.0), fifo_waits([0.8], [1.0], 0.0)
    assert exponential == pytest.approx([4.0])
    assert constant == pytest.approx([2.0])


def test_fifo_wait_is_pollaczek_khinchine_over_streams_of_unequal_sizes() -> None:
    # rho = 0.2 + 0.4; R = (0.2 * 2 * 1 + 0.1 * 1 * 16) / 2 = 1.0
    assert fifo_waits([0.2, 0.1], [1.0, 4.0], [1.0, 0.0]) == pytest.approx([2.5, 2.5])


def test_fifo_wait_of_one_exponential_stream_is_mm1_less_the_service() -> None:
    assert fifo_waits([3.0], [0.2], 1.0)[0] == pytest.approx(float(mm1_sojourn(3.0, 5.0)) - 0.2)


def test_fifo_wait_is_infinite_when_the_streams_together_saturate() -> None:
    assert fifo_waits([0.5, 0.5], [1.0, 1.0], 1.0).tolist() == [np.inf, np.inf]


def test_no_streams_have_no_waits() -> None:
    assert fifo_waits([], [], 1.0).shape == (0,)
    assert mm1_sojourn([], 1.0).shape == (0,)
