"""M/M/1 and FIFO M/G/1 against textbook values; priority waits: Cobham by hand, the batch recursion as an oracle,
invariants, unstable classes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from triagemq.theory import mm1_sojourn, priority_waits, served_share

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Port:
    """One port with copies: what priority_waits is given."""

    rates: Floats
    service: Floats
    scv: Floats
    classes: NDArray[np.int64]
    topics: NDArray[np.int64]
    keep: Floats

    def waits(self) -> Floats:
        return priority_waits(
            self.rates, self.service, self.scv, self.classes, batch_topics=self.topics, keep=self.keep
        )

    def rows(self, rows: NDArray[np.int64]) -> Port:
        return Port(*(column[rows] for column in vars(self).values()))


def random_port(seed: int, subscriptions: int, load: float, classes: int = 4, topics: int = 5) -> Port:
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, topics, subscriptions)
    keep = rng.uniform(0.2, 1.0, subscriptions)
    service = rng.uniform(0.1, 3.0, topics)[topic]
    rates = rng.uniform(0.1, 2.0, topics)[topic] * keep
    rates *= load / np.sum(rates * service)
    # Gaps and an arbitrary start in the class numbers are part of the contract.
    numbers = np.sort(rng.choice(50, classes, replace=False))
    scv = rng.choice([0.0, 0.5, 1.0, 4.0], topics)[topic]
    return Port(rates, service, scv, numbers[rng.integers(0, classes, subscriptions)], topic, keep)


ports = st.builds(
    random_port,
    seed=st.integers(0, 2**32),
    subscriptions=st.integers(1, 30),
    load=st.floats(0.05, 0.98),
    classes=st.integers(1, 6),
    topics=st.integers(1, 8),
)


def copies_by_pairs(port: Port) -> Floats:
    """b_r as theory.md says it, pair by pair."""
    count = len(port.rates)
    ahead = np.zeros(count)
    for r in range(count):
        for other in range(count):
            if other != r and port.topics[other] == port.topics[r]:
                if port.classes[other] < port.classes[r]:
                    ahead[r] += port.keep[other]
                elif port.classes[other] == port.classes[r]:
                    ahead[r] += 0.5 * port.keep[other]
    return ahead


def waits_by_recursion(port: Port) -> Floats:
    """theory.md section 2, class by class."""
    ahead = copies_by_pairs(port)
    variance = port.scv * port.service**2
    residual = 0.5 * np.sum(port.rates * (1 + port.scv) * port.service**2)
    sigma = queued = 0.0
    waits = np.zeros(len(port.rates))
    for number in np.unique(port.classes):
        row = port.classes == number
        load = port.rates[row] * port.service[row]
        own = np.sum(port.rates[row] * ahead[row] * variance[row]) + np.sum(
            load * (residual + ahead[row] * port.service[row])
        )
        queued = (queued + own / (1 - sigma)) / (1 - load.sum() / (1 - sigma))
        waits[row] = (residual + queued + ahead[row] * port.service[row]) / (1 - sigma)
        sigma += load.sum()
    return waits


def fifo_waits(
    rates: Floats | list[float], service: Floats | list[float], scv: float | Floats | list[float]
) -> Floats:
    """Waits in one FIFO M/G/1 (Pollaczek and Khinchine)."""
    rate, mean = np.asarray(rates), np.asarray(service)
    load, residual = float(rate @ mean), 0.5 * float(rate @ ((1 + np.asarray(scv)) * mean**2))
    return np.full(rate.size, residual / (1 - load) if load < 1 else np.inf)


def test_cobham_two_classes_by_hand() -> None:
    # R = 0.5*(0.2*2*1 + 0.1*1*16) = 1; sigma_0 = 0.2, sigma_1 = 0.6
    waits = priority_waits([0.2, 0.1], [1.0, 4.0], [1.0, 0.0], [0, 1])
    assert waits == pytest.approx([1 / 0.8, 1 / (0.8 * 0.4)])


def test_one_class_without_copies_is_fifo() -> None:
    rates, service, scv = [0.1, 0.2, 0.05], [1.0, 2.0, 3.0], [0.0, 1.0, 5.0]
    assert priority_waits(rates, service, scv, [3, 3, 3]) == pytest.approx(fifo_waits(rates, service, scv))


def test_residual_is_summed_over_subscriptions_and_not_over_class_averages() -> None:
    # One class of sizes 1 and 9: an average size would hide the hyperexponential mixture.
    assert priority_waits([0.05, 0.05], [1.0, 9.0], 0.0, [0, 0])[0] == pytest.approx(0.025 * 82 / 0.5)


def test_single_batch_of_two_constant_copies_in_one_class_by_hand() -> None:
    # M^[2]/D/1 at 0.25 batches/s: work found = 0.5 * 0.25 * 4 / (1 - 0.5) = 1, plus half a copy
    waits = priority_waits([0.25, 0.25], [1.0, 1.0], 0.0, [0, 0], batch_topics=[0, 0])
    assert waits == pytest.approx([1.5, 1.5])


@settings(max_examples=150, deadline=None)
@given(port=ports)
def test_closed_form_equals_the_recursion_class_by_class(port: Port) -> None:
    np.testing.assert_allclose(port.waits(), waits_by_recursion(port), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(port=ports)
def test_no_copies_gives_cobham_back(port: Port) -> None:
    alone = replace(port, topics=np.arange(len(port.rates)))
    cobham = priority_waits(port.rates, port.service, port.scv, port.classes)
    np.testing.assert_array_equal(alone.waits(), cobham)


@settings(max_examples=60, deadline=None)
@given(port=ports, shift=st.integers(0, 2**32))
def test_kleinrock_conservation_law_holds_for_any_assignment_of_classes(port: Port, shift: int) -> None:
    shuffled = np.random.default_rng(shift).permutation(port.classes)
    load = port.rates * port.service
    expected = load.sum() * fifo_waits(port.rates, port.service, port.scv)[0]
    for classes in (port.classes, shuffled):
        waits = priority_waits(port.rates, port.service, port.scv, classes)
        assert np.sum(load * waits) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(port=ports, shift=st.integers(0, 2**32))
def test_queued_work_with_batches_does_not_depend_on_the_classes(port: Port, shift: int) -> None:
    # Only with constant sizes are those of the copies of one event independent.
    port = replace(port, scv=np.zeros(len(port.rates)))
    shuffled = replace(port, classes=np.random.default_rng(shift).permutation(port.classes))
    load = port.rates * port.service
    before, after = (np.sum(load * p.waits()) for p in (port, shuffled))
    assert after == pytest.approx(before, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(port=ports, seed=st.integers(0, 2**32))
def test_order_of_subscriptions_does_not_matter(port: Port, seed: int) -> None:
    rows = np.random.default_rng(seed).permutation(len(port.rates))
    np.testing.assert_allclose(port.rows(rows).waits(), port.waits()[rows], rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(members=st.lists(ports, min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_many_queues_in_one_call_equal_separate_calls(members: list[Port], seed: int) -> None:
    ids = np.random.default_rng(seed).choice(10**12, len(members), replace=False)
    joined = Port(
        *(np.concatenate(columns) for columns in zip(*(vars(p).values() for p in members), strict=True))
    )
    queues = np.repeat(ids, [len(p.rates) for p in members])
    waits = priority_waits(
        joined.rates,
        joined.service,
        joined.scv,
        joined.classes,
        batch_topics=joined.topics,
        keep=joined.keep,
        queues=queues,
    )
    np.testing.assert_array_equal(waits, np.concatenate([p.waits() for p in members]))


def test_an_overloaded_queue_leaves_the_figures_of_its_neighbours_untouched() -> None:
    waits = priority_waits([1e12, 0.25, 0.5], 1.0, 1.0, [0, 0, 1], queues=[0, 1, 1])
    assert waits.tolist() == [np.inf, 1.0, 4.0]


def test_unstable_classes_wait_forever_and_block_only_with_what_is_served() -> None:
    # Class 0 has 0.5 of the server, class 1 wants 2.0 and gets 0.5 (a quarter of it), class 2 gets nothing.
    waits = priority_waits([0.5, 2.0, 7.0], 1.0, 1.0, [0, 1, 2])
    assert waits.tolist() == [(0.5 + 0.5) / 0.5, np.inf, np.inf]


def test_a_class_at_exactly_full_load_is_unstable_but_fully_served() -> None:
    assert priority_waits([0.5, 0.5], 1.0, 1.0, [0, 1]).tolist() == [2.0, np.inf]


def test_overloaded_top_class_leaves_no_finite_wait() -> None:
    assert priority_waits([2.0, 0.1], 1.0, 1.0, [4, 9]).tolist() == [np.inf, np.inf]


def test_a_subscription_without_traffic_gets_the_wait_its_packet_would_have() -> None:
    busy = priority_waits([0.25, 0.5, 0.0], 1.0, 1.0, [0, 1, 1])
    assert busy == pytest.approx([1.0, 4.0, 4.0])


def test_raising_any_rate_never_shortens_a_wait() -> None:
    port = random_port(11, 15, 0.7)
    base = port.waits()
    for row in range(15):
        more = port.rates.copy()
        more[row] *= 1.05
        assert np.all(replace(port, rates=more).waits() >= base * (1 - 1e-12))


def test_empty_port_has_no_waits() -> None:
    assert priority_waits([], [], [], [], batch_topics=[], keep=[], queues=[]).shape == (0,)


def test_huge_sparse_ids_are_as_good_as_small_ones() -> None:
    arguments = ([0.2, 0.3, 0.1], 1.0, 1.0)
    small = priority_waits(*arguments, [0, 1, 1], batch_topics=[0, 0, 1], queues=[0, 0, 0])
    high = 2**61
    large = priority_waits(
        *arguments, [high - 1, high, high], batch_topics=[high - 1, high - 1, high], queues=[high, high, high]
    )
    np.testing.assert_array_equal(large, small)


def test_a_million_subscriptions_on_a_thousand_queues_are_one_call() -> None:
    rng = np.random.default_rng(1)
    count = 1_000_000
    queues, topics = rng.integers(0, 1000, count), rng.integers(0, 5000, count)
    classes = rng.integers(0, 9, count)
    rates = rng.uniform(0.0, 1.8 / 1000, count)
    waits = priority_waits(rates, 1.0, 1.0, classes, batch_topics=topics, keep=0.9, queues=queues)
    assert np.isfinite(waits).mean() > 0.99


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([0.3, 0.3], [1.0, 1.0]),
        ([0.5, 0.5], [1.0, 1.0]),
        ([0.5, 1.0, 0.2], [1.0, 0.5, 0.0]),
        ([4.0, 1.0], [0.25, 0.0]),
        ([1.0, 0.0, 0.5], [1.0, 1.0, 0.0]),
        ([2.0, 0.0], [0.5, 0.0]),
        ([0.0, 0.0], [1.0, 1.0]),
        ([], []),
    ],
)
def test_served_share_fills_the_server_from_the_top(loads: list[float], expected: list[float]) -> None:
    assert served_share(loads).tolist() == expected


def test_served_share_takes_one_row_per_queue() -> None:
    assert served_share([[0.5, 1.0], [0.1, 0.2]]).tolist() == [[1.0, 0.5], [1.0, 1.0]]


@given(loads=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=8))
def test_served_load_is_the_offered_load_or_the_whole_server(loads: list[float]) -> None:
    assert np.sum(served_share(loads) * loads) == pytest.approx(min(1.0, sum(loads)), abs=1e-12)


def test_mm1_sojourn_is_one_over_the_spare_rate() -> None:
    assert float(mm1_sojourn(3.0, 5.0)) == 0.5


def test_mm1_sojourn_is_infinite_at_and_above_saturation() -> None:
    assert mm1_sojourn([5.0, 6.0], 5.0).tolist() == [np.inf, np.inf]


def test_mm1_sojourn_broadcasts() -> None:
    assert mm1_sojourn([[1.0], [2.0]], [3.0, 4.0, 5.0]).shape == (2, 3)


def test_an_idle_mm1_takes_its_service_time() -> None:
    assert float(mm1_sojourn(0.0, 8.0)) == 0.125
