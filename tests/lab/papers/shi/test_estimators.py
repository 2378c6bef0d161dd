"""Shi et al. in simulation: what was seen of queues, and how far estimators are from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triagemq.delay.learning.training import MOST_TREES
from triagemq.lab.papers import reproduce, write_files
from triagemq.lab.papers.shi.network import BUFFER_PACKETS, PACKET_BYTES, WIDTHS_BPS, observe, shi_scenario
from triagemq.scenario import ArrivalProcess


def test_a_full_queue_takes_what_its_buffer_takes_at_its_width() -> None:
    runs = observe(shi_scenario([20_000, 1_000, 100], ArrivalProcess.POISSON), seconds=3.0, seed=1)
    full = BUFFER_PACKETS * PACKET_BYTES * 8 / WIDTHS_BPS[0]
    assert runs[0].delay_seconds[-1] == pytest.approx(full, rel=0.01)
    assert runs[0].lost == pytest.approx(1 - WIDTHS_BPS[0] / 8 / PACKET_BYTES / 20_000, abs=0.03)
    assert runs[1].lost == runs[2].lost == 0
    assert runs[2].delay_seconds[-1] < 0.002


def test_what_comes_in_a_window_waits_as_long_as_what_the_queue_held_before_it_takes() -> None:
    scenario = shi_scenario([9_000, 0, 0], ArrivalProcess.PERIODIC)
    run = observe(scenario, seconds=1.2, seed=1)[0]
    assert run.samples.backlog_bytes is not None
    held = run.samples.backlog_bytes[:2] * 8 / WIDTHS_BPS[0]
    # In a fifth of a second a fifth more comes than goes: the queue grows by 40 ms until the next sample.
    assert run.next_delay_seconds[:2] == pytest.approx(held + 0.02, abs=0.001)


def test_learned_is_nearer_than_red_and_idm_on_traffic_it_has_not_seen_and_leaves_files(
    tmp_path: Path,
) -> None:
    made = reproduce("shi", "5", seeds=1, seconds=6.0)
    assert made.holds, made.findings.claims
    cells = made.findings.figures["cells"]
    assert len(cells) == 4 * 2 * 2 * 4 * 3
    assert {cell["traffic"] for cell in cells} == {"pareto", "on_off"}
    json.dumps(made.as_json(), allow_nan=False)
    assert write_files(tmp_path, made.name, made.title, made.findings).png.stat().st_size > 1_000


def test_the_papers_parameters_stop_before_the_last_tree() -> None:
    found = reproduce("shi", "table2", seeds=1, seconds=4.0).findings.figures
    assert set(found) == {"shi-1", "shi-2", "shi-3"}
    assert all(0 < each["trees"] < MOST_TREES and each["error_ns"] > 0 for each in found.values())
