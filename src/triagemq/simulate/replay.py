"""Publications as a trace recorded them: read as events of a scenario's publications, and published again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from triagemq.errors import ParameterError, TraceError
from triagemq.scenario import Floats, Scenario
from triagemq.simulate.network import RecordedLosses, drawn_losses
from triagemq.simulate.records import Buffer
from triagemq.trace import Trace

_RECORDED = ("published_ns", "topic_id", "publisher_id", "size_bytes")
_REPLAYED = ("published_ns", "publication", "size_bytes")


def recorded_publications(path: Path, scenario: Scenario, *, from_ns: int | None = None) -> dict[str, Any]:
    """Columns published_ns, publication, size_bytes and publication_id, in order of time.

    A simulation counts from 0 already. Times of a live run count from `from_ns`, and what is earlier is omitted;
    without it, they count from its first event. The publisher of an event is unknown to a gateway: then it is the first
    that publishes the topic.
    """
    trace = Trace.open(path)
    table = trace.table("publications", [*_RECORDED, "publication_id"])
    published_ns, topic, publisher, size_bytes = (
        pc.fill_null(table[name], -1).to_numpy() for name in _RECORDED
    )
    own = scenario.publications
    number: dict[tuple[int, int], int] = {}
    for row, (one, its_topic) in enumerate(zip(own.publisher.tolist(), own.topic.tolist(), strict=True)):
        number[one, its_topic] = row
        number.setdefault((-1, its_topic), row)
    rows = np.array(
        [number.get(pair, -1) for pair in zip(publisher.tolist(), topic.tolist(), strict=True)],
        dtype=np.int64,
    )
    if (rows < 0).any():
        raise TraceError(
            f"{trace.path}: holds publications that {scenario.name!r} does not have; replay it with its own scenario"
        )
    order = np.argsort(published_ns, kind="stable")
    if from_ns is not None:
        order = order[published_ns[order] >= from_ns]
    start = from_ns
    if start is None:
        simulated = trace.manifest is not None and trace.manifest.producer == "simulate"
        start = 0 if simulated or not len(order) else int(published_ns[order[0]])
    return {
        "published_ns": published_ns[order] - start,
        "publication": rows[order],
        "size_bytes": size_bytes[order],
        "publication_id": table["publication_id"].to_numpy()[order],
    }


class Replayed:
    """Publishes the rows of a table with the columns published_ns, publication and size_bytes, in order of time.

    With a column under_way_ns each event sets out only then, and that is the order: what it took hosts to send it was
    measured, and is part of its latency. `losses` are those of their copies; without them they are drawn.
    """

    def __init__(
        self, scenario: Scenario, table: Mapping[str, ArrayLike], losses: RecordedLosses | None = None
    ) -> None:
        missing = [name for name in _REPLAYED if name not in table]
        if missing:
            raise ParameterError("replay", f"lacks the columns {', '.join(missing)}")
        published_ns, publication, size_bytes = (np.asarray(table[name]) for name in _REPLAYED)
        if not len(published_ns) == len(publication) == len(size_bytes):
            raise ParameterError("replay", "has columns of unequal length")
        if len(published_ns) == 0:
            raise ParameterError("replay", "has no rows")
        if published_ns.dtype.kind not in "iu" or publication.dtype.kind not in "iu":
            raise ParameterError("replay", "published_ns and publication must be whole numbers")
        under_way_ns = np.asarray(table.get("under_way_ns", published_ns)).astype(np.int64)
        if len(under_way_ns) != len(published_ns) or (under_way_ns < published_ns).any():
            raise ParameterError("replay", "under_way_ns must be a time after published_ns in every row")
        if published_ns.min() < 0 or (np.diff(under_way_ns) < 0).any():
            raise ParameterError("replay", "published_ns must not be negative and must be in order of time")
        if publication.min() < 0 or publication.max() >= len(scenario.publications):
            raise ParameterError("replay", f"publication must be from 0 to {len(scenario.publications) - 1}")
        if not (np.isfinite(size_bytes).all() and (size_bytes >= 0).all()):
            raise ParameterError("replay", "size_bytes must be finite and not negative")
        self._published_ns = published_ns.astype(np.int64)
        self._publication = publication.astype(np.int32)
        self._size_bytes = size_bytes.astype(np.float64)
        payload = scenario.mtu_bytes - scenario.overhead_bytes
        self._packets = np.maximum(np.ceil(self._size_bytes / payload), 1).astype(np.int32)
        self._seconds = under_way_ns * 1e-9
        self.losses = losses or drawn_losses()
        self._next = 0

    def again(self) -> Replayed:
        """The same from the beginning."""
        another = copy.copy(self)
        another._next = 0
        return another

    def __len__(self) -> int:
        return len(self._seconds)

    @property
    def last_seconds(self) -> float:
        """When the last row sets out."""
        return float(self._seconds[-1])

    def next_time(self) -> float:
        """When the next event is published; infinity if none is."""
        return float(self._seconds[self._next]) if self._next < len(self) else np.inf

    def publish(self, published: Buffer, most: int, until: float) -> None:
        """Add at most `most` events to a buffer that has room for them, those before `until` only."""
        end = min(self._next + most, int(np.searchsorted(self._seconds, until, side="left")))
        rows = slice(self._next, max(end, self._next))
        filled = int(published.filled[0])
        events: Any = published.records[filled : filled + rows.stop - rows.start]
        events["time"] = self._seconds[rows]
        events["published_ns"] = self._published_ns[rows]
        events["event"] = np.arange(rows.start, rows.stop)
        events["size_bytes"] = self._size_bytes[rows]
        events["publication"] = self._publication[rows]
        events["packets"] = self._packets[rows]
        published.filled[0] += rows.stop - rows.start
        self._next = rows.stop

    def change_rate(self, rate: Floats, now: float) -> None:
        """A recorded table knows no rates; `simulate` refuses to change them."""
        raise ParameterError("changes", "a recorded table has no rates to change")
