"""The tokens there are, as the store has them: another process may make and revoke some at any moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from triagemq.coordinator.access.tokens import Caller, Token, TokenBook
from triagemq.coordinator.refusals import StoreError, UnauthorisedError
from triagemq.coordinator.store.changes import add_token, revoke_token
from triagemq.coordinator.store.store import Store

_OLD_SECONDS = 0.2
_APART_SECONDS = 0.05
"""However many bring tokens that are not known, the store is not looked at oftener than that."""


class StoredTokens:
    """The tokens of a store, outside of an event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tokens(self) -> list[Token]:
        return self._store.tokens()

    def add(self, token: Token) -> None:
        self._store.write_now(add_token, token)

    def revoke(self, token_id: str, revoked_ns: int) -> None:
        self._store.write_now(revoke_token, token_id, revoked_ns)


class TokenWatch:
    """Looks at the store again and again, as often as requests come but no oftener than is sensible."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._book = TokenBook()
        self._version = -1
        self._looked_at = -1.0
        self._looking = asyncio.Lock()

    @property
    def by_id(self) -> Mapping[str, Token]:
        return self._book.by_id

    async def caller(self, secret: str) -> Caller:
        """Who sent a token; one that is not known may have been made a moment ago."""
        await self.look(_OLD_SECONDS)
        try:
            return self._book.caller(secret)
        except UnauthorisedError:
            await self._look_since(time.monotonic(), _APART_SECONDS)
            return self._book.caller(secret)

    async def look(self, older_than_seconds: float = _OLD_SECONDS) -> None:
        """Take over what has changed; while the store cannot be read, what is known holds."""
        await self._look_since(time.monotonic() - older_than_seconds, 0.0)

    async def _look_since(self, moment: float, apart_seconds: float) -> None:
        """Come back when the store has been looked at since a moment: all who ask meanwhile share one look."""
        if self._looked_at > moment:
            return
        async with self._looking:
            if self._looked_at > moment:
                return
            await asyncio.sleep(max(0.0, self._looked_at + apart_seconds - time.monotonic()))
            begun = time.monotonic()
            try:
                version = await asyncio.to_thread(self._store.tokens_version)
                if version != self._version:
                    self._book = TokenBook(await asyncio.to_thread(self._store.tokens))
                    self._version = version
            except StoreError:
                pass
            self._looked_at = begun

    def ended(self) -> list[str]:
        """The ids of tokens that were revoked or have expired."""
        now_ns = time.time_ns()
        return [token.token_id for token in self.by_id.values() if not token.valid(now_ns)]
