"""The DTLS associations of a gateway, by address, without sockets: what is inside of datagrams, and what goes out.

A stranger costs nothing: he is answered with a cookie, and only who returns it from the address that he claims gets a
handshake. Handshakes and associations are bounded, overall and by host. A new association replaces the one of its
address when its handshake is complete, not before, and its client must CONNECT inside of it: what a session
gets is not sent to the next one who happens to have its address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from triagemq.dtls import (
    LONGEST_MESSAGE,
    Association,
    ServerSecurity,
    client_random,
    no_association_alert,
)
from triagemq.mqttsn import MessageType

TICK_SECONDS = 0.25
"""How often `tick` is to be called."""

Address = tuple[str, int]

_IDLE_EVERY_SECONDS = 5.0
_MOST_RESENT = 20
_RECORD_HEADER = 13
_ALERT = 21
_FIRST_EPOCH = b"\0\0"
# What may go to a client that has not connected: nothing of it is from a session.
_TO_STRANGERS = frozenset(
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
    before anything comes from inside of it. `is_known` tells whether a session is at an address, by its own word from
    inside of the association: what is on its way to a former one is not sent before that.
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
        self._listener = security.listener()
        self._counted = counted
        self._on_established = established
        self._is_known = is_known
        self._established: dict[Address, _Peer] = {}
        self._unfinished: dict[Address, _Peer] = {}
        self._per_host: Counter[str] = Counter()
        self._unfinished_per_host: Counter[str] = Counter()
        # Those who have an association and have not connected, oldest first.
        self._strangers: dict[Address, None] = {}
        self._strangers_per_host: Counter[str] = Counter()
        self._looked_for_idle = 0.0

    def __len__(self) -> int:
        return len(self._established)

    @property
    def unfinished(self) -> int:
        """Handshakes that are going on."""
        return len(self._unfinished)

    def renew(self) -> None:
        """Load the certificate again, for handshakes that begin now; ParameterError, and the old one stays."""
        self._security.load()
        self._listener.renew()

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
            self._forget(address)
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
            if unfinished is not None and unfinished.random == random:
                self._answer_again(address, unfinished)
            else:
                self._hello(address, datagram, random, now)
            return []
        if unfinished is not None:
            found = unfinished.association.receive(datagram)
            self._send(address, unfinished.association.take())
            if unfinished.association.is_established:
                self._begin(address, unfinished, now)
                return found
            if unfinished.association.is_closed:
                self._counted[f"dtls_handshake: {unfinished.association.problem}"] += 1
                self._drop_unfinished(address)
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

    def _answer_again(self, address: Address, unfinished: _Peer) -> None:
        """The client has not got our answer."""
        if unfinished.resent < _MOST_RESENT:
            unfinished.resent += 1
            unfinished.association.repeat()
            self._send(address, unfinished.association.take())

    def _hello(self, address: Address, datagram: bytes, random: bytes, now: float) -> None:
        host = address[0]
        limits = self.limits
        if address not in self._established and (
            len(self._established) >= limits.associations
            or self._per_host[host] >= limits.associations_per_host
        ):
            self._counted["dtls_too_many_associations"] += 1
            return
        if self._unfinished_per_host[host] >= limits.unfinished_per_host and address not in self._unfinished:
            self._counted["dtls_too_many_handshakes"] += 1
            return
        wrong = self._security.wrong_cookies
        association, answer = self._listener.hello(address, datagram)
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
        self._drop_unfinished(address)
        if len(self._unfinished) >= limits.unfinished:
            self._drop_unfinished(next(iter(self._unfinished)))
            self._counted["dtls_handshake: pushed out"] += 1
        self._unfinished[address] = _Peer(association, random, now, now)
        self._unfinished_per_host[host] += 1

    def _begin(self, address: Address, peer: _Peer, now: float) -> None:
        self._drop_unfinished(address)
        if address not in self._established:
            self._per_host[address[0]] += 1
        peer.heard = now
        self._established[address] = peer
        self._add_stranger(address)
        self._on_established(address, peer.association.was_resumed)

    def _drop_unfinished(self, address: Address) -> None:
        if self._unfinished.pop(address, None) is not None:
            _one_less(self._unfinished_per_host, address[0])

    def _forget(self, address: Address) -> None:
        if self._established.pop(address, None) is not None:
            _one_less(self._per_host, address[0])
            self._no_stranger(address)

    def _add_stranger(self, address: Address) -> None:
        """The oldest goes if there are too many: who means it connects at once."""
        self._no_stranger(address)
        host = address[0]
        self._strangers[address] = None
        self._strangers_per_host[host] += 1
        if self._strangers_per_host[host] > self.limits.unfinished_per_host:
            self._end(next(one for one in self._strangers if one[0] == host))
            self._counted["dtls_never_connected"] += 1
        elif len(self._strangers) > self.limits.unfinished:
            self._end(next(iter(self._strangers)))
            self._counted["dtls_never_connected"] += 1

    def _no_stranger(self, address: Address) -> None:
        if address in self._strangers:
            del self._strangers[address]
            _one_less(self._strangers_per_host, address[0])

    def _end(self, address: Address) -> None:
        self._send(address, self._established[address].association.close())
        self._forget(address)

    # What goes out.

    def seal(self, address: Address, message: bytes) -> bytes | None:
        """The record to send, at once and in this order; None if no client at that address may get it."""
        peer = self._established.get(address)
        if peer is None or len(message) > LONGEST_MESSAGE:
            return None
        if not peer.admitted:
            peer.admitted = self._is_known(address)
            if peer.admitted:
                self._no_stranger(address)
            elif _kind_of(message) not in _TO_STRANGERS:
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
                self._drop_unfinished(address)
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
        self._established.clear()
        self._unfinished.clear()


def _one_less(counted: Counter[str], host: str) -> None:
    counted[host] -= 1
    if counted[host] <= 0:
        del counted[host]


def _kind_of(message: bytes) -> int:
    """The type of an MQTT-SN message; that of the inner one if it is encapsulated."""
    long = message[:1] == b"\x01"
    at = 3 if long else 1
    if len(message) <= at:
        return -1
    if message[at] == MessageType.ENCAPSULATED:
        return _kind_of(message[max(1, int.from_bytes(message[1:3]) if long else message[0]) :])
    return message[at]
