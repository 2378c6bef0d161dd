"""A topic filter as the broker knows it: who gets its messages, and who is waiting to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from triagemq.exchange.gateway.model import Session, Subscription
from triagemq.exchange.gateway.routes import Origin
from triagemq.exchange.mqtt.packets import Message

__all__ = ["Filter", "Join"]

_LONG_AGO_NS = -(10**18)


@dataclass(slots=True, eq=False)
class Join:
    """A client that waits for the answer to a SUBSCRIBE."""

    session: Session
    subscription: Subscription
    answer: Callable[[int], None]


@dataclass(slots=True, eq=False)
class Filter:
    """One filter over one lane of a link. `granted` is the broker's QoS, -1 before its first answer."""

    topic_filter: str
    lane: int
    identifier: int = 0
    granted: int = -1
    members: dict[Session, Subscription] = field(default_factory=dict)
    # Those who wait for the next SUBSCRIBE, and those whose SUBSCRIBE is on its way.
    joining: list[Join] = field(default_factory=list)
    asking: list[Join] = field(default_factory=list)
    packet_id: int = 0
    # Identifier of a SUBSCRIBE to those who get the retained messages that it brings.
    fetchers: dict[int, list[Session]] = field(default_factory=dict)
    # Retained messages that came before the answer to the SUBSCRIBE that fetched them.
    early: list[tuple[Origin, Message]] = field(default_factory=list)
    asked_ns: int = _LONG_AGO_NS

    @property
    def qos(self) -> int:
        """The highest that anybody wants."""
        wanted = [subscription.qos for subscription in self.members.values()]
        wanted += [join.subscription.qos for join in (*self.asking, *self.joining)]
        return max(wanted, default=0)

    @property
    def is_unused(self) -> bool:
        """Does nobody want it, or wait for an answer about it?"""
        return not (self.members or self.joining or self.asking or self.packet_id)

    def leave(self, session: Session) -> None:
        """A client does not want it any more."""
        self.members.pop(session, None)
        self.joining = [join for join in self.joining if join.session is not session]
        self.asking = [join for join in self.asking if join.session is not session]

    def ask_again(self) -> None:
        """What was asked will not be answered: all of it is to be asked anew."""
        self.joining = [*self.asking, *self.joining]
        self.asking = []
        self.packet_id = 0
