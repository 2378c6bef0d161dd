"""Sharing out what a queue counts among its flows, and what this machine can do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.network.linux.accounting import share
from triagemq.network.linux.plane import capabilities


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**9), max_size=20))
def test_shares_are_whole_and_in_proportion(total: int, weights: list[int]) -> None:
    shares = share(total, weights)
    assert sum(shares) == min(total, sum(weights))
    assert all(0 <= part <= weight for part, weight in zip(shares, weights, strict=True))
    if 0 < total <= sum(weights):
        assert all(
            abs(part - total * weight / sum(weights)) < 1
            for part, weight in zip(shares, weights, strict=True)
        )


@pytest.mark.needs_root("it changes queues of the kernel")
def test_root_can_do_everything() -> None:
    found = capabilities()
    assert (found.namespaces, found.queues, found.classifier) == (None, None, None)
