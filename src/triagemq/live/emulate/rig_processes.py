"""The processes of a rig: those in a namespace of the box, and those beside it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from triagemq.errors import NetworkError, ParameterError
from triagemq.live.processes import HURRY_SECONDS, Child
from triagemq.network.processes import Processes, Running

__all__ = ["RigProcesses", "together"]

_READY_SECONDS = 60.0
_LOOK_SECONDS = 0.05


class RigProcesses:
    """Each has a configuration and logs in `state`. Those in the box are not started again when they end."""

    def __init__(self, state: Path, box: Processes) -> None:
        self.children: dict[str, Child] = {}
        self._inside: dict[str, Running] = {}
        self._state = state
        self._logs = state / "logs"
        self._box = box

    def prepare(self) -> None:
        """Make the directory."""
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ParameterError(
                "state", f"{self._state} cannot be made: {error.strerror}; give another directory"
            ) from None

    def start_inside(self, name: str, namespace: str, command: list[str]) -> None:
        """Start a command in a namespace."""
        self._inside[name] = self._box.start(
            namespace,
            command,
            output=self._logs / f"{name}.out",
            errors=self._logs / f"{name}.log",
        )

    async def ready(self, name: str) -> None:
        """Wait for the line that a process in the box prints when it is ready."""
        output, log = (self._logs / f"{name}.{kind}" for kind in ("out", "log"))
        deadline = time.monotonic() + _READY_SECONDS
        while not (output.exists() and output.stat().st_size):
            if self._inside[name].exit_code() is not None:
                words = log.read_text(encoding="utf-8", errors="replace").strip() or "it said nothing"
                raise NetworkError(f"the {name} ended before it was ready: {words.splitlines()[-1]}")
            if time.monotonic() > deadline:
                raise NetworkError(f"the {name} is not ready after {_READY_SECONDS:.0f} s; see {log}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def start(
        self,
        name: str,
        module: str,
        config: dict[str, Any],
        *,
        restart: bool = True,
        started: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Start a module of ours beside the box; what it says when it is ready."""
        path = self.write(name, config)
        self.children[name] = Child(
            name, module, [str(path)], log=self._logs / f"{name}.log", restart=restart, started=started
        )
        return await self.children[name].start()

    def write(self, name: str, config: dict[str, Any]) -> Path:
        """The configuration of a process."""
        path = self._state / f"{name}.json"
        path.write_text(json.dumps(config, indent=2), encoding="utf-8")
        return path

    @property
    def pids(self) -> dict[str, int]:
        """Those that run now, by name."""
        found = {name: child.pid for name, child in self.children.items() if child.pid is not None}
        return found | {name: process.pid for name, process in self._inside.items()}

    def require_alive(self) -> None:
        """NetworkError if one has ended that is not started again: what is measured would mean nothing."""
        for name, child in self.children.items():
            if child.pid is None and not child.restarting:
                raise NetworkError(f"the {name} have ended: {child.last_words()}")
        for name, process in self._inside.items():
            if process.exit_code() is not None:
                raise NetworkError(f"the {name} has ended; see {self._logs}")

    async def end(self) -> None:
        """Clients first, then all others, whose state nobody asks for again; the box ends the rest."""
        for names in (("publishers", "subscribers"), ("controller", "coordinator")):
            ending: list[Awaitable[Any]] = [
                self.children[name].stop(HURRY_SECONDS) for name in names if name in self.children
            ]
            if "controller" in names and "gateway" in self._inside:
                # It finishes its trace; the box would give it less time.
                ending.append(asyncio.to_thread(self._box.end, self._inside["gateway"]))
            await asyncio.gather(*ending)


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """All at once; the first failure ends the others, and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
