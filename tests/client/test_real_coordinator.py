"""The library against the real coordinator and the managed gateway, as processes, with and without tokens."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client.loopback import QUICK, until
from tests.coordinator.coordinating import database_in, make_token
from tests.coordinator.managed import ManagedProcess
from tests.gateway.real import Child, Mosquitto, ended

from triagemq.broker.process import find_mosquitto
from triagemq.client import CoordinatorError, Event, Publisher, RefusedError, Subscriber

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


class CoordinatorProcess:
    """`python -m triagemq.coordinator.serve` on a fixed port."""

    def __init__(
        self, directory: Path, gateway: ManagedProcess, broker: str, *, access: bool, **more: Any
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self._directory = directory
        self._config = directory / "coordinator.json"
        settings = {
            "port": int(self.url.rpartition(":")[2]),
            "database": database_in(directory),
            "gateway_socket": str(gateway.socket),
            "gateway_address": f"127.0.0.1:{gateway.port}",
            "broker": broker,
            "bandwidth_bps": 1e6,
            "access": access,
            **more,
        }
        self._config.write_text(json.dumps(settings))
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "triagemq.coordinator.serve", str(self._config)]
        self.child = Child(command, self._directory / "coordinator.log")
        assert json.loads(self.child.line(60.0))["ready"]

    def kill(self) -> None:
        self.child.kill()

    def end(self) -> None:
        self.child.end()


@contextmanager
def exchange(directory: Path, *, access: bool, **more: Any) -> Iterator[CoordinatorProcess]:
    broker = Mosquitto(directory / "broker")
    with ended(broker):
        gateway = ManagedProcess(directory / "gateway", broker.url, timestamps=True)
        with ended(gateway):
            coordinator = CoordinatorProcess(directory, gateway, broker.url, access=access, **more)
            with ended(coordinator):
                yield coordinator


def test_flows_open_as_planned_and_a_killed_coordinator_is_not_missed(tmp_path: Path) -> None:
    async def scene(coordinator: CoordinatorProcess) -> None:
        async with (
            Publisher(coordinator.url, name="sensors", stamp=True, settings=QUICK) as publisher,
            Subscriber(coordinator.url, name="ff-7", settings=QUICK) as subscriber,
        ):
            topics = [f"building/3/{room}/smoke" for room in range(4)]
            await publisher.declare(dict.fromkeys(topics, (5.0, 100.0)))
            await subscriber.subscribe("building/3/+/smoke", utility="log:1", qos=1)
            await subscriber.subscribe(topics[1], utility="log:100", max_latency_seconds=0.5, qos=1)
            await until(
                lambda: (
                    subscriber.assignment is not None and set(subscriber.assignment.classes) == set(topics)
                )
            )
            assert subscriber.assignment is not None
            received: list[Event] = []

            async def publish(start: int) -> None:
                for number in range(start, start + 40):
                    await publisher.publish(topics[number % 4], b"%d" % number, qos=1)
                received.extend([event for _ in range(40) if (event := await subscriber.next(30))])

            await publish(0)
            await asyncio.to_thread(coordinator.kill)
            await publish(40)
            await until(lambda: subscriber.problem)
            await asyncio.to_thread(coordinator.start)
            await until(lambda: not subscriber.problem and not publisher.problem)
            await publish(80)
            assert sorted(int(event.payload) for event in received) == list(range(120))

    with exchange(tmp_path, access=False) as coordinator:
        asyncio.run(scene(coordinator))


def test_a_token_opens_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    async def scene(coordinator: CoordinatorProcess, reader: str, writer: str) -> None:
        with pytest.raises(CoordinatorError, match="token"):
            await Subscriber(coordinator.url, name="stranger").open()
        async with (
            Subscriber(coordinator.url, name="ff-7", token=reader, settings=QUICK) as subscriber,
            Publisher(coordinator.url, name="sensors", token=writer, settings=QUICK) as publisher,
        ):
            with pytest.raises(CoordinatorError) as refusal:
                await subscriber.subscribe("secret/1")
            assert refusal.value.status == 403
            await subscriber.subscribe("open/#", utility="log:2", qos=1)
            with pytest.raises(RefusedError):
                await publisher.publish("secret/1", b"", qos=1)
            await publisher.publish("open/1", b"allowed", qos=1)
            event = await subscriber.next(30)
            assert event is not None
            assert event.payload == b"allowed"
            with pytest.raises(RefusedError):
                # Not even with the client id that the coordinator gave.
                await subscriber.connection.publish("open/1", b"", qos=1)

    with exchange(tmp_path, access=True) as coordinator:
        database = database_in(tmp_path)
        reader = make_token(database, "subscriber", subscribe=["open/#"])
        writer = make_token(database, "publisher", publish=["open/#"])
        asyncio.run(scene(coordinator, reader, writer))
