"""kill -9 of each process in turn, under load: all comes back, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.client.loopback import QUICK
from tests.live.up.exchanging import (
    CAMPUS,
    CAMPUS_SITES,
    TWO_PORTS,
    decisions,
    exchange,
    rest,
    status_of,
    until,
)

from triagemq.channel.messages import ControlError
from triagemq.client import Publisher, Subscriber
from triagemq.live.up.exchange import Exchange

PROCESSES = ("broker", "gateway", "coordinator", "publishers", "subscribers")
TASKS, PAUSE_SECONDS = 20, 0.1
AUTOSAVE_SECONDS = 60.0
"""After so long Mosquitto writes a snapshot by itself."""


class Load:
    """A steady publisher at QoS 1 and what a subscriber on the wire gets of it."""

    def __init__(self, publisher: Publisher, received: set[bytes]) -> None:
        self.publisher = publisher
        self.acknowledged: set[bytes] = set()
        self.received = received
        self._number = 0
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._publish(task / TASKS)) for task in range(TASKS)]

    async def _publish(self, delay: float) -> None:
        await asyncio.sleep(delay * PAUSE_SECONDS)
        while not self._stop.is_set():
            payload = b"%d" % self._number
            self._number += 1
            await self.publisher.publish(f"load/{self._number % 3}", payload, qos=1)
            self.acknowledged.add(payload)
            await asyncio.sleep(PAUSE_SECONDS)

    async def flowed(self) -> float:
        """Until an event that is published from now on has come through; the seconds that took."""
        first = self._number
        return await until(
            lambda: any(int(payload) >= first for payload in self.acknowledged & self.received)
        )

    async def __aenter__(self) -> Load:
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        """Let the last be acknowledged, unless something went wrong."""
        self._stop.set()
        for task in self._tasks if error is not None else ():
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=error is not None)


async def _counted(running: Exchange, topic: str) -> int:
    try:
        return (await running.link.measure(flows=False)).topics.get(topic, (0, 0))[0]
    except ControlError:
        return 0


async def _is_well(running: Exchange) -> bool:
    if await status_of(running.rest, "/v1/health") != 200:
        return False
    health = await rest(running.rest, "/v1/health")
    return bool(health["status"] == "ok" and health["subscribers"] == 3 and health["publishers"] == 2)


async def _endpoints(running: Exchange) -> dict[str, tuple[str, int]]:
    return {client.client_id: client.endpoint for client in (await running.link.sessions()).sessions}


async def _kill(running: Exchange, name: str, load: Load) -> float:
    """Kill it; the seconds until what it does is done again."""
    before, pid = running.restarts[name], running.pids[name]
    sessions = await _endpoints(running)
    os.kill(pid, signal.SIGKILL)

    async def recovered() -> bool:
        if running.restarts[name] == before or running.pids.get(name) in (None, pid):
            return False
        return await _is_well(running)

    seconds = await until(recovered)
    if name in ("broker", "gateway"):
        seconds += await load.flowed()
    if name == "publishers":
        count = await _counted(running, "alarm")

        async def publishes() -> bool:
            return await _counted(running, "alarm") > count

        seconds += await until(publishes)
    if name == "subscribers":

        async def listen_elsewhere() -> bool:
            try:
                found = await _endpoints(running)
            except ControlError:
                return False
            return all(found.get(crew, sessions[crew]) != sessions[crew] for crew in ("crew-1~0", "crew-2~0"))

        seconds += await until(listen_elsewhere)
    return seconds


async def _intent(running: Exchange) -> Any:
    found = await rest(running.rest, "/v1/subscribers/observer")
    return {key: found[key] for key in ("name", "subscriptions", "port")}


async def _scene(directory: Path, rounds: int, broker: str | None = None) -> None:
    async with exchange(directory, scenario=TWO_PORTS, broker=broker) as running:
        await running.start_clients()
        received: set[bytes] = set()
        async with (
            Publisher(running.rest, name="steady", keep_session=True, settings=QUICK) as publisher,
            Subscriber(
                running.rest,
                name="observer",
                port="wire",
                keep_session=True,
                on_event=lambda event: received.add(event.payload),
                settings=QUICK,
            ) as observer,
        ):
            await observer.subscribe("load/+", utility="log:5", qos=1)
            async with Load(publisher, received) as load:
                await until(lambda: _is_well(running))
                await load.flowed()
                for number in range(rounds):
                    for name in PROCESSES:
                        await _kill_and_compare(running, name, load, number)
            assert len(load.acknowledged) > 100
            await until(lambda: load.acknowledged <= received)
            assert observer.overflowed == 0


async def _kill_and_compare(running: Exchange, name: str, load: Load, number: int) -> None:
    intent, decided = await _intent(running), await decisions(running.rest)
    seconds = await _kill(running, name, load)
    print(f"round {number}: {name} recovered in {seconds:.1f} s")
    assert await _intent(running) == intent
    assert (await decisions(running.rest))[: len(decided)] == decided


def test_each_process_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    asyncio.run(_scene(tmp_path, rounds=1))


def test_the_brokers_of_all_gateways_store_a_subscription_that_a_client_of_one_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Mosquitto's regular snapshots are far apart, too, as on a busy disk."""
    monkeypatch.setattr("triagemq.broker.process._SAVE_EVERY_SECONDS", (600.0, 600.0))

    async def scene() -> None:
        async with exchange(tmp_path, scenario=CAMPUS, **CAMPUS_SITES) as running:
            await until(lambda: status_is(running, 200))
            databases = list(tmp_path.rglob("mosquitto.db"))
            assert len(databases) == 3
            async with Subscriber(running.rest, name="late", settings=QUICK) as subscriber:
                await subscriber.subscribe("durable/subscription", qos=1)
                await until(
                    lambda: all(b"durable/subscription" in database.read_bytes() for database in databases),
                    seconds=AUTOSAVE_SECONDS / 2,
                )

    asyncio.run(scene())


async def status_is(running: Exchange, status: int) -> bool:
    return await status_of(running.rest, "/v1/health") == status


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_rounds_of_kills(tmp_path: Path) -> None:
    asyncio.run(_scene(tmp_path, rounds=10))
