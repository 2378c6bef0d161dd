"""deploy/: a dashboard as Grafana imports it, and alerts as Prometheus does, of metrics that there are."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import yaml
from tests.coordinator.coordinating import publisher, running, subscriber

FILE = Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json"
ALERTS = FILE.with_name("prometheus-alerts.yaml")


def _expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def test_it_is_a_dashboard_with_panels_that_do_not_overlap() -> None:
    board = json.loads(FILE.read_text(encoding="utf-8"))
    assert board["schemaVersion"] >= 36
    assert board["uid"]
    assert board["title"] == "TriageMQ"
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("timeseries", "stat", "bargauge", "row")
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells
        cells |= own
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${source}"
    assert [each["name"] for each in board["templating"]["list"]] == ["source"]


def test_every_metric_it_names_exists_and_so_does_every_label(tmp_path: Path) -> None:
    async def scraped() -> str:
        async with running(tmp_path) as here:
            await here.client.post("/v1/publishers", json=publisher("p", "a"))
            await here.client.post("/v1/subscribers", json=subscriber("s", "a"))
            await here.settled()
            return (await here.client.get("/metrics")).text

    text = asyncio.run(scraped())
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    named = set()
    [alerts] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    expressions = _expressions(json.loads(FILE.read_text(encoding="utf-8")))
    for expression in [*expressions, *(rule["expr"] for rule in alerts["rules"])]:
        named |= {
            re.sub(r"_(bucket|sum|count)$", "", name) if name not in known else name
            for name in re.findall(r"triage_\w+", expression)
        }
    assert named
    assert named <= known
