"""Every example in README.md and docs/ is executed: Python, and shell commands with what they print."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NEEDS_ROOT = {"real-network.md"}
BLOCK = re.compile(r"^```(?P<kind>\w+)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    kind: str
    name: str | None
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    source = page.read_text()
    for match in BLOCK.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        yield Block(match["kind"], match["name"], match["text"], line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_do_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip("builds a network, which only root may")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.name is not None:
            (tmp_path / block.name).write_text(block.text)
        elif block.kind == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
        elif block.kind == "pycon":
            run_session(block.text, names, where)
        elif block.kind == "console":
            run_shell(block.text, tmp_path, where)


def run_session(text: str, names: dict[str, object], where: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, names, where, where, 0)
    result = doctest.DocTestRunner(optionflags=LENIENT).run(test, clear_globs=False)
    names.update(test.globs)
    assert result.failed == 0, f"{where}: see the differences above"


def run_shell(text: str, folder: Path, where: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
        )
        said_exit_code = re.search(r"# exit code (\d+)", command)
        wanted_code = int(said_exit_code[1]) if said_exit_code else 0
        assert done.returncode == wanted_code, f"{where}: {command}\n{done.stdout}{done.stderr}"
        if expected.strip():
            printed = done.stdout + done.stderr
            matches = doctest.OutputChecker().check_output(expected, printed, LENIENT)
            assert matches, f"{where}: {command}\nexpected:\n{expected}\nprinted:\n{printed}"
