"""What every exchange on this machine is made of: a gateway, its coordinator, and a scenario's clients.

Each is a process with its configuration and its log in the state directory. Where they run, which broker they have and
what the network is made of is up to the two kinds of rig, `up.exchange` and `emulate.boxed`. Both are used as `async
with`: what was started is ended in the opposite order, however far the start came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from abc import ABC, abstractmethod
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from triagemq.addresses import host_and_port
from triagemq.channel.link import GatewayLink
from triagemq.coordinator.decide.decide import NO_SWITCHES, PlannerSettings
from triagemq.errors import ParameterError, TriageError
from triagemq.files import write_private
from triagemq.processes import Supervised
from triagemq.waiting import end

if TYPE_CHECKING:
    from triagemq.gateway.queue_control import Estimators


HURRY_SECONDS = 0.5
"""What a process that may be killed at any moment gets to end by itself, when the user waits for it."""

HURRY_STORING_SECONDS = 1.0
"""The same for one that has something to write at its end, and lives without."""

_READY_SECONDS = 60.0
_LONGEST_LINE = 1 << 20


class ChildError(TriageError):
    """A process of the exchange does not start; `exit_code` is another one if its configuration is impossible."""

    def __init__(self, words: str, exit_code: int | None = None) -> None:
        if exit_code == ParameterError.exit_code:
            self.exit_code = ParameterError.exit_code
        super().__init__(words)


class EndedError(TriageError):
    """The user has ended it, which is no failure, before it was ready."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("ended before it was ready")


class Child(Supervised):
    """`module` is run with this Python. `started` is called with the facts of its ready line each time."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        restart: bool = True,
        started: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__(name, log, restart=restart)
        self.facts: dict[str, Any] = {}
        self._command = [sys.executable, "-m", module, *arguments]
        self._started = started
        self._is_ready = False

    @property
    def is_ready(self) -> bool:
        """Whether it runs and is ready."""
        return self._is_ready and self.pid is not None

    async def start(self) -> dict[str, Any]:
        """Start it, wait until it is ready, and see that it stays; returns the facts of its ready line."""
        await self._launch()
        self.watch()
        return self.facts

    async def _launch(self) -> None:
        self._is_ready = False
        process = await self._spawn(self._command, stdout=PIPE, limit=_LONGEST_LINE)
        stdout = process.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(_READY_SECONDS):
                line = await stdout.readline()
        except TimeoutError:
            await self._end_now(process)
            raise ChildError(
                f"the {self.name} is not ready after {_READY_SECONDS:.0f} s; see {self.log}"
            ) from None
        try:
            self.facts = json.loads(line)
        except ValueError:
            code = await process.wait()
            raise ChildError(
                f"the {self.name} ended before it was ready: {self.last_words()}", code
            ) from None
        # Whatever else it prints must not fill the pipe.
        draining = asyncio.get_running_loop().create_task(_drain(stdout))
        draining.add_done_callback(lambda task: task.exception())
        self._is_ready = True
        if self._started is not None:
            self._started(self.facts)


async def _drain(stdout: asyncio.StreamReader) -> None:
    with contextlib.suppress(ValueError, OSError):
        while await stdout.read(_LONGEST_LINE):
            pass


EMBEDDED_CLASSES, KERNEL_CLASSES = 8, 7
"""Priority classes of the two data planes."""

GATEWAY_MODULE = "triagemq.gateway.process"
_COORDINATOR_MODULE = "triagemq.coordinator.serve"
PAGE_MODULE = "triagemq.page.serve"
"""The coordinator with its page for people."""
_CLIENTS_MODULE = "triagemq.live.clients"

_SERVERS = ("controller", "coordinator", "gateway")
"""What the names of servers begin with, which end after all clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RigOptions:
    """`state` is the directory of everything that its processes know, `scenario` a file or None."""

    state: Path
    scenario: Path | None = None
    no_triage: bool = False
    seed: int = 0
    planner: Mapping[str, Any] = field(default_factory=dict)
    control: str = "off"
    """By what the rates of queues are controlled (see gateway/queue_control.py)."""
    delay_model: Path | None = None

    @property
    def classes(self) -> int:
        """What the data plane has."""
        return EMBEDDED_CLASSES

    @property
    def scenario_path(self) -> str | None:
        """For processes, which may be elsewhere."""
        return None if self.scenario is None else str(self.scenario.absolute())


def planner_settings(options: RigOptions) -> tuple[PlannerSettings, PlannerSettings]:
    """What the rig plans with, and what it would plan with if there were triage."""
    # Promises need the kernel's queues.
    reason = NO_SWITCHES if options.classes == EMBEDDED_CLASSES else ""
    triage = PlannerSettings(**options.planner, priority_classes=options.classes, no_promises=reason)
    return (PlannerSettings.no_triage() if options.no_triage else triage), triage


class Rig(ABC):
    """`control` is the gateway's control socket, the other end of `link`."""

    def __init__(self, options: RigOptions, control: Path) -> None:
        self.options = options
        self.state = options.state.absolute()
        self.children: dict[str, Child] = {}
        self.rest = ""
        """The coordinator's address."""
        self.page: str | None = None
        """The address of its page, if it has one."""
        self.link = GatewayLink(control)
        self._control = control
        self._clean = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._clean.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._clean.aclose()

    @abstractmethod
    async def _start(self) -> None:
        """Start everything but the clients; what needs an end is put on `_clean` before it begins."""

    @property
    @abstractmethod
    def _in_a_hurry(self) -> bool:
        """Does the user wait for the end?"""

    @abstractmethod
    async def is_draining(self) -> bool:
        """Do packets wait in queues?"""

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by name."""
        return {name: child.pid for name, child in self.children.items() if child.pid is not None}

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """It goes on until the end."""
        self._clean.push_async_callback(end, asyncio.get_running_loop().create_task(work))

    # Processes.

    async def _start_child(
        self,
        name: str,
        module: str,
        config: dict[str, Any],
        *,
        restart: bool = True,
        started: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Start a module of ours; the facts of its ready line."""
        path, log = self._write(name, config), self.state / "logs" / f"{name}.log"
        child = Child(name, module, [str(path)], log=log, restart=restart, started=started)
        self.children[name] = child
        return await child.start()

    def _write(self, name: str, config: dict[str, Any]) -> Path:
        """For this start and every later one; a token in it is private."""
        return write_private(self.state / f"{name}.json", json.dumps(config, indent=2))

    async def stop(self, name: str, *, hurry: bool = False) -> None:
        """End a process, if it was started; it gets less time for that if the user waits."""
        if name in self.children:
            # A gateway has a trace to finish.
            seconds = HURRY_SECONDS if not name.startswith("gateway") else HURRY_STORING_SECONDS
            await self.children[name].stop(*([seconds] if hurry else []))

    async def _end(self) -> None:
        clients = [name for name in self.children if not name.startswith(_SERVERS)]
        for names in (clients, self.children.keys() - clients):
            await asyncio.gather(*(self.stop(name, hurry=self._in_a_hurry) for name in names))

    # What all rigs have.

    def _estimators(self, say: Callable[[str], None]) -> Estimators | None:
        """By what queues that are not the gateway's are controlled, if they are."""
        if self.options.control == "off":
            return None
        # Late: compiled trees take a moment to load.
        from triagemq.gateway.queue_control import Estimators

        return Estimators(self.options.control, self.options.delay_model, say, self.options.scenario_path)

    def _gateway_config(self, **own: Any) -> dict[str, Any]:
        return {
            "state": str(self.state / "gateway"),
            "control": str(self._control),
            "scenario": self.options.scenario_path,
            "seed": self.options.seed,
            "timestamps": True,
            "queue_control": self.options.control,
            "delay_model": None
            if self.options.delay_model is None
            else str(self.options.delay_model.absolute()),
        } | own

    async def _start_coordinator(self, module: str = _COORDINATOR_MODULE, **own: Any) -> None:
        config = {
            "database": f"sqlite:///{self.state / 'coordinator.sqlite'}",
            "gateway_socket": str(self._control),
            "network": self.options.scenario_path,
            "planner": asdict(planner_settings(self.options)[0]),
            "queue_control": self.options.control != "off",
        } | own

        def ready(facts: dict[str, Any]) -> None:
            self.rest, self.page = facts["address"], facts["page"]
            # The next start takes the same port.
            _, port = host_and_port(self.rest.rpartition("://")[2])
            self._write("coordinator", config | {"port": port})

        await self._start_child("coordinator", module, config, started=ready)

    async def _start_clients(
        self, role: str, *, module: str = _CLIENTS_MODULE, restart: bool = True, **own: Any
    ) -> dict[str, Any]:
        """The scenario's "publishers" or "subscribers"; the facts of their ready line."""
        config = {
            "role": role,
            "scenario": self.options.scenario_path,
            "seed": self.options.seed,
        } | own

        def ready(facts: dict[str, Any]) -> None:
            # Those who come back find everything as it was.
            self._write(role, config | {"settling_seconds": 0.0})

        return await self._start_child(role, module, config, restart=restart, started=ready)
