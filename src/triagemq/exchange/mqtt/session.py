"""One client's MQTT session with a broker, without a socket: octets in, octets and reports out.

What is published at QoS 1 or 2 stays until the broker has it, over any number of connections. What the broker sends
at QoS 1 or 2 is acknowledged in `output`, which the owner of the socket writes only after everything that was
reported has been stored; so nothing acknowledged is ever lost. What CONNACK says that the broker does not take is not
sent to it: a QoS is lowered, a filter refused as the broker would.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from triagemq.errors import MqttError
from triagemq.exchange.mqtt.outbox import MqttOutbox, Packet
from triagemq.exchange.mqtt.packets import (
    REFUSED,
    BrokerLimits,
    ConnectAnswer,
    Message,
    PacketStream,
    PacketType,
    ReasonCode,
    encode_acknowledgement,
    encode_connect,
    encode_disconnect,
    encode_ping,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
    parse_acknowledgement,
    parse_connack,
    parse_disconnect,
    parse_publish,
    parse_suback,
    publisher_property,
)
from triagemq.mqttsn.filters import has_wildcard

_UNACCEPTABLE_VERSION = {0x01, 0x84}
_FRESH_SESSION_EXPIRY_SECONDS = 60
# A SUBSCRIBE without its filter: header, packet id, identifier, length, options.
_SUBSCRIBE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Login:
    """What a CONNECT says. A session that is not `clean` outlives its connections on the broker, too.

    One that is `fresh` (MQTT 5 only) takes over nothing from before, but outlives broken connections from then on.
    One that `purges` begins by removing what the broker has of an earlier session. A broker that is silent for two and
    a half times `ping_seconds` (half the keep-alive, unless it is given) is taken for dead.
    """

    client_id: str
    clean: bool = True
    fresh: bool = False
    purges: bool = False
    keep_alive_seconds: int = 60
    ping_seconds: float | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    session_expiry_seconds: int = 7 * 86400


class Receiving(IntEnum):
    """How far a QoS 2 message from the broker is."""

    BEGUN = 0
    FINISHED = 1
    """PUBREL has come."""
    FINISHED_BEFORE_RESTART = 2
    """That was before the broker was started anew; it may not know."""


class MqttOwner(Protocol):
    """Who hears what the broker says."""

    def mqtt_connected(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """The broker has accepted the connection."""

    def mqtt_refused(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """The broker has refused it, and not for the version of the protocol."""

    def mqtt_lost(self, session: MqttSession) -> None:
        """The connection is gone, or has not been accepted; called by who owns the socket, after all reports."""

    def mqtt_message(self, session: MqttSession, message: Message) -> None:
        """A message, not seen before if its QoS is 2."""

    def mqtt_published(self, session: MqttSession, token: object, code: int) -> None:
        """The broker has (code below 0x80) or has refused what was published with `token`."""

    def mqtt_released(self, session: MqttSession, token: object, holds: bool) -> None:
        """QoS 2: the broker holds what was published with `token`; to be stored, since it must not be sent again.

        Not `holds`: it may have lost that with its memory.
        """

    def mqtt_subscribed(self, session: MqttSession, packet_id: int, code: int) -> None:
        """The broker's answer to the SUBSCRIBE of that packet id."""

    def mqtt_unsubscribed(self, session: MqttSession) -> None:
        """The broker has answered an UNSUBSCRIBE."""

    def mqtt_writes(self, session: MqttSession) -> None:
        """The session's `output`, which was empty, is to be written."""

    def mqtt_receiving(
        self, session: MqttSession, packet_id: int, digest: int | None, stage: Receiving
    ) -> None:
        """A QoS 2 message of that packet id has come, or is finished: to be stored for a restart. None: forget it."""

    def mqtt_booted(self, session: MqttSession, boot: str) -> None:
        """The broker was started anew: to be stored, too."""


class MqttSession:
    """See the module's text. `version` falls back from 5 to 4 (3.1.1) when the broker does not know 5."""

    def __init__(self, owner: MqttOwner, login: Login, *, version: int = 5) -> None:
        self.owner = owner
        self._stream = PacketStream()
        self.outbox = MqttOutbox(self._write, self._release, self._published)
        self._opened = False
        self._version_is_known = False
        self._has_left = False
        self._was_connected = False
        self._is_purging = False
        self._next_boot = ""
        self._is_settling = False
        self.login = login
        self.keep_alive_seconds = login.keep_alive_seconds
        self.version = version
        self.connected = False
        self.has_identifiers = False
        self.limits = BrokerLimits()
        # Pings that the broker has not answered yet.
        self.unanswered_pings = 0
        self.is_congested = False
        # QoS 2 messages of the broker by packet id: a digest, and how far the exchange is.
        self.receiving: dict[int, tuple[int, Receiving]] = {}
        self.boot = ""
        self.output = bytearray()
        # Where in `output` acknowledgements are, and those that are held back.
        self._acknowledged: list[tuple[int, int]] = []
        self._held = bytearray()
        self._is_holding = False

    @property
    def ping_seconds(self) -> float:
        """The interval of PINGREQ."""
        longest = self.keep_alive_seconds / 2
        return longest if self.login.ping_seconds is None else min(self.login.ping_seconds, longest)

    def opened(self, boot: str = "") -> None:
        """A TCP connection is there: introduce ourselves.

        `boot` is another whenever the broker was started anew, where that is known (see BrokerProcess).
        """
        self._stream = PacketStream()
        self._next_boot = boot
        self._opened = True
        login = self.login
        clean, expiry_seconds = login.clean, 0 if login.clean else login.session_expiry_seconds
        if login.fresh:
            clean, expiry_seconds = self.version < 5, _FRESH_SESSION_EXPIRY_SECONDS
        self._forget_output()
        self._write(
            encode_connect(
                self.version,
                login.client_id,
                clean=clean or self._is_purging,
                keep_alive_seconds=login.keep_alive_seconds,
                user=login.user,
                password=login.password,
                session_expiry_seconds=0 if self._is_purging else expiry_seconds,
            )
        )

    def closed(self) -> None:
        """The TCP connection is gone."""
        if self._opened and not self._version_is_known:
            # Some brokers answer a CONNECT of a version they do not know by closing: try the other one next.
            self.version = 4 if self.version == 5 else 5
        self._opened = self.connected = self._is_settling = False
        self._forget_output()
        self.unanswered_pings = 0
        self.outbox.lost()

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

    def publish(
        self,
        topic: bytes,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        sender: str = "",
        publisher: str = "",
        token: object = None,
        packet_id: int | None = None,
        released: bool = False,
    ) -> bool:
        """Publish; False if it is lost, which only happens to QoS 0: no connection, or a broker that does not read.

        `publisher` goes to its subscribers (MQTT 5). `packet_id` is one from `reserve`, or one of before a restart:
        then the broker knows a QoS 2 message again, and if it was `released` only the end of the exchange is left.
        """
        if qos == 0:
            if not self.connected or self.is_congested:
                return False
            octets = encode_publish(
                self.version,
                topic,
                payload,
                retain=retain and self.limits.retain_available,
                user_properties=publisher_property(publisher),
            )
            if len(octets) > self.limits.maximum_packet_bytes:
                return False
            self._write(octets)
            return True
        packet_id = self.outbox.reserve() if packet_id is None else packet_id
        self.outbox.add(Packet(topic, payload, qos, retain, sender, publisher, token, packet_id, released))
        return True

    def subscribe(
        self, topic_filter: str, qos: int, *, identifier: int | None, with_retained: bool = True
    ) -> int:
        """Subscribe over the present connection; the answer comes with the packet id that this returns."""
        packet_id = self.outbox.request()
        self._write(
            encode_subscribe(
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
            self._write(encode_unsubscribe(self.version, self.outbox.request(), topic_filter))

    def ping(self) -> None:
        """Show the broker that we are there, and see whether it is: its answer comes after all that it has sent."""
        self.unanswered_pings += 1
        self._write(encode_ping())

    def leave(self) -> None:
        """Say good-bye: the broker need not wait for the connection to die."""
        if self.connected:
            self._write(encode_disconnect())
        # What still comes is not acknowledged: the broker keeps it for the next connection.
        self._has_left = True

    def take_output(self) -> bytes:
        """What is to be written, which is then taken for written."""
        output, self.output = bytes(self.output), bytearray()
        self._acknowledged.clear()
        return output

    def hold(self) -> None:
        """Acknowledge nothing more, not even what is not written yet: the broker must keep what we cannot store."""
        self._is_holding = True
        for start, length in reversed(self._acknowledged):
            self._held[:0] = self.output[start : start + length]
            del self.output[start : start + length]
        self._acknowledged.clear()

    def release(self) -> None:
        """Everything is stored: acknowledge it."""
        self._is_holding = False
        if self._held:
            held, self._held = bytes(self._held), bytearray()
            self._write(held)

    def _forget_output(self) -> None:
        self.output = bytearray()
        self._acknowledged.clear()
        self._held.clear()

    def _acknowledge(self, packet_type: PacketType, packet_id: int) -> None:
        octets = encode_acknowledgement(packet_type, packet_id)
        if self._is_holding:
            self._held += octets
        else:
            self._acknowledged.append((len(self.output), len(octets)))
            self._write(octets)

    def _write(self, octets: bytes) -> None:
        if not self.output:
            self.owner.mqtt_writes(self)
        self.output += octets

    def _message(self, message: Message) -> None:
        packet_id = message.packet_id
        if message.qos == 1:
            self.owner.mqtt_message(self, message)
            self._acknowledge(PacketType.PUBACK, packet_id)
            return
        digest = _digest(message.topic, message.payload)
        before, stage = self.receiving.get(packet_id, (-1, Receiving.FINISHED))
        # A packet id is free after PUBREL: what comes under it is new, also with DUP. A broker that was killed knows
        # less than it did: it uses packet ids again that we have not finished, and sends again what we have.
        is_copy = stage is Receiving.BEGUN or (stage is Receiving.FINISHED_BEFORE_RESTART and message.dup)
        if before != digest or not is_copy:
            self._receiving(packet_id, digest, Receiving.BEGUN)
            self.owner.mqtt_message(self, message)
        self._acknowledge(PacketType.PUBREC, packet_id)

    def _receiving(self, packet_id: int, digest: int, stage: Receiving) -> None:
        self.receiving[packet_id] = (digest, stage)
        self.owner.mqtt_receiving(self, packet_id, digest, stage)

    def _other(self, packet_type: int, body: bytes) -> None:
        if packet_type == PacketType.CONNACK:
            self._connack(parse_connack(self.version, body))
        elif not self.connected:
            raise MqttError("the broker sent something before its CONNACK")
        elif packet_type in (PacketType.PUBACK, PacketType.PUBCOMP):
            packet_id, code = parse_acknowledgement(body)
            # The broker does not know what we release: it has finished that, and the answer was lost (4.4).
            known = code != ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self.outbox.finished(packet_id, code if known else ReasonCode.SUCCESS)
        elif packet_type == PacketType.PUBREC:
            self._received(*parse_acknowledgement(body))
        elif packet_type == PacketType.PUBREL:
            packet_id, _ = parse_acknowledgement(body)
            digest, stage = self.receiving.get(packet_id, (-1, Receiving.FINISHED))
            if stage is Receiving.BEGUN:
                self._receiving(packet_id, digest, Receiving.FINISHED)
            self._acknowledge(PacketType.PUBCOMP, packet_id)
        elif packet_type == PacketType.SUBACK:
            packet_id, code = parse_suback(self.version, body)
            self.outbox.answered(packet_id)
            self.owner.mqtt_subscribed(self, packet_id, code)
        elif packet_type == PacketType.UNSUBACK:
            self.outbox.answered(parse_acknowledgement(body)[0])
            self.owner.mqtt_unsubscribed(self)
        elif packet_type == PacketType.PINGRESP:
            self.unanswered_pings = max(0, self.unanswered_pings - 1)
            if self._is_settling:
                self._begin()
        elif packet_type == PacketType.DISCONNECT:
            raise MqttError(f"the broker ended the connection: {parse_disconnect(self.version, body)}")
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
        purges = self.login.purges or (self.login.fresh and self.version == 5)
        if purges and not self._was_connected:
            # Brokers do not store sessions that began clean: so one connection to clean up, and then another.
            purged, self._is_purging = self._is_purging, answer.session_present
            if purged or answer.session_present:
                raise MqttError("the broker has a session of an earlier gateway, which is removed now")
        self.connected = self._was_connected = True
        self.has_identifiers = answer.subscription_identifiers
        self.limits = answer.limits
        self.outbox.connected(self.version, answer.limits)
        # 0 means that the broker does not look; we still want to know whether it is there.
        self.keep_alive_seconds = answer.server_keep_alive or self.login.keep_alive_seconds
        if not answer.session_present:
            self._release_none()
            for packet_id in self.receiving:
                self.owner.mqtt_receiving(self, packet_id, None, Receiving.FINISHED)
            self.receiving.clear()
        if self._next_boot and self.boot not in ("", self._next_boot):
            for packet_id, (digest, stage) in list(self.receiving.items()):
                if stage is Receiving.FINISHED:
                    self._receiving(packet_id, digest, Receiving.FINISHED_BEFORE_RESTART)
            self._is_settling = answer.session_present
        self.owner.mqtt_connected(self, answer)
        if self._is_settling:
            # What it still holds for us comes before the answer, and shows what it has distributed.
            self.ping()
        else:
            self._begin()

    def _begin(self) -> None:
        """Send what waits; the broker has sent everything of before."""
        if self._is_settling:
            self._is_settling = False
            self._release_none()
        if self._next_boot and self._next_boot != self.boot:
            self.boot = self._next_boot
            self.owner.mqtt_booted(self, self.boot)
        self.outbox.begin()

    def _release_none(self) -> None:
        """The broker was started anew or has lost our session, and may not hold any more what it has acknowledged by
        PUBREC: a PUBREL would be answered all the same. What has come back to us it has distributed; the rest is sent
        again.
        """
        seen = {digest for digest, _ in self.receiving.values()}
        for packet in self.outbox.messages():
            if packet.released and packet.sender and _digest(packet.topic, packet.payload) not in seen:
                packet.released = False
                self.owner.mqtt_released(self, packet.token, False)

    def _received(self, packet_id: int, code: int) -> None:
        packet = self.outbox.message(packet_id)
        if packet is not None and code >= REFUSED:
            self.outbox.finished(packet_id, code)
            return
        if packet is not None:
            packet.released = True
            self.owner.mqtt_released(self, packet.token, True)
        self._release(packet_id)

    def _release(self, packet_id: int) -> None:
        """After PUBREL the broker would take the message for a new one: that it holds it is stored first."""
        self._acknowledge(PacketType.PUBREL, packet_id)

    def _published(self, packet: Packet, code: int) -> None:
        self.owner.mqtt_published(self, packet.token, code)


def _digest(topic: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(topic)) << 24 | len(payload) & 0xFFFFFF
