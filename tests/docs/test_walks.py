"""The walks of docs/reference/layers.md are true: real deliveries and real subscriptions pass what it names."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.live.up.exchanging import LONG_SECONDS, ROOT, Up

HERE = Path(__file__).parent / "walks"
SOURCE = ROOT / "src" / "triagemq"
PAGE = ROOT / "docs" / "reference" / "layers.md"
TOPICS = ("smoke", "heat", "water")
FIRST_TOPIC = "gas"
"""What is done only once in the life of a process (compiled kernels are loaded) is done for this one."""
IDLE_SECONDS = 3.0
DELIVERY = "One delivery"


def named_on_page(title: str) -> list[str]:
    """The modules and folders at the head of the points below a title."""
    text = PAGE.read_text().partition(f"\n### {title}\n")[2].partition("\n#")[0]
    heads = re.findall(r"^(?:\d+\.|-) (`.*?`(?:, `.*?`)*):", text, flags=re.MULTILINE)
    return [name for head in heads for name in re.findall(r"`([\w.]+)`", head)]


class Recorder:
    """Has it recorded which modules are at work, in processes that were started with its `environment`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        paths = os.pathsep.join((str(HERE), str(SOURCE.parent)))
        self.environment = {"PYTHONPATH": paths, "TRIAGEMQ_WALKS": str(directory)}
        self.processes: list[int] = []

    @contextmanager
    def during(self, walk: str) -> Iterator[None]:
        self._tell(walk)
        yield
        self._tell("")

    def _tell(self, walk: str) -> None:
        (self._directory / "walk").write_text(walk)
        for process in self.processes:
            os.kill(process, signal.SIGUSR1)
        deadline = time.monotonic() + LONG_SECONDS
        while any(self._seen(process) != walk for process in self.processes):
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    def _seen(self, process: int) -> str | None:
        seen = self._directory / f"seen.{process}"
        return seen.read_text() if seen.exists() else None

    def modules(self, walk: str, processes: list[int]) -> set[str]:
        paths = {
            Path(line)
            for process in processes
            for line in (self._directory / f"{walk}.{process}").read_text().splitlines()
        }
        ours = {path.relative_to(SOURCE) for path in paths if path.is_relative_to(SOURCE)}
        return {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in ours}


class Walk(NamedTuple):
    """Modules that were at work at some time, and those that were every time and are not when nothing happens."""

    passed: set[str]
    special: set[str]


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Walk]:
    directory = tmp_path_factory.mktemp("walks")
    recorder = Recorder(directory / "recorded")
    with Up(directory, "--state", str(directory / "state"), **recorder.environment) as exchange:
        ready = exchange.ready()
        with subprocess.Popen(
            [sys.executable, str(HERE / "device.py"), ready["coordinator"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | recorder.environment,
        ) as device:
            _tell(device, f"subscribe {FIRST_TOPIC}")
            on_the_way = [device.pid, ready["pids"]["gateway"]]
            everyone = recorder.processes = [*on_the_way, ready["pids"]["coordinator"]]
            for topic in TOPICS:
                with recorder.during(f"subscription-{topic}"):
                    _tell(device, f"subscribe {topic}")
            with recorder.during("idle"):
                time.sleep(IDLE_SECONDS)
            for topic in TOPICS:
                with recorder.during(f"delivery-{topic}"):
                    _tell(device, f"publish {topic}")
            assert device.stdin is not None
            device.stdin.close()
            assert device.wait(LONG_SECONDS) == 0

    def walk(name: str, processes: list[int]) -> Walk:
        idle = recorder.modules("idle", processes)
        found = [recorder.modules(f"{name}-{topic}", processes) for topic in TOPICS]
        return Walk(idle.union(*found), set.intersection(*found) - idle)

    return {"subscription": walk("subscription", everyone), "delivery": walk("delivery", on_the_way)}


def _tell(device: subprocess.Popen[str], line: str) -> None:
    assert device.stdin is not None
    assert device.stdout is not None
    print(line, file=device.stdin, flush=True)
    assert device.stdout.readline() == f"{line}\n"


@pytest.mark.parametrize(
    ("walk", "title"),
    [
        ("delivery", DELIVERY),
        ("subscription", "One subscription, from `subscribe()` to the first packet"),
    ],
)
def test_the_page_names_what_is_passed(walks: dict[str, Walk], walk: str, title: str) -> None:
    named = named_on_page(title)
    passed, special = walks[walk]
    assert len(named) == len(set(named)) > 5

    def is_part(module: str, name: str) -> bool:
        return module == name or module.startswith(f"{name}.")

    elsewhere = [name for name in named if not any(is_part(module, name) for module in passed)]
    assert not elsewhere, f"not passed: {', '.join(elsewhere)}"
    # A subscription ends with a delivery, which may pass by one way or the other.
    known = {*named, *named_on_page(DELIVERY)}
    forgotten = sorted(each for each in special if not any(is_part(each, name) for name in known))
    assert not forgotten, f"not on the page: {', '.join(forgotten)}"


def test_the_third_walk_names_what_exists() -> None:
    named = named_on_page("One scenario, to tables and back")
    assert len(named) > 5
    for name in named:
        path = SOURCE.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
