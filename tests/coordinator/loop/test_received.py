"""What is told of each subscription: of its reports, beside what was published, and as long as it is treated alike."""

from __future__ import annotations

from collections import Counter

import pytest

from triagemq.client import Assignment
from triagemq.client.events import latency_bin
from triagemq.coordinator.loop.figures import Received, SubscriptionWatch
from triagemq.plan.dataplane import CopyTerms, Treatment


def assigned(level: int = 0, drop: float = 0.0) -> Assignment:
    return Assignment(classes={"smoke": level}, drop_rates={"smoke": drop})


class Watch(SubscriptionWatch):
    """Counts what is published."""

    def __init__(self, terms: CopyTerms | None = None) -> None:
        self.published: Counter[str] = Counter()
        super().__init__(self.published.__getitem__, lambda *_: Treatment(0, terms=terms))


def reported(watch: Watch, at: float, published: int, came: Received | None, **treated: float) -> None:
    watch.published["smoke"] += published
    reports = {} if came is None else {"smoke": came}
    watch.report("crew", assigned(**treated), reports, at)  # type: ignore[arg-type]


def test_success_is_what_came_of_what_was_published_since_the_first_report() -> None:
    watch = Watch()
    reported(watch, 0.0, 100, Received(60))
    assert watch.figures("crew", "smoke") is None
    bins = {latency_bin(0.010): 9, latency_bin(0.200): 1}
    reported(watch, 2.0, 20, Received(10, 0.29, 0.2, bins))
    found = watch.figures("crew", "smoke")
    assert found is not None
    assert (found.delivered_per_second, found.success_rate) == (5.0, 0.5)
    assert found.mean_latency_seconds == pytest.approx(0.029)
    # Half a bin: an eighth of the bin's lower end, which is below the value.
    assert found.p50_seconds == pytest.approx(0.010, rel=0.125)
    assert found.p95_seconds == pytest.approx(0.200, rel=0.125)


def test_a_topic_of_which_nothing_came_has_no_success() -> None:
    watch = Watch()
    reported(watch, 0.0, 0, None)
    reported(watch, 1.0, 5, None)
    found = watch.figures("crew", "smoke")
    assert found is not None
    assert (found.success_rate, found.p50_seconds) == (0.0, None)


def test_another_class_or_drop_rate_begins_anew() -> None:
    watch = Watch()
    reported(watch, 0.0, 0, None)
    reported(watch, 1.0, 10, Received(10))
    # A part of these came before the change.
    reported(watch, 2.0, 10, Received(7), level=1, drop=0.5)
    assert watch.figures("crew", "smoke") is None
    reported(watch, 3.0, 10, Received(5), level=1, drop=0.5)
    found = watch.figures("crew", "smoke")
    assert found is not None
    assert found.success_rate == 0.5


def test_of_an_instant_there_is_no_success() -> None:
    watch = Watch()
    reported(watch, 0.0, 0, None)
    reported(watch, 0.4, 4, Received(2))
    found = watch.figures("crew", "smoke")
    assert found is not None
    assert (found.delivered_per_second, found.success_rate) == (5.0, None)
    reported(watch, 0.8, 4, Received(2))
    found = watch.figures("crew", "smoke")
    assert found is not None
    assert found.success_rate == 0.5


def test_what_is_older_than_two_minutes_is_left_out() -> None:
    watch = Watch()
    for second in range(0, 300, 2):
        reported(watch, float(second), 2, Received(2 if second < 150 else 1))
    found = watch.figures("crew", "smoke")
    assert found is not None
    assert 60 <= found.seconds <= 122
    assert found.success_rate == 0.5


def test_subscribers_who_left_are_forgotten() -> None:
    watch = Watch()
    reported(watch, 0.0, 1, None)
    reported(watch, 1.0, 1, Received(1))
    watch.retain({"others"})
    assert watch.figures("crew", "smoke") is None


def test_what_is_thinned_is_no_failure_and_of_the_newest_the_success_is_unknown() -> None:
    for terms, success in (
        (CopyTerms(max_rate_per_second=2.0), 0.5),
        (CopyTerms(expires_seconds=1.0), 0.1),
        (CopyTerms(newest_only=True), None),
    ):
        watch = Watch(terms)
        reported(watch, 0.0, 100, None)
        reported(watch, 10.0, 100, Received(10))
        found = watch.figures("crew", "smoke")
        assert found is not None
        assert found.success_rate == (None if success is None else pytest.approx(success, rel=0.01))
