"""What the coordinator does for clients: announce, change, withdraw, keep alive. Checked, durable, then planned.

A change is made in memory at once, so that the next request sees it, and answered when the store has it; if the store
fails, it is taken back, and the store gets what holds as soon as it can be written again: a failed write may have
been one after all. Planning and the gateway are the runtime's business and never hold up an answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVarTuple

from sqlalchemy import Connection

from triagemq.coordinator.access.rights import TokenWatch
from triagemq.coordinator.access.tokens import Caller, Role, Token, session_key
from triagemq.coordinator.intents.registry import (
    Draft,
    Key,
    Leases,
    Record,
    Registry,
    check_limits,
    check_once,
    check_rights,
)
from triagemq.coordinator.loop.runtime import Runtime
from triagemq.coordinator.refusals import ConflictError, MissingError, StoreError, UnavailableError
from triagemq.coordinator.store import tables
from triagemq.coordinator.store.store import Store
from triagemq.intents import Intent
from triagemq.plan import Decision

_LOG = logging.getLogger("triagemq.coordinator")
_STOOD_STILL_SECONDS = 1.0
_LEASES_SECONDS = 0.2
_WRITE_AGAIN_SECONDS = 1.0
_Arguments = TypeVarTuple("_Arguments")


class Service:
    """The state that clients change, in one event loop. `access` off: everyone may do everything."""

    def __init__(
        self, store: Store, registry: Registry, tokens: TokenWatch, planning: Runtime, *, access: bool
    ) -> None:
        self.store = store
        self.registry = registry
        self.access = access
        self.leases: Leases[Key] = Leases()
        self.tokens = tokens
        self.planning = planning
        self.leases_ended = 0
        # Names of which the store may hold something else than is known here.
        self._unsure: set[Key] = set()
        self._write_again_at = 0.0
        self._reports: dict[Key, int] = {}
        self._changing: set[asyncio.Task[list[Record]]] = set()

    def begin(self) -> None:
        """Everyone who was there before has one lease to be heard again."""
        now = time.monotonic()
        for record in self.registry:
            self.leases.grant(record.key, record.intent.lease_seconds, now)

    # Intents.

    def look(self, caller: Caller, key: Key) -> Record:
        """A record that the caller may read; whatever else it is, it is not there."""
        record = self.registry.get(key)
        return record if record is not None and caller.may_look else self.find(caller, key)

    def find(self, caller: Caller, key: Key) -> Record:
        """A record that the caller may read and change."""
        record = self.registry.get(key)
        if record is None or not caller.owns(record.owner):
            raise MissingError(f"there is no {key[0]} {key[1]!r} of yours")
        return record

    async def change(
        self, caller: Caller, announce: Sequence[Intent] = (), withdraw: Sequence[Key] = ()
    ) -> list[Record]:
        """Announce some and withdraw others, all or none; the records of those announced."""
        drafts = self.registry.draft(self._checked(caller, announce, withdraw), withdraw)
        # The caller may go away: what has begun is carried out.
        changing = asyncio.ensure_future(self._carry_out(drafts))
        self._changing.add(changing)
        changing.add_done_callback(self._changing.discard)
        return await asyncio.shield(changing)

    async def _carry_out(self, drafts: Sequence[Draft]) -> list[Record]:
        records = [draft.record for draft in drafts if draft.record is not None]
        try:
            await self._store_as_drafted(drafts)
        except BaseException as error:
            for draft in drafts:
                self.registry.take_back(draft)
                if self.registry.get(draft.key) is None and not self.registry.is_changing(draft.key):
                    self._forget(draft.key)
            self._unsure.update(draft.key for draft in drafts)
            # The gateway may have got the rights of another client meanwhile, and these.
            self.planning.rights_changed()
            if isinstance(error, StoreError):
                raise UnavailableError(f"{error}; nothing was changed, try again later") from None
            raise
        now = time.monotonic()
        news, gone = [], []
        for draft in drafts:
            before = self.registry.keep(draft)
            if draft.record is None:
                self._forget(draft.key)
                if before is not None:
                    gone.append(draft.key)
                continue
            self.leases.grant(draft.key, draft.record.intent.lease_seconds, now)
            if _is_news(before, draft.record):
                news.append(draft.record)
        if news or gone:
            self.planning.intents_changed(news, gone, _reason(news, gone))
        if self.access and news:
            await self.planning.rights_in_force()
        await self.planning.gateways.until_returned()
        return records

    async def _store_as_drafted(self, drafts: Sequence[Draft]) -> None:
        announced = [draft.record for draft in drafts if draft.record is not None]
        withdrawn = [draft.key for draft in drafts if draft.record is None]
        await self.store.write(tables.announce, announced, withdrawn)

    def heartbeat(self, caller: Caller, key: Key) -> Record:
        """The client is there: its lease begins anew."""
        record = self.find(caller, key)
        self.leases.renew(key, time.monotonic())
        return record

    def is_new_report(self, record: Record, number: int | None) -> bool:
        """Whether a client's report was not taken before: it is sent again when its answer was lost."""
        if number is None:
            return True
        before, self._reports[record.key] = self._reports.get(record.key), number
        return before != number

    async def revoke_token(self, token_id: str) -> None:
        """The token is no good any more, and what was announced with it goes."""
        await self.tokens.look(0.0)
        if token_id not in self.tokens.by_id:
            raise MissingError(f"there is no token {token_id!r}")
        await self._write(tables.revoke_token, token_id, time.time_ns())
        await self.tokens.look(0.0)
        await self._withdraw_of_revoked()
        while self.registry.owned_by(token_id):
            # Something of it was being changed; that ends, and nothing new begins.
            await asyncio.sleep(_LEASES_SECONDS / 10)
            await self._withdraw_of_revoked()

    async def add_token(self, token: Token) -> None:
        await self._write(tables.add_token, token)
        await self.tokens.look(0.0)

    async def set_bandwidth(self, port: str, bandwidth_bps: float) -> None:
        await self._write(tables.set_bandwidth, port, bandwidth_bps)

    async def set_drops(self, policy: str, instead_of: str) -> None:
        await self._write(tables.set_drops, policy, instead_of)

    async def withdraw_unguarded(self) -> None:
        """What was announced while access was off has no owner and no key: it goes, and may come back with a token."""
        await self.tokens.look(0.0)
        keys = [record.key for record in self.registry if not record.session_key]
        await self._withdraw(
            keys, "access on", "it was announced while access was off; announce it with a token"
        )
        await self._withdraw_of_revoked()

    # Leases.

    async def watch_leases(self) -> None:
        """Withdraw what has not been heard of for a lease's length; never ends."""
        while True:
            slept_from = time.monotonic()
            await asyncio.sleep(_LEASES_SECONDS)
            late = time.monotonic() - slept_from - _LEASES_SECONDS
            if late > _STOOD_STILL_SECONDS:
                self.leases.forgive(late)
            try:
                await self._end_leases()
                await self._write_again()
            except Exception:
                # One that could not be withdrawn must not keep the others for ever.
                _LOG.exception("withdrawing goes on after a mistake of its own")

    async def _end_leases(self) -> None:
        ended = self.leases.ended(time.monotonic())
        if ended:
            self.leases_ended += len(ended)
            await self._withdraw(ended, "lease ended", "nothing was heard of it for as long as its lease")
        if self.access:
            await self.tokens.look()
            await self._withdraw_of_revoked()

    async def _withdraw_of_revoked(self) -> None:
        """A token that is no good any more takes what was announced with it along."""
        for token_id in self.tokens.ended():
            keys = [record.key for record in self.registry.owned_by(token_id)]
            await self._withdraw(keys, "token ended", "its token was revoked or has expired")

    async def _withdraw(self, keys: Sequence[Key], kind: str, why: str) -> None:
        gone = [record for key in keys if (record := self._leaves(key)) is not None]
        if not gone:
            return
        keys = [record.key for record in gone]
        for key in keys:
            self._forget(key)
        self.planning.intents_changed((), keys, kind)
        self.planning.note(
            [
                Decision(kind, f"{of} {name}", f"{record.intent.lease_seconds:g} s lease", "withdrawn", why)
                for record, (of, name) in zip(gone, keys, strict=True)
            ]
        )
        try:
            await self.store.write(tables.withdraw, keys)
        except StoreError:
            self._unsure.update(keys)

    def _forget(self, key: Key) -> None:
        self.leases.drop(key)
        self._reports.pop(key, None)

    def _leaves(self, key: Key) -> Record | None:
        """One whose client is saying something new right now stays, and is looked at again after its lease."""
        if not self.registry.is_changing(key):
            return self.registry.remove(key)
        if (record := self.registry.get(key)) is not None:
            self.leases.grant(key, record.intent.lease_seconds, time.monotonic())
        return None

    async def _write_again(self) -> None:
        """Tell the store what holds where it may know otherwise, and find out whether it can be written again."""
        now = time.monotonic()
        if (not self._unsure and self.store.writing.ok) or now < self._write_again_at:
            return
        self._write_again_at = now + _WRITE_AGAIN_SECONDS
        keys = [key for key in self._unsure if not self.registry.is_changing(key)]
        if not keys:
            await self.store.probe()
            return
        self._unsure.difference_update(keys)
        try:
            await self._store_as_drafted([Draft(key, self.registry.get(key)) for key in keys])
        except StoreError:
            self._unsure.update(keys)

    # Parts of a change.

    def _checked(self, caller: Caller, announce: Sequence[Intent], withdraw: Sequence[Key]) -> list[Record]:
        keys = [(intent.kind, intent.name) for intent in announce]
        check_once([*keys, *withdraw])
        records = []
        for intent, key in zip(announce, keys, strict=True):
            check_rights(caller, intent, self.planning.port_names)
            known = self.registry.get(key)
            if known is not None and not caller.owns(known.owner):
                raise ConflictError(f"the {key[0]} name {key[1]!r} is taken; choose another")
            records.append(self._record(caller, intent, key, known))
        for key in withdraw:
            caller.require(Role(key[0]))
            self.find(caller, key)
        check_limits(self.registry, caller, records, withdraw)
        return records

    def _record(self, caller: Caller, intent: Intent, key: Key, known: Record | None) -> Record:
        owner = caller.owner if known is None else known.owner
        if known is not None:
            secret = known.session_key
        elif self.access and caller.owner in self.tokens.by_id:
            secret = session_key(self.tokens.by_id[caller.owner], *key)
        else:
            secret = ""
        return Record(intent, owner, secret)

    async def _write(
        self, change: Callable[[Connection, *_Arguments], object], *arguments: *_Arguments
    ) -> None:
        try:
            await self.store.write(change, *arguments)
        except StoreError as error:
            raise UnavailableError(f"{error}; nothing was changed, try again later") from None


def _reason(records: Sequence[Record], withdrawn: Sequence[Key]) -> str:
    """What changed, in words: names if there is one, else numbers."""
    if len(records) == 1 and not withdrawn:
        kind, name = records[0].key
        return f"{kind} {name} announced"
    if len(withdrawn) == 1 and not records:
        kind, name = withdrawn[0]
        return f"{kind} {name} withdrawn"
    return f"{len(records)} announced, {len(withdrawn)} withdrawn"


def _is_news(before: Record | None, after: Record) -> bool:
    """The same intent again only begins its lease anew."""
    return before is None or before.intent != after.intent
