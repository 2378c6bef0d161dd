"""DTLS on the gateway's socket: the associations, their timers, and the certificate that may be renewed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch
from triagemq.datagrams.messages import CONTROL_DSCP, dscp_mark
from triagemq.exchange.associations import TICK_SECONDS, AssociationLimits, Associations
from triagemq.exchange.gateway import connecting

if TYPE_CHECKING:
    from triagemq.dtls import ServerSecurity
    from triagemq.exchange.gateway.core import GatewayCore

__all__ = ["DtlsListener"]


class DtlsListener:
    """Stands between the socket and the core: `opened` on the way in, `associations.seal` on the way out."""

    def __init__(
        self,
        security: ServerSecurity,
        core: GatewayCore,
        udp_socket: socket.socket,
        limits: AssociationLimits | None = None,
    ) -> None:
        self.associations = Associations(
            security,
            counted=core.counters.rejected,
            established=self._established,
            is_known=self._is_known,
            limits=limits,
        )
        self._core = core
        self._socket = udp_socket
        self._mark = [dscp_mark(udp_socket.family, CONTROL_DSCP)]
        self._loop = asyncio.get_running_loop()
        self._renewal = RenewalWatch(security.files, self.associations.renew, _say)
        self._ticking = self._loop.create_task(self._keep_ticking())

    def opened(
        self, datagrams: Iterable[tuple[tuple[str, int], bytes]]
    ) -> Iterator[tuple[tuple[str, int], bytes]]:
        """The messages inside; what a handshake wants answered is answered."""
        associations, now = self.associations, self._loop.time()
        receive = associations.receive
        for address, datagram in datagrams:
            for message in receive(address, datagram, now):
                yield address, message
            if associations.outgoing:
                self._flush()

    async def close(self) -> None:
        """Take leave of all clients."""
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)
        self.associations.close()
        self._flush()

    def _established(self, address: tuple[str, int], resumed: bool) -> None:
        self._core.counters.handshakes += 1
        self._core.counters.resumptions += resumed
        # Whoever this is: the session of this address belongs to somebody who has yet to say so, by a CONNECT.
        connecting.estrange(self._core, address)

    def _is_known(self, address: tuple[str, int]) -> bool:
        return address in self._core.by_endpoint or bool(self._core.places.behind(address))

    def _flush(self) -> None:
        """With the mark of control packets: without handshakes there is nothing."""
        outgoing, self.associations.outgoing = self.associations.outgoing, []
        for address, datagram in outgoing:
            # What is lost is sent again: handshakes are made for that.
            with contextlib.suppress(OSError):
                self._socket.sendmsg((datagram,), self._mark, socket.MSG_DONTWAIT, address)

    async def _keep_ticking(self) -> None:
        looked = self._loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._loop.time()
            self.associations.tick(now, self._in_use)
            self._flush()
            if now - looked >= LOOK_EVERY_SECONDS:
                looked = now
                self._renewal.look()

    def _in_use(self) -> Collection[tuple[str, int]]:
        return {(endpoint[0], endpoint[1]) for endpoint in self._core.by_endpoint}


def _say(what: str) -> None:
    print(f"gateway: {what}", file=sys.stderr, flush=True)
