"""The Trace of a running gateway: rotating files that a streaming pipeline reads while it goes on.

A QoS 0 message counts as delivered when it has left the last queue that this exchange knows of (the embedded port, the
kernel's queues, or the socket where there are neither), at QoS 1 and 2 when the client has acknowledged it. Rows are
collected in Python and become columns a few times a second; a kill loses the latest. That an acknowledged message is
not delivered must never be lost, so such rows are in a journal before the broker has its acknowledgement: the system
keeps what a killed process has written. The next start adds to the killed run what it lacks.

    RUN/.outcomes-<number>    rows as the table of deliveries has them, integers of eight octets
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from triagemq.clock import UNIX_TIMES_FROM_NS
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.messages import Delivery, Publication, Subscription
from triagemq.exchange.gateway.observer import Numbers
from triagemq.exchange.gateway.sessions import Group, Session
from triagemq.trace import Outcome, Trace, TraceWriter, runs
from triagemq.trace.columns import blocks
from triagemq.trace.manifest import CLASSES
from triagemq.trace.parts import PartFiles, Rotation
from triagemq.trace.schema import TABLES

if TYPE_CHECKING:
    from triagemq.trace import Manifest

FlowOf = Callable[[str, str], tuple[int, int] | None]
"""Flow id and priority class of what goes to a client, by its id and the topic, if a plan covers it."""

_Columns = tuple[npt.NDArray[np.int32], ...]
_NO_FLOW = (-1, -1)
DELIVERY_COLUMNS = tuple(TABLES["deliveries"].names)
"""What a row has, in this order."""

_PATTERN = ".outcomes-*"
_MOST_ROWS = 1 << 19

Row = tuple[int, ...]


class LiveTrace:
    """An Observer that writes. `write` is called every now and then, `finish` once at the end."""

    def __init__(
        self,
        directory: Path,
        numbers: Numbers,
        *,
        scenario_text: str = "",
        plan_text: str | None = None,
        scenario_fingerprint: str | None = None,
        flow_of: FlowOf | None = None,
        rotate_seconds: float = 5.0,
        keep_seconds: float | None = None,
    ) -> None:
        self._numbers = numbers
        self._flow_of = flow_of
        self._first_ns = 0
        self._measured_from_ns: int | None = None
        self._classes: list[int] | None = None
        self._writer = TraceWriter(
            directory,
            scenario_text=scenario_text,
            plan_text=plan_text,
            producer="gateway",
            scenario_fingerprint=scenario_fingerprint,
            rotate_seconds=rotate_seconds,
            # Messages go on when there is no room for what is written about them.
            pauses=True,
            keep_seconds=keep_seconds,
        )
        self._publications: list[Publication] = []
        self._fanned_out: list[tuple[Group, Publication, int]] = []
        self._single: list[tuple[int, ...]] = []
        # Rows of deliveries that the writer has been given.
        self._handed_over = 0
        self._journal = OutcomeJournal(directory)
        # Counts plans: columns that were made for a group hold for one of them.
        self._plans = 0

    @property
    def writer(self) -> TraceWriter:
        """For queue samples and decisions, which others know."""
        return self._writer

    def published(self, publication: Publication, qos: int) -> None:
        """A message has come from the broker."""
        self._publications.append(publication)

    def fanned_out(self, group: Group, publication: Publication, now_ns: int) -> None:
        """A message has been sent to all of a group."""
        self._fanned_out.append((group, publication, now_ns))

    def settled(
        self,
        session: Session,
        subscription: Subscription,
        publication: Publication,
        outcome: Outcome,
        delivery: Delivery | None,
        now_ns: int,
    ) -> None:
        """A copy has been delivered, or never will be."""
        sent_in = None if delivery is None else delivery.flow
        flow_id, priority_class = sent_in or self._flow(session, publication.topic) or _NO_FLOW
        enqueued_ns = dequeued_ns = -1
        if delivery is not None:
            enqueued_ns, dequeued_ns = delivery.enqueued_ns, delivery.dequeued_ns
            if priority_class < 0:
                priority_class = delivery.priority_class
        delivered_ns = -1
        if outcome is Outcome.delivered:
            at_qos_0 = delivery is None or delivery.qos == 0
            delivered_ns = dequeued_ns if at_qos_0 and dequeued_ns >= 0 else now_ns
        row = (
            publication.publication_id,
            self._numbers.subscription_for(session, subscription, publication.topic),
            session.number,
            self._numbers.topic(publication.topic),
            flow_id,
            priority_class,
            publication.published_ns,
            enqueued_ns,
            dequeued_ns,
            delivered_ns,
            len(publication.payload),
            int(outcome),
        )
        self._single.append(row)
        if delivery is not None and delivery.qos and outcome not in (Outcome.delivered, Outcome.in_flight):
            self._journal.add(row)

    def measured(self, from_ns: int, classes: Sequence[int]) -> None:
        """Figures of this run count what was published from then on, by these classes."""
        self._measured_from_ns, self._classes = from_ns, list(classes)

    def keep(self) -> None:
        """Before anything is acknowledged: what has been given up since must survive a kill."""
        self._journal.keep()

    def flows_changed(self) -> None:
        """A new plan: what was sent until now went by the old one."""
        self.write()
        self._plans += 1

    def write(self) -> None:
        """Hand over what was collected; the writing itself is done by a thread."""
        if self._publications:
            self._write_publications()
        if self._fanned_out:
            self._write_fanned_out()
        if self._single:
            rows, self._single = self._single, []
            table = np.array(rows, dtype=np.int64)
            self._writer.deliveries(dict(zip(DELIVERY_COLUMNS, table.T, strict=True)))
            self._handed_over += len(rows)
            self._journal.keep()
            self._journal.handed_over(self._handed_over)
        self._journal.shown(self._writer.shown("deliveries"))

    def finish(self, core: GatewayCore) -> Manifest:
        """What is still queued is in flight; then the trace is valid."""
        for session in core.sessions.values():
            waiting = [*session.buffer, *session.in_flight.values()]
            waiting += [delivery for held in session.unregistered.values() for delivery in held]
            for delivery in waiting:
                self.settled(
                    session,
                    delivery.subscription,
                    delivery.publication,
                    Outcome.in_flight,
                    delivery,
                    core.now_ns,
                )
        self.write()
        numbers = self._numbers
        names: dict[str, Any] = {
            "topics": numbers.topics.by_number(),
            "publishers": numbers.publishers.by_number(),
            "subscribers": numbers.subscribers.by_number(),
            "subscriptions": [pair and list(pair) for pair in numbers.subscriptions.by_number()],
            "counters": core.counters.as_json(),
        }
        if self._classes is not None:
            names[CLASSES] = self._classes
        from_ns = self._first_ns if self._measured_from_ns is None else self._measured_from_ns
        manifest = self._writer.finish(measured_from_ns=from_ns, extra=names)
        self._journal.finish()
        return manifest

    def abort(self, reason: str) -> None:
        """Give it up."""
        self._writer.abort(reason)

    def _write_publications(self) -> None:
        publications, self._publications = self._publications, []
        if not self._first_ns:
            times = [publication.published_ns for publication in publications]
            # A publisher whose clock was not set does not say when the run began.
            self._first_ns = min((time for time in times if time >= UNIX_TIMES_FROM_NS), default=min(times))
        topic = self._numbers.topic
        self._writer.publications(
            {
                "publication_id": np.array([one.publication_id for one in publications], dtype=np.int64),
                "topic_id": np.array([topic(one.topic) for one in publications], dtype=np.int32),
                "publisher_id": np.array(
                    [self._numbers.publisher(one.publisher) for one in publications], dtype=np.int32
                ),
                "published_ns": np.array([one.published_ns for one in publications], dtype=np.int64),
                "size_bytes": np.array([len(one.payload) for one in publications], dtype=np.int32),
            }
        )

    def _write_fanned_out(self) -> None:
        fanned_out, self._fanned_out = self._fanned_out, []
        columns = [self._columns(group, publication.topic) for group, publication, _ in fanned_out]
        lengths = np.array([len(one[0]) for one in columns])
        topic = self._numbers.topic

        def each(values: list[int]) -> npt.NDArray[np.int64]:
            return np.repeat(np.array(values, dtype=np.int64), lengths)

        rows = int(lengths.sum())
        self._handed_over += rows
        nothing = np.full(rows, -1, dtype=np.int64)
        self._writer.deliveries(
            {
                "publication_id": each([publication.publication_id for _, publication, _ in fanned_out]),
                "subscription_id": np.concatenate([one[0] for one in columns]),
                "subscriber_id": np.concatenate([one[1] for one in columns]),
                "topic_id": each([topic(publication.topic) for _, publication, _ in fanned_out]),
                "flow_id": np.concatenate([one[2] for one in columns]),
                "priority_class": np.concatenate([one[3] for one in columns]),
                "published_ns": each([publication.published_ns for _, publication, _ in fanned_out]),
                "enqueued_ns": nothing,
                "dequeued_ns": nothing,
                "delivered_ns": each([now_ns for _, _, now_ns in fanned_out]),
                "size_bytes": each([len(publication.payload) for _, publication, _ in fanned_out]),
                "outcome": np.full(rows, int(Outcome.delivered), dtype=np.int8),
            }
        )

    def _columns(self, group: Group, topic: str) -> _Columns:
        known: tuple[int, _Columns] | None = group.traced
        if known is None or known[0] != self._plans:
            members = group.members
            flows = [self._flow(session, topic) or _NO_FLOW for session, _ in members]
            columns = tuple(
                np.array(values, dtype=np.int32)
                for values in (
                    [self._numbers.subscription_for(*member, topic) for member in members],
                    [session.number for session, _ in members],
                    [flow_id for flow_id, _ in flows],
                    [priority_class for _, priority_class in flows],
                )
            )
            known = group.traced = (self._plans, columns)
        return known[1]

    def _flow(self, session: Session, topic: str) -> tuple[int, int] | None:
        """Flow id and priority class in which a session is sent a topic now."""
        return None if self._flow_of is None else self._flow_of(session.client_id, topic)


class OutcomeJournal:
    """The rows of one run that it does not show yet, in files of some seconds each."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._rows: list[Row] = []
        self._number = 0
        self._file: BinaryIO | None = None
        # Files that are closed, with how many rows the run must show before they are superfluous.
        self._closed: deque[tuple[int, Path]] = deque()

    def add(self, row: Row) -> None:
        """A row, in the order of the table's columns; `keep` makes it last."""
        self._rows.append(row)

    def keep(self) -> None:
        """From now on a kill cannot lose them. A full disk can: then the run itself is being given up."""
        rows, self._rows = self._rows, []
        if rows:
            with contextlib.suppress(OSError):
                if self._file is None:
                    self._file = self._path().open("ab", buffering=0)
                self._file.write(np.array(rows, dtype=np.int64).tobytes())

    def handed_over(self, rows: int) -> None:
        """The run was given so many rows by now, all of these among them."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._closed.append((rows, self._path()))
            self._number += 1

    def shown(self, rows: int) -> None:
        """The run shows so many rows."""
        while self._closed and self._closed[0][0] <= rows:
            self._closed.popleft()[1].unlink(missing_ok=True)

    def finish(self) -> None:
        """The run is whole."""
        self.handed_over(0)
        while self._closed:
            self._closed.popleft()[1].unlink(missing_ok=True)

    def _path(self) -> Path:
        return self._run / f".outcomes-{self._number}"


def recover(directory: Path) -> int:
    """Give every killed run in a directory the rows that it does not show; returns how many there were.

    No process may be writing to any of them.
    """
    added = 0
    if not directory.is_dir():
        return added
    found = runs(directory)
    for run in (*found.complete, *found.incomplete):
        files = sorted(run.glob(_PATTERN), key=lambda path: int(path.name.rpartition("-")[2]))
        if run in found.incomplete and files:
            added += _add(run, files)
        for path in files:
            path.unlink(missing_ok=True)
    return added


def _add(run: Path, files: list[Path]) -> int:
    size = 8 * len(DELIVERY_COLUMNS)
    octets = [path.read_bytes() for path in files]
    # The last row may be half written.
    table = np.concatenate(
        [np.frombuffer(each[: len(each) // size * size], dtype=np.int64) for each in octets]
    ).reshape(-1, len(DELIVERY_COLUMNS))
    trace = Trace.open(run, allow_incomplete=True)
    shown = trace.table("deliveries", columns=["publication_id", "subscription_id"])
    known = set(zip(*(column.to_pylist() for column in shown.columns), strict=True))
    table = table[[(row[0], row[1]) not in known for row in table.tolist()]]
    if len(table):
        parts = PartFiles(
            run, "deliveries", Rotation(_MOST_ROWS, None, None), first=len(trace.parts["deliveries"])
        )
        for block in blocks("deliveries", dict(zip(DELIVERY_COLUMNS, table.T, strict=True)), _MOST_ROWS):
            parts.add(block)
        parts.close_part()
    return len(table)
