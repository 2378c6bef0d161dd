"""The wheel: its version heads the changelog, and all of its extras are tried by `make wheel`."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import triagemq

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def try_wheel() -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        "try_wheel", ROOT / "requirements" / "try_wheel.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_changelog_begins_with_the_version_of_the_wheel(wheel: Path, try_wheel: ModuleType) -> None:
    version, _ = try_wheel.metadata(wheel)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version == triagemq.__version__


def test_every_extra_of_the_wheel_is_tried_and_named_in_the_readme(
    wheel: Path, try_wheel: ModuleType
) -> None:
    _, extras = try_wheel.metadata(wheel)
    assert extras == try_wheel.TRIES.keys() - {""}
    install = (ROOT / "README.md").read_text().partition("## Install")[2].partition("\n## ")[0]
    assert {extra for extra in extras if re.search(rf"\b{extra}\b", install)} == extras


def test_the_base_install_needs_the_standard_library_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(".dist-info/METADATA"))
        needed = re.findall(r"^Requires-Dist: (.+)$", packed.read(name).decode(), re.MULTILINE)
    assert needed
    assert all("extra ==" in each for each in needed)
    # -S: without any package that is installed here.
    tried = "import triagemq.client, triagemq.client.direct, triagemq.mqttsn, triagemq; triagemq.BlockingPublisher"
    subprocess.run([sys.executable, "-S", "-c", tried], env={"PYTHONPATH": str(wheel)}, check=True)


@pytest.mark.parametrize("arguments", [("sub", "--topic", "a"), ("--version",), ()])
def test_commands_name_the_extra_that_they_need(wheel: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-S", "-c", "from triagemq.cli import main; main()", *arguments]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"triage: this needs the package '\w+'; .*pip install 'triagemq\[cli\]'.*\n", done.stderr
    )


def test_the_wheel_brings_the_examples_and_switch_models_and_nothing_beside_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert "triagemq/examples/building-fire.yaml" in names
    assert "triagemq/scenario/models/pica8-p3290.yaml" in names
    assert "triagemq/pipeline/report/templates/page.html" in names
    assert {name.split("/")[0] for name in names} == {
        "triagemq",
        f"triagemq-{triagemq.__version__}.dist-info",
    }
