"""Topic ids: each client has a table of its own, and a topic has the same id with all of them where that is possible.

One datagram serves all subscribers of a topic who know it by the same id. A topic therefore has a preferred id, which a
client gets unless that id means something else to it. An id means the same until the session ends, so that no message
in transit is taken for one of another topic. A client that has as many ids as it may have gets no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from triagemq.gateway.core.messages import Subscription
from triagemq.gateway.core.settings import GatewaySettings
from triagemq.gateway.store import RowChanges
from triagemq.mqttsn import TopicIdType, short_topic_id, short_topic_name

# The state of an id in the store.
_CONFIRMED = 4

# When all ids that a gateway has memory for are taken, every client can still have these.
_IDS_FOR_EVERYONE = 256


@dataclass(slots=True, eq=False)
class Topic:
    """A topic that at least one client knows."""

    name: str
    preferred_id: int
    known_by: int = 0


@dataclass(slots=True, eq=False)
class KnownTopic:
    """A topic id of one client. `confirmed`: the client has acknowledged it over its present connection."""

    topic_id: int
    topic: Topic
    confirmed: bool = False


class SharedTopics:
    """What the clients of a gateway have in common: topics by name, predefined ids, and limits.

    >>> table = SharedTopics(GatewaySettings(), RowChanges(enabled=False))
    >>> one, other = ClientTopics(table, "one"), ClientTopics(table, "other")
    >>> one.assign("floor3/gas").topic_id, one.assign("floor3/smoke").topic_id, other.assign("floor3/smoke").topic_id
    (1, 2, 2)
    """

    def __init__(self, settings: GatewaySettings, changes: RowChanges) -> None:
        self.settings = settings
        self.changes = changes
        self.given_out = 0
        self._by_name: dict[str, Topic] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def most_per_client(self) -> int:
        """Ids that a client may have now."""
        settings = self.settings
        is_short = self.given_out >= settings.topic_ids_in_all
        return min(settings.topic_ids, _IDS_FOR_EVERYONE) if is_short else settings.topic_ids

    def preferred_id(self, name: str) -> int:
        """The id that a topic has, or would have, with every client."""
        topic = self._by_name.get(name)
        return self._next if topic is None else topic.preferred_id

    def without_connection(self, id_type: TopicIdType, topic_id: int) -> str | None:
        """The topic of an id that needs no connection; None if there is none."""
        if id_type is TopicIdType.PREDEFINED:
            return self.settings.predefined_topics.get(topic_id)
        return short_topic_name(topic_id) if id_type is TopicIdType.SHORT else None

    def acquire(self, name: str, topic_id: int = 0) -> Topic:
        """One more client knows a topic; the id is the one that it had before a restart."""
        topic = self._by_name.get(name)
        if topic is None:
            topic = self._by_name[name] = Topic(name, topic_id or self._next)
            self._next = topic.preferred_id % self.settings.last_topic_id + 1
        topic.known_by += 1
        self.given_out += 1
        return topic

    def release(self, topic: Topic) -> None:
        """One client less knows it."""
        self.given_out -= 1
        topic.known_by -= 1
        if not topic.known_by:
            del self._by_name[topic.name]


class ClientTopics:
    """The ids of one client. Every change is stored.

    Most clients know few topics or none, and there may be many clients: nothing is allotted before it is needed.
    """

    __slots__ = ("_by_id", "_by_name", "_client_id", "_own_id", "_table")

    def __init__(self, table: SharedTopics, client_id: str) -> None:
        self._table = table
        self._client_id = client_id
        self._by_name: dict[str, KnownTopic] | None = None
        self._by_id: dict[int, KnownTopic] | None = None
        # Where to look next for an id that is not the preferred one.
        self._own_id = table.settings.last_topic_id

    def __len__(self) -> int:
        return len(self._by_id or ())

    def get(self, topic_id: int) -> KnownTopic | None:
        """What an id means."""
        return None if self._by_id is None else self._by_id.get(topic_id)

    def named(self, name: str) -> KnownTopic | None:
        """The id of a topic."""
        return None if self._by_name is None else self._by_name.get(name)

    def assign(self, name: str) -> KnownTopic | None:
        """The id of a topic, a new one if it had none; None if the client has as many as it may have."""
        known = self.named(name)
        if known is not None or len(self) >= self._table.most_per_client:
            return known
        topic_id = self._free_id(self._table.preferred_id(name))
        if not topic_id:
            return None
        known = KnownTopic(topic_id, self._table.acquire(name))
        self._add(known)
        self._store(known)
        return known

    def confirm(self, known: KnownTopic, confirmed: bool) -> None:
        """The client knows an id, or has shown that it does not."""
        if known.confirmed is not confirmed:
            known.confirmed = confirmed
            self._store(known)

    def new_connection(self) -> None:
        """The client may have forgotten every id."""
        for known in (self._by_id or {}).values():
            self.confirm(known, False)

    def name_of(self, id_type: TopicIdType, topic_id: int) -> str | None:
        """The topic of a PUBLISH of the client; None if its id means nothing."""
        if id_type is not TopicIdType.NORMAL:
            return self._table.without_connection(id_type, topic_id)
        known = self.get(topic_id)
        return None if known is None else known.topic.name

    def reference(self, subscription: Subscription, topic_name: str) -> tuple[TopicIdType, int] | None:
        """How to name a topic to the client in a PUBLISH; None if it has to be registered first."""
        if subscription.id_type is TopicIdType.PREDEFINED:
            return TopicIdType.PREDEFINED, subscription.predefined_id
        if subscription.id_type is TopicIdType.SHORT:
            return TopicIdType.SHORT, short_topic_id(topic_name)
        if subscription.topic_filter != topic_name and len(topic_name.encode()) == 2:
            # By a wildcard: the client has no id yet, and needs none for a name of two octets.
            return TopicIdType.SHORT, short_topic_id(topic_name)
        known = self.named(topic_name)
        return None if known is None or not known.confirmed else (TopicIdType.NORMAL, known.topic_id)

    def clear(self) -> None:
        """The session is over."""
        for known in (self._by_id or {}).values():
            self._table.release(known.topic)
            self._table.changes.remove("client_topics", (self._client_id, known.topic_id))
        self._by_name = self._by_id = None

    def restore(self, topic_id: int, name: str, flags: int) -> None:
        """Put back an id of before a restart, if it has always meant the same."""
        if flags & ~_CONFIRMED:
            # Of a version that gave one id to several topics in turn: the client gets it anew.
            self._table.changes.remove("client_topics", (self._client_id, topic_id))
        else:
            known = KnownTopic(topic_id, self._table.acquire(name, topic_id), confirmed=bool(flags))
            self._add(known)

    def _add(self, known: KnownTopic) -> None:
        if self._by_name is None or self._by_id is None:
            self._by_name, self._by_id = {}, {}
        self._by_name[known.topic.name] = self._by_id[known.topic_id] = known

    def _store(self, known: KnownTopic) -> None:
        row = (self._client_id, known.topic_id, known.topic.name, _CONFIRMED * known.confirmed)
        self._table.changes.put("client_topics", row)

    def _free_id(self, preferred: int) -> int:
        """An id for a topic: the preferred one unless it is taken, or else the next in turn; 0 if all are taken."""
        last_id = self._table.settings.last_topic_id
        if self.get(preferred) is None:
            return preferred
        if len(self) >= last_id:
            return 0
        while self.get(self._own_id) is not None:
            self._own_id = self._own_id - 1 or last_id
        return self._own_id
