"""A publisher that is asked to slow down does, and what its subscriber waits for falls: all of it real processes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.gateway.real import Child
from tests.live.up.exchanging import LONG_SECONDS, TRIAGE

from triagemq.client import Subscriber
from triagemq.live.up.exchange import Exchange, ExchangeOptions
from triagemq.trace import Trace, runs

REQUIRED_SECONDS = 0.5
RATE, SIZE_BYTES = 120.0, 500

# 549 bytes 120 times a second are 527 kbit/s: the port has 400, whatever control does.
NETWORK = """
name: narrow
overhead_bytes: 49
planning: {priority_classes: 2, flows_per_subscriber: 2}
brokers: {b: }
switches: {s: }
ports:
  radio: {switch: s, bandwidth_bps: 4e5, buffer_packets: 500, discipline: queue_rates, queue_rates_bps: [3e5, 1e5],
          floors_bps: [1e5, 4e4]}
publishers: {nobody: {publishes: {silence: {rate_per_second: 0.01, size_bytes: 10}}}}
subscribers: {nobody-else: {port: radio, subscribes: {silence: "log:1"}}}
"""


@pytest.mark.slow
def test_a_publisher_asked_to_slow_down_does_and_the_delay_falls(tmp_path: Path) -> None:
    (tmp_path / "narrow.yaml").write_text(NETWORK)
    came: list[tuple[float, float]] = []

    async def scene() -> None:
        options = ExchangeOptions(
            state=tmp_path / "state",
            scenario=tmp_path / "narrow.yaml",
            planner={"drops": "none"},
            control="backlog",
        )
        async with (
            Exchange(options) as running,
            Subscriber(
                running.rest,
                name="crew",
                on_event=lambda event: came.append(
                    (time.monotonic(), 1e-9 * (event.received_ns - (event.published_ns or 0)))
                ),
            ) as subscriber,
        ):
            await subscriber.subscribe("pump/pressure", max_latency_seconds=REQUIRED_SECONDS)
            pub = ["pub", "--coordinator", running.rest, "--topic", "pump/pressure", "--stamp"]
            publisher = Child(
                [*TRIAGE, *pub, "--rate", f"{RATE:g}", "--size", str(SIZE_BYTES)],
                tmp_path / "pub.log",
            )
            try:
                await until(lambda: mean_latency(came) > 2 * REQUIRED_SECONDS)
                await until(lambda: "slower, on request: pump/pressure" in (tmp_path / "pub.log").read_text())
                await until(lambda: mean_latency(came) < REQUIRED_SECONDS)
            finally:
                publisher.end()

    asyncio.run(scene())
    (run,) = runs(tmp_path / "state" / "trace").complete
    kinds = {row["kind"] for row in Trace.open(run).table("decisions").to_pylist()}
    assert {"queue_rates", "slow_down"} <= kinds


def mean_latency(came: list[tuple[float, float]]) -> float:
    """Over the last second; 0 while nothing comes."""
    latest = [seconds for at, seconds in came if at > time.monotonic() - 1.0]
    return sum(latest) / max(len(latest), 1)


async def until(true: object) -> None:
    assert callable(true)
    async with asyncio.timeout(LONG_SECONDS):
        while not true():
            await asyncio.sleep(0.1)
