"""Everything that runs in and around a network in a box: broker, gateway, coordinator, data plane and clients.

Broker and gateway live in the broker's namespace, and clients open their sockets in theirs. The coordinator is outside:
clients reach it over a Unix socket, so that no word to it takes bandwidth from the events that are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.gateway.binder import FlowBinder
from triagemq.coordinator.gateway.follower import Follower
from triagemq.errors import NetworkError, ParameterError
from triagemq.exchange import BrokerProcess
from triagemq.live.clients import tell
from triagemq.live.emulate.openflow_agent import AgentConfig
from triagemq.live.emulate.rig_processes import RigProcesses, together
from triagemq.live.processes import HURRY_SECONDS
from triagemq.live.up.exchange import EMBEDDED_CLASSES, KERNEL_CLASSES
from triagemq.network.emulated import Box, lay_out, new_run
from triagemq.network.emulated.vswitch import VirtualSwitches, datapath_id, require_open_vswitch
from triagemq.network.linux import Interface, LinuxDataPlane, TrustedAddress
from triagemq.network.linux.capabilities import problem_of
from triagemq.network.linux.namespaces import CLONE_NEWNET, in_thread_after, unshare
from triagemq.plan import Counters, SetPort
from triagemq.scenario import Scenario
from triagemq.scenario.conditions import Conditions
from triagemq.scenario.situations import situations

__all__ = ["DATA_PLANES", "Rig", "RigOptions", "check_data_plane", "require_machine"]

DATA_PLANES = ("linux", "openflow", "embedded")
GATEWAY_PORT = 10_000
BROKER_PORT = 1883
_IN_FORCE_SECONDS = 60.0
_SAMPLE_SECONDS = 0.2


def check_data_plane(name: str) -> None:
    """ParameterError if there is none of that name."""
    if name not in DATA_PLANES:
        raise ParameterError("dataplane", f"is {name!r}; it is one of {', '.join(DATA_PLANES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RigOptions:
    """`file` is the scenario as a file, for the processes that read it; `state` is where they keep what they know.

    `replay` is a Trace whose publications are sent instead of random ones.
    """

    file: Path
    state: Path
    dataplane: str = "linux"
    no_triage: bool = False
    seed: int = 0
    planner: Mapping[str, Any] = field(default_factory=dict)
    replay: Path | None = None

    def __post_init__(self) -> None:
        check_data_plane(self.dataplane)
        if self.state.is_dir() and any(self.state.iterdir()):
            raise ParameterError("state", f"{self.state} is not empty; give another directory")

    @property
    def classes(self) -> int:
        """What the data plane has."""
        return EMBEDDED_CLASSES if self.dataplane == "embedded" else KERNEL_CLASSES


def require_machine(dataplane: str) -> None:
    """NetworkError, with what to do, if something is missing."""
    problem = problem_of(lambda: in_thread_after(lambda: unshare(CLONE_NEWNET), lambda: None))
    if problem is not None:
        raise NetworkError(
            f"a network in a box needs root (making a namespace: {problem}); "
            "run it with sudo, or run the scenario without a box: triage up FILE"
        )
    if dataplane == "openflow":
        require_open_vswitch()


class Rig:
    """Use as `async with`. `samples` are the counters of the kernel's queues, every 200 ms."""

    def __init__(self, scenario: Scenario, conditions: Conditions, options: RigOptions) -> None:
        if len(scenario.brokers) != 1:
            raise NetworkError(f"a box has one broker; {scenario.name!r} has {len(scenario.brokers)}")
        self.scenario = scenario
        self.options = options
        self.state = options.state.absolute()
        self.samples: list[tuple[int, Counters]] = []
        self.plane: LinuxDataPlane | None = None
        self.follower: Follower | None = None
        self.rest = ""
        self.layout = lay_out(
            scenario,
            new_run(),
            switches="openvswitch" if options.dataplane == "openflow" else "bridge",
            backups=conditions.backups,
            apart=_losing(scenario, conditions),
        )
        self._sockets = Path(tempfile.gettempdir()) / f"triage-{self.layout.run}"
        self.box = Box(self.layout)
        self.processes = RigProcesses(self.state, self.box.processes)
        self.link = GatewayLink(self._control)
        self._tasks: list[asyncio.Task[None]] = []
        self._clean = contextlib.AsyncExitStack()

    @property
    def _control(self) -> Path:
        return self._sockets / "gateway.sock"

    @property
    def _gateway_address(self) -> str:
        (broker,) = self.layout.brokers.values()
        return f"{broker.ipv4}:{GATEWAY_PORT}"

    async def __aenter__(self) -> Rig:
        try:
            await self._start()
        except BaseException:
            await self._clean.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._clean.aclose()

    async def _start(self) -> None:
        require_machine(self.options.dataplane)
        self.processes.prepare()
        note = self.box.journal.note("directory", path=str(self._sockets))
        self._sockets.mkdir(mode=0o700)
        self._clean.callback(self.box.journal.done, note)
        self._clean.callback(shutil.rmtree, self._sockets, ignore_errors=True)
        await self._clean.enter_async_context(self.box)
        self._clean.push_async_callback(self.processes.end)
        (broker,) = self.layout.brokers.values()
        process = BrokerProcess(self.state / "broker", host=broker.ipv4, port=BROKER_PORT)
        self.processes.start_inside("broker", broker.namespace, process.command())
        # The embedded one does not answer to MQTT 5, and being tried with it would take a while.
        older = "?version=3.1.1" if process.address.version == 4 else ""
        await together(
            self._start_gateway(broker.namespace, f"{process.address}{older}"), self._start_coordinator()
        )
        self.link.start()
        self._clean.push_async_callback(self.link.close)
        if self.options.dataplane != "embedded":
            self._start_queues()
        if self.options.dataplane == "openflow":
            await self._start_controller()

    async def _start_gateway(self, namespace: str, broker: str) -> None:
        config = {
            "listen": self._gateway_address,
            "broker": broker,
            "state": str(self.state / "gateway"),
            "control": str(self._control),
            "trace": str(self.state / "gateway-trace"),
            "scenario": str(self.options.file.absolute()),
            "seed": self.options.seed,
            "timestamps": True,
            "dataplane": "embedded" if self.options.dataplane == "embedded" else "none",
        }
        path = self.processes.write("gateway", config)
        module = "triagemq.coordinator.gateway.process"
        self.processes.start_inside("gateway", namespace, [sys.executable, "-m", module, str(path)])
        await self.processes.ready("gateway")

    async def _start_coordinator(self) -> None:
        await self.processes.start(
            "coordinator",
            "triagemq.coordinator.serve",
            {
                "port": 0,
                "unix_socket": str(self._sockets / "rest.sock"),
                "database": f"sqlite:///{self.state / 'coordinator.sqlite'}",
                "gateway_socket": str(self._control),
                "gateway_address": self._gateway_address,
                "network": str(self.options.file.absolute()),
                "planner": dict(self.options.planner),
                "no_triage": self.options.no_triage,
                "priority_classes": self.options.classes,
            },
            started=self._coordinator_started,
        )

    def _coordinator_started(self, said: dict[str, Any]) -> None:
        self.rest = said["address"]

    def _start_queues(self) -> None:
        self.plane = LinuxDataPlane(
            {port.name: Interface(port.interface, namespace=port.namespace) for port in self.layout.ports}
        )
        self._clean.callback(self.plane.close)
        self.plane.trust(
            [TrustedAddress("udp", host.ipv4, GATEWAY_PORT) for host in self.layout.brokers.values()]
        )
        self.follower = Follower(self.link, FlowBinder(self.plane))
        loop = asyncio.get_running_loop()
        self._tasks += [
            loop.create_task(self.follower.run()),
            loop.create_task(self._keep_sampling()),
        ]
        self._clean.push_async_callback(self._end_tasks)

    async def _start_controller(self) -> None:
        switches = self.box.switches
        assert isinstance(switches, VirtualSwitches)
        agent = AgentConfig(
            control=str(self._control),
            listen=switches.controller,
            switches=[datapath_id(self.layout, name) for name in self.scenario.switches.name],
            sources=[host.ipv4 for host in self.layout.brokers.values()],
            applied=str(self._rules),
        )
        await self.processes.start("controller", "triagemq.live.emulate.openflow_agent", asdict(agent))

    async def start_clients(self, absent_publishers: list[str], absent_subscribers: list[str]) -> int:
        """The scenario's subscribers, then its publishers; when the first event will be published, in Unix ns."""
        config = {
            "scenario": str(self.options.file.absolute()),
            "coordinator": f"unix:{self._sockets / 'rest.sock'}",
            "seed": self.options.seed,
            "replay": None if self.options.replay is None else str(self.options.replay.absolute()),
        }
        for role, hosts, absent in (
            ("subscribers", self.layout.subscribers, absent_subscribers),
            ("publishers", self.layout.publishers, absent_publishers),
        ):
            said = await self.processes.start(
                role,
                "triagemq.live.clients",
                config
                | {
                    "role": role,
                    "namespaces": {name: host.namespace for name, host in hosts.items()},
                    "receipts": str(self.receipts if role == "subscribers" else self.sent),
                    "commands": str(self._sockets / role),
                    "absent": absent,
                },
                restart=False,
            )
        return int(said["publishing_from_ns"])

    @property
    def receipts(self) -> Path:
        """What the subscribers note."""
        return self.state / "receipts"

    @property
    def sent(self) -> Path:
        """What the publishers note."""
        return self.state / "sent"

    async def in_force(self) -> None:
        """Wait until the plan that the gateway follows is followed by the kernel and the switches, too."""
        if self.follower is None:
            return
        try:
            async with asyncio.timeout(_IN_FORCE_SECONDS):
                while not self._follows((await self.link.measure(flows=False, topics=False)).generation):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            why = self.follower.problem or f"it takes longer than {_IN_FORCE_SECONDS:.0f} s"
            raise NetworkError(f"the plan cannot be carried out: {why}") from None

    def _follows(self, generation: int) -> bool:
        if self.follower is not None and self.follower.applied != generation:
            return False
        return "controller" not in self.processes.children or (
            self._rules.exists() and self._rules.read_text() == str(generation)
        )

    @property
    def _rules(self) -> Path:
        """Where the controller says which plan the switches follow."""
        return self._sockets / "rules"

    @property
    def rule_commands(self) -> dict[str, str]:
        """By switch of Open vSwitch, what shows its rules."""
        switches = self.box.switches
        if not isinstance(switches, VirtualSwitches):
            return {}
        return {
            name: f"ovs-ofctl -O OpenFlow13 dump-flows {switches.management(bridge.name)}"
            for name, bridge in self.layout.switches.items()
        }

    async def stop(self, name: str, *, hurry: bool = False) -> None:
        """End one of the children; it gets less time for that if somebody waits."""
        child = self.processes.children[name]
        await (child.stop(HURRY_SECONDS) if hurry else child.stop())

    def tell_publisher(self, name: str, *, works: bool) -> None:
        """Let a publisher fall silent, or speak again."""
        tell(str(self._sockets / "publishers"), {"name": name, "there": works})

    def tell_subscriber(self, name: str, *, present: bool) -> None:
        """Let a subscriber leave, or join."""
        tell(str(self._sockets / "subscribers"), {"name": name, "there": present})

    def tell_worth(self, situation: int) -> None:
        """Let all subscribers say what their topics are worth to them in a situation of the scenario's conditions."""
        tell(str(self._sockets / "subscribers"), {"situation": situation})

    def set_bandwidth(self, port: str, bandwidth_bps: float) -> None:
        """What the link behind a port carries from now on; the coordinator hears of it elsewhere."""
        if self.plane is None or self.follower is None:
            return
        before = self.follower.binder.orders.ports.get(port)
        if before is not None:
            self.plane.apply([SetPort(port, bandwidth_bps, before.buffer_packets, before.classes)])

    def waiting_packets(self) -> int:
        """What the kernel's queues hold now."""
        self.sample()
        if not self.samples:
            return 0
        _, counters = self.samples[-1]
        ports = counters.ports.values()
        return sum(queue.backlog_packets for port in ports for queue in port.queues)

    def sample(self) -> None:
        """Look at the kernel's queues, if it has any. Flows that have gone are told of once: every look is kept."""
        if self.plane is not None:
            self.samples.append((time.time_ns(), self.plane.counters()))

    async def _keep_sampling(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _losing(scenario: Scenario, conditions: Conditions) -> list[str]:
    """The publishers whose own link loses packets, at one time or another."""
    course = situations(scenario, conditions)
    return [
        name
        for row, name in enumerate(scenario.publishers.name)
        if any(situation.publisher_error[row] > 0 for situation in course)
    ]
