"""A single port against Ciw, a simulator written by others. Ciw has no eviction, so finite buffers have one class."""

from __future__ import annotations

import functools
from typing import Any

import ciw
import numpy as np
import pytest
from scipy.special import stdtrit
from tests.simulate.port_alone import port_alone

REPLICATIONS = 8
CUSTOMERS = 8_000

CASES = {
    "two classes, exponential": ([0.3, 0.4], [1.0, 1.0], 1, [0, 1], np.inf),
    "two classes, constant": ([0.3, 0.2], [1.0, 2.0], 0, [0, 1], np.inf),
    "three classes, unequal services": ([0.2, 0.1, 0.1], [0.5, 2.0, 3.0], 1, [0, 1, 2], np.inf),
    "five classes, exponential": ([0.15] * 5, [1.0] * 5, 1, [0, 1, 2, 3, 4], np.inf),
    "five classes, constant": ([0.16] * 5, [1.0] * 5, 0, [0, 1, 2, 3, 4], np.inf),
    "one class, exponential, buffer of 4": ([0.9], [1.0], 1, [0], 4),
    "one class, constant, buffer of 3": ([1.2], [1.0], 0, [0], 3),
    "two streams, FIFO": ([0.3, 0.4], [1.0, 1.0], 1, [0, 0], np.inf),
}


def ciw_run(rates: Any, services: Any, scv: int, classes: Any, places: float, seed: int) -> tuple[Any, Any]:
    """Mean waits and losses per stream, the first tenth of the time left out."""
    names = [f"stream {number}" for number in range(len(rates))]
    law = ciw.dists.Exponential if scv else ciw.dists.Deterministic
    # Ciw's queue capacity leaves out whoever is being served.
    capacity = float("inf") if np.isinf(places) else int(places) - 1
    network = ciw.create_network(
        arrival_distributions={
            name: [ciw.dists.Exponential(rate)] for name, rate in zip(names, rates, strict=True)
        },
        service_distributions={
            name: [law(1 / service if scv else service)]
            for name, service in zip(names, services, strict=True)
        },
        number_of_servers=[1],
        queue_capacities=[capacity],
        priority_classes=dict(zip(names, classes, strict=True)),
        routing={name: ciw.routing.NetworkRouting([ciw.routing.Leave()]) for name in names},
    )
    ciw.seed(seed)
    horizon = CUSTOMERS / sum(rates)
    run = ciw.Simulation(network)
    run.simulate_until_max_time(horizon)
    records = run.get_all_records(only=["service", "rejection"])
    waits, losses = [], []
    for name in names:
        own = [each for each in records if each.customer_class == name and each.arrival_date > horizon / 10]
        served = [each.waiting_time for each in own if each.record_type == "service"]
        waits.append(np.mean(served))
        losses.append(1 - len(served) / len(own))
    return waits, losses


def mean_and_variance(samples: Any) -> tuple[Any, Any]:
    return np.mean(samples, axis=0), np.var(samples, axis=0, ddof=1) / len(samples)


@functools.cache
def ciw_runs(case: str) -> list[tuple[list[float], list[float]]]:
    return [ciw_run(*CASES[case], seed) for seed in range(REPLICATIONS)]


@pytest.mark.parametrize("case", CASES)
def test_waits_and_losses_agree_with_ciw(case: str) -> None:
    rates, services, scv, classes, places = CASES[case]
    theirs = ciw_runs(case)
    ours = [
        port_alone(
            rates, services, scv, classes, customers=50_000, seed=3, replication=number, buffer_packets=places
        )
        for number in range(REPLICATIONS)
    ]
    their_waits = [waits for waits, _ in theirs]
    if len(set(classes)) < len(rates):
        # One class of several streams: Ciw tells them apart, one FIFO queue makes them wait alike.
        their_waits = [[np.average(waits, weights=rates)] for waits in their_waits]
    quantile = stdtrit(REPLICATIONS - 1, 0.9995)
    mean, variance = mean_and_variance([run.mean_wait for run in ours])
    their_mean, their_variance = mean_and_variance(their_waits)
    assert (np.abs(mean - their_mean) <= quantile * np.sqrt(variance + their_variance)).all()
    if np.isfinite(places):
        loss, loss_variance = mean_and_variance([run.loss_rate for run in ours])
        their_loss, their_loss_variance = mean_and_variance([losses for _, losses in theirs])
        assert their_loss.min() > 0.01
        assert (np.abs(loss - their_loss) <= quantile * np.sqrt(loss_variance + their_loss_variance)).all()
