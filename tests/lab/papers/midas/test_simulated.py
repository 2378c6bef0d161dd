"""MIDAS's three topics in simulation: best effort loses and is late, managed keeps what was promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triagemq.lab.papers import Effort, reproduce, write_files
from triagemq.lab.papers.midas.network import BUFFER_FRAMES, MAX_LATENCY_SECONDS, managed

SHORT = {"seeds": 2, "seconds": 1.0}


@pytest.mark.parametrize("figure", ["6", "7", "8"])
def test_every_figure_holds_and_leaves_tables_plots_and_json(figure: str, tmp_path: Path) -> None:
    shares: list[float] = []
    made = reproduce("midas", figure, **SHORT, progress=shares.append)  # type: ignore[arg-type]
    assert made.holds, made.findings.claims
    assert shares[-1] == pytest.approx(1.0)
    assert shares == sorted(shares)
    for table in made.findings.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    for difference in made.findings.differences:
        assert difference.why.count(". ") >= 1, "a difference is explained in two sentences"
    assert json.loads(json.dumps(made.as_json(), allow_nan=False))["effort"] == SHORT
    files = write_files(tmp_path, made.name, made.title, made.findings)
    assert files.png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_best_effort_loses_less_with_a_larger_buffer_and_nothing_with_all_of_the_switch() -> None:
    lost = reproduce("midas", "6", **SHORT).findings.figures["lost_by_buffer"]  # type: ignore[arg-type]
    t2 = [by_topic["T2"] for by_topic in lost.values()]
    assert t2 == sorted(t2, reverse=True)
    assert lost[str(BUFFER_FRAMES)]["T2"] > 0
    assert t2[-1] == 0


def test_a_token_bucket_breaks_the_bound_of_others_when_the_babbling_begins_and_a_window_does_not() -> None:
    effort = Effort(seeds=1, seconds=0.5)
    bucket, window = (
        managed(effort, 0, ("P1", "P2"), limiter, together=True) for limiter in ("bucket", "window")
    )
    assert bucket.worst_seconds[2] > MAX_LATENCY_SECONDS[2] > bucket.bound_seconds[2]
    assert window.worst_seconds[2] <= window.bound_seconds[2]
    assert bucket.lost[2] == window.lost[2] == 0
