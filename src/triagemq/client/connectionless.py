"""QoS -1: one datagram, no connection, no answer; for the smallest of sensors."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from triagemq.client.gateway_errors import unreachable
from triagemq.client.settings import GatewayAddress
from triagemq.client.topics import without_registration
from triagemq.errors import ParameterError
from triagemq.mqttsn import encode_publish

__all__ = ["publish_without_connection"]


def publish_without_connection(
    gateway: str,
    topic: str | int,
    payload: bytes,
    *,
    retain: bool = False,
    predefined_topics: Mapping[int, str] | None = None,
) -> None:
    """Send an event to a topic that needs no registration: a predefined id, or a name of two octets."""
    host, port, secure = GatewayAddress.parse(gateway)
    if secure:
        raise ParameterError("gateway", "one datagram makes no DTLS association; use a Publisher with qos=-1")
    reference = without_registration(topic, predefined_topics or {})
    if reference is None:
        raise ParameterError("topic", f"QoS -1 needs a predefined topic or two octets, not {topic!r}")
    datagram = encode_publish(*reference, payload, -1, retain)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as sender:
            sender.sendto(datagram, address)
    except OSError as error:
        raise unreachable(host, port, error) from error
