"""How a topic is named on the wire, and what a gateway is asked about topics: REGISTER, SUBSCRIBE, UNSUBSCRIBE.

A question waits for the answer with its message id, over any loss. The ids that the gateway has given to names are kept
as long as the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from triagemq.client.wire import DOUBT_AFTER_ATTEMPTS, Wire, pause_before, refused
from triagemq.errors import ClientError, ParameterError
from triagemq.mqttsn import (
    Message,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    UnsubAck,
    Unsubscribe,
    is_shared,
    publishable_topic_name,
    short_topic_id,
    valid_topic_filter,
    valid_topic_name,
)
from triagemq.waiting import end

TopicReference = tuple[TopicIdType, int]
"""What a PUBLISH calls a topic."""

Answer = RegAck | SubAck | UnsubAck

_Kind = TypeVar("_Kind", RegAck, SubAck, UnsubAck)
_Refusable = TypeVar("_Refusable", RegAck, SubAck)
_MOST_REFUSALS = 5


def without_registration(topic: str | int, predefined_topics: Mapping[int, str]) -> TopicReference | None:
    """The id of a topic that needs none from the gateway: predefined, or a name of two octets.

    >>> without_registration("ab", {}), without_registration("floor3/smoke", {})
    ((<TopicIdType.SHORT: 2>, 24930), None)
    >>> without_registration("floor3/smoke", {7: "floor3/smoke"})
    (<TopicIdType.PREDEFINED: 1>, 7)
    """
    if isinstance(topic, int):
        return _predefined(topic)
    require_topic_name(topic)
    for topic_id, name in predefined_topics.items():
        if name == topic:
            return TopicIdType.PREDEFINED, topic_id
    if len(topic.encode()) == 2:
        return TopicIdType.SHORT, short_topic_id(topic)
    return None


def filter_reference(topic: str | int) -> tuple[TopicIdType, str | int]:
    """How a SUBSCRIBE names a filter: by a predefined id, as a short name, or in full.

    >>> filter_reference("floor3/+"), filter_reference("ab"), filter_reference(7)
    ((<TopicIdType.NORMAL: 0>, 'floor3/+'), (<TopicIdType.SHORT: 2>, 'ab'), (<TopicIdType.PREDEFINED: 1>, 7))
    """
    if isinstance(topic, int):
        return _predefined(topic)
    if not valid_topic_filter(topic):
        raise ParameterError(
            "topic",
            f"{topic!r} is no topic filter: + is a whole level, # the whole last one, "
            "no control characters, at most 200 levels",
        )
    if is_shared(topic):
        raise ParameterError("topic", f"{topic!r} is a shared subscription, which MQTT-SN does not have")
    if len(topic.encode()) == 2 and valid_topic_name(topic):
        return TopicIdType.SHORT, topic
    return TopicIdType.NORMAL, topic


def require_topic_name(topic: str) -> None:
    """ParameterError unless events can be published to it.

    >>> require_topic_name("floor3/+")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: topic: 'floor3/+' is no topic name to publish to: no wildcards, ...
    """
    if not publishable_topic_name(topic):
        raise ParameterError(
            "topic",
            f"{topic!r} is no topic name to publish to: no wildcards, not empty, no control characters, "
            "at most 200 levels, and neither $SYS nor $share in front",
        )


def _predefined(topic_id: int) -> TopicReference:
    if not 0 < topic_id < 0xFFFF:
        raise ParameterError("topic", f"a predefined topic id is from 1 to 65534, not {topic_id}")
    return TopicIdType.PREDEFINED, topic_id


class TopicIds:
    """Ids by name, asked for once however many want them, and forgotten with each new connection."""

    def __init__(
        self, register: Callable[[str], Awaitable[int]], predefined_topics: Mapping[int, str]
    ) -> None:
        self._register = register
        self._predefined = predefined_topics
        self._known: dict[str | int, TopicReference] = {}
        self._asking: dict[str | int, asyncio.Task[TopicReference]] = {}
        # Grows with each connection: an answer that belongs to a former one is void.
        self._epoch = 0

    def known(self, topic: str | int) -> TopicReference | None:
        """The id, if nothing has to be asked."""
        found = self._known.get(topic)
        if found is None:
            found = without_registration(topic, self._predefined)
            if found is not None:
                self._known[topic] = found
        return found

    async def reference(self, topic: str | int) -> TopicReference:
        """The id, asked for if need be."""
        found = self.known(topic)
        if found is not None:
            return found
        assert isinstance(topic, str)
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
            task.add_done_callback(lambda done: self._asked(topic, done))
        # Shielded: one who gives up must not spoil it for the others.
        return await asyncio.shield(task)

    async def _ask(self, topic: str) -> TopicReference:
        while True:
            epoch = self._epoch
            reference = (TopicIdType.NORMAL, await self._register(topic))
            if epoch == self._epoch:
                self._known[topic] = reference
                return reference

    def _asked(self, topic: str, task: asyncio.Task[TopicReference]) -> None:
        self._asking.pop(topic, None)
        if not task.cancelled():
            task.exception()

    def forget(self, topic: str | int | None = None) -> None:
        """An id is void, or all are."""
        if topic is None:
            self._known.clear()
            self._epoch += 1
        else:
            self._known.pop(topic, None)

    def forget_id(self, topic_id: int) -> None:
        """The same, for one of whom only the id is known."""
        for topic, (id_type, number) in list(self._known.items()):
            if id_type is TopicIdType.NORMAL and number == topic_id:
                del self._known[topic]

    def learn(self, topic: str, topic_id: int) -> None:
        """The gateway has told an id without being asked to register."""
        self._known[topic] = (TopicIdType.NORMAL, topic_id)

    async def close(self) -> None:
        """Stop asking."""
        await end(*self._asking.values())


class Questions:
    """The open questions of one connection; they outlive its loss."""

    def __init__(self, wire: Wire, retry_seconds: float) -> None:
        self._wire = wire
        self._retry_seconds = retry_seconds
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._waiting

    async def register(self, name: str) -> int:
        """The id of a topic name."""
        answer = await self._unless_busy(
            RegAck, lambda message_id, _: Register(0, message_id, name), f"registering topic {name!r}"
        )
        return answer.topic_id

    async def subscribe(self, topic: str | int, qos: int) -> SubAck:
        """Events of a filter, a short name, or a predefined id."""
        id_type, name = filter_reference(topic)
        return await self._unless_busy(
            SubAck,
            lambda message_id, repeated: Subscribe(id_type, name, message_id, qos, repeated),
            f"subscribing to {topic!r}",
        )

    async def unsubscribe(self, topic: str | int) -> None:
        """No more of them."""
        id_type, name = filter_reference(topic)
        await self._ask(UnsubAck, lambda message_id, _: Unsubscribe(id_type, name, message_id))

    async def _unless_busy(
        self, kind: type[_Refusable], question: Callable[[int, bool], Message], what: str
    ) -> _Refusable:
        """Ask; a gateway that cannot take more now is asked again a few times."""
        for refusals in range(1, 1 + _MOST_REFUSALS):
            answer = await self._ask(kind, question)
            if answer.return_code is ReturnCode.ACCEPTED:
                return answer
            if answer.return_code is not ReturnCode.REJECTED_CONGESTION or refusals == _MOST_REFUSALS:
                break
            await asyncio.sleep(self._retry_seconds * refusals / 2)
        raise refused(what, answer.return_code)

    async def _ask(self, kind: type[_Kind], question: Callable[[int, bool], Message]) -> _Kind:
        """Send the question (told whether it is a repetition) until it is answered."""
        message_id = self._wire.take_message_id()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = future
        attempt = 0
        try:
            while not future.done():
                await self._wire.until_active()
                if attempt >= DOUBT_AFTER_ATTEMPTS:
                    self._wire.probe()
                self._wire.send(question(message_id, attempt > 0))
                attempt += 1
                await asyncio.wait({future}, timeout=pause_before(attempt, self._retry_seconds))
                if future.done() and not isinstance(future.result(), kind):
                    # An answer to a question of long ago that had the same message id.
                    future = self._waiting[message_id] = asyncio.get_running_loop().create_future()
            answer = future.result()
            assert isinstance(answer, kind)
            return answer
        finally:
            self._waiting.pop(message_id, None)

    def answer(self, message: Answer) -> None:
        """An answer has come; if nobody asked, or it was answered before, it is a late copy."""
        future = self._waiting.get(message.message_id)
        if future is not None and not future.done():
            future.set_result(message)

    def close(self, error: ClientError) -> None:
        """Nobody will answer any more."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
                # Whoever has stopped waiting does not need to know.
                future.exception()
