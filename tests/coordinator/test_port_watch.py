"""Ports as they are measured, in virtual time: estimates that hold, changes that are noticed, nothing else that is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from triagemq.coordinator.control import Decided, Situation, decide
from triagemq.coordinator.exchange_network import Network
from triagemq.coordinator.intent_book import IntentBook
from triagemq.coordinator.intents import (
    PublicationIntent,
    PublisherIntent,
    SubscriberIntent,
    SubscriptionIntent,
)
from triagemq.coordinator.port_estimates import Copies, Drain, Loss
from triagemq.coordinator.port_watch import PortChange, PortWatch
from triagemq.coordinator.rates import Rates
from triagemq.network.output_port import Flow, OutputPort, Queued
from triagemq.plan import (
    FlowCounters,
    FlowKey,
    OutgoingPacket,
    PortCounters,
    QueueCounters,
    SetFlow,
    SetPort,
)

STATED_BPS = 40_000.0
LOOK_SECONDS = 0.2


class Radio:
    """A real output port in virtual time, offered a load of what is planned with, and looked at as a coordinator does.

    `bandwidth_bps` is what it really has.
    """

    def __init__(self, seed: int = 1, *, share: float = 0.9, packet_bytes: int = 200) -> None:
        self.bandwidth_bps = STATED_BPS
        self.share, self.packet_bytes = share, packet_bytes
        self.watch = PortWatch({"radio": STATED_BPS})
        self.changes: list[tuple[float, PortChange]] = []
        self.now = 0.0
        self._random = np.random.default_rng(seed)
        self._port = OutputPort(self._settings())
        key = FlowKey("10.0.0.1", 20000)
        self._flow = Flow(key)
        self._flow.configure(SetFlow(key, "radio", 0, 0, 0.0), self._port)
        self._next = 0.0

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_SECONDS
            self._port.configure(self._settings())
            while self._next < self.now:
                self._arrive(round(self._next * 1e9))
                rate = self.share * self.planned_bps / (8 * self.packet_bytes)
                self._next += self._random.exponential(1 / rate)
            self._port.finish(round(self.now * 1e9), [])
            found = self.watch.observe(self.now, {"radio": self._port.counters()}, "epoch")
            self.changes += [(self.now, change) for change in found]

    @property
    def planned_bps(self) -> float:
        return self.watch.now().bandwidth_bps.get("radio", self.watch.facts()["radio"].stated_bps)

    def _settings(self) -> SetPort:
        return SetPort("radio", self.bandwidth_bps, 100, 1)

    def _arrive(self, now_ns: int) -> None:
        self._port.finish(now_ns, [])
        packet = OutgoingPacket(self._flow.key, b"", control=False)
        self._port.arrive(Queued(packet, self._flow, 1, self.packet_bytes, now_ns), now_ns, [])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("packet_bytes", [50, 500])
def test_a_port_as_stated_is_never_found_otherwise_and_its_bandwidth_is_in_the_interval(
    share: float, packet_bytes: int
) -> None:
    radio = Radio(share=share, packet_bytes=packet_bytes)
    for _ in range(60):
        radio.run(30)
        found = radio.watch.facts()["radio"].bandwidth_bps
        assert found is not None
        assert found.low <= STATED_BPS <= found.high
    assert radio.changes == []


@pytest.mark.parametrize("seed", range(5))
def test_a_port_that_has_less_is_noticed_in_half_a_minute_and_when_it_has_more_again(seed: int) -> None:
    radio = Radio(seed)
    radio.run(60)
    radio.bandwidth_bps = STATED_BPS / 2
    radio.run(40)
    (at, change), *more = radio.changes
    assert more == []
    assert at < 60 + 35
    assert radio.planned_bps == pytest.approx(STATED_BPS / 2, rel=0.1)
    assert change.decision.kind == "bandwidth_measured"
    assert change.decision.subject == "radio"
    assert change.decision.before == "4e+04 bit/s"
    assert "stated are 4e+04" in change.decision.reason
    assert str(change).startswith("measured bandwidth of port radio from 4e+04 bit/s to ")
    # With the plan for half of it there is nothing to correct for an hour.
    radio.run(3600)
    assert len(radio.changes) == 1
    radio.bandwidth_bps = STATED_BPS
    radio.run(120)
    assert radio.planned_bps == pytest.approx(STATED_BPS, rel=0.15)
    assert radio.watch.now().decisions[0].kind == "bandwidth_measured"


def test_what_an_operator_states_holds_until_measurements_leave_it() -> None:
    radio = Radio()
    radio.bandwidth_bps = STATED_BPS / 2
    radio.run(60)
    assert radio.planned_bps < 0.6 * STATED_BPS
    radio.watch.state("radio", 30_000.0)
    assert radio.watch.now().bandwidth_bps == {}
    assert radio.watch.now().decisions == ()
    assert radio.planned_bps == 30_000.0
    radio.run(60)
    assert radio.planned_bps == pytest.approx(STATED_BPS / 2, rel=0.1)


def test_a_restart_goes_on_with_what_was_measured_unless_something_else_is_stated() -> None:
    radio = Radio()
    radio.bandwidth_bps = STATED_BPS / 2
    radio.run(60)
    kept = json.loads(json.dumps(radio.watch.to_store()))
    assert PortWatch({"radio": STATED_BPS}, kept).now() == radio.watch.now()
    assert PortWatch({"radio": 1e6}, kept).now().bandwidth_bps == {}
    assert PortWatch({"wire": 1e6}, kept).now().decisions == ()
    assert PortWatch({"radio": STATED_BPS}).to_store() == {}


def test_a_gateway_that_was_started_again_or_stood_still_shows_no_change() -> None:
    radio = Radio()
    counters = radio._port.counters()
    for start in range(0, 400, 5):
        # Never a window without an interruption, and nothing goes out: a port that has died would look like this.
        for look in range(20):
            assert radio.watch.observe(start + look * LOOK_SECONDS, {"radio": counters}, str(start)) == ()
    assert radio.watch.facts()["radio"].bandwidth_bps is None


def test_counters_that_stand_still_for_a_while_are_no_slow_port() -> None:
    queue = QueueCounters(backlog_packets=9)
    watch = PortWatch({"radio": STATED_BPS})
    octets = 0.0
    for look in range(1, 1_000):
        now = look * LOOK_SECONDS
        # Whoever counts is away for 10 s in 40, never for a whole window.
        if not 15 <= now % 40 < 25:
            octets += STATED_BPS / 8 * LOOK_SECONDS
        counters = {"radio": PortCounters((replace(queue, bytes_out=round(octets)),), QueueCounters())}
        assert watch.observe(now, counters, "epoch") == ()


# Loss.


def decided(count: int, error_rate: float = 0.0) -> Decided:
    """Subscribers of one topic behind one port, planned with an error rate."""
    network = Network(Network.plain(1e9).scenario, {"port": 1 - error_rate})
    book = IntentBook()
    book.announce(PublisherIntent("p", (PublicationIntent("t", 20.0, 50.0),)))
    for number in range(count):
        book.announce(SubscriberIntent(f"s{number}", (SubscriptionIntent("t"),)))
    return decide(Situation(book.scenario(network, Rates()), book.flow_limits(network)))


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
        self.watch.planned(self.plan.scenario, self.plan.orders)
        self.random = np.random.default_rng(seed)
        self.now = 0.0
        self.changes: list[tuple[float, PortChange]] = []
        self.reporting = range(count)
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
            if found:
                # As the control loop does.
                self.plan = decided(self.count, 1 - self.survival)
                self.watch.planned(self.plan.scenario, self.plan.orders)

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
                self._on_the_way.append((self.now + delay, who, self._received[who]))
                self._received[who] = 0
        arrived = [each for each in self._on_the_way if each[0] <= self.now]
        self._on_the_way = [each for each in self._on_the_way if each[0] > self.now]
        for at, who, received in arrived:
            self.watch.report(f"s{who}", received, at)

    def _flows(self) -> dict[str, FlowCounters]:
        flows = self.plan.orders.flows
        return {
            f"s{who}~0": FlowCounters(flows[f"s{who}~0"].flow_id, 0, 0, 0, sent * self.packets, sent)
            for who, sent in enumerate(self._sent)
        }


def share(text: str) -> float:
    return float(text.removesuffix("%")) / 100


@pytest.mark.parametrize("true", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("count", [1, 30])
def test_a_loss_as_planned_is_never_found_otherwise_and_lies_in_the_interval(true: float, count: int) -> None:
    crowd = Crowd(count, lambda who, now: true, rate=20.0 if count == 1 else 3.0)
    crowd.plan = decided(count, true)
    crowd.watch.planned(crowd.plan.scenario, crowd.plan.orders)
    for _ in range(40):
        crowd.run(45)
        found = crowd.watch.facts()["port"].error_rate
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
    assert change.decision.kind == "error_rate_measured"
    assert change.decision.before == "0.00%"
    assert share(change.decision.after) > 0.15
    assert "its subscribers report" in change.decision.reason
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
        copies = Copies(sent, sent, float(random.binomial(sent, 1 - true)), sent)
        found = Loss(copies, copies, copies).interval()
        inside += found.low <= true <= found.high
    assert inside >= 1_998


def test_a_port_that_was_never_busy_has_no_upper_bound() -> None:
    found = Drain(10_000, 10.0, 50, 0).bandwidth_bps()
    assert math.isinf(found.high)
    assert Drain(10_000, 10.0, 50, 0).side_of(1e6, 1e6) == 0
