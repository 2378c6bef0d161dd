"""Figures per class: what is not known is not 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from triagemq.client.events import Event, ReceivedCounts
from triagemq.coordinator.loop.figures import Live, Received, class_figures


def _figures(*latencies: float | None) -> dict[str, Any]:
    counts, live = ReceivedCounts(), Live()
    for latency in latencies:
        stamp = None if latency is None else 1_000_000_000
        counts.count(Event("a", b"", stamp, 1_000_000_000 + round((latency or 0.0) * 1e9)))
    reports = {topic: Received(**figures) for topic, figures in counts.report()["received"].items()}
    live.received(SimpleNamespace(classes={"a": 0}), reports)  # type: ignore[arg-type]
    (row,) = class_figures({}, 1.0, live.total, {})
    return row


def test_the_latency_of_events_without_a_time_stamp_is_unknown() -> None:
    row = _figures(None, None)
    assert row["received_per_second"] == 2
    assert row["mean_latency_seconds"] is row["max_latency_seconds"] is row["p95_seconds"] is None


def test_events_without_a_time_stamp_do_not_make_the_others_look_faster() -> None:
    row = _figures(0.4, None, None, 0.2)
    assert row["received_per_second"] == 4
    assert row["mean_latency_seconds"] == pytest.approx(0.3)
    assert row["max_latency_seconds"] == pytest.approx(0.4)
