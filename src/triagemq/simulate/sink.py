"""From the engine's records to the columns of the Trace tables (docs/reference/trace.md), block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.model import Decision, Plan
from triagemq.scenario import Floats, Scenario
from triagemq.simulate.promised.state import PromiseTally
from triagemq.simulate.records import Buffer, Records
from triagemq.trace.schema import TABLES

SAMPLE_SECONDS = 0.2
"""Queue samples of a trace are this far apart in simulated time."""

_LARGEST_SIZE = float(np.iinfo(np.int32).max)


class Sink(Protocol):
    """Where a run is recorded; `triagemq.trace.TraceWriter` is one. `hops` is called only if it has a `with_hops`
    that is true."""

    def publications(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...
    def deliveries(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...
    def hops(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...
    def queue_samples(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...
    def decisions(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...


class TraceColumns:
    """Writes what the engine hands over into a sink, with the ids of the scenario and of the plan in force."""

    def __init__(self, sink: Sink, scenario: Scenario) -> None:
        self._sink = sink
        self._topic = scenario.publications.topic
        self._publisher = scenario.publications.publisher
        self._subscriber = scenario.subscriptions.subscriber
        self._subscribed_topic = scenario.subscriptions.topic

    def plan(self, plan: Plan, decided_ns: int) -> None:
        """A plan comes into force: record what it decided and why."""
        self.decisions(plan.decisions, np.full(len(plan.decisions), decided_ns, dtype=np.int64))

    def decisions(self, decisions: Sequence[Decision], decided_ns: NDArray[np.int64]) -> None:
        if decisions:
            columns = {
                name: np.array([getattr(decision, name) for decision in decisions], dtype=object)
                for name in ("kind", "subject", "before", "after", "reason")
            }
            self._sink.decisions({"decided_ns": decided_ns, **columns})

    def publications(self, published: Buffer) -> None:
        events = _filled(published)
        if len(events):
            publication = events["publication"]
            own = {
                "topic_id": self._topic[publication],
                "publisher_id": self._publisher[publication],
                "size_bytes": _whole_bytes(events["size_bytes"]),
            }
            self._sink.publications(_columns("publications", events, own, publication_id="event"))

    def deliveries(self, ended: Buffer, plan: Plan) -> None:
        copies = _filled(ended)
        if len(copies):
            subscription = copies["subscription"]
            own = {
                "subscriber_id": self._subscriber[subscription],
                "topic_id": self._subscribed_topic[subscription],
                "flow_id": plan.flow[subscription],
                "priority_class": copies["priority_class"].astype(np.int32),
                "size_bytes": _whole_bytes(copies["size_bytes"]),
                "outcome": copies["outcome"].astype(np.int8),
            }
            renamed = {"publication_id": "event", "subscription_id": "subscription"}
            self._sink.deliveries(_columns("deliveries", copies, own, **renamed))

    def hops(self, hops: Buffer) -> None:
        passed = _filled(hops)
        if len(passed):
            hop: NDArray[Any] = passed["hop"].astype(np.int32)
            own = {"hop": hop, "outcome": passed["outcome"].astype(np.int8)}
            renamed = {
                "publication_id": "event",
                "subscription_id": "subscription",
                "port_id": "port",
                "queue": "priority_class",
            }
            self._sink.hops(_columns("hops", passed, own, **renamed))

    def queue_samples(self, columns: Mapping[str, NDArray[Any]]) -> None:
        if len(columns["port_id"]):
            self._sink.queue_samples(columns)


def cut_publishers(scenario: Scenario, tally: PromiseTally) -> tuple[tuple[Decision, ...], NDArray[np.int64]]:
    """A decision for each publication that its limiter cut, and when it first did, in nanoseconds."""
    rows = np.flatnonzero(tally.cut_packets)
    publications = scenario.publications
    return (
        tuple(
            Decision(
                kind="limited",
                subject=f"{scenario.publishers.name[publications.publisher[row]]} on "
                f"{scenario.topics.name[publications.topic[row]]}",
                before="as fast as it sent",
                after=f"a message in {publications.min_separation_seconds[row]:g} s",
                reason=f"it sent more than it had declared: {tally.cut_packets[row]} packets were cut where it enters "
                "the network",
            )
            for row in rows.tolist()
        ),
        tally.first_cut_ns[rows],
    )


def queue_sample_columns(samples: Buffer, width_bps: Floats) -> dict[str, NDArray[Any]]:
    """Queue samples as the Trace has them; `width_bps` is that of every port and class when they were taken."""
    taken = _filled(samples)
    width = np.rint(width_bps[taken["port"], taken["queue"]]).astype(np.int64)
    return _columns("queue_samples", taken, {"width_bps": width}, port_id="port")


def _filled(buffer: Buffer) -> Records:
    return buffer.records[: int(buffer.filled[0])]


def _columns(
    table: str, records: Records, own: Mapping[str, NDArray[Any]], **renamed: str
) -> dict[str, NDArray[Any]]:
    """The columns of a table of the Trace: its own ones, and fields of records of the same name or by another one."""
    return {
        name: own[name] if name in own else np.ascontiguousarray(records[renamed.get(name, name)])
        for name in TABLES[table].names
    }


def _whole_bytes(values: NDArray[Any]) -> NDArray[np.int32]:
    return np.asarray(np.minimum(np.rint(values), _LARGEST_SIZE), dtype=np.int32)
