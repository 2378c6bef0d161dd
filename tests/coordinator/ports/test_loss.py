"""Loss behind ports as subscribers report it, in virtual time: found when it changes, whoever lies, and not else."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from triagemq.coordinator.decide.decide import Decided, Question, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.ports import Loss, PortWatch
from triagemq.coordinator.rates import Rates
from triagemq.intents import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
)
from triagemq.plan import Decision
from triagemq.plan.dataplane import FlowCounters

LOOK_SECONDS = 0.2


def decided(count: int, error_rate: float = 0.0) -> Decided:
    """Subscribers of one topic behind one port, planned with an error rate."""
    network = Network(Network.plain(1e9).scenario, {"port": 1 - error_rate})
    book = IntentBook()
    book.announce(PublisherIntent((PublicationIntent("t", 20.0, 50.0),), name="p"))
    for number in range(count):
        book.announce(SubscriberIntent((SubscriptionIntent("t"),), name=f"s{number}"))
    return decide(Question(book.scenario(network, Rates())))


class Crowd:
    """Subscribers that get Poisson events over links which lose some, and report every few seconds.

    `loss` gives each one's share at a time. Reports are on their way for up to 200 ms; flows are counted every second.
    """

    def __init__(
        self,
        count: int,
        loss: Callable[[int, float], float],
        *,
        rate: float = 20.0,
        seed: int = 1,
        packets: int = 1,
    ) -> None:
        self.count, self.rate, self.packets = count, rate, packets
        self.loss = loss
        self.watch = PortWatch({"port": 1e9})
        self.plan = decided(count)
        self.watch.planned(self.plan.scenario, {})
        self.random = np.random.default_rng(seed)
        self.now = 0.0
        self.changes: list[tuple[float, Decision]] = []
        self.reporting = range(count)
        self.lies: dict[int, int] = {}
        """What some report instead, whatever came."""
        self.plans = True
        self._sent = [0] * count
        self._received = [0] * count
        self._report_at = self.random.uniform(0, 3.3, count)
        self._on_the_way: list[tuple[float, int, int]] = []

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = round(self.now + LOOK_SECONDS, 6)
            self._events()
            self._report()
            if round(self.now / LOOK_SECONDS) % 5 == 0:
                self.watch.count(self.now, self._flows(), "epoch")
            found = self.watch.observe(self.now, {}, "epoch")
            self.changes += [(self.now, change) for change in found]
            if found and self.plans:
                # As the control loop does.
                self.plan = decided(self.count, 1 - self.survival)
                self.watch.planned(self.plan.scenario, self.watch.now().survival)

    @property
    def survival(self) -> float:
        return self.watch.now().survival.get("port", 1.0)

    def _events(self) -> None:
        for who in range(self.count):
            sent = int(self.random.poisson(self.rate * LOOK_SECONDS))
            arriving = (1 - self.loss(who, self.now)) ** self.packets
            self._sent[who] += sent
            self._received[who] += int(self.random.binomial(sent, arriving))

    def _report(self) -> None:
        for who in self.reporting:
            if self.now >= self._report_at[who]:
                self._report_at[who] = self.now + self.random.uniform(2.6, 3.3)
                delay = self.random.uniform(0, 0.2)
                count = self.lies.get(who, self._received[who])
                self._on_the_way.append((self.now + delay, who, count))
                self._received[who] = 0
        arrived = [each for each in self._on_the_way if each[0] <= self.now]
        self._on_the_way = [each for each in self._on_the_way if each[0] > self.now]
        for at, who, received in arrived:
            self.watch.report(f"s{who}", received, at)

    def _flows(self) -> dict[str, FlowCounters]:
        return {
            f"s{who}~0": FlowCounters(who, 0, 0, sent * self.packets, sent)
            for who, sent in enumerate(self._sent)
        }


def share(text: str) -> float:
    return float(text.removesuffix("%")) / 100


@pytest.mark.parametrize("true", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("count", [1, 30])
def test_a_loss_as_planned_is_never_found_otherwise_and_lies_in_the_interval(true: float, count: int) -> None:
    crowd = Crowd(count, lambda who, now: true, rate=20.0 if count == 1 else 3.0)
    crowd.plan = decided(count, true)
    crowd.watch.planned(crowd.plan.scenario, {})
    for _ in range(40):
        crowd.run(45)
        found = crowd.watch.facts()["port"].measured_error_rate
        assert found is not None
        assert found.low <= true <= found.high
    assert crowd.changes == []
    assert crowd.watch.facts()["port"].planned_error_rate == pytest.approx(true)


@pytest.mark.parametrize("packets", [1, 3])
def test_a_link_that_gets_worse_is_noticed_planned_with_and_left_when_it_is_better_again(
    packets: int,
) -> None:
    begins, ends = 100.0, 700.0
    crowd = Crowd(5, lambda who, now: 0.25 if begins <= now < ends else 0.0, packets=packets)
    crowd.run(begins + 45)
    (at, change), *_ = crowd.changes
    assert at < begins + 40
    crowd.run(ends - crowd.now)
    # What was found at once rests on little; a longer look may have corrected it.
    assert len(crowd.changes) <= 3
    assert crowd.survival == pytest.approx(0.75, abs=0.05)
    assert crowd.plan.scenario.subscribers.error_rate == pytest.approx(np.full(5, 0.25), abs=0.05)
    assert change.kind == "error_rate_measured"
    assert change.before == "0.00%"
    assert share(change.after) > 0.15
    assert "its subscribers report" in change.reason
    crowd.run(60)
    assert crowd.survival == pytest.approx(1.0, abs=0.06)


def test_a_small_loss_takes_longer_and_is_noticed_as_well() -> None:
    crowd = Crowd(10, lambda who, now: 0.05)
    crowd.run(400)
    assert crowd.changes
    assert crowd.survival == pytest.approx(0.95, abs=0.02)


def test_what_one_of_several_says_does_not_change_the_port() -> None:
    crowd = Crowd(4, lambda who, now: 1.0 if who == 2 and now > 20 else 0.0)
    crowd.run(600)
    assert crowd.changes == []


def test_who_does_not_report_is_not_taken_for_lossy_and_one_of_many_is_not_enough() -> None:
    crowd = Crowd(4, lambda who, now: 0.0)
    crowd.reporting = range(2)
    crowd.run(300)
    assert crowd.changes == []
    alone = Crowd(4, lambda who, now: 0.5)
    alone.reporting = range(1)
    alone.run(300)
    assert alone.changes == []


def test_a_subscriber_that_gets_nothing_any_more_and_says_so_counts() -> None:
    crowd = Crowd(1, lambda who, now: 1.0 if now > 50 else 0.0)
    crowd.run(100)
    assert crowd.survival < 0.05


def test_intervals_hold_the_truth_as_often_as_they_should() -> None:
    random = np.random.default_rng(7)
    inside = 0
    for _ in range(2_000):
        true, sent = float(random.uniform(0, 0.6)), int(random.integers(20, 3_000))
        copies = sent, sent, random.binomial(sent, 1 - true), 60.0
        found = Loss.of([np.array(copies, dtype=np.float64)], 1.0).interval()
        inside += found.low <= true <= found.high
    assert inside >= 1_998


@pytest.mark.parametrize("says", [0, 2**53])
def test_who_lies_makes_a_loss_that_others_have_neither_larger_nor_smaller(says: int) -> None:
    crowd = Crowd(6, lambda who, now: 0.1, seed=3)
    crowd.lies[2] = says
    crowd.run(600)
    assert crowd.changes
    assert all(share(change.after) == pytest.approx(0.1, abs=0.05) for _, change in crowd.changes)
    assert crowd.survival == pytest.approx(0.9, abs=0.03)


def test_who_claims_more_than_was_sent_hides_no_loss_of_the_others() -> None:
    crowd = Crowd(4, lambda who, now: 0.25 if now > 60 else 0.0)
    crowd.lies[1] = 2**53
    crowd.run(110)
    assert crowd.survival < 0.9


def test_a_loss_that_no_plan_follows_does_not_seem_to_grow() -> None:
    crowd = Crowd(5, lambda who, now: 0.25)
    crowd.plans = False
    crowd.run(300)
    assert crowd.changes
    assert crowd.survival == pytest.approx(0.75, abs=0.05)


def test_a_restart_goes_on_with_the_loss_that_was_measured_unless_another_is_stated() -> None:
    crowd = Crowd(5, lambda who, now: 0.25)
    crowd.run(60)
    kept = json.loads(json.dumps(crowd.watch.to_store()))
    assert PortWatch({"port": 1e9}, restored=kept).now() == crowd.watch.now()
    stated_anew = PortWatch({"port": 1e9}, {"port": 0.25}, restored=kept).now()
    assert (stated_anew.survival, stated_anew.decisions) == ({}, ())


def test_reports_that_wait_for_a_gateway_are_few_and_the_first_after_it_count_for_nothing() -> None:
    crowd = Crowd(2, lambda who, now: 0.0)
    crowd.run(60)
    for number in range(1_000):
        crowd.watch.report("s0", 0, crowd.now + number / 1_000)
    crowd.run(300)
    assert crowd.changes == []
