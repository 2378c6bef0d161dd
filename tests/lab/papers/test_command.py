"""`triage reproduce` as it is typed: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from triagemq import progress
from triagemq.errors import ParameterError
from triagemq.lab.commands.reproduce import reproduce
from triagemq.lab.papers import registry, runs
from triagemq.lab.papers.experiment import Claim, Effort, Experiment, Findings, Panel, PrintedTable, Series

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(reproduce)
runner = CliRunner()


def found(*, holds: bool) -> Findings:
    panel = Panel("a panel", "x", "y", (Series.of("line", (1.0, 2.0), [3.0, 4.0]),))
    return Findings(
        tables=(PrintedTable("a table [of] figures", ("class", "ours", "printed"), (("0", "1", "2"),)),),
        panels=(panel,),
        differences=(),
        claims=(Claim("a claim", holds, "a worst case"),),
        figures={"figure": 1.5},
    )


@pytest.fixture
def _two_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        name: Experiment(
            name, lambda effort, progress, holds=holds: found(holds=holds), Effort(seeds=2), Effort(seeds=1)
        )  # type: ignore[misc]
        for name, holds in (("good", True), ("bad", False))
    }
    monkeypatch.setattr(registry, "PAPERS", {"paper": made})


def test_without_a_figure_it_lists_them() -> None:
    done = runner.invoke(app, ["firedex", "--json"])
    assert done.exit_code == 0
    assert [each["figure"] for each in json.loads(done.stdout)["figures"]] == ["5", "6", "7", "8", "9", "10"]
    assert "utility rate of flat" in runner.invoke(app, ["priodex"]).stdout


@pytest.mark.usefixtures("_two_experiments")
def test_it_prints_the_table_and_writes_the_plots(tmp_path: Path) -> None:
    done = runner.invoke(app, ["paper", "good", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "a table [of] figures" in done.stdout
    assert "holds: a claim; worst case a worst case" in done.stdout
    assert {file.name for file in tmp_path.iterdir()} == {"paper-good.png", "paper-good.html"}


@pytest.mark.usefixtures("_two_experiments")
def test_json_is_one_object_with_the_effort_and_the_files(tmp_path: Path) -> None:
    done = runner.invoke(app, ["paper", "good", "--quick", "--out", str(tmp_path), "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["effort"] == {"seeds": 1}
    assert report["figures"] == {"figure": 1.5}
    assert Path(report["files"]["html"]).is_file()


@pytest.mark.usefixtures("_two_experiments")
def test_a_quick_run_leaves_the_results_of_the_full_one(tmp_path: Path) -> None:
    full, quick = (["paper", "good", "--out", str(tmp_path), "--json", *more] for more in ([], ["--quick"]))

    def written(arguments: list[str]) -> dict[str, bytes]:
        files = json.loads(runner.invoke(app, arguments).stdout)["files"]
        return {file: Path(file).read_bytes() for file in files.values()}

    first = written(full)
    again = written(quick)
    assert not first.keys() & again.keys()
    assert {file: Path(file).read_bytes() for file in first} == first
    assert set(tmp_path.iterdir()) == {Path(file) for file in (*first, *again)}


def test_simulations_of_a_quick_run_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Path | None] = []

    def note(effort: Effort, progress: object) -> Findings:
        where = runs._ON_SPARK.get()
        kept.append(None if where is None else where.directory)
        return found(holds=True)

    monkeypatch.setattr(
        registry, "PAPERS", {"paper": {"good": Experiment("good", note, Effort(seeds=2), Effort(seeds=1))}}
    )
    for more in ([], ["--quick"]):
        assert runner.invoke(app, ["paper", "good", "--out", str(tmp_path), *more]).exit_code == 0
    assert kept == [tmp_path / "paper-good-simulations", tmp_path / "paper-good-quick-simulations"]


def test_where_there_is_no_terminal_lines_say_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)

    def without_news(effort: Effort, progress: object) -> Findings:
        time.sleep(0.3)
        return found(holds=True)

    experiment = Experiment("slow", without_news, Effort(seeds=2), Effort(seeds=1))
    monkeypatch.setattr(registry, "PAPERS", {"paper": {"slow": experiment}})
    done = runner.invoke(app, ["paper", "slow", "--out", str(tmp_path), "--json"])
    lines = done.stderr.splitlines()
    assert len(lines) >= 3
    assert all(re.fullmatch(r"paper slow: 0 % after \d+ s", line) for line in lines)
    json.loads(done.stdout)


@pytest.mark.usefixtures("_two_experiments")
def test_it_fails_when_our_figures_do_not_show_what_they_must(tmp_path: Path) -> None:
    done = runner.invoke(app, ["paper", "bad", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "does not hold: a claim" in done.stdout


def test_an_unknown_figure_is_an_error_that_names_the_known_ones() -> None:
    done = runner.invoke(app, ["priodex", "6b"])
    assert isinstance(done.exception, ParameterError)
    assert "priodex has 6, 7, 8, 9a, 9b" in str(done.exception)


def test_real_packets_are_asked_for_by_name_and_refused_where_there_are_none() -> None:
    assert registry.experiment("midas", "7", packets=True) is not registry.experiment("midas", "7")
    assert registry.experiment("priodex", "10", packets=True) is registry.experiment("priodex", "10")
    with pytest.raises(ParameterError, match=r"priodex 6 is not run with real packets; .* are 10"):
        registry.experiment("priodex", "6", packets=True)
    with pytest.raises(ParameterError, match="nothing of firedex has"):
        registry.experiment("firedex", "5", packets=True)
