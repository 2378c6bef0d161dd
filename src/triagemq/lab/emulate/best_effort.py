"""Promised messages in a network that nobody manages: fair queueing by flows, no levels, no limiters.

The same box, clients and measures as in `triage emulate`, without an exchange. Every flow has a queue of its own at
each port, with room for half of the port's buffer, and queues are served packet by packet in turn.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path

from triagemq.exchange.private_files import write_private
from triagemq.lab.box import Box, lay_out, new_run
from triagemq.lab.emulate.boxed import require_machine
from triagemq.lab.emulate.clients import MODULE, tell
from triagemq.lab.emulate.copying import (
    CopyingPlane,
    idle_instructions,
    plugged_publishers,
    with_idle_port,
)
from triagemq.lab.emulate.promised import (
    IDLE,
    PromisedAddress,
    PromisedClients,
    PromisedSubscribers,
    tell_addresses,
)
from triagemq.lab.emulate.promises import (
    ActiveInterval,
    AdmittedPromise,
    PromisedRun,
    cut_packets,
    promised_run,
)
from triagemq.lab.emulate.receipts import stamping
from triagemq.live.processes import Child
from triagemq.network.linux import Interface, LinuxDataPlane
from triagemq.network.linux.netlink import Netlink
from triagemq.network.linux.queues import set_queue
from triagemq.network.linux.records import QUEUES
from triagemq.plan import FlowKey, Instruction, SetFlow, SetPort
from triagemq.scenario import Scenario, load
from triagemq.simulate import unmanaged_ways
from triagemq.waiting import is_set_within

_GROUP, _UDP_PORT = "239.192.0.{}", 17_000
_CLASSES = 7
_BEGIN_SECONDS = 0.5
_LOOK_SECONDS = 0.05
_MOST_DRAINING_SECONDS = 15.0


async def run_best_effort(
    file: Path,
    state: Path,
    *,
    seconds: float,
    seed: int = 0,
    babbling: Sequence[str] = (),
    on_tick: Callable[[float], None] = lambda elapsed: None,
) -> PromisedRun:
    """Build, run for so long, and take everything down again; what is late exceeds what was asked for."""
    require_machine("linux")
    scenario = load(file)
    plugged = plugged_publishers(scenario)
    layout = lay_out(with_idle_port(scenario, plugged), new_run(), plugged=[*plugged, IDLE])
    ways, keys = _ways(scenario)
    state.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as clean:
        box = await clean.enter_async_context(Box(layout))
        clean.enter_context(stamping())
        plane = LinuxDataPlane(
            {port.name: Interface(port.interface, namespace=port.namespace) for port in layout.ports},
            limits=False,
        )
        clean.callback(plane.close)
        CopyingPlane(plane, box).apply(
            [
                *idle_instructions(float(scenario.ports.bandwidth_bps.min())),
                *_instructions(scenario, ways, keys),
            ]
        )
        with closing(Netlink(layout.switch_namespace)) as netlink:
            for port in layout.ports:
                # Fair queueing: no class before another.
                for queue in range(QUEUES):
                    set_queue(netlink, port.index, queue, priority=1, packets_in_turn=1)
        hosts = {name: host.namespace for name, host in layout.subscribers.items()}
        subscribers = PromisedSubscribers(
            scenario,
            PromisedClients(
                {name: host.interface for name, host in layout.subscribers.items()}, str(state / "got")
            ),
        )
        clean.push_async_callback(subscribers.close)
        await subscribers.open([each.at for each in ways], hosts)
        names = [*plugged, IDLE]
        children = []
        for number, name in enumerate(names):
            access, title = layout.access[name], f"sender-{number}"
            config = {
                "role": "direct",
                "scenario": str(file.absolute()),
                "coordinator": "",
                # Phases are drawn by each process for itself.
                "seed": seed * len(names) + number,
                "namespaces": {name: access.namespace},
                "commands": str(state / title),
                "promised": {
                    "interfaces": {name: access.interface},
                    "receipts": str(state / f"sent-{number}"),
                    "babbling": [each for each in babbling if each == name],
                },
            }
            path = write_private(state / f"{title}.json", json.dumps(config))
            child = Child(title, MODULE, [str(path)], log=state / f"{title}.log", restart=False)
            clean.push_async_callback(child.stop)
            children.append(child)
        await asyncio.gather(*(child.start() for child in children))
        addresses = state / "addresses.json"
        tell_addresses(addresses, [each.at for each in ways])
        senders = [state / child.name for child in children]
        for sender in senders:
            tell(str(sender), {"promised": str(addresses)})
        while not all(Path(f"{addresses}.{sender.name}").exists() for sender in senders):
            await asyncio.sleep(_LOOK_SECONDS)
        begins_ns = time.time_ns() + round(_BEGIN_SECONDS * 1e9)
        for sender in senders:
            tell(str(sender), {"begins_ns": begins_ns})
        while (elapsed := (time.time_ns() - begins_ns) * 1e-9) < seconds:
            on_tick(max(0.0, elapsed))
            await asyncio.sleep(min(1.0, seconds - elapsed))
        await asyncio.gather(*(child.stop() for child in children))
        deadline = time.monotonic() + _MOST_DRAINING_SECONDS
        while any(flow.backlog_packets for flow in plane.counters().flows.values()):
            if await is_set_within(asyncio.Event(), _LOOK_SECONDS) or time.monotonic() > deadline:
                break
        await asyncio.sleep(_LOOK_SECONDS)
        cut = cut_packets([(time.time_ns(), plane.counters())], state / "no meters")
    sent = [state / f"sent-{number}" for number in range(len(names))]
    return promised_run(scenario, [ActiveInterval(way) for way in ways], sent, state / "got", cut)


def _ways(scenario: Scenario) -> tuple[list[AdmittedPromise], dict[int, FlowKey]]:
    """The shortest ways of what is asked for, and an address for each publication."""
    found = unmanaged_ways(scenario).ways
    keys = {
        publication: FlowKey(_GROUP.format(number), _UDP_PORT)
        for number, publication in enumerate(sorted({way.publication for way in found}))
    }
    asked = scenario.subscriptions.max_latency_seconds
    return [
        AdmittedPromise(
            PromisedAddress(way.publication, way.subscription, str(keys[way.publication])),
            float(asked[way.subscription]),
            way.ports,
            way.levels,
        )
        for way in found
    ], keys


def _instructions(
    scenario: Scenario, ways: Sequence[AdmittedPromise], keys: dict[int, FlowKey]
) -> list[Instruction]:
    """A class for each flow, which stands for its queue, with what it would have of the buffer beside another."""
    names, ports = scenario.ports.name, scenario.ports
    made: list[Instruction] = []
    for port in sorted({port for way in ways for port in way.ports}):
        flows = sorted({way.at.publication for way in ways if port in way.ports})
        # The kernel's queues do not count the packet in transmission, one of which the port has.
        share = max(1.0, ports.buffer_packets[port] // min(2, len(flows))) + 1
        made.append(SetPort(names[port], float(ports.bandwidth_bps[port]), share, _CLASSES))
        made += [
            SetFlow(keys[publication], names[port], publication, number % _CLASSES, 0.0)
            for number, publication in enumerate(flows)
        ]
    return made
