"""The intents that are announced now, by kind and name, with rights and limits. In memory, no I/O."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from triagemq.coordinator.access.tokens import Caller, Role
from triagemq.coordinator.refusals import ConflictError, ForbiddenError, RequestError
from triagemq.intents import Intent, PublisherIntent, SubscriberIntent

Key = tuple[str, str]
"""Kind (`publisher` or `subscriber`) and name."""


@dataclass(frozen=True, slots=True)
class Record:
    """An intent, who announced it, and the key in its client ids; and what the policy knows the client by: its address,
    its user at the broker, and the role of its token. An intent that is only observed has no owner."""

    intent: Intent
    owner: str
    session_key: str
    address: str = ""
    user: str = ""
    role: str = ""

    @property
    def key(self) -> Key:
        return self.intent.kind, self.intent.name

    def client_id_base(self, access: bool) -> str:
        """What the client's ids begin with: its name, and with access on the key that only it knows."""
        return f"{self.intent.name}.{self.session_key}" if access else self.intent.name

    @property
    def stored_filters(self) -> dict[str, int]:
        """The filters with QoS 1 or 2."""
        intent = self.intent
        subscriptions = intent.subscriptions if isinstance(intent, SubscriberIntent) else ()
        return {each.topic: each.qos for each in subscriptions if each.qos}


class Registry:
    """Records by kind and name, and by owner."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records: dict[Key, Record] = {}
        self._owned: defaultdict[str, dict[Key, None]] = defaultdict(dict)
        self._counts: Counter[str] = Counter()
        for record in records:
            self.put(record)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._records.values()))

    def __contains__(self, key: Key) -> bool:
        return key in self._records

    def get(self, key: Key) -> Record | None:
        return self._records.get(key)

    def put(self, record: Record) -> None:
        """Add or replace."""
        self.restore(record.key, record)

    def remove(self, key: Key) -> Record | None:
        """Take away; what was there."""
        return self.restore(key, None)

    def count(self, kind: str) -> int:
        return self._counts[kind]

    def owned_by(self, owner: str) -> list[Record]:
        return [self._records[key] for key in self._owned[owner]] if owner in self._owned else []

    def restore(self, key: Key, record: Record | None) -> Record | None:
        """Replace a record by another, or by nothing; what was there."""
        before = self._records.pop(key, None)
        if before is not None:
            self._counts[key[0]] -= 1
            del self._owned[before.owner][key]
        if record is not None:
            self._records[key] = record
            self._counts[key[0]] += 1
            self._owned[record.owner][key] = None
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
    leaving = {*(record.key for record in own), *withdraw}
    others = (record for record in registry.owned_by(caller.owner) if record.key not in leaving)
    intents = [record.intent for record in (*others, *own)]
    subscriptions = sum(len(each.subscriptions) for each in intents if isinstance(each, SubscriberIntent))
    if caller.most_subscriptions is not None and subscriptions > caller.most_subscriptions:
        raise ForbiddenError(
            f"this token allows {caller.most_subscriptions} subscriptions in all; this would make {subscriptions}"
        )
    publishers = (each for each in intents if isinstance(each, PublisherIntent))
    rate = math.fsum(one.rate_per_second or 0.0 for each in publishers for one in each.publications)
    most = caller.most_publications_per_second
    if most is not None and rate > most:
        raise ForbiddenError(
            f"this token allows {most:g} publications a second in all; this would make {rate:g}"
        )


def check_once(keys: Sequence[Key]) -> None:
    """No name twice in one request."""
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            raise ConflictError(f"the {key[0]} {key[1]!r} is named twice in one request")
        seen.add(key)
