"""An exchange in and around a network in a box: broker, gateway, coordinator, data plane and clients.

Broker and gateway live in the broker's namespace, and clients open their sockets in theirs; of several brokers each has
a gateway. The coordinator is outside: clients and further gateways reach it over a Unix socket, so that requests take
no bandwidth from the events that are measured.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from triagemq.broker import BrokerProcess
from triagemq.channel.orders import subscriber_of
from triagemq.client.coordinator import Coordinator
from triagemq.errors import NetworkError, ParameterError
from triagemq.gateway.binder import Follower
from triagemq.lab.box import Box, Host, LostEvent, lay_out, new_run
from triagemq.lab.box.processes import Running
from triagemq.lab.box.vswitch import VirtualSwitches, datapath_id, require_open_vswitch
from triagemq.lab.clusters import BASELINES
from triagemq.lab.emulate.active_promises import ActivePromises
from triagemq.lab.emulate.clients import MODULE, notify, use_realtime_scheduling
from triagemq.lab.emulate.copying import (
    CopyingPlane,
    idle_instructions,
    plugged_publishers,
    require_babbling,
    require_buckets,
    with_idle_port,
)
from triagemq.lab.emulate.openflow_agent import AgentConfig
from triagemq.lab.emulate.passing import passed_packets
from triagemq.lab.emulate.promised import IDLE, require_real_messages
from triagemq.live.rig import (
    EMBEDDED_CLASSES,
    GATEWAY_MODULE,
    KERNEL_CLASSES,
    Rig,
    RigOptions,
)
from triagemq.network.linux import Interface, LinuxDataPlane, TrustedAddress
from triagemq.network.linux.netlink import CLONE_NEWNET, in_thread_after, unshare
from triagemq.network.linux.plane import problem_of
from triagemq.plan.admission.promises import matching
from triagemq.plan.dataplane import Counters, Instructed
from triagemq.processes import last_words
from triagemq.scenario import Scenario
from triagemq.scenario.conditions import Conditions, situations
from triagemq.waiting import end, is_set_within

if TYPE_CHECKING:
    from triagemq.gateway.queue_control import ControlBehindGateway

DATA_PLANES = ("linux", "openflow", "embedded")
GATEWAY_PORT = 10_000
BROKER_PORT = 1883

_CONTROLLER_MODULE = "triagemq.lab.emulate.openflow_agent"
_READY_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_IN_FORCE_SECONDS = 60.0
_BEGIN_SECONDS = 0.2
"""From the notification of publishers to their first event."""
_SAMPLE_SECONDS = 0.2


def check_data_plane(name: str) -> None:
    """ParameterError if there is none of that name."""
    if name not in DATA_PLANES:
        raise ParameterError("dataplane", f"is {name!r}; it is one of {', '.join(DATA_PLANES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxedOptions(RigOptions):
    """`replay` is a Trace whose publications are sent instead of random ones. Publishers that are `babbling` send
    promised messages as fast as they can; all others begin with them in random phases, or `synchronised`. `balancing`
    is the policy that moves clients between several brokers."""

    scenario: Path
    dataplane: str = "linux"
    replay: Path | None = None
    babbling: tuple[str, ...] = ()
    synchronised: bool = False
    balancing: str = "ours"

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


class BoxedExchange(Rig):
    """`samples` are the counters of the kernel's queues, every 200 ms; `lost` the events that links have lost so far;
    `passed` the packets that have left ports, without those whose time could not be noted (`times_missed`).

    Processes in the box are not started again when they end, nor are clients: what is measured would mean nothing.
    """

    options: BoxedOptions

    def __init__(self, scenario: Scenario, conditions: Conditions, options: BoxedOptions) -> None:
        if len(scenario.brokers) != 1 and options.dataplane != "embedded":
            raise NetworkError(
                f"kernel queues in a box are behind one broker; {scenario.name!r} has {len(scenario.brokers)}"
            )
        self.scenario = scenario
        self.samples: list[tuple[int, Counters]] = []
        self.lost: list[LostEvent] = []
        self.passed: list[NDArray[np.void]] = []
        self.times_missed = 0
        self._waited: dict[str, NDArray[np.void]] = {}
        self.plane: LinuxDataPlane | None = None
        self.follower: Follower | None = None
        self._followed: Instructed | None = None
        self._queue_control: ControlBehindGateway | None = None
        # The embedded data plane is behind the gateway, and what is promised does not come there.
        plugged = [] if options.dataplane == "embedded" else plugged_publishers(scenario)
        require_babbling(scenario, options.babbling, plugged)
        if plugged:
            require_real_messages(scenario, matching(scenario)[0].tolist())
        if options.dataplane == "openflow":
            require_buckets(scenario, plugged)
        self.layout = lay_out(
            with_idle_port(scenario, plugged) if plugged else scenario,
            new_run(),
            switches="openvswitch" if options.dataplane == "openflow" else "bridge",
            backups=conditions.backups,
            apart=_losing(scenario, conditions),
            plugged=[*plugged, IDLE] if plugged else (),
        )
        self._sockets = Path(tempfile.gettempdir()) / f"triage-{self.layout.run}"
        super().__init__(options, self._sockets / "gateway.sock")
        self.box = Box(self.layout)
        self._inside: dict[str, Running] = {}
        self._backups = frozenset(conditions.backups.values())
        self._babblers: list[str] = []
        self.promised = ActivePromises(scenario, self.coordinator, self._notify_promised)

    @property
    def _in_a_hurry(self) -> bool:
        """The state of ended processes is not queried."""
        return True

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by name."""
        return super().pids | {name: process.pid for name, process in self._inside.items()}

    async def _start(self) -> None:
        require_machine(self.options.dataplane)
        self._make_state()
        note = self.box.journal.note("directory", path=str(self._sockets))
        self._sockets.mkdir(mode=0o700)
        self._clean.callback(self.box.journal.done, note)
        self._clean.callback(shutil.rmtree, self._sockets, ignore_errors=True)
        await self._clean.enter_async_context(self.box)
        self._clean.push_async_callback(self._end)
        first, *others = self.layout.brokers
        balancing = BASELINES.get(self.options.balancing, self.options.balancing)
        await _together(
            self._start_broker(first),
            self._start_coordinator(
                port=0,
                unix_socket=str(self._sockets / "rest.sock"),
                gateway_address=_gateway_address(self.layout.brokers[first]),
                **({"gateway_name": first, "balancing": balancing} if others else {}),
            ),
        )
        if others:
            await _together(*(self._start_broker(name, join=self.coordinator) for name in others))
            await self._all_joined()
        self.link.start()
        self._clean.push_async_callback(self.link.close)
        if self.options.dataplane != "embedded":
            self._start_queues()
        if self.options.dataplane == "openflow":
            await self._start_controller()

    def _make_state(self) -> None:
        try:
            (self.state / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ParameterError(
                "state", f"{self.state} cannot be made: {error.strerror}; give another directory"
            ) from None

    # Processes in the box.

    def _start_inside(self, name: str, namespace: str, command: list[str]) -> None:
        output, errors = self._output_files(name)
        self._inside[name] = self.box.processes.start(namespace, command, output=output, errors=errors)

    def _output_files(self, name: str) -> tuple[Path, Path]:
        return self.state / "logs" / f"{name}.out", self.state / "logs" / f"{name}.log"

    async def _ready(self, name: str) -> None:
        """Wait for the line that a process in the box prints when it is ready."""
        output, log = self._output_files(name)
        deadline = time.monotonic() + _READY_SECONDS
        while not (output.exists() and output.stat().st_size):
            if self._inside[name].exit_code() is not None:
                raise NetworkError(f"the {name} ended before it was ready: {last_words(log)}")
            if time.monotonic() > deadline:
                raise NetworkError(f"the {name} is not ready after {_READY_SECONDS:.0f} s; see {log}")
            await asyncio.sleep(_LOOK_SECONDS)

    def require_alive(self) -> None:
        """NetworkError if one has ended that is not started again."""
        for name, child in self.children.items():
            if child.pid is None and not child.restarting:
                raise NetworkError(f"the {name} have ended: {last_words(child.log)}")
        for name, process in self._inside.items():
            if process.exit_code() is not None:
                raise NetworkError(f"the {name} has ended; see {self.state / 'logs'}")

    async def stop(self, name: str, *, hurry: bool = False) -> None:
        """End a process, if it was started; the box gives those in it the time that they need."""
        if name in self._inside:
            await asyncio.to_thread(self.box.processes.end, self._inside[name])
            return
        await super().stop(name, hurry=hurry)
        if name == "publishers":
            await asyncio.gather(*(super(BoxedExchange, self).stop(each) for each in self._babblers))

    # What runs.

    async def _start_broker(self, name: str, join: str | None = None) -> None:
        """A broker and its gateway, which joins the coordinator there, or is controlled over its socket."""
        host, ending = self.layout.brokers[name], "" if join is None else f"-{name}"
        process = BrokerProcess(self.state / f"broker{ending}", host=host.ipv4, port=BROKER_PORT)
        self._start_inside(f"broker{ending}", host.namespace, process.command())
        # The embedded one does not answer to MQTT 5, and being tried with it would take a while.
        older = "?version=3.1.1" if process.address.version == 4 else ""
        own: dict[str, Any] = {"trace": str(self.state / "gateway-trace")}
        if join is not None or len(self.layout.brokers) > 1:
            own = {"name": name, "join": join, "broker_client_id": process.gateway_client_id}
        if join is not None:
            own |= {"state": str(self.state / f"gateway{ending}"), "control": f"{self._control}{ending}"}
        config = self._gateway_config(
            listen=_gateway_address(host),
            broker=f"{process.address}{older}",
            dataplane="embedded" if self.options.dataplane == "embedded" else "none",
            **own,
        )
        gateway = f"gateway{ending}"
        path = self._write(gateway, config)
        self._start_inside(gateway, host.namespace, [sys.executable, "-m", GATEWAY_MODULE, str(path)])
        await self._ready(gateway)
        if self.layout.plugged:
            use_realtime_scheduling(self._inside[gateway].pid)

    async def _all_joined(self) -> None:
        """Wait until the coordinator controls all gateways: it announces those to clients."""
        coordinator, deadline = Coordinator(self.coordinator), time.monotonic() + _READY_SECONDS
        try:
            while True:
                found = await coordinator.answer("GET", "/v1/gateways")
                missing = self.layout.brokers.keys() - {each["name"] for each in found if not each["problem"]}
                if not missing:
                    return
                if time.monotonic() > deadline:
                    name = min(missing)
                    words = last_words(self._output_files(f"gateway-{name}")[1])
                    raise NetworkError(f"gateway {name} has not joined after {_READY_SECONDS:.0f} s: {words}")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await coordinator.close()

    def _start_queues(self) -> None:
        self.plane = LinuxDataPlane(
            {port.name: Interface(port.interface, namespace=port.namespace) for port in self.layout.ports},
            limits=self.options.dataplane != "openflow",
            timed=True,
        )
        self._clean.callback(self.plane.close)
        self.plane.trust(
            [TrustedAddress("udp", host.ipv4, GATEWAY_PORT) for host in self.layout.brokers.values()]
        )
        copying = CopyingPlane(self.plane, self.box)
        if self.layout.plugged:
            copying.apply(idle_instructions(self._idle_bps))
        self._followed = copying
        estimators = self._estimators(lambda words: print(f"triage: {words}", file=sys.stderr, flush=True))
        if estimators is not None:
            # Late: compiled trees take a moment to load.
            from triagemq.gateway.queue_control import ControlBehindGateway, ControlledQueues

            self._followed = queues = ControlledQueues(copying, estimators)
            self._queue_control = ControlBehindGateway(self.link, queues)
        self.follower = Follower(self.link, self._followed)
        self.start_task(self.follower.run())
        self.start_task(self._keep_sampling())

    async def _start_controller(self) -> None:
        switches = self.box.switches
        assert isinstance(switches, VirtualSwitches)
        agent = AgentConfig(
            control=str(self._control),
            listen=switches.controller,
            switches=[datapath_id(self.layout, name) for name in self.layout.switches],
            applied=str(self._rules),
            ports={
                port.name: (datapath_id(self.layout, port.switch), port.switch_interface)
                for port in self.layout.ports
            },
            reserved=[
                (datapath_id(self.layout, switch), interface)
                for switch, interface in self.layout.reserved(self._backups)
            ],
            idle_bps=self._idle_bps if self.layout.plugged else None,
            limited=str(self.limited),
        )
        await self._start_child("controller", _CONTROLLER_MODULE, asdict(agent))

    async def start_clients(self, absent_publishers: list[str], absent_subscribers: list[str]) -> None:
        """The scenario's subscribers, then its publishers, which are silent until they are notified."""
        for name in absent_subscribers:
            self.promised.set_present(name, present=False)
        for role, hosts, absent, noted in (
            ("subscribers", self.layout.subscribers, absent_subscribers, self.receipts),
            ("publishers", self.layout.publishers, absent_publishers, self.sent),
        ):
            interfaces = {name: host.interface for name, host in hosts.items()}
            if role == "publishers":
                interfaces = {name: access.interface for name, access in self.layout.access.items()}
            await self._start_clients(
                role,
                module=MODULE,
                restart=False,
                coordinator=self.coordinator,
                replay=None if self.options.replay is None else str(self.options.replay.absolute()),
                namespaces={name: host.namespace for name, host in hosts.items()},
                receipts=str(noted),
                commands=str(self._sockets / role),
                absent=absent,
                promised=self._promised_clients(role, interfaces, self.options.babbling),
            )
        for name in self.options.babbling:
            await self._start_babbler(name)

    async def _start_babbler(self, name: str) -> None:
        access, child = self.layout.access[name], f"babbler-{self.options.babbling.index(name)}"
        self._babblers.append(child)
        config = {
            "role": "direct",
            "scenario": self.options.scenario_path,
            "coordinator": self.coordinator,
            "namespaces": {name: access.namespace},
            "commands": str(self._sockets / child),
            "promised": self._promised_clients(child, {name: access.interface}, (name,)),
        }
        await self._start_child(child, MODULE, config, restart=False)

    def _promised_clients(
        self, role: str, interfaces: dict[str, str], babbling: Sequence[str]
    ) -> dict[str, Any] | None:
        if not self.layout.plugged:
            return None
        return {
            "interfaces": interfaces,
            "receipts": str(self.state / f"promised-{role}"),
            "babbling": list(babbling),
            "synchronised": self.options.synchronised,
        }

    @property
    def promised_sent(self) -> list[Path]:
        """What publishers note of promised messages."""
        return [self.state / f"promised-{role}" for role in ("publishers", *self._babblers)]

    @property
    def promised_receipts(self) -> Path:
        """What subscribers note of promised messages."""
        return self.state / "promised-subscribers"

    @property
    def limited(self) -> Path:
        """Where the controller says how many packets its meters have cut."""
        return self.state / "limited.json"

    @property
    def _idle_bps(self) -> float:
        return float(self.scenario.ports.bandwidth_bps.min())

    async def begin_publishing(self, absent_subscribers: list[str]) -> int:
        """When the first event is published, in Unix ns: as soon as the plan that knows of everyone is in force.

        Earlier, packets would find no flow and pass by the queues without being counted.
        """
        present = [name for name in self.scenario.subscribers.name if name not in absent_subscribers]
        clients = [("publishers", name) for name in self.scenario.publishers.name]
        clients += [("subscribers", name) for name in present]
        try:
            async with asyncio.timeout(_IN_FORCE_SECONDS):
                await self._known_to_plan([f"/v1/{role}/{quote(name, safe='')}" for role, name in clients])
                while not await self._carried_out():
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            why = f"it takes longer than {_IN_FORCE_SECONDS:.0f} s"
            if self.follower is not None and self.follower.problem:
                why = self.follower.problem
            raise NetworkError(f"the plan cannot be put in force: {why}") from None
        if self.layout.plugged:
            await self.promised.begin()
            self.start_task(self.promised.keep_updating())
        begins_ns = time.time_ns() + round(_BEGIN_SECONDS * 1e9)
        self._notify_publishers({"begins_ns": begins_ns})
        return begins_ns

    def _notify_promised(self, addresses: list[tuple[int, str]]) -> None:
        self._notify_publishers({"promised": addresses})

    def _notify_publishers(self, message: dict[str, Any]) -> None:
        for role in ("publishers", *self._babblers):
            notify(str(self._sockets / role), message)

    @property
    def coordinator(self) -> str:
        """Where clients reach it."""
        return f"unix:{self._sockets / 'rest.sock'}"

    @property
    def receipts(self) -> Path:
        """What the subscribers note."""
        return self.state / "receipts"

    @property
    def sent(self) -> Path:
        """What the publishers note."""
        return self.state / "sent"

    async def _known_to_plan(self, intents: list[str]) -> None:
        """Wait until the gateway follows a plan that knows of them."""
        coordinator = Coordinator(self.coordinator)
        try:
            for intent in intents:
                while not (await coordinator.ask("GET", intent))["in_force"]:
                    await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await coordinator.close()

    async def _carried_out(self) -> bool:
        """Are all flows of the plan there, in the gateway, in the kernel and on the switches?"""
        orders = await self.link.current()
        there = {
            subscriber_of(client.flow or client.client_id)[0]
            for client in (await self.link.sessions()).sessions
        }
        if orders.topics.keys() - there:
            return False
        if self.follower is not None and (
            self.follower.problem or self.follower.applied != orders.generation
        ):
            return False
        return "controller" not in self.children or (
            self._rules.exists() and self._rules.read_text() == str(orders.generation)
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

    def notify_clients(self, role: Literal["publishers", "subscribers"], **what: Any) -> None:
        """What one of them does from now on, or what all do (see clients.py)."""
        if role == "subscribers" and "there" in what:
            self.promised.set_present(what["name"], present=what["there"])
        notify(str(self._sockets / role), what)

    def set_bandwidth(self, port: str, bandwidth_bps: float) -> None:
        """What the link behind a port carries from now on; the coordinator hears of it elsewhere."""
        if self._followed is None or self.follower is None:
            return
        before = self.follower.orders.ports.get(port)
        if before is not None:
            self._followed.apply([before.with_bandwidth(bandwidth_bps)])

    async def is_draining(self) -> bool:
        """Do packets wait in the kernel's queues?"""
        self.sample()
        if not self.samples:
            return False
        _, counters = self.samples[-1]
        return any(queue.backlog_packets for port in counters.ports.values() for queue in port.queues)

    def sample(self) -> None:
        """Look at the kernel's queues, if it has any. Flows that have gone are reported once: every look is stored."""
        if self.plane is not None:
            self.samples.append((time.time_ns(), self.plane.counters()))
            self._waited = self.plane.queue_times()
            self.passed.append(passed_packets(self._waited, self.scenario.ports.name))
            self.times_missed = self.plane.times_missed
            self.lost += self.box.lost_events()

    async def _keep_sampling(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self.sample()
            if self._queue_control is not None:
                at_ns, counters = self.samples[-1]
                await self._queue_control.feed(counters.ports, at_ns, self._waited)
            # By the clock, so that every 200 ms have their sample, however long one takes.
            due = max(due + _SAMPLE_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())


def _gateway_address(broker: Host) -> str:
    return f"{broker.ipv4}:{GATEWAY_PORT}"


def _losing(scenario: Scenario, conditions: Conditions) -> list[str]:
    """The publishers whose own link loses packets, at one time or another."""
    course = situations(scenario, conditions)
    return [
        name
        for row, name in enumerate(scenario.publishers.name)
        if any(situation.publisher_error[row] > 0 for situation in course)
    ]


async def _together(*work: Coroutine[Any, Any, None]) -> None:
    """All at once; the first failure ends the others, and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end(*tasks)


async def let_run(
    begun_ns: int,
    seconds: float | None,
    ended: asyncio.Event,
    on_tick: Callable[[float], Coroutine[Any, Any, None]],
) -> None:
    """Until so many seconds after the first event, or until `ended`; `on_tick` gets them every second."""
    loop = asyncio.get_running_loop()
    while not ended.is_set():
        elapsed = (time.time_ns() - begun_ns) * 1e-9
        left = float("inf") if seconds is None else seconds - elapsed
        if left <= 0:
            return
        # A gateway that hangs must not delay the end.
        ticking, ending = loop.create_task(on_tick(elapsed)), loop.create_task(ended.wait())
        await asyncio.wait({ticking, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ticking.done():
            ticking.result()
        await end(ticking, ending)
        await is_set_within(ended, min(left, 1.0))
