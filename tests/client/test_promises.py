"""Promises as a user has them: `triage pub` declares, `triage sub --guaranteed` is admitted or says what would be."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.loopback import QUICK
from tests.client.test_commands import TRIAGE
from tests.client.test_real_coordinator import CoordinatorProcess, exchange
from tests.coordinator.promising import WARD
from tests.gateway.real import Child, ended

from triagemq.broker.process import find_mosquitto
from triagemq.client import Publisher, Subscriber
from triagemq.intents import PublicationIntent

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    network = tmp_path / "ward.yaml"
    network.write_text(WARD)
    with exchange(tmp_path, access=False, network=str(network)) as running:
        yield running


def test_a_promise_is_told_and_outlives_the_coordinator(coordinator: CoordinatorProcess) -> None:
    async def scene() -> None:
        async with (
            Publisher(coordinator.url, name="pump", settings=QUICK) as publisher,
            Subscriber(coordinator.url, name="nurse", port="monitor", settings=QUICK) as subscriber,
        ):
            await publisher.declare_all(
                [PublicationIntent("dose", min_separation_seconds=0.02, max_size_bytes=500)]
            )
            await subscriber.subscribe("dose", max_latency_seconds=0.03, guaranteed=True)
            promise = await subscriber.promise("dose", 60)
            assert promise is not None
            assert promise.admitted
            assert promise.bound_seconds is not None
            assert promise.bound_seconds < 0.03
            assert await publisher.addresses() == {"dose": promise.address}
            while promise.since_generation is None:  # until the subscriber is listening there
                promise = await subscriber.promise("dose", 60)
                assert promise is not None
            await asyncio.to_thread(coordinator.kill)
            await asyncio.to_thread(coordinator.start)
            assert await subscriber.promise("dose", 60) == promise
            await subscriber.subscribe("dose", max_latency_seconds=0.0001, guaranteed=True)
            refused = await subscriber.promise("dose", 60)
            assert refused is not None
            assert not refused.admitted
            assert refused.offer_seconds is not None

    asyncio.run(scene())


@pytest.mark.slow
def test_commands_say_what_is_promised_or_what_would_be(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    def sub(*arguments: str) -> subprocess.CompletedProcess[str]:
        asked = ("--topic", "pulse", "--guaranteed", "--port", "monitor", "--for", "0", "--max-latency")
        command = [sys.executable, "-c", TRIAGE, "sub", "--coordinator", coordinator.url, *asked, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    publish = ["pub", "--coordinator", coordinator.url, "--name", "ecg", "--topic", "pulse", "--rate", "2"]
    terms = ["--min-separation", "20ms", "--max-size", "1000"]
    publishing = Child([sys.executable, "-c", TRIAGE, *publish, *terms], tmp_path / "pub.log")
    with ended(publishing):
        admitted = sub("20ms")
        assert admitted.returncode == 0, admitted.stderr
        assert "triage: admitted: pulse from ecg within 5.266 ms, 14.73 ms to spare" in admitted.stderr
        refused = sub("1ms")
        assert refused.returncode == 1
        assert "triage: refused: pulse from ecg within 1 ms: the path alone takes" in refused.stderr
        assert "would be admitted" in refused.stderr
