"""A record: an announced intent and what belongs to it, as the store keeps it and the service works with it."""

from __future__ import annotations

from dataclasses import dataclass

from triagemq.coordinator.intents.asked import PublisherIntent, SubscriberIntent
from triagemq.coordinator.intents.json_text import kind_of

__all__ = ["Key", "Record"]

Key = tuple[str, str]
"""Kind (`publisher` or `subscriber`) and name."""


@dataclass(frozen=True, slots=True)
class Record:
    """An announced intent, who announced it, the key in its client ids, and how long it stays without a word."""

    intent: PublisherIntent | SubscriberIntent
    owner: str
    session_key: str
    lease_seconds: float
    sequence: int = 0
    """Grows with each change; a plan covers all up to one number. Not stored: it begins anew with each start."""

    @property
    def key(self) -> Key:
        return kind_of(self.intent), self.intent.name
