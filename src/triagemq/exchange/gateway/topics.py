"""Topic ids: one table for the whole gateway, so that one datagram serves all subscribers of a topic."""

from __future__ import annotations

from collections.abc import Mapping

from triagemq.mqttsn import TopicIdType, short_topic_name

__all__ = ["Topic", "TopicTable"]

_FIRST_ID = 1
_LAST_ID = 0xFFFE


class Topic:
    """A topic name with its id. `known_by` counts the sessions that may use the id."""

    __slots__ = ("known_by", "name", "topic_id")

    def __init__(self, topic_id: int, name: str) -> None:
        self.topic_id = topic_id
        self.name = name
        self.known_by = 0


class TopicTable:
    """Gives out ids. An id comes free only when no session knows it: nobody can publish to a wrong topic.

    >>> table = TopicTable({7: "floor3/pump"})
    >>> table.assign("floor3/smoke").topic_id, table.name_of(TopicIdType.PREDEFINED, 7)
    (1, 'floor3/pump')
    """

    def __init__(self, predefined: Mapping[int, str]) -> None:
        self.predefined = dict(predefined)
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._next = _FIRST_ID

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, topic_id: int) -> Topic | None:
        """The topic that a normal id stands for."""
        return self._by_id.get(topic_id)

    def named(self, name: str) -> Topic | None:
        """The topic of that name, if it has an id."""
        return self._by_name.get(name)

    def assign(self, name: str) -> Topic | None:
        """The topic of that name, with an id given now if it had none; None when all ids are in use."""
        topic = self._by_name.get(name)
        if topic is None:
            if len(self._by_id) >= _LAST_ID and not self._reclaim():
                return None
            while self._next in self._by_id:
                self._next = self._next % _LAST_ID + 1
            topic = self.restore(self._next, name)
            self._next = self._next % _LAST_ID + 1
        return topic

    def restore(self, topic_id: int, name: str) -> Topic:
        """Put back a topic of before a restart."""
        topic = Topic(topic_id, name)
        self._by_name[name] = self._by_id[topic_id] = topic
        return topic

    def name_of(self, id_type: TopicIdType, topic_id: int) -> str | None:
        """What a PUBLISH of a client means by a topic id, or None if it means nothing."""
        if id_type is TopicIdType.NORMAL:
            topic = self._by_id.get(topic_id)
            return None if topic is None else topic.name
        if id_type is TopicIdType.PREDEFINED:
            return self.predefined.get(topic_id)
        return short_topic_name(topic_id)

    def _reclaim(self) -> int:
        unused = [topic for topic in self._by_id.values() if topic.known_by == 0]
        for topic in unused:
            del self._by_id[topic.topic_id], self._by_name[topic.name]
        return len(unused)
