"""Storing what has changed before anything is promised, and going on without promises while the disk is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from triagemq.errors import GatewayError

if TYPE_CHECKING:
    from triagemq.exchange.gateway import GatewayCore
    from triagemq.exchange.mqtt import MqttSession
    from triagemq.exchange.store import Store

__all__ = ["Storing"]

TRY_AGAIN_SECONDS = 0.5


class Storing:
    """What could not be stored is kept in memory and tried again, together with what has changed since.

    Until then messages are delivered, but clients do not get PUBREC and the broker no acknowledgement: each keeps what
    it has sent, and whoever is killed loses nothing that somebody relies on. `say` gets a line at both ends.
    """

    def __init__(self, core: GatewayCore, store: Store, say: Callable[[str], None]) -> None:
        self.problem = ""
        """Why nothing can be stored now."""
        self._core = core
        self._store = store
        self._say = say
        self._next_ns = 0

    def keep(self, sessions: Callable[[], Iterable[MqttSession]], now_ns: int) -> None:
        """Store what has changed; `sessions` are those with the broker."""
        core = self._core
        if not core.can_store and now_ns < self._next_ns:
            return
        changes = core.changes.take()
        try:
            self._store.save(changes)
        except GatewayError as error:
            core.changes.give_back(changes)
            self._next_ns = now_ns + round(TRY_AGAIN_SECONDS * 1e9)
            for session in sessions():
                session.hold()
            if core.can_store:
                core.can_store = False
                core.counters.storage_failures += 1
                # Somebody must come by when nothing else happens.
                self._look_again()
                self._say(f"{error}; until then nothing is acknowledged that would have to be stored")
            self.problem = str(error)
            return
        if not core.can_store:
            core.can_store = True
            self.problem = ""
            for session in sessions():
                session.release()
            self._say("the state can be stored again")

    def _look_again(self) -> None:
        def look() -> None:
            if not self._core.can_store:
                self._look_again()

        self._core.after(TRY_AGAIN_SECONDS, look)
