"""Publications as a trace recorded them: read as events of a scenario's publications, and published again by the
simulator (`Replayed`) or by clients (`RecordedStream`). And what became of their copies (`recording`), for a simulation
that stands beside the run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError, TraceError
from triagemq.scenario import Floats, Scenario, port_hops
from triagemq.simulate.network import drawn_fates, recorded_fates
from triagemq.simulate.records import Buffer
from triagemq.trace import Outcome, Trace

_RECORDED = ("published_ns", "topic_id", "publisher_id", "size_bytes")
_REPLAYED = ("published_ns", "publication", "size_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """`publications` and `fates` are the tables that `simulate` takes as replay and fates."""

    publications: dict[str, Any]
    fates: dict[str, Any]


def recording(
    path: Path, scenario: Scenario, *, from_ns: int | None = None, with_hosts: bool = False
) -> Recording:
    """The publications of a trace as `recorded_publications` has them, and which of their copies were dropped on
    purpose or lost on a link."""
    trace = Trace.open(path)
    publications, order = _in_order(trace, scenario, from_ns, with_hosts)
    return Recording(publications, _fates(trace, scenario, order))


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
    return _in_order(Trace.open(path), scenario, from_ns, with_hosts)[0]


def _in_order(
    trace: Trace, scenario: Scenario, from_ns: int | None, with_hosts: bool
) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """The columns, and which row of the trace each of theirs is."""
    table = trace.table("publications", list(_RECORDED))
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
    return columns | ({"under_way_ns": under_way_ns[order] - start} if with_hosts else {}), order


def _fates(trace: Trace, scenario: Scenario, order: NDArray[np.int64]) -> dict[str, Any]:
    """Of the copies of the publications in `order` those that were dropped on purpose or lost."""
    columns = ("publication_id", "subscription_id", "enqueued_ns", "outcome")
    ended = (Outcome.dropped_by_policy, Outcome.lost_on_link)
    copies = trace.table(
        "deliveries", columns, filters=pc.field("outcome").isin([outcome.name for outcome in ended])
    )
    numbers = trace.table("publications", ["publication_id"])["publication_id"].take(pa.array(order))
    event = pc.index_in(copies["publication_id"], numbers)
    known = pc.is_valid(event)
    copies, event = copies.filter(known), event.filter(known).to_numpy()
    subscription = copies["subscription_id"].to_numpy()
    dropped = pc.equal(copies["outcome"].cast(pa.string()), Outcome.dropped_by_policy.name).to_numpy()
    was_queued = pc.is_valid(copies["enqueued_ns"]).to_numpy()
    return {
        "event": event,
        "subscription": subscription,
        "outcome": np.where(dropped, int(Outcome.dropped_by_policy), int(Outcome.lost_on_link)),
        "hop": np.where(was_queued & ~dropped, _lost_behind(scenario, subscription), -1),
    }


def _lost_behind(scenario: Scenario, subscription: NDArray[np.int32]) -> NDArray[np.int64]:
    """Which port of its way each copy was lost behind. No trace says: it is drawn, by how much the links of the way
    lose; where none of them does by the scenario, it was the last."""
    subscriber = scenario.subscriptions.subscriber
    ways = port_hops(scenario)[scenario.subscribers.port[subscriber]]
    last = (ways >= 0).sum(axis=1) - 1
    rows, hops = np.arange(len(ways)), np.arange(ways.shape[1])
    error = np.where(hops < last[:, None], scenario.ports.error_rate[ways], 0.0)
    error[rows, last] = scenario.subscribers.error_rate[subscriber]
    so_far = 1 - np.cumprod(1 - error, axis=1)
    drawn = np.random.default_rng(0).random(len(subscription)) * so_far[subscription, -1]
    behind = (so_far[subscription] <= drawn[:, None]).sum(axis=1)
    known = so_far[subscription, -1] > 0
    return np.asarray(np.where(known, np.minimum(behind, last[subscription]), last[subscription]))


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


class Replayed:
    """Publishes the rows of a table with the columns published_ns, publication and size_bytes, in order of time.

    With a column under_way_ns each event sets out only then, and that is the order: what it took hosts to send it was
    measured, and is part of its latency. `fates` is a table of what became of copies (see `simulate`); without it they
    are drawn.
    """

    def __init__(
        self, scenario: Scenario, table: Mapping[str, ArrayLike], fates: Mapping[str, ArrayLike] | None = None
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
        self.fates = drawn_fates() if fates is None else recorded_fates(scenario, self._publication, fates)
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
