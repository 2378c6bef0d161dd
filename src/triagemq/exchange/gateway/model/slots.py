"""Subscribers with several connections (slots): which of them carries which topic.

A subscriber subscribes over slot 0. Messages of a topic go through the session of the slot that was ordered for it
while that is active, otherwise through the one that subscribed: a change moves a topic between two messages, and
everybody gets one copy. What a slot's session could not deliver when it goes returns to slot 0's.

Only slots that share a way to the broker can stand in for each other: those of a gateway in aggregating mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from triagemq.exchange.gateway.model.sessions import Session, SessionState

SlotOf = Callable[[str, str], int]
"""The slot by which a subscriber gets a topic."""

Identify = Callable[[str], tuple[str, int]]
"""The name of the subscriber to whom a client id belongs, and the number of its slot."""


def own_name(client_id: str) -> tuple[str, int]:
    """Every client is a subscriber of its own, with one slot.

    >>> own_name("pump")
    ('pump', 0)
    """
    return client_id, 0


class Slots:
    """The sessions of each subscriber by slot, and by which of them topics go.

    `everyone` has the sessions of all clients.
    """

    def __init__(self, identify: Identify, everyone: Mapping[str, Session]) -> None:
        self._identify = identify
        self._everyone = everyone
        self._sessions: dict[tuple[str, int], Session] = {}
        self._slot_of: SlotOf = lambda name, topic: 0

    def name_of(self, client_id: str) -> str:
        """The name of the subscriber or publisher whose client id it is."""
        return self._identify(client_id)[0]

    def order(self, slot_of: SlotOf, changed: Iterable[str]) -> None:
        """From now on topics go by these slots; `changed` are the subscribers for whom that is new."""
        self._slot_of = slot_of
        for name in changed:
            self._forget_routes(name)

    def ranked(self, places: Iterable[tuple[str, int]] | None) -> None:
        """The classes of these subscribers' slots, or of all, have changed: messages go to them in another order."""
        for name, slot in list(self._sessions) if places is None else places:
            for one in {0, slot}:
                session = self._sessions.get((name, one))
                if session is not None:
                    session.link.routes.forget(session)

    def add(self, session: Session) -> None:
        """A session begins."""
        place = session.subscriber, session.slot = self._identify(session.client_id)
        self._sessions[place] = session

    def remove(self, session: Session) -> None:
        """A session has ended."""
        place = (session.subscriber, session.slot)
        if self._sessions.get(place) is session:
            del self._sessions[place]

    def identify_again(self) -> None:
        """Names have come to mean something else."""
        self._sessions.clear()
        for session in self._everyone.values():
            self.add(session)
            session.link.routes.forget(session)

    def changed(self, session: Session) -> None:
        """A session has become active, or is so no longer: topics ordered for its slot go another way."""
        session.link.routes.forget(session)
        if session.slot:
            self._forget_routes(session.subscriber)

    def carrier(self, session: Session, topic: str) -> Session:
        """The session through which messages of a topic go to whoever subscribed over this one."""
        if not session.slot and (slot := self._slot_of(session.subscriber, topic)):
            other = self._sessions.get((session.subscriber, slot))
            if other is not None and other.state is SessionState.ACTIVE and other.link is session.link:
                return other
        return session

    def first(self, session: Session) -> Session | None:
        """Slot 0's session, if there is one beside this."""
        if not session.slot:
            return None
        found = self._sessions.get((session.subscriber, 0))
        return found if found is not None and found.link is session.link else None

    def subscription_owner(self, session: Session) -> Session:
        """Whose subscriptions count for messages through this session."""
        return self.first(session) or session

    def _forget_routes(self, name: str) -> None:
        first = self._sessions.get((name, 0))
        if first is not None:
            first.link.routes.forget(first)
