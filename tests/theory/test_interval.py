"""How sure a mean is."""

from __future__ import annotations

import numpy as np
import pytest

from triagemq.theory.interval import half_width, t_quantile


def test_the_interval_is_students() -> None:
    assert half_width(np.array([[1.0], [3.0]]), axis=0)[0] == pytest.approx(12.706, rel=1e-3)
    assert np.isnan(half_width(np.array([[1.0]]), axis=0)[0])
    # Five of them together: each at 99 %.
    assert half_width(np.array([[1.0], [3.0]]), axis=0, means=5)[0] == pytest.approx(63.657, rel=1e-3)


def test_it_is_what_deviation_and_quantile_make_of_what_is_known() -> None:
    samples = np.random.default_rng(3).normal(5.0, 2.0, (4, 9))
    samples[2, 3:] = np.nan
    found = half_width(samples)
    for row, known in zip(found, (each[np.isfinite(each)] for each in samples), strict=True):
        expected = t_quantile(len(known)) * known.std(ddof=1) / np.sqrt(len(known))
        assert row == pytest.approx(float(expected), rel=1e-12)
