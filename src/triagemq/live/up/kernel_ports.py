"""The output ports of an exchange as network interfaces of this machine: a gateway box on a real network.

The kernel's queues on them follow the gateway's orders. They are put back as they were at the end, and after a crash by
`triage network restore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from triagemq.addresses import host_and_port
from triagemq.clock import unix_clock
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import ControlError
from triagemq.coordinator.gateway.binder import FlowBinder
from triagemq.coordinator.gateway.delay_models import Estimators
from triagemq.coordinator.gateway.follower import Follower
from triagemq.coordinator.gateway.queue_control import ControlBehindGateway, ControlledQueues
from triagemq.errors import ParameterError
from triagemq.network.linux import Interface, LinuxDataPlane, TrustedAddress
from triagemq.plan import Counters, FlowCounters, FlowKey, Instructed
from triagemq.waiting import end

_TELL_SECONDS = 0.2
_MOST_FLOWS_AT_ONCE = 5000

_KINDS: Final[dict[Literal["udp", "tcp"], socket.SocketKind]] = {
    "udp": socket.SOCK_DGRAM,
    "tcp": socket.SOCK_STREAM,
}


class KernelPorts:
    """From `open` to `close`. `problem` is why the last change of orders was not carried out, if it was not.

    The gateway is told five times a second what the queues count: it alone knows whose packets those were. With
    `estimators` the widths of queues are controlled; those in force are `kept` in a file.
    """

    def __init__(
        self,
        link: GatewayLink,
        interfaces: Mapping[str, str],
        *,
        estimators: Estimators | None = None,
        kept: Path | None = None,
    ) -> None:
        self._link = link
        self._clock = unix_clock()
        # What the gateway has heard, and which one that was.
        self._told: dict[FlowKey, FlowCounters] = {}
        self._epoch = ""
        # Whoever estimates delays is told what they were.
        self._plane = LinuxDataPlane(
            {port: Interface(name) for port, name in interfaces.items()}, timed=estimators is not None
        )
        self._control: ControlBehindGateway | None = None
        followed: Instructed = self._plane
        if estimators is not None:
            followed = queues = ControlledQueues(self._plane, estimators, kept)
            self._control = ControlBehindGateway(link, queues)
        self._follower = Follower(link, FlowBinder(followed))
        self._tasks: list[asyncio.Task[None]] = []
        self.counters = Counters()

    @property
    def problem(self) -> str:
        return self._follower.problem

    def open(self, listeners: Sequence[TrustedAddress]) -> None:
        """Follow from now on; what comes from where the exchange listens goes with control packets."""
        self._plane.trust(listeners)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follower.run()), loop.create_task(self._keep_telling())]

    async def close(self) -> None:
        """Put every interface back; what was counted stays in `counters`."""
        await end(*self._tasks)
        with contextlib.suppress(ControlError):
            await self._tell()
        self.counters = self._plane.counters()
        await asyncio.to_thread(self._plane.close)

    async def _keep_telling(self) -> None:
        while True:
            # At moments of chance: how often a queue is met busy says how much its port has to do.
            await asyncio.sleep(random.uniform(0.5, 1.5) * _TELL_SECONDS)
            try:
                await self._tell()
            except ControlError:
                # Whoever is there next has heard nothing.
                self._told.clear()

    async def _tell(self) -> None:
        at_ns = self._clock()
        found = self._plane.counters()
        if self._control is not None:
            await self._control.feed(found.ports, at_ns, self._plane.queue_times())
        changed = [(key, flow) for key, flow in found.flows.items() if self._told.get(key) != flow]
        # What a flow has counted last before it went is told as well.
        last = {key: flow for key, flow in found.gone if key not in found.flows}
        changed += last.items()
        gone = [key for key in self._told if key not in found.flows and key not in last]
        # At least once, for the ports; the gateway has more to do than to listen to all flows at once.
        for begin in range(0, max(1, len(changed)), _MOST_FLOWS_AT_ONCE):
            some = dict(changed[begin : begin + _MOST_FLOWS_AT_ONCE])
            leave = [key for key in some if key in last] + (gone if begin == 0 else [])
            epoch = await self._link.queues(found.ports, some, leave, at_ns)
        # One that has been started since needs to hear of all flows.
        self._told = dict(found.flows) if epoch == self._epoch else {}
        self._epoch = epoch

    def figures(self) -> dict[str, Any]:
        """Packets by port and class, for people and scripts."""
        return {
            "ports": [
                {
                    "port": name,
                    "classes": [
                        {
                            "priority_class": number,
                            "packets_in": queue.packets_in,
                            "packets_out": queue.packets_out,
                            "dropped_by_buffer": queue.drops,
                        }
                        for number, queue in enumerate(port.queues)
                    ],
                    "control_packets": port.control.packets_out,
                    "control_beyond_bound": port.beyond_bound,
                    "strange_marks": port.strange_marks,
                }
                for name, port in self.counters.ports.items()
            ],
            "dropped_by_policy": sum(flow.dropped_by_policy for flow in self.counters.flows.values()),
        }


def listeners_of(gateway: str, rest: str) -> list[TrustedAddress]:
    """Where the parts of an exchange listen: the gateway's address, as clients are told, and the coordinator's URL.

    >>> listeners_of("[::]:10000", "https://10.0.0.1:8080/")
    [TrustedAddress(protocol='udp', address='::', port=10000),
     TrustedAddress(protocol='tcp', address='10.0.0.1', port=8080)]
    >>> listeners_of("mqttsns://127.0.0.1:10000", "http://127.0.0.1:8080")[0]
    TrustedAddress(protocol='udp', address='127.0.0.1', port=10000)
    """
    return [
        TrustedAddress(protocol, str(address[0]), int(address[1]))
        for (protocol, kind), url in zip(_KINDS.items(), (gateway, rest), strict=True)
        for *_, address in socket.getaddrinfo(*host_and_port(url.rpartition("://")[2].rstrip("/")), type=kind)
    ]


def interfaces_of(ports: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """From PORT=INTERFACE, one for each port: the interfaces; ParameterError if one is missing or not there.

    >>> interfaces_of(["port"], ["port=lo"])
    {'port': 'lo'}
    >>> interfaces_of(["radio"], [])
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: interface: port 'radio' has none; add --interface radio=INTERFACE
    """
    found: dict[str, str] = {}
    there = [name for _, name in socket.if_nameindex()]
    for word in words:
        port, _, name = word.partition("=")
        if port not in ports:
            raise ParameterError(
                "interface", f"{word!r}: there is no port {port!r}; there are {', '.join(ports)}"
            )
        if name not in there:
            raise ParameterError(
                "interface", f"{word!r}: this machine has no {name!r}; it has {', '.join(there)}"
            )
        if port in found or name in found.values():
            raise ParameterError("interface", f"{word!r}: each port has one interface, and each its own")
        found[port] = name
    for port in ports:
        if port not in found:
            raise ParameterError("interface", f"port {port!r} has none; add --interface {port}=INTERFACE")
    return found
