"""The contract of estimators: every one of them passes all of this, with every set of counters it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.delay.feeds import SENT_PER_WINDOW, constant_backlog, fed, queue_feed, restarted
from tests.delay.trained import busy_model, small_model

from triagemq.delay.estimators import LEARNED, Estimator, Guarded, make_estimator
from triagemq.delay.learning.features import SwitchConstants
from triagemq.delay.samples import COUNTER_SETS
from triagemq.errors import ParameterError
from triagemq.lab.queue_delay import EVERY_ESTIMATOR, ReadErrors, disturbed

Made: TypeAlias = tuple[str, Callable[[], Estimator]]

KEEP_LOSSES = {"red", "idm-paper"}
"""Those that take losses for queues: that they do is why they are compared."""

CONSTANT_ERROR = 0.02
LEARNED_ERROR = 0.1
"""Of a queue whose backlog is constant for ten seconds, every estimator is right by this share; one that has learned by
as much as its training gives."""


def _made(name: str, counters: str) -> Made:
    if name in LEARNED:
        return counters, lambda: make_estimator(name, counters, model=small_model(counters))
    return counters, lambda: make_estimator(name, counters, estimators=EVERY_ESTIMATOR)


def _right(seconds: float, made: str) -> Any:
    error = LEARNED_ERROR if made.startswith(tuple(LEARNED)) else CONSTANT_ERROR
    return pytest.approx((seconds, seconds), rel=error)


MADE = {
    f"{name}-{counters}": _made(name, counters)
    for name in (*EVERY_ESTIMATOR, *LEARNED)
    for counters in COUNTER_SETS
    if (name, counters) != ("backlog", "openflow")
}
FORGETTING = [made for made in MADE if not any(made.startswith(name) for name in KEEP_LOSSES)]


@pytest.mark.parametrize("made", MADE)
def test_says_zero_before_it_is_fed_and_after_one_sample_of_a_new_switch(made: str) -> None:
    counters, make = MADE[made]
    estimator = make()
    assert (estimator.now_seconds, estimator.next_seconds) == (0.0, 0.0)
    assert fed(estimator, queue_feed([], counters)) == [(0.0, 0.0)]


@pytest.mark.parametrize("made", MADE)
@settings(max_examples=40)  # Each of many estimators has its own.
@given(data=st.data())
def test_says_a_finite_number_that_is_not_negative_whatever_it_is_fed(made: str, data: st.DataObject) -> None:
    counters, make = MADE[made]
    parts = data.draw(
        st.lists(st.lists(st.sampled_from([0, 0, 1, 150, 200, 1000]), max_size=12), min_size=1, max_size=3)
    )
    width = data.draw(st.sampled_from([1e3, 8e6, 10e9, math.inf]))
    samples = restarted(*(queue_feed(part, counters, width_bps=width, buffer_packets=500) for part in parts))
    errors = ReadErrors(
        data.draw(st.sampled_from([0.0, 0.05, 0.19])), data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    )
    kept = data.draw(st.lists(st.booleans(), min_size=len(samples), max_size=len(samples)))
    said = fed(make(), disturbed(samples, errors, seed=1).take(np.asarray(kept, bool)))
    assert all(0.0 <= value < math.inf for pair in said for value in pair)


@pytest.mark.parametrize("made", MADE)
def test_says_zero_of_an_idle_queue_in_the_end(made: str) -> None:
    counters, make = MADE[made]
    samples = queue_feed([1000, 500, 200, *[0] * 80], counters)
    now, following = fed(make(), samples)[-1]
    assert now == pytest.approx(0.0, abs=1e-9)
    assert following == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("made", FORGETTING)
def test_says_zero_of_an_idle_queue_in_the_end_after_losses_too(made: str) -> None:
    counters, make = MADE[made]
    samples = queue_feed([1000, 500, 200, *[0] * 20], counters, buffer_packets=50)
    assert samples.drops[-1] > 1000
    assert fed(make(), samples)[-1] == (0.0, 0.0)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("packets", [100, 2000])
def test_is_right_of_a_queue_with_constant_backlog(made: str, packets: int) -> None:
    counters, make = MADE[made]
    truth = packets / SENT_PER_WINDOW * 0.2
    said = fed(make(), queue_feed(constant_backlog(packets, 51), counters))
    assert said[-1] == _right(truth, made)


@pytest.mark.parametrize("made", MADE)
def test_a_switch_that_counts_from_zero_again_does_no_harm(made: str) -> None:
    counters, make = MADE[made]
    before = queue_feed([300] * 20, counters)
    idle = restarted(before, queue_feed([0] * 80, counters))
    assert fed(make(), idle)[-1] == pytest.approx((0.0, 0.0), abs=1e-9)
    busy = restarted(before, queue_feed(constant_backlog(1000, 51), counters))
    assert fed(make(), busy)[-1] == _right(1.0, made)


@pytest.mark.parametrize("made", MADE)
def test_works_with_samples_missing(made: str) -> None:
    counters, make = MADE[made]
    samples = queue_feed(constant_backlog(1000, 100), counters)
    kept = np.random.default_rng(5).random(len(samples)) < 0.5
    kept[0] = True
    said = fed(make(), samples.take(kept))
    assert said[-1] == _right(1.0, made)


@pytest.mark.parametrize("made", MADE)
def test_depends_on_nothing_but_its_feed(made: str) -> None:
    counters, make = MADE[made]
    random = np.random.default_rng(3)
    one, other = (queue_feed(random.poisson(rate, 60), counters, buffer_packets=300) for rate in (180, 230))
    alone = fed(make(), one)
    first, second = make(), make()
    beside = []
    for sample, another in zip(one, other, strict=True):
        first.feed(sample)
        second.feed(another)
        beside.append((first.now_seconds, first.next_seconds))
    assert beside == alone


def test_backlog_refuses_a_switch_that_does_not_show_it() -> None:
    with pytest.raises(ParameterError, match="openflow does not show"):
        make_estimator("backlog", "openflow")
    with pytest.raises(ParameterError, match="does not show what its queues hold"):
        fed(EVERY_ESTIMATOR["backlog"](), queue_feed([1], "openflow"))


def test_learned_wants_a_model_for_the_counters_it_is_fed() -> None:
    with pytest.raises(ParameterError, match="needs a model for the counters of linux; there is none"):
        make_estimator("learned", "linux")
    with pytest.raises(ParameterError, match="linux; this one is for openflow"):
        make_estimator("learned", "linux", model=small_model("openflow"))
    with pytest.raises(ParameterError, match="for switches that show the backlog"):
        fed(make_estimator("learned", "linux", model=small_model("linux")), queue_feed([1], "openflow"))


def test_an_unknown_estimator_is_refused_with_those_there_are() -> None:
    with pytest.raises(ParameterError, match=r"'arima' is none; there are idm, .*, learned, guarded"):
        make_estimator("arima", "linux")


@pytest.mark.parametrize("name", sorted(KEEP_LOSSES))
def test_the_printed_forms_take_losses_for_a_queue(name: str) -> None:
    samples = queue_feed([1000, *[0] * 20], buffer_packets=50)
    assert samples.drops[-1] == 750
    assert fed(EVERY_ESTIMATOR[name](), samples)[-1][0] == pytest.approx(0.75, rel=0.01)


def test_idm_forgets_losses_nobody_counted_once_the_queue_sends_less_than_its_width() -> None:
    overload, calm = [300] * 10, [150] * 20
    samples = queue_feed([*overload, *calm], "openflow", buffer_packets=400)
    hidden = disturbed(samples, ReadErrors(skew_seconds=0.0, hidden_drops=1.0), seed=1)
    said = [now for now, _ in fed(make_estimator("idm", "openflow"), hidden)]
    assert said[10] > 0.8  # what was lost seems to wait
    assert said[-1] < 0.001
    printed = [now for now, _ in fed(EVERY_ESTIMATOR["idm-paper"](), hidden)]
    assert printed[-1] > 0.5


@pytest.mark.parametrize("name", ["idm", "model"])
def test_where_the_buffer_is_known_a_queue_never_seems_to_hold_more(name: str) -> None:
    samples = queue_feed([300] * 50, "openflow", buffer_packets=400)
    hidden = disturbed(samples, ReadErrors(skew_seconds=0.0, hidden_drops=1.0), seed=1)
    known = SwitchConstants(buffer_bytes=400_000)
    made = [
        make_estimator(name, "openflow", switch=switch, estimators=EVERY_ESTIMATOR)
        for switch in (known, SwitchConstants())
    ]
    assert fed(made[0], hidden)[-1][0] == pytest.approx(0.4)
    assert fed(made[1], hidden)[-1][0] > 2


@pytest.mark.parametrize("load", [50, 150])
def test_reads_of_different_moments_make_no_queue_of_an_idle_one_for_idm(load: int) -> None:
    seen = disturbed(
        queue_feed([load] * 60, "openflow"), ReadErrors(skew_seconds=0.02, hidden_drops=0.0), seed=1
    )
    assert all(
        now == pytest.approx(0.0, abs=2e-3) for now, _ in fed(make_estimator("idm", "openflow"), seen)[20:]
    )


def test_idm_does_not_forget_what_came_after_the_queue_was_idle() -> None:
    samples = queue_feed([20, 20, 20, 20, 20, 20, 500, 200, 200])
    said = [now for now, _ in fed(make_estimator("idm", "openflow"), samples)]
    assert said[-1] == pytest.approx(0.3, rel=0.15)


@pytest.mark.parametrize(("load", "burst"), [(0.5, 1), (0.8, 1), (0.8, 4)])
def test_model_is_near_a_simulated_queue_that_has_no_overload(load: float, burst: int) -> None:
    random = np.random.default_rng(8)
    rate, service = load * 1000.0, 0.001
    times = np.repeat(np.cumsum(random.exponential(burst / rate, 60_000 // burst)), burst)
    # Lindley: each waits for what of its predecessor is left.
    waits, wait = np.zeros(len(times)), 0.0
    for packet, gap in enumerate(np.diff(times), 1):
        wait = max(0.0, wait + service - gap)
        waits[packet] = wait
    counts = np.bincount((times / 0.2).astype(int))[:-1]
    said = [now for now, _ in fed(EVERY_ESTIMATOR["model"](), queue_feed(counts, "openflow"))]
    assert np.mean(said[50:]) == pytest.approx(waits.mean(), rel=0.35)


def _guarded() -> Guarded:
    return Guarded(small_model("openflow"))


def _states(guarded: Guarded, packets: list[int]) -> list[str | None]:
    found = []
    for sample in queue_feed(packets, "openflow"):
        guarded.feed(sample)
        found.append(guarded.fallen_back)
    return found


def test_guarded_says_what_was_learned_of_what_is_like_training() -> None:
    samples = queue_feed(np.random.default_rng(6).poisson(190, 60), "openflow")
    guarded = _guarded()
    assert fed(guarded, samples) == fed(
        make_estimator("learned", "openflow", model=small_model("openflow")), samples
    )
    assert guarded.fallen_back is None


def test_guarded_falls_back_to_idm_on_inputs_outside_the_training_range_and_comes_back() -> None:
    # A queue longer than any in training, then one like those.
    guarded, idm = _guarded(), make_estimator("idm", "openflow")
    strange, calm = [8000, *[200] * 60], [*[0] * 60, *[150] * 60]
    states = _states(guarded, [*strange, *calm])
    first = next(number for number, state in enumerate(states) if state is not None)
    assert first <= 30
    assert states[first] is not None
    assert "idm instead of learned" in states[first]
    assert "in training" in states[first]
    assert states[-1] is None
    again = _guarded()
    said = fed(again, queue_feed(strange, "openflow"))
    assert said[-1] == fed(idm, queue_feed(strange, "openflow"))[-1]
    # One strange window is no drift, and one that is not is no return.
    assert len({state is None for state in states[first : len(strange)]}) == 1


def test_guarded_falls_back_when_deliveries_say_that_idm_is_nearer_and_comes_back() -> None:
    guarded, idm = _guarded(), make_estimator("idm", "openflow")
    learned = make_estimator("learned", "openflow", model=small_model("openflow"))
    random = np.random.default_rng(6)
    states = []
    for number, sample in enumerate(queue_feed(random.poisson(205, 120), "openflow")):
        for each in (guarded, idm, learned):
            each.feed(sample)
        # What comes next waits as the one says, and later as the other does.
        truth = idm.next_seconds if number < 60 else learned.next_seconds
        guarded.on_measurement(sample.sampled_ns + np.array([1, 100]), truth + np.array([-1e-5, 1e-5]))
        states.append(guarded.fallen_back)
    fallen = [number for number, state in enumerate(states) if state is not None]
    assert fallen
    assert 24 <= fallen[0] < 60
    assert "in what was delivered" in str(states[fallen[0]])
    assert states[-1] is None


IDLE_AND_BUSY = {
    "an idle start": [0] * 60 + [190] * 60,
    "a short idle start": [0] * 8 + [190] * 60,
    "idle between two busy times": [190] * 60 + [0] * 30 + [190] * 60,
    "on and off": ([190] * 10 + [0] * 10) * 8,
}


@pytest.mark.parametrize("counters", ["openflow", "linux"])
@pytest.mark.parametrize("packets", IDLE_AND_BUSY.values(), ids=IDLE_AND_BUSY)
def test_an_idle_queue_is_not_drift(counters: str, packets: list[int]) -> None:
    guarded = Guarded(busy_model(counters))
    random = np.random.default_rng(5)
    for sample in queue_feed(random.poisson(packets), counters):
        guarded.feed(sample)
        assert guarded.fallen_back is None


def test_samples_at_other_moments_than_in_training_are_not_drift() -> None:
    guarded = Guarded(busy_model("linux"))
    for sample in queue_feed(np.random.default_rng(5).poisson([190] * 100), "linux"):
        guarded.feed(replace(sample, sampled_ns=sample.sampled_ns * 11 // 10))
        assert guarded.fallen_back is None


def test_guarded_falls_back_to_the_backlog_where_it_is_shown_and_returns_when_the_model_fits() -> None:
    guarded, backlog = Guarded(busy_model("linux")), make_estimator("backlog", "linux")
    strange, like_training = [900] * 40, [0] * 180 + [190] * 80
    said = []
    for sample in queue_feed(np.random.default_rng(5).poisson(strange + like_training), "linux"):
        guarded.feed(sample)
        backlog.feed(sample)
        said.append(guarded.fallen_back)
        if guarded.fallen_back is not None:
            assert guarded.next_seconds == backlog.next_seconds
    assert str(said[40]).startswith("backlog instead of learned: ")
    assert said[-1] is None
