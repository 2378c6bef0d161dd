"""The gateway's memory on disk: SQLite, one transaction for everything that happened since the last one.

A transaction is in the operating system's hands before anything that depends on it is sent: it survives kill -9 of the
gateway. It is written to the disk itself within a moment, beside the work: a machine that loses power loses what was
acknowledged in its last second at most, and the file stays whole. To wait for the disk at every commit made a QoS 1
event ten times as late (median 7 ms instead of 0.7 ms at 200 a second, where the disk took 3 ms), and others with it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Final

from triagemq.errors import GatewayError
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model.rows import TABLES, Row
from triagemq.exchange.gateway.model.topics import REGISTERED
from triagemq.exchange.mqtt.session import MqttSession
from triagemq.exchange.private_files import private_directory, private_file

TRY_AGAIN_SECONDS = 0.5
_VERSION: Final = 4
_IDENTITY: Final = {"identity": ("name TEXT PRIMARY KEY, value TEXT", 1)}
_MIGRATIONS: Final[dict[int, tuple[str, ...]]] = {
    # Without digests: a message that was under way at that moment may come twice.
    1: ("DROP TABLE receiving",),
    2: (
        f"CREATE TABLE client_topics ({TABLES['client_topics'][0]}) WITHOUT ROWID",
        f"INSERT INTO client_topics SELECT client_id, topic_id, name, {REGISTERED} "
        "FROM registrations JOIN topics USING (topic_id)",
        "DROP TABLE registrations",
        "DROP TABLE topics",
    ),
    # No client id of its own: the broker knows it by the one that all gateways shared.
    3: (
        f"CREATE TABLE identity ({_IDENTITY['identity'][0]}) WITHOUT ROWID",
        "INSERT INTO identity VALUES ('broker_client_id', '')",
    ),
}
"""From each version to the next."""


class GatewayStore:
    """The tables of one gateway in a directory; one gateway at a time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "gateway.sqlite"
        self.is_on_disk = True
        try:
            # Client ids may be keys.
            private_directory(directory, "--state")
            private_file(self._path)
            self._database = sqlite3.connect(self._path, isolation_level=None, timeout=2.0)
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise GatewayError(
                    f"{self._path}: written by a newer version of triagemq ({version}, this one knows {_VERSION}); "
                    "install that version, or restore a backup of before"
                )
            self._database.execute("BEGIN IMMEDIATE")
            for former in range(version or _VERSION, _VERSION):
                for statement in _MIGRATIONS[former]:
                    self._database.execute(statement)
            for table, (columns, _) in (TABLES | _IDENTITY).items():
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

    def broker_client_id(self, shared: str, unique: str) -> str:
        """The client id at a broker that others use, too: the same after every start, and no other state's.

        "" is that of a state of before these ids: its session there has the id that all gateways `shared`.
        """
        database = self._database
        database.execute("INSERT OR IGNORE INTO identity VALUES ('broker_client_id', ?)", (unique,))
        (found,) = database.execute("SELECT value FROM identity WHERE name = 'broker_client_id'").fetchone()
        return found or shared

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
            self.is_on_disk = False
        except sqlite3.Error as error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise GatewayError(f"{self._path}: cannot be written: {error}; make room on the disk") from error

    def sync(self) -> None:
        """Have all that was saved written to the disk; also from another thread."""
        self.is_on_disk = True
        try:
            log = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(log)
            finally:
                os.close(log)
        except OSError as error:
            self.is_on_disk = False
            raise GatewayError(f"{self._path}-wal: cannot be written to the disk: {error}") from error

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


class Storing:
    """Stores what has changed before anything is promised, and goes on without promises while the disk is full.

    What could not be stored is kept in memory and tried again, together with what has changed since.

    Until then messages are delivered, but clients do not get PUBREC and the broker no acknowledgement: each keeps what
    it has sent, and whoever is killed loses nothing that somebody relies on. `say` gets a line at both ends.
    """

    def __init__(self, core: GatewayCore, store: GatewayStore, say: Callable[[str], None]) -> None:
        self.problem = ""
        """Why nothing can be stored now."""
        self._core = core
        self._store = store
        self._say = say
        self._next_ns = 0

    def keep(self, sessions: Callable[[], Iterable[MqttSession]], now_ns: int) -> None:
        """Store what has changed; `sessions` are those with the broker."""
        core = self._core
        if not core.can_store and now_ns < self._next_ns:
            return
        changes = core.changes.take()
        try:
            self._store.save(changes)
        except GatewayError as error:
            core.changes.give_back(changes)
            self._next_ns = now_ns + round(TRY_AGAIN_SECONDS * 1e9)
            for session in sessions():
                session.hold()
            if core.can_store:
                core.can_store = False
                core.counters.storage_failures += 1
                # Somebody must come by when nothing else happens.
                self._look_again()
                self._say(f"{error}; until then nothing is acknowledged that would have to be stored")
            self.problem = str(error)
            return
        core.changes.committed(changes)
        if not core.can_store:
            core.can_store = True
            self.problem = ""
            for session in sessions():
                session.release()
            self._say("the state can be stored again")

    def _look_again(self) -> None:
        def look() -> None:
            if not self._core.can_store:
                self._look_again()

        self._core.after(TRY_AGAIN_SECONDS, look)
