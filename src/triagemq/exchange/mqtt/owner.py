"""As whom a session logs in to a broker, and who hears what the broker says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from triagemq.exchange.mqtt.packets import ConnAck, Message
    from triagemq.exchange.mqtt.session import MqttSession
    from triagemq.exchange.mqtt.suspicion import Packet

__all__ = ["Login", "MqttOwner"]


@dataclass(frozen=True, slots=True)
class Login:
    """What a CONNECT says. A session that is not `clean` outlives its connections on the broker, too.

    One that is `fresh` (MQTT 5 only) takes over nothing from before, but outlives broken connections from then on.
    One that `purges` begins by removing what the broker has of an earlier session.
    """

    client_id: str
    clean: bool = True
    fresh: bool = False
    purges: bool = False
    keep_alive_seconds: int = 60
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    session_expiry_seconds: int = 7 * 86400


class MqttOwner(Protocol):
    """Who hears what the broker says."""

    def mqtt_connected(self, session: MqttSession, answer: ConnAck) -> None:
        """The broker has accepted the connection."""

    def mqtt_refused(self, session: MqttSession, answer: ConnAck) -> None:
        """The broker has refused it, and not for the version of the protocol."""

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

    def mqtt_rejected(self, session: MqttSession, packet: Packet) -> None:
        """The broker has ended connections over a packet, which is not sent again. The connection is gone now."""

    def mqtt_writes(self, session: MqttSession) -> None:
        """The session's `output`, which was empty, is to be written."""

    def mqtt_receiving(
        self, session: MqttSession, packet_id: int, digest: int | None, finished: bool
    ) -> None:
        """A QoS 2 message of that packet id has come, or is finished: to be stored for a restart. None: forget it."""

    def mqtt_booted(self, session: MqttSession, boot: str) -> None:
        """The broker was started anew: to be stored, too."""
