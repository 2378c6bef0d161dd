"""Of whom there may be only so many: clients by address, wills being asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from triagemq.exchange.gateway.model.sessions import Endpoint, Session
from triagemq.exchange.gateway.model.timers import Timer
from triagemq.mqttsn import Connect, WillTopic

# Sessions of one address that are kept for clients that are away, and hold nothing.
_MOST_EMPTY = 1_000

SessionsById: TypeAlias = dict[str, Session]
"""By client id."""

_Place = TypeVar("_Place", str, tuple[str, int])


class Places:
    """The sessions by address (a host) and by forwarder (a host and port that brings several wireless nodes)."""

    def __init__(self) -> None:
        self._at: dict[str, SessionsById] = {}
        self._behind: dict[tuple[str, int], SessionsById] = {}
        self._empty: dict[str, SessionsById] = {}

    def enter(self, session: Session) -> None:
        """A session is at its endpoint now."""
        endpoint, client_id = session.endpoint, session.client_id
        self._at.setdefault(endpoint[0], {})[client_id] = session
        if len(endpoint) == 3:
            self._behind.setdefault(endpoint[:2], {})[client_id] = session
        _take(self._empty, endpoint[0], client_id)

    def at(self, host: str) -> SessionsById:
        """The sessions at an address."""
        return self._at.get(host, {})

    def behind(self, forwarder: tuple[str, int]) -> SessionsById:
        """The sessions whose messages a forwarder brings."""
        return self._behind.get(forwarder, {})

    def leave(self, session: Session) -> None:
        """A session is there no longer."""
        endpoint, client_id = session.endpoint, session.client_id
        _take(self._at, endpoint[0], client_id)
        _take(self._behind, endpoint[:2], client_id)
        _take(self._empty, endpoint[0], client_id)

    def kept(self, session: Session) -> Session | None:
        """A session is kept for a client that is away. Of those that hold nothing only so many are: the one to end."""
        if not session.is_empty:
            return None
        sessions = self._empty.setdefault(session.endpoint[0], {})
        sessions[session.client_id] = session
        return next(iter(sessions.values())) if len(sessions) > _MOST_EMPTY else None


def _take(places: dict[_Place, SessionsById], place: _Place, client_id: str) -> None:
    sessions = places.get(place)
    if sessions is not None and sessions.pop(client_id, None) is not None and not sessions:
        del places[place]


@dataclass(slots=True)
class PendingConnect:
    """A CONNECT whose will is being asked for, for the first time or again."""

    message: Connect
    due_ns: int = 0
    topic: WillTopic | None = None
    attempts: int = 1


class PendingConnects:
    """By endpoint, in the order in which they are due to be asked again; one timer serves them all."""

    def __init__(self) -> None:
        self._waiting: dict[Endpoint, PendingConnect] = {}
        self._at: dict[str, dict[Endpoint, None]] = {}
        self.timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, endpoint: Endpoint) -> PendingConnect | None:
        """The one of a client that is there."""
        return self._waiting.get(endpoint)

    def make_room(self, host: str, *, most_there: int, most: int) -> None:
        """The oldest goes when there are too many, at first of the same address."""
        neighbours = self._at.get(host, {})
        if len(neighbours) >= most_there:
            self.end(next(iter(neighbours)))
        elif len(self._waiting) >= most:
            self.end(next(iter(self._waiting)))

    def put(self, endpoint: Endpoint, pending: PendingConnect, due_ns: int) -> None:
        """It has been asked for, and will be again by then."""
        pending.due_ns = due_ns
        self._waiting[endpoint] = pending
        self._at.setdefault(endpoint[0], {})[endpoint] = None

    def end(self, endpoint: Endpoint) -> PendingConnect | None:
        """It is over, or forgotten."""
        pending = self._waiting.pop(endpoint, None)
        if pending is not None:
            neighbours = self._at[endpoint[0]]
            del neighbours[endpoint]
            if not neighbours:
                del self._at[endpoint[0]]
        return pending

    @property
    def next_due_ns(self) -> int | None:
        """When the first is to be asked again."""
        return next((pending.due_ns for pending in self._waiting.values()), None)

    def due(self, now_ns: int) -> list[tuple[Endpoint, PendingConnect]]:
        """Those that are to be asked again now."""
        found = []
        for endpoint, pending in self._waiting.items():
            if pending.due_ns > now_ns:
                break
            found.append((endpoint, pending))
        return found
