"""Ids of the Trace as a scenario gives them, so that a live run can be compared with its forecast and simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from triagemq.exchange.gateway.observer import Numbers

if TYPE_CHECKING:
    from triagemq.scenario import Scenario

__all__ = ["ScenarioNumbers"]


class ScenarioNumbers(Numbers):
    """Row numbers of the scenario; what it does not know gets numbers behind its last rows.

    A subscriber has a connection for each of its flows: `subscriber_of` tells its name from a client id.
    """

    def __init__(
        self, scenario: Scenario, subscriber_of: Callable[[str], str] = lambda client_id: client_id
    ) -> None:
        super().__init__()
        self._subscriber_of = subscriber_of
        topics, subscribers = list(scenario.topics.name), list(scenario.subscribers.name)
        self.topics = {name: row for row, name in enumerate(topics)}
        self.subscribers = {name: row for row, name in enumerate(subscribers)}
        pairs = zip(
            scenario.subscriptions.subscriber.tolist(), scenario.subscriptions.topic.tolist(), strict=True
        )
        self.subscriptions = {
            (subscribers[subscriber], topics[topic]): row for row, (subscriber, topic) in enumerate(pairs)
        }

    def subscriber(self, client_id: str) -> int:
        """subscriber_id of the subscriber that a client belongs to."""
        return super().subscriber(self._subscriber_of(client_id))

    def subscription(self, client_id: str, topic_filter: str) -> int:
        """subscription_id of a subscriber's topic."""
        return super().subscription(self._subscriber_of(client_id), topic_filter)
