"""Topic ids: each client has a table of its own, and a topic has the same id with all of them where that can be.

One datagram serves all subscribers of a topic who know it by the same id. A topic therefore has a preferred id, which a
client gets unless the id means something else to it.

A client that hears of more topics than it may have ids for gives up the one that was used least recently, unless it has
asked for it itself. An id must not come to mean another topic while messages with the old meaning are under way, to the
client or from it: it rests for a while, and then comes last in the line of those that are free.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from triagemq.mqttsn import TopicIdType, short_topic_name

REGISTERED, SUBSCRIBED = 1, 2
"""Why an id is not given up: the client has asked for it, or has subscribed to the topic by its name."""

FORMER = 16
"""What the store says of an id that was given up; of id 0, which means nothing: there was such a one."""

_TOLD, _REUSED = 4, 8

# The tables of a client without ids; nobody writes into it.
_NOTHING: Final[dict[Any, Any]] = {}
# When all ids that a gateway has memory for are taken, everyone can still have these.
_IDS_FOR_EVERYONE = 256
# Ids in use that are passed over in the search for one that is not.
_SECOND_CHANCES = 64


class Topic:
    """A topic that at least one client knows. `used_ns` is when a message of it last went to or came from any."""

    __slots__ = ("known_by", "name", "preferred_id", "used_ns")

    def __init__(self, name: str, preferred_id: int) -> None:
        self.name = name
        self.preferred_id = preferred_id
        self.used_ns = 0
        self.known_by = 0


class SharedTopics:
    """What the clients of a gateway have in common: topics by name, predefined ids, and how many ids are given out.

    >>> table = SharedTopics({7: "floor3/pump"})
    >>> one, other = ClientTopics(table), ClientTopics(table)
    >>> one.assign("floor3/gas", 0, limit=10).topic_id, one.assign("floor3/smoke", 0, limit=10).topic_id
    (1, 2)
    >>> other.assign("floor3/smoke", 0, limit=10).topic_id
    2
    """

    def __init__(
        self, predefined: Mapping[int, str], last_id: int = 0xFFFE, most_ids: int = 1_000_000
    ) -> None:
        self.predefined = dict(predefined)
        self.last_id = last_id
        self.given_out = 0
        # Where the next client begins to look for ids that nobody prefers: not where the last one did.
        self.next_own_id = last_id
        self._most_ids = most_ids
        self._by_name: dict[str, Topic] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Topic | None:
        """The topic of that name, if anybody knows it."""
        return self._by_name.get(name)

    @property
    def is_short(self) -> bool:
        """Have so many ids been given out that clients have to make do with a few?"""
        return self.given_out >= self._most_ids

    def preferred_id(self, name: str) -> int:
        """The id that a topic has, or would have, with every client."""
        topic = self._by_name.get(name)
        return self._next if topic is None else topic.preferred_id

    def without_connection(self, id_type: TopicIdType, topic_id: int) -> str | None:
        """What an id means that no client has been told; None if it means nothing."""
        if id_type is TopicIdType.PREDEFINED:
            return self.predefined.get(topic_id)
        return short_topic_name(topic_id) if id_type is TopicIdType.SHORT else None

    def acquire(self, name: str, topic_id: int = 0) -> Topic:
        """One more client knows a topic; the id is the one that it had before a restart."""
        topic = self._by_name.get(name)
        if topic is None:
            topic = self._by_name[name] = Topic(name, topic_id or self._next)
            self._next = topic.preferred_id % self.last_id + 1
        topic.known_by += 1
        self.given_out += 1
        return topic

    def release(self, topic: Topic) -> None:
        """One client less knows it."""
        self.given_out -= 1
        topic.known_by -= 1
        if not topic.known_by:
            del self._by_name[topic.name]


class KnownTopic:
    """A topic id of one client. `told`: the client has confirmed it over its present connection."""

    __slots__ = ("flags", "looked_ns", "open_ns", "topic", "topic_id")

    def __init__(self, topic_id: int, topic: Topic, flags: int = 0) -> None:
        self.topic_id = topic_id
        self.topic = topic
        # When its use was last looked at, and since when the client may publish under it.
        self.looked_ns = self.open_ns = 0
        # All that is to be known after a restart.
        self.flags = flags

    @property
    def told(self) -> bool:
        return bool(self.flags & _TOLD)

    @told.setter
    def told(self, value: bool) -> None:
        self.flags = self.flags | _TOLD if value else self.flags & ~_TOLD

    @property
    def reused(self) -> bool:
        """May the id have meant another topic before?"""
        return bool(self.flags & _REUSED)

    @property
    def is_held(self) -> bool:
        """Does the client rely on it?"""
        return bool(self.flags & (REGISTERED | SUBSCRIBED))


class ClientTopics:
    """The ids of one client: those that hold, and those that rest because the client may take them for what they meant.

    Most clients know few topics or none, and there may be many clients: nothing is allotted before it is needed.
    """

    __slots__ = (
        "_by_name",
        "_gave_up_before",
        "_held",
        "_own_id",
        "_resting",
        "_table",
        "_unused_first",
        "_used",
    )

    def __init__(self, table: SharedTopics) -> None:
        self._table = table
        self._by_name: dict[str, KnownTopic] = _NOTHING
        # By id: those that are not given up, and the others, from the least recently used on.
        self._held: dict[int, KnownTopic] = _NOTHING
        self._unused_first: dict[int, KnownTopic] = _NOTHING
        # By id: since when it rests, in order of time.
        self._resting: dict[int, int] = _NOTHING
        # A bit for each id that was given up once; which those were before a restart is not known.
        self._used: bytearray | None = None
        self._gave_up_before = False
        # Where to look next for an id that is not the preferred one.
        self._own_id = table.next_own_id

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def rests_since_ns(self) -> int | None:
        """When the id that rests longest was given up; None if none does."""
        return next(iter(self._resting.values())) if self._resting else None

    @property
    def has_given_up(self) -> bool:
        """Has an id ever come to mean nothing, also before a restart?"""
        return self._gave_up_before or self._used is not None

    def get(self, topic_id: int) -> KnownTopic | None:
        """What an id means now."""
        return self._unused_first.get(topic_id) or self._held.get(topic_id)

    def named(self, name: str) -> KnownTopic | None:
        """The id of a topic."""
        return self._by_name.get(name)

    def has_room(self, limit: int) -> bool:
        """May it have one more?"""
        return len(self) < (min(limit, _IDS_FOR_EVERYONE) if self._table.is_short else limit)

    def is_full(self, limit: int) -> bool:
        """Is there no room for one more, and none that could be given up?"""
        return not self._unused_first and not self.has_room(limit)

    def assign(self, name: str, now_ns: int, *, limit: int, may_reuse: bool = True) -> KnownTopic | None:
        """The id of a topic, a new one if it had none; None if there is none now."""
        known = self._by_name.get(name)
        if known is not None or not self.has_room(limit):
            return known
        topic_id = self._free_id(self._table.preferred_id(name), may_reuse)
        if not topic_id:
            return None
        self._begin()
        flags = _REUSED if self._gave_up_before or self._was_used(topic_id) else 0
        known = KnownTopic(topic_id, self._table.acquire(name), flags)
        known.looked_ns = known.topic.used_ns = now_ns
        self._by_name[name] = self._unused_first[topic_id] = known
        return known

    def least_used(self, busy: Container[str]) -> KnownTopic | None:
        """The one that was used least recently and is not `busy`; None if there is none."""
        chances = _SECOND_CHANCES
        for _ in range(2 * len(self._unused_first)):
            topic_id, known = next(iter(self._unused_first.items()))
            topic = known.topic
            is_busy = topic.name in busy
            if not is_busy and (not chances or topic.used_ns <= known.looked_ns):
                return known
            chances -= not is_busy
            # Used since it was last looked at: to the end of the line.
            del self._unused_first[topic_id]
            known.looked_ns = topic.used_ns
            self._unused_first[topic_id] = known
        return None

    def give_up(self, known: KnownTopic, now_ns: int) -> None:
        """An id that is not held means nothing from now on, and rests."""
        del self._unused_first[known.topic_id], self._by_name[known.topic.name]
        self._table.release(known.topic)
        if self._used is None:
            self._used = bytearray(self._table.last_id // 8 + 1)
        self._used[known.topic_id >> 3] |= 1 << (known.topic_id & 7)
        self._resting[known.topic_id] = now_ns

    def still_used(self, topic_id: int, now_ns: int) -> None:
        """The client goes by an id that was given up: it rests from now on."""
        if self._resting.pop(topic_id, None) is not None or self._was_used(topic_id):
            self._resting[topic_id] = now_ns

    def rested(self, until_ns: int) -> list[int]:
        """Those that have rested since then: they may mean something again."""
        found = []
        for topic_id, since_ns in self._resting.items():
            if since_ns > until_ns:
                break
            found.append(topic_id)
        for topic_id in found:
            del self._resting[topic_id]
        return found

    def hold(self, known: KnownTopic, why: int) -> None:
        """Do not give an id up."""
        known.flags |= why
        if self._unused_first.pop(known.topic_id, None) is not None:
            self._held[known.topic_id] = known

    def let_go(self, known: KnownTopic, why: int) -> None:
        """A reason not to give it up has gone."""
        known.flags &= ~why
        if not known.is_held and self._held.pop(known.topic_id, None) is not None:
            self._unused_first[known.topic_id] = known

    def new_connection(self) -> list[KnownTopic]:
        """The client may have forgotten everything, and asks again for what it needs: what that changes."""
        changed = [known for known in self._by_name.values() if known.flags & (_TOLD | REGISTERED)]
        for known in changed:
            known.told = False
            self.let_go(known, REGISTERED)
        return changed

    def clear(self) -> list[int]:
        """Forget everything: the ids that the store knows."""
        for known in self._by_name.values():
            self._table.release(known.topic)
        stored = [*self._held, *self._unused_first, *self._resting, *([0] if self.has_given_up else [])]
        self._by_name = self._held = self._unused_first = self._resting = _NOTHING
        return stored

    def restore(self, topic_id: int, name: str, flags: int, now_ns: int) -> None:
        """Put back an id of before a restart; one that rested does so again for its whole time."""
        self._begin()
        if flags & FORMER:
            self._gave_up_before = True
            if topic_id:
                self._resting[topic_id] = now_ns
            return
        known = KnownTopic(topic_id, self._table.acquire(name, topic_id), flags)
        self._by_name[name] = known
        (self._held if known.is_held else self._unused_first)[topic_id] = known

    def _begin(self) -> None:
        if self._by_name is _NOTHING:
            self._by_name, self._held, self._unused_first, self._resting = {}, {}, {}, {}

    def _was_used(self, topic_id: int) -> bool:
        used = self._used
        return (
            used is not None and topic_id >> 3 < len(used) and bool(used[topic_id >> 3] >> (topic_id & 7) & 1)
        )

    def _free_id(self, preferred: int, may_reuse: bool) -> int:
        """An id for a topic, or 0: the preferred one if it never meant anything else, or else the next in turn, so that
        the others come first.
        """
        last_id = self._table.last_id
        if self.get(preferred) is None and preferred not in self._resting and not self._was_used(preferred):
            return preferred
        if len(self) + len(self._resting) >= last_id:
            return 0
        for _ in range(last_id):
            topic_id = self._own_id
            self._own_id = topic_id - 1 or last_id
            is_free = self.get(topic_id) is None and topic_id not in self._resting
            if is_free and (may_reuse or not (self._gave_up_before or self._was_used(topic_id))):
                self._table.next_own_id = self._own_id
                return topic_id
        return 0
