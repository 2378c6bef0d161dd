"""What the parts of a connection need of the whole: to send, to number messages, to know whether it is there. And the
errors about a gateway, in words.
"""

from __future__ import annotations

from typing import Protocol

from triagemq.errors import GatewayUnreachableError, RefusedError
from triagemq.mqttsn import Message, ReturnCode

DOUBT_AFTER_ATTEMPTS = 2
"""Whoever has sent a message so often without an answer has the wire find out whether the gateway is there."""

_SLOWER = 1.5
_SLOWEST = 5.0
_MEANING = {
    ReturnCode.REJECTED_CONGESTION: "the gateway or its broker cannot take more now",
    ReturnCode.REJECTED_INVALID_TOPIC_ID: "the gateway does not know that topic id",
    ReturnCode.REJECTED_NOT_SUPPORTED: "not allowed, or not supported by the gateway or its broker",
}


class Wire(Protocol):
    """A connection, as its parts see it."""

    @property
    def is_active(self) -> bool:
        """May messages be sent now?"""

    async def until_active(self) -> None:
        """Wait for the connection; ClosedError when there will be none."""

    def send(self, message: Message) -> bool:
        """Send it, or lose it; False if the system cannot take it now."""

    def probe(self) -> None:
        """Find out whether the gateway is there."""

    def take_message_id(self) -> int:
        """One that nothing unanswered has."""


def pause_before(attempt: int, retry_seconds: float) -> float:
    """How long to wait for an answer to the n-th sending before the next.

    >>> [pause_before(attempt, 2.0) for attempt in (1, 2, 3, 9)]
    [2.0, 3.0, 4.5, 10.0]
    """
    return retry_seconds * min(_SLOWER ** (attempt - 1), _SLOWEST)


def refused(what: str, return_code: ReturnCode) -> RefusedError:
    """The gateway's answer to `what` was no.

    >>> str(refused("registering topic 'smoke'", ReturnCode.REJECTED_CONGESTION))
    "registering topic 'smoke' was refused: the gateway or its broker cannot take more now"
    """
    return RefusedError(what, return_code, _MEANING.get(return_code, return_code.name))


def unreachable(host: str, port: int, error: OSError) -> GatewayUnreachableError:
    """The system knows no way to that address.

    >>> str(unreachable("nowhere", 10000, OSError(101, "Network is unreachable")))
    'gateway nowhere:10000: Network is unreachable; check the address'
    """
    return GatewayUnreachableError(f"gateway {host}:{port}: {error.strerror or error}; check the address")
