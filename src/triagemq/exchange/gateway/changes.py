"""What has to be stored before anything is acknowledged: rows that changed since the last time.

A row that appears and goes again in between is never written: most QoS 1 messages cost the disk nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

__all__ = ["Changes", "Row"]

Row = tuple[Any, ...]


class Changes:
    """Tables of rows by key; None for a row that is gone. `enabled=False` forgets everything at once.

    >>> changes = Changes(enabled=True)
    >>> changes.put("topics", 1, (1, "smoke"))
    >>> changes.put("topics", 2, (2, "gas"))
    >>> changes.remove("topics", 2)
    >>> changes.take()
    {'topics': {1: (1, 'smoke')}}
    >>> changes.remove("topics", 1)
    >>> changes.take()
    {'topics': {1: None}}
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._tables: dict[str, dict[Hashable, Row | None]] = {}
        self._stored: dict[str, set[Hashable]] = {}

    def put(self, table: str, key: Hashable, row: Row) -> None:
        """The row is now this."""
        if self.enabled:
            self._tables.setdefault(table, {})[key] = row

    def remove(self, table: str, key: Hashable) -> None:
        """The row is gone."""
        if not self.enabled:
            return
        rows = self._tables.setdefault(table, {})
        if key in self._stored.get(table, ()):
            rows[key] = None
        else:
            rows.pop(key, None)

    def give_back(self, taken: Mapping[str, Mapping[Hashable, Row | None]]) -> None:
        """What was taken could not be stored: it is to be stored with the next, unless it has changed since.

        >>> changes = Changes(enabled=True)
        >>> changes.put("topics", 1, (1, "smoke"))
        >>> changes.give_back(changes.take())
        >>> changes.take()
        {'topics': {1: (1, 'smoke')}}
        """
        for table, rows in taken.items():
            self._tables[table] = {**rows, **self._tables.get(table, {})}

    def restored(self, table: str, key: Hashable) -> None:
        """The row was read from the store."""
        self._stored.setdefault(table, set()).add(key)

    def take(self) -> dict[str, dict[Hashable, Row | None]]:
        """Everything since the last call, by table."""
        if not self._tables:
            return self._tables
        taken = {table: rows for table, rows in self._tables.items() if rows}
        self._tables = {}
        for table, rows in taken.items():
            stored = self._stored.setdefault(table, set())
            for key, row in rows.items():
                if row is None:
                    stored.discard(key)
                else:
                    stored.add(key)
        return taken
