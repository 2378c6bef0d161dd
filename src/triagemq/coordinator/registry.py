"""Everything that is announced now, by kind and name, and how much of it each owner has. In memory, no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from triagemq.coordinator.intents import PublisherIntent, SubscriberIntent
from triagemq.coordinator.records import Key, Record

__all__ = ["Registry", "Totals"]


@dataclass(frozen=True, slots=True)
class Totals:
    """What counts against limits: subscriptions, and publications a second as declared."""

    subscriptions: int = 0
    publications_per_second: float = 0.0


class Registry:
    """Records. `sequence` counts the changes, so that a plan can say which of them it has seen."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.sequence = 0
        self._records: dict[Key, Record] = {}
        self._owned: dict[str, dict[Key, None]] = {}
        self._counts: dict[str, int] = {}
        for record in records:
            self.put(record)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._records.values()))

    def get(self, key: Key) -> Record | None:
        return self._records.get(key)

    def put(self, record: Record) -> Record:
        """Add or replace; the record with its place in the sequence."""
        self._forget(record.key)
        self.sequence += 1
        numbered = replace(record, sequence=self.sequence)
        self._records[record.key] = numbered
        self._counts[record.key[0]] = self._counts.get(record.key[0], 0) + 1
        self._owned.setdefault(record.owner, {})[record.key] = None
        return numbered

    def remove(self, key: Key) -> Record | None:
        self.sequence += 1
        return self._forget(key)

    def count(self, kind: str) -> int:
        return self._counts.get(kind, 0)

    def owned_by(self, owner: str) -> list[Record]:
        return [self._records[key] for key in self._owned.get(owner, ())]

    def totals(self, owner: str, without: Iterable[Key] = (), and_also: Iterable[Record] = ()) -> Totals:
        """What an owner has, or would have if some records went and others came."""
        leaving = set(without)
        kept = [record for record in self.owned_by(owner) if record.key not in leaving]
        intents = [record.intent for record in (*kept, *and_also)]
        return Totals(
            sum(len(each.subscriptions) for each in intents if isinstance(each, SubscriberIntent)),
            math.fsum(
                publication.rate_per_second or 0.0
                for each in intents
                if isinstance(each, PublisherIntent)
                for publication in each.publications
            ),
        )

    def _forget(self, key: Key) -> Record | None:
        record = self._records.pop(key, None)
        if record is not None:
            self._counts[key[0]] -= 1
            owned = self._owned[record.owner]
            del owned[key]
            if not owned:
                del self._owned[record.owner]
        return record
