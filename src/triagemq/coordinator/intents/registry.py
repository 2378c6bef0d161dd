"""Everything that is announced now, by kind and name, and how much of it each owner has. In memory, no I/O.

What a caller asks for is looked at first: its rights, its limits, and names used twice. A change is then a draft until
the store has it: the next request sees it, but it may still be taken back. Several drafts of one name may be under
way at once; the store takes them in the order in which they were made.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from triagemq.coordinator.access.tokens import Caller, Role
from triagemq.coordinator.refusals import ConflictError, ForbiddenError, RequestError
from triagemq.intents import Intent, PublisherIntent, SubscriberIntent

Key = tuple[str, str]
"""Kind (`publisher` or `subscriber`) and name."""


@dataclass(frozen=True, slots=True)
class Record:
    """An announced intent, who announced it, and the key in its client ids."""

    intent: Intent
    owner: str
    session_key: str
    sequence: int = 0
    """Grows with each change; a plan covers all up to one number. Not stored: it begins anew with each start."""

    @property
    def key(self) -> Key:
        return self.intent.kind, self.intent.name


@dataclass(frozen=True, slots=True)
class Totals:
    """What counts against limits: subscriptions, and publications a second as declared."""

    subscriptions: int = 0
    publications_per_second: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """What a name is to mean: a record, or nothing any more."""

    key: Key
    record: Record | None


class Registry:
    """Records. `sequence` counts the changes, so that a plan can say which of them it has seen."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.sequence = 0
        self._records: dict[Key, Record] = {}
        self._owned: dict[str, dict[Key, None]] = {}
        self._counts: dict[str, int] = {}
        # Of names that are being changed: what the store has, and the drafts since, the oldest first.
        self._versions: dict[Key, list[Draft]] = {}
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
        self.sequence += 1
        numbered = replace(record, sequence=self.sequence)
        self._place(record.key, numbered)
        return numbered

    def remove(self, key: Key) -> Record | None:
        self.sequence += 1
        return self._place(key, None)

    # Drafts.

    def draft(self, announced: Iterable[Record], withdrawn: Iterable[Key]) -> list[Draft]:
        """Change what is known here; each draft is to be kept or taken back when the store has answered."""
        wanted: list[tuple[Key, Record | None]] = [(record.key, record) for record in announced]
        wanted += [(key, None) for key in withdrawn]
        drafts = []
        for key, record in wanted:
            versions = self._versions.setdefault(key, [Draft(key, self._records.get(key))])
            if record is None:
                self.remove(key)
            versions.append(Draft(key, None if record is None else self.put(record)))
            drafts.append(versions[-1])
        return drafts

    def keep(self, draft: Draft) -> Record | None:
        """The store has it; the record that it had of that name before."""
        versions = self._versions.get(draft.key, [])
        if draft not in versions:
            return draft.record  # a later one is in the store already
        before = versions[0].record
        del versions[: versions.index(draft)]
        self._settle(draft.key)
        return before

    def take_back(self, draft: Draft) -> None:
        """The store does not have it: the name means what it did before, unless it has changed since."""
        versions = self._versions.get(draft.key, [])
        if draft not in versions:
            return
        versions.remove(draft)
        latest = versions[-1].record
        if self._records.get(draft.key) is not latest:
            self.sequence += 1
            self._place(draft.key, latest)
        self._settle(draft.key)

    def is_changing(self, key: Key) -> bool:
        """Are there drafts of that name?"""
        return key in self._versions

    def _settle(self, key: Key) -> None:
        if len(self._versions[key]) == 1:
            del self._versions[key]

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

    def _place(self, key: Key, record: Record | None) -> Record | None:
        """Put a record, or nothing, in the place of the one that is returned."""
        before = self._records.pop(key, None)
        if before is not None:
            self._counts[key[0]] -= 1
            owned = self._owned[before.owner]
            del owned[key]
            if not owned:
                del self._owned[before.owner]
        if record is not None:
            self._records[key] = record
            self._counts[key[0]] = self._counts.get(key[0], 0) + 1
            self._owned.setdefault(record.owner, {})[key] = None
        return before


def check_rights(caller: Caller, intent: Intent, port_names: Sequence[str]) -> None:
    """The caller's role, the name, the topics, and a port that is there."""
    caller.require(Role(intent.kind))
    caller.require_name(intent.name)
    if isinstance(intent, PublisherIntent):
        caller.require_publish(each.topic for each in intent.publications)
        return
    caller.require_subscribe(each.topic for each in intent.subscriptions)
    if intent.port is not None and intent.port not in port_names:
        known = ", ".join(port_names[:10])
        raise RequestError(f"there is no output port {intent.port!r}; there are {known}")


def check_limits(
    registry: Registry, caller: Caller, records: Sequence[Record], withdraw: Sequence[Key]
) -> None:
    """What the caller's token allows in all, counting what it has already."""
    if caller.most_subscriptions is None and caller.most_publications_per_second is None:
        return
    own = [record for record in records if record.owner == caller.owner]
    leaving = [*(record.key for record in own), *withdraw]
    totals = registry.totals(caller.owner, leaving, own)
    if caller.most_subscriptions is not None and totals.subscriptions > caller.most_subscriptions:
        raise ForbiddenError(
            f"this token allows {caller.most_subscriptions} subscriptions in all; "
            f"this would make {totals.subscriptions}"
        )
    most = caller.most_publications_per_second
    if most is not None and totals.publications_per_second > most:
        raise ForbiddenError(
            f"this token allows {most:g} publications a second in all; "
            f"this would make {totals.publications_per_second:g}"
        )


def check_once(keys: Sequence[Key]) -> None:
    """No name twice in one request."""
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            raise ConflictError(f"the {key[0]} {key[1]!r} is named twice in one request")
        seen.add(key)


Holder = TypeVar("Holder", bound=Hashable)


class Leases(Generic[Holder]):
    """Leases by their holders. The caller brings the clock, which must never go backwards.

    >>> leases = Leases[str]()
    >>> leases.grant("ff-7", 10.0, now=0.0)
    >>> leases.renew("ff-7", now=8.0), leases.renew("ff-8", now=8.0)
    (True, False)
    >>> leases.ended(now=17.0), leases.ended(now=18.0), len(leases)
    ([], ['ff-7'], 0)
    """

    def __init__(self) -> None:
        self._seconds: dict[Holder, float] = {}
        self._until: dict[Holder, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def grant(self, holder: Holder, seconds: float, now: float) -> None:
        """Begin a lease, or change its length."""
        self._seconds[holder] = seconds
        self._until[holder] = now + seconds

    def renew(self, holder: Holder, now: float) -> bool:
        """Begin the lease anew; False if there is none."""
        if holder not in self._until:
            return False
        self._until[holder] = max(self._until[holder], now + self._seconds[holder])
        return True

    def drop(self, holder: Holder) -> None:
        """End a lease before its time."""
        self._until.pop(holder, None)
        self._seconds.pop(holder, None)

    def ended(self, now: float) -> list[Holder]:
        """The leases that have ended by now, the earliest first; they are forgotten."""
        gone = sorted(
            (until, number, each) for number, (each, until) in enumerate(self._until.items()) if until <= now
        )
        for _, _, holder in gone:
            self.drop(holder)
        return [holder for _, _, holder in gone]

    def forgive(self, seconds: float) -> None:
        """Make all leases longer: the coordinator itself stood still, and no client could be heard."""
        self._until = {holder: until + seconds for holder, until in self._until.items()}
