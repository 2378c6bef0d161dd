"""CONNECT and its answer, with the will in between; tried again with growing pauses."""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from triagemq.client.settings import ConnectionSettings, Will
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Message,
    ReturnCode,
    WillMsg,
    WillTopic,
)

__all__ = ["Handshake"]

_SLOWER = 1.7


class Sender(Protocol):
    """What a handshake needs of its connection."""

    def send(self, message: Message) -> bool:
        """Send it, or lose it."""


class Handshake:
    """Makes one connection after the other for the same client."""

    def __init__(
        self, sender: Sender, settings: ConnectionSettings, client_id: str, will: Will | None
    ) -> None:
        self._sender = sender
        self._settings = settings
        self.client_id = client_id
        self._will = will
        self._answer: asyncio.Future[ReturnCode] | None = None
        self.problem = ""
        """Why the last attempt failed."""
        self.refusal: ReturnCode | None = None
        """The answer to the last attempt, if it was no."""

    async def run(self, *, clean: bool) -> None:
        """Until a CONNECT is accepted."""
        delay = self._settings.first_delay_seconds
        attempts = 0
        while True:
            attempts += 1
            code = await self._attempt(clean, delay)
            if code is ReturnCode.ACCEPTED:
                break
            self.refusal = code
            if code is None:
                self.problem = "it does not answer"
            else:
                self.problem = f"it refuses the connection ({code.name.lower().replace('_', ' ')})"
                # Spread out, so that the clients of a gateway do not all come at the same instant.
                await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * _SLOWER, self._settings.longest_delay_seconds)
        if clean and attempts > 1:
            # Answers to the other attempts must not be taken for the answer to the next CONNECT.
            await asyncio.sleep(delay)
        self.problem, self.refusal = "", None

    async def _attempt(self, clean: bool, seconds: float) -> ReturnCode | None:
        self._answer = asyncio.get_running_loop().create_future()
        self._sender.send(
            Connect(
                self.client_id,
                self._settings.keep_alive_seconds,
                clean_session=clean,
                will=self._will is not None,
            )
        )
        try:
            done, _ = await asyncio.wait({self._answer}, timeout=seconds)
            return self._answer.result() if done else None
        finally:
            self._answer = None

    def will_topic_wanted(self) -> None:
        """The gateway asks for the topic of the will."""
        will = self._will
        self._sender.send(WillTopic(None) if will is None else WillTopic(will.topic, will.qos, will.retain))

    def will_message_wanted(self) -> None:
        """The gateway asks for the payload of the will."""
        self._sender.send(WillMsg(b"" if self._will is None else self._will.payload))

    def answered(self, message: ConnAck) -> bool:
        """False if there was no question: an old CONNECT has arrived late or twice."""
        if self._answer is None or self._answer.done():
            return False
        self._answer.set_result(message.return_code)
        return True
