"""What a trace recorded, for a box to play and a simulation to repeat: events, and the losses of their copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.scenario import Integers, Scenario, port_depths, port_hops
from triagemq.simulate.network import DROPPED, LOST_BEFORE, LOST_BEHIND, MOST_HOPS, RecordedLosses
from triagemq.simulate.replay import recorded_publications
from triagemq.trace import Outcome, Trace

_COLUMNS = ("event", "subscription", "outcome", "hop")


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What `simulate` takes as replay and losses."""

    publications: dict[str, Any]
    losses: RecordedLosses


def recording(path: Path, scenario: Scenario, *, from_ns: int | None = None) -> Recording:
    """The publications of a trace, and which of their copies were dropped on purpose or lost on a link; of a live run
    from a time on, with what hosts took (`recorded_at_hosts`)."""
    if from_ns is None:
        publications = recorded_publications(path, scenario)
    else:
        publications = recorded_at_hosts(path, scenario, from_ns)
    table = _fates(Trace.open(path), scenario, publications["publication_id"])
    return Recording(publications, recorded_losses(scenario, publications["publication"], table))


def recorded_at_hosts(path: Path, scenario: Scenario, from_ns: int) -> dict[str, Any]:
    """As `recorded_publications`, with under_way_ns, and in this order: when each event reached its first queue in the
    network. What publisher, broker and gateway took until then is theirs, and no simulation knows it. An event that
    never got there took what is usual."""
    columns = recorded_publications(path, scenario, from_ns=from_ns)
    copies = Trace.open(path).table("deliveries", ["publication_id", "enqueued_ns"])
    enqueued = copies.group_by("publication_id").aggregate([("enqueued_ns", "min")])
    row = pc.index_in(pa.array(columns["publication_id"]), enqueued["publication_id"])
    first_ns = pc.fill_null(enqueued["enqueued_ns_min"].take(row), -1).to_numpy() - from_ns
    published_ns = columns["published_ns"]
    seen = first_ns >= published_ns
    usual_ns = int(np.median((first_ns - published_ns)[seen])) if seen.any() else 0
    columns["under_way_ns"] = np.where(seen, first_ns, published_ns + usual_ns)
    order = np.argsort(columns["under_way_ns"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def recorded_losses(
    scenario: Scenario, publication: Integers, table: Mapping[str, ArrayLike]
) -> RecordedLosses:
    """Losses of the copies of events (`publication` has one entry for each).

    The table has those that are dropped on purpose or lost on a link: event (its row in the replay), subscription,
    outcome (of a Trace) and hop (which port of its path it is lost behind; -1 for before the first).
    """
    missing = [name for name in _COLUMNS if name not in table]
    if missing:
        raise ParameterError("losses", f"lacks the columns {', '.join(missing)}")
    columns = [np.asarray(table[name]) for name in _COLUMNS]
    if len({len(column) for column in columns}) > 1:
        raise ParameterError("losses", "has columns of unequal length")
    event, subscription, outcome, hop = (column.astype(np.int64) for column in columns)
    wanted = scenario.subscriptions
    topic = scenario.publications.topic[publication]
    for name, column, end in (("event", event, len(topic)), ("subscription", subscription, len(wanted))):
        if len(column) and not (column.min() >= 0 and column.max() < end):
            raise ParameterError("losses", f"{name} must be from 0 to {end - 1}")
    if (wanted.topic[subscription] != topic[event]).any():
        raise ParameterError("losses", "has copies of events for subscriptions to other topics")
    dropped, lost = outcome == Outcome.dropped_by_policy, outcome == Outcome.lost_on_link
    if not (dropped | lost).all():
        raise ParameterError("losses", "outcome must be dropped_by_policy or lost_on_link")
    last = port_depths(scenario)[scenario.subscribers.port[wanted.subscriber[subscription]]]
    if (hop < -1).any() or (hop > np.minimum(last, MOST_HOPS)).any():
        raise ParameterError("losses", "hop must be -1, or that of a port on the path of the subscription")
    per_topic = np.bincount(wanted.topic, minlength=len(scenario.topics))
    by_topic = np.argsort(wanted.topic, kind="stable")
    rank = np.empty(len(wanted), dtype=np.int32)
    rank[by_topic] = np.arange(len(wanted)) - (np.cumsum(per_topic) - per_topic)[wanted.topic[by_topic]]
    copies = per_topic[topic]
    ends = np.cumsum(copies)
    first = ends - copies
    loss = np.zeros(int(copies.sum()), dtype=np.uint8)
    loss[first[event] + rank[subscription]] = np.where(
        dropped, DROPPED, np.where(hop < 0, LOST_BEFORE, LOST_BEHIND + hop)
    )
    lost_so_far = np.concatenate([[0], np.cumsum(loss == LOST_BEFORE)])
    lost_at_source = (copies > 0) & (lost_so_far[ends] - lost_so_far[first] == copies)
    return RecordedLosses(first.astype(np.int64), rank, loss, lost_at_source.astype(np.uint8))


def _fates(trace: Trace, scenario: Scenario, publication_id: NDArray[Any]) -> dict[str, Any]:
    """Of the copies of these publications those that were dropped on purpose or lost."""
    columns = ("publication_id", "subscription_id", "enqueued_ns", "outcome")
    ended = (Outcome.dropped_by_policy, Outcome.lost_on_link)
    copies = trace.table(
        "deliveries", columns, filters=pc.field("outcome").isin([outcome.name for outcome in ended])
    )
    event = pc.index_in(copies["publication_id"], pa.array(publication_id))
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
    """Which port of its path each copy was lost behind. No trace says: it is drawn, by how much the links of the path
    lose; where none of them does by the scenario, it was the last."""
    subscriber = scenario.subscriptions.subscriber
    paths = port_hops(scenario)[scenario.subscribers.port[subscriber]]
    last = (paths >= 0).sum(axis=1) - 1
    rows, hops = np.arange(len(paths)), np.arange(paths.shape[1])
    error = np.where(hops < last[:, None], scenario.ports.error_rate[paths], 0.0)
    error[rows, last] = scenario.subscribers.error_rate[subscriber]
    so_far = 1 - np.cumprod(1 - error, axis=1)
    drawn = np.random.default_rng(0).random(len(subscription)) * so_far[subscription, -1]
    behind = (so_far[subscription] <= drawn[:, None]).sum(axis=1)
    known = so_far[subscription, -1] > 0
    return np.asarray(np.where(known, np.minimum(behind, last[subscription]), last[subscription]))


def recorded_seconds(path: Path, scenario: Scenario) -> float:
    """From the start of what was recorded to its last event, in whole seconds."""
    last_ns = recorded_publications(path, scenario)["published_ns"].max(initial=0)
    return float(1 + last_ns // 1_000_000_000)


class RecordedStream:
    """What a trace recorded, as `PublicationStream` gives what it draws."""

    def __init__(self, path: Path, scenario: Scenario) -> None:
        columns = recorded_publications(path, scenario)
        del columns["publication_id"]
        kinds = {name: column.dtype for name, column in columns.items()}
        self._events = np.empty(len(columns["published_ns"]), dtype=list(kinds.items()))
        for name, column in columns.items():
            self._events[name] = column
        self._next = 0

    def until(self, seconds: float) -> NDArray[np.void]:
        """All events before this time that were not given before: `published_ns`, `publication`, `size_bytes`."""
        first, self._next = self._next, int(np.searchsorted(self._events["published_ns"], seconds * 1e9))
        return self._events[first : self._next]
