"""Control of queues before a data plane: queue rates follow delays, stay through orders and restarts, and are told."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinator.managed import Control, ManagedProcess
from tests.delay.feeds import queue_feed
from tests.delay.trained import save_small_model
from tests.gateway.real import Mosquitto, Publisher, SnClient, ended
from tests.gateway.test_process import orders_for
from tests.network.recorded import RecordedDataPlane

from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import PortDelays
from triagemq.channel.orders import client_id_of
from triagemq.delay.estimators import make_estimator
from triagemq.delay.learning.models import load_model
from triagemq.delay.learning.training import switch_constants
from triagemq.delay.samples import Sample
from triagemq.errors import ParameterError, PlanError
from triagemq.gateway import queue_control
from triagemq.gateway.config import GatewayConfig, check_control
from triagemq.gateway.queue_control import ControlBehindGateway, ControlledQueues, Estimators
from triagemq.lab.generators import prototype
from triagemq.network.linux.queue_times import QUEUE_TIME
from triagemq.plan.dataplane import (
    FlowKey,
    PortCounters,
    QueueCounters,
    RemoveFlow,
    RemovePort,
    SetFlow,
    SetPort,
)
from triagemq.scenario import dumps, load
from triagemq.trace import Trace

PORT = SetPort("radio", 10e6, 100, 3, (6e6, 3e6, 1e6), False, (3e6, 1e6, 0.2e6))
PERIOD_NS = 200_000_000


class Load:
    """Queues of a port that is offered so much, counted as a kernel would, with the queue rates that are in force."""

    def __init__(
        self, plane: RecordedDataPlane, queues: ControlledQueues, offered_bps: tuple[float, ...]
    ) -> None:
        self._plane, self._queues, self._offered = plane, queues, offered_bps
        self._came, self._went = [0.0] * len(offered_bps), [0.0] * len(offered_bps)
        self._drops = [0] * len(offered_bps)
        self.at_ns = 0

    @property
    def queue_rates(self) -> tuple[float, ...]:
        return self._plane.state.ports["radio"].queue_rates_bps

    def run(self, periods: int) -> list[str]:
        """So many periods of 200 ms; the kinds of what was decided."""
        kinds = []
        for _ in range(periods):
            self.at_ns += PERIOD_NS
            kinds += [each.kind for each in self._queues.feed({"radio": self._counters()}, self.at_ns)]
        return kinds

    def _counters(self) -> PortCounters:
        found = []
        for queue, (offered, width) in enumerate(zip(self._offered, self.queue_rates, strict=True)):
            self._came[queue] += offered / 8 * 0.2
            held = self._came[queue] - self._went[queue] - 1000 * self._drops[queue]
            sent = min(held, width / 8 * 0.2)
            self._went[queue] += sent
            lost = max(0, int((held - sent) // 1000) - 100)
            self._drops[queue] += lost
            backlog = held - sent - 1000 * lost
            found.append(
                QueueCounters(
                    bytes_in=int(self._came[queue]),
                    packets_in=int(self._came[queue] // 1000),
                    bytes_out=int(self._went[queue]),
                    packets_out=int(self._went[queue] // 1000),
                    drops=self._drops[queue],
                    backlog_bytes=int(backlog),
                    backlog_packets=int(backlog // 1000),
                    width_bps=round(width),
                )
            )
        return PortCounters(tuple(found), QueueCounters())


def controlled(control: str = "backlog") -> tuple[RecordedDataPlane, ControlledQueues]:
    plane = RecordedDataPlane()
    queues = ControlledQueues(plane, Estimators(control))
    queues.apply([PORT])
    return plane, queues


@pytest.mark.parametrize("control", ["idm", "backlog"])
def test_queue_rates_follow_what_waits_and_the_reason_is_said(control: str) -> None:
    plane, queues = controlled(control=control)
    load = Load(plane, queues, (8e6, 0.5e6, 0.1e6))
    assert load.queue_rates == (6e6, 3e6, 1e6)
    assert "queue_rates" in load.run(20)
    # What comes fits into the port, and every queue keeps its floor.
    assert load.queue_rates[0] > 8e6
    assert all(own >= floor for own, floor in zip(load.queue_rates, PORT.floors_bps, strict=True))
    assert sum(load.queue_rates) == pytest.approx(10e6)
    found = queues.managed["radio"]
    assert found.queue_rates_bps == tuple(round(width) for width in load.queue_rates)
    assert len(found.delay_seconds) == 3


@settings(max_examples=30, deadline=None)
@given(
    loads=st.lists(
        st.tuples(*[st.floats(0, 20e6)] * 3),
        min_size=1,
        max_size=4,
    )
)
def test_queue_rates_are_never_below_a_floor_and_add_up_to_the_port(
    loads: list[tuple[float, float, float]],
) -> None:
    plane, queues = controlled()
    load = Load(plane, queues, loads[0])
    for offered in loads:
        load._offered = offered
        for _ in range(6):
            load.run(1)
            assert sum(load.queue_rates) == pytest.approx(10e6)
            assert all(own >= floor - 1 for own, floor in zip(load.queue_rates, PORT.floors_bps, strict=True))


def test_orders_that_come_again_leave_the_queue_rates_in_force() -> None:
    plane, queues = controlled()
    load = Load(plane, queues, (8e6, 0.5e6, 0.1e6))
    load.run(20)
    before = load.queue_rates
    queues.apply([PORT])
    assert load.queue_rates == before
    # Another bandwidth has the same shares, and orders that are refused change nothing.
    queues.apply([PORT.with_bandwidth(5e6)])
    assert load.queue_rates == pytest.approx([width / 2 for width in before], rel=1e-6)
    with pytest.raises(PlanError):
        queues.apply([PORT, SetFlow(FlowKey("10.0.0.1", 5000), "radio", 1, 7, 0.0)])
    assert load.queue_rates == pytest.approx([width / 2 for width in before], rel=1e-6)
    with pytest.raises(PlanError, match="port 'radio' cannot be controlled: starvation_bps: add up to"):
        queues.apply([replace(PORT, floors_bps=(6e6, 5e6, 1e6))])
    # A port that was taken away begins anew.
    queues.apply([RemoveFlow(FlowKey("10.0.0.1", 5000)), RemovePort("radio")])
    queues.apply([PORT])
    assert load.queue_rates == PORT.queue_rates_bps


def test_stored_queue_rates_begin_a_port_if_they_fit_it() -> None:
    def begun(stored: dict[str, list[int]]) -> tuple[float, ...]:
        plane = RecordedDataPlane()
        ControlledQueues(plane, Estimators("backlog"), stored).apply([PORT])
        return plane.state.ports["radio"].queue_rates_bps

    assert begun({"radio": [7_000_000, 2_500_000, 500_000]}) == pytest.approx((7e6, 2.5e6, 5e5))
    # Of a port that was half as fast, the shares.
    assert begun({"radio": [3_500_000, 1_250_000, 250_000]}) == pytest.approx((7e6, 2.5e6, 5e5))
    for other in ({}, {"radio": [1, 2]}, {"radio": [1_000_000, 1_000_000, 8_000_000]}, {"radio": [0, 0, 0]}):
        assert begun(other) == PORT.queue_rates_bps


def test_constraints_are_floors_of_queue_rates() -> None:
    plane, queues = controlled()
    load = Load(plane, queues, (5e6, 4.5e6, 3e6))
    load.run(30)
    free, waited = load.queue_rates, queues.managed["radio"].delay_seconds[1]
    queues.constrain({"radio": {1: 0.13}})
    load.run(30)
    assert load.queue_rates[1] > free[1]
    assert queues.managed["radio"].delay_seconds[1] < waited


def test_a_model_is_loaded_replaced_and_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_control, "_LOOK_SECONDS", 0.0)
    said: list[str] = []
    estimators = Estimators("learned", tmp_path / "model", said.append)
    plane = RecordedDataPlane()
    queues = ControlledQueues(plane, estimators)
    queues.apply([PORT])
    load = Load(plane, queues, (8e6, 0.5e6, 0.1e6))
    assert load.run(1) == ["model_refused"]
    assert estimators.in_force == "backlog"
    assert "cannot be read" in said[-1]
    assert said[-1].endswith("; backlog estimates")
    assert load.run(10).count("model_refused") == 0
    save_small_model(tmp_path / "model", "linux")
    assert "model_loaded" in load.run(1)
    assert estimators.in_force == "learned"
    # These queues are wider than any it was trained with: each that is busy falls back, and says so once.
    kinds = load.run(40)
    assert 1 <= kinds.count("model_drifted") <= 3
    assert load.queue_rates[0] > 8e6
    shutil.copy(tmp_path / "model" / "model.json", tmp_path / "whole.json")
    (tmp_path / "model" / "model.json").write_text("{}")
    assert "model_refused" in load.run(1)
    assert said[-1].endswith("; the model before it stays in force")
    assert estimators.in_force == "learned"


def test_what_controls_is_checked() -> None:
    with pytest.raises(ParameterError, match="control: is 'pid'; it is one of off, idm, backlog, learned"):
        check_control("pid")
    with pytest.raises(ParameterError, match="delay_model: is for --control learned, not for idm"):
        check_control("idm", Path("model"))
    with pytest.raises(ParameterError, match="control: learned needs a model"):
        GatewayConfig(listen="127.0.0.1:0", broker="b", state="s", control="c", queue_control="learned")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    running = Mosquitto(tmp_path_factory.mktemp("broker"))
    with ended(running):
        yield running


def test_a_gateway_controls_its_queues_with_the_rates_and_constraints_of_before_a_restart(
    tmp_path: Path, broker: Mosquitto
) -> None:
    port = SetPort("radio", 4e5, 50, 8, (2e5, *[2e5 / 7] * 7))
    gateway = ManagedProcess(
        tmp_path, broker.url, queue_control="backlog", trace=str(tmp_path / "trace"), rotate_seconds=0.2
    )
    with ended(gateway):
        control = Control(gateway.socket)
        control.orders(orders_for(1, {"floor/0": 0}, port=port))
        assert control.state(base=1, constraints={"radio": {"0": 0.05}})["ok"]
        subscriber = SnClient(gateway.port, client_id_of("s", 0)).connect()
        subscriber.subscribe("floor/0")
        publisher = Publisher(broker.port)
        deadline = time.monotonic() + 60
        widened: list[int] = []
        while not widened or widened[0] <= 2.2e5:
            assert time.monotonic() < deadline, control.ask("measure")
            for _ in range(20):
                publisher.publish("floor/0", bytes(300))
            subscriber.receive(0.05)
            managed = control.ask("measure", flows=False, topics=False)["managed"]
            widened = managed["radio"]["queue_rates_bps"] if "radio" in managed else []
        publisher.end()
        subscriber.end()
        time.sleep(1.0)
        gateway.kill()
        control.end()
        gateway.start()
        control = Control(gateway.socket)
        # Before a coordinator says anything.
        assert control.ask("measure")["ports"]["radio"]["queues"][0]["width_bps"] > 2.2e5
        assert control.ask("managed", ports={})["constraints"] == {"radio": {"0": 0.05}}
        control.end()
    decisions = Trace.open(tmp_path / "trace" / "run-0", allow_incomplete=True).table("decisions").to_pylist()
    changed = [row for row in decisions if row["kind"] == "queue_rates"]
    assert changed
    assert changed[0]["subject"] == "radio"
    assert changed[0]["before"].startswith("0.2, ")


def test_queues_elsewhere_are_reported_to_the_gateway_which_stores_their_rates(
    tmp_path: Path, broker: Mosquitto
) -> None:
    gateway = ManagedProcess(tmp_path, broker.url, dataplane="none")
    with ended(gateway):
        control = Control(gateway.socket)
        told = {"radio": PortDelays((6, 4), (0.1, 0.0), (1,))}
        assert control.ask("managed", ports=told)["constraints"] == {}
        assert control.ask("measure")["managed"] == {
            "radio": {"queue_rates_bps": [6, 4], "delay_seconds": [0.1, 0.0], "cannot_hold": [1]}
        }
        assert "managed: radio" in control.ask("managed", ports={"radio": 3})["error"]
        gateway.kill()
        control.end()
        gateway.start()

        async def begin() -> ControlledQueues:
            link, queues = GatewayLink(gateway.socket), ControlledQueues(plane, Estimators("backlog"))
            link.start()
            await ControlBehindGateway(link, queues).begin()
            await link.close()
            return queues

        plane = RecordedDataPlane()
        asyncio.run(begin()).apply([SetPort("radio", 10.0, 100, 2, (5.0, 5.0), False, (1.0, 1.0))])
        assert plane.state.ports["radio"].queue_rates_bps == (6.0, 4.0)


def test_what_packets_waited_is_compared_and_drift_is_a_decision_as_is_its_end(tmp_path: Path) -> None:
    save_small_model(tmp_path / "model", "openflow")
    estimators = Estimators("learned", tmp_path / "model")
    assert [each.kind for each in estimators.look()] == ["model_loaded"]
    guarded = estimators.make("radio")()
    learned = make_estimator("learned", "openflow", model=load_model(tmp_path / "model"))
    idm = make_estimator("idm", "openflow")
    news = []
    for number, sample in enumerate(queue_feed(np.random.default_rng(6).poisson(205, 120), "openflow")):
        for each in (guarded, learned, idm):
            each.feed(sample)
        waited = np.zeros(1, QUEUE_TIME)
        waited["enqueued_ns"] = sample.sampled_ns
        truth = idm.next_seconds if number < 60 else learned.next_seconds
        waited["dequeued_ns"] = waited["enqueued_ns"] + round(1e9 * truth)
        estimators.measured("radio", waited)
        news += estimators.drift("radio")
    assert [(each.kind, each.before, each.after) for each in news] == [
        ("model_drifted", "learned", "idm"),
        ("model_drifted", "idm", "learned"),
    ]
    assert "in what was delivered" in news[0].reason


def test_what_a_scenario_says_of_a_port_is_told_to_its_estimators(tmp_path: Path) -> None:
    scenario = tmp_path / "small.yaml"
    scenario.write_text(dumps(prototype(subscribers=2, buffer_packets=50)))
    port = load(scenario).ports.name[0]
    made = [Estimators("idm", scenario=each).make(port)() for each in (None, str(scenario))]
    # More comes than leaves, for as long as it takes: nobody counts a loss.
    for n in range(400):
        for each in made:
            each.feed(Sample(200_000_000 * n, 400_000 * n, 400 * n, 20_000 * n, 20 * n, 0, 800_000.0))
    without, told = (each.now_seconds for each in made)
    held = 8 * switch_constants(load(scenario), 0).buffer_bytes / 800_000.0
    assert told == pytest.approx(min(held, without))
    assert held < without
