"""The store: what must survive a restart. One writer thread; changes that wait are committed together.

A change is a function of a connection. `write` comes back when it is durable; whatever waits while a commit runs goes
into the next one, so that many small changes cost little more than one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from triagemq.coordinator.access import Role, Token
from triagemq.coordinator.intents_json import parse_intent
from triagemq.coordinator.orders import Orders
from triagemq.coordinator.orders_json import orders_from_json
from triagemq.coordinator.records import Record
from triagemq.coordinator.refusals import StoreError
from triagemq.coordinator.store_changes import Change
from triagemq.coordinator.store_schema import (
    DECISIONS,
    INTENTS,
    META,
    ORDERS,
    PORTS,
    TOKENS,
    TOPICS,
    open_database,
)
from triagemq.plan import Decision

__all__ = ["Store", "StoredDecision"]


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision with its number, when it was made and for which generation of orders."""

    number: int
    decided_ns: int
    generation: int
    decision: Decision


class Store:
    """The database behind one coordinator. Reading methods block: call them in a thread once the loop runs."""

    def __init__(self, url: str) -> None:
        self._engine = open_database(url)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._waiting: list[tuple[Change, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def write(self, change: Change) -> None:
        """Make a change durable; StoreError if that fails, and then nothing of it was stored."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((change, done))
        if self._flushing is None:
            self._flushing = loop.create_task(self._flush())
        await asyncio.shield(done)

    def write_now(self, change: Change) -> None:
        """The same outside of an event loop."""
        if failure := self._commit([change])[0]:
            raise failure

    async def close(self) -> None:
        """Finish what waits."""
        if self._flushing is not None:
            await self._flushing
        self.close_now()

    def close_now(self) -> None:
        self._writer.shutdown()
        self._engine.dispose()

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                failures = await loop.run_in_executor(
                    self._writer, self._commit, [change for change, _ in batch]
                )
                for (_, done), failure in zip(batch, failures, strict=True):
                    if done.done():
                        continue
                    if failure is None:
                        done.set_result(None)
                    else:
                        done.set_exception(failure)
                        done.exception()  # whoever waited may be gone
        finally:
            self._flushing = None

    def _commit(self, changes: Sequence[Change]) -> list[StoreError | None]:
        """Commit all in one transaction; if that fails each by itself, so that one bad change spoils no other."""
        try:
            with self._engine.begin() as connection:
                for change in changes:
                    change(connection)
            return [None] * len(changes)
        except SQLAlchemyError as error:
            if len(changes) == 1:
                return [StoreError(f"the database cannot be written: {_first_line(error)}")]
            return [failure for change in changes for failure in self._commit([change])]

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the database cannot be read: {_first_line(error)}") from None

    # What is read at the start.

    def records(self) -> list[Record]:
        with self._reading() as connection:
            rows = connection.execute(select(INTENTS).order_by(INTENTS.c.kind, INTENTS.c.name)).all()
        return [
            Record(
                parse_intent(row.kind, row.name, row.intent), row.owner, row.session_key, row.lease_seconds
            )
            for row in rows
        ]

    def generation(self) -> int:
        return self._meta("generation")

    def orders(self) -> Orders:
        """The last orders; at least their generation, if they were too large to keep."""
        with self._reading() as connection:
            row = connection.execute(select(ORDERS)).first()
        kept = Orders() if row is None else orders_from_json(json.loads(row.orders))
        return kept if kept.generation else Orders(self.generation())

    def bandwidths(self) -> dict[str, float]:
        with self._reading() as connection:
            return {row.name: row.bandwidth_bps for row in connection.execute(select(PORTS))}

    def measured(self) -> dict[str, Any]:
        with self._reading() as connection:
            return {row.topic: json.loads(row.measured) for row in connection.execute(select(TOPICS))}

    def tokens_version(self) -> int:
        """Changes whenever tokens do, also through another process."""
        return self._meta("tokens_version")

    def tokens(self) -> list[Token]:
        with self._reading() as connection:
            return [_token(row) for row in connection.execute(select(TOKENS).order_by(TOKENS.c.created_ns))]

    def decisions(self, after: int = 0, limit: int = 100) -> list[StoredDecision]:
        """A page in the order in which they were made, beginning behind the number `after`."""
        wanted = select(DECISIONS).where(DECISIONS.c.id > after).order_by(DECISIONS.c.id).limit(limit)
        with self._reading() as connection:
            return [
                StoredDecision(
                    row.id,
                    row.decided_ns,
                    row.generation,
                    Decision(row.kind, row.subject, row.before, row.after, row.reason),
                )
                for row in connection.execute(wanted)
            ]

    def latest_decision(self) -> int:
        """The number of the newest decision, 0 if there is none."""
        with self._reading() as connection:
            return int(connection.execute(select(func.max(DECISIONS.c.id))).scalar() or 0)

    def _meta(self, key: str) -> int:
        with self._reading() as connection:
            return int(connection.execute(select(META.c.value).where(META.c.key == key)).scalar_one())


def _first_line(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).partition("\n")[0]


def _token(row: Any) -> Token:
    rights = json.loads(row.rights)
    return Token(
        token_id=row.token_id,
        prefix=row.prefix,
        sha256=row.sha256,
        label=rights["label"],
        roles=frozenset(Role(role) for role in rights["roles"]),
        names=tuple(rights["names"]),
        publish=tuple(rights["publish"]),
        subscribe=tuple(rights["subscribe"]),
        most_subscriptions=rights["most_subscriptions"],
        most_publications_per_second=rights["most_publications_per_second"],
        created_ns=row.created_ns,
        expires_ns=row.expires_ns,
        revoked_ns=row.revoked_ns,
    )
