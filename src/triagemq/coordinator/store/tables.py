"""The tables of the coordinator's database, how it is opened, and its changes, in what SQLite and PostgreSQL share.

A change is a function of a connection, run by the store's writer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from triagemq.coordinator.access.tokens import Token, token_to_json
from triagemq.coordinator.decide.orders import Orders, dump_orders
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.refusals import StoreError
from triagemq.errors import MissingDependencyError
from triagemq.exchange.private_files import private_file
from triagemq.plan import Decision

SCHEMA_VERSION = 2
"""What is newer is refused; an older database gets the tables and columns that it lacks when it is opened."""
_BUSY_SECONDS = 10
_CONNECT_SECONDS = 5

_METADATA = MetaData()
META = Table(
    "meta",
    _METADATA,
    Column("key", String(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
INTENTS = Table(
    "intents",
    _METADATA,
    Column("kind", String(10), primary_key=True),  # publisher, subscriber
    Column("name", String(200), primary_key=True),
    Column("owner", String(40), nullable=False),  # token_id; empty: announced while access was off
    Column("session_key", String(40), nullable=False),
    Column("lease_seconds", Double, nullable=False),
    Column("intent", Text, nullable=False),  # JSON, an intent's `as_json`
)
TOKENS = Table(
    "tokens",
    _METADATA,
    Column("token_id", String(40), primary_key=True),
    Column("prefix", String(40), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("rights", Text, nullable=False),  # JSON: label, roles, patterns, limits
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger),
    Column("revoked_ns", BigInteger),
)
DECISIONS = Table(
    "decisions",
    _METADATA,
    # SQLite numbers rows by itself only in a column of exactly this type.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("decided_ns", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("reason", Text, nullable=False),
    sqlite_autoincrement=True,
)
PORTS = Table(
    "ports",
    _METADATA,
    Column("name", String(200), primary_key=True),
    Column("bandwidth_bps", Double, nullable=False),
)
MEASURED_PORTS = Table(
    "measured_ports",
    _METADATA,
    Column("name", String(200), primary_key=True),
    Column("measured", Text, nullable=False),  # JSON
)
DROPS = Table(
    "drops",
    _METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),  # always 0: one row
    Column("policy", Text, nullable=False),
    Column("instead_of", Text, nullable=False),  # the one that was configured when an operator decided
)
ORDERS = Table(
    "orders",
    _METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),  # always 0: one row
    Column("generation", BigInteger, nullable=False),
    Column("orders", Text, nullable=False),  # JSON, see decide/orders.py
)
GATEWAYS = Table(
    "gateways",
    _METADATA,
    Column("name", String(200), primary_key=True),  # those that have joined
)
TOPICS = Table(
    "topics",
    _METADATA,
    Column("topic_hash", String(64), primary_key=True),  # a topic may be longer than an index allows
    Column("topic", Text, nullable=False),
    Column("measured", Text, nullable=False),  # JSON
)

PAGE_SESSIONS = Table(
    "page_sessions",
    _METADATA,
    Column("number_sha256", String(64), primary_key=True),  # of the number in the browser's cookie
    Column("sealed_token", String(200), nullable=False),  # only that number opens it
    Column("until_ns", BigInteger, nullable=False),
)


def open_database(url: str) -> Engine:
    """The engine of a database that has this version's tables; StoreError says what to do if it cannot be had."""
    try:
        address = make_url(url)
        if address.drivername in ("postgres", "postgresql"):
            address = address.set(drivername="postgresql+psycopg")
        engine = create_engine(address, **_options(address))
    except ImportError as error:
        group = "postgres" if "postgres" in url.partition(":")[0] else "coordinator"
        raise MissingDependencyError(error.name or "psycopg", group) from None
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        # The address may hold a password: what SQLAlchemy says about it is not repeated.
        raise StoreError(
            f"the database address cannot be used ({type(error).__name__}); write sqlite:///FILE or postgresql://..."
        ) from None
    place = address.render_as_string(hide_password=True)
    if _is_sqlite(address):
        if not address.database or address.database == ":memory:":
            raise StoreError(f"database {place}: the store needs a file; write sqlite:///FILE")
        event.listen(engine, "connect", _prepare_sqlite)
    try:
        if _is_sqlite(address) and address.database:
            # Session keys are in it. SQLite gives the file's mode to those that it makes beside it.
            private_file(Path(address.database))
        _make_tables(engine, place)
    except SQLAlchemyError as error:
        engine.dispose()
        raise StoreError(f"database {place} cannot be opened: {first_line(error)}") from None
    except OSError as error:
        engine.dispose()
        raise StoreError(f"database {place} cannot be opened: {error.strerror or error}") from None
    except StoreError:
        engine.dispose()
        raise
    return engine


def _options(address: URL) -> dict[str, Any]:
    if _is_sqlite(address):
        return {"connect_args": {"timeout": _BUSY_SECONDS}}
    if address.get_backend_name() == "postgresql":
        # A server that was started again has ended the connections that are kept: each is tried before it is used.
        return {"pool_pre_ping": True, "connect_args": {"connect_timeout": _CONNECT_SECONDS}}
    return {}


def _is_sqlite(address: URL) -> bool:
    return bool(address.get_backend_name() == "sqlite")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    # Write-ahead logging: readers never wait for the writer. A commit waits for the disk: what is answered survives a
    # killed process and a power failure.
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _make_tables(engine: Engine, place: str) -> None:
    if inspect(engine).has_table(META.name):
        with engine.connect() as connection:
            version = connection.execute(select(META.c.value).where(META.c.key == "schema_version")).scalar()
        if version is not None and version > SCHEMA_VERSION:
            raise StoreError(
                f"database {place} was written by a newer TriageMQ (schema {version}, this one knows "
                f"{SCHEMA_VERSION}); install that version, or give another database"
            )
    _METADATA.create_all(engine)
    with engine.begin() as connection:
        _add_columns(connection)
        known = set(connection.execute(select(META.c.key)).scalars())
        first = {"schema_version": SCHEMA_VERSION, "tokens_version": 0, "generation": 0}
        if missing := [{"key": key, "value": value} for key, value in first.items() if key not in known]:
            connection.execute(insert(META), missing)
        stored = update(META).where(META.c.key == "schema_version", META.c.value < SCHEMA_VERSION)
        connection.execute(stored.values(value=SCHEMA_VERSION))


def _add_columns(connection: Connection) -> None:
    """Those that tables of an older version lack; a column that may not be null brings its server_default along."""
    found = inspect(connection)
    for table in _METADATA.sorted_tables:
        there = {each["name"] for each in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                name = connection.dialect.identifier_preparer.format_table(table)
                added = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {added}")


def first_line(error: Exception) -> str:
    """What the database itself says of it."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0] or type(error).__name__


KEPT_DECISIONS = 100_000
"""The newest decisions stay, at least this many."""

MOST_KEPT_TOPICS = 200_000
MOST_PAGE_SESSIONS = 1_000
_PRUNED_EVERY = 1_000
_ROWS_AT_ONCE = 500


def announce(connection: Connection, records: Sequence[Record], withdrawn: Sequence[Key] = ()) -> None:
    """In place of what was announced under their names; what others have withdrawn goes as well."""
    withdraw(connection, [*(record.key for record in records), *withdrawn])
    rows = [
        {
            "kind": record.key[0],
            "name": record.key[1],
            "owner": record.owner,
            "session_key": record.session_key,
            "lease_seconds": record.intent.lease_seconds,
            "intent": json.dumps(record.intent.as_json(), separators=(",", ":"), allow_nan=False),
        }
        for record in records
    ]
    if rows:
        connection.execute(insert(INTENTS), rows)


def withdraw(connection: Connection, keys: Sequence[Key]) -> None:
    gone: dict[str, list[str]] = {}
    for kind, name in keys:
        gone.setdefault(kind, []).append(name)
    for kind, names in gone.items():
        for start in range(0, len(names), _ROWS_AT_ONCE):
            few = names[start : start + _ROWS_AT_ONCE]
            connection.execute(delete(INTENTS).where(INTENTS.c.kind == kind, INTENTS.c.name.in_(few)))


def decide(
    connection: Connection,
    decided_ns: int,
    generation: int,
    decisions: Sequence[Decision],
    orders: Orders | None = None,
) -> None:
    """New decisions, and the generation they belong to; the oldest go when there are far too many.

    With them the orders that come into force; of very large ones promises alone are kept, and all is planned
    anew after a restart.
    """
    connection.execute(
        update(META).where(META.c.key == "generation", META.c.value < generation).values(value=generation)
    )
    if decisions:
        rows = [{"decided_ns": decided_ns, "generation": generation, **asdict(each)} for each in decisions]
        connection.execute(insert(DECISIONS), rows)
        newest = int(connection.execute(select(func.max(DECISIONS.c.id))).scalar() or 0)
        if newest % _PRUNED_EVERY < len(rows):
            connection.execute(delete(DECISIONS).where(DECISIONS.c.id <= newest - KEPT_DECISIONS))
    if orders is not None:
        connection.execute(delete(ORDERS))
        if sum(len(topics) for topics in orders.topics.values()) > MOST_KEPT_TOPICS:
            orders = replace(orders, ports={}, flows={}, topics={})
        text = dump_orders(orders)
        connection.execute(insert(ORDERS).values(number=0, generation=orders.generation, orders=text))


def set_bandwidth(connection: Connection, port: str, bandwidth_bps: float) -> None:
    connection.execute(delete(PORTS).where(PORTS.c.name == port))
    connection.execute(insert(PORTS).values(name=port, bandwidth_bps=bandwidth_bps))


def set_gateways(connection: Connection, names: Sequence[str]) -> None:
    """The gateways that have joined, in place of those that were stored before."""
    connection.execute(delete(GATEWAYS))
    if names:
        connection.execute(insert(GATEWAYS), [{"name": name} for name in names])


def set_drops(connection: Connection, policy: str, instead_of: str) -> None:
    connection.execute(delete(DROPS))
    connection.execute(insert(DROPS).values(number=0, policy=policy, instead_of=instead_of))


def touch(connection: Connection) -> None:
    """Writes what is there: for finding out whether anything can be written."""
    connection.execute(update(META).where(META.c.key == "generation").values(value=META.c.value))


def keep_measured(connection: Connection, measured: Mapping[str, Any]) -> None:
    """What was measured of topics, in place of what was stored before."""
    rows = [
        {
            "topic_hash": hashlib.sha256(topic.encode()).hexdigest(),
            "topic": topic,
            "measured": json.dumps(known, allow_nan=False),
        }
        for topic, known in measured.items()
    ]
    connection.execute(delete(TOPICS))
    if rows:
        connection.execute(insert(TOPICS), rows)


def keep_measured_ports(connection: Connection, measured: Mapping[str, Any]) -> None:
    """What was measured of ports and overrules what is stated, in place of what was stored before."""
    rows = [
        {"name": port, "measured": json.dumps(known, allow_nan=False)} for port, known in measured.items()
    ]
    connection.execute(delete(MEASURED_PORTS))
    if rows:
        connection.execute(insert(MEASURED_PORTS), rows)


def add_token(connection: Connection, token: Token) -> None:
    rights = token_to_json(token)
    columns = {column.name: rights.pop(column.name) for column in TOKENS.c if column.name in rights}
    connection.execute(insert(TOKENS).values(**columns, rights=json.dumps(rights)))
    _tokens_changed(connection)


def revoke_token(connection: Connection, token_id: str, revoked_ns: int) -> None:
    connection.execute(
        update(TOKENS)
        .where(TOKENS.c.token_id == token_id, TOKENS.c.revoked_ns.is_(None))
        .values(revoked_ns=revoked_ns)
    )
    _tokens_changed(connection)


def begin_page_session(
    connection: Connection, number_sha256: str, sealed_token: str, now_ns: int, until_ns: int
) -> None:
    """A viewer has signed in to the page; sessions that have ended go, and the oldest if there are too many."""
    connection.execute(
        insert(PAGE_SESSIONS).values(
            number_sha256=number_sha256, sealed_token=sealed_token, until_ns=until_ns
        )
    )
    ends = PAGE_SESSIONS.c.until_ns
    last = select(ends).order_by(ends.desc()).offset(MOST_PAGE_SESSIONS).limit(1)
    oldest = connection.execute(last).scalar() or 0
    connection.execute(delete(PAGE_SESSIONS).where(ends <= max(now_ns, oldest)))


def end_page_session(connection: Connection, number_sha256: str) -> None:
    connection.execute(delete(PAGE_SESSIONS).where(PAGE_SESSIONS.c.number_sha256 == number_sha256))


def _tokens_changed(connection: Connection) -> None:
    connection.execute(update(META).where(META.c.key == "tokens_version").values(value=META.c.value + 1))
