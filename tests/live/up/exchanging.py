"""A whole exchange for a test: in this process as supervisor, or as the command; and what is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from triagemq.live.up.exchange import Exchange, ExchangeOptions

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BUILDING_FIRE = ROOT / "examples" / "building-fire.yaml"
CAMPUS = ROOT / "examples" / "campus.yaml"
CAMPUS_SITES: dict[str, Any] = {"name": "library", "peer_brokers": {"labs": None, "hall": None}}
"""The options by which it has its three gateways."""
TWO_PORTS = HERE / "two-ports.yaml"
LONG_SECONDS = 60.0
TRIAGE = [sys.executable, "-c", "from triagemq.cli.main import main; main()"]


@contextlib.asynccontextmanager
async def exchange(directory: Path, **options: Any) -> AsyncIterator[Exchange]:
    """All its processes, on ports of their own; a scenario's clients are not started."""
    async with Exchange(ExchangeOptions(state=directory / "state", **options)) as running:
        yield running


async def until(
    what: Callable[[], Any] | Callable[[], Awaitable[Any]], seconds: float = LONG_SECONDS
) -> float:
    """Wait for something to become true; the seconds it took."""
    begun = time.monotonic()
    while True:
        found = what()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return time.monotonic() - begun
        assert time.monotonic() - begun < seconds, f"waited {seconds} s in vain"
        await asyncio.sleep(0.02)


def ask(url: str, path: str, *, token: str | None = None, trust: ssl.SSLContext | None = None) -> Any:
    """What REST answers; urllib's HTTPError for a refusal."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url + path, headers=headers)
    with urllib.request.urlopen(request, timeout=LONG_SECONDS, context=trust) as answer:
        text = answer.read()
    return json.loads(text) if text.startswith((b"{", b"[")) else text


async def rest(url: str, path: str, **more: Any) -> Any:
    """The same without holding up the loop."""
    return await asyncio.to_thread(lambda: ask(url, path, **more))


async def status_of(url: str, path: str, **more: Any) -> int:
    """The status of an answer, good or bad; 0 if nobody answers."""
    try:
        await rest(url, path, **more)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0
    return 200


async def decisions(url: str, **more: Any) -> list[dict[str, Any]]:
    """All of them, from the first."""
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["number"] if found else 0
        page = (await rest(url, f"/v1/decisions?after={after}&limit=1000", **more))["decisions"]
        if not page:
            return found
        found += page


def is_alive(pid: int) -> bool:
    """Is it there, and no zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> set[int]:
    """The processes that it has started and that live."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in found if is_alive(int(child))}


class Up:
    """`triage up` as a process. Give `file` for a scenario, whose ready line is on standard error."""

    def __init__(self, directory: Path, *options: str, file: Path | None = None, **environment: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._errors = (directory / "errors").open("w+b")
        given = [] if file is None else [str(file)]
        self.process = subprocess.Popen(
            [*TRIAGE, "up", *given, "--gateway", "127.0.0.1:0", "--rest", "127.0.0.1:0", "--json", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=directory,
            env=os.environ | environment,
        )
        self._has_file = file is not None
        self._error_path = directory / "errors"

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ready(self) -> dict[str, Any]:
        """What it says when it is ready."""
        if not self._has_file:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, self.errors()
            return dict(json.loads(line))
        deadline = time.monotonic() + LONG_SECONDS
        while not (lines := [each for each in self.errors().splitlines(True) if each.endswith("\n")]):
            assert self.process.poll() is None, self.errors()
            assert time.monotonic() < deadline, "not ready"
            time.sleep(0.05)
        return dict(json.loads(lines[0]))

    def errors(self) -> str:
        return self._error_path.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def result(self, seconds: float = 100.0) -> tuple[int, str]:
        """Its exit code and what it printed."""
        output, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, output.decode()

    def end(self) -> None:
        """Whatever happens, nothing stays behind."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()
