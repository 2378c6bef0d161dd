"""One client's MQTT session with a broker, without a socket: octets in, octets and reports out.

What is published at QoS 1 or 2 stays until the broker has it, over any number of connections. What the broker sends
at QoS 1 or 2 is acknowledged in `acknowledgements`, which the owner of the socket writes only after everything that was
reported has been stored; so nothing acknowledged is ever lost. What CONNACK says that the broker does not take is not
sent to it: a QoS is lowered, a filter refused as the broker would.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from triagemq.errors import MqttError
from triagemq.mqtt import packets
from triagemq.mqtt.packets import (
    REFUSED,
    BrokerLimits,
    ConnectAnswer,
    Message,
    PacketStream,
    PacketType,
    ReasonCode,
    encode_acknowledgement,
    encode_publish,
    parse_publish,
)
from triagemq.mqttsn.filters import has_wildcard

_UNACCEPTABLE_VERSION = {0x01, 0x84}
_SHORT_EXPIRY_SECONDS = 60
# A SUBSCRIBE without its filter: header, packet id, identifier, length, options.
_SUBSCRIBE_BYTES = 16
_MOST_PACKETS = 65_000


@dataclass(frozen=True, slots=True)
class Login:
    """What a CONNECT says. The broker keeps a session for `session_expiry_seconds` without a connection; at 0 it ends
    with its connection. In MQTT 3.1.1 it has no end if that is more than a minute, and ends so otherwise.

    A session that `purges` begins by removing what the broker has of an earlier one. A broker that is silent for two
    and a half times `ping_seconds` (half the keep-alive, unless it is given) is taken for dead.
    """

    client_id: str
    session_expiry_seconds: int = 0
    purges: bool = False
    keep_alive_seconds: int = 60
    ping_seconds: float | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(slots=True, eq=False)
class Packet:
    """A PUBLISH to the broker. One without a `token` needs no answer."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    # Its name, which goes to its subscribers (MQTT 5).
    publisher: str = ""
    token: object = None
    # One from `reserve`, or one of before a restart: then the broker knows a QoS 2 message again.
    packet_id: int = 0
    # QoS 2: the broker has answered PUBREC. `sent`: over this or an earlier connection.
    released: bool = False
    sent: bool = False


class MqttOwner:
    """Receives what the broker reports; by default all of it is ignored."""

    def mqtt_connected(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """The broker has accepted the connection."""

    def mqtt_refused(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """The broker has refused it, and not for the version of the protocol."""

    def mqtt_lost(self, session: MqttSession) -> None:
        """The connection is gone, or has not been accepted; called by the owner of the socket, after all reports."""

    def mqtt_message(self, session: MqttSession, message: Message) -> None:
        """A message, not seen before if its QoS is 2."""

    def mqtt_published(self, session: MqttSession, packet: Packet, code: int) -> None:
        """The broker has (code below 0x80) or has refused a message."""

    def mqtt_released(self, session: MqttSession, packet: Packet) -> None:
        """QoS 2: the broker holds a message, or may have lost it with its memory: to be stored."""

    def mqtt_answered(self, session: MqttSession, packet_id: int, code: int) -> None:
        """The broker's answer to the SUBSCRIBE or UNSUBSCRIBE of that packet id."""

    def mqtt_writes(self, session: MqttSession) -> None:
        """The session has something to write, and had nothing before."""

    def mqtt_receiving(self, session: MqttSession, packet_id: int, is_unfinished: bool) -> None:
        """A QoS 2 message of that packet id has come, or is finished: to be stored for a restart."""

    def mqtt_booted(self, session: MqttSession, boot: str) -> None:
        """The broker was started anew: to be stored, too."""


class MqttSession:
    """See the module's text. `version` falls back from 5 to 4 (3.1.1) when the broker does not know 5."""

    def __init__(self, owner: MqttOwner, login: Login, *, version: int = 5) -> None:
        self.owner = owner
        self._stream = PacketStream()
        self._opened = False
        self._version_is_known = False
        self._has_left = False
        self._was_connected = False
        self._is_purging = False
        self._next_boot = ""
        self.login = login
        self.keep_alive_seconds = login.keep_alive_seconds
        self.version = version
        self.connected = False
        self.has_identifiers = False
        self.limits = BrokerLimits()
        # Pings that the broker has not answered yet.
        self.unanswered_pings = 0
        self.is_congested = False
        # By packet id: messages, over any number of connections; requests over the present one.
        self._messages: dict[int, Packet] = {}
        self._requests: set[int] = set()
        self._waiting: deque[Packet] = deque()
        self._in_flight: set[int] = set()
        self._next_packet_id = 1
        # Packet ids of QoS 2 messages of the broker whose PUBREL has not come.
        self.receiving: set[int] = set()
        self.boot = ""
        self.output = bytearray()
        self.acknowledgements = bytearray()
        # While nothing can be stored, nothing is acknowledged: the broker must keep what we cannot.
        self.holds_acknowledgements = False

    @property
    def ping_seconds(self) -> float:
        """The interval of PINGREQ."""
        longest = self.keep_alive_seconds / 2
        return longest if self.login.ping_seconds is None else min(self.login.ping_seconds, longest)

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

    # The connection.

    def opened(self, boot: str = "") -> None:
        """A TCP connection is there: introduce ourselves.

        `boot` is another whenever the broker was started anew, where that is known (see BrokerProcess).
        """
        self._stream = PacketStream()
        self._next_boot = boot
        self._opened = True
        login = self.login
        expiry_seconds = 0 if self._is_purging else login.session_expiry_seconds
        self._forget_output()
        self._write(
            packets.encode_connect(
                self.version,
                login.client_id,
                clean=expiry_seconds <= (0 if self.version == 5 else _SHORT_EXPIRY_SECONDS),
                keep_alive_seconds=login.keep_alive_seconds,
                user=login.user,
                password=login.password,
                session_expiry_seconds=expiry_seconds,
            )
        )

    def closed(self) -> None:
        """The TCP connection is gone."""
        if self._opened and not self._version_is_known:
            # Some brokers answer a CONNECT of a version they do not know by closing: try the other one next.
            self.version = 4 if self.version == 5 else 5
        self._opened = self.connected = False
        self._forget_output()
        self.unanswered_pings = 0
        self._requests.clear()
        self._waiting.clear()
        self._in_flight.clear()

    def ping(self) -> None:
        """Show the broker that we are there, and see whether it is: its answer comes after all that it has sent."""
        self.unanswered_pings += 1
        self._write(packets.PING)

    def leave(self) -> None:
        """Say good-bye: the broker need not wait for the connection to die."""
        if self.connected:
            self._write(packets.DISCONNECT)
        # What still comes is not acknowledged: the broker keeps it for the next connection.
        self._has_left = True

    def take_output(self) -> bytes:
        """What is to be written, which is then taken for written."""
        output, self.output = bytes(self.output), bytearray()
        if not self.holds_acknowledgements:
            output += self.acknowledgements
            self.acknowledgements.clear()
        return output

    def _forget_output(self) -> None:
        self.output = bytearray()
        self.acknowledgements.clear()

    def _acknowledge(self, packet_type: PacketType, packet_id: int) -> None:
        if not self.output and not self.acknowledgements:
            self.owner.mqtt_writes(self)
        self.acknowledgements += encode_acknowledgement(packet_type, packet_id)

    def _write(self, octets: bytes) -> None:
        if not self.output:
            self.owner.mqtt_writes(self)
        self.output += octets

    # Requests.

    def publish(self, packet: Packet) -> bool:
        """Publish; False if it is lost, which only happens to QoS 0: no connection, or a broker that does not read.

        Of a QoS 2 message that was `released` only the end of the exchange is left.
        """
        if packet.qos == 0:
            ready = self.connected and not self.is_congested
            return ready and self._send(packet) is ReasonCode.SUCCESS
        packet.packet_id = packet.packet_id or self.reserve()
        self._messages[packet.packet_id] = packet
        self._waiting.append(packet)
        self._send_waiting()
        return True

    def reserve(self) -> int:
        """A packet id that is in no use."""
        if len(self._messages) + len(self._requests) >= 0xFFFE:
            raise MqttError("more than 65,000 packets wait for the broker")
        while True:
            packet_id = self._next_packet_id
            self._next_packet_id = packet_id % 0xFFFF + 1
            if packet_id not in self._messages and packet_id not in self._requests:
                return packet_id

    def subscribe(
        self, topic_filter: str, qos: int, *, identifier: int | None, with_retained: bool = True
    ) -> int:
        """Subscribe over the present connection; the answer comes with the packet id that this returns."""
        packet_id = self._request()
        self._write(
            packets.encode_subscribe(
                self.version, packet_id, topic_filter, qos, identifier=identifier, with_retained=with_retained
            )
        )
        return packet_id

    def refuses_filter(self, topic_filter: str) -> ReasonCode:
        """Why the broker, by what it has said, does not take a filter; SUCCESS if it may."""
        if not self.limits.wildcard_subscriptions and has_wildcard(topic_filter):
            return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        if len(topic_filter.encode()) + _SUBSCRIBE_BYTES > self.limits.maximum_packet_bytes:
            return ReasonCode.PACKET_TOO_LARGE
        return ReasonCode.SUCCESS

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe over the present connection."""
        if not self.refuses_filter(topic_filter):
            self._write(packets.encode_unsubscribe(self.version, self._request(), topic_filter))

    def withdraw(self, packet: Packet) -> None:
        """A message is not sent any more, unless it has been."""
        if not packet.sent and not packet.released and self._messages.get(packet.packet_id) is packet:
            del self._messages[packet.packet_id]

    def _request(self) -> int:
        packet_id = self.reserve()
        self._requests.add(packet_id)
        return packet_id

    def _send_waiting(self) -> None:
        while self._waiting and self.connected and len(self._in_flight) < self.limits.receive_maximum:
            packet = self._waiting.popleft()
            if self._messages.get(packet.packet_id) is not packet:
                continue
            if packet.released:
                self._acknowledge(PacketType.PUBREL, packet.packet_id)
                code = None
            else:
                code = self._send(packet)
            if code is None:
                self._in_flight.add(packet.packet_id)
            else:
                del self._messages[packet.packet_id]
                self.owner.mqtt_published(self, packet, code)

    def _send(self, packet: Packet) -> ReasonCode | None:
        """Write a message; the code with which it is finished already, if it is."""
        limits = self.limits
        qos = min(packet.qos, limits.maximum_qos)
        if not qos and packet.token is not None:
            # The broker acknowledges nothing: then neither is this, whose sender relies on it.
            return ReasonCode.QOS_NOT_SUPPORTED
        octets = encode_publish(
            self.version,
            packet.topic,
            packet.payload,
            qos=qos,
            retain=packet.retain and limits.retain_available,
            dup=packet.sent and qos > 0,
            packet_id=packet.packet_id,
            user_properties=packets.publisher_property(packet.publisher),
        )
        if len(octets) > limits.maximum_packet_bytes:
            return ReasonCode.PACKET_TOO_LARGE
        packet.sent = True
        self._write(octets)
        return None if qos else ReasonCode.SUCCESS

    # Answers and messages of the broker.

    def receive(self, data: bytes) -> None:
        """Octets from the broker; MqttError if they are not MQTT."""
        owner = self.owner
        for first, body in self._stream.feed(data):
            if self._has_left:
                return
            packet_type = first >> 4
            if packet_type == PacketType.PUBLISH and self.connected:
                message = parse_publish(self.version, first, body)
                if message.qos == 0:
                    owner.mqtt_message(self, message)
                else:
                    self._message(message)
            else:
                self._other(packet_type, body)

    def _message(self, message: Message) -> None:
        packet_id = message.packet_id
        if message.qos == 1:
            self.owner.mqtt_message(self, message)
            self._acknowledge(PacketType.PUBACK, packet_id)
            return
        # Without DUP it is new: a broker that was killed may use a packet id again that we have not finished.
        if packet_id not in self.receiving or not message.dup:
            self.receiving.add(packet_id)
            self.owner.mqtt_receiving(self, packet_id, True)
            self.owner.mqtt_message(self, message)
        self._acknowledge(PacketType.PUBREC, packet_id)

    def _other(self, packet_type: int, body: bytes) -> None:
        if packet_type == PacketType.CONNACK:
            self._connack(packets.parse_connack(self.version, body))
        elif not self.connected:
            raise MqttError("the broker sent something before its CONNACK")
        elif packet_type in (PacketType.PUBACK, PacketType.PUBCOMP):
            packet_id, code = packets.parse_acknowledgement(body)
            # The broker does not know what we release: it has finished that, and the answer was lost (4.4).
            known = code != ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self._published(packet_id, code if known else ReasonCode.SUCCESS)
        elif packet_type == PacketType.PUBREC:
            self._received(*packets.parse_acknowledgement(body))
        elif packet_type == PacketType.PUBREL:
            packet_id, _ = packets.parse_acknowledgement(body)
            self._received_all(packet_id)
            self._acknowledge(PacketType.PUBCOMP, packet_id)
        elif packet_type in (PacketType.SUBACK, PacketType.UNSUBACK):
            is_suback = packet_type == PacketType.SUBACK
            answer = (
                packets.parse_suback(self.version, body) if is_suback else packets.parse_acknowledgement(body)
            )
            self._requests.discard(answer[0])
            self.owner.mqtt_answered(self, *answer)
        elif packet_type == PacketType.PINGRESP:
            self.unanswered_pings = max(0, self.unanswered_pings - 1)
        elif packet_type == PacketType.DISCONNECT:
            raise MqttError(
                f"the broker ended the connection: {packets.parse_disconnect(self.version, body)}"
            )
        else:
            raise MqttError(f"the broker sent a packet of type {packet_type}, which only clients send")

    def _connack(self, answer: ConnectAnswer) -> None:
        if self.connected:
            raise MqttError("the broker sent a second CONNACK")
        if answer.code:
            if self.version == 5 and answer.code in _UNACCEPTABLE_VERSION:
                raise MqttError("the broker does not speak MQTT 5")
            self.owner.mqtt_refused(self, answer)
            raise MqttError(f"the broker refuses the connection: {answer.refusal}")
        self._version_is_known = True
        if self.login.purges and not self._was_connected:
            # Brokers do not store sessions that began clean: so one connection to clean up, and then another.
            purged, self._is_purging = self._is_purging, answer.session_present
            if purged or answer.session_present:
                raise MqttError("the broker has a session of an earlier gateway, which is removed now")
        self.connected = self._was_connected = True
        self.has_identifiers = answer.subscription_identifiers
        self.limits = answer.limits
        # 0 means that the broker does not look; we still want to know whether it is there.
        self.keep_alive_seconds = answer.server_keep_alive or self.login.keep_alive_seconds
        booted = self._next_boot and self._next_boot != self.boot
        if not answer.session_present or (booted and self.boot):
            self._forget_exchanges()
        self.owner.mqtt_connected(self, answer)
        if booted:
            self.boot = self._next_boot
            self.owner.mqtt_booted(self, self.boot)
        # The messages of before go first, in their order.
        self._waiting = deque(self._messages.values())
        self._send_waiting()

    def _forget_exchanges(self) -> None:
        """The broker has lost our session, or was started anew with an older memory: what it has answered by PUBREC it
        may not hold, and would answer a PUBREL all the same. So it is sent again, and may come twice.
        """
        for packet in self._messages.values():
            if packet.released:
                packet.released = False
                self.owner.mqtt_released(self, packet)
        for packet_id in list(self.receiving):
            self._received_all(packet_id)

    def _received(self, packet_id: int, code: int) -> None:
        packet = self._messages.get(packet_id)
        if packet is not None and code >= REFUSED:
            self._published(packet_id, code)
            return
        if packet is not None:
            packet.released = True
            self.owner.mqtt_released(self, packet)
        # After PUBREL the broker would take the message for a new one: that it holds it is stored first.
        self._acknowledge(PacketType.PUBREL, packet_id)

    def _received_all(self, packet_id: int) -> None:
        if packet_id in self.receiving:
            self.receiving.discard(packet_id)
            self.owner.mqtt_receiving(self, packet_id, False)

    def _published(self, packet_id: int, code: int) -> None:
        packet = self._messages.pop(packet_id, None)
        if packet is not None:
            self._in_flight.discard(packet_id)
            self.owner.mqtt_published(self, packet, code)
            self._send_waiting()
