"""The history of earlier runs, as the pipeline's tables have it."""

from __future__ import annotations

from triagemq.page.frame import render


def test_an_earlier_run_is_shown_with_its_figures() -> None:
    run = {"started": "2026-11-17T18:43:11.117+00:00", "scenario": "Fire", "utility_rate": 0.887}
    page = render("history_past.html", past=[run])
    assert "2026-11-17 18:43:11" in page
    assert "88.7 %" in page
