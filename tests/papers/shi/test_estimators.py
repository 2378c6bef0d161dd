"""Shi et al. in simulation: what was seen of queues, and how far estimators are from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triagemq.papers import reproduce, write_files
from triagemq.papers.shi.network import BUFFER_PACKETS, PACKET_BYTES, WIDTHS_BPS, observe, shi_scenario
from triagemq.scenario import ArrivalProcess


def test_a_full_queue_takes_what_its_buffer_takes_at_its_width() -> None:
    runs = observe(shi_scenario([20_000, 1_000, 100], ArrivalProcess.POISSON), seconds=3.0, seed=1)
    full = BUFFER_PACKETS * PACKET_BYTES * 8 / WIDTHS_BPS[0]
    assert runs[0].delay_seconds[-1] == pytest.approx(full, rel=0.01)
    assert runs[0].lost == pytest.approx(1 - WIDTHS_BPS[0] / 8 / PACKET_BYTES / 20_000, abs=0.03)
    assert runs[1].lost == runs[2].lost == 0
    assert runs[2].delay_seconds[-1] < 0.002


def test_estimators_beside_the_truth_hold_and_leave_files(tmp_path: Path) -> None:
    made = reproduce("shi", "5", seeds=1, seconds=4.0)
    assert made.holds, made.findings.claims
    cells = made.findings.figures["error_seconds"]
    assert len(cells) == 4 * 4 * 3
    json.dumps(made.as_json(), allow_nan=False)
    assert write_files(tmp_path, made.name, made.title, made.findings).png.stat().st_size > 1_000
