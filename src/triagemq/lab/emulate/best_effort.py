"""Promised messages in an unmanaged network: fair queueing by flows, no levels, no limiters.

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

from triagemq.files import write_private
from triagemq.lab.box import Box, lay_out, new_run
from triagemq.lab.emulate.boxed import require_machine
from triagemq.lab.emulate.clients import MODULE, notify
from triagemq.lab.emulate.copying import (
    CopyingPlane,
    idle_instructions,
    plugged_publishers,
    with_idle_port,
)
from triagemq.lab.emulate.promised import (
    IDLE,
    PromisedClients,
    PromisedReceipts,
    require_real_messages,
)
from triagemq.lab.emulate.promises import (
    ActiveInterval,
    MeasuredPromise,
    PromisedRun,
    cut_packets,
    promised_run,
)
from triagemq.lab.emulate.receipts import stamping
from triagemq.lab.unmanaged import unmanaged_routes
from triagemq.live.rig import Child
from triagemq.network.linux import Interface, LinuxDataPlane
from triagemq.network.linux.netlink import Netlink
from triagemq.network.linux.queues import set_queue
from triagemq.network.linux.records import QUEUES
from triagemq.plan.admission.promises import matching
from triagemq.plan.dataplane import FlowKey, Instruction, SetFlow, SetPort
from triagemq.scenario import Scenario, load
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
    """Build, run for so long, and take everything down again; what is late exceeds what was requested."""
    require_machine("linux")
    scenario = load(file)
    plugged = plugged_publishers(scenario)
    require_real_messages(scenario, matching(scenario)[0].tolist())
    layout = lay_out(with_idle_port(scenario, plugged), new_run(), plugged=[*plugged, IDLE])
    paths, keys = _paths(scenario)
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
                *_instructions(scenario, paths, keys),
            ]
        )
        with closing(Netlink(layout.switch_namespace)) as netlink:
            for port in layout.ports:
                # Fair queueing: no class before another.
                for queue in range(QUEUES):
                    set_queue(netlink, port.index, queue, priority=1, packets_in_turn=1)
        hosts = {name: host.namespace for name, host in layout.subscribers.items()}
        interfaces = {name: host.interface for name, host in layout.subscribers.items()}
        receipts = PromisedReceipts(PromisedClients(interfaces, str(state / "got")), hosts)
        clean.push_async_callback(receipts.close)
        await receipts.listen_to_idle_port()
        for each in paths:
            await receipts.listen(scenario, each.publication, each.subscription, each.address)
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
        senders = [state / child.name for child in children]
        for sender in senders:
            notify(str(sender), {"promised": [(row, str(key)) for row, key in keys.items()]})
        begins_ns = time.time_ns() + round(_BEGIN_SECONDS * 1e9)
        for sender in senders:
            notify(str(sender), {"begins_ns": begins_ns})
        while (elapsed := (time.time_ns() - begins_ns) * 1e-9) < seconds:
            on_tick(max(0.0, elapsed))
            await asyncio.sleep(min(1.0, seconds - elapsed))
        await asyncio.gather(*(child.stop() for child in children))
        deadline = time.monotonic() + _MOST_DRAINING_SECONDS
        while any(queue.backlog_packets for port in plane.counters().ports.values() for queue in port.queues):
            if await is_set_within(asyncio.Event(), _LOOK_SECONDS) or time.monotonic() > deadline:
                break
        await asyncio.sleep(_LOOK_SECONDS)
        cut = cut_packets([(time.time_ns(), plane.counters())], state / "no meters")
    sent = [state / f"sent-{number}" for number in range(len(names))]
    return promised_run(scenario, [ActiveInterval(path) for path in paths], sent, state / "got", cut)


def _paths(scenario: Scenario) -> tuple[list[MeasuredPromise], dict[int, FlowKey]]:
    """The shortest paths of what is requested, and an address for each publication."""
    found = unmanaged_routes(scenario).routes
    keys = {
        publication: FlowKey(_GROUP.format(number), _UDP_PORT)
        for number, publication in enumerate(sorted({path.publication for path in found}))
    }
    requested = scenario.subscriptions.max_latency_seconds
    return [
        MeasuredPromise(
            path.publication,
            path.subscription,
            str(keys[path.publication]),
            0,
            float(requested[path.subscription]),
            path.ports,
            path.levels,
        )
        for path in found
    ], keys


def _instructions(
    scenario: Scenario, paths: Sequence[MeasuredPromise], keys: dict[int, FlowKey]
) -> list[Instruction]:
    """A class for each flow, which stands for its queue, with its part of the buffer next to one other."""
    names, ports = scenario.ports.name, scenario.ports
    made: list[Instruction] = []
    for port in sorted({port for path in paths for port in path.ports}):
        flows = sorted({path.publication for path in paths if port in path.ports})
        # The kernel's queues do not count the packet in transmission, one of which the port has.
        share = max(1.0, ports.buffer_packets[port] // min(2, len(flows))) + 1
        made.append(SetPort(names[port], float(ports.bandwidth_bps[port]), share, _CLASSES))
        made += [
            SetFlow(keys[publication], names[port], publication, number % _CLASSES, 0.0)
            for number, publication in enumerate(flows)
        ]
    return made
