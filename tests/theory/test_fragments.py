"""Fragmented events: sizes against Monte Carlo, waits against hand values and the unfragmented formula."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from triagemq.theory import (
    FragmentSizes,
    Work,
    check_batches,
    fragment_sizes,
    fragment_sizes_from_values,
    mean_waits,
    priority_waits,
)

Floats = NDArray[np.float64]

PACKET_SURVIVAL = 0.9

FIELDS = (
    "packets_per_event",
    "wire_bytes_mean",
    "wire_bytes_scv",
    "packet_bytes_second_moment",
    "last_packet_bytes_mean",
    "survival",
)


def moments_of_sample(
    sizes: NDArray[np.float64], mtu: float, overhead: float, alive: NDArray[np.float64] | None = None
) -> dict[str, float]:
    """Moments of the events that keep all their packets; `alive` is uniform, one per event; None loses nothing."""
    payload = mtu - overhead
    packets = np.maximum(np.ceil(sizes / payload), 1)
    survival = 1.0
    if alive is not None:
        kept = alive < PACKET_SURVIVAL**packets
        survival = float(kept.mean())
        sizes, packets = sizes[kept], packets[kept]
    wire = sizes + packets * overhead
    last = sizes - (packets - 1) * payload + overhead
    squares = (packets - 1) * mtu**2 + last**2
    return {
        "packets_per_event": packets.mean(),
        "wire_bytes_mean": wire.mean(),
        "wire_bytes_scv": wire.var() / wire.mean() ** 2,
        "packet_bytes_second_moment": squares.sum() / packets.sum(),
        "last_packet_bytes_mean": last.mean(),
        "survival": survival,
    }


@pytest.mark.parametrize("mean", [300.0, 1000.0, 5000.0, 60_000.0])
@pytest.mark.parametrize("lossy", [False, True], ids=["no loss", "loss"])
def test_exponential_sizes_agree_with_monte_carlo(mean: float, lossy: bool) -> None:
    rng = np.random.default_rng(20)
    replications = [
        moments_of_sample(
            rng.exponential(mean, 40_000), 1500.0, 60.0, rng.uniform(size=40_000) if lossy else None
        )
        for _ in range(12)
    ]
    expected = fragment_sizes(mean, "exponential", 1500.0, 60.0, PACKET_SURVIVAL if lossy else 1.0)
    for field in FIELDS:
        sample = np.array([replication[field] for replication in replications])
        error = sample.std(ddof=1) / np.sqrt(len(sample))
        assert abs(float(getattr(expected, field)) - sample.mean()) <= 5 * error + 1e-12, field


def test_exponential_sizes_agree_with_a_fine_table_of_values() -> None:
    quantiles = (np.arange(400_000) + 0.5) / 400_000
    table = fragment_sizes_from_values(-2000.0 * np.log1p(-quantiles), 1.0, 1500.0, 60.0, PACKET_SURVIVAL)
    exact = fragment_sizes(2000.0, "exponential", 1500.0, 60.0, PACKET_SURVIVAL)
    for field in FIELDS:
        assert float(getattr(table, field)) == pytest.approx(float(getattr(exact, field)), rel=2e-4), field


def test_exponential_moments_are_smooth_where_the_series_takes_over() -> None:
    means = 1000.0 / np.array([0.3 * (1 - 1e-9), 0.3 * (1 + 1e-9)])
    sizes = fragment_sizes(means, "exponential", 1000.0, 0.0)
    for field in FIELDS:
        low, high = getattr(sizes, field)
        assert low == pytest.approx(high, rel=1e-8), field


def test_last_part_of_a_very_large_event_is_uniform_over_the_payload() -> None:
    sizes = fragment_sizes(1e15, "exponential", 1000.0, 0.0)
    assert float(sizes.last_packet_bytes_mean) == pytest.approx(500.0, rel=1e-9)
    assert float(sizes.wire_bytes_scv) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("mtu", [np.inf, 1e9])
def test_events_that_always_fit_are_one_packet(mtu: float) -> None:
    sizes = fragment_sizes(1000.0, "exponential", mtu, 40.0)
    assert float(sizes.packets_per_event) == 1.0
    assert float(sizes.wire_bytes_mean) == float(sizes.last_packet_bytes_mean) == 1040.0
    assert float(sizes.wire_bytes_scv) == pytest.approx(1e6 / 1040.0**2)
    assert float(sizes.packet_bytes_second_moment) == pytest.approx(1e6 + 1040.0**2)


@pytest.mark.parametrize(
    ("size", "packets", "last"),
    [(0.0, 1, 40.0), (1.0, 1, 41.0), (1000.0, 1, 1040.0), (1001.0, 2, 41.0), (2500.0, 3, 540.0)],
)
def test_constant_size_is_cut_by_whole_payloads(size: float, packets: int, last: float) -> None:
    sizes = fragment_sizes(size, "constant", 1040.0, 40.0)
    assert float(sizes.packets_per_event) == packets
    assert float(sizes.last_packet_bytes_mean) == last
    assert float(sizes.wire_bytes_mean) == size + 40 * packets
    assert float(sizes.wire_bytes_scv) == 0.0
    squares = (packets - 1) * 1040.0**2 + last**2
    assert float(sizes.packet_bytes_second_moment) == pytest.approx(squares / packets)


def test_values_with_weights_by_hand() -> None:
    # 3 of 4 events: 500 bytes, one packet of 600; 1 of 4: 2500 bytes, packets of 1100, 1100, 600.
    sizes = fragment_sizes_from_values([500.0, 2500.0], [3, 1], 1100.0, 100.0)
    assert float(sizes.packets_per_event) == 1.5
    assert float(sizes.wire_bytes_mean) == 0.75 * 600 + 0.25 * 2800
    assert float(sizes.wire_bytes_scv) == pytest.approx((0.75 * 550**2 + 0.25 * 1650**2) / 1150**2)
    assert float(sizes.packet_bytes_second_moment) == pytest.approx((4 * 600**2 + 2 * 1100**2) / 6)
    assert float(sizes.last_packet_bytes_mean) == 600.0


def test_an_array_of_means_gives_an_array_per_moment() -> None:
    sizes = fragment_sizes([100.0, 4000.0], "exponential", 1500.0, 60.0)
    alone = fragment_sizes(4000.0, "exponential", 1500.0, 60.0)
    for field in FIELDS:
        assert getattr(sizes, field).shape == (2,)
        assert getattr(sizes, field)[1] == getattr(alone, field)


def test_empty_events_without_overhead_have_no_variability() -> None:
    assert float(fragment_sizes(0.0, "constant", 100.0, 0.0).wire_bytes_scv) == 0.0


def fragmented_waits(
    rates: ArrayLike,
    event_mean: ArrayLike,
    scv: ArrayLike,
    packet_rates: ArrayLike,
    packet_square: ArrayLike,
    last_packet: ArrayLike,
    classes: ArrayLike,
    **batches: ArrayLike,
) -> Floats:
    """Mean times from an event's arrival until its last packet starts."""
    count = np.size(rates)
    rate, mean, variability, packets, square, last = (
        np.broadcast_to(np.asarray(each, np.float64), count)
        for each in (rates, event_mean, scv, packet_rates, packet_square, last_packet)
    )
    work = Work(rate, mean, (1 + variability) * mean**2, 0.5 * packets * square, mean, mean - last, packets)
    return mean_waits(work, check_batches(count, classes, **batches))


def random_arguments(seed: int, count: int = 25) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, 6, count)
    rates = rng.uniform(0.1, 1.0, count)
    service = rng.uniform(0.5, 2.0, 6)[topics]
    return {
        "rates": rates * 0.85 / np.sum(rates * service),
        "service": service,
        "scv": rng.uniform(0, 2, 6)[topics],
        "classes": rng.integers(0, 4, count),
        "topics": topics,
        "keep": rng.uniform(0.3, 1, count),
    }


@pytest.mark.parametrize("seed", range(5))
def test_one_packet_per_event_is_exactly_priority_waits(seed: int) -> None:
    a = random_arguments(seed)
    batches = {"batch_topics": a["topics"], "keep": a["keep"], "queues": a["topics"] % 2}
    second_moment = (1 + a["scv"]) * a["service"] ** 2
    fragmented = fragmented_waits(
        a["rates"], a["service"], a["scv"], a["rates"], second_moment, a["service"], a["classes"], **batches
    )
    whole = priority_waits(a["rates"], a["service"], a["scv"], a["classes"], **batches)
    np.testing.assert_array_equal(fragmented, whole)


def test_last_packet_of_a_lone_event_class_by_hand() -> None:
    # B = 3 packets of 1 s at 0.2/s: U = 0.5*0.2*9/0.4 = 2.25, then two packets of its own.
    assert fragmented_waits([0.2], 3.0, 0.0, [0.6], 1.0, 1.0, [0]) == pytest.approx([4.25])


def test_cutting_a_lower_class_into_packets_shortens_the_wait_of_the_class_above_only() -> None:
    whole = fragmented_waits([0.1, 0.05], [1.0, 10.0], 0.0, [0.1, 0.05], [1.0, 100.0], [1.0, 10.0], [0, 1])
    cut = fragmented_waits([0.1, 0.05], [1.0, 10.0], 0.0, [0.1, 0.5], [1.0, 1.0], [1.0, 1.0], [0, 1])
    assert whole[0] == pytest.approx((0.05 + 2.5) / 0.9)
    assert cut[0] == pytest.approx((0.05 + 0.25) / 0.9)
    # The lower class finds the same work; its last packet starts 9 s of its own work later.
    assert cut[1] == pytest.approx(whole[1] + 9 / 0.9)


def test_packets_of_an_unstable_class_block_only_as_they_are_served() -> None:
    # Class 1 offers a load of 2 in 1-second packets and gets 0.5.
    waits = fragmented_waits([0.5, 0.2], [1.0, 10.0], 0.0, [0.5, 2.0], 1.0, 1.0, [0, 1])
    assert waits.tolist() == [(0.25 + 0.25) / 0.5, np.inf]


def test_moments_of_fragments_are_frozen() -> None:
    sizes = fragment_sizes(1000.0, "constant", 500.0, 20.0)
    assert isinstance(sizes, FragmentSizes)
    with pytest.raises(AttributeError):
        sizes.wire_bytes_mean = np.zeros(1)  # type: ignore[misc]


def test_no_subscriptions_have_no_waits() -> None:
    assert fragmented_waits([], [], [], [], [], [], []).shape == (0,)
    assert fragment_sizes([], "exponential", 1500.0, 40.0).wire_bytes_mean.shape == (0,)
