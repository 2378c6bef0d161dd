"""The report: one page that holds everything, loads nothing, and trusts no name."""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from triagemq.errors import OutputError
from triagemq.pipeline.report import write_report
from triagemq.pipeline.report.figures import MOST_POINTS
from triagemq.pipeline.report.write import SHOWN_SUBSCRIPTIONS, SHOWN_TOPICS

SECTIONS = ["summary", "classes", "forecast", "utility", "latency", "ports", "topics", "quarantine"]
VOID = {"meta", "br", "link", "img", "hr", "input"}
HOSTILE = (
    "</script><script>alert('x')</script><img src=http://evil.example/a.png onerror=alert(1)>&amp;\u202e"
)


class Page(HTMLParser):
    """Checks the nesting of tags while it collects what the tests ask about."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self._open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    @functools.cached_property
    def figures(self) -> list[dict[str, Any]]:
        """What is drawn, as the page's own program reads it."""
        found = [json.loads(text) for text in self.scripts if text.startswith("[{")]
        return found[0] if found else []

    @property
    def identifiers(self) -> list[str | None]:
        return [attributes["id"] for tag, attributes in self.tags if tag == "section"]


def promised(level: int) -> dict[str, Any]:
    """A forecast; that of the lower class is approximate."""
    return {
        "forecast_success_rate": 0.89,
        "forecast_mean_latency_seconds": 0.0111,
        "forecast_p95": 0.0456,
        "forecast_p99": 0.0789,
        "forecast_sampled": level,
        "forecast_flag": "finite buffers <b>" if level else None,
        "forecast_latency_error": 0.31 if level else 0.0,
        "forecast_success_error": 0.04 if level else 0.0,
    }


def example(topics: int = 3, samples: int = 50, topic: str = "hall/smoke") -> dict[str, pa.Table]:
    """Two runs of a small situation, in the columns of the pipeline's tables."""
    runs = ("run-a", "run-b")
    summary = [
        {
            "run_id": run,
            "source": f"/traces/{name}",
            "producer": "simulate",
            "started": "2026-01-02T03:04:05.678+00:00",
            "scenario": "building",
            "observed_seconds": 100.0,
            "rows_read": 2000,
            "quarantined": 3,
            "publications": 1000,
            "published_bytes": 123456,
            "topics": topics,
            "count": 2000,
            "delivered": 1500,
            "success_rate": 0.75,
            "mean_latency_seconds": 0.0125,
            "max": 1.5,
            "utility": 60.0,
            "maximum_utility": 80.0,
            "utility_rate": 0.75,
        }
        for run, name in zip(runs, ("without", "with"), strict=True)
    ]
    classes = [
        {
            "run_id": run,
            "priority_class": level,
            "count": 1000,
            "delivered": 900 - 300 * level,
            "dropped_by_policy": 100,
            "dropped_by_buffer": 300 * level,
            "late": 0,
            "success_rate": 0.9 - 0.3 * level,
            "mean_latency_seconds": 0.01 * (level + 1),
            "p50": 0.008,
            "p95": 0.05,
            "p99": 0.2,
            "max": 1.5,
            "bins": [(1400 << 48) + 500, (1500 << 48) + 400 - 300 * level],
            **promised(level),
        }
        for run in runs
        for level in (0, 1)
    ]
    subscriptions = [
        {
            "run_id": run,
            "subscription_id": level,
            "subscriber": f"commander {topic}",
            "topic": topic,
            "priority_class": level,
            "success_rate": 0.9 - 0.3 * level,
            "mean_latency_seconds": 0.01,
            "p95": 0.0432,
            "p99": 0.0654,
            "max_latency_seconds": 0.05 if level == 0 else None,
            "max_latency_share": 0.95 if level == 0 else None,
            "share_within_max_latency": 0.912 if level == 0 else None,
            "utility": 36.0 - 12 * level,
            "maximum_utility": 40.0,
            "forecast_share_within_max_latency": 0.934 if level == 0 else None,
            **promised(level),
        }
        for run in runs
        for level in (0, 1)
    ]
    busiest = [
        {
            "run_id": run,
            "topic_id": number,
            "topic": topic if number == 0 else f"topic-{number}",
            "publications": 1000 - 10 * min(number, 90),
            "rate_per_second": 10 - 0.1 * min(number, 90),
            "peak_rate_per_second": 35.0,
            "bytes_per_second": 400.0,
            "index_of_dispersion": 1.25,
        }
        for run in runs
        for number in range(topics)
    ]
    ports = [
        {
            "run_id": run,
            "port": f"radio {topic}",
            "seconds": sample * 0.2,
            "samples": 1,
            "load": 0.9 + 0.1 * math.sin(sample / 9),
            "offered_load": 1.4,
            "backlog_packets": 120.0,
        }
        for run in runs
        for sample in range(samples)
    ]
    quarantine = [
        {
            "run_id": "run-a",
            "table": "publications",
            "reason": f"negative size {topic}",
            "rows": 3,
            "source": f"/logs/{topic}.csv",
            "line": 7,
            "raw": f"12:00,{topic},-5",
        }
    ]
    tables = {
        "run_summary": summary,
        "class_performance": classes,
        "subscription_performance": subscriptions,
        "topic_summary": busiest,
        "port_summary": ports,
        "quarantine_summary": quarantine,
    }
    return {name: pa.Table.from_pylist(rows) for name, rows in tables.items()}


def written(tmp_path: Path, tables: dict[str, pa.Table], **options: Any) -> Page:
    return Page(write_report(tables, tmp_path / "report.html", title=options.pop("title", "Fire"), **options))


def test_a_full_report_has_every_section_with_its_figures(tmp_path: Path) -> None:
    page = written(tmp_path, example(), notes=["Two runs of one building."])
    assert page.identifiers == SECTIONS
    assert "Two runs of one building." in page.text
    places = [attributes["id"] for tag, attributes in page.tags if attributes.get("class") == "plot"]
    assert places == [f"figure-{number}" for number in range(len(page.figures))]
    # Success, latency, two of utility, all copies, one per run by class, one port, topics.
    assert len(page.figures) == 9
    assert all(figure["data"] for figure in page.figures)


def test_the_numbers_are_those_of_the_tables_with_units(tmp_path: Path) -> None:
    text = written(tmp_path, example()).text
    for words in (
        "75.0 % of the maximum utility",
        "60 of 80",
        "12.5 ms",
        "1.5 s",
        "123 kB",
        "2026-01-02 03:04:05",
        "3 rows in all, < 0.1 % of 4,000 that were read",
        "/logs/hall/smoke.csv:7",
        "35/s",
    ):
        assert words in text, words


def test_the_forecast_stands_beside_every_class_and_subscription_with_how_sure_it_is(tmp_path: Path) -> None:
    text = written(tmp_path, example()).text
    by_class, by_subscription = text.partition("All 4 subscriptions")[::2]
    for words in ("50 ms", "45.6 ms", "200 ms", "78.9 ms", "± 31 %, finite buffers <b>; sampled"):
        assert words in by_class.partition("Beside the forecast")[2], words
    for words in (
        "43.2 ms",
        "45.6 ms",
        "65.4 ms",
        "95.0 % within 50 ms",
        "91.2 %",
        "93.4 %",
        "± 31 %, finite buffers",
    ):
        assert words in by_subscription.partition("Utility captured")[0], words
    assert by_subscription.count("± 31 %") == 2


def test_of_many_subscriptions_the_report_shows_those_that_are_worth_most(tmp_path: Path) -> None:
    tables = example()
    row = tables["subscription_performance"].to_pylist()[0]
    many = [
        row | {"subscription_id": each, "topic": f"t{each}", "maximum_utility": each} for each in range(5000)
    ]
    text = written(tmp_path, tables | {"subscription_performance": pa.Table.from_pylist(many)}).text
    assert f"The {SHOWN_SUBSCRIPTIONS // 2} subscriptions that are worth most, of 5,000" in text
    assert "t4999" in text
    assert "t4000" not in text


def test_success_latency_and_distributions_are_drawn_from_the_tables(tmp_path: Path) -> None:
    success, latency, totals, by_class, curves, *_ = written(tmp_path, example()).figures
    assert [trace["y"] for trace in success["data"]] == [[0.9, 0.6], [0.9, 0.6]]
    assert latency["data"][0]["y"] == [0.008, 0.008]
    assert latency["data"][1]["y"] == [0.05, 0.05]
    assert [trace["x"] for trace in totals["data"][1:]] == [[0.75], [0.75]]
    assert by_class["data"][0]["y"] == [36.0, 24.0]
    assert by_class["data"][1]["y"] == [4.0, 16.0]
    # 1000 of 2000 copies in the first bin, 1500 up to the second; 500 never came.
    assert curves["data"][0]["y"] == [0.5, 0.75]


def test_nothing_is_fetched_from_anywhere(tmp_path: Path) -> None:
    page = written(tmp_path, example(topic=HOSTILE))
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    policy = [attributes for tag, attributes in page.tags if attributes.get("http-equiv")]
    assert "default-src 'none'" in (policy[0]["content"] or "")
    style = re.search(
        r"<style>(.*?)</style>", (tmp_path / "report.html").read_text(encoding="utf-8"), re.DOTALL
    )
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_plotly_is_in_the_page_once(tmp_path: Path) -> None:
    page = written(tmp_path, example())
    assert sum("plotly.js v" in script for script in page.scripts) == 1
    assert (tmp_path / "report.html").stat().st_size < 6_000_000


def test_hostile_names_are_shown_and_never_obeyed(tmp_path: Path) -> None:
    page = written(
        tmp_path, example(topic=HOSTILE), title=HOSTILE, notes=[HOSTILE], run_names={"run-a": HOSTILE}
    )
    harmless = written(tmp_path, example(), title="Fire", notes=["note"])
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in harmless.tags]
    assert "alert('x')" in page.text
    assert "\u202e" not in page.text
    assert "\\u202e" in page.text
    for figure in page.figures:
        labels = [trace.get("name", "") for trace in figure["data"]]
        labels += figure["layout"].get("yaxis", {}).get("ticktext", [])
        assert not any("<" in label for label in labels)


def test_a_figure_may_not_take_its_colours_from_a_name(tmp_path: Path) -> None:
    page = written(tmp_path, example(), run_names={"run-a": "--page"})
    colors = re.findall(r'"color":"([^"]*)"', "".join(page.scripts[1:]))
    assert colors
    assert all(re.fullmatch(r"--(series-\d|level-\d|empty|quiet|on-series)", color) for color in colors)


@pytest.mark.parametrize("name", sorted(example()))
@pytest.mark.parametrize("how", ["missing", "without rows", "without columns"])
def test_a_table_that_is_not_there_leaves_the_rest_whole(tmp_path: Path, name: str, how: str) -> None:
    tables = example()
    if how == "missing":
        del tables[name]
    else:
        tables[name] = tables[name].slice(0, 0) if how == "without rows" else pa.table({})
    page = written(tmp_path, tables)
    assert page.identifiers == SECTIONS
    assert page.figures


def test_a_report_of_nothing_says_so_in_every_section(tmp_path: Path) -> None:
    page = written(tmp_path, {})
    assert page.identifiers == SECTIONS
    assert sum(attributes.get("class") == "nothing" for _, attributes in page.tags) == len(SECTIONS) + 1
    assert page.figures == []
    assert (tmp_path / "report.html").stat().st_size < 50_000


def test_columns_that_an_older_table_lacks_are_unknown_not_fatal(tmp_path: Path) -> None:
    tables = {name: table.select(["run_id", table.column_names[1]]) for name, table in example().items()}
    for name in ("class_performance", "run_summary", "subscription_performance", "quarantine_summary"):
        page = written(tmp_path, {name: tables[name]})
        assert page.identifiers == SECTIONS


def test_unknown_figures_are_dashes_and_never_nan(tmp_path: Path) -> None:
    tables = example()
    rows = tables["class_performance"].to_pylist()
    for row in rows[:2]:
        row.update(
            success_rate=math.nan, p50=None, p95=None, p99=None, max=None, mean_latency_seconds=math.inf
        )
    tables["class_performance"] = pa.Table.from_pylist(rows)
    page = written(tmp_path, tables)
    assert "NaN" not in "".join(page.scripts[1:2])
    assert "nan" not in page.text
    assert "inf" not in page.text


def test_many_topics_and_bins_keep_the_page_small(tmp_path: Path) -> None:
    tables = example(topics=500)
    bins = pa.array([[(place << 48) + 1 for place in range(4000)]] * 4)
    of_classes = tables["class_performance"].drop_columns("bins").append_column("bins", bins)
    page = written(tmp_path, tables | {"class_performance": of_classes})
    assert max(len(trace["x"]) for figure in page.figures for trace in figure["data"]) <= MOST_POINTS
    assert len(page.figures[-1]["data"][0]["y"]) == SHOWN_TOPICS
    assert "The 20 busiest of 500 topics" in page.text
    assert len("".join(page.scripts[1:])) < 200_000


def test_runs_have_the_names_and_the_order_they_are_given(tmp_path: Path) -> None:
    named = written(tmp_path, example(), run_names={"run-b": "with triage", "run-a": "without triage"})
    assert [trace["name"] for trace in named.figures[0]["data"]] == ["with triage", "without triage"]
    assert [trace["name"] for trace in written(tmp_path, example()).figures[0]["data"]] == ["without", "with"]


def test_more_runs_than_colours_are_mentioned(tmp_path: Path) -> None:
    rows = [{**example()["run_summary"].to_pylist()[0], "run_id": f"run-{number}"} for number in range(11)]
    page = written(tmp_path, {"run_summary": pa.Table.from_pylist(rows)})
    assert "3 more runs" in page.text


def test_a_report_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    written(tmp_path, example(), title="first")
    assert "second" in written(tmp_path, {}, title="second").text
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_path_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_report({}, tmp_path / "file" / "report.html", title="Fire")


def test_a_real_browser_draws_every_figure(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium: apt-get install chromium")
    page = written(tmp_path, example(topic=HOSTILE))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    place = [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom"]
    shown = subprocess.run(
        [browser, *options, *place, f"file://{tmp_path / 'report.html'}"],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert shown.returncode == 0, shown.stderr
    body = shown.stdout.partition("<main>")[2]
    assert len(re.findall(r'class="plot js-plotly-plot"', body)) == len(page.figures)
    assert "evil.example" in body
    assert not re.search(r"<img|<a [^>]*href=.http|<script>alert", body.partition("</main>")[0])
