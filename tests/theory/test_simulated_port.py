"""The batch formulas against an independent event simulation of one shared port."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from triagemq.theory import Work, check_batches, fragment_sizes, mean_waits, priority_waits

Floats = NDArray[np.float64]
Packets = Callable[[float], list[float]]

REPLICATIONS = 16
PUBLICATIONS = 32_000
WARM_UP = 2_000

TOPIC_RATES = np.array([0.5, 1.0, 0.25, 0.8])
TOPIC_BYTES = np.array([1.0, 0.4, 2.0, 0.7])
TOPICS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 3])
CLASSES = np.array([0, 1, 1, 0, 2, 2, 1, 2, 2, 1])
KEEP = np.array([1.0, 0.8, 0.6, 0.9, 1.0, 0.5, 0.7, 0.9, 0.4, 1.0])
LOAD = 0.7


@dataclass(frozen=True)
class Estimate:
    mean: Floats
    standard_error: Floats


def whole(size: float) -> list[float]:
    return [size]


def simulate(
    rng: np.random.Generator,
    seconds_per_byte: float,
    exponential: bool,
    packets_of: Packets,
    classes: NDArray[np.int64],
) -> Floats:
    """Mean seconds from publication to the start of the last packet, for each subscription.

    Copies of one publication come in the order of their classes.
    """
    when = np.cumsum(rng.exponential(1 / TOPIC_RATES.sum(), PUBLICATIONS)).tolist()
    topic_of = rng.choice(len(TOPIC_RATES), PUBLICATIONS, p=TOPIC_RATES / TOPIC_RATES.sum()).tolist()
    factors = rng.exponential(1.0, (PUBLICATIONS, len(TOPICS))) if exponential else np.ones((PUBLICATIONS, 1))
    passes = (rng.random((PUBLICATIONS, len(TOPICS))) < KEEP).tolist()
    order = rng.random((PUBLICATIONS, len(TOPICS))).tolist()
    subscribers: list[list[int]] = [[] for _ in TOPIC_RATES]
    for r, topic in enumerate(TOPICS.tolist()):
        subscribers[topic].append(r)
    scale = (TOPIC_BYTES * seconds_per_byte).tolist()
    class_of = classes.tolist()
    waited, counted = np.zeros(len(TOPICS)).tolist(), [0] * len(TOPICS)
    queue: list[tuple[int, int, float, int, list[float]]] = []
    clock, next_publication = 0.0, 0
    while next_publication < PUBLICATIONS or queue:
        if not queue:
            clock = max(clock, when[next_publication])
        while next_publication < PUBLICATIONS and when[next_publication] <= clock:
            n, topic = next_publication, topic_of[next_publication]
            for r in subscribers[topic]:
                if passes[n][r]:
                    size = scale[topic] * float(factors[n, 0])
                    heapq.heappush(queue, (class_of[r], n, order[n][r], r, packets_of(size)))
            next_publication += 1
        if not queue:
            continue
        _, n, _, r, packets = queue[0]
        if len(packets) == 1:
            heapq.heappop(queue)
            if n >= WARM_UP:
                waited[r] += clock - when[n]
                counted[r] += 1
        clock += packets.pop(0)
    return np.array(waited) / np.maximum(counted, 1)


def replicate(
    seconds_per_byte: float,
    *,
    exponential: bool,
    packets_of: Packets = whole,
    classes: NDArray[np.int64] = CLASSES,
) -> Estimate:
    seeds = np.random.SeedSequence(7).spawn(REPLICATIONS)
    runs = np.array(
        [
            simulate(
                np.random.default_rng(seed),
                seconds_per_byte,
                exponential,
                packets_of,
                classes,
            )
            for seed in seeds
        ]
    )
    return Estimate(runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(REPLICATIONS))


def assert_agrees(waits: Floats, estimate: Estimate) -> None:
    # 4.5 standard errors: a chance of 0.05 % per figure with 15 degrees of freedom.
    assert np.all(estimate.standard_error < 0.025 * estimate.mean)
    assert np.all(np.abs(waits - estimate.mean) <= 4.5 * estimate.standard_error)


RATES = TOPIC_RATES[TOPICS] * KEEP
SECONDS_PER_BYTE = LOAD / float(np.sum(RATES * TOPIC_BYTES[TOPICS]))
SERVICE = TOPIC_BYTES[TOPICS] * SECONDS_PER_BYTE


@pytest.mark.parametrize("exponential", [False, True], ids=["constant", "shared"])
def test_batch_waits_agree_with_the_simulated_port(exponential: bool) -> None:
    estimate = replicate(SECONDS_PER_BYTE, exponential=exponential)
    scv = 1.0 if exponential else 0.0
    waits = priority_waits(RATES, SERVICE, scv, CLASSES, batch_topics=TOPICS, keep=KEEP)
    assert_agrees(waits, estimate)
    # The papers' Poisson arrivals are refuted by the same simulation, so it can tell the two apart.
    poisson = priority_waits(RATES, SERVICE, scv, CLASSES)
    lowest = np.equal(CLASSES, 2)
    assert np.all(estimate.mean[lowest] - poisson[lowest] > 8 * estimate.standard_error[lowest])


def test_fragmented_waits_agree_with_the_simulated_port() -> None:
    mtu_bytes, overhead_bytes = 0.5, 0.05
    sizes = fragment_sizes(TOPIC_BYTES[TOPICS], "exponential", mtu_bytes, overhead_bytes)
    seconds_per_byte = LOAD / float(np.sum(RATES * sizes.wire_bytes_mean))
    payload = (mtu_bytes - overhead_bytes) * seconds_per_byte
    header = overhead_bytes * seconds_per_byte

    def cut(size: float) -> list[float]:
        packets = []
        while size > payload:
            packets.append(payload + header)
            size -= payload
        return [*packets, size + header]

    estimate = replicate(seconds_per_byte, exponential=True, packets_of=cut)
    event, packet_rates = sizes.wire_bytes_mean * seconds_per_byte, RATES * sizes.packets_per_event
    work = Work(
        rates=RATES,
        mean=event,
        second_moment=(1 + sizes.wire_bytes_scv) * event**2,
        blocking=0.5 * packet_rates * sizes.packet_bytes_second_moment * seconds_per_byte**2,
        own_mean=event,
        before_last=event - sizes.last_packet_bytes_mean * seconds_per_byte,
        packet_rates=packet_rates,
    )
    waits = mean_waits(work, check_batches(len(RATES), CLASSES, TOPICS, KEEP))
    assert_agrees(waits, estimate)


def test_classes_above_an_overloaded_one_wait_as_in_the_simulated_port() -> None:
    # All classes together ask for 1.4 times what the port can carry; class 0 alone for less than half.
    classes = np.minimum(CLASSES, 1)
    estimate = replicate(2 * SECONDS_PER_BYTE, exponential=True, classes=classes)
    waits = priority_waits(RATES, 2 * SERVICE, 1.0, classes, batch_topics=TOPICS, keep=KEEP)
    top = classes == 0
    assert np.all(np.isinf(waits[~top]))
    # Publications end before the backlog does, but class 0 is only measured while they last.
    assert_agrees(waits[top], Estimate(estimate.mean[top], estimate.standard_error[top]))
