"""Topic, time and size of every message that passes through a broker.

What is published while there is no connection is not received. What waited because this process was stopped has no
known time: it is counted as `queued` and omitted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from typing import Any

import numpy as np

from triagemq.broker.address import BrokerAddress
from triagemq.mqtt.connection import MqttConnection
from triagemq.mqtt.packets import ConnectAnswer, Message
from triagemq.mqtt.session import Login, MqttOwner, MqttSession

_MOST_WAITING = 1_000_000
"""Messages that wait for `take`, at some 20 bytes each."""
_PATIENCE_SECONDS = 15.0
_PING_SECONDS = 2.0
"""Up to the last word of the broker all is known: pings are frequent, so that quiet topics do not stop the time."""
_SILENCE_NS = 6_000_000_000
_REFUSED = 0x80


class TopicTap(MqttOwner):
    """A session with the broker, in a thread of its own.

    Times never go back, not even behind those of a stream before this one: the watermark has passed them. `earliest_ns`
    is when that ended, if there was one; an outage lasts from then, or from the last packet of the broker, until the
    subscription holds again.
    """

    def __init__(
        self, address: BrokerAddress, topic_filter: str, client_id: str, earliest_ns: int | None
    ) -> None:
        self._heard_ns = earliest_ns
        self._away_since_ns = earliest_ns
        self._filter = topic_filter
        self._lock = threading.Lock()
        self._forget()
        self.lost, self.queued = 0, 0
        self.outages: list[list[int]] = []
        self._was_heard, self._is_away, self._is_subscribed = False, True, False
        self._problem = ""
        self._since = time.monotonic()
        login = Login(client_id, ping_seconds=_PING_SECONDS, user=address.user, password=address.password)
        self._session = MqttSession(self, login, version=address.version)
        self._connection = MqttConnection(
            address, self._session, before=self._octets_came, changed=self._connection_changed
        )
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._connection.run())

    def close(self) -> None:
        """Leave the broker."""
        asyncio.run_coroutine_threadsafe(self._connection.close(), self._loop)
        self._thread.join()

    def take(self) -> tuple[int | None, list[str], Any, Any, Any]:
        """The time up to which all is known, names of topics, then number among them, time and size of every message.

        During an outage nothing new is.
        """
        if (not self._was_heard and time.monotonic() - self._since > _PATIENCE_SECONDS) or self._problem:
            why = self._problem or self._connection.last_problem or "it does not answer"
            raise ConnectionError(f"{self._address}: {why}")
        with self._lock:
            names, *columns = self._names, self._topics, self._times, self._sizes
            if self._is_away:
                names, columns = {}, [array("q")] * 3
            else:
                self._forget()
            heard_ns = self._heard_ns
        numbers, when, large = (np.array(values, dtype=np.int64) for values in columns)
        return heard_ns, [name.decode(errors="replace") for name in names], numbers, when, large

    def _forget(self) -> None:
        self._names: dict[bytes, int] = {}
        self._topics, self._times, self._sizes = array("i"), array("q"), array("i")

    def _time(self) -> int:
        return max(self._heard_ns or 0, time.time_ns())

    def _octets_came(self) -> None:
        """After this process itself was stopped, the answer to a ping comes after all that waited for it."""
        with self._lock:
            if not self._is_away and self._time() - (self._heard_ns or 0) > _SILENCE_NS:
                self._is_away, self._away_since_ns = True, self._heard_ns
                self._session.ping()

    def _connection_changed(self, connection: MqttConnection) -> None:
        """Octets of the broker have been looked at, or the connection is gone."""
        with self._lock:
            if not self._session.connected:
                if not self._is_away:
                    self._is_away, self._away_since_ns = True, self._heard_ns
                self._is_subscribed = False
            elif self._is_away and self._is_subscribed and not self._session.unanswered_pings:
                self._is_away = False
                if self._away_since_ns is not None:
                    # The first stream of a table begins without one.
                    self.outages.append([self._away_since_ns, self._time()])
            if not self._is_away:
                self._heard_ns = self._time()
        connection.flush()

    def mqtt_connected(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """Every connection has its subscription."""
        session.subscribe(self._filter, 1, identifier=None, with_retained=False)

    def mqtt_refused(self, session: MqttSession, answer: ConnectAnswer) -> None:
        """Nothing helps but another password."""
        self._problem = f"refuses the connection ({answer.code:#04x})"

    def mqtt_answered(self, session: MqttSession, packet_id: int, code: int) -> None:
        """From now on messages come."""
        if code >= _REFUSED:
            self._problem = f"refuses a subscription to {self._filter} ({code:#04x})"
        else:
            self._was_heard = self._is_subscribed = True

    def mqtt_message(self, session: MqttSession, message: Message) -> None:
        """A message; retained ones are old, and come from brokers of before MQTT 5 nevertheless."""
        if message.retain:
            return
        with self._lock:
            if self._is_away:
                self.queued += 1
            elif len(self._times) >= _MOST_WAITING:
                self.lost += 1
            else:
                self._topics.append(self._names.setdefault(message.topic, len(self._names)))
                self._times.append(self._time())
                self._sizes.append(len(message.payload))
