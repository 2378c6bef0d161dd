"""What passes through an MQTT broker as a Spark stream: topics, times of arrival and sizes, of anybody's messages.

MQTT cannot be asked again: a message is counted at most once. What has no place while Spark is busy, and what was taken
and not yet kept when a stream was killed, is counted as lost. Retained messages are no news, and are not asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from triagemq.exchange.broker.address import BrokerAddress
from triagemq.exchange.mqtt.ear import BrokerEar
from triagemq.pipeline.streaming.events import EVENTS, Packing, tick
from triagemq.trace.blocks import NEVER_NS


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
