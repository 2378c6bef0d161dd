"""Finding out what the ports of switches lead to, and where hosts are: frames out, and what their absence means.

What is found out is Discovery's to keep; here frames are sent, and counted.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

from triagemq.network.openflow import frames
from triagemq.network.openflow.discovery import Discovery
from triagemq.network.openflow.switch_table import SwitchTable
from triagemq.network.openflow.topology import PortId

_TRIES = 4
_MOST_TRIES = 50
"""For a port at which something came: it is no edge, unless nothing ever comes the other way."""

_NEVER = float("-inf")


class Search:
    """`tables` are the switches that are connected, as the controller keeps them."""

    def __init__(self, discovery: Discovery, tables: Mapping[int, SwitchTable], ask_seconds: float) -> None:
        self._discovery = discovery
        self._tables = tables
        self._ask_seconds = ask_seconds
        self._nonce = secrets.token_bytes(8)
        self._tries: dict[PortId, int] = {}
        self._asked: dict[str, float] = {}

    def origin(self, frame: bytes) -> PortId | None:
        """The port that a discovery frame of ours left; None for one of somebody else's."""
        return frames.read_discovery(frame, self._nonce)

    def try_ports(self, ports: Iterable[PortId]) -> None:
        """Send a discovery frame out of each; those of switches that are not connected are left out."""
        for at in ports:
            table = self._tables.get(at.switch)
            if table is not None:
                table.session.packet_out(at.port, frames.discovery_frame(at, self._nonce))

    def begin_again(self, port: PortId) -> None:
        """The port has changed: what was tried there counts no more."""
        self._tries.pop(port, None)

    async def settle(self) -> None:
        """Try ports of unknown nature. Those over which nothing comes, although all have answered since, are edges."""
        unsettled = self._discovery.unsettled()
        if unsettled:
            self.try_ports(unsettled)
            await asyncio.gather(
                *(table.session.drain() for table in self._tables.values()), return_exceptions=True
            )
        for port in unsettled:
            self._tries[port] = self._tries.get(port, 0) + 1
        half_seen = self._discovery.half_seen()
        done = [
            port
            for port in self._discovery.unsettled()
            if self._tries.get(port, 0) >= (_MOST_TRIES if port in half_seen else _TRIES)
        ]
        self._discovery.settle(done)
        for port in done:
            del self._tries[port]
            # Hosts may be behind it.
            self._asked.clear()

    def ask_for(self, addresses: Sequence[str], edges: Callable[[], Sequence[PortId]], now: float) -> None:
        """Hosts that say nothing by themselves are asked where they are, and again when ports have come."""
        self._asked = {each: self._asked[each] for each in addresses if each in self._asked}
        for address in addresses:
            if now - self._asked.get(address, _NEVER) < self._ask_seconds:
                continue
            self._asked[address] = now
            frame = frames.neighbour_question(address) if ":" in address else frames.arp_question(address)
            for at in edges():
                self._tables[at.switch].session.packet_out(at.port, frame)
