"""The output ports of an exchange as network interfaces of this machine: a gateway box on a real network.

The kernel's queues on them follow the gateway's orders. They are put back as they were at the end, and after a crash by
`triage network restore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

from triagemq.addresses import host_and_port
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import ControlError
from triagemq.clock import unix_clock
from triagemq.errors import ParameterError
from triagemq.gateway.binder import Follower
from triagemq.gateway.queue_control import ControlBehindGateway, ControlledQueues, Estimators
from triagemq.network.linux import Interface, LinuxDataPlane, TrustedAddress
from triagemq.plan.dataplane import Counters, Instructed
from triagemq.waiting import end

_LOG = logging.getLogger("triagemq.kernel_ports")

_REPORT_SECONDS = 0.2
_LAST_SECONDS = 2.0

_KINDS: Final[dict[Literal["udp", "tcp"], socket.SocketKind]] = {
    "udp": socket.SOCK_DGRAM,
    "tcp": socket.SOCK_STREAM,
}


class KernelPorts:
    """From `open` to `close`. `problem` is why the last change of orders was not carried out, if it was not, or why
    the gateway does not learn what the queues count.

    The gateway gets reports of the queues five times a second: it alone knows whose packets those were. With
    `estimators` the rates of queues are controlled.
    """

    def __init__(
        self,
        link: GatewayLink,
        interfaces: Mapping[str, str],
        *,
        estimators: Estimators | None = None,
    ) -> None:
        self._link = link
        self._clock = unix_clock()
        # Estimators of delays learn what they were.
        self._plane = LinuxDataPlane(
            {port: Interface(name) for port, name in interfaces.items()}, timed=estimators is not None
        )
        self._control: ControlBehindGateway | None = None
        followed: Instructed = self._plane
        if estimators is not None:
            followed = queues = ControlledQueues(self._plane, estimators)
            self._control = ControlBehindGateway(link, queues)
        self._follower = Follower(link, followed)
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: dict[str, str] = {}
        self.counters = Counters()

    @property
    def problem(self) -> str:
        return next(filter(None, (self._follower.problem, *self._failing.values())), "")

    def open(self, listeners: Sequence[TrustedAddress]) -> None:
        """Follow from now on; what comes from where the exchange listens goes with control packets."""
        self._plane.trust(listeners)
        loops = {"following the gateway": self._follow, "counting": self._report_later}
        self._tasks = [asyncio.create_task(self._keep_on(what, work)) for what, work in loops.items()]

    async def close(self) -> None:
        """Put every interface back; what was counted stays in `counters`."""
        try:
            await end(*self._tasks)
            self.counters = self._plane.counters()
            async with asyncio.timeout(_LAST_SECONDS):
                await self._report()
        except Exception:
            _LOG.exception("the gateway does not get the last counters of the queues")
        finally:
            await asyncio.to_thread(self._plane.close)

    async def _keep_on(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do it again and again. An unforeseen error is a reported problem, not the end of the loop."""
        while True:
            try:
                await work()
                self._failing.pop(what, None)
            except Exception as error:
                words = f"{what} fails: {error!r}"
                if self._failing.get(what) != words:
                    _LOG.exception("%s", words)
                self._failing[what] = words
                await asyncio.sleep(_REPORT_SECONDS)

    async def _follow(self) -> None:
        if self._control is not None:
            await self._control.begin()
        await self._follower.run()

    async def _report_later(self) -> None:
        # At random moments: the share of looks at which a queue is busy is the use of its port.
        await asyncio.sleep(random.uniform(0.5, 1.5) * _REPORT_SECONDS)
        await self._report()

    async def _report(self) -> None:
        at_ns, found = self._clock(), self._plane.counters()
        with contextlib.suppress(ControlError):
            await self._link.queues(found.ports, found.flows, at_ns)
        if self._control is not None:
            await self._control.feed(found.ports, at_ns, self._plane.queue_times())

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
        }


def listeners_of(gateway: str, *urls: str) -> list[TrustedAddress]:
    """Where the parts of an exchange listen: the address of its gateway, as clients get it, and the URLs of the
    coordinator and of the front.

    >>> listeners_of("[::]:10000", "https://10.0.0.1:8080/")
    [TrustedAddress(protocol='udp', address='::', port=10000),
     TrustedAddress(protocol='tcp', address='10.0.0.1', port=8080)]
    >>> listeners_of("mqttsns://127.0.0.1:10000", "http://127.0.0.1:8080")[0]
    TrustedAddress(protocol='udp', address='127.0.0.1', port=10000)
    """
    places: list[tuple[Literal["udp", "tcp"], str]] = [
        ("udp", gateway),
        *(("tcp", url) for url in urls),
    ]
    return [
        TrustedAddress(protocol, str(address[0]), int(address[1]))
        for protocol, url in places
        for *_, address in socket.getaddrinfo(
            *host_and_port(url.rpartition("://")[2].rstrip("/")), type=_KINDS[protocol]
        )
    ]


def interfaces_of(ports: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """From PORT=INTERFACE, one for each port: the interfaces; ParameterError if one is missing or not there.

    >>> interfaces_of(["port"], ["port=lo"])
    {'port': 'lo'}
    """
    found = given_for(ports, words, "INTERFACE")
    there = [name for _, name in socket.if_nameindex()]
    for port, name in found.items():
        if name not in there:
            raise ParameterError(
                "interface", f"'{port}={name}': this machine has no {name!r}; it has {', '.join(there)}"
            )
    if len(set(found.values())) < len(found):
        raise ParameterError("interface", "each port has one interface, and each its own")
    return found


def given_for(ports: Sequence[str], words: Sequence[str], what: str) -> dict[str, str]:
    """From PORT=VALUE, one for each port; ParameterError if one is missing, or for another port.

    >>> given_for(["radio"], [], "INTERFACE")
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: interface: port 'radio' has none; add --interface radio=INTERFACE
    """
    found: dict[str, str] = {}
    for word in words:
        port, _, value = word.partition("=")
        if port not in ports:
            raise ParameterError(
                "interface", f"{word!r}: there is no port {port!r}; there are {', '.join(ports)}"
            )
        if port in found:
            raise ParameterError("interface", f"{word!r}: each port has one interface, and each its own")
        found[port] = value
    for port in ports:
        if port not in found:
            raise ParameterError("interface", f"port {port!r} has none; add --interface {port}={what}")
    return found
