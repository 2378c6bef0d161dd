"""BrokerEar: hears what passes through a broker, and remembers topic, time and size of every message until asked."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from array import array
from typing import Any

import numpy as np

from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.mqtt.connection import MqttConnection
from triagemq.exchange.mqtt.session import Login, MqttSession

_MOST_WAITING = 1_000_000
"""Messages that wait to be asked for, at some 20 bytes each."""
_PATIENCE_SECONDS = 15.0
_REFUSED = 0x80


class BrokerEar:
    """A session with the broker, in a thread of its own; also what an `MqttOwner` is.

    Times never go back, not even behind those of a stream before this one: the watermark has passed them.
    """

    def __init__(self, address: BrokerAddress, topic_filter: str, earliest_ns: int) -> None:
        self._now_ns = earliest_ns
        self._filter = topic_filter
        self._lock = threading.Lock()
        self._forget()
        self._is_heard = False
        self._problem = ""
        self._since = time.monotonic()
        login = Login(f"triagemq-{secrets.token_hex(6)}", user=address.user, password=address.password)
        self._session = MqttSession(self, login, version=address.version)
        self._connection = MqttConnection(
            address, self._session, before=lambda: None, changed=lambda connection: connection.flush()
        )
        self._address = address
        threading.Thread(target=lambda: asyncio.run(self._connection.run()), daemon=True).start()

    def take(self) -> tuple[int, list[str], Any, Any, Any, int]:
        """The time up to which all is told, names of topics, then number among them, time and size of every message,
        and how many had no place."""
        if (not self._is_heard and time.monotonic() - self._since > _PATIENCE_SECONDS) or self._problem:
            why = self._problem or self._connection.last_problem or "it does not answer"
            raise ConnectionError(f"{self._address}: {why}")
        with self._lock:
            names, *columns = self._names, self._topics, self._times, self._sizes
            lost, now_ns = self._lost, self._time()
            self._forget()
        numbers, when, large = (np.array(values, dtype=np.int64) for values in columns)
        return now_ns, [name.decode(errors="replace") for name in names], numbers, when, large, lost

    def _time(self) -> int:
        self._now_ns = max(self._now_ns, time.time_ns())
        return self._now_ns

    def _forget(self) -> None:
        self._names: dict[bytes, int] = {}
        self._topics, self._times, self._sizes = array("i"), array("q"), array("i")
        self._lost = 0

    def mqtt_connected(self, session: MqttSession, answer: object) -> None:
        """Every connection has its subscription."""
        session.subscribe(self._filter, 0, identifier=None, with_retained=False)

    def mqtt_refused(self, session: MqttSession, answer: Any) -> None:
        """Nothing helps but another password."""
        self._problem = f"refuses the connection ({answer.code:#04x})"

    def mqtt_subscribed(self, session: MqttSession, packet_id: int, code: int) -> None:
        """From now on messages come."""
        self._is_heard = code < _REFUSED
        if not self._is_heard:
            self._problem = f"refuses a subscription to {self._filter} ({code:#04x})"

    def mqtt_message(self, session: MqttSession, message: Any) -> None:
        """A message; retained ones are old, and come from brokers of before MQTT 5 nevertheless."""
        if message.retain:
            return
        with self._lock:
            if len(self._times) >= _MOST_WAITING:
                self._lost += 1
                return
            self._topics.append(self._names.setdefault(message.topic, len(self._names)))
            self._times.append(self._time())
            self._sizes.append(len(message.payload))

    def __getattr__(self, name: str) -> Any:
        """Of the rest of what a broker says nothing is of interest."""
        if name.startswith("mqtt_"):
            return lambda *_: None
        raise AttributeError(name)
