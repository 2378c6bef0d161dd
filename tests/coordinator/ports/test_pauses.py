"""What a real gateway counts while it, or its broker, is killed or stands still, is no change of any rate."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.coordinator.managed import ManagedProcess
from tests.gateway.real import Mosquitto, Publisher, SnClient, ended

from triagemq.broker.process import find_mosquitto
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import ControlError, Measured
from triagemq.coordinator.gateways.handle import TopicIncrements
from triagemq.coordinator.rates import DeclaredRate, RateWatch

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")

RATE, SIZE, WINDOW = 40.0, 50, 0.2
BEFORE_SECONDS, AWAY_SECONDS, AFTER_SECONDS = 1.0, 1.5, 3.0


class Clock(threading.Thread):
    """Publishes at QoS 1 to the broker, as regularly as the machine lets it."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__(daemon=True)
        self.publisher, self.published, self.is_over = publisher, 0, threading.Event()

    def run(self) -> None:
        begun = time.monotonic()
        while not self.is_over.wait(0.005):
            while self.published < RATE * (time.monotonic() - begun):
                self.publisher.publish("steady", b"x" * SIZE, 1)
                self.published += 1


def warmed_up() -> tuple[RateWatch, float]:
    """A watch that has counted the topic for half a minute, and its time."""
    watch = RateWatch()
    watch.declare({"steady": DeclaredRate(RATE, float(SIZE))})
    windows, count = round(30.0 / WINDOW), round(RATE * WINDOW)
    for window in range(windows + 1):
        assert watch.observe(window * WINDOW, {"steady": (count, SIZE * count)}) == ()
    return watch, windows * WINDOW


async def measured(path: Path, what_happens: Callable[[], None]) -> list[Measured]:
    """As a coordinator measures, five times a second; something happens meanwhile, in a thread."""
    link = GatewayLink(path)
    link.start()
    found: list[Measured] = []
    happening = asyncio.create_task(asyncio.to_thread(what_happens))
    try:
        until = None
        while until is None or time.monotonic() < until:
            try:
                mark = found[-1].mark if found else ""
                found.append(await link.measure(flows=False, after=mark))
            except ControlError:
                pass
            if until is None and happening.done():
                until = time.monotonic() + AFTER_SECONDS
            await asyncio.sleep(WINDOW)
    finally:
        await link.close()
        await happening
    return found


@pytest.mark.parametrize("what", ["gateway is killed", "gateway stands still", "broker stands still"])
def test_a_backlog_is_no_rate(tmp_path: Path, what: str) -> None:
    broker = Mosquitto(tmp_path / "broker")
    gateway = ManagedProcess(tmp_path / "gateway", broker.url)
    publisher = Publisher(broker.port)
    client = SnClient(gateway.port, "listener").connect()
    with ended(client, publisher, gateway, broker):
        client.subscribe("steady", 1)
        clock = Clock(publisher)

        def happens() -> None:
            time.sleep(BEFORE_SECONDS)
            if what == "gateway is killed":
                gateway.kill()
                time.sleep(AWAY_SECONDS)
                gateway.start()
                return
            pid = broker.pid if what == "broker stands still" else gateway.child.process.pid
            os.kill(pid, signal.SIGSTOP)
            time.sleep(AWAY_SECONDS)
            os.kill(pid, signal.SIGCONT)

        clock.start()
        series = asyncio.run(measured(gateway.socket, happens))
        clock.is_over.set()
        clock.join()
        first = series[0]
        watch, now = warmed_up()
        topics, rates, counted = TopicIncrements(), [RATE], 0
        for each in series:
            caught_up = each.broker_since_ns is not None
            topics.add(
                "gateway",
                each.epoch,
                each.at_ns,
                each.topics,
                () if each is first else each.begun,
                caught_up=caught_up,
            )
            new = topics.take()
            counted += new.get("steady", (0, 0))[0]
            news = watch.observe(now + (each.at_ns - first.at_ns) / 1e9, new, complete=caught_up)
            rates += [change.after for change in news]
        assert rates == [RATE]
        assert (len({each.epoch for each in series}) == 2) == (what == "gateway is killed")
        if what == "broker stands still":
            assert any(each.broker_since_ns is None for each in series)
        lasted = (series[-1].at_ns - first.at_ns) / 1e9
        assert counted > 0.85 * RATE * lasted, "what was published in the pause has come"
