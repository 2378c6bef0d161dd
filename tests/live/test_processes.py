"""Processes of an exchange: what becomes of a log that grows, and of signals to one that has just ended."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from triagemq.live.rig import Child
from triagemq.programs import send_signal


def test_a_long_log_is_moved_aside_while_its_process_goes_on_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "most_log_bytes", 100)
    log = tmp_path / "gateway.log"
    child = Child("gateway", "none", [], log=log)
    with log.open("ab") as writing:
        writing.write(b"old" * 50)
        writing.flush()
        child.bound_log()
        writing.write(b"new")
        writing.flush()
        child.bound_log()
    before = tmp_path / "gateway.log.1"
    assert (before.read_bytes(), log.read_bytes()) == (b"old" * 50, b"new")
    assert os.stat(before).st_mode & 0o077 == 0


def test_a_process_that_has_just_ended_keeps_its_exit_code_when_it_is_signalled() -> None:
    async def run() -> list[int]:
        codes = []
        for _ in range(20):
            process = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
            # The event loop stands still: it has not heard of the end yet.
            time.sleep(0.01)
            send_signal(process, signal.SIGTERM)
            codes.append(await process.wait())
        return codes

    # A process that has not ended by then is ended by the signal.
    assert set(asyncio.run(run())) <= {7, -signal.SIGTERM}
