"""How far a long command is, on a terminal and elsewhere."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import TextColumn

from triagemq import progress
from triagemq.progress import Bar, TableProgress

EXAMPLE = Path(__file__).parents[1] / "examples" / "building-fire.yaml"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)


def said(console: Console, *, quiet: bool = False) -> list[str]:
    """What a bar says while nobody has news of the work for a while."""
    with Bar(TextColumn("{task.description}"), console=console, quiet=quiet) as bar:
        bar.add_task("floor:fire:3 [red]", total=4, completed=1, now="2 of 8 s")
        bar.add_task("done", total=1, completed=1, now="")
        time.sleep(0.2)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_without_a_terminal_there_is_a_line_every_few_seconds_about_what_is_under_way() -> None:
    lines = said(Console(file=io.StringIO()))
    assert len(lines) >= 3
    wanted = re.compile(re.escape("floor:fire:3 [red]: 25 % after ") + r"\d+ s, 2 of 8 s")
    assert all(wanted.fullmatch(line) for line in lines), lines


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    text = "".join(said(Console(file=io.StringIO(), force_terminal=True)))
    assert " after " not in text
    assert text


def test_where_standard_error_is_for_something_else_there_is_nothing() -> None:
    assert said(Console(file=io.StringIO()), quiet=True) == []


def test_tables_say_that_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with TableProgress(enabled=True):
        time.sleep(0.1)
    assert re.match(r"starting Spark: after \d+ s\n", capsys.readouterr().err)
    with TableProgress(enabled=False):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_the_share_counts_steps_that_are_done() -> None:
    shown = TableProgress(enabled=False)
    shown.expect(4)
    shares = []
    for step in ("checking", "log", "publications"):
        shown.begin(step)
        shares.append(shown.tasks[0].percentage)
    assert shares == [0, 25, 50]


def test_the_first_plan_says_that_it_compiles(tmp_path: Path) -> None:
    """At once, and not when it is done: compiling takes half a minute, which nobody waits for here."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "triagemq", "plan", str(EXAMPLE)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert line == "compiling for this machine: once, and for up to a minute\n"
