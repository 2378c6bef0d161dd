"""The two sources of a stream, as Spark's data sources: publications of a live trace, messages of an MQTT broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from triagemq.broker.address import BrokerAddress
from triagemq.mqtt.tap import TopicTap
from triagemq.pipeline.streaming.windows import EVENTS, Packing, end_notes, note
from triagemq.trace.blocks import NEVER_NS, Position, TableBlocks

_TAKEN = ("topic_id", "publication_id", "published_ns", "size_bytes")

# An empty task costs 20-40 ms, as much as reading this many rows.
_ROWS_PER_TASK = 300_000


class _EventSource(DataSource):
    def schema(self) -> StructType:
        """Columns of a row."""
        return from_arrow_schema(EVENTS)

    @property
    def _packing(self) -> Packing:
        return Packing(**json.loads(self.options["packing"]))


class PublicationsSource(_EventSource):
    """Spark's `readStream.format("publications")`: options url (of a run), rows (most of a batch) and packing.

    Spark's own file source orders files by their modification time, which a copied trace does not keep, remembers the
    name of every file for ever, and cannot stop in the middle of a large file.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "publications"

    def streamReader(self, schema: Any) -> PublicationsReader:  # noqa: N802
        """Called by Spark in a process of its own."""
        return PublicationsReader(self.options["url"], int(self.options["rows"]), self._packing)


class PublicationsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds new blocks of a run and reads them; an offset is a `Position`."""

    def __init__(self, url: str, most_rows: int, packing: Packing) -> None:
        self._blocks = TableBlocks(url, "publications", "published_ns")
        self._most_rows = most_rows
        self._packing = packing
        self._drains = False
        self._end: Position | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new checkpoint begins."""
        return asdict(Position())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Batches of a backlog are bounded, so that memory is."""
        return ReadMaxRows(self._most_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read the present data only."""
        self._drains = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch: within the limit, and at least one block on."""
        position = Position(**start)
        if self._drains and self._end is None:
            self._end = self._advanced(position, None)
        return asdict(self._advanced(position, limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The blocks between two offsets, some for each task, as plain tuples that any process can read."""
        before, after = Position(**start), Position(**end)
        tasks: list[list[tuple[str, int, int]]] = []
        free, reached = 0, before
        for path, row_group, position in self._blocks.after(before):
            if position.events > after.events:
                break
            if free <= 0:
                tasks.append([])
                free = _ROWS_PER_TASK
            tasks[-1].append((path, row_group, reached.latest_ns))
            free -= position.events - reached.events
            reached = position
        if after.finished and not before.finished:
            tasks.append([])
        return [InputPartition(blocks) for blocks in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some blocks; without any, that no more will come. Runs in a worker."""
        for path, row_group, earlier_ns in partition.value:
            for rows in self._blocks.read(path, row_group, _TAKEN):
                columns = (rows.column(name).to_numpy() for name in _TAKEN)
                yield self._packing.packed(*columns, earlier_ns=earlier_ns)
        if not partition.value:
            yield from end_notes()

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the footers of the blocks that have been read."""
        self._blocks.forget()

    def _advanced(self, position: Position, most_rows: int | None) -> Position:
        if position.finished:
            return position
        # Read before looking for parts: when a run is marked as finished, all of its parts are there.
        finished = self._blocks.has_ended()
        begin = position.events
        for *_, after in self._blocks.after(position):
            if self._end is not None and after.events > self._end.events:
                break
            if most_rows is not None and after.events - begin > most_rows and position.events > begin:
                return position
            position = after
        return replace(position, finished=finished if self._end is None else self._end.finished)


class MqttSource(_EventSource):
    """Spark's `readStream.format("mqtt")`: options secret (the broker's URL), filter, client, packing and open_ns."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "mqtt"

    def simpleStreamReader(self, schema: Any) -> MqttReader:  # noqa: N802
        """Called by Spark in a process of its own, on the driver's machine."""
        options = self.options
        address = BrokerAddress.parse(options["secret"])
        return MqttReader(
            address, options["filter"], options["client"], self._packing, int(options["open_ns"])
        )


class MqttReader(SimpleDataSourceStreamReader):
    """Hands over what has come since the last question; retained messages are not subscribed to.

    A message is counted at most once: it is acknowledged when it arrives. One without room while Spark is busy, or
    taken and not yet stored when a stream was killed, is `lost`; one that waited at the broker and has no time is
    `queued`. An offset has these counts, and the time up to which all is known (`known_ns`). Time without a stream or
    a connection is an outage. A message is part of windows that are open for `open_ns` after it: so long time goes on
    without messages.
    """

    def __init__(
        self, address: BrokerAddress, topic_filter: str, client_id: str, packing: Packing, open_ns: int
    ) -> None:
        self._address = address
        self._filter = topic_filter
        self._client_id = client_id
        self._packing = packing
        self._open_ns = open_ns
        self._tap: TopicTap | None = None
        self._outages = 0
        self._before: dict[str, Any] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new checkpoint begins."""
        return {"events": 0, "lost": 0, "queued": 0, "latest_ns": NEVER_NS, "known_ns": NEVER_NS}

    def _offset(self, stored: dict[str, Any]) -> dict[str, Any]:
        """An offset of a checkpoint, which may be of an earlier version."""
        known_ns = stored.get("known_ns", stored.get("told_ns", NEVER_NS))
        return self.initialOffset() | stored | {"known_ns": known_ns}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        """The messages since this offset, and the present time."""
        start = self._offset(start)
        if self._tap is None:
            self._before = start
            known_ns = start["known_ns"] if start["known_ns"] != NEVER_NS else None
            self._tap = TopicTap(self._address, self._filter, self._client_id, known_ns)
        tap = self._tap
        tapped_ns, names, topics, times, sizes = tap.take()
        now_ns = start["known_ns"] if tapped_ns is None else tapped_ns
        is_open = now_ns - start["latest_ns"] < self._open_ns
        outages = tap.outages[self._outages :]
        if not (names or outages or (is_open and now_ns - start["known_ns"] >= self._packing.cell_ns)):
            return iter([]), start
        self._outages += len(outages)
        end = start | {"known_ns": now_ns}
        end |= {"lost": self._before["lost"] + tap.lost, "queued": self._before["queued"] + tap.queued}
        if names:
            end |= {"events": start["events"] + len(times), "latest_ns": int(times.max())}
        packing = replace(self._packing, topics=names, has_numbers=False)
        rows = packing.packed(topics, np.arange(start["events"], end["events"]), times, sizes)
        # An outage stands where it begins: it is known before any window closes that it touches.
        notes = [note(begin_ns, outage=(begin_ns, end_ns)) for begin_ns, end_ns in outages]
        counts = {name: end[name] - start[name] for name in ("lost", "queued")}
        return iter([rows, *notes, note(now_ns, **counts)]), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: N802
        """The messages that a killed stream had received: they are lost, and only their number and time are known."""
        start, end = self._offset(start), self._offset(end)
        lost = end["events"] - start["events"] + end["lost"] - start["lost"]
        counts = {"lost": lost, "queued": end["queued"] - start["queued"]}
        begin_ns, end_ns = start["known_ns"], end["known_ns"]
        if begin_ns == NEVER_NS:
            return iter([note(end_ns, **counts)])
        return iter([note(begin_ns, outage=(begin_ns, end_ns), **counts), note(end_ns)])
