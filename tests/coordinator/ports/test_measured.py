"""Links that get worse while a real gateway sends over them to real clients: noticed, planned with, and said."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinating import running, served
from tests.coordinator.managed import ManagedProcess
from tests.gateway.real import Mosquitto, ended

from triagemq.broker.process import find_mosquitto
from triagemq.client import ConnectionSettings, Publisher, Subscriber
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.mqttsn import Publish, decode

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")

RATE, LOSS = 100.0, 0.6


class Air:
    """Sockets that lose a share of the events that come to them."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.chance = random.Random(5)

    def socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        air = self

        class Lossy(socket.socket):
            def recv(self, size: int, flags: int = 0, /) -> bytes:
                while True:
                    datagram = super().recv(size, flags)
                    if not isinstance(decode(datagram), Publish) or air.chance.random() >= air.loss:
                        return datagram

        return Lossy(family, kind, protocol)


def test_a_radio_that_begins_to_lose_events_is_planned_with_and_stays_so_after_a_restart(
    tmp_path: Path,
) -> None:
    async def scene(gateway: ManagedProcess) -> None:
        air = Air()
        lossy = ConnectionSettings(make_socket=air.socket)
        async with running(tmp_path, gateway=gateway.socket) as here, served(here.app) as address:
            here.coordinator.configured_gateway.address = f"127.0.0.1:{gateway.port}"
            watch = here.coordinator.runtime.port_watch
            watch.window_seconds = 2.0
            crew = Subscriber(
                f"http://{address}",
                name="crew",
                lease_seconds=1.0,
                on_event=lambda event: None,
                settings=lossy,
            )
            async with Publisher(f"http://{address}", name="sensor") as sensor, crew:
                await sensor.declare({"smoke": (RATE, 50.0)})
                await crew.subscribe("smoke", utility="log:10")
                publishing = asyncio.create_task(_publish(sensor))
                try:
                    await here.until(lambda: watch.facts()["port"].measured_error_rate is not None)
                    air.loss = LOSS
                    await here.until(lambda: abs(_planned_error(here.coordinator) - LOSS) < 0.2)
                finally:
                    publishing.cancel()
                await here.settled()

                async def decisions() -> list[dict[str, Any]]:
                    said = (await here.client.get("/v1/decisions?limit=1000")).json()["decisions"]
                    return said if any(row["kind"] == "error_rate_measured" for row in said) else []

                # A plan is in effect a moment before its decisions are on the disk.
                said = await here.until(decisions)
                measured = next(row for row in said if row["kind"] == "error_rate_measured")
                assert (measured["subject"], measured["before"]) == ("port", "0.00%")
                assert any("measured error rate of port port" in row["reason"] for row in said)
                words = await here.client.get("/v1/explanation?subscriber=crew&topic=smoke")
                assert "port (error_rate_measured): " in words.json()["explanation"]
                (port,) = (await here.client.get("/v1/ports")).json()
                # One interval of 95 % in twenty excludes the true rate: twice its width does not.
                low, high = port["measured_error_rate"]["low"], port["measured_error_rate"]["high"]
                assert low - (high - low) / 2 <= LOSS <= high + (high - low) / 2
                assert port["planned_error_rate"] == _planned_error(here.coordinator)
                text = (await here.client.get("/metrics")).text
                assert 'triage_port_measured_error_rate{bound="value",port="port"}' in text
                assert 'triage_port_planned_bandwidth_bps{port="port"} 100000' in text
            survival = watch.now().survival
        async with running(tmp_path, gateway=gateway.socket) as here:
            assert here.coordinator.runtime.port_watch.now().survival == survival

    broker = Mosquitto(tmp_path / "broker")
    gateway = ManagedProcess(tmp_path / "gateway", broker.url)
    with ended(gateway, broker):
        asyncio.run(scene(gateway))


async def _publish(sensor: Publisher) -> None:
    while True:
        await sensor.publish("smoke", b"x" * 50)
        await asyncio.sleep(1 / RATE)


def _planned_error(coordinator: ControlPlane) -> float:
    decided = coordinator.runtime.decided
    assert decided is not None
    return float(decided.scenario.subscribers.error_rate.max(initial=0.0))
