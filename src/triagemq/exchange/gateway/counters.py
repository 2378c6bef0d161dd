"""What a gateway has counted since it started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GatewayCounters"]


@dataclass(slots=True)
class GatewayCounters:
    """Plain numbers, and counters by reason. `undelivered` has every message that did not reach a subscriber."""

    datagrams_in: int = 0
    unknown_senders: int = 0
    connects: int = 0
    handshakes: int = 0
    """DTLS associations that began."""
    resumptions: int = 0
    """Of these, by the short handshake of those who have been here before."""
    clients_lost: int = 0
    clients_moved: int = 0
    retries: int = 0
    broker_messages: int = 0
    broker_losses: int = 0
    client_messages: int = 0
    duplicates: int = 0
    quarantined: int = 0
    """Packets that are not sent to the broker any more: it ends the connection over them, or over others like them."""
    storage_failures: int = 0
    """How often the state could not be stored from some moment on."""
    sent: int = 0
    """PUBLISH datagrams handed to the network."""
    delivered: int = 0
    """Of these, at QoS 0 all that were sent, at QoS 1 and 2 all that were acknowledged."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Datagrams, by the reason of their DecodeError, or `unexpected_...`; `dtls_...` before they were opened."""
    undelivered: Counter[str] = field(default_factory=Counter)
    """Messages to subscribers, by outcome and reason."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests and messages of clients, by what was refused and why."""

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the log."""
        numbers = {name: getattr(self, name) for name in self.__slots__}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in numbers.items()}
