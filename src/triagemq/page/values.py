"""The latest value of every topic, received from the brokers as an ordinary subscriber, while the page is open.

The page subscribes at brokers: its copies cost no gateway and no port anything.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from triagemq.broker.address import BrokerAddress
from triagemq.mqtt.connection import MqttConnection
from triagemq.mqtt.session import Login, MqttOwner, MqttSession
from triagemq.mqttsn.timestamps import split_payload
from triagemq.waiting import end

MOST_TOPICS = 20_000
_SHOWN_BYTES = 200
_PATIENCE_SECONDS = 60.0
_LATE_INTERVALS = 5.0
"""A topic with random intervals exceeds five of them once in 150 times; three, once in twenty."""
_LATE_SECONDS = 2.0


@dataclass(slots=True)
class Value:
    """The last event of a topic: when it was received (Unix seconds), its payload as text or as a number of bytes."""

    received: float
    payload: bytes
    size_bytes: int

    @property
    def text(self) -> str:
        """What people can read of it.

        >>> Value(0.0, b"21.5", 4).text, Value(0.0, bytes(40), 40).text
        ('21.5', '40 bytes')
        """
        try:
            words = self.payload.decode().strip()
        except UnicodeDecodeError:
            words = ""
        return words if words.isprintable() and words else f"{self.size_bytes} bytes"


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic as the situation shows it: `area` is its first level, `kind` its last.

    `state` is fresh, late, missing, or awaited while it is too early to tell.
    """

    topic: str
    area: str
    kind: str
    value: str | None
    age_seconds: float | None
    every_seconds: float | None
    state: str


class LatestValues(MqttOwner):
    """`look` says that the page is open: the brokers are listened to for as long as that."""

    def __init__(self) -> None:
        self.by_topic: dict[str, Value] = {}
        self.since: float | None = None
        self.problem = ""
        self._looked = 0.0
        self._task: asyncio.Task[None] | None = None

    def look(self, brokers: Iterable[str]) -> None:
        """Listen to these brokers, URLs with their passwords."""
        self._looked = time.monotonic()
        if self._task is None or self._task.done():
            self.by_topic, self.since = {}, time.time()
            listening = self._listen([BrokerAddress.parse(url) for url in brokers])
            self._task = asyncio.get_running_loop().create_task(listening)

    async def close(self) -> None:
        await end(self._task)

    async def _listen(self, brokers: list[BrokerAddress]) -> None:
        connections = []
        for address in brokers:
            login = Login(f"triage-page-{secrets.token_hex(6)}", user=address.user, password=address.password)
            session = MqttSession(self, login, version=address.version)
            connections.append(
                MqttConnection(
                    address, session, before=lambda: None, changed=lambda connection: connection.flush()
                )
            )
        tasks = [asyncio.ensure_future(each.run()) for each in connections]
        try:
            while time.monotonic() - self._looked < _PATIENCE_SECONDS:
                await asyncio.sleep(1.0)
                problems = [each.last_problem for each in connections if not each.session.connected]
                self.problem = self.problem if not connections else next(iter(problems), "")
        finally:
            await end(*tasks)
            for each in connections:
                await each.close()
            self.since = None

    # What the broker says.

    def mqtt_connected(self, session: MqttSession, answer: object) -> None:
        session.subscribe("#", 0, identifier=None, with_retained=True)

    def mqtt_message(self, session: MqttSession, message: Any) -> None:
        topic = message.topic.decode(errors="replace")
        _, payload = split_payload(message.payload)
        known = self.by_topic.get(topic)
        if known is None:
            if len(self.by_topic) < MOST_TOPICS:
                self.by_topic[topic] = Value(time.time(), payload[:_SHOWN_BYTES], len(payload))
            return
        known.received, known.payload, known.size_bytes = time.time(), payload[:_SHOWN_BYTES], len(payload)


def situation(
    values: Mapping[str, Value], rates: Mapping[str, float | None], since: float, now: float
) -> list[TopicNow]:
    """All topics that are known or were received, in alphabetical order; `rates` are events a second.

    Late is what has not come for five of its usual intervals, and missing what has not come at all for that long.

    >>> values = {"hall/smoke": Value(100.0, b"0.2", 3)}
    >>> [row.state for row in situation(values, {"hall/smoke": 1.0, "attic/smoke": 1.0}, 90.0, 110.0)]
    ['missing', 'late']
    """
    found = []
    for topic in sorted({*values, *rates}):
        value, rate = values.get(topic), rates.get(topic)
        limit = None if not rate else max(_LATE_INTERVALS / rate, _LATE_SECONDS)
        silent = now - (since if value is None else value.received)
        overdue = limit is not None and silent > limit
        state = "fresh" if not overdue else "missing" if value is None else "late"
        if value is None and not overdue:
            state = "awaited"
        area, _, rest = topic.partition("/")
        found.append(
            TopicNow(
                topic=topic,
                area=area,
                kind=rest.rpartition("/")[2] or area,
                value=None if value is None else value.text,
                age_seconds=None if value is None else silent,
                every_seconds=1 / rate if rate else None,
                state=state,
            )
        )
    return found
