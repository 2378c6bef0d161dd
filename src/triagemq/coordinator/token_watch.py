"""The tokens there are, as the store has them: another process may make and revoke some at any moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from triagemq.coordinator.access import Caller, Token, TokenBook
from triagemq.coordinator.refusals import StoreError, UnauthorisedError
from triagemq.coordinator.store import Store

__all__ = ["TokenWatch"]

_OLD_SECONDS = 0.2
_OLD_FOR_UNKNOWN_SECONDS = 0.02


class TokenWatch:
    """Looks at the store again and again, as often as requests come but no oftener than is sensible."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._book = TokenBook()
        self._version = -1
        self._looked_at = -1.0

    @property
    def by_id(self) -> Mapping[str, Token]:
        return self._book.by_id

    async def caller(self, secret: str) -> Caller:
        """Who sent a token; one that is not known may have been made a moment ago."""
        await self.look(_OLD_SECONDS)
        try:
            return self._book.caller(secret)
        except UnauthorisedError:
            await self.look(_OLD_FOR_UNKNOWN_SECONDS)
            return self._book.caller(secret)

    async def look(self, older_than_seconds: float = _OLD_SECONDS) -> None:
        """Take over what has changed; while the store cannot be read, what is known holds."""
        now = time.monotonic()
        if self._version >= 0 and now - self._looked_at < older_than_seconds:
            return
        try:
            version = await asyncio.to_thread(self._store.tokens_version)
            if version != self._version:
                self._book = TokenBook(await asyncio.to_thread(self._store.tokens))
                self._version = version
        except StoreError:
            return
        self._looked_at = now

    def ended(self) -> list[str]:
        """The ids of tokens that were revoked or have expired."""
        now_ns = time.time_ns()
        return [token.token_id for token in self.by_id.values() if not token.valid(now_ns)]
