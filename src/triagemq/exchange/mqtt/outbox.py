"""What goes to the broker: messages that it does not have for sure, requests, and what is lost if it is not sent now.

Messages go in order, no more at once than the broker takes; while packets are suspected (see suspicion.py) everything
waits in one queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from triagemq.errors import MqttError
from triagemq.exchange.mqtt.packets import (
    LARGEST_PACKET_BYTES,
    PacketType,
    encode_acknowledgement,
    encode_ping,
    encode_publish,
)
from triagemq.exchange.mqtt.suspicion import Packet, Suspicion
from triagemq.mqttsn.timestamps import PUBLISHER_PROPERTY

_PACKET_TOO_LARGE = 0x95
_MOST_HELD_BACK = 1_000
_MOST_PACKETS = 65_000


class MqttOutbox:
    """`write` takes octets, `finished` a message that the broker has or has refused, with the code for it."""

    def __init__(self, write: Callable[[bytes], None], finished: Callable[[Packet, int], None]) -> None:
        self._write = write
        self._report = finished
        # By packet id: messages, over any number of connections; requests over the present one.
        self._messages: dict[int, Packet] = {}
        self._requests: set[int] = set()
        self._waiting: deque[Packet] = deque()
        self._in_flight: set[int] = set()
        self._suspicion = Suspicion()
        self._next_packet_id = 1
        self._version = 5
        self._window = 0xFFFF
        self._most_packet_bytes = LARGEST_PACKET_BYTES
        self._is_open = False

    # What there is.

    @property
    def backlog(self) -> int:
        """Messages at QoS 1 or 2 that the broker does not have yet."""
        return len(self._messages)

    @property
    def has_room(self) -> bool:
        """Are there packet ids left for messages and requests?"""
        return len(self._messages) + len(self._requests) < _MOST_PACKETS

    @property
    def unanswered_requests(self) -> int:
        """SUBSCRIBE and UNSUBSCRIBE packets without an answer."""
        return len(self._requests)

    @property
    def unanswered_pings(self) -> int:
        """Pings that the broker has not answered yet."""
        return self._suspicion.unanswered_pings

    def messages(self) -> Iterable[Packet]:
        """Those that the broker does not have for sure."""
        return self._messages.values()

    def message(self, packet_id: int) -> Packet | None:
        """The message of a packet id."""
        return self._messages.get(packet_id)

    def reserve(self) -> int:
        """A packet id that is in no use."""
        if len(self._messages) + len(self._requests) >= 0xFFFE:
            raise MqttError("more than 65,000 packets wait for the broker")
        while True:
            packet_id = self._next_packet_id
            self._next_packet_id = packet_id % 0xFFFF + 1
            if packet_id not in self._messages and packet_id not in self._requests:
                return packet_id

    # What comes in.

    def add(self, packet: Packet) -> None:
        """A message at QoS 1 or 2, kept until the broker has it."""
        self._messages[packet.packet_id] = packet
        self._waiting.append(packet)
        self._send_waiting()

    def request(self, kind: PacketType, topic_filter: str, packet_id: int, octets: bytes) -> None:
        """A SUBSCRIBE or UNSUBSCRIBE over the present connection."""
        self._requests.add(packet_id)
        self.offer(Packet(kind, topic_filter.encode(), packet_id=packet_id, octets=octets))

    def offer(self, packet: Packet) -> bool:
        """Send at once, or hold back while others are suspected; False if it is too large, or too much is held back."""
        if len(packet.octets) > self._most_packet_bytes and not packet.packet_id:
            return False
        if self._suspicion.is_idle or (not self._waiting and self._suspicion.may_go(packet)):
            self._transmit(packet, packet.octets)
            return True
        if not packet.packet_id and len(self._waiting) >= _MOST_HELD_BACK:
            return False
        self._waiting.append(packet)
        self._send_waiting()
        return True

    def ping(self) -> None:
        """See whether the broker is there, after all that was sent before."""
        self._write(encode_ping())
        self._suspicion.ping_sent()

    def withdraw(self, sender: str, topic: bytes | None = None) -> list[Packet]:
        """Messages of a sender, or only those to one topic, are not sent any more."""
        found = [
            packet
            for packet in self._messages.values()
            if packet.sender == sender and (topic is None or packet.topic == topic) and not packet.released
        ]
        for packet in found:
            if packet.qos == 2 and packet.sent:
                # The broker may know its packet id: a new message under it would be taken for this one.
                packet.released, packet.payload, packet.sender = True, b"", ""
            else:
                del self._messages[packet.packet_id]
                self._in_flight.discard(packet.packet_id)
        self._send_waiting()
        return found

    # Connections come and go.

    def connected(self, version: int, window: int, most_packet_bytes: int) -> None:
        """The broker is there, and what it takes; messages wait for `begin`."""
        self._version, self._window, self._most_packet_bytes = version, window, most_packet_bytes

    def begin(self) -> None:
        """First the requests that were made already, then the messages of before, then what follows."""
        requests = [packet for packet in self._waiting if not packet.qos]
        self._waiting = deque((*requests, *self._messages.values()))
        self._is_open = True
        self._send_waiting()

    def lost(self, *, judge: bool) -> Packet | None:
        """The connection is gone: the packet over which the broker ends it, if that is known now. It is forgotten."""
        self._is_open = False
        self._requests.clear()
        self._waiting.clear()
        self._in_flight.clear()
        culprit = None
        if judge:
            culprit = self._suspicion.lost()
        else:
            self._suspicion.reset()
        if culprit is not None and self._messages.get(culprit.packet_id) is culprit:
            del self._messages[culprit.packet_id]
        return culprit

    # What the broker says.

    def answered(self, packet_id: int) -> None:
        """A request has its answer."""
        self._requests.discard(packet_id)

    def ping_answered(self) -> None:
        """The broker was still there."""
        self._suspicion.ping_answered()
        self._send_waiting()

    def finished(self, packet_id: int, code: int) -> None:
        """The broker has a message, or has refused it."""
        packet = self._messages.pop(packet_id, None)
        if packet is not None:
            self._in_flight.discard(packet_id)
            self._report(packet, code)
            self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and self._is_open:
            packet = self._waiting[0]
            if packet.qos and self._messages.get(packet.packet_id) is not packet:
                self._waiting.popleft()
                continue
            if packet.qos and len(self._in_flight) >= self._window:
                return
            if not self._suspicion.may_go(packet):
                if self._suspicion.wants_ping:
                    self.ping()
                return
            self._waiting.popleft()
            if packet.qos:
                self._send_message(packet)
            else:
                self._transmit(packet, packet.octets)

    def _send_message(self, packet: Packet) -> None:
        packet_id = packet.packet_id
        if packet.released:
            octets = encode_acknowledgement(PacketType.PUBREL, packet_id)
        else:
            octets = encode_publish(
                self._version,
                packet.topic,
                packet.payload,
                qos=packet.qos,
                retain=packet.retain,
                dup=packet.sent,
                packet_id=packet_id,
                user_properties=((PUBLISHER_PROPERTY, packet.publisher),) if packet.publisher else (),
            )
        self._in_flight.add(packet_id)
        if len(octets) > self._most_packet_bytes:
            self.finished(packet_id, _PACKET_TOO_LARGE)
            return
        packet.sent = True
        self._transmit(packet, octets)

    def _transmit(self, packet: Packet, octets: bytes) -> None:
        self._write(octets)
        if self._suspicion.sent(packet):
            self.ping()
