"""Leases end when they should, and only then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triagemq.coordinator.intents.registry import Leases

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grant", "renew", "drop", "look"]),
        st.sampled_from("abc"),
        st.floats(0.1, 10),
        st.floats(0, 5),
    ),
    max_size=60,
)


@given(STEPS)
def test_agrees_with_a_table_that_is_searched(steps: list[tuple[str, str, float, float]]) -> None:
    leases, now = Leases[str](), 0.0
    until: dict[str, float] = {}
    length: dict[str, float] = {}
    for what, key, seconds, pause in steps:
        now += pause
        if what == "grant":
            leases.grant(key, seconds, now)
            until[key], length[key] = now + seconds, seconds
        elif what == "renew":
            assert leases.renew(key, now) == (key in until)
            if key in until:
                until[key] = max(until[key], now + length[key])
        elif what == "drop":
            leases.drop(key)
            until.pop(key, None)
        else:
            ended = {name for name, end in until.items() if end <= now}
            assert set(leases.ended(now)) == ended
            for name in ended:
                del until[name]
        assert len(leases) == len(until)


def test_a_shorter_lease_ends_earlier_and_a_longer_one_later() -> None:
    leases = Leases[str]()
    leases.grant("a", 100.0, 0.0)
    leases.grant("a", 1.0, 0.0)
    assert leases.ended(1.0) == ["a"]
    leases.grant("a", 1.0, 2.0)
    leases.grant("a", 100.0, 2.0)
    assert leases.ended(50.0) == []
    assert leases.ended(102.0) == ["a"]


def test_nobody_is_forgotten_because_the_coordinator_stood_still() -> None:
    leases = Leases[str]()
    leases.grant("a", 10.0, 0.0)
    leases.forgive(30.0)
    assert leases.ended(39.0) == []
    assert leases.ended(40.0) == ["a"]
