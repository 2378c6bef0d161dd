"""The store: what must survive a restart. One writer thread; changes that wait are committed together.

A change is a function of a connection. `write` comes back when it is durable; whatever waits while a commit runs goes
into the next one, so that many small changes cost little more than one. Whatever goes wrong, everyone who waits is
told: that the disk is full as well as a mistake in a change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVarTuple

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Select, select
from sqlalchemy.exc import SQLAlchemyError

from triagemq.coordinator.access.tokens import Token, token_from_json
from triagemq.coordinator.decide.orders import Orders, parse_orders
from triagemq.coordinator.intents.registry import Record
from triagemq.coordinator.loop.health import Check
from triagemq.coordinator.refusals import StoreError
from triagemq.coordinator.store.tables import (
    DECISIONS,
    DROPS,
    GATEWAYS,
    INTENTS,
    MEASURED_PORTS,
    META,
    ORDERS,
    PAGE_SESSIONS,
    PORTS,
    TOKENS,
    TOPICS,
    first_line,
    open_database,
    touch,
)
from triagemq.errors import PlanError
from triagemq.intents import PUBLISHER, SUBSCRIBER, Intent, PublisherIntent, SubscriberIntent
from triagemq.plan import Decision

_LOG = logging.getLogger("triagemq.coordinator")
_INTENTS: dict[str, TypeAdapter[Any]] = {
    PUBLISHER: TypeAdapter(PublisherIntent),
    SUBSCRIBER: TypeAdapter(SubscriberIntent),
}

Change = Callable[[Connection], object]
_Arguments = TypeVarTuple("_Arguments")


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
        self.writing = Check(words="the database cannot be written; nothing new is taken")
        """Whether the last change could be stored."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._waiting: list[tuple[Change, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def write(
        self, change: Callable[[Connection, *_Arguments], object], *arguments: *_Arguments
    ) -> None:
        """Make a change durable; StoreError if that fails, and then nothing of it was stored."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((lambda connection: change(connection, *arguments), done))
        if self._flushing is None:
            self._flushing = loop.create_task(self._flush())
        await asyncio.shield(done)

    def write_now(self, change: Callable[[Connection, *_Arguments], object], *arguments: *_Arguments) -> None:
        """The same outside of an event loop."""
        if failure := self._commit([lambda connection: change(connection, *arguments)])[0]:
            raise failure

    async def probe(self) -> None:
        """Find out whether it can be written again, by a change that changes nothing."""
        with contextlib.suppress(StoreError):
            await self.write(touch)

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
        batch: list[tuple[Change, asyncio.Future[None]]] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                failures = await loop.run_in_executor(
                    self._writer, self._commit, [change for change, _ in batch]
                )
                _settle([done for _, done in batch], failures)
                self._note(failures)
        except BaseException as error:
            # The thread itself failed, or this task was ended: no caller may wait for ever.
            waiting = [done for _, done in (*batch, *self._waiting)]
            self._waiting = []
            failure = StoreError(f"the database cannot be written: {type(error).__name__}: {error}")
            _settle(waiting, [failure] * len(waiting))
            self._note([failure])
            if not isinstance(error, Exception):
                raise
        finally:
            self._flushing = None

    def _note(self, failures: Sequence[StoreError | None]) -> None:
        """Health is about the database, not about a change that it does not take for what is in it."""
        wrong = [failure for failure in failures if failure is not None]
        if len(wrong) < len(failures):
            self.writing.worked()
        elif wrong:
            self.writing.failed(str(wrong[-1]))

    def _commit(self, changes: Sequence[Change]) -> list[StoreError | None]:
        """Commit all in one transaction; if that fails each by itself, so that one bad change spoils no other."""
        try:
            with self._engine.begin() as connection:
                for change in changes:
                    change(connection)
            return [None] * len(changes)
        except Exception as error:
            if len(changes) > 1:
                return [failure for change in changes for failure in self._commit([change])]
            if not isinstance(error, SQLAlchemyError | OSError):
                _LOG.exception("a change of the database failed by a mistake")
            return [StoreError(f"the database cannot be written: {first_line(error)}")]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the database cannot be read: {first_line(error)}") from None

    # What is read at the start.

    def records(self) -> list[Record]:
        with self._reading() as connection:
            rows = connection.execute(select(INTENTS).order_by(INTENTS.c.kind, INTENTS.c.name)).all()
        found = [(row, _intent(row)) for row in rows]
        return [Record(intent, row.owner, row.session_key) for row, intent in found if intent is not None]

    def generation(self) -> int:
        return self._meta("generation")

    def orders(self) -> Orders:
        """The last orders; at least their generation, if they were too large to keep or cannot be read."""
        with self._reading() as connection:
            row = connection.execute(select(ORDERS)).first()
        try:
            kept = Orders() if row is None else parse_orders(row.orders)
        except PlanError as error:
            _LOG.warning("the orders in the database are of another version; all is planned anew: %s", error)
            kept = Orders()
        return kept if kept.generation else Orders(self.generation())

    def bandwidths(self) -> dict[str, float]:
        with self._reading() as connection:
            return {row.name: row.bandwidth_bps for row in connection.execute(select(PORTS))}

    def gateways(self) -> list[str]:
        """The names of those that have joined."""
        with self._reading() as connection:
            return list(connection.execute(select(GATEWAYS.c.name)).scalars())

    def drops(self, configured: str) -> str:
        """The drop policy that an operator decided on instead of the configured one, or that one."""
        with self._reading() as connection:
            kept = connection.execute(select(DROPS.c.policy).where(DROPS.c.instead_of == configured)).scalar()
        return configured if kept is None else str(kept)

    def measured(self) -> dict[str, Any]:
        with self._reading() as connection:
            return {row.topic: json.loads(row.measured) for row in connection.execute(select(TOPICS))}

    def measured_ports(self) -> dict[str, Any]:
        with self._reading() as connection:
            return {row.name: json.loads(row.measured) for row in connection.execute(select(MEASURED_PORTS))}

    def tokens_version(self) -> int:
        """Changes whenever tokens do, also through another process."""
        return self._meta("tokens_version")

    def tokens(self) -> list[Token]:
        with self._reading() as connection:
            return [_token(row) for row in connection.execute(select(TOKENS).order_by(TOKENS.c.created_ns))]

    def page_session(self, number_sha256: str, now_ns: int) -> str | None:
        """The sealed token of a session of the page, if that has not ended."""
        wanted = select(PAGE_SESSIONS.c.sealed_token).where(
            PAGE_SESSIONS.c.number_sha256 == number_sha256, PAGE_SESSIONS.c.until_ns > now_ns
        )
        with self._reading() as connection:
            found = connection.execute(wanted).scalar()
        return None if found is None else str(found)

    def decisions(self, after: int = 0, limit: int = 100) -> list[StoredDecision]:
        """A page in the order in which they were made, beginning behind the number `after`."""
        return self._decisions(
            select(DECISIONS).where(DECISIONS.c.id > after).order_by(DECISIONS.c.id).limit(limit)
        )

    def latest_decisions(self, limit: int = 100) -> list[StoredDecision]:
        """The last ones, in the order in which they were made."""
        return self._decisions(select(DECISIONS).order_by(DECISIONS.c.id.desc()).limit(limit))[::-1]

    def _decisions(self, wanted: Select[Any]) -> list[StoredDecision]:
        with self._reading() as connection:
            return [
                StoredDecision(number, decided_ns, generation, Decision(*told))
                for number, decided_ns, generation, *told in connection.execute(wanted)
            ]

    def _meta(self, key: str) -> int:
        with self._reading() as connection:
            return int(connection.execute(select(META.c.value).where(META.c.key == key)).scalar_one())


def _settle(waiting: Sequence[asyncio.Future[None]], failures: Sequence[StoreError | None]) -> None:
    """Tell those who wait; some may be gone."""
    for done, failure in zip(waiting, failures, strict=True):
        if done.done():
            continue
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
            done.exception()


def _intent(row: Any) -> Intent | None:
    """None for what this version does not take any more: that client announces itself again, the others go on."""
    about = {"name": row.name, "lease_seconds": row.lease_seconds}
    try:
        intent: Intent = _INTENTS[row.kind].validate_python(json.loads(row.intent) | about)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        _LOG.warning(
            "the database holds what %s %r cannot ask for (%s: %s); it is left out until it is announced again",
            row.kind,
            row.name,
            place,
            first["msg"],
        )
        return None
    return intent


def _token(row: Any) -> Token:
    columns = {name: value for name, value in row._mapping.items() if name != "rights"}
    return token_from_json(columns | json.loads(row.rights))
