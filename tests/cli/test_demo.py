"""`triage demo`: terminal, report, tables and JSON say the same of the same two runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_commands import TRIAGE
from tests.live.up.estimating import estimates_the_building_fire

from triagemq.cli.demo import too_busy
from triagemq.cli.terminal import duration, percent
from triagemq.pipeline import Tables
from triagemq.pipeline.report import formatting
from triagemq.trace import Trace, runs

NAMES = ("with triage", "without triage")
SAME_EVERYWHERE = {
    "count": "count",
    "delivered": "delivered",
    "success_rate": "success_rate",
    "mean_latency_seconds": "mean_latency_seconds",
    "p50": "p50_seconds",
    "p95": "p95_seconds",
    "p99": "p99_seconds",
    "max": "max_seconds",
}
"""Columns of class_performance, and what JSON calls them."""


def demo(*arguments: str, folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}
    command = [TRIAGE, "demo", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds
    )


@pytest.mark.timeout(600)
def test_terminal_report_tables_and_json_of_a_demo_agree_in_every_figure(tmp_path: Path) -> None:
    done = demo("--for", "4", folder=tmp_path, seconds=590)
    assert done.returncode == 0, done.stderr
    [made] = (tmp_path / "out/demo").iterdir()
    figures = json.loads((made / "figures.json").read_text())
    assert figures["rows_set_aside"] == 0
    summaries, classes = _tables(made)
    for name in NAMES:
        _are_the_same(figures["runs"][name], summaries[name], classes[name])
    _terminal_shows(done.stdout, figures)
    _report_shows((made / "report.html").read_text(encoding="utf-8"), summaries, classes)
    for name in NAMES:
        estimates_the_building_fire(Tables(made / "tables"), summaries[name]["run_id"])


def test_a_demo_on_a_busy_machine_says_what_it_lacked() -> None:
    def run(rate: float) -> dict[str, Any]:
        return {"utility": {"rate": rate}, "forecast": {"utility": {"rate": 0.89}}}

    words = too_busy(run(0.62), load=13.0, processors=2)
    assert words is not None
    assert "load of this machine is 13.0 on 2 processors" in words
    assert too_busy(run(0.88), load=13.0, processors=2) is None
    assert too_busy(run(0.62), load=0.5, processors=2) is None


def _tables(made: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """By the name of the run: its row of run_summary, and its rows of class_performance in their order."""
    tables = Tables(made / "tables")
    ids = {name: Trace.open(runs(made / name.split()[0] / "trace").complete[0]).run_id for name in NAMES}
    summaries = {row["run_id"]: row for row in tables.records("run_summary")}
    rows = sorted(tables.records("class_performance"), key=lambda row: row["priority_class"])
    return (
        {name: summaries[run_id] for name, run_id in ids.items()},
        {name: [row for row in rows if row["run_id"] == run_id] for name, run_id in ids.items()},
    )


def _are_the_same(told: dict[str, Any], summary: dict[str, Any], classes: list[dict[str, Any]]) -> None:
    assert told["measured_from_ns"] == summary["measured_from_ns"]
    for key, column in {
        "publications": "publications",
        "measured_publications": "measured_publications",
        "copies": "count",
        "deliveries": "delivered",
    }.items():
        assert told[key] == summary[column], key
    utility = told["utility"]
    for key, column in {
        "achieved": "utility",
        "maximum": "maximum_utility",
        "rate": "utility_rate",
    }.items():
        assert utility[key] == pytest.approx(summary[column], rel=1e-9), key
    assert [row["priority_class"] for row in told["classes"]] == [row["priority_class"] for row in classes]
    assert len(classes) > 1
    for one, other in zip(told["classes"], classes, strict=True):
        for column, key in SAME_EVERYWHERE.items():
            assert one[key] == pytest.approx(other[column], rel=1e-12), (one["priority_class"], key)
        assert one["p50_seconds"] <= one["p95_seconds"] <= one["p99_seconds"] <= one["max_seconds"]


def _terminal_shows(text: str, figures: dict[str, Any]) -> None:
    for port in figures["ports"]:
        assert (
            f"Port {port['port']} is offered {percent(port['rho_offered'])} of what it can carry; "
            f"triage plans {percent(port['rho_planned'])}."
        ) in text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    expected = []
    for levels in zip(*(figures["runs"][name]["classes"] for name in NAMES), strict=True):
        cells = [str(levels[0]["priority_class"])]
        for name, row in zip(NAMES, levels, strict=True):
            [forecast] = [
                each
                for each in figures["runs"][name]["forecast"]["classes"]
                if each["priority_class"] == row["priority_class"]
            ]
            cells += [
                f"{show(row[key])} ({show(forecast[key])})"
                for key, show in {"success_rate": percent, "mean_latency_seconds": duration}.items()
            ]
        expected.append(cells)
    assert rows == expected
    for name in NAMES:
        told = figures["runs"][name]
        assert (
            f"{name}: {percent(told['utility']['rate'])} of the maximum utility "
            f"(forecast {percent(told['forecast']['utility']['rate'])}), {told['deliveries']:,} deliveries"
        ) in text
    assert figures["explanation"]["text"].splitlines()[0] in text
    again = figures["planned_again"]
    offered = " and ".join(percent(port["rho_offered"]) for port in again["ports"])
    assert f"{again['scenario']}: ports are offered {offered} of what they can carry" in text
    assert f"worth {percent(again['utility']['rate'])} of the maximum utility" in text
    # Every step says what it does, and why.
    assert [line[0] for line in text.splitlines() if re.match(r"\d\. .+[,:] .+\.$", line)] == list("123456")
    assert f"Report:  {figures['report']}" in text


def _report_shows(page: str, summaries: dict[str, Any], classes: dict[str, list[dict[str, Any]]]) -> None:
    cards = re.findall(r'<div class="card".*?</dl></div>', page, re.DOTALL)
    lines = [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", line)]
        for line in re.findall(r"<tr>\s*(<td.*?)</tr>", page, re.DOTALL)
    ]
    for name, card in zip(NAMES, cards, strict=True):
        summary = summaries[name]
        shown = [
            re.sub("<[^>]*>", "", one) for one in re.findall(r"<(?:h3|span|dd)\b.*?</(?:h3|span|dd)>", card)
        ]
        assert shown == [
            name,
            formatting.percent(summary["utility_rate"]),
            "of the maximum utility",
            formatting.percent(summary["success_rate"]),
            formatting.duration(summary["mean_latency_seconds"]),
            formatting.duration(summary["max"]),
            formatting.count(summary["publications"]),
        ]
        [row] = [line[4:] for line in lines if line[0] == name and "gateway" in line]
        assert row == [
            formatting.duration(summary["observed_seconds"]),
            formatting.count(summary["topics"]),
            formatting.size(summary["published_bytes"]),
            formatting.count(summary["count"]),
            formatting.count(summary["delivered"]),
            formatting.count(summary["late"]),
            f"{formatting.number(summary['utility'])} of {formatting.number(summary['maximum_utility'])}",
            "0",
        ]
        # By its length also a line of "Beside the forecast", which has a subscriber here.
        levels = {str(each["priority_class"]) for each in classes[name]}
        shown_classes = [
            line[1:] for line in lines if line[0] == name and line[1] in levels and len(line) == 13
        ]
        assert shown_classes == [
            [
                str(each["priority_class"]),
                formatting.count(each["count"]),
                formatting.count(each["delivered"]),
                formatting.count(each["late"]),
                formatting.percent(each["success_rate"]),
                formatting.percent(each["dropped_by_policy"] / each["count"]),
                formatting.percent(each["dropped_by_buffer"] / each["count"]),
                *(
                    formatting.duration(each[key])
                    for key in ("mean_latency_seconds", "p50", "p95", "p99", "max")
                ),
            ]
            for each in classes[name]
        ]
    drawn = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page)
    assert drawn is not None
    bars = {trace["name"]: trace["y"] for trace in json.loads(drawn[1])[0]["data"]}
    assert bars == {
        name: pytest.approx([each["success_rate"] for each in classes[name]], rel=1e-4) for name in NAMES
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_no_row_of_a_demo_is_set_aside(tmp_path: Path, seed: int) -> None:
    done = demo("--for", "20", "--seed", str(seed), "--json", folder=tmp_path, seconds=890)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["rows_set_aside"] == 0
    assert figures == json.loads((tmp_path / figures["tables"]).parent.joinpath("figures.json").read_text())
