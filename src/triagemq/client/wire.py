"""What the parts of a connection need of the whole: to send, to number messages, to know whether it is there."""

from __future__ import annotations

from typing import Protocol

from triagemq.mqttsn import Message

__all__ = ["DOUBT_AFTER_ATTEMPTS", "Wire", "pause_before"]

DOUBT_AFTER_ATTEMPTS = 2
"""Whoever has sent a message so often without an answer has the wire find out whether the gateway is there."""

_SLOWER = 1.5
_SLOWEST = 5.0


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
