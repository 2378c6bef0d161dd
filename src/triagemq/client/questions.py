"""Messages that wait for an answer with the same message id: REGISTER, SUBSCRIBE, UNSUBSCRIBE."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from triagemq.client.gateway_errors import refused
from triagemq.client.topics import filter_reference
from triagemq.client.wire import DOUBT_AFTER_ATTEMPTS, Wire, pause_before
from triagemq.errors import ClientError
from triagemq.mqttsn import Message, RegAck, Register, ReturnCode, SubAck, Subscribe, UnsubAck, Unsubscribe

__all__ = ["Answer", "Questions"]

Answer = RegAck | SubAck | UnsubAck
_Kind = TypeVar("_Kind", RegAck, SubAck, UnsubAck)
_Refusable = TypeVar("_Refusable", RegAck, SubAck)
_MOST_REFUSALS = 5


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
