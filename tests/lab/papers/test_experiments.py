"""Every experiment runs small and leaves a table, a PNG, a page and JSON; the papers' findings hold in larger runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triagemq.errors import OutputError, ParameterError
from triagemq.lab.papers import (
    PAPERS,
    Effort,
    OnSpark,
    Reproduction,
    experiment,
    figures_of,
    reproduce,
    runs,
    write_files,
)
from triagemq.pipeline import SparkOptions

FIGURES = [("priodex", figure) for figure in ("6", "7", "8", "9a", "9b")] + [("firedex", "9")]
TINY = {"7": {"repeats": 3}}
FETCHES = re.compile(r"<script[^>]*\ssrc\s*=|<link[^>]*\shref\s*=|<img[^>]*\ssrc\s*=|@import", re.IGNORECASE)


@pytest.fixture(scope="module")
def buffers() -> Reproduction:
    return reproduce("priodex", "6", seeds=2, publications=500_000)


@pytest.mark.parametrize(("paper", "figure"), FIGURES)
def test_every_experiment_leaves_tables_plots_and_json(paper: str, figure: str, tmp_path: Path) -> None:
    shares: list[float] = []
    effort = TINY.get(figure, {"seeds": 2, "publications": 20_000})
    made = reproduce(paper, figure, **effort, progress=shares.append)  # type: ignore[arg-type]
    assert shares
    assert shares[-1] == pytest.approx(1.0)
    assert shares == sorted(shares)

    assert made.findings.tables
    for table in made.findings.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    for difference in made.findings.differences:
        assert difference.ours
        assert difference.why.count(". ") >= 1, "a difference is explained in two sentences"
    assert made.findings.claims

    report = json.loads(json.dumps(made.as_json(), allow_nan=False))
    assert report["effort"] == effort
    assert report["figures"]

    files = write_files(tmp_path / "new" / "folder", made.name, made.title, made.findings)
    assert files.png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = files.html.read_text()
    assert "Plotly.newPlot" in page
    assert made.findings.tables[0].title in page


def test_the_page_opens_without_a_network(buffers: Reproduction, tmp_path: Path) -> None:
    page = write_files(tmp_path, buffers.name, buffers.title, buffers.findings).html.read_text()
    assert not FETCHES.search(page)
    assert len(page) > 3_000_000, "plotly itself is inside"


def classes_of(made: Reproduction, configuration: int) -> list[dict[str, Any]]:
    classes: list[dict[str, Any]] = made.findings.figures["configurations"][configuration]["classes"]
    return classes


def test_one_queue_delivers_near_58_percent_after_near_900_ms_in_every_class(buffers: Reproduction) -> None:
    for row in classes_of(buffers, 0):
        assert 0.55 <= row["success_rate"] <= 0.61
        assert 0.8 <= row["mean_latency_seconds"] <= 1.05


def test_priorities_alone_deliver_all_of_classes_0_to_4_and_starve_the_last(buffers: Reproduction) -> None:
    rows = classes_of(buffers, 1)
    assert all(row["success_rate"] > 0.999 for row in rows[:5])
    assert all(row["mean_latency_seconds"] < 0.004 for row in rows[:5])
    assert rows[8]["success_rate"] < 0.01


def test_with_drops_class_0_is_complete_and_every_class_takes_milliseconds(buffers: Reproduction) -> None:
    rows = classes_of(buffers, 2)
    assert rows[0]["success_rate"] > 0.999
    assert all(row["mean_latency_seconds"] < 0.1 for row in rows)
    bound = buffers.findings.figures["class_8_bound_seconds"]
    assert rows[8]["mean_latency_seconds"] < bound < 0.1 < 0.647
    assert buffers.holds


def test_the_forecast_is_near_the_simulation_and_the_papers_model_is_low() -> None:
    made = reproduce("priodex", "9a", seeds=5, publications=500_000)
    assert made.holds, made.findings.claims
    for case in made.findings.figures["cases"]:
        for row in case["classes"]:
            assert row["paper_model_latency_seconds"] < 0.95 * row["simulated_latency_seconds"]


def test_greedy_gains_what_firedex_printed_and_drops_cannot() -> None:
    made = reproduce("firedex", "9", seeds=2, publications=200_000)
    assert made.holds, made.findings.claims
    plain = {row["title"]: row["utility_rate"] for row in made.findings.figures["configurations"]}
    # All of the maximum would not be 94 % more than what one queue achieves.
    assert 1.94 * plain["no priorities"] > 1
    fresh = made.findings.figures["nearest_freshness"]
    assert 1 < fresh["time_constant_seconds"] < 5
    assert fresh["gain_over_no_priorities"] == pytest.approx(0.94, abs=0.1)


def test_the_optimal_policy_is_best_at_every_load_and_weight() -> None:
    figures = reproduce("priodex", "8", seeds=1, publications=100_000).findings.figures
    for row in figures["by_load"] + figures["by_weight"]:
        assert row["optimal"] >= max(row["flat"], row["linear"], row["exponential"]) - 1e-9
    loads = [row["rho"] for row in figures["by_load"]]
    assert loads == sorted(loads)
    assert loads[0] < 0.9 < 1.6 < loads[-1]


def test_the_exact_cut_is_never_worse_than_any_other() -> None:
    figures = reproduce("priodex", "7", repeats=20).findings.figures
    within = {name: np.array(line) for name, line in figures["within"].items()}
    for name, line in within.items():
        assert (within["cluster"] <= line + 1e-12).all(), name
    assert (within["random"][:-1] > within["greedy"][:-1]).all()


def test_the_same_effort_gives_the_same_figures() -> None:
    first, second = (
        reproduce("priodex", "9a", seeds=1, publications=5_000).findings.figures for _ in range(2)
    )
    assert first == second


def test_figures_of_the_two_papers_that_show_one_experiment_share_it() -> None:
    for figure, other in {"5": "9a", "6": "9b", "7": "6", "8": "6", "10": "8"}.items():
        assert experiment("firedex", figure) is experiment("priodex", other)


@pytest.mark.parametrize("paper", PAPERS)
def test_quick_runs_are_smaller_in_every_figure(paper: str) -> None:
    for each in figures_of(paper).values():
        for name in ("seeds", "publications", "repeats"):
            normal, quick = getattr(each.normal, name), getattr(each.quick, name)
            assert (normal == 0) == (quick == 0)
            assert normal == 0 or quick < normal


def test_what_there_is_not_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="figure: is '12'; priodex has 6, 7, 8, 9a, 9b"):
        reproduce("priodex", "12")
    with pytest.raises(ParameterError, match="paper: is 'pridex'; known: priodex, firedex"):
        reproduce("pridex", "6")
    with pytest.raises(ParameterError, match="repeats: means nothing to this experiment"):
        reproduce("priodex", "6", repeats=3)
    with pytest.raises(ParameterError, match="seeds: is 0"):
        Effort(seeds=1).with_values(seeds=0)


def test_an_output_that_cannot_be_written_is_named(buffers: Reproduction, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OutputError, match="taken"):
        write_files(tmp_path / "taken", buffers.name, buffers.title, buffers.findings)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_seeds_on_spark_give_the_same_figures_as_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    effort = {"seeds": 2, "publications": 2000}
    here = reproduce("firedex", "9", **effort)  # type: ignore[arg-type]
    requested: list[int] = []
    on_spark = runs.simulate_cases

    def counted(cases: Any, **given: Any) -> Any:
        requested.append(len(cases))
        return on_spark(cases, **given)

    monkeypatch.setattr(runs, "simulate_cases", counted)
    shares: list[float] = []
    where = OnSpark(SparkOptions(master="local[2]"), tmp_path, least_seconds=0.0)
    there = reproduce("firedex", "9", **effort, spark=where, progress=shares.append)  # type: ignore[arg-type]
    assert requested == [2 * 8]
    assert there.findings.figures == here.findings.figures
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_few_or_short_simulations_and_machines_without_spark_stay_in_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = OnSpark(SparkOptions(), tmp_path)
    assert where.pays([20.0] * 8)
    assert not where.pays([100.0] * 7)
    assert not where.pays([1.0] * 20)
    monkeypatch.setattr(runs, "find_spec", lambda name: None)
    assert not where.pays([20.0] * 8)
    assert OnSpark(SparkOptions(master="spark://somewhere:7077"), tmp_path).pays([20.0] * 8)
