"""Of whom there may be only so many, and who is refused: clients by address, wills being asked for, the quarantine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from triagemq.exchange.gateway.model.sessions import Endpoint, Session
from triagemq.exchange.gateway.model.timers import Timer
from triagemq.mqttsn import Connect, WillTopic

# Sessions of one address that are kept for clients that are away, and hold nothing.
_MOST_EMPTY = 1_000
_MOST_HELD = 10_000
_MOST_RECORDS = 100
_MOST_TOPIC_CHARACTERS = 200
# So many packets of one client were each more than a mistake.
_PACKETS_OF_ONE_SENDER = 3

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


class SetAside(NamedTuple):
    """A packet that is not sent to the broker any more. `sender` is a name, never a client id that is a secret."""

    at_ns: int
    sender: str
    kind: str
    topic: str
    qos: int
    payload: bytes

    def __str__(self) -> str:
        who = f" of {self.sender!r}" if self.sender else ""
        topic = self.topic[:_MOST_TOPIC_CHARACTERS]
        return (
            f"quarantined: {self.kind}{who} to {topic!r}, QoS {self.qos}, {len(self.payload)} bytes: "
            "the broker ends the connection over it"
        )


class Quarantine:
    """Which senders, topics and filters are refused until when, and the last packets that were set aside."""

    def __init__(self) -> None:
        self._until_ns: dict[tuple[str | None, str | None], int] = {}
        self._packets_of: dict[str, int] = {}
        self.records: deque[SetAside] = deque(maxlen=_MOST_RECORDS)

    def refuses(self, client_id: str, topic: str, now_ns: int) -> bool:
        """Is what a client publishes to a topic not sent to the broker?"""
        return bool(self._until_ns) and (
            self._holds((client_id, topic), now_ns) or self._holds((client_id, None), now_ns)
        )

    def refuses_filter(self, topic_filter: str, now_ns: int) -> bool:
        """Is nobody to subscribe to a filter?"""
        return bool(self._until_ns) and self._holds((None, topic_filter), now_ns)

    def hold_filter(self, topic_filter: str, until_ns: int) -> None:
        """Nobody is to subscribe to a filter for a while."""
        self._hold((None, topic_filter), until_ns)

    def hold_publications(self, sender: str, topic: str, until_ns: int) -> bool:
        """What a client sends to a topic is refused for a while, or, which is answered, all that it sends."""
        self._hold((sender, topic), until_ns)
        packets = self._packets_of[sender] = self._packets_of.pop(sender, 0) + 1
        while len(self._packets_of) > _MOST_HELD:
            del self._packets_of[next(iter(self._packets_of))]
        is_repeated = bool(sender) and packets >= _PACKETS_OF_ONE_SENDER
        if is_repeated:
            self._hold((sender, None), until_ns)
        return is_repeated

    def _hold(self, key: tuple[str | None, str | None], until_ns: int) -> None:
        self._until_ns.pop(key, None)
        self._until_ns[key] = until_ns
        while len(self._until_ns) > _MOST_HELD:
            del self._until_ns[next(iter(self._until_ns))]

    def _holds(self, key: tuple[str | None, str | None], now_ns: int) -> bool:
        until_ns = self._until_ns.get(key)
        if until_ns is not None and until_ns <= now_ns:
            del self._until_ns[key]
            return False
        return until_ns is not None
