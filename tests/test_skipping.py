"""An ordinary user is told what was not tried and why; on CI an attempt to skip is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import os

import pytest

os.geteuid = lambda: 1000


@pytest.fixture(scope="module")
def box():
    raise OSError("this was to be skipped before anything is made")


@pytest.mark.needs_root("it makes namespaces of the network")
def test_box(box): ...


@pytest.mark.skipif(True, reason="needs a lake")
def test_lake(): ...


def test_fire():
    pytest.skip("needs a fire")


def test_fine(): ...
"""
MODULE = "import pytest; pytest.skip('needs a river', allow_module_level=True)"
REASONS = (
    "needs root: it makes namespaces of the network; run `make test` as root",
    "needs a lake",
    "needs a fire",
    "needs a river",
)


@pytest.mark.parametrize(
    ("on_ci", "ends"), [(False, "1 passed, 4 skipped"), (True, "1 failed, 1 passed, 3 errors")]
)
def test_what_is_skipped_is_said_with_its_reason_and_fails_on_ci(
    tmp_path: Path, on_ci: bool, ends: str
) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers = needs_root(why)\naddopts = -ra --strict-markers"
    )
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "test_module.py").write_text(MODULE)
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {
        "COLUMNS": "200",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors", "."],
        cwd=tmp_path,
        env=environment | ({"CI": "true"} if on_ci else {}),
        capture_output=True,
        text=True,
    )
    summary = done.stdout.partition("short test summary info")[2]
    assert ends in summary, done.stdout
    assert done.returncode == on_ci
    for reason in REASONS:
        assert reason in summary
