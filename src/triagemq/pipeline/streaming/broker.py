"""The messages that pass through an MQTT broker as a Spark stream: topics, times of arrival and sizes.

A message is counted at most once. Messages are acknowledged when they are taken; those without room while Spark is
busy, or taken and not yet stored when a stream was killed, are counted as lost. Time without a stream or a connection
is an outage, and stands in the offset. Retained messages are not subscribed to.
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
from triagemq.exchange.mqtt.tap import TopicTap
from triagemq.pipeline.streaming.events import EVENTS, Packing, tick
from triagemq.pipeline.streaming.windows import joined_spans
from triagemq.trace.blocks import NEVER_NS


class MqttSource(DataSource):
    """Spark's `readStream.format("mqtt")`: options secret (the broker's URL), filter, client, packing and open_ns."""

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
        return MqttReader(address, options["filter"], options["client"], packing, int(options["open_ns"]))


class MqttReader(SimpleDataSourceStreamReader):
    """Hands over what has come since the last question.

    An offset counts what has come (`events`), had no place (`lost`), or has no time because it waited at the broker
    (`queued`), and says up to when all is known (`told_ns`) and which times before are not (`outages`). A message is
    part of windows that are open for `open_ns` after it: so long the time goes on although nothing comes.
    """

    def __init__(
        self, address: BrokerAddress, topic_filter: str, client_id: str, packing: Packing, open_ns: int
    ) -> None:
        self._address = address
        self._filter = topic_filter
        self._client_id = client_id
        self._packing = packing
        self._open_ns = open_ns
        self._listener: TopicTap | None = None
        self._before: dict[str, Any] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new checkpoint begins."""
        counts = {"events": 0, "lost": 0, "queued": 0, "outages": []}
        return counts | {"latest_ns": NEVER_NS, "told_ns": NEVER_NS}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        """Messages, and what time it is."""
        if self._listener is None:
            self._before = self.initialOffset() | start
            told_ns = start["told_ns"] if start["told_ns"] != NEVER_NS else None
            self._listener = TopicTap(self._address, self._filter, self._client_id, told_ns)
        heard = self._listener
        heard_ns, names, topics, times, sizes = heard.take()
        before, now_ns = self._before, start["told_ns"] if heard_ns is None else heard_ns
        is_open = now_ns - start["latest_ns"] < self._open_ns
        outages = joined_spans([*before["outages"], *heard.outages])
        news = names or outages != start.get("outages", [])
        if not news and not (is_open and now_ns - start["told_ns"] >= self._packing.cell_ns):
            return iter([]), start
        end = start | {"told_ns": now_ns, "outages": outages}
        end |= {name: before[name] + getattr(heard, name) for name in ("lost", "queued")}
        if names:
            end |= {"events": start["events"] + len(times), "latest_ns": int(times.max())}
        packing = replace(self._packing, topics=names, has_numbers=False)
        rows = packing.packed(topics, np.arange(start["events"], end["events"]), times, sizes)
        return iter([rows, tick(now_ns)]), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: N802
        """What a stream that was killed had taken: it is gone, and only its time is known."""
        return iter([tick(end["told_ns"])])
