"""Machine code that another version of the program left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = """
from typing import NamedTuple
from triagemq.compiled import compiled

class Pair(NamedTuple):
    first: float

@compiled
def doubled(pair):
    return 2.0 * pair.first

print(doubled(Pair(1.5)))
"""


def run(folder: Path, source: str) -> str:
    (folder / "kernels.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", "import kernels"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_whose_classes_were_renamed_meanwhile_are_compiled_anew(tmp_path: Path) -> None:
    assert run(tmp_path, SOURCE) == "3.0\n"
    assert list((tmp_path / "__pycache__").glob("kernels.doubled-*.nbi"))
    assert run(tmp_path, SOURCE.replace("Pair", "Couple")) == "3.0\n"
