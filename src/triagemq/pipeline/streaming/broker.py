"""What passes through an MQTT broker as a Spark stream: topics, times of arrival and sizes, of anybody's messages.

MQTT cannot be asked again: a message is counted at most once. What has no place while Spark is busy, and what was taken
and not yet kept when a stream was killed, is counted as lost. Retained messages are no news, and are not asked for.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.mqtt import Login, MqttConnection, MqttSession
from triagemq.pipeline.streaming.events import EVENTS, NEVER_NS, Packing, tick

_MOST_WAITING = 1_000_000
"""Messages that wait for Spark, at some 20 bytes each."""
_PATIENCE_SECONDS = 15.0
_REFUSED = 0x80


class MqttSource(DataSource):
    """Spark's `readStream.format("mqtt")`: options secret (the broker's URL), filter, packing and open_ns."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format`."""
        return "mqtt"

    def schema(self) -> StructType:
        """Columns of a row."""
        return from_arrow_schema(EVENTS)

    def simpleStreamReader(self, schema: Any) -> MqttReader:  # noqa: N802
        """Called by Spark in a process of its own, on the driver's machine."""
        options = self.options
        packing = Packing(**json.loads(options["packing"]))
        address = BrokerAddress.parse(options["secret"])
        return MqttReader(address, options["filter"], packing, int(options["open_ns"]))


class MqttReader(SimpleDataSourceStreamReader):
    """Hands over what has come since the last question; an offset counts what has come, and what was lost.

    A message is part of windows that are open for `open_ns` after it: so long the time goes on although nothing comes.
    """

    def __init__(self, address: BrokerAddress, topic_filter: str, packing: Packing, open_ns: int) -> None:
        self._address = address
        self._filter = topic_filter
        self._packing = packing
        self._open_ns = open_ns
        self._listener: BrokerEar | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new checkpoint begins."""
        return {"events": 0, "lost": 0, "latest_ns": NEVER_NS, "told_ns": NEVER_NS}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        """Messages, and what time it is."""
        if self._listener is None:
            self._listener = BrokerEar(self._address, self._filter, start["told_ns"])
        now_ns, names, topics, times, sizes, lost = self._listener.take()
        is_open = now_ns - start["latest_ns"] < self._open_ns
        if not names and not (is_open and now_ns - start["told_ns"] >= self._packing.cell_ns):
            return iter([]), start
        end = start | {"lost": start["lost"] + lost, "told_ns": now_ns}
        if names:
            end |= {"events": start["events"] + len(times), "latest_ns": int(times.max())}
        packing = replace(self._packing, topics=names, has_numbers=False)
        rows = packing.packed(topics, np.arange(start["events"], end["events"]), times, sizes)
        return iter([rows, tick(now_ns)]), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: N802
        """What a stream that was killed had taken: it is gone, and only its time is known."""
        return iter([tick(end["told_ns"])])


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
