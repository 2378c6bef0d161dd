"""Which packet it is that makes a broker end the connection.

A broker ends a connection over a packet that it does not like, and often says no more than that. Whatever was sent
since the last answered ping is suspected then. Suspects go over the next connection half as many at a time, apart from
everything else, and half of that if it is lost again; in the end each goes alone, after a ping that was answered and
with another behind it. One that ends two connections like that is the culprit; an answered ping clears all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from triagemq.exchange.mqtt.packets import PacketType

_STRIKES = 2
_PACKETS_PER_PING = 64
_MOST_IN_AIR = 4096
# Of those that did not come back: clients that are silent since they were suspected.
_MOST_SUSPECTS = 4096


@dataclass(slots=True, eq=False)
class Packet:
    """A PUBLISH, SUBSCRIBE or UNSUBSCRIBE on its way to the broker. `octets` is all of it, unless it may change."""

    kind: PacketType
    topic: bytes
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    sender: str = ""
    publisher: str = ""
    token: object = None
    packet_id: int = 0
    octets: bytes = b""
    # QoS 2: the broker holds it. `sent`: over this or an earlier connection.
    released: bool = False
    sent: bool = False
    # Over the present connection.
    serial: int = -1
    is_suspect: bool = False
    is_alone: bool = False

    @property
    def key(self) -> Hashable:
        """By what it is known again: a publication by its sender and topic, a request by its filter."""
        return self.kind, self.topic, self.sender


class Suspicion:
    """The packets that are in the air: no ping that was sent behind them has been answered yet."""

    def __init__(self) -> None:
        # Keys to strikes; how many suspects may be in the air at once.
        self._suspects: dict[Hashable, int] = {}
        self._at_once = 1
        self._in_air: deque[Packet] = deque()
        self._suspects_in_air = 0
        self._serial = 0
        self._pings: deque[int] = deque()
        # A ping has been answered, and nothing sent since.
        self._is_checked = False

    @property
    def is_idle(self) -> bool:
        """Is nobody suspected?"""
        return not self._suspects

    @property
    def unanswered_pings(self) -> int:
        """Pings that the broker has not answered yet."""
        return len(self._pings)

    @property
    def wants_ping(self) -> bool:
        """A packet waits: would the answer to another ping let it go?"""
        if self._pings and self._pings[-1] == self._serial:
            return False
        return bool(self._in_air) or not self._is_checked

    def may_go(self, packet: Packet) -> bool:
        """May a packet be sent now?"""
        if not self._suspects or packet.key not in self._suspects:
            return not self._suspects_in_air
        if len(self._in_air) > self._suspects_in_air or self._suspects_in_air >= self._at_once:
            return False
        return self._at_once > 1 or self._is_checked

    def sent(self, packet: Packet) -> bool:
        """A packet has been sent; should a ping follow?"""
        packet.serial = self._serial
        self._serial += 1
        packet.is_suspect = bool(self._suspects) and packet.key in self._suspects
        packet.is_alone = self._is_checked
        self._suspects_in_air += packet.is_suspect
        self._is_checked = False
        self._in_air.append(packet)
        if len(self._in_air) > _MOST_IN_AIR:
            # The broker is slow to answer pings; what is that old has done no harm.
            self._clear(self._in_air.popleft())
        return packet.is_suspect or (len(self._in_air) >= _PACKETS_PER_PING and not self._pings)

    def ping_sent(self) -> None:
        """A ping has been sent."""
        self._pings.append(self._serial)

    def ping_answered(self) -> None:
        """The broker was still there after what had been sent before the ping."""
        if not self._pings:
            return
        serial = self._pings.popleft()
        while self._in_air and self._in_air[0].serial < serial:
            self._clear(self._in_air.popleft())
        self._is_checked = not self._in_air

    def _clear(self, packet: Packet) -> None:
        if packet.is_suspect:
            self._suspects_in_air -= 1
            self._suspects.pop(packet.key, None)

    def lost(self) -> Packet | None:
        """The connection is gone: the culprit, if that is known now."""
        in_air = list(self._in_air)
        self.reset()
        if len(in_air) == 1 and in_air[0].is_suspect and in_air[0].is_alone:
            key = in_air[0].key
            strikes = self._suspects.pop(key, 0) + 1
            if strikes >= _STRIKES:
                return in_air[0]
            self._suspects[key] = strikes
        elif in_air:
            self._at_once = max(1, len(in_air) // 2)
            while len(self._suspects) > _MOST_SUSPECTS:
                del self._suspects[next(iter(self._suspects))]
            for packet in in_air:
                self._suspects.setdefault(packet.key, 0)
        return None

    def reset(self) -> None:
        """Another connection: nothing is in the air."""
        self._in_air.clear()
        self._pings.clear()
        self._suspects_in_air = 0
        self._is_checked = False
