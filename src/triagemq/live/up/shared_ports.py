"""Ports of the kernel by which several gateways of this machine send: one data plane, and of all that each its part.

A packet leaves by the interface that leads to its client, whichever gateway has sent it, and waits there with those of
the others. Every gateway has orders about its own clients, and is told what became of its own packets. What queues have
counted is shared out by what flows have: in all it is what was counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from triagemq.plan import (
    Counters,
    FlowCounters,
    FlowKey,
    Instructed,
    Instruction,
    PortCounters,
    QueueCounters,
    RemoveFlow,
    RemovePort,
    SetFlow,
    SetPort,
)

_Queue = tuple[str, int]
"""A port, and a class of it."""
_Owned = tuple[str, SetFlow[FlowKey]]
"""A gateway, and a flow of its."""


class _Weight(NamedTuple):
    """Packets of a gateway's flows: those that left and that found no room since the last time, and that wait now."""

    left: int = 0
    dropped: int = 0
    waiting: int = 0


class SharedPorts:
    """What several `gateways`, by name, want of a plane."""

    def __init__(self, plane: Instructed, gateways: Sequence[str]) -> None:
        self._plane = plane
        self._gateways = tuple(gateways)
        # By port and gateway; and whose flow there is at an address, or was last.
        self._ports: dict[str, dict[str, SetPort]] = {}
        self._flows: dict[FlowKey, _Owned] = {}
        self._gone: dict[FlowKey, _Owned] = {}
        self._before = Counters()
        self._shares: dict[tuple[str, _Queue], QueueCounters] = {}

    def part(self, gateway: str) -> Instructed:
        """The plane as one of them sees it."""
        return _Part(self, gateway)

    def apply(self, gateway: str, instructions: Sequence[Instruction]) -> None:
        """A port is there as long as one of them wants it, as wide as the one that wants most."""
        ports = {name: dict(wanted) for name, wanted in self._ports.items()}
        flows, gone = dict[FlowKey, _Owned](), set[FlowKey]()
        told: list[Instruction] = []
        for each in instructions:
            match each:
                case SetPort(port=port) | RemovePort(port=port):
                    before, wanted = _widest(ports.get(port, {})), ports.setdefault(port, {})
                    wanted.pop(gateway, None)
                    if isinstance(each, SetPort):
                        wanted[gateway] = each
                    after = _widest(wanted)
                    if after != before:
                        told.append(RemovePort(port) if after is None else after)
                case SetFlow(key=key) if not key.is_multicast:
                    flows[key] = gateway, each
                    gone.discard(key)
                    told.append(each)
                case RemoveFlow(key=key) if not key.is_multicast:
                    if flows.get(key, self._flows.get(key, ("",)))[0] == gateway:
                        flows.pop(key, None)
                        gone.add(key)
                        told.append(each)
                case _:
                    told.append(each)
        if told:
            self._plane.apply(told)
        self._ports = ports
        self._flows |= flows
        for key in gone & self._flows.keys():
            self._gone[key] = self._flows.pop(key)

    def shared_out(self, now: Counters) -> dict[str, Counters]:
        """What the plane has counted, by gateway."""
        if len(self._gateways) == 1:
            return {self._gateways[0]: now}
        last = dict(now.gone)
        known = {**self._gone, **self._flows}
        weights = self._weights(known, {**last, **now.flows})
        for port, counted in now.ports.items():
            before = self._before.ports.get(port, PortCounters((), QueueCounters())).queues
            for level, queue in enumerate(counted.queues):
                earlier = before[level] if level < len(before) else QueueCounters()
                self._share_out((port, level), queue, earlier, weights.get((port, level), {}))
        self._before = now
        for key in last:
            self._gone.pop(key, None)

        def is_of(key: FlowKey, name: str) -> bool:
            return (known[key][0] if key in known else self._gateways[0]) == name

        return {
            name: Counters(
                ports={port: self._port(name, port, counted) for port, counted in now.ports.items()},
                flows={key: flow for key, flow in now.flows.items() if is_of(key, name)},
                gone=tuple((key, flow) for key, flow in now.gone if is_of(key, name)),
            )
            for name in self._gateways
        }

    def _weights(
        self, known: Mapping[FlowKey, _Owned], flows: Mapping[FlowKey, FlowCounters]
    ) -> dict[_Queue, dict[str, _Weight]]:
        """Of each queue, what the flows of each gateway have counted since the last time."""
        found: dict[_Queue, dict[str, _Weight]] = {}
        for key, now in flows.items():
            if key not in known:
                continue
            owner, flow = known[key]
            before = self._before.flows.get(key, FlowCounters(now.flow_id))
            mine = found.setdefault((flow.port, flow.priority_class), {})
            had = mine.get(owner, _Weight())
            mine[owner] = _Weight(
                had.left + max(0, now.packets_out - before.packets_out),
                had.dropped + max(0, now.dropped_by_buffer - before.dropped_by_buffer),
                had.waiting + max(0, now.backlog_packets),
            )
        return found

    def _share_out(
        self, at: _Queue, now: QueueCounters, before: QueueCounters, weights: Mapping[str, _Weight]
    ) -> None:
        """Add what a queue has counted since to those whose packets it was."""
        if now.packets_out < before.packets_out:
            # The port was made anew.
            before = QueueCounters()
            for name in self._gateways:
                self._shares.pop((name, at), None)
        left = [weights.get(name, _Weight()).left for name in self._gateways]
        dropped = [weights.get(name, _Weight()).dropped for name in self._gateways]
        waiting = [weights.get(name, _Weight()).waiting for name in self._gateways]
        parts = zip(
            self._gateways,
            _apportioned(now.packets_out - before.packets_out, left),
            _apportioned(now.bytes_out - before.bytes_out, left),
            _apportioned(now.drops - before.drops, dropped),
            _apportioned(now.backlog_packets, waiting),
            _apportioned(now.backlog_bytes, waiting),
            strict=True,
        )
        for name, packets_out, bytes_out, drops, backlog_packets, backlog_bytes in parts:
            had = self._shares.get((name, at), QueueCounters())
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
        """A port as one gateway is told of it; what is nobody's own, the first one is."""
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
