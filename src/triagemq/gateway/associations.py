"""The DTLS associations of a gateway, by address: without sockets, and between its socket and its core.

A sender without an association costs nothing: the answer is a cookie, and a handshake begins only when the cookie comes
back from the same address. Handshakes and associations are bounded, overall and by host. A new association replaces
the one of its address when its handshake is complete, not before, and its client must CONNECT inside of it: messages of
a session never go to the next client at its address.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch
from triagemq.datagrams import CONTROL_DSCP, dscp_mark
from triagemq.dtls import LONGEST_MESSAGE, Association, ServerSecurity, client_random, no_association_alert
from triagemq.gateway.core.broker_link import GatewayCore
from triagemq.gateway.core.lifecycle import detach_sessions_at
from triagemq.gateway.core.sessions import Grouped
from triagemq.mqttsn import MessageType, peek

_TICK_SECONDS = 0.25

Address = tuple[str, int]

_IDLE_EVERY_SECONDS = 5.0
_MOST_RESENT = 20
_RECORD_HEADER = 13
_ALERT = 21
_FIRST_EPOCH = b"\0\0"
# What may go to a client that has not connected: nothing of it is from a session.
_TO_UNCONNECTED = frozenset(
    {
        MessageType.GWINFO,
        MessageType.CONNACK,
        MessageType.WILLTOPICREQ,
        MessageType.WILLMSGREQ,
        MessageType.DISCONNECT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationLimits:
    """`per_host` is about one IP address, behind which there may be many clients. An association takes some 70 KB."""

    associations: int = 50_000
    associations_per_host: int = 10_000
    unfinished: int = 1_000
    unfinished_per_host: int = 200
    """Handshakes that are going on, and as many associations without a CONNECT."""
    unfinished_seconds: float = 10.0
    """How long a handshake may take."""
    idle_seconds: float = 60.0
    """An association that is silent for so long and has no session ends."""


@dataclass(slots=True)
class _Peer:
    association: Association
    random: bytes
    since: float
    heard: float
    admitted: bool = False
    resent: int = 0


class Associations:
    """`receive` what comes, send `outgoing` (and empty it), `seal` what goes out, `tick` now and then.

    `established` is called with the address of every association that begins and whether its handshake was a short one,
    before anything comes from inside of it. `is_known` says whether a session is at an address, by its own word from
    inside of the association: what waits for a former one is not sent before that.
    """

    def __init__(
        self,
        security: ServerSecurity,
        *,
        counted: Counter[str],
        established: Callable[[Address, bool], None],
        is_known: Callable[[Address], bool],
        limits: AssociationLimits | None = None,
    ) -> None:
        self.limits = limits or AssociationLimits()
        self.outgoing: list[tuple[Address, bytes]] = []
        self._security = security
        self._counted = counted
        self._on_established = established
        self._is_known = is_known
        self._established: Grouped[Address, _Peer] = Grouped()
        self._unfinished: Grouped[Address, _Peer] = Grouped()
        # Those who have an association and have not connected, oldest first.
        self._unconnected: Grouped[Address, _Peer] = Grouped()
        self._looked_for_idle = 0.0

    def __len__(self) -> int:
        return len(self._established)

    @property
    def unfinished(self) -> int:
        """Handshakes that are going on."""
        return len(self._unfinished)

    # What comes in.

    def receive(self, address: Address, datagram: bytes, now: float) -> list[bytes]:
        """The messages inside of a datagram."""
        peer = self._established.get(address)
        if peer is None or address in self._unfinished or datagram[3:5] == _FIRST_EPOCH:
            return self._rare(address, datagram, now)
        return self._inside(address, peer, datagram, now)

    def _inside(self, address: Address, peer: _Peer, datagram: bytes, now: float) -> list[bytes]:
        association = peer.association
        found = association.receive(datagram)
        if found:
            peer.heard = now
            return found
        # An alert, a handshake message that was sent again, a replay, or a forgery: the first two may have an answer.
        self._send(address, association.take())
        if association.is_closed:
            self._established.discard(address)
            self._unconnected.discard(address)
        else:
            self._counted["dtls_nothing_inside"] += 1
        return found

    def _rare(self, address: Address, datagram: bytes, now: float) -> list[bytes]:
        if len(datagram) < _RECORD_HEADER or not 20 <= datagram[0] <= 23 or datagram[1] != 0xFE:
            self._counted["dtls_no_record"] += 1
            return []
        unfinished = self._unfinished.get(address)
        random = client_random(datagram)
        if random is not None:
            if unfinished is None or unfinished.random != random:
                self._hello(address, datagram, random, now)
            elif unfinished.resent < _MOST_RESENT:
                # The client has not got our answer.
                unfinished.resent += 1
                unfinished.association.repeat()
                self._send(address, unfinished.association.take())
            return []
        if unfinished is not None:
            found = unfinished.association.receive(datagram)
            self._send(address, unfinished.association.take())
            if unfinished.association.is_established:
                self._unfinished.discard(address)
                unfinished.heard = now
                self._established[address] = unfinished
                self._add_unconnected(address, unfinished)
                self._on_established(address, unfinished.association.was_resumed)
                return found
            if unfinished.association.is_closed:
                self._counted[f"dtls_handshake: {unfinished.association.problem}"] += 1
                self._unfinished.discard(address)
                return []
        peer = self._established.get(address)
        if peer is not None:
            return self._inside(address, peer, datagram, now)
        if unfinished is None:
            self._counted["dtls_no_association"] += 1
            if datagram[0] != _ALERT:
                # Shorter than what it answers, so that no sender can have others flooded with it.
                self.outgoing.append((address, no_association_alert()))
        return []

    def _hello(self, address: Address, datagram: bytes, random: bytes, now: float) -> None:
        host = address[0]
        limits = self.limits
        if address not in self._established and (
            len(self._established) >= limits.associations
            or len(self._established.of(host)) >= limits.associations_per_host
        ):
            self._counted["dtls_too_many_associations"] += 1
            return
        neighbours = self._unfinished.of(host)
        if len(neighbours) >= limits.unfinished_per_host and address not in neighbours:
            self._counted["dtls_too_many_handshakes"] += 1
            return
        wrong = self._security.wrong_cookies
        association, answer = self._security.hello(address, datagram)
        if self._security.wrong_cookies > wrong:
            self._counted["dtls_wrong_cookie"] += 1
        self._send(address, answer)
        if association is None:
            if not answer:
                self._counted["dtls_no_hello"] += 1
            return
        if association.is_closed:
            self._counted[f"dtls_handshake: {association.problem}"] += 1
            return
        self._unfinished.discard(address)
        if len(self._unfinished) >= limits.unfinished:
            self._unfinished.discard(next(iter(self._unfinished)))
            self._counted["dtls_handshake: pushed out"] += 1
        self._unfinished[address] = _Peer(association, random, now, now)

    def _add_unconnected(self, address: Address, peer: _Peer) -> None:
        """The oldest goes if there are too many: who means it connects at once."""
        unconnected = self._unconnected
        unconnected.discard(address)
        unconnected[address] = peer
        neighbours = unconnected.of(address[0])
        is_crowded = len(neighbours) > self.limits.unfinished_per_host
        if is_crowded or len(unconnected) > self.limits.unfinished:
            self._end(next(iter(neighbours if is_crowded else unconnected)))
            self._counted["dtls_never_connected"] += 1

    def _end(self, address: Address) -> None:
        self._send(address, self._established[address].association.close())
        self._established.discard(address)
        self._unconnected.discard(address)

    # What goes out.

    def seal(self, address: Address, message: bytes) -> bytes | None:
        """The record to send, at once and in this order; None if no client at that address may get it."""
        peer = self._established.get(address)
        if peer is None or len(message) > LONGEST_MESSAGE:
            return None
        if not peer.admitted:
            peer.admitted = self._is_known(address)
            if peer.admitted:
                self._unconnected.discard(address)
            elif _kind_of(message) not in _TO_UNCONNECTED:
                return None
        return peer.association.seal(message)

    def _send(self, address: Address, datagrams: list[bytes]) -> None:
        self.outgoing += [(address, datagram) for datagram in datagrams]

    # Time.

    def tick(self, now: float, in_use: Callable[[], Collection[Address]]) -> None:
        """Send again what was not answered; end what takes too long, or is idle and not `in_use`."""
        limits = self.limits
        for address, peer in list(self._unfinished.items()):
            if now - peer.since > limits.unfinished_seconds:
                self._counted["dtls_handshake: took too long"] += 1
                self._unfinished.discard(address)
            else:
                self._send(address, peer.association.retransmit())
        if now - self._looked_for_idle < _IDLE_EVERY_SECONDS:
            return
        self._looked_for_idle = now
        idle = [
            address for address, peer in self._established.items() if now - peer.heard > limits.idle_seconds
        ]
        if idle:
            used = in_use()
            for address in idle:
                if address not in used:
                    self._end(address)

    def close(self) -> None:
        """Take leave of everyone."""
        for address, peer in self._established.items():
            self._send(address, peer.association.close())


def _kind_of(message: bytes) -> MessageType:
    """The type of an MQTT-SN message; that of the inner one if it is encapsulated."""
    kind, start = peek(message)
    return peek(message[start:])[0] if kind is MessageType.ENCAPSULATED else kind


class DtlsListener:
    """DTLS between the socket and the core: `opened` for what comes in, `associations.seal` for what goes out.

    It has the associations, their timers, and the certificate that may be renewed.
    """

    def __init__(
        self,
        security: ServerSecurity,
        core: GatewayCore,
        udp_socket: socket.socket,
    ) -> None:
        self.associations = Associations(
            security,
            counted=core.counters.rejected,
            established=self._established,
            is_known=self._is_known,
        )
        self._core = core
        self._socket = udp_socket
        self._mark = dscp_mark(udp_socket.family, CONTROL_DSCP)
        self._loop = asyncio.get_running_loop()
        self._renewal = RenewalWatch(
            security.files,
            security.load,
            lambda words: print(f"gateway: {words}", file=sys.stderr, flush=True),
        )
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
        # The owner of the session of this address has yet to show itself, by a CONNECT.
        detach_sessions_at(self._core, address)

    def _is_known(self, address: tuple[str, int]) -> bool:
        return address in self._core.by_endpoint or bool(self._core.behind.of(address))

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
            await asyncio.sleep(_TICK_SECONDS)
            now = self._loop.time()
            self.associations.tick(now, lambda: {endpoint[:2] for endpoint in self._core.by_endpoint})
            self._flush()
            if now - looked >= LOOK_EVERY_SECONDS:
                looked = now
                self._renewal.look()
