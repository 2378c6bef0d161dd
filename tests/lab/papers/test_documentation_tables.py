"""The tables of docs/background are what `triage reproduce` finds: `python docs/tables.py` makes them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from triagemq.lab.papers import PAPERS, Difference, Findings, PrintedTable, reproduce

ROOT = Path(__file__).parents[3]
CHEAP = {("peer-wd", "3"), ("peer-wd", "4"), ("shi", "8"), ("shi", "14")}
"""Experiments that take a second or so at full length."""

REAL_PACKETS_ONLY = {("priodex", "10")}


def load_tables() -> ModuleType:
    specification = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


tables = load_tables()
PAGE = (ROOT / "docs" / "background" / "experiments.md").read_text()
EXPERIMENTS = tables.experiments_of(PAGE)


def check(paper: str, figure: str) -> None:
    found = reproduce(paper, figure).findings
    for page in tables.PAGES:
        text = page.read_text()
        assert tables.remade(text, lambda *options: found if options == (paper, figure) else None) == text, (
            f"{page.name} is stale: python docs/tables.py '{paper} {figure}'"
        )


@pytest.mark.parametrize(("paper", "figure"), sorted(CHEAP))
def test_tables_of_short_experiments_are_what_the_command_finds(paper: str, figure: str) -> None:
    assert (paper, figure) in EXPERIMENTS
    check(paper, figure)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("paper", "figure"), [each for each in EXPERIMENTS if each not in CHEAP])
def test_tables_of_long_experiments_are_what_the_command_finds(paper: str, figure: str) -> None:
    check(paper, figure)


def test_the_page_shows_every_experiment_beside_what_was_printed() -> None:
    shown = {id(PAPERS[paper][figure]) for paper, figure in EXPERIMENTS}
    missing = [
        f"{paper} {figure}"
        for paper, figures in PAPERS.items()
        for figure, each in figures.items()
        if id(each) not in shown and (paper, figure) not in REAL_PACKETS_ONLY
    ]
    assert missing == []


def test_a_page_is_filled_between_its_marks_once_and_for_all() -> None:
    found = Findings(
        tables=(PrintedTable("loss", ("queue", "lost"), (("a|b", "1 %"),)),),
        panels=(),
        differences=(
            Difference("delay", "7 ms", "2 ms", "It is so. It is."),
            Difference("execution time", "slow", "3 µs", "It is so. It is.", timed=True),
        ),
    )
    page = (
        "before\n<!-- triage reproduce shi 9: printed -->\nold\n<!-- end -->\nbetween\n"
        "<!-- triage reproduce shi 9: table 1 -->\n<!-- end -->\nafter\n"
    )
    made = tables.remade(page, lambda paper, figure: found)
    assert made == (
        "before\n<!-- triage reproduce shi 9: printed -->\n|  | printed | ours | why |\n| --- | --- | --- | --- |\n"
        "| delay | 7 ms | 2 ms | It is so. It is. |\n<!-- end -->\nbetween\n"
        "<!-- triage reproduce shi 9: table 1 -->\nLoss:\n\n| queue | lost |\n| --- | --- |\n| a\\|b | 1 % "
        "|\n<!-- end -->\nafter\n"
    )
    assert tables.remade(made, lambda paper, figure: found) == made
    assert tables.remade(page, lambda paper, figure: None) == page


def test_every_mark_of_a_page_is_understood() -> None:
    for page in tables.PAGES:
        text = page.read_text()
        assert len(re.findall("<!-- triage reproduce", text)) == len(tables.MARKED.findall(text)), page.name
