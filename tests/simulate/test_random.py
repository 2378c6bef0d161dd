"""The random numbers: uniform and exponential laws, and draws that depend on nothing but their counter."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy import stats

from triagemq.simulate.random import Purpose, alias_table, draw_alias, exponential, seeds_for, uniform

COUNT = 2_000_000


@numba.njit
def many(draw, seed, count):  # type: ignore[no-untyped-def]
    values = np.empty(count)
    for counter in range(count):
        values[counter] = draw(seed, counter)
    return values


@pytest.fixture(scope="module")
def seed() -> np.uint64:
    return seeds_for(11, 0)[Purpose.DROP]


def test_uniform_numbers_are_uniform(seed: np.uint64) -> None:
    values = many(uniform, seed, COUNT)
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert values.min() > 0
    assert values.max() <= 1
    neighbours = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(COUNT)


def test_exponential_numbers_are_exponential(seed: np.uint64) -> None:
    values = many(exponential, seed, COUNT)
    assert stats.kstest(values, "expon").pvalue > 1e-3
    # The tail beyond the ziggurat's layers has a law of its own code.
    for limit in (2.0, 7.0, 7.7, 9.0):
        expected = np.exp(-limit)
        found = (values > limit).mean()
        assert found == pytest.approx(expected, abs=4 * np.sqrt(expected / COUNT))
    for power, moment in ((1, 1.0), (2, 2.0), (3, 6.0)):
        spread = np.sqrt((values**power).var() / COUNT)
        assert (values**power).mean() == pytest.approx(moment, abs=4 * spread)


def test_purposes_and_replications_are_independent() -> None:
    seeds = [*seeds_for(1, 0), *seeds_for(1, 1), *seeds_for(2, 0)]
    assert len({int(each) for each in seeds}) == len(seeds)
    draws = np.stack([many(uniform, each, 100_000) for each in seeds[:12]])
    correlation = np.corrcoef(draws)[np.triu_indices(12, 1)]
    assert np.abs(correlation).max() < 5 / np.sqrt(100_000)


def test_alias_tables_choose_by_weight() -> None:
    weights = np.array([0.5, 0.0, 7.0, 2.5, 0.1])
    share, alias = alias_table(weights)
    chosen = [draw_alias(share, alias, 0, 5, drawn) for drawn in np.linspace(1e-9, 1.0, 200_001)]
    found = np.bincount(chosen, minlength=5) / len(chosen)
    assert found == pytest.approx(weights / weights.sum(), abs=1e-4)
