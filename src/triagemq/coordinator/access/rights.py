"""Who may do what at a gateway, from what is announced and the tokens it was announced with."""

from __future__ import annotations

from dataclasses import dataclass

from triagemq.coordinator.access.grants import Grant, Grants
from triagemq.coordinator.access.token_watch import TokenWatch
from triagemq.coordinator.access.tokens import Caller
from triagemq.coordinator.intents.registry import Record, Registry
from triagemq.intents import SubscriberIntent


@dataclass(frozen=True, slots=True)
class Rights:
    """Subscribers may have what they announced, publishers may publish what their token allows.

    Publishers need not declare every topic. With `required` off, everyone may do everything.
    """

    registry: Registry
    tokens: TokenWatch
    required: bool

    def client_id_base(self, record: Record) -> str:
        """What a client's ids begin with: its name, and with access on the key that only it knows."""
        name = record.intent.name
        return f"{name}.{record.session_key}" if self.required else name

    def grants(self) -> Grants:
        """The rights of everyone who is announced now."""
        if not self.required:
            return Grants()
        return Grants(True, {self.client_id_base(record): self._grant(record) for record in self.registry})

    def _grant(self, record: Record) -> Grant:
        intent = record.intent
        if isinstance(intent, SubscriberIntent):
            return Grant(name=intent.name, subscribe=tuple(each.topic for each in intent.subscriptions))
        token = self.tokens.by_id.get(record.owner)
        return Grant(name=intent.name, publish=() if token is None else Caller.of(token).publish)
