"""What the page shows of earlier runs: their figures, and the load of ports from their beginning to their end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from triagemq.page.pages.history import past_ports
from triagemq.page.rendering import render


class _Tables:
    """Finished tables of two runs, of which the second was added last."""

    rows = SimpleNamespace(get=lambda name: 2_000)
    manifest = SimpleNamespace(runs={"first": None, "second": None})

    def table(self, name: str, *, run_id: str, columns: list[str]) -> pa.Table:
        assert (name, run_id) == ("port_load", "second")
        count = 1_000
        return pa.table(
            {
                "port": ["radio"] * count,
                "sampled_ns": [10**18 + 200_000_000 * sample for sample in range(count)],
                "load": [0.5 if sample < count / 2 else 1.0 for sample in range(count)],
                "backlog_packets": list(range(count)),
            }
        ).select(columns)


def test_the_load_of_a_port_in_the_last_run_is_told_in_few_points() -> None:
    (found,) = past_ports(_Tables())  # type: ignore[arg-type]
    assert (found.port, found.most_waiting) == ("radio", 999)
    assert found.last_ns - found.first_ns == 999 * 200_000_000
    assert len(found.load) == 240
    assert (found.load[0], found.load[-1]) == (0.5, 1.0)
    assert sum(value or 0.0 for value in found.load) / 240 == pytest.approx(0.75, abs=0.01)
    run: dict[str, Any] = {
        "started": "2026-11-17T18:43:11.117+00:00",
        "scenario": "Fire",
        "utility_rate": 0.887,
    }
    page = render("history_past.html", past=[run], ports=[found])
    assert "2026-11-17 18:43:11" in page
    assert "88.7 %" in page
    assert "at most 999 packets" in page
