"""What one connection publishes: each message under the id of its topic, QoS 1 and 2 until they are acknowledged.

A message whose topic has no id yet waits until the gateway has told one, and those behind it wait, too: events of a
publisher keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from triagemq.client.outbox import Outbox, Outgoing
from triagemq.client.settings import ConnectionSettings
from triagemq.client.topics import TopicIds
from triagemq.client.wire import Wire
from triagemq.errors import ClientError, ClosedError, ParameterError, RefusedError
from triagemq.mqttsn import PubAck, Publish, ReturnCode

__all__ = ["Publishing"]

_SYSTEM_IS_BUSY_SECONDS = 0.001


class Publishing:
    """`register` asks the gateway for the id of a topic name."""

    def __init__(
        self, wire: Wire, settings: ConnectionSettings, register: Callable[[str], Awaitable[int]]
    ) -> None:
        self._wire = wire
        self.outbox = Outbox(wire, settings, self._topic_is_unknown)
        self.topics = TopicIds(register, settings.predefined_topics)
        self.published = 0
        self.not_sent = 0
        self._refused_unacknowledged = 0
        self._waiting: deque[Outgoing] = deque()
        self._sender: asyncio.Task[None] | None = None

    @property
    def refused(self) -> int:
        """Messages of any QoS that the gateway did not want."""
        return self._refused_unacknowledged + self.outbox.refused

    # Life.

    def begin(self) -> None:
        """The connection is there: all ids are void, and everything unfinished is sent again."""
        self.topics.forget()
        self._waiting = deque(self.outbox.unfinished())
        self._send_waiting()

    def pause(self) -> None:
        """The connection is lost."""
        self.outbox.hold()
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None

    async def drained(self) -> None:
        """Wait until everything is acknowledged or refused."""
        await self.outbox.drained()

    def give_up(self, error: ClientError) -> None:
        """What is unfinished stays so."""
        self.outbox.close(error)

    async def close(self) -> None:
        """Stop asking for ids."""
        await self.topics.close()

    # Messages.

    async def publish(
        self, topic: str | int, payload: bytes, qos: int, retain: bool
    ) -> asyncio.Future[None] | None:
        """Send, or have it sent when it can be; QoS 1 and 2: when there is room, what tells of the acknowledgement."""
        if qos not in (-1, 0, 1, 2):
            raise ParameterError("qos", f"must be -1, 0, 1 or 2, is {qos}")
        if self.topics.known(topic) is None and qos == -1:
            raise ParameterError("topic", f"QoS -1 needs a predefined topic or two octets, not {topic!r}")
        self.published += 1
        if qos <= 0:
            await self._publish_unacknowledged(topic, payload, qos, retain)
            return None
        outgoing = await self.outbox.admit(topic, payload, qos, retain)
        reference = self.topics.known(topic)
        if reference is not None and self._wire.is_active and not self._waiting:
            self.outbox.transmit(outgoing, reference)
        else:
            self._send_later(outgoing)
        return outgoing.done

    async def _publish_unacknowledged(self, topic: str | int, payload: bytes, qos: int, retain: bool) -> None:
        if not self._wire.is_active and qos == 0:
            # What is not worth an acknowledgement is not worth being late.
            self.not_sent += 1
            return
        reference = self.topics.known(topic) or await self.topics.reference(topic)
        message = Publish(*reference, payload, qos, retain)
        while not self._wire.send(message):
            await asyncio.sleep(_SYSTEM_IS_BUSY_SECONDS)

    def answered(self, message: PubAck) -> None:
        """QoS 1 was acknowledged, or a message of any QoS refused."""
        if self.outbox.acknowledge(message) or message.return_code is ReturnCode.ACCEPTED:
            return
        if message.message_id == 0:
            self._refused_unacknowledged += 1
        if message.return_code is ReturnCode.REJECTED_INVALID_TOPIC_ID:
            self.topics.forget_id(message.topic_id)

    # Those that wait for the id of a topic, in order.

    def _topic_is_unknown(self, outgoing: Outgoing) -> None:
        self.topics.forget(outgoing.topic)
        self._send_later(outgoing)

    def _send_later(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)
        if self._wire.is_active:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._waiting and (self._sender is None or self._sender.done()):
            self._sender = asyncio.get_running_loop().create_task(self._send_in_order(self._waiting))

    async def _send_in_order(self, waiting: deque[Outgoing]) -> None:
        while waiting:
            outgoing = waiting[0]
            try:
                reference = await self.topics.reference(outgoing.topic)
            except RefusedError as error:
                self.outbox.fail(outgoing, error)
            except ClosedError:
                return
            else:
                self.outbox.transmit(outgoing, reference)
            waiting.popleft()
