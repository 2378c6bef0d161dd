"""What can go wrong with a broker or a gateway and be put right by its user."""

from __future__ import annotations

from triagemq.errors import TriageError

__all__ = ["BrokerError", "GatewayError", "MqttError"]


class BrokerError(TriageError):
    """A broker cannot be reached, started, or refuses the gateway."""


class GatewayError(TriageError):
    """The gateway cannot run as asked: address in use, state of another version, a wrong file."""


class MqttError(TriageError):
    """A broker sent octets that are not MQTT; the connection is given up and made again."""
