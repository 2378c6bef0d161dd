"""Killed, interrupted or left to end by itself: nothing of a run stays on the machine."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.machine import SMALL, TRIAGE, Machine, Running, machine, until

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")


@pytest.fixture
def alone() -> Iterator[Machine]:
    with machine() as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def emulate(alone: Machine, file: Path, dataplane: str, *options: str) -> Running:
    return alone.start(
        TRIAGE, "emulate", str(file), "--dataplane", dataplane, "--json", *options, folder=file.parent
    )


def kill_and_restore(alone: Machine, file: Path, dataplane: str, after_seconds: float) -> None:
    before = alone.seen()
    running = emulate(alone, file, dataplane, "--for", "4")
    until(lambda: alone.journal() or running.outer.poll() is not None)
    time.sleep(after_seconds)
    running.kill()
    restored = alone.run(TRIAGE, "network", "restore", folder=file.parent)
    assert restored.returncode == 0, restored.stderr
    # Those that are no part of the journal end with their parent, a moment later.
    until(lambda: not alone.seen()["processes"])
    assert alone.seen() == before
    again = alone.run(TRIAGE, "network", "restore", folder=file.parent)
    assert again.stdout == "nothing was left behind\n"


@pytest.mark.parametrize("dataplane", ["linux", "openflow"])
def test_kill_9_then_restore_leaves_nothing(alone: Machine, file: Path, dataplane: str) -> None:
    kill_and_restore(alone, file, dataplane, random.uniform(0, 5))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("dataplane", ["linux", "openflow"])
def test_kill_9_at_ten_random_moments_then_restore_leaves_nothing(
    alone: Machine, file: Path, dataplane: str, number: int
) -> None:
    kill_and_restore(alone, file, dataplane, random.uniform(0, 12))


def test_ctrl_c_while_the_network_is_built_leaves_nothing(alone: Machine, file: Path) -> None:
    before = alone.seen()
    running = emulate(alone, file, "openflow")
    until(lambda: alone.journal() or running.outer.poll() is not None)
    time.sleep(random.uniform(0, 1))
    running.signal(signal.SIGINT)
    running.signal(signal.SIGINT)
    done = running.finish()
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "triage: interrupted; nothing was left behind"
    assert "Traceback" not in done.stderr
    assert alone.seen() == before


def test_ctrl_c_during_the_run_and_again_while_it_is_taken_down_gives_figures_and_leaves_nothing(
    alone: Machine, file: Path
) -> None:
    before = alone.seen()
    running = emulate(alone, file, "linux", "--for", "600")
    facts = running.ready()
    receipts = Path(facts["state"], "receipts")
    until(lambda: receipts.exists() and receipts.stat().st_size)
    for _ in range(3):
        running.signal(signal.SIGINT)
        time.sleep(random.uniform(0, 0.5))
    done = running.finish()
    assert done.returncode == 0, done.stderr
    assert '"classes"' in done.stdout
    assert alone.seen() == before


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_ctrl_c_at_any_moment_leaves_nothing(alone: Machine, file: Path, number: int) -> None:
    before = alone.seen()
    running = emulate(alone, file, random.choice(["linux", "openflow", "embedded"]), "--for", "3")
    until(lambda: alone.journal() or running.outer.poll() is not None)
    time.sleep(random.uniform(0, 12))
    if running.outer.poll() is None:
        running.signal(signal.SIGINT)
    done = running.finish()
    assert done.returncode in (0, 130), done.stderr
    assert "Traceback" not in done.stderr
    assert alone.seen() == before
