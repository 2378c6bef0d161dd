"""The tables of the coordinator's database, in types that SQLite and PostgreSQL share, and how it is opened."""

from __future__ import annotations

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
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from triagemq.coordinator.refusals import StoreError
from triagemq.errors import MissingDependencyError
from triagemq.exchange.private_files import private_file

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
