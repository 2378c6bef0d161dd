"""How times spread in a queue: second moments from the books, and laws against an event simulation of one port."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from numpy.typing import NDArray

from triagemq.theory import (
    Cumulants,
    LatencyDistribution,
    Work,
    check_batches,
    mean_waits,
    mixture_percentile,
    percentile,
    queue_times,
    share_within,
    sojourn_times,
)

Floats = NDArray[np.float64]

TOPIC_RATES = np.array([0.5, 1.0, 0.25, 0.8])
TOPIC_BYTES = np.array([1.0, 0.4, 2.0, 0.7])
TOPICS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 3])
CLASSES = np.array([0, 1, 1, 0, 2, 2, 1, 2, 2, 1])
KEEP = np.array([1.0, 0.8, 0.6, 0.9, 1.0, 0.5, 0.7, 0.9, 0.4, 1.0])
RATES = TOPIC_RATES[TOPICS] * KEEP
PUBLICATIONS = 60_000


def simulated(load: float, *, exponential: bool) -> list[Floats]:
    """Times from publication to the end of transmission, by subscription; copies come in class order."""
    rng = np.random.default_rng(3)
    scale = TOPIC_BYTES * load / float(RATES @ TOPIC_BYTES[TOPICS])
    when = np.cumsum(rng.exponential(1 / TOPIC_RATES.sum(), PUBLICATIONS)).tolist()
    topic_of = rng.choice(len(TOPIC_RATES), PUBLICATIONS, p=TOPIC_RATES / TOPIC_RATES.sum()).tolist()
    size = (rng.exponential(1.0, PUBLICATIONS) if exponential else np.ones(PUBLICATIONS)) * scale[topic_of]
    passes = rng.random((PUBLICATIONS, len(TOPICS))) < KEEP
    order = rng.random((PUBLICATIONS, len(TOPICS)))
    members = [np.flatnonzero(topic == TOPICS) for topic in range(len(TOPIC_RATES))]
    found: list[list[float]] = [[] for _ in TOPICS]
    queue: list[tuple[int, int, float, int]] = []
    clock, number = 0.0, 0
    while number < PUBLICATIONS or queue:
        if not queue:
            clock = max(clock, when[number])
        while number < PUBLICATIONS and when[number] <= clock:
            for r in members[topic_of[number]]:
                if passes[number, r]:
                    heapq.heappush(queue, (int(CLASSES[r]), number, order[number, r], int(r)))
            number += 1
        if not queue:
            continue
        _, event, _, r = heapq.heappop(queue)
        clock += size[event]
        found[r].append(clock - when[event])
    return [np.array(each) for each in found]


def law(load: float, *, exponential: bool) -> LatencyDistribution:
    service = TOPIC_BYTES[TOPICS] * load / float(RATES @ TOPIC_BYTES[TOPICS])
    work = Work.of_packets(RATES, service, 1.0 if exponential else 0.0)
    batches = check_batches(len(RATES), CLASSES, TOPICS, KEEP)
    return sojourn_times(work, batches).with_mean(mean_waits(work, batches) + service)


@pytest.mark.parametrize("scv", [0.0, 1.0])
def test_second_moments_are_kesten_and_runnenburgs(scv: float) -> None:
    rates, service, classes = np.array([0.2, 0.1, 0.3]), np.array([1.0, 2.0, 0.5]), np.array([0, 1, 2])
    two, three = rates * service**2 * (1 + scv), rates * service**3 * (6 if scv else 1)
    sigma = np.concatenate([[0.0], np.cumsum(rates * service)])
    through = np.concatenate([[0.0], np.cumsum(two)])
    a, b = sigma[:-1], sigma[1:]
    mean = two.sum() / 2 / (1 - a) / (1 - b)
    square = (
        three.sum() / 3 / (1 - a) ** 2 / (1 - b)
        + two.sum() * through[1:] / 2 / (1 - a) ** 2 / (1 - b) ** 2
        + two.sum() * through[:-1] / 2 / (1 - a) ** 3 / (1 - b)
    )
    found = queue_times(rates, service, scv, classes).overall
    assert found.mean == pytest.approx(mean + service)
    assert found.variance == pytest.approx(square - mean**2 + scv * service**2)


@pytest.mark.parametrize(("load", "exponential"), [(0.15, False), (0.15, True), (0.7, False), (0.7, True)])
def test_laws_agree_with_the_simulated_port(load: float, exponential: bool) -> None:
    found, measured = law(load, exponential=exponential), simulated(load, exponential=exponential)
    deviation = np.array([each.std() for each in measured])
    assert np.sqrt(found.overall.variance) == pytest.approx(deviation, rel=0.08)
    for share, median, most in ((0.95, 0.05, 0.2), (0.99, 0.08, 0.25)):
        true = np.array([np.quantile(each, share) for each in measured])
        error = np.abs(percentile(found, share) / true - 1)
        assert np.median(error) < median
        assert error.max() < most
    limit = 3 * found.overall.mean
    within = np.array([(each <= most).mean() for each, most in zip(measured, limit, strict=True)])
    assert share_within(found, limit) == pytest.approx(within, abs=0.02)


def test_mm1_has_exponential_times_and_constants_have_none_but_their_own() -> None:
    mm1 = queue_times([0.9], [1.0], 1.0, [0])
    assert percentile(mm1, 0.99) == pytest.approx([10 * np.log(100)], rel=1e-4)
    alone = queue_times([1e-9], [1.0], 0.0, [0])
    assert percentile(alone, 0.99) == pytest.approx([1.0], rel=1e-3)
    assert share_within(alone, [0.99]) == pytest.approx([0.0], abs=1e-6)


def test_an_unstable_class_has_endless_percentiles_and_nothing_within_any_limit() -> None:
    found = queue_times([0.5, 1.0], [1.0, 1.0], 1.0, [0, 1])
    assert np.isinf(percentile(found, 0.95)).tolist() == [False, True]
    assert share_within(found, 1e9).tolist() == [1.0, 0.0]


def test_a_class_has_the_percentile_of_the_mixture_not_the_mean_of_percentiles() -> None:
    both = LatencyDistribution.of(Cumulants.exponential(np.array([1.0, 10.0])))
    found = mixture_percentile(both, np.array([19.0, 1.0]), 0.95)
    assert 0.95 * np.exp(-found) + 0.05 * np.exp(-found / 10) == pytest.approx(0.05, rel=1e-3)
    many = LatencyDistribution.of(Cumulants.exponential(np.repeat([1.0, 10.0], [19_000, 1_000])))
    assert mixture_percentile(many, np.ones(20_000), 0.95) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("skewness", [-3.0, 0.0, 0.5, 4.0])
def test_percentiles_and_shares_within_are_inverse(skewness: float) -> None:
    times = LatencyDistribution.of(Cumulants(np.full(1, 5.0), np.ones(1), np.full(1, skewness)))
    for share in (0.95, 0.99):
        assert share_within(times, percentile(times, share)) == pytest.approx([share], abs=2e-3)
