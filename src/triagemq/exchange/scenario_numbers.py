"""Ids of the Trace as a scenario gives them, so that a live run can be compared with its forecast and simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from triagemq.exchange.gateway.observer import Names, Numbers

if TYPE_CHECKING:
    from triagemq.exchange.gateway.model import Session, Subscription
    from triagemq.scenario import Scenario

__all__ = ["ScenarioNumbers"]


class ScenarioNumbers(Numbers):
    """Row numbers of the scenario; what it does not know gets numbers behind its last rows.

    The scenario has a subscription for each topic, also where a client has one filter for several of them.
    """

    def __init__(
        self, scenario: Scenario, subscriber_of: Callable[[str], str] = lambda client_id: client_id
    ) -> None:
        super().__init__(subscriber_of)
        topics, subscribers = list(scenario.topics.name), list(scenario.subscribers.name)
        self.topics = Names(topics)
        self.publishers = Names(scenario.publishers.name)
        self.subscribers = Names(subscribers)
        pairs = list(
            zip(
                scenario.subscriptions.subscriber.tolist(), scenario.subscriptions.topic.tolist(), strict=True
            )
        )
        self.subscriptions = Names((subscribers[subscriber], topics[topic]) for subscriber, topic in pairs)
        self._rows = {(subscriber, topics[topic]): row for row, (subscriber, topic) in enumerate(pairs)}

    def subscription_for(self, session: Session, subscription: Subscription, topic: str) -> int:
        """subscription_id of a subscriber's topic, if the scenario has it, else that of the filter."""
        return self._rows.get((session.number, topic), subscription.number)
