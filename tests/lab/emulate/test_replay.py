"""`triage emulate --replay`: publishers send exactly what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.live.machine import SMALL, TRIAGE, machine

from triagemq.trace import Trace

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")


@pytest.mark.slow
def test_what_was_simulated_is_sent_as_packets_and_what_was_sent_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    with machine() as alone:
        done = alone.run(
            *(TRIAGE, "simulate", "small.yaml", "--for", "4", "--trace", "recorded"), folder=tmp_path
        )
        assert done.returncode == 0, done.stderr
        done = alone.run(
            *(TRIAGE, "emulate", "small.yaml", "--replay", "recorded", "--trace", "real", "--json"),
            folder=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        again = alone.run(TRIAGE, "simulate", "small.yaml", "--replay", "real", "--json", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    recorded, real = (
        Trace.open(tmp_path / name).table("publications").sort_by("published_ns").to_pydict()
        for name in ("recorded", "real")
    )
    assert real["topic_id"] == recorded["topic_id"]
    assert real["size_bytes"] == recorded["size_bytes"]
    assert json.loads(done.stdout)["publications"] == len(recorded["topic_id"])
    assert json.loads(again.stdout)["publications"] == len(recorded["topic_id"])
    # As long after the first as then, but for what a busy machine takes.
    apart = np.diff(np.array([recorded["published_ns"], real["published_ns"]], dtype=np.int64), axis=0)
    assert np.ptp(apart) < 2e9
