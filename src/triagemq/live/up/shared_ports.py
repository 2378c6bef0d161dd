"""Ports of the kernel by which several gateways of this machine send: one data plane, and of all that each its part.

A packet leaves by the interface that leads to its client, whichever gateway has sent it, and waits there with those of
the others. What queues have counted is shared out by what each gateway has sent and does not know gone yet: in all it
is what was counted. What is promised is the first one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from triagemq.network.reported import QueueKey
from triagemq.plan import Counters, Instructed, Instruction, PortCounters, QueueCounters, RemovePort, SetPort


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
                case _:
                    told.append(each)
        if told:
            self._plane.apply(told)
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
