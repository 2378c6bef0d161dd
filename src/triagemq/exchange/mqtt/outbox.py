"""Messages to the broker that it does not have for sure, in order, no more at once and none that it does not take."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from triagemq.errors import MqttError
from triagemq.exchange.mqtt.packets import (
    BrokerLimits,
    ReasonCode,
    encode_publish,
    publisher_property,
)

_MOST_PACKETS = 65_000


@dataclass(slots=True, eq=False)
class Packet:
    """A PUBLISH at QoS 1 or 2. One without a `token` needs no answer."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    sender: str
    publisher: str
    token: object
    packet_id: int
    # QoS 2: the broker holds it. `sent`: over this or an earlier connection.
    released: bool = False
    sent: bool = False


class MqttOutbox:
    """`write` takes octets, `release` the id of a PUBREL, `finished` a message that the broker has or has refused, with
    the code for it."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        release: Callable[[int], None],
        finished: Callable[[Packet, int], None],
    ) -> None:
        self._write = write
        self._release = release
        self._report = finished
        # By packet id: messages, over any number of connections; requests over the present one.
        self._messages: dict[int, Packet] = {}
        self._requests: set[int] = set()
        self._waiting: deque[Packet] = deque()
        self._in_flight: set[int] = set()
        self._next_packet_id = 1
        self._version = 5
        self._limits = BrokerLimits()
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
        """A message at QoS 1 or 2, until the broker has it."""
        self._messages[packet.packet_id] = packet
        self._waiting.append(packet)
        self._send_waiting()

    def request(self) -> int:
        """The packet id of a SUBSCRIBE or UNSUBSCRIBE over the present connection."""
        packet_id = self.reserve()
        self._requests.add(packet_id)
        return packet_id

    def withdraw(self, sender: str) -> None:
        """Messages of a sender are not sent any more."""
        for packet in list(self._messages.values()):
            if packet.sender != sender or packet.released:
                continue
            if packet.qos == 2 and packet.sent:
                # The broker may know its packet id: a new message under it would be taken for this one.
                packet.released, packet.payload, packet.sender = True, b"", ""
            else:
                del self._messages[packet.packet_id]
                self._in_flight.discard(packet.packet_id)
        self._send_waiting()

    # Connections come and go.

    def connected(self, version: int, limits: BrokerLimits) -> None:
        """The broker is there, and what it takes; messages wait for `begin`."""
        self._version, self._limits = version, limits

    def begin(self) -> None:
        """The messages of before go first, in their order."""
        self._waiting = deque(self._messages.values())
        self._is_open = True
        self._send_waiting()

    def lost(self) -> None:
        """The connection is gone."""
        self._is_open = False
        self._requests.clear()
        self._waiting.clear()
        self._in_flight.clear()

    # What the broker says.

    def answered(self, packet_id: int) -> None:
        """A request has its answer."""
        self._requests.discard(packet_id)

    def finished(self, packet_id: int, code: int) -> None:
        """The broker has a message, or has refused it."""
        packet = self._messages.pop(packet_id, None)
        if packet is not None:
            self._in_flight.discard(packet_id)
            self._report(packet, code)
            self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and self._is_open and len(self._in_flight) < self._limits.receive_maximum:
            packet = self._waiting.popleft()
            if self._messages.get(packet.packet_id) is not packet:
                continue
            code = self._send(packet)
            if code is None:
                self._in_flight.add(packet.packet_id)
            else:
                del self._messages[packet.packet_id]
                self._report(packet, code)

    def _send(self, packet: Packet) -> ReasonCode | None:
        """Write a message; the code with which it is finished already, if it is."""
        packet_id, limits = packet.packet_id, self._limits
        if packet.released:
            self._release(packet_id)
            return None
        qos = min(packet.qos, limits.maximum_qos)
        if not qos and packet.token is not None:
            # The broker acknowledges nothing: then neither is this, whose sender relies on it.
            return ReasonCode.QOS_NOT_SUPPORTED
        octets = encode_publish(
            self._version,
            packet.topic,
            packet.payload,
            qos=qos,
            retain=packet.retain and limits.retain_available,
            dup=packet.sent and qos > 0,
            packet_id=packet_id,
            user_properties=publisher_property(packet.publisher),
        )
        if len(octets) > limits.maximum_packet_bytes:
            return ReasonCode.PACKET_TOO_LARGE
        packet.sent = True
        self._write(octets)
        return None if qos else ReasonCode.SUCCESS
