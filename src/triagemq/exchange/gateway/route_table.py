"""The routes of one link, kept until something about them changes."""

from __future__ import annotations

from collections.abc import ValuesView
from typing import TYPE_CHECKING

from triagemq.exchange.gateway.routes import Route, RouteKey, has_wildcard
from triagemq.mqttsn import matches

if TYPE_CHECKING:
    from triagemq.exchange.gateway.model import Session

__all__ = ["RouteTable"]

_MOST_ROUTES = 100_000


class RouteTable:
    """Routes by key, and by what they depend on: sessions know the keys of theirs, topics are looked up here."""

    def __init__(self) -> None:
        self._routes: dict[RouteKey, Route] = {}
        self._keys_of_topic: dict[bytes, list[RouteKey]] = {}
        # Bound once: every message from the broker is looked up.
        self.get = self._routes.get

    def values(self) -> ValuesView[Route]:
        """All that are known now."""
        return self._routes.values()

    def keep(self, key: RouteKey, route: Route) -> None:
        """Remember a route that was worked out."""
        if len(self._routes) >= _MOST_ROUTES:
            self.clear()
        self._routes[key] = route
        self._keys_of_topic.setdefault(key[0], []).append(key)

    def forget(self, session: Session) -> None:
        """A client has changed: routes that lead to it have to be worked out again."""
        for key in list(session.routes):
            self._forget(key)

    def forget_topics_of(self, topic_filter: str) -> None:
        """Who gets the topics of a filter has changed."""
        topics = (
            [topic for topic in self._keys_of_topic if matches(topic_filter, topic.decode())]
            if has_wildcard(topic_filter)
            else [topic_filter.encode()]
        )
        for topic in topics:
            for key in list(self._keys_of_topic.get(topic, ())):
                self._forget(key)

    def clear(self) -> None:
        """Everything has to be worked out again."""
        for key in list(self._routes):
            self._forget(key)

    def _forget(self, key: RouteKey) -> None:
        route = self._routes.pop(key)
        for session in route.sessions():
            session.routes.discard(key)
        keys = self._keys_of_topic[key[0]]
        keys.remove(key)
        if not keys:
            del self._keys_of_topic[key[0]]
