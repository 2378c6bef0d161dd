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
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from triagemq.addresses import host_and_port
from triagemq.clock import unix_clock
from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import ControlError
from triagemq.coordinator.gateway.binder import Follower
from triagemq.coordinator.gateway.queue_control import ControlBehindGateway, ControlledQueues, Estimators
from triagemq.errors import ParameterError
from triagemq.network.linux import Interface, LinuxDataPlane, TrustedAddress
from triagemq.network.reported import QueueKey
from triagemq.plan import (
    Counters,
    FlowCounters,
    FlowKey,
    Instructed,
    Instruction,
    PortCounters,
    QueueCounters,
    RemovePort,
    SetPort,
)
from triagemq.waiting import end

_LOG = logging.getLogger("triagemq.kernel_ports")

_REPORT_SECONDS = 0.2
_LAST_SECONDS = 2.0
_CONTROL = ""
"""Among the names of gateways, the control of widths."""
_MOST_FLOWS_AT_ONCE = 5000

_KINDS: Final[dict[Literal["udp", "tcp"], socket.SocketKind]] = {
    "udp": socket.SOCK_DGRAM,
    "tcp": socket.SOCK_STREAM,
}


@dataclass(slots=True, eq=False)
class _QueueReports:
    """What a gateway has heard of flows, and which one that was."""

    link: GatewayLink
    flows: dict[FlowKey, FlowCounters] = field(default_factory=dict)
    epoch: str = ""
    # Packets that it has sent by port and class, and those of the epochs before.
    sent: Mapping[QueueKey, int] = field(default_factory=dict)
    sent_before: Counter[QueueKey] = field(default_factory=Counter)

    @property
    def all_sent(self) -> Mapping[QueueKey, int]:
        return self.sent_before + Counter(self.sent)

    async def report(self, found: Counters, at_ns: int) -> None:
        try:
            await self._report(found, at_ns)
        except ControlError:
            # The next gateway has no reports yet.
            self.flows.clear()

    async def _report(self, found: Counters, at_ns: int) -> None:
        changed = [(key, flow) for key, flow in found.flows.items() if self.flows.get(key) != flow]
        # The last counters of a flow before it went are reported as well.
        last = {key: flow for key, flow in found.gone if key not in found.flows}
        changed += last.items()
        gone = [key for key in self.flows if key not in found.flows and key not in last]
        # At least once, for the ports; the gateway has more to do than to listen to all flows at once.
        for begin in range(0, max(1, len(changed)), _MOST_FLOWS_AT_ONCE):
            some = dict(changed[begin : begin + _MOST_FLOWS_AT_ONCE])
            leave = [key for key in some if key in last] + (gone if begin == 0 else [])
            epoch, sent = await self.link.queues(found.ports, some, leave, at_ns)
        # One that has been started since needs to hear of all flows.
        if epoch != self.epoch:
            self.sent_before.update(self.sent)
        self.flows = dict(found.flows) if epoch == self.epoch else {}
        self.epoch, self.sent = epoch, sent


class KernelPorts:
    """From `open` to `close`. `problem` is why the last change of orders was not carried out, if it was not, or why
    gateways do not learn what the queues count.

    The gateways, by name, get reports of the queues five times a second: they alone know whose packets those were.
    With `estimators` the widths of queues are controlled, for one gateway; those in force are `stored` in a file.
    """

    def __init__(
        self,
        links: Mapping[str, GatewayLink],
        interfaces: Mapping[str, str],
        *,
        estimators: Estimators | None = None,
        stored: Path | None = None,
    ) -> None:
        self._clock = unix_clock()
        self._reports = {name: _QueueReports(link) for name, link in links.items()}
        # Estimators of delays learn what they were.
        self._plane = LinuxDataPlane(
            {port: Interface(name) for port, name in interfaces.items()}, timed=estimators is not None
        )
        self._control: ControlBehindGateway | None = None
        followed: Instructed = self._plane
        if estimators is not None:
            (link,) = links.values()
            followed = queues = ControlledQueues(self._plane, estimators, stored)
            self._control = ControlBehindGateway(link, queues)
        self._shared = SharedPorts(followed, list(links))
        # What is promised is in the orders of all, and carried out once.
        self._followers = [
            Follower(link, self._shared.part(name), promised=number == 0)
            for number, (name, link) in enumerate(links.items())
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._reporting: dict[str, asyncio.Task[None]] = {}
        self._failing: dict[str, str] = {}
        self.counters = Counters()

    @property
    def problem(self) -> str:
        problems = (*(each.problem for each in self._followers), *self._failing.values())
        return next((each for each in problems if each), "")

    def open(self, listeners: Sequence[TrustedAddress]) -> None:
        """Follow from now on; what comes from where the exchange listens goes with control packets."""
        self._plane.trust(listeners)
        following = [
            (f"following gateway {name}", each.run)
            for name, each in zip(self._reports, self._followers, strict=True)
        ]
        self._tasks = [
            asyncio.create_task(self._keep_on(what, work))
            for what, work in [*following, ("counting", self._report_later)]
        ]

    async def close(self) -> None:
        """Put every interface back; what was counted stays in `counters`."""
        try:
            await end(*self._tasks)
            await self._report(_LAST_SECONDS)
            self.counters = self._plane.counters()
        except Exception:
            _LOG.exception("the last counters of the queues are lost")
        finally:
            try:
                await end(*self._reporting.values())
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

    async def _report_later(self) -> None:
        # At moments of chance: how often a queue is met busy says how much its port has to do.
        await asyncio.sleep(random.uniform(0.5, 1.5) * _REPORT_SECONDS)
        await self._report(_REPORT_SECONDS)

    async def _report(self, wait_seconds: float) -> None:
        """A gateway that does not answer keeps no other waiting: its reports go on when it has."""
        at_ns = self._clock()
        found = self._plane.counters()
        sent = {name: each.all_sent for name, each in self._reports.items()}
        work = {
            name: self._reports[name].report(part, at_ns)
            for name, part in self._shared.shared_out(found, sent).items()
            if name not in self._reporting
        }
        if self._control is not None and _CONTROL not in self._reporting:
            work[_CONTROL] = self._feed_control(self._control, found, at_ns)
        self._reporting |= {name: asyncio.create_task(each) for name, each in work.items()}
        if self._reporting:
            await asyncio.wait(self._reporting.values(), timeout=wait_seconds)
        ended = [self._reporting.pop(name) for name, task in list(self._reporting.items()) if task.done()]
        for task in ended:
            task.result()

    async def _feed_control(self, control: ControlBehindGateway, found: Counters, at_ns: int) -> None:
        with contextlib.suppress(ControlError):
            await control.feed(found.ports, at_ns, self._plane.queue_times())

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


def listeners_of(gateways: Sequence[str], rest: str) -> list[TrustedAddress]:
    """Where the parts of an exchange listen: the addresses of gateways, as clients get them, and the coordinator's URL.

    >>> listeners_of(["[::]:10000"], "https://10.0.0.1:8080/")
    [TrustedAddress(protocol='udp', address='::', port=10000),
     TrustedAddress(protocol='tcp', address='10.0.0.1', port=8080)]
    >>> listeners_of(["mqttsns://127.0.0.1:10000"], "http://127.0.0.1:8080")[0]
    TrustedAddress(protocol='udp', address='127.0.0.1', port=10000)
    """
    places: list[tuple[Literal["udp", "tcp"], str]] = [("udp", each) for each in gateways]
    return [
        TrustedAddress(protocol, str(address[0]), int(address[1]))
        for protocol, url in [*places, ("tcp", rest)]
        for *_, address in socket.getaddrinfo(
            *host_and_port(url.rpartition("://")[2].rstrip("/")), type=_KINDS[protocol]
        )
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


class SharedPorts:
    """What several `gateways`, by name, want of a plane."""

    def __init__(self, plane: Instructed, gateways: Sequence[str]) -> None:
        self._plane = plane
        self._gateways = tuple(gateways)
        # By port and gateway.
        self._ports: dict[str, dict[str, SetPort]] = {}
        self._before = Counters()
        self._shares: dict[tuple[str, QueueKey], QueueCounters] = {}

    def part(self, gateway: str) -> Instructed:
        """The plane as one of them sees it."""
        return _Part(self, gateway)

    def apply(self, gateway: str, instructions: Sequence[Instruction]) -> None:
        """A port is there as long as one of them wants it, as wide as the one that wants most."""
        ports = {name: dict(wanted) for name, wanted in self._ports.items()}
        combined: list[Instruction] = []
        for each in instructions:
            match each:
                case SetPort(port=port) | RemovePort(port=port):
                    before, wanted = _widest(ports.get(port, {})), ports.setdefault(port, {})
                    wanted.pop(gateway, None)
                    if isinstance(each, SetPort):
                        wanted[gateway] = each
                    after = _widest(wanted)
                    if after != before:
                        combined.append(RemovePort(port) if after is None else after)
                case _:
                    combined.append(each)
        if combined:
            self._plane.apply(combined)
        self._ports = ports

    def shared_out(self, now: Counters, sent: Mapping[str, Mapping[QueueKey, int]]) -> dict[str, Counters]:
        """What the plane has counted, by gateway; `sent` are the packets of each since it was there first."""
        first = self._gateways[0]
        if len(self._gateways) == 1:
            return {first: now}
        for port, counted in now.ports.items():
            before = self._before.ports.get(port, PortCounters((), QueueCounters())).queues
            for level, queue in enumerate(counted.queues):
                earlier = before[level] if level < len(before) else QueueCounters()
                self._share_out((port, level), queue, earlier, sent)
        self._before = now
        return {
            name: replace(
                now if name == first else Counters(),
                ports={port: self._port(name, port, counted) for port, counted in now.ports.items()},
            )
            for name in self._gateways
        }

    def _share_out(
        self,
        at: QueueKey,
        now: QueueCounters,
        before: QueueCounters,
        sent: Mapping[str, Mapping[QueueKey, int]],
    ) -> None:
        """Add what a queue has counted since to those whose packets it was."""
        if now.packets_out < before.packets_out:
            # The port was made anew.
            before = QueueCounters()
            for name in self._gateways:
                self._shares.pop((name, at), None)
        shares = [self._shares.get((name, at), QueueCounters()) for name in self._gateways]
        under_way = [
            max(0, sent.get(name, {}).get(at, 0) - had.packets_out - had.drops)
            for name, had in zip(self._gateways, shares, strict=True)
        ]
        parts = zip(
            self._gateways,
            shares,
            *(
                _apportioned(getattr(now, what) - getattr(before, what), under_way)
                for what in ("packets_out", "bytes_out", "drops")
            ),
            _apportioned(now.backlog_packets, under_way),
            _apportioned(now.backlog_bytes, under_way),
            strict=True,
        )
        for name, had, packets_out, bytes_out, drops, backlog_packets, backlog_bytes in parts:
            packets_out, bytes_out = had.packets_out + packets_out, had.bytes_out + bytes_out
            drops += had.drops
            self._shares[name, at] = QueueCounters(
                bytes_in=bytes_out + backlog_bytes,
                packets_in=packets_out + drops + backlog_packets,
                bytes_out=bytes_out,
                packets_out=packets_out,
                drops=drops,
                backlog_bytes=backlog_bytes,
                backlog_packets=backlog_packets,
                width_bps=now.width_bps,
            )

    def _port(self, gateway: str, port: str, counted: PortCounters) -> PortCounters:
        """A port as one gateway sees it; what is shared counts for the first."""
        queues = tuple(self._shares[gateway, (port, level)] for level in range(len(counted.queues)))
        if gateway == self._gateways[0]:
            return replace(counted, queues=queues)
        return PortCounters(queues, QueueCounters())


@dataclass(frozen=True, slots=True)
class _Part:
    shared: SharedPorts
    gateway: str

    def apply(self, instructions: Sequence[Instruction]) -> None:
        self.shared.apply(self.gateway, instructions)


def _widest(wanted: Mapping[str, SetPort]) -> SetPort | None:
    return max(wanted.values(), key=lambda port: port.bandwidth_bps, default=None)


def _apportioned(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts of a number in proportion to weights; what is left over has the largest, without any the first.

    >>> _apportioned(10, [1, 2]), _apportioned(7, [0, 0])
    ([3, 7], [7, 0])
    """
    whole = sum(weights)
    found = [total * weight // whole if whole else 0 for weight in weights]
    found[weights.index(max(weights))] += total - sum(found)
    return found
