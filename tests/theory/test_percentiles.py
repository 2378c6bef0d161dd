"""Laws through what a sample says: its mean, its 95th and its 99th percentile."""

from __future__ import annotations

import numpy as np
import pytest

from triagemq.theory import LatencyDistribution, percentile


def sampled(kind: str) -> np.ndarray:
    random = np.random.default_rng(5)
    count = 400_000
    if kind == "exponential":
        return random.exponential(1.0, count)
    if kind == "nearly constant":
        return 10 + random.normal(0.0, 0.1, count)
    rare = {"rare bursts": 0.06, "very rare bursts": 0.03, "frequent bursts": 0.15}[kind]
    return random.uniform(0.8, 1.2, count) + random.exponential(20.0, count) * (random.random(count) < rare)


@pytest.mark.parametrize(
    "kind", ["exponential", "nearly constant", "rare bursts", "very rare bursts", "frequent bursts"]
)
def test_a_law_passes_through_the_percentiles_of_its_sample(kind: str) -> None:
    times = sampled(kind)
    mean, p95, p99 = times.mean(), *np.quantile(times, (0.95, 0.99))
    columns = [np.array([each]) for each in (mean, p95, p99)]
    for column in columns:
        column.flags.writeable = False
    law = LatencyDistribution.through(*columns)
    assert law.mean == pytest.approx(mean)
    assert percentile(law, 0.95) == pytest.approx(p95, rel=0.03)
    assert percentile(law, 0.99) == pytest.approx(p99, rel=0.03)
