"""How many clients may be at one address, behind one forwarder, and in all; and who makes room for a new one.

A client that has promised no keep-alive and is silent for long, and a session that is kept for nobody knows whom and
holds nothing, are given up when there is no room otherwise. Nobody else is: a new client is refused then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from triagemq.exchange.gateway import ending
from triagemq.exchange.gateway.model import Endpoint, Session, SessionState

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore

__all__ = ["Places"]

# Who is looked at for each client that finds no room: the next one goes on where this one stopped.
_LOOKED_AT = 8
# Sessions of one address that are kept for clients that are away, and hold nothing.
_MOST_EMPTY = 1_000

_Sessions = dict[str, Session]
_Place = TypeVar("_Place", str, tuple[str, int])


class Places:
    """The sessions by address (a host) and by forwarder (a host and port that brings several wireless nodes)."""

    def __init__(self, gateway: GatewayCore) -> None:
        self._gateway = gateway
        self._at: dict[str, _Sessions] = {}
        self._behind: dict[tuple[str, int], _Sessions] = {}
        self._empty: dict[str, _Sessions] = {}

    def enter(self, session: Session) -> None:
        """A session is at its endpoint now."""
        endpoint, client_id = session.endpoint, session.client_id
        self._at.setdefault(endpoint[0], {})[client_id] = session
        if len(endpoint) == 3:
            self._behind.setdefault(endpoint[:2], {})[client_id] = session
        _take(self._empty, endpoint[0], client_id)

    def behind(self, forwarder: tuple[str, int]) -> list[Session]:
        """The sessions whose messages a forwarder brings."""
        return list(self._behind.get(forwarder, {}).values())

    def leave(self, session: Session) -> None:
        """A session is there no longer."""
        endpoint, client_id = session.endpoint, session.client_id
        _take(self._at, endpoint[0], client_id)
        _take(self._behind, endpoint[:2], client_id)
        _take(self._empty, endpoint[0], client_id)

    def kept(self, session: Session) -> None:
        """A session is kept for a client that is away; only so many of those that hold nothing are."""
        if not _is_empty(session):
            return
        sessions = self._empty.setdefault(session.endpoint[0], {})
        sessions[session.client_id] = session
        if len(sessions) > _MOST_EMPTY:
            ending.end(self._gateway, next(iter(sessions.values())), "empty session")

    def refusal(self, client_id: str, endpoint: Endpoint) -> str:
        """Why a client finds no room at an endpoint, or "": then there is room now."""
        gateway = self._gateway
        policy, host = gateway.settings.policy, endpoint[0]
        known = gateway.sessions.get(client_id)
        if known is None and policy.refuses_connection(client_id, len(gateway.sessions)):
            self._make_room(gateway.sessions)
            if policy.refuses_connection(client_id, len(gateway.sessions)):
                return "policy"
        is_here = known is not None and known.endpoint[0] == host
        if not is_here and self._is_full(self._at.get(host), policy.clients_per_address(host)):
            return "too many at one address"
        forwarder = endpoint[:2]
        is_behind = len(endpoint) == 2 or (known is not None and known.endpoint[:2] == forwarder)
        if not is_behind and self._is_full(self._behind.get(forwarder), policy.maximum_clients_per_forwarder):
            return "too many behind one forwarder"
        return ""

    def _is_full(self, sessions: _Sessions | None, most: int) -> bool:
        if sessions is None or len(sessions) < most:
            return False
        self._make_room(sessions)
        return len(sessions) >= most

    def _make_room(self, sessions: _Sessions) -> None:
        gateway = self._gateway
        for _ in range(min(_LOOKED_AT, len(sessions))):
            client_id = next(iter(sessions))
            session = sessions.pop(client_id)
            sessions[client_id] = session
            if self._is_idle(session):
                gateway.counters.refused["session: given up for another"] += 1
                if session.connected:
                    ending.lose(gateway, session)
                if gateway.sessions.get(client_id) is session:
                    ending.end(gateway, session, "given up for another")
                return

    def _is_idle(self, session: Session) -> bool:
        if session.state is SessionState.DISCONNECTED:
            return _is_empty(session)
        silent_ns = self._gateway.now_ns - session.heard_ns
        is_supervised = session.state is not SessionState.ACTIVE or session.duration_seconds > 0
        return not is_supervised and silent_ns >= self._gateway.settings.silent_seconds * 1e9


def _take(places: dict[_Place, _Sessions], place: _Place, client_id: str) -> None:
    sessions = places.get(place)
    if sessions is not None and sessions.pop(client_id, None) is not None and not sessions:
        del places[place]


def _is_empty(session: Session) -> bool:
    return not (session.subscriptions or session.buffer or session.arrivals or session.abandoned)
