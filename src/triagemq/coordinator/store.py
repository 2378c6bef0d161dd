"""The store: state that survives a restart. The tables, the changes, and one writer with group commit.

A change is a function of a connection, in the SQL that SQLite and PostgreSQL share. `write` returns when it is durable.
Changes that wait while a commit runs go into the next one. A failure of any kind reaches every caller that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVarTuple

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from triagemq.channel.orders import Orders, dump_orders, parse_orders
from triagemq.coordinator.access.tokens import Token, token_from_json, token_to_json
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.loop.health import Check
from triagemq.coordinator.refusals import StoreError
from triagemq.errors import MissingDependencyError, PlanError
from triagemq.files import private_file
from triagemq.intents import PUBLISHER, SUBSCRIBER, Intent, PublisherIntent, SubscriberIntent
from triagemq.plan import Decision

SCHEMA_VERSION = 2
"""What is newer is refused; an older database gets the tables and columns that it lacks when it is opened."""
_BUSY_SECONDS = 10
_CONNECT_SECONDS = 5

_METADATA = sa.MetaData()


def _table(name: str, *columns: sa.Column[Any], **options: Any) -> sa.Table:
    return sa.Table(name, _METADATA, *columns, **options)


META = _table(
    "meta",
    sa.Column("key", sa.String(40), primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)
INTENTS = _table(
    "intents",
    sa.Column("kind", sa.String(10), primary_key=True),  # publisher, subscriber
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("owner", sa.String(40), nullable=False),  # token_id; empty: announced while access was off
    sa.Column("session_key", sa.String(40), nullable=False),
    sa.Column("lease_seconds", sa.Double, nullable=False),
    sa.Column("intent", sa.Text, nullable=False),  # JSON, an intent's `as_json`
    # Where it was announced from, and the policy role of its token.
    sa.Column("address", sa.String(60), nullable=False, server_default=""),
    sa.Column("role", sa.String(200), nullable=False, server_default=""),
)
TOKENS = _table(
    "tokens",
    sa.Column("token_id", sa.String(40), primary_key=True),
    sa.Column("prefix", sa.String(40), nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("rights", sa.Text, nullable=False),  # JSON: label, roles, patterns, limits
    sa.Column("created_ns", sa.BigInteger, nullable=False),
    sa.Column("expires_ns", sa.BigInteger),
    sa.Column("revoked_ns", sa.BigInteger),
)
DECISIONS = _table(
    "decisions",
    # SQLite numbers rows by itself only in a column of exactly this type.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("decided_ns", sa.BigInteger, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("before", sa.Text, nullable=False),
    sa.Column("after", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)
PORTS = _table(
    "ports",
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("bandwidth_bps", sa.Double, nullable=False),
)
MEASURED_PORTS = _table(
    "measured_ports",
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("measured", sa.Text, nullable=False),  # JSON
)
DROPS = _table(
    "drops",
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),  # always 0: one row
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("instead_of", sa.Text, nullable=False),  # the one that was configured when an operator decided
)
OPERATOR = _table(
    "operator",
    sa.Column("what", sa.String(20), primary_key=True),  # policy, phase
    sa.Column("value", sa.Text, nullable=False),  # the YAML of the policy, the name of the phase
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("decided_ns", sa.BigInteger, nullable=False),
)
ORDERS = _table(
    "orders",
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),  # always 0: one row
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("orders", sa.Text, nullable=False),  # JSON, see decide/orders.py
)
GATEWAYS = _table(
    "gateways",
    sa.Column("name", sa.String(200), primary_key=True),  # those that have joined
)
TOPICS = _table(
    "topics",
    sa.Column("topic_hash", sa.String(64), primary_key=True),  # a topic may be longer than an index allows
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("measured", sa.Text, nullable=False),  # JSON
)

PAGE_SESSIONS = _table(
    "page_sessions",
    sa.Column("number_sha256", sa.String(64), primary_key=True),  # of the number in the browser's cookie
    sa.Column("sealed_token", sa.String(200), nullable=False),  # only that number opens it
    sa.Column("until_ns", sa.BigInteger, nullable=False),
)


def open_database(url: str) -> sa.Engine:
    """The engine of a database that has this version's tables; StoreError says what to do if it cannot be had."""
    try:
        address = make_url(url)
        if address.drivername in ("postgres", "postgresql"):
            address = address.set(drivername="postgresql+psycopg")
        is_sqlite = address.get_backend_name() == "sqlite"
        # A server that restarted has ended the pooled connections: each is tried before it is used.
        remote = {"pool_pre_ping": True, "connect_args": {"connect_timeout": _CONNECT_SECONDS}}
        local = {"connect_args": {"timeout": _BUSY_SECONDS}}
        engine = sa.create_engine(address, **(local if is_sqlite else remote))
    except ImportError as error:
        group = "postgres" if "postgres" in url.partition(":")[0] else "coordinator"
        raise MissingDependencyError(error.name or "psycopg", group) from None
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        # The address may hold a password: what SQLAlchemy says about it is not repeated.
        raise StoreError(
            f"the database address cannot be used ({type(error).__name__}); write sqlite:///FILE or postgresql://..."
        ) from None
    place = address.render_as_string(hide_password=True)
    try:
        if is_sqlite:
            if not address.database or address.database == ":memory:":
                raise StoreError(f"database {place}: the store needs a file; write sqlite:///FILE")
            sa.event.listen(engine, "connect", _prepare_sqlite)
            # It has session keys. SQLite gives the file's mode to its journal.
            private_file(Path(address.database))
        _make_tables(engine, place)
    except (SQLAlchemyError, OSError, StoreError) as error:
        engine.dispose()
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"database {place} cannot be opened: {first_line(error)}") from None
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # Write-ahead logging: readers never wait for the writer. A commit waits for the disk: an acknowledged change
    # survives a killed process and a power failure.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _make_tables(engine: sa.Engine, place: str) -> None:
    if sa.inspect(engine).has_table(META.name):
        with engine.connect() as connection:
            version = connection.execute(
                sa.select(META.c.value).where(META.c.key == "schema_version")
            ).scalar()
        if version is not None and version > SCHEMA_VERSION:
            raise StoreError(
                f"database {place} was written by a newer TriageMQ (schema {version}, this one knows "
                f"{SCHEMA_VERSION}); install that version, or give another database"
            )
    _METADATA.create_all(engine)
    with engine.begin() as connection:
        _add_columns(connection)
        known = set(connection.execute(sa.select(META.c.key)).scalars())
        first = {"schema_version": SCHEMA_VERSION, "tokens_version": 0, "generation": 0}
        if missing := [{"key": key, "value": value} for key, value in first.items() if key not in known]:
            connection.execute(sa.insert(META), missing)
        stored = sa.update(META).where(META.c.key == "schema_version", META.c.value < SCHEMA_VERSION)
        connection.execute(stored.values(value=SCHEMA_VERSION))


def _add_columns(connection: sa.Connection) -> None:
    """Those that tables of an older version lack; a column that may not be null brings its server_default along."""
    found = sa.inspect(connection)
    for table in _METADATA.sorted_tables:
        there = {each["name"] for each in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                name = connection.dialect.identifier_preparer.format_table(table)
                added = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {added}")


def first_line(error: Exception) -> str:
    """What the database itself says of it."""
    reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
    return str(reason).partition("\n")[0] or type(error).__name__


STORED_DECISIONS = 100_000
"""The newest decisions stay, at least this many."""

MOST_STORED_TOPICS = 200_000
_PRUNED_EVERY = 1_000


def announce(connection: sa.Connection, records: Sequence[Record], withdrawn: Sequence[Key] = ()) -> None:
    """In place of what was announced under their names; what others have withdrawn goes as well."""
    withdraw(connection, [*(record.key for record in records), *withdrawn])
    rows = [
        {
            "kind": record.key[0],
            "name": record.key[1],
            "owner": record.owner,
            "session_key": record.session_key,
            "lease_seconds": record.intent.lease_seconds,
            "address": record.address,
            "role": record.role,
            "intent": json.dumps(record.intent.as_json(), separators=(",", ":"), allow_nan=False),
        }
        for record in records
    ]
    if rows:
        connection.execute(sa.insert(INTENTS), rows)


def withdraw(connection: sa.Connection, keys: Sequence[Key]) -> None:
    if keys:
        is_gone = INTENTS.c.kind == sa.bindparam("of"), INTENTS.c.name == sa.bindparam("named")
        gone = [{"of": kind, "named": name} for kind, name in keys]
        connection.execute(sa.delete(INTENTS).where(*is_gone), gone)


def decide(
    connection: sa.Connection,
    decided_ns: int,
    generation: int,
    decisions: Sequence[Decision],
    orders: Orders | None = None,
) -> None:
    """New decisions, and the generation they belong to; the oldest go when there are far too many.

    With them the orders that come into force; of very large ones promises alone are stored, and all is planned
    anew after a restart.
    """
    connection.execute(
        sa.update(META).where(META.c.key == "generation", META.c.value < generation).values(value=generation)
    )
    if decisions:
        rows = [{"decided_ns": decided_ns, "generation": generation, **asdict(each)} for each in decisions]
        connection.execute(sa.insert(DECISIONS), rows)
        newest = int(connection.execute(sa.select(sa.func.max(DECISIONS.c.id))).scalar() or 0)
        if newest % _PRUNED_EVERY < len(rows):
            connection.execute(sa.delete(DECISIONS).where(DECISIONS.c.id <= newest - STORED_DECISIONS))
    if orders is not None:
        if sum(len(topics) for topics in orders.topics.values()) > MOST_STORED_TOPICS:
            orders = replace(orders, ports={}, flows={}, topics={})
        row = {"number": 0, "generation": orders.generation, "orders": dump_orders(orders)}
        _replace(connection, ORDERS, [row])


def set_bandwidth(connection: sa.Connection, port: str, bandwidth_bps: float) -> None:
    connection.execute(sa.delete(PORTS).where(PORTS.c.name == port))
    connection.execute(sa.insert(PORTS).values(name=port, bandwidth_bps=bandwidth_bps))


def set_gateways(connection: sa.Connection, names: Sequence[str]) -> None:
    """The gateways that have joined."""
    _replace(connection, GATEWAYS, [{"name": name} for name in names])


def set_drops(connection: sa.Connection, policy: str, instead_of: str) -> None:
    _replace(connection, DROPS, [{"number": 0, "policy": policy, "instead_of": instead_of}])


def set_by_operator(connection: sa.Connection, what: str, value: str, author: str, decided_ns: int) -> None:
    """The policy or the phase that an operator has decided on."""
    connection.execute(sa.delete(OPERATOR).where(OPERATOR.c.what == what))
    row = {"what": what, "value": value, "author": author, "decided_ns": decided_ns}
    connection.execute(sa.insert(OPERATOR).values(row))


def touch(connection: sa.Connection) -> None:
    """Writes what is there: for finding out whether anything can be written."""
    connection.execute(sa.update(META).where(META.c.key == "generation").values(value=META.c.value))


def store_measured(connection: sa.Connection, measured: Mapping[str, Any]) -> None:
    """Measured rates and sizes of topics."""
    rows = [
        {
            "topic_hash": hashlib.sha256(topic.encode()).hexdigest(),
            "topic": topic,
            "measured": json.dumps(known),
        }
        for topic, known in measured.items()
    ]
    _replace(connection, TOPICS, rows)


def store_measured_ports(connection: sa.Connection, measured: Mapping[str, Any]) -> None:
    """Measured values of ports that overrule the stated ones."""
    rows = [{"name": port, "measured": json.dumps(known)} for port, known in measured.items()]
    _replace(connection, MEASURED_PORTS, rows)


def _replace(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """These rows in place of all that were stored before."""
    connection.execute(sa.delete(table))
    if rows:
        connection.execute(sa.insert(table), rows)


def add_token(connection: sa.Connection, token: Token) -> None:
    rights = token_to_json(token)
    columns = {column.name: rights.pop(column.name) for column in TOKENS.c if column.name in rights}
    connection.execute(sa.insert(TOKENS).values(**columns, rights=json.dumps(rights)))
    _tokens_changed(connection)


def revoke_token(connection: sa.Connection, token_id: str, revoked_ns: int) -> None:
    connection.execute(
        sa.update(TOKENS)
        .where(TOKENS.c.token_id == token_id, TOKENS.c.revoked_ns.is_(None))
        .values(revoked_ns=revoked_ns)
    )
    _tokens_changed(connection)


def begin_page_session(
    connection: sa.Connection, number_sha256: str, sealed_token: str, now_ns: int, until_ns: int
) -> None:
    """A browser has signed in to the page; sessions that have ended go."""
    session = {"number_sha256": number_sha256, "sealed_token": sealed_token, "until_ns": until_ns}
    connection.execute(sa.insert(PAGE_SESSIONS).values(session))
    connection.execute(sa.delete(PAGE_SESSIONS).where(PAGE_SESSIONS.c.until_ns <= now_ns))


def end_page_session(connection: sa.Connection, number_sha256: str) -> None:
    connection.execute(sa.delete(PAGE_SESSIONS).where(PAGE_SESSIONS.c.number_sha256 == number_sha256))


def _tokens_changed(connection: sa.Connection) -> None:
    connection.execute(sa.update(META).where(META.c.key == "tokens_version").values(value=META.c.value + 1))


_LOG = logging.getLogger("triagemq.coordinator")
_INTENTS: dict[str, TypeAdapter[Any]] = {
    PUBLISHER: TypeAdapter(PublisherIntent),
    SUBSCRIBER: TypeAdapter(SubscriberIntent),
}

Change = Callable[[sa.Connection], object]
_Arguments = TypeVarTuple("_Arguments")


@dataclass(frozen=True, slots=True)
class OperatorDecision:
    """What an operator has decided on, who, and when; without an author, none has."""

    value: str = ""
    author: str = ""
    decided_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision(Decision):
    """A decision with its number, when it was made and for which generation of orders."""

    number: int
    decided_ns: int
    generation: int


class Store:
    """The database behind one coordinator. Reading methods block: call them in a thread once the loop runs."""

    def __init__(self, url: str) -> None:
        self._engine = open_database(url)
        self.writing = Check(words="the database cannot be written; nothing new is taken")
        """Whether the last change could be stored."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._waiting: deque[tuple[Change, Future[None]]] = deque()

    async def write(
        self, change: Callable[[sa.Connection, *_Arguments], object], *arguments: *_Arguments
    ) -> None:
        """Make a change durable; StoreError if that fails, and then nothing of it was stored."""
        # The change goes on if its caller is cancelled.
        await asyncio.shield(asyncio.wrap_future(self._submit(change, *arguments)))

    def write_now(
        self, change: Callable[[sa.Connection, *_Arguments], object], *arguments: *_Arguments
    ) -> None:
        """The same outside of an event loop."""
        self._submit(change, *arguments).result()

    def add(self, token: Token) -> None:
        """As a file of tokens does, outside of an event loop."""
        self.write_now(add_token, token)

    def revoke(self, token_id: str, revoked_ns: int) -> None:
        self.write_now(revoke_token, token_id, revoked_ns)

    def _submit(
        self, change: Callable[[sa.Connection, *_Arguments], object], *arguments: *_Arguments
    ) -> Future[None]:
        done: Future[None] = Future()
        self._waiting.append((lambda connection: change(connection, *arguments), done))
        try:
            self._writer.submit(self._write_waiting)
        except RuntimeError as error:
            self.writing.failed(str(error))
            raise StoreError(f"the database cannot be written: {error}") from None
        return done

    async def probe(self) -> None:
        """Find out whether it can be written again, by a change that changes nothing."""
        with contextlib.suppress(StoreError):
            await self.write(touch)

    async def close(self) -> None:
        """Finish the changes that wait."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        self._writer.shutdown()
        self._engine.dispose()

    def _write_waiting(self) -> None:
        """Commit every change that waits; in the writer's thread."""
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not batch:
            return
        failures = self._commit([change for change, _ in batch])
        # A change that the database refuses for its content says nothing about the database.
        failed = [failure for failure in failures if failure is not None]
        if len(failed) < len(failures):
            self.writing.worked()
        elif failed:
            self.writing.failed(str(failed[-1]))
        for (_, done), failure in zip(batch, failures, strict=True):
            if failure is None:
                done.set_result(None)
            else:
                done.set_exception(failure)

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

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        try:
            with self._engine.connect() as connection:
                return connection.execute(query).all()
        except SQLAlchemyError as error:
            raise StoreError(f"the database cannot be read: {first_line(error)}") from None

    # What is read at the start.

    def records(self) -> list[Record]:
        rows = self._rows(sa.select(INTENTS).order_by(INTENTS.c.kind, INTENTS.c.name))
        found = [(row, _intent(row)) for row in rows]
        return [
            Record(intent, row.owner, row.session_key, row.address, role=row.role)
            for row, intent in found
            if intent is not None
        ]

    def orders(self) -> Orders:
        """The last orders; at least their generation, if they were too large to store or cannot be read."""
        stored = Orders()
        try:
            for row in self._rows(sa.select(ORDERS)):
                stored = parse_orders(row.orders)
        except PlanError as error:
            _LOG.warning("the orders in the database are of another version; all is planned anew: %s", error)
        return stored if stored.generation else Orders(self._meta("generation"))

    def bandwidths(self) -> dict[str, float]:
        return {row.name: row.bandwidth_bps for row in self._rows(sa.select(PORTS))}

    def gateways(self) -> list[str]:
        """The names of those that have joined."""
        return [row.name for row in self._rows(sa.select(GATEWAYS))]

    def drops(self, configured: str) -> str:
        """The drop policy that an operator decided on instead of the configured one, or that one."""
        rows = self._rows(sa.select(DROPS).where(DROPS.c.instead_of == configured))
        return str(rows[0].policy) if rows else configured

    def by_operator(self, what: str) -> OperatorDecision:
        """The policy or the phase that is stored; an empty one if none is."""
        rows = self._rows(sa.select(OPERATOR).where(OPERATOR.c.what == what))
        return OperatorDecision(*rows[0][1:]) if rows else OperatorDecision()

    def measured(self) -> dict[str, Any]:
        return {row.topic: json.loads(row.measured) for row in self._rows(sa.select(TOPICS))}

    def measured_ports(self) -> dict[str, Any]:
        return {row.name: json.loads(row.measured) for row in self._rows(sa.select(MEASURED_PORTS))}

    def tokens_version(self) -> int:
        """Changes whenever tokens do, also through another process."""
        return self._meta("tokens_version")

    def tokens(self) -> list[Token]:
        return [_token(row) for row in self._rows(sa.select(TOKENS).order_by(TOKENS.c.created_ns))]

    def page_session(self, number_sha256: str, now_ns: int) -> str | None:
        """The sealed token of a session of the page, if that has not ended."""
        is_meant = PAGE_SESSIONS.c.number_sha256 == number_sha256
        rows = self._rows(sa.select(PAGE_SESSIONS).where(is_meant, PAGE_SESSIONS.c.until_ns > now_ns))
        return str(rows[0].sealed_token) if rows else None

    def decisions(self, after: int = 0, limit: int = 100, *, latest: bool = False) -> list[StoredDecision]:
        """A page in the order in which they were made, beginning behind the number `after`, or the last ones."""
        order = DECISIONS.c.id.desc() if latest else DECISIONS.c.id
        rows = self._rows(sa.select(DECISIONS).where(DECISIONS.c.id > after).order_by(order).limit(limit))
        found = [
            StoredDecision(*decision, number=number, decided_ns=decided_ns, generation=generation)
            for number, decided_ns, generation, *decision in rows
        ]
        return found[::-1] if latest else found

    def _meta(self, key: str) -> int:
        return int(self._rows(sa.select(META.c.value).where(META.c.key == key))[0].value)


def _intent(row: Any) -> Intent | None:
    """None for what this version does not take any more: that client announces itself again, the others go on."""
    about = {"name": row.name, "lease_seconds": row.lease_seconds}
    try:
        intent: Intent = _INTENTS[row.kind].validate_python(json.loads(row.intent) | about)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        words = "the stored intent of %s %r is not valid (%s: %s); it is left out until it is announced again"
        _LOG.warning(words, row.kind, row.name, place, first["msg"])
        return None
    return intent


def _token(row: Any) -> Token:
    columns = {name: value for name, value in row._mapping.items() if name != "rights"}
    return token_from_json(columns | json.loads(row.rights))
