"""The gateway's memory on disk: SQLite, one transaction for everything that happened since the last one.

A transaction is in the operating system's hands before anything that depends on it is sent: it survives kill -9 of
the gateway. It is not waited for until it is on the disk itself; a machine that loses power may lose the last moments.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Final

from triagemq.errors import GatewayError
from triagemq.exchange.gateway.changes import Row
from triagemq.exchange.private_files import private_directory, private_file

__all__ = ["TABLES", "Store"]

_VERSION: Final = 3

TABLES: Final[dict[str, tuple[str, int]]] = {
    "sessions": (
        "client_id TEXT PRIMARY KEY, host TEXT, port INTEGER, node BLOB, state INTEGER, clean INTEGER, "
        "duration_seconds INTEGER, sleep_seconds INTEGER, will_topic TEXT, will_payload BLOB, will_qos INTEGER, "
        "will_retain INTEGER",
        1,
    ),
    "subscriptions": (
        "client_id TEXT, topic_filter TEXT, qos INTEGER, id_type INTEGER, predefined_id INTEGER, "
        "PRIMARY KEY (client_id, topic_filter)",
        2,
    ),
    "client_topics": (
        "client_id TEXT, topic_id INTEGER, name TEXT, flags INTEGER, PRIMARY KEY (client_id, topic_id)",
        2,
    ),
    "filters": ("link TEXT, topic_filter TEXT, identifier INTEGER, PRIMARY KEY (link, topic_filter)", 2),
    "deliveries": (
        "client_id TEXT, sequence INTEGER, topic_filter TEXT, topic TEXT, payload BLOB, published_ns INTEGER, "
        "received_ns INTEGER, qos INTEGER, retain INTEGER, priority_class INTEGER, message_id INTEGER, "
        "stage INTEGER, PRIMARY KEY (client_id, sequence)",
        2,
    ),
    "arrivals": (
        "client_id TEXT, message_id INTEGER, topic TEXT, payload BLOB, retain INTEGER, packet_id INTEGER, "
        "PRIMARY KEY (client_id, message_id)",
        2,
    ),
    "receiving": (
        "broker_client_id TEXT, packet_id INTEGER, digest INTEGER, finished INTEGER, "
        "PRIMARY KEY (broker_client_id, packet_id)",
        2,
    ),
    "boots": ("broker_client_id TEXT PRIMARY KEY, boot TEXT", 1),
}
"""Table to its columns, and how many of them are the key."""


class Store:
    """The tables of one gateway in a directory; one gateway at a time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "gateway.sqlite"
        try:
            # Client ids may be keys.
            private_directory(directory, "--state")
            private_file(self._path)
            self._database = sqlite3.connect(self._path, isolation_level=None, timeout=2.0)
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=OFF")
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise GatewayError(
                    f"{self._path}: written by another version of triagemq ({version}, not {_VERSION}); "
                    "use that version, or remove the file and lose the sessions"
                )
            self._database.execute("BEGIN IMMEDIATE")
            for table, (columns, _) in TABLES.items():
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) WITHOUT ROWID")
            self._database.execute(f"PRAGMA user_version={_VERSION}")
            self._database.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            advice = (
                "another gateway uses it" if "locked" in str(error) else "choose another --state directory"
            )
            raise GatewayError(f"{self._path}: {error}; {advice}") from error
        self._put: dict[str, str] = {}
        self._remove: dict[str, str] = {}
        for table, (_, key_columns) in TABLES.items():
            names = [row[1] for row in self._database.execute(f"PRAGMA table_info({table})")]
            self._put[table] = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(names))})"
            where = " AND ".join(f"{name} = ?" for name in names[:key_columns])
            self._remove[table] = f"DELETE FROM {table} WHERE {where}"

    def save(self, changes: Mapping[str, Mapping[Hashable, Row | None]]) -> None:
        """Make changes last, all of them or none."""
        if not changes:
            return
        database = self._database
        try:
            database.execute("BEGIN")
            for table, rows in changes.items():
                gone = [key if isinstance(key, tuple) else (key,) for key, row in rows.items() if row is None]
                kept = [row for row in rows.values() if row is not None]
                if gone:
                    database.executemany(self._remove[table], gone)
                if kept:
                    database.executemany(self._put[table], kept)
            database.execute("COMMIT")
        except sqlite3.Error as error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise GatewayError(f"{self._path}: cannot be written: {error}; make room on the disk") from error

    def load(self) -> dict[str, list[Row]]:
        """All rows of all tables, in order of their keys."""
        return {table: self._database.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}

    def back_up(self, path: Path) -> None:
        """A copy as it is at this moment, in a new file."""
        try:
            private_file(path)
            copy = sqlite3.connect(path)
            try:
                self._database.backup(copy)
            finally:
                copy.close()
        except (OSError, sqlite3.Error) as error:
            raise GatewayError(f"{path}: cannot be written: {error}") from error

    def close(self) -> None:
        """No more changes."""
        self._database.close()
