"""Who is told what became of every message; the live Trace is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from triagemq.exchange.gateway.model import Delivery, Publication, Session, Subscription
    from triagemq.exchange.gateway.routes import Group
    from triagemq.trace.schema import Outcome

__all__ = ["Numbers", "Observer"]


class Observer(Protocol):
    """Hears of publications and of each copy that is settled."""

    def published(self, publication: Publication, qos: int) -> None:
        """A message has come from the broker."""

    def fanned_out(self, group: Group, publication: Publication, now_ns: int) -> None:
        """A QoS 0 message has been sent to all of a group, with no managed port in between."""

    def settled(
        self,
        session: Session,
        subscription: Subscription,
        publication: Publication,
        outcome: Outcome,
        delivery: Delivery | None,
        now_ns: int,
    ) -> None:
        """A copy has been delivered, or never will be."""


class Numbers:
    """Ids of the Trace for what has only names here, in order of appearance.

    A subscriber may have several connections: `subscriber_of` tells its name from a client id.

    >>> numbers = Numbers()
    >>> numbers.topic("a"), numbers.topic("b"), numbers.topic("a")
    (0, 1, 0)
    """

    def __init__(self, subscriber_of: Callable[[str], str] = lambda client_id: client_id) -> None:
        self._subscriber_of = subscriber_of
        self.topics: dict[str, int] = {}
        self.subscribers: dict[str, int] = {}
        self.subscriptions: dict[tuple[str, str], int] = {}

    def topic(self, name: str) -> int:
        """topic_id of a topic."""
        return self.topics.setdefault(name, len(self.topics))

    def subscriber(self, client_id: str) -> int:
        """subscriber_id of a client."""
        return self.subscribers.setdefault(self._subscriber_of(client_id), len(self.subscribers))

    def subscription(self, client_id: str, topic_filter: str) -> int:
        """subscription_id of a client's filter."""
        pair = (self._subscriber_of(client_id), topic_filter)
        return self.subscriptions.setdefault(pair, len(self.subscriptions))

    def subscription_for(self, session: Session, subscription: Subscription, topic: str) -> int:
        """subscription_id of a message that a client gets by a filter."""
        return subscription.number
