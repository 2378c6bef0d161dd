"""What a trace recorded as published, as events of a scenario's publications: for whoever publishes them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from triagemq.errors import TraceError
from triagemq.scenario import Scenario
from triagemq.trace import Trace

__all__ = ["RecordedStream", "recorded_publications", "recorded_seconds"]

_COLUMNS = ("published_ns", "topic_id", "publisher_id", "size_bytes")


def recorded_publications(
    path: Path, scenario: Scenario, *, from_ns: int | None = None, with_hosts: bool = False
) -> dict[str, Any]:
    """Columns published_ns, publication and size_bytes, in order of time.

    A simulation counts from 0 already. Times of a live run count from `from_ns`, and what is earlier is left out; if
    that is not said, they count from its first event. Who published an event a gateway cannot know: then it is the
    first that publishes the topic.

    `with_hosts` adds under_way_ns: when each event reached its first queue in the network. What publisher, broker and
    gateway took until then is theirs, and no simulation knows it. An event that never got there took what is usual.
    """
    trace = Trace.open(path)
    table = trace.table("publications", list(_COLUMNS))
    published_ns, topic, publisher, size_bytes = (
        pc.fill_null(table[name], -1).to_numpy() for name in _COLUMNS
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
            f"{path}: holds publications that {scenario.name!r} does not have; replay it with its own scenario"
        )
    under_way_ns = _under_way(trace, published_ns) if with_hosts else published_ns
    order = np.argsort(under_way_ns, kind="stable")
    if from_ns is not None:
        order = order[published_ns[order] >= from_ns]
    start = from_ns
    if start is None:
        simulated = trace.manifest is not None and trace.manifest.producer == "simulate"
        start = 0 if simulated or not len(order) else int(published_ns[order[0]])
    columns = {
        "published_ns": published_ns[order] - start,
        "publication": rows[order],
        "size_bytes": size_bytes[order],
    }
    return columns | ({"under_way_ns": under_way_ns[order] - start} if with_hosts else {})


def _under_way(trace: Trace, published_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the first copy of each publication of a trace was enqueued."""
    copies = trace.table("deliveries", ["publication_id", "enqueued_ns"]).group_by("publication_id")
    first = copies.aggregate([("enqueued_ns", "min")])
    known = dict(zip(first["publication_id"].to_pylist(), first["enqueued_ns_min"].to_pylist(), strict=True))
    found = [known.get(number) for number in trace.table("publications", ["publication_id"])[0].to_pylist()]
    enqueued_ns = np.array([-1 if time is None else time for time in found], dtype=np.int64)
    seen = enqueued_ns >= published_ns
    usual_ns = int(np.median((enqueued_ns - published_ns)[seen])) if seen.any() else 0
    return np.where(seen, enqueued_ns, published_ns + usual_ns)


def recorded_seconds(path: Path, scenario: Scenario) -> float:
    """From the start of what was recorded to its last event, in whole seconds."""
    last_ns = recorded_publications(path, scenario)["published_ns"].max(initial=0)
    return float(1 + last_ns // 1_000_000_000)


class RecordedStream:
    """What a trace recorded, as `PublicationStream` gives what it draws."""

    def __init__(self, path: Path, scenario: Scenario) -> None:
        columns = recorded_publications(path, scenario)
        kinds = {name: column.dtype for name, column in columns.items()}
        self._events = np.empty(len(columns["published_ns"]), dtype=list(kinds.items()))
        for name, column in columns.items():
            self._events[name] = column
        self._next = 0

    def until(self, seconds: float) -> NDArray[np.void]:
        """All events before this time that were not given before: `published_ns`, `publication`, `size_bytes`."""
        first, self._next = self._next, int(np.searchsorted(self._events["published_ns"], seconds * 1e9))
        return self._events[first : self._next]
