"""A single port against closed forms: M/M/1, M/D/1, M/M/1/K, Cobham's priorities, push-out, batches of packets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit
from tests.simulate.port_alone import port_alone

REPLICATIONS = 12


def interval(samples: list[float]) -> tuple[float, float]:
    """Mean and half-width of the 99.9 % interval over replications: one of a thousand true values lies outside."""
    spread = np.std(samples, ddof=1) / np.sqrt(len(samples))
    return float(np.mean(samples)), float(stdtrit(len(samples) - 1, 0.9995) * spread)


def replicated(measure: str, **queue: object) -> list[tuple[float, float]]:
    runs = [
        getattr(port_alone(**queue, customers=100_000, seed=5, replication=number), measure)
        for number in range(REPLICATIONS)
    ]
    return [interval([run[row] for run in runs]) for row in range(len(runs[0]))]


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_mm1_sojourn(load: float) -> None:
    ((mean, half_width),) = replicated(
        "mean_sojourn", arrival_rates=[load], mean_service=[1.0], scv=1, classes=[0]
    )
    assert mean == pytest.approx(1 / (1 - load), abs=half_width)
    assert half_width < 0.05 * mean


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_md1_wait_is_half_of_mm1(load: float) -> None:
    ((mean, half_width),) = replicated(
        "mean_wait", arrival_rates=[load], mean_service=[1.0], scv=0, classes=[0]
    )
    assert mean == pytest.approx(load / (2 * (1 - load)), abs=half_width)
    assert half_width < 0.05 * mean


@pytest.mark.parametrize(("load", "places"), [(0.7, 3), (1.5, 5), (1.0, 1)])
def test_mm1k_loses_what_erlang_says(load: float, places: int) -> None:
    queue = {
        "arrival_rates": [load],
        "mean_service": [1.0],
        "scv": 1,
        "classes": [0],
        "buffer_packets": places,
    }
    weights = load ** np.arange(places + 1)
    probability = weights / weights.sum()
    ((loss, half_width),) = replicated("loss_rate", **queue)
    assert loss == pytest.approx(probability[-1], abs=half_width)
    # Little's law with the rate that enters.
    inside = probability @ np.arange(places + 1)
    ((sojourn, half_width),) = replicated("mean_sojourn", **queue)
    assert sojourn == pytest.approx(inside / (load * (1 - probability[-1])), abs=half_width)


@pytest.mark.parametrize("scv", [0, 1])
def test_cobham_two_classes(scv: int) -> None:
    rates, services = np.array([0.3, 0.25]), np.array([1.0, 2.0])
    residual = 0.5 * np.sum(rates * (1 + scv) * services**2)
    first, both = 0.3, 0.3 + 0.5
    waits = [residual / (1 - first), residual / ((1 - first) * (1 - both))]
    found = replicated("mean_wait", arrival_rates=rates, mean_service=services, scv=scv, classes=[0, 1])
    for (mean, half_width), expected in zip(found, waits, strict=True):
        assert mean == pytest.approx(expected, abs=half_width)
        assert half_width < 0.1 * mean


def test_streams_of_one_class_share_its_queue() -> None:
    """Two streams in class 0 are one M/M/1 queue of their joint rate."""
    ((mean, half_width),) = replicated(
        "mean_sojourn", arrival_rates=[0.2, 0.4], mean_service=[1.0, 1.0], scv=1, classes=[0, 0]
    )
    assert mean == pytest.approx(1 / (1 - 0.6), abs=half_width)


def test_push_out_keeps_the_total_loss_and_moves_it_to_the_lowest_class() -> None:
    """With equal services who is lost does not change how many are: M/M/1/K for all, and for each top of classes a
    bound: class 0 alone loses no more than it would with the buffer to itself behind one other packet."""
    queue = {
        "arrival_rates": [0.4, 0.4, 0.7],
        "mean_service": [1.0] * 3,
        "scv": 1,
        "classes": [0, 1, 2],
        "buffer_packets": 6,
    }
    weights = 1.5 ** np.arange(7)
    expected = weights[-1] / weights.sum()
    runs = [
        port_alone(**queue, customers=100_000, seed=9, replication=number) for number in range(REPLICATIONS)
    ]
    mean, half_width = interval([1 - run.served.sum() / run.customers.sum() for run in runs])
    assert mean == pytest.approx(expected, abs=half_width)
    loss = np.mean([run.loss_rate for run in runs], axis=0)
    assert loss[0] < loss[1] < loss[2]
    assert loss[0] < 0.01
