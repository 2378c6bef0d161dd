"""Machine code that another version of the program left behind, and what only kernels can call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from triagemq import compiled

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


def test_parts_of_kernels_cannot_be_called_from_python() -> None:
    @compiled.step
    def halved(number: float) -> float:
        return number / 2

    @compiled.kernel
    def quartered(number: float) -> float:
        return halved(halved(number))

    assert quartered(3.0) == 0.75
    with pytest.raises(TypeError, match="halved is a part of kernels"):
        halved(3.0)
    with pytest.raises(TypeError, match="halved is a part of kernels"):
        halved(3)
