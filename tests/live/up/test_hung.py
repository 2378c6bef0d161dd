"""A process that hangs is as good as none: it is noticed, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.live.up.exchanging import exchange, until

from triagemq.live.up import exchange as module


def test_a_gateway_that_hangs_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HUNG_SECONDS", 2.0)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.1)

    async def run() -> None:
        async with exchange(tmp_path) as running:
            before = running.pids["gateway"]
            os.kill(before, signal.SIGSTOP)
            await until(lambda: running.pids.get("gateway", before) != before)
            await until(lambda: running.link.connected)
            assert (await running.link.measure()).broker_connected is not None
            assert running.restarts["gateway"] == 1

    asyncio.run(run())
