"""Changes are gathered: never more than two plans a second, and nobody waits long."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triagemq.coordinator.loop.replanning import MOST_REASONS, Pacing


@given(st.lists(st.floats(0, 1.5), max_size=80))
def test_plans_are_half_a_second_apart_and_no_request_waits_longer(pauses: list[float]) -> None:
    pacing, now = Pacing(gather_seconds=0.05, apart_seconds=0.5), 100.0
    plans: list[float] = []
    asked: list[float] = []
    reasons: list[str] = []
    for pause in [*pauses, 10.0]:
        until = now + pause
        while (wait := pacing.wait_seconds(now)) is not None and now + wait <= until:
            now += wait
            now += 1e-9  # a timer never rings early
            assert pacing.due(now)
            plans.append(now)
            reasons += pacing.take(now)
        now = until
        asked.append(now)
        pacing.request(now, f"change {len(asked)}")
    assert all(later - earlier >= 0.5 for earlier, later in pairwise(plans))
    for request in asked[:-1]:
        answer = next(plan for plan in plans if plan >= request)
        assert answer - request <= 0.5 + 0.05 + 1e-6
    for number, _ in enumerate(asked[:-1], start=1):
        assert f"change {number}" in reasons or any("more changes" in reason for reason in reasons)


def test_a_lone_request_waits_only_for_the_gathering() -> None:
    pacing = Pacing(gather_seconds=0.05, apart_seconds=0.5)
    pacing.request(10.0, "one")
    pacing.take(10.05)
    pacing.request(20.0, "two")
    assert pacing.wait_seconds(20.0) == pytest.approx(0.05)


def test_nothing_is_due_while_nobody_asks() -> None:
    pacing = Pacing()
    assert not pacing.due(1e9)
    assert pacing.wait_seconds(1e9) is None


def test_a_storm_of_reasons_is_counted_beyond_the_first() -> None:
    pacing = Pacing()
    for number in range(1000):
        pacing.request(5.0, f"subscriber {number} joins")
    reasons = pacing.take(6.0)
    assert len(reasons) == MOST_REASONS + 1
    assert reasons[0] == "subscriber 0 joins"
    assert reasons[-1] == f"{1000 - MOST_REASONS} more changes"
    assert not pacing.due(1e9)
