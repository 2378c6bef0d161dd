"""PUBLISH from the gateway: named, answered as its QoS demands, and handed on once.

A QoS 2 message is handed on when it first comes, and known by its message id until PUBREL. Ids of finished messages are
remembered for a while, because the network may bring a copy that was late; the contents are compared, too, because the
gateway uses ids again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from triagemq.client.events import Event
from triagemq.mqttsn import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    TopicIdType,
    short_topic_name,
)
from triagemq.mqttsn.timestamps import split_payload

__all__ = ["Inbox"]

_REMEMBERED = 1024
_REMEMBERED_SECONDS = 60.0
_MOST_HELD = 256


class Inbox:
    """What came over one connection. `send` sends a message to the gateway, `hand_on` gets each event once."""

    def __init__(
        self,
        send: Callable[[PubAck | PubRec | PubComp | RegAck], object],
        hand_on: Callable[[Event], None],
        slot: int,
        predefined_topics: Mapping[int, str],
    ) -> None:
        self._send = send
        self._hand_on = hand_on
        self._slot = slot
        self._predefined = predefined_topics
        self._names: dict[int, str] = {}
        self._unfinished: dict[int, int] = {}
        self._finished: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._held: dict[int, list[tuple[Publish, int]]] = {}
        self.received = 0
        self.duplicates = 0
        self.unknown_topics = 0

    def begin(self, *, fresh: bool) -> None:
        """Connected again: held messages may mean another topic by now; in a fresh session message ids do, too."""
        self._held.clear()
        if fresh:
            self._unfinished.clear()
            self._finished.clear()

    def learn(self, topic_id: int, name: str) -> None:
        """The gateway has said what an id means; events that came before it are handed on now."""
        self._names[topic_id] = name
        for message, received_ns in self._held.pop(topic_id, ()):
            self._deliver(name, message, received_ns)

    def register(self, message: Register) -> None:
        """The gateway tells an id before it uses it."""
        self._send(RegAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
        self.learn(message.topic_id, message.topic_name)

    def publish(self, message: Publish) -> None:
        """An event, perhaps for the second time."""
        received_ns = time.time_ns()
        name = self._name(message)
        if name is None:
            self._unknown(message, received_ns)
            return
        if message.qos <= 0:
            self._deliver(name, message, received_ns)
            return
        contents = hash((message.topic_id_type, message.topic_id, message.payload))
        if message.qos == 1:
            # Two equal events may follow each other under one id only if the second is marked as a repetition.
            repeated = message.dup and self._is_finished(message.message_id, contents)
            self._send(PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
            self._finish(message.message_id, contents)
        else:
            repeated = self._unfinished.get(message.message_id) == contents
            if not repeated:
                repeated = self._is_finished(message.message_id, contents)
            self._send(PubRec(message.message_id))
            self._unfinished[message.message_id] = contents
        if repeated:
            self.duplicates += 1
        else:
            self._deliver(name, message, received_ns)

    def release(self, message: PubRel) -> None:
        """QoS 2: the gateway will not send it again."""
        contents = self._unfinished.pop(message.message_id, None)
        if contents is not None:
            self._finish(message.message_id, contents)
        self._send(PubComp(message.message_id))

    def _name(self, message: Publish) -> str | None:
        if message.topic_id_type is TopicIdType.NORMAL:
            return self._names.get(message.topic_id)
        if message.topic_id_type is TopicIdType.SHORT:
            return short_topic_name(message.topic_id)
        return self._predefined.get(message.topic_id, f"predefined:{message.topic_id}")

    def _unknown(self, message: Publish, received_ns: int) -> None:
        """Have the gateway tell the id. QoS 1 and 2 come again then; QoS 0 does not, so it is held."""
        self.unknown_topics += 1
        if message.qos <= 0 and sum(map(len, self._held.values())) < _MOST_HELD:
            self._held.setdefault(message.topic_id, []).append((message, received_ns))
        self._send(PubAck(message.topic_id, message.message_id, ReturnCode.REJECTED_INVALID_TOPIC_ID))

    def _deliver(self, name: str, message: Publish, received_ns: int) -> None:
        self.received += 1
        published_ns, payload = split_payload(message.payload)
        self._hand_on(
            Event(name, payload, published_ns, received_ns, max(0, message.qos), self._slot, message.retain)
        )

    def _finish(self, message_id: int, contents: int) -> None:
        self._finished[message_id] = (contents, time.monotonic())
        self._finished.move_to_end(message_id)
        if len(self._finished) > _REMEMBERED:
            self._finished.popitem(last=False)

    def _is_finished(self, message_id: int, contents: int) -> bool:
        found = self._finished.get(message_id)
        return (
            found is not None and found[0] == contents and time.monotonic() - found[1] < _REMEMBERED_SECONDS
        )
