"""Intents of clients: announce, change, withdraw, keep alive. Checked, durable, then planned.

A change is made in memory at once, so that the next request sees it, and acknowledged when the store has it. If the
store fails, the change is rolled back, and the store is reconciled as soon as it can be written: a failed write may
have succeeded after all. Planning and gateways never hold up an answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from triagemq.coordinator import store as tables
from triagemq.coordinator.access.rights import TokenWatch
from triagemq.coordinator.access.tokens import Caller, Role, Token, session_key
from triagemq.coordinator.intents.registry import (
    Key,
    Record,
    Registry,
    check_limits,
    check_once,
    check_rights,
)
from triagemq.coordinator.loop.runtime import Runtime
from triagemq.coordinator.refusals import ConflictError, MissingError, StoreError
from triagemq.coordinator.store import Store
from triagemq.intents import Intent
from triagemq.plan import Decision
from triagemq.waiting import Tasks

_LOG = logging.getLogger("triagemq.coordinator")
_STOOD_STILL_SECONDS = 1.0
_LEASES_SECONDS = 0.2
_WRITE_AGAIN_SECONDS = 1.0


class Service:
    """The state that clients change, in one event loop. `access` off: everyone may do everything."""

    def __init__(
        self, store: Store, registry: Registry, tokens: TokenWatch, planning: Runtime, *, access: bool
    ) -> None:
        self.store = store
        self.registry = registry
        self.access = access
        # By client, until when its lease runs.
        self._leases: dict[Key, float] = {}
        self.tokens = tokens
        self.planning = planning
        self.leases_ended = 0
        # Names whose stored records may differ from those in memory.
        self._unsure: set[Key] = set()
        self._write_again_at = 0.0
        self._reports: dict[Key, int] = {}
        # Changes that the store does not have yet, by name.
        self._changing: dict[Key, asyncio.Future[None]] = {}
        self._tasks = Tasks()

    def begin(self) -> None:
        """Clients of before a restart have one lease to send a heartbeat."""
        for record in self.registry:
            self._renew(record)

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
        keys = [*((intent.kind, intent.name) for intent in announce), *withdraw]
        check_once(keys)
        while under_way := {self._changing[key] for key in keys if key in self._changing}:
            await asyncio.wait(under_way)
        records = self._checked(caller, announce, withdraw)
        before = {key: self.registry.get(key) for key in keys}
        for record in records:
            self.registry.put(record)
        for key in withdraw:
            self.registry.remove(key)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changing |= dict.fromkeys(keys, stored)
        # The caller may go away: a change that has begun is carried out.
        return await asyncio.shield(self._tasks.start(self._carry_out(before, stored)))

    def is_changing(self, key: Key) -> bool:
        """Is a change of that name being stored?"""
        return key in self._changing

    async def _carry_out(
        self, before: Mapping[Key, Record | None], stored: asyncio.Future[None]
    ) -> list[Record]:
        after = {key: self.registry.get(key) for key in before}
        records = [record for record in after.values() if record is not None]
        try:
            await self._store_present(before)
        except BaseException:
            for key, known in before.items():
                self.registry.restore(key, known)
                if known is None:
                    self._forget(key)
            self._unsure.update(before)
            # The gateway may have got these rights meanwhile, with those of another client.
            self.planning.rights_changed()
            raise
        finally:
            for key in before:
                del self._changing[key]
            stored.set_result(None)
        gone = [key for key, record in after.items() if record is None and before[key] is not None]
        # The same intent again only renews its lease.
        news = [
            each
            for each in records
            if (known := before[each.key]) is None
            or (known.intent, known.address, known.role) != (each.intent, each.address, each.role)
        ]
        for key in gone:
            self._forget(key)
        for record in records:
            self._renew(record)
        if news or gone:
            self.planning.intents_changed(news, gone, _reason(news, gone))
        if self.access and news:
            await self.planning.rights_in_force()
        await self.planning.gateways.until_returned()
        return records

    async def _store_present(self, keys: Iterable[Key]) -> None:
        """Write the present records of these names."""
        present = {key: self.registry.get(key) for key in keys}
        announced = [record for record in present.values() if record is not None]
        withdrawn = [key for key, record in present.items() if record is None]
        await self.store.write(tables.announce, announced, withdrawn)

    def heartbeat(self, caller: Caller, key: Key) -> Record:
        """The client is there: its lease begins anew."""
        record = self.find(caller, key)
        if key in self._leases:
            self._renew(record)
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
        await self.store.write(tables.revoke_token, token_id, time.time_ns())
        await self.tokens.look(0.0)
        await self._withdraw_of_revoked()
        while self.registry.owned_by(token_id):
            # Something of it was being changed; that ends, and nothing new begins.
            await asyncio.sleep(_LEASES_SECONDS / 10)
            await self._withdraw_of_revoked()

    async def add_token(self, token: Token) -> None:
        await self.store.write(tables.add_token, token)
        await self.tokens.look(0.0)

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
        """Withdraw intents whose leases have expired; never ends."""
        while True:
            slept_from = time.monotonic()
            await asyncio.sleep(_LEASES_SECONDS)
            late = time.monotonic() - slept_from - _LEASES_SECONDS
            if late > _STOOD_STILL_SECONDS:
                # The coordinator itself stood still and received no heartbeats.
                self._leases = {key: until + late for key, until in self._leases.items()}
            try:
                await self._end_leases()
                await self._write_again()
            except Exception:
                # One that could not be withdrawn must not stop the others for ever.
                _LOG.exception("withdrawing goes on after a mistake of its own")

    async def _end_leases(self) -> None:
        now = time.monotonic()
        if ended := [key for key, until in self._leases.items() if until <= now]:
            self.leases_ended += len(ended)
            for key in ended:
                del self._leases[key]
            await self._withdraw(ended, "lease ended", "no heartbeat came for as long as its lease")
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
        self._leases.pop(key, None)
        self._reports.pop(key, None)

    def _leaves(self, key: Key) -> Record | None:
        """A record that is being changed stays, with a new lease."""
        if not self.is_changing(key):
            return self.registry.remove(key)
        if (record := self.registry.get(key)) is not None:
            self._renew(record)
        return None

    def _renew(self, record: Record) -> None:
        self._leases[record.key] = time.monotonic() + record.intent.lease_seconds

    async def _write_again(self) -> None:
        """Reconcile the store where it may differ, and probe whether it can be written again."""
        now = time.monotonic()
        if (not self._unsure and self.store.writing.ok) or now < self._write_again_at:
            return
        self._write_again_at = now + _WRITE_AGAIN_SECONDS
        keys = [key for key in self._unsure if not self.is_changing(key)]
        if not keys:
            await self.store.probe()
            return
        self._unsure.difference_update(keys)
        try:
            await self._store_present(keys)
        except StoreError:
            self._unsure.update(keys)

    # Parts of a change.

    def _checked(self, caller: Caller, announce: Sequence[Intent], withdraw: Sequence[Key]) -> list[Record]:
        keys = [(intent.kind, intent.name) for intent in announce]
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
        if caller.owner != owner and known is not None:
            # An operator announces for its owner.
            return replace(known, intent=intent)
        return Record(intent, owner, secret, caller.address, role=caller.policy_role)


def _reason(records: Sequence[Record], withdrawn: Sequence[Key]) -> str:
    """What changed, in words: names if there is one, else numbers."""
    if len(records) == 1 and not withdrawn:
        kind, name = records[0].key
        return f"{kind} {name} announced"
    if len(withdrawn) == 1 and not records:
        kind, name = withdrawn[0]
        return f"{kind} {name} withdrawn"
    return f"{len(records)} announced, {len(withdrawn)} withdrawn"
