"""Bandwidths of ports as they are measured, in virtual time: estimates that hold, and changes that are noticed."""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.network.virtual_time import VirtualTime

from triagemq.channel.messages import Measured
from triagemq.coordinator.gateways.observed import ObservedSubscribers
from triagemq.coordinator.loop import measuring as measuring
from triagemq.coordinator.loop.measuring import Measuring
from triagemq.coordinator.ports import PortWatch, bandwidth_interval
from triagemq.coordinator.store import Store, store_measured_ports
from triagemq.network import EmbeddedDataPlane
from triagemq.network.embedded.output_port import Flow, OutputPort, Queued
from triagemq.plan import Decision
from triagemq.plan.dataplane import FlowKey, OutgoingPacket, PortCounters, QueueCounters, SetFlow, SetPort

STATED_BPS = 40_000.0
LOOK_SECONDS = 0.2


class Radio:
    """A real output port in virtual time, offered a load of what is planned with, and looked at as a coordinator does.

    `bandwidth_bps` is what it really has. Packets come one by one, or as bursts `every_seconds`.
    """

    def __init__(
        self,
        seed: int = 1,
        *,
        share: float = 0.9,
        packet_bytes: int = 200,
        every_seconds: float | None = None,
    ) -> None:
        self.bandwidth_bps = STATED_BPS
        self.share, self.packet_bytes, self.every_seconds = share, packet_bytes, every_seconds
        self.watch = PortWatch({"radio": STATED_BPS})
        self.changes: list[tuple[float, Decision]] = []
        self.now = 0.0
        self._random = np.random.default_rng(seed)
        self._port = OutputPort(self._settings())
        key = FlowKey("10.0.0.1", 20000)
        self._flow = Flow(key)
        self._flow.configure(SetFlow(key, "radio", 0, 0, 0.0), self._port)
        self._next = 0.0

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        slot = self.now
        while slot < until:
            self.now = slot + self._random.uniform(0, LOOK_SECONDS)
            slot += LOOK_SECONDS
            self._port.configure(self._settings())
            while self._next < self.now:
                packets_per_second = self.share * self.planned_bps / (8 * self.packet_bytes)
                burst = 1 if self.every_seconds is None else round(packets_per_second * self.every_seconds)
                for _ in range(burst):
                    self._arrive(round(self._next * 1e9))
                self._next += self.every_seconds or self._random.exponential(1 / packets_per_second)
            self._port.finish(round(self.now * 1e9), [], [])
            found = self.watch.observe(self.now, {"radio": self._counters()}, "epoch")
            self.changes += [(self.now, change) for change in found]

    @property
    def planned_bps(self) -> float:
        return self.watch.now().bandwidth_bps.get("radio", self.watch.facts()["radio"].bandwidth_bps)

    def _counters(self) -> PortCounters:
        return self._port.counters()

    def _settings(self) -> SetPort:
        return SetPort("radio", self.bandwidth_bps, 100, 1)

    def _arrive(self, now_ns: int) -> None:
        self._port.finish(now_ns, [], [])
        packet = OutgoingPacket(self._flow.key, b"", control=False)
        self._port.arrive(Queued(packet, self._flow, 1, self.packet_bytes, now_ns), [])
        self._port.start(now_ns, [], [])


class Interface(Radio):
    """A port of the kernel: what is being sent has left its queue."""

    def _counters(self) -> PortCounters:
        counters, sending = self._port.counters(), self._port._sending
        (queue,) = counters.queues
        if sending is not None:
            queue = replace(
                queue,
                bytes_out=queue.bytes_out + sending.wire_bytes,
                backlog_packets=queue.backlog_packets - 1,
            )
        return replace(counters, queues=(queue,))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("packet_bytes", [50, 500])
def test_a_port_as_stated_is_never_found_otherwise_and_its_bandwidth_is_in_the_interval(
    share: float, packet_bytes: int
) -> None:
    radio = Radio(share=share, packet_bytes=packet_bytes)
    for _ in range(60):
        radio.run(30)
        found = radio.watch.facts()["radio"].measured_bandwidth_bps
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
    assert change.kind == "bandwidth_measured"
    assert change.subject == "radio"
    assert change.before == "4e+04 bit/s"
    assert "stated are 4e+04" in change.reason
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
    assert PortWatch({"radio": STATED_BPS}, restored=kept).now() == radio.watch.now()
    assert PortWatch({"radio": 1e6}, restored=kept).now().bandwidth_bps == {}
    assert PortWatch({"wire": 1e6}, restored=kept).now().decisions == ()
    assert PortWatch({"radio": STATED_BPS}).to_store() == {}


def test_a_gateway_that_was_started_again_or_stood_still_shows_no_change() -> None:
    radio = Radio()
    counters = radio._port.counters()
    for start in range(0, 400, 5):
        # Never a window without an interruption, and nothing goes out: a port that has died would look like this.
        for look in range(20):
            assert radio.watch.observe(start + look * LOOK_SECONDS, {"radio": counters}, str(start)) == ()
    assert radio.watch.facts()["radio"].measured_bandwidth_bps is None


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


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_bursts_in_step_with_the_looks_at_a_port_that_is_nearly_idle_are_no_slow_port(share: float) -> None:
    radio = Radio(share=share, packet_bytes=50, every_seconds=1.0)
    radio.run(1_800)
    assert radio.changes == []


def test_a_fast_port_whose_wake_ups_come_late_is_no_slow_port() -> None:
    """Each packet takes a microsecond and waits 200 for company: at every look one of them is still there."""
    time = VirtualTime(100_000)
    plane = EmbeddedDataPlane(lambda datagrams, classes: None, clock=time.clock, alarm=time.alarm)
    key = FlowKey("10.0.0.1", 20000)
    plane.apply([SetPort("radio", 1e9, 100, 1), SetFlow(key, "radio", 0, 0, 0.0)])
    watch = PortWatch({"radio": 1e9})
    chance = np.random.default_rng(5)
    for look in range(1, 400):
        now_ns = round((look + chance.uniform()) * LOOK_SECONDS * 1e9)
        for offset_ns in (900_000, 600_000, 300_000, 50_000):
            time.run_until(now_ns - offset_ns)
            plane.send([OutgoingPacket(key, bytes(100), control=False)])
        time.run_until(now_ns)
        assert watch.observe(now_ns / 1e9, plane.counters(with_flows=False).ports, "epoch") == ()


def test_an_interface_that_seems_faster_than_it_is_is_tried_ever_more_rarely() -> None:
    interface = Interface(share=0.7)
    interface.run(60)
    interface.bandwidth_bps = STATED_BPS / 2
    interface.run(1_800)
    rises = [at for at, change in interface.changes if float(change.after.split()[0]) > 0.6 * STATED_BPS]
    assert 2 <= len(rises) <= 7
    assert rises[-1] - rises[-2] > 300


def test_a_port_that_kept_what_it_rose_to_is_trusted_anew() -> None:
    radio = Radio()
    for _ in range(6):
        radio.bandwidth_bps = STATED_BPS / 2
        radio.run(60)
        assert radio.planned_bps < 0.6 * STATED_BPS
        radio.bandwidth_bps = STATED_BPS
        # The longest hold would be ten minutes by now.
        radio.run(150)
        assert radio.planned_bps > 0.8 * STATED_BPS
        radio.run(600)


def test_a_port_that_was_never_busy_has_no_upper_bound() -> None:
    assert math.isinf(bandwidth_interval((10_000, 10.0, 50, 0)).high)
    watch = PortWatch({"radio": 1e6})
    for look in range(1_000):
        counters = PortCounters((QueueCounters(bytes_out=200 * look),), QueueCounters())
        assert watch.observe(look * LOOK_SECONDS, {"radio": counters}, "epoch") == ()


class Gateway:
    """A link that answers at once; `phases` are the times at which it did."""

    def __init__(self) -> None:
        self.phases: list[float] = []

    async def measure(self, *, flows: bool, topics: bool = True, after: str = "") -> Measured:
        self.phases.append(time.monotonic())
        return Measured("epoch", 0, {}, {}, {}, {}, 0, 0, True)


def measure(gateway: Gateway, watch: PortWatch, seconds: int, store: Any = None) -> None:
    async def heard(before: Measured | None, now: Measured) -> None: ...

    async def scene() -> None:
        gateways: Any = SimpleNamespace(
            first=SimpleNamespace(lead=None), measure=gateway.measure, observed=ObservedSubscribers()
        )
        rates: Any = SimpleNamespace(observe=lambda now, topics, complete: (), to_store=dict)
        here = Measuring(gateways, rates, watch, store, on_change=print, on_second=heard)
        await here.one_second()
        watch.state("radio", STATED_BPS)
        for _ in range(seconds - 1):
            await here.one_second()

    asyncio.run(scene())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of measuring takes a tenth."""
    monkeypatch.setattr(measuring, "MEASURE_SECONDS", 0.02)


@pytest.mark.usefixtures("quick")
def test_ports_are_looked_at_out_of_step_with_everything() -> None:
    gateway = Gateway()
    measure(gateway, PortWatch({"radio": STATED_BPS}), 4)
    assert len(gateway.phases) == 20
    apart = np.diff(gateway.phases)
    assert max(apart) - min(apart) > 0.008


@pytest.mark.usefixtures("quick")
def test_what_an_operator_has_overruled_is_gone_from_the_store_within_a_second(tmp_path: Path) -> None:
    radio = Radio()
    radio.bandwidth_bps = STATED_BPS / 2
    radio.run(60)
    store = Store(f"sqlite:///{tmp_path / 'coordinator.sqlite'}")
    kept = radio.watch.to_store()
    store.write_now(store_measured_ports, kept)
    assert store.measured_ports() == kept
    # The same is stated as before: nothing but the store could tell a restart that it was stated anew.
    measure(Gateway(), PortWatch({"radio": STATED_BPS}, restored=kept), 2, store)
    assert store.measured_ports() == {}
    store.close_now()


@pytest.mark.parametrize(("waiting", "measured_bps"), [((5, 0), None), ((5, 5), 20_000.0)])
def test_a_queue_that_waits_at_its_own_width_says_nothing_of_the_port(
    waiting: tuple[int, int], measured_bps: float | None
) -> None:
    """Half of what is stated leaves the port; that is all it has only if every queue waits."""
    watch = PortWatch({"radio": STATED_BPS})
    queue_rates = (20_000, 20_000)
    for look in range(1500):
        octets = round(look * LOOK_SECONDS * 20_000 / 8)
        queues = tuple(
            QueueCounters(
                bytes_in=octets, bytes_out=octets * (place == 0), backlog_packets=packets, width_bps=width
            )
            for place, (packets, width) in enumerate(zip(waiting, queue_rates, strict=True))
        )
        counters = PortCounters(queues, QueueCounters(width_bps=40_000))
        watch.observe(look * LOOK_SECONDS, {"radio": counters}, "epoch")
    found = watch.now().bandwidth_bps.get("radio")
    assert found is None if measured_bps is None else found == pytest.approx(measured_bps, rel=0.02)
