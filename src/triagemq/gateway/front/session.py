"""One MQTT client and its own connection to the broker, without sockets: octets of both sides in, events out.

What the client sends passes as it is, and so does what the broker sends, but for PUBLISH: each becomes a Copy, which
waits for its turn elsewhere. Packet ids stay as they are, so that the broker has its acknowledgement when the client
has given it. Towards the broker this end asks for as many unacknowledged messages as there are packet ids: a window
full of unimportant messages must not hold the important ones back there. The client's own window holds here.

A client of 3.1.1 is connected in MQTT 5 where the broker speaks it, and each packet is translated.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from triagemq.errors import MqttError
from triagemq.mqtt.packets import (
    ASSIGNED_CLIENT_IDENTIFIER,
    RECEIVE_MAXIMUM,
    REFUSED,
    SERVER_KEEP_ALIVE,
    Message,
    PacketStream,
    PacketTooLargeError,
    PacketType,
    ReasonCode,
    encode_acknowledgement,
    encode_packet,
    parse_acknowledgement,
    parse_properties,
    parse_publish,
)
from triagemq.mqtt.translation import (
    ConnectRequest,
    farewell,
    parse_answers,
    parse_connect,
    parse_subscribe,
    parse_unsubscribe,
    refusal,
    speaks_known_version,
    to_broker_of_5,
    to_client_of_4,
)

_CONNECT_BYTES = 256 << 10
_UNKNOWN_VERSION = 0x84
_UNSUPPORTED_VERSION = {0x01, _UNKNOWN_VERSION}
# Of one client, until the broker has room for more: as many as there are packet ids.
_MOST_HELD_BYTES = 64 << 20
_FROM_CLIENTS = frozenset(
    {
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.SUBSCRIBE,
        PacketType.UNSUBSCRIBE,
        PacketType.PINGREQ,
        PacketType.DISCONNECT,
        PacketType.AUTH,
    }
)
_FROM_BROKERS = frozenset(
    {
        PacketType.CONNACK,
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.SUBACK,
        PacketType.UNSUBACK,
        PacketType.PINGRESP,
        PacketType.DISCONNECT,
        PacketType.AUTH,
    }
)


class Copy(NamedTuple):
    """A PUBLISH for the client: the packet as it will get it, and what it says."""

    packet: bytes
    message: Message
    topic: str


class ToBroker(NamedTuple):
    """Octets for the broker."""

    octets: bytes


class ToClient(NamedTuple):
    """A packet for the client, other than PUBLISH: it goes first."""

    octets: bytes


class Dial(NamedTuple):
    """A connection to the broker is needed, and any earlier one is not; what goes there first is among the events."""


class Accepted(NamedTuple):
    """The broker has let the client in, under this id."""

    client_id: str
    session_present: bool


class FiltersChanged(NamedTuple):
    """`FrontSession.filters` are others."""


class Acknowledged(NamedTuple):
    """The client has a message at QoS 1 or 2."""

    packet_id: int


class SpeaksOld(NamedTuple):
    """The broker does not speak MQTT 5."""


class Close(NamedTuple):
    """The connection ends; `reason` is for the counters, `farewell` for the client."""

    reason: str
    farewell: bytes = b""


Event: TypeAlias = (
    ToBroker | ToClient | Copy | Dial | Accepted | FiltersChanged | Acknowledged | SpeaksOld | Close
)


@dataclass(slots=True)
class Filter:
    """What a client has subscribed to: its QoS, and what its user property `triage` says (MQTT 5)."""

    qos: int
    intent: str = ""


class FrontSession:
    """`client_octets`, `broker_octets` and the like return events, in order. `broker_version` is tried first."""

    def __init__(self, *, broker_version: int = 5, most_packet_bytes: int = 16 << 20) -> None:
        self.request: ConnectRequest | None = None
        self.is_accepted = False
        self.is_closed = False
        self.client_id = ""
        self.filters: dict[str, Filter] = {}
        self._broker_version = broker_version
        self._most_packet_bytes = most_packet_bytes
        self._from_client = PacketStream(_CONNECT_BYTES)
        self._from_broker = PacketStream()
        self._events: list[Event] = []
        # Messages at QoS 2 that were acknowledged in the client's place, until the broker's PUBREL.
        self._finishing: set[int] = set()
        # By packet id, until the broker answers.
        self._subscribing: dict[int, list[tuple[str, Filter]]] = {}
        # Where the client does not know the broker's Receive Maximum: what may be on its way, is, and has to wait.
        self._broker_window = 0xFFFF
        self._publishing: set[int] = set()
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        # What a client sends before it is let in, where another attempt may be needed.
        self._early = bytearray()
        self._has_begun = self._has_fallen_back = False

    @property
    def version(self) -> int:
        """Of the client."""
        return 5 if self.request is not None and self.request.version == 5 else 4

    @property
    def upstream_version(self) -> int:
        """Of the connection to the broker."""
        return self._broker_version if self.version < 5 else 5

    @property
    def window(self) -> int:
        """So many messages at QoS 1 and 2 the client takes without having acknowledged any."""
        return 0xFFFF if self.request is None else self.request.receive_maximum

    @property
    def _translates(self) -> bool:
        return self.version < self.upstream_version

    # From the client.

    def client_octets(self, data: bytes) -> list[Event]:
        """What follows from octets of the client."""
        if not self.is_closed and data:
            try:
                self._feed(data)
            except PacketTooLargeError:
                self._close("packet_too_large", ReasonCode.PACKET_TOO_LARGE)
            except MqttError:
                self._close("malformed", ReasonCode.MALFORMED_PACKET)
        return self._take()

    def _feed(self, data: bytes) -> None:
        if self._translates and self.request is not None and not self.is_accepted:
            self._early += data
            if len(self._early) > _CONNECT_BYTES:
                self._close("quota_exceeded", ReasonCode.QUOTA_EXCEEDED)
            return
        if self.request is None and not self._has_begun:
            self._has_begun = True
            if data[0] >> 4 != PacketType.CONNECT:
                self._close("no_connect", ReasonCode.PROTOCOL_ERROR)
                return
        for first, body in self._from_client.feed(data):
            if self._translates and self.request is not None and not self.is_accepted:
                self._early += encode_packet(first, body)
            else:
                self._client_packet(first, body)
            if self.is_closed:
                return

    def _client_packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if self.request is None:
            if not speaks_known_version(body):
                self._close("unknown_version", None, refusal(4, _UNKNOWN_VERSION))
                return
            self.request = parse_connect(body)
            self.client_id = self.request.client_id.decode(errors="replace")
            self._from_client.most_bytes = self._most_packet_bytes
            self._dial()
            return
        if kind not in _FROM_CLIENTS or (kind == PacketType.AUTH and self.version < 5):
            self._close("unexpected_packet", ReasonCode.PROTOCOL_ERROR)
            return
        match kind:
            case PacketType.PUBLISH:
                if first & 0x06 == 0x06 or len(body) < 2:
                    raise MqttError("a PUBLISH is malformed")
                self._publish(first, body)
                return
            case PacketType.PUBACK | PacketType.PUBCOMP:
                packet_id, _ = parse_acknowledgement(body)
                self._acknowledged(packet_id)
            case PacketType.PUBREC:
                packet_id, code = parse_acknowledgement(body)
                if code >= REFUSED:
                    self._acknowledged(packet_id)
            case PacketType.PUBREL:
                # Of an earlier connection, perhaps: the broker has it all the same.
                self._publishing.add(parse_acknowledgement(body)[0])
            case PacketType.SUBSCRIBE:
                request = parse_subscribe(self.version, body)
                intent = next((text for name, text in request.user_properties if name == "triage"), "")
                self._subscribing[request.packet_id] = [
                    (name, Filter(options & 0x03, intent)) for name, options in request.filters
                ]
            case PacketType.UNSUBSCRIBE:
                for name in parse_unsubscribe(self.version, body)[1]:
                    self.filters.pop(name, None)
                self._events.append(FiltersChanged())
        self._up(first, body)

    def _publish(self, first: int, body: bytes) -> None:
        """What the broker has no room for waits: a client of 3.1.1 cannot know how much that is."""
        octets = to_broker_of_5(first, body) if self._translates else encode_packet(first, body)
        if not self._translates or not first & 0x06:
            self._events.append(ToBroker(octets))
            return
        position = 2 + int.from_bytes(body[:2])
        self._held.append((int.from_bytes(body[position : position + 2]), octets))
        self._held_bytes += len(octets)
        if self._held_bytes > _MOST_HELD_BYTES:
            self._close("quota_exceeded", ReasonCode.QUOTA_EXCEEDED)
            return
        self._publish_held()

    def _publish_held(self) -> None:
        while self._held and len(self._publishing) < self._broker_window:
            packet_id, octets = self._held.popleft()
            self._held_bytes -= len(octets)
            self._publishing.add(packet_id)
            self._events.append(ToBroker(octets))

    def _up(self, first: int, body: bytes) -> None:
        octets = to_broker_of_5(first, body) if self._translates else encode_packet(first, body)
        self._events.append(ToBroker(octets))

    def _acknowledged(self, packet_id: int) -> None:
        self._events.append(Acknowledged(packet_id))

    def discard(self, message: Message) -> list[Event]:
        """The client does not get a message, on purpose: the broker has its acknowledgement from here."""
        if message.qos == 1:
            self._events.append(ToBroker(encode_acknowledgement(PacketType.PUBACK, message.packet_id)))
        elif message.qos == 2:
            self._finishing.add(message.packet_id)
            self._events.append(ToBroker(encode_acknowledgement(PacketType.PUBREC, message.packet_id)))
        return self._take()

    # From the broker.

    def broker_octets(self, data: bytes) -> list[Event]:
        """What follows from octets of the broker."""
        if not self.is_closed:
            try:
                stream = self._from_broker
                for first, body in stream.feed(data):
                    self._broker_packet(first, body)
                    if self.is_closed or self._from_broker is not stream:
                        break
            except MqttError:
                self._close("broker_malformed", ReasonCode.SERVER_UNAVAILABLE)
        return self._take()

    def broker_lost(self) -> list[Event]:
        """The connection to the broker has ended."""
        if self._translates and not self.is_accepted and self.request is not None and not self.is_closed:
            # Some brokers answer a CONNECT of a version that they do not know by closing.
            self._dial_in_4()
        else:
            self._close("broker_closed", ReasonCode.SERVER_SHUTTING_DOWN)
        return self._take()

    def broker_unreachable(self) -> list[Event]:
        """There is no connection to the broker."""
        self._close("broker_unreachable", ReasonCode.SERVER_UNAVAILABLE)
        return self._take()

    def _broker_packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind not in _FROM_BROKERS:
            raise MqttError(f"the broker sent a packet of type {kind}, which only clients send")
        match kind:
            case PacketType.PUBLISH:
                self._arrived(first, body)
                return
            case PacketType.CONNACK:
                if not self._connack(body):
                    return
            case PacketType.PUBREL:
                packet_id, _ = parse_acknowledgement(body)
                if packet_id in self._finishing:
                    self._finishing.discard(packet_id)
                    self._events.append(ToBroker(encode_acknowledgement(PacketType.PUBCOMP, packet_id)))
                    return
            case PacketType.PUBACK | PacketType.PUBCOMP:
                self._published(parse_acknowledgement(body)[0])
            case PacketType.PUBREC:
                packet_id, code = parse_acknowledgement(body)
                if code >= REFUSED:
                    self._published(packet_id)
            case PacketType.SUBACK:
                self._subscribed(*parse_answers(self.upstream_version, body))
        octets = to_client_of_4(first, body) if self._translates else encode_packet(first, body)
        if kind == PacketType.DISCONNECT:
            self._close("disconnected_by_broker", None, octets)
        elif octets:
            self._events.append(ToClient(octets))
        if kind == PacketType.CONNACK:
            if self.is_accepted:
                self._events.append(Accepted(self.client_id, bool(body[0] & 1)))
                if self._has_fallen_back:
                    self._events.append(SpeaksOld())
                early, self._early = bytes(self._early), bytearray()
                if early:
                    self._feed(early)
            else:
                self._close("refused_by_broker", None)

    def _connack(self, body: bytes) -> bool:
        """Is it an answer for the client?"""
        if self.is_accepted or len(body) < 2:
            raise MqttError("the broker sent a CONNACK that is too short, or a second one")
        code = body[1]
        if self._translates and code in _UNSUPPORTED_VERSION:
            self._dial_in_4()
            return False
        if code:
            return True
        if self.upstream_version == 5 and len(body) > 2:
            found = dict(parse_properties(body, 2)[0])
            assigned = found.get(ASSIGNED_CLIENT_IDENTIFIER)
            if assigned is not None:
                self.client_id = assigned.decode(errors="replace")
            if self._translates:
                if found.get(SERVER_KEEP_ALIVE) is not None:
                    # Only a client of MQTT 5 can know of it.
                    self._dial_in_4(is_old=False)
                    return False
                self._broker_window = found.get(RECEIVE_MAXIMUM) or 0xFFFF
        self.is_accepted = True
        return True

    def _arrived(self, first: int, body: bytes) -> None:
        message = parse_publish(self.upstream_version, first, body)
        if not self.is_accepted:
            raise MqttError("the broker sent a PUBLISH before its CONNACK")
        packet = to_client_of_4(first, body) if self._translates else encode_packet(first, body)
        self._events.append(Copy(packet, message, message.topic.decode(errors="replace")))

    def _published(self, packet_id: int) -> None:
        if packet_id in self._publishing:
            self._publishing.discard(packet_id)
            self._publish_held()

    def _subscribed(self, packet_id: int, codes: bytes) -> None:
        for (name, requested), code in zip(self._subscribing.pop(packet_id, ()), codes, strict=False):
            if code < REFUSED:
                self.filters[name] = requested
        self._events.append(FiltersChanged())

    # The connections.

    def _dial(self) -> None:
        assert self.request is not None
        self._from_broker = PacketStream()
        version = self.request.version if self.upstream_version < 5 else 5
        self._events += [Dial(), ToBroker(self.request.encode(version))]

    def _dial_in_4(self, *, is_old: bool = True) -> None:
        self._broker_version = 4
        self._has_fallen_back = is_old
        self._dial()

    def refuse(self, reason: str, code: ReasonCode) -> list[Event]:
        """This end gives the connection up."""
        self._close(reason, code)
        return self._take()

    def _close(self, reason: str, code: ReasonCode | None, last: bytes = b"") -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if code is not None and self.request is not None:
            if not self.is_accepted:
                last = refusal(self.version, code)
            elif self.version == 5:
                last = farewell(code)
        self._events.append(Close(reason, last))

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events
