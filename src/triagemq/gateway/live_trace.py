"""The Trace of a running gateway: rotating files that a streaming pipeline reads while it goes on.

A QoS 0 message counts as delivered when it has left the last queue that this exchange knows of (the embedded port, the
kernel's queues, or the socket where there are neither), at QoS 1 and 2 when the client has acknowledged it. Rows are
collected in Python and become columns a few times a second; a kill loses the latest. That an acknowledged message is
not delivered must never be lost, so such rows are in the gateway's store before the broker has its acknowledgement.
The next start adds to the killed run what it lacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from triagemq.clock import UNIX_TIMES_FROM_NS
from triagemq.gateway.core.broker_link import GatewayCore
from triagemq.gateway.core.messages import Delivery, Publication
from triagemq.gateway.core.sessions import Copy, Group
from triagemq.gateway.store import RowChanges
from triagemq.trace import Outcome, Trace, TraceWriter, runs
from triagemq.trace.manifest import CLASSES
from triagemq.trace.parts import PartFiles, Rotation
from triagemq.trace.schema import TABLES, record_batches

if TYPE_CHECKING:
    from triagemq.scenario import Scenario
    from triagemq.trace import Manifest

_Table = npt.NDArray[np.int64]
DELIVERY_COLUMNS = tuple(TABLES["deliveries"].names)
"""What a row has, in this order."""

_MOST_ROWS = 1 << 19
_MOST_NAMES = 500_000

Name = TypeVar("Name", bound=Hashable)


class Names(Generic[Name]):
    """Numbers for names, in order of appearance; none is ever given to a second name.

    Beyond so many the oldest is forgotten, and has another number if it returns; the `first` ones never are.

    >>> names = Names(["a"])
    >>> names.number("a"), names.number("b"), names.number("a"), names.by_number()
    (0, 1, 0, ['a', 'b'])
    """

    def __init__(self, first: Iterable[Name] = ()) -> None:
        self.first = {name: number for number, name in enumerate(first)}
        self._others: dict[Name, int] = {}
        self._next = len(self.first)

    def number(self, name: Name) -> int:
        """The number of a name."""
        number = self.first.get(name)
        if number is None:
            number = self._others.get(name)
        if number is None:
            number = self._others[name] = self._next
            self._next += 1
            if len(self._others) > _MOST_NAMES:
                del self._others[next(iter(self._others))]
        return number

    def by_number(self) -> list[Name | None]:
        """The names in the order of their numbers; None for one that is forgotten."""
        found: list[Name | None] = [*self.first, *[None] * (self._next - len(self.first))]
        for name, number in self._others.items():
            found[number] = name
        return found


class Numbers:
    """Ids of the Trace for what has only names in a gateway, in order of appearance.

    With a scenario they are its rows, so that a live run can be compared with its forecast and simulation; what the
    scenario does not know gets numbers behind its last rows.

    >>> numbers = Numbers()
    >>> numbers.topics.number("a"), numbers.topics.number("b"), numbers.topics.number("a")
    (0, 1, 0)
    """

    def __init__(self, scenario: Scenario | None = None) -> None:
        self.topics = Names[str](() if scenario is None else scenario.topics.name)
        self.publishers = Names[str](() if scenario is None else scenario.publishers.name)
        self.subscribers = Names[str](() if scenario is None else scenario.subscribers.name)
        self.subscriptions = Names[tuple[str, str]](() if scenario is None else _subscriptions(scenario))

    def publisher(self, name: str) -> int:
        """publisher_id of a publisher, by its name; -1 if that is not known."""
        return self.publishers.number(name) if name else -1

    def subscription(self, subscriber: str, topic_filter: str, topic: str) -> int:
        """subscription_id of a message that a subscriber gets by a filter.

        A scenario has a subscription for each topic, also where a client has one filter for several of them.
        """
        row = self.subscriptions.first.get((subscriber, topic))
        return self.subscriptions.number((subscriber, topic_filter)) if row is None else row


def _subscriptions(scenario: Scenario) -> Iterator[tuple[str, str]]:
    topics, subscribers = scenario.topics.name, scenario.subscribers.name
    for subscriber, topic in zip(
        scenario.subscriptions.subscriber, scenario.subscriptions.topic, strict=True
    ):
        yield subscribers[subscriber], topics[topic]


class LiveTrace:
    """An Observer that writes. `write` is called every now and then, `finish` once at the end."""

    def __init__(
        self,
        directory: Path,
        *,
        numbers: Numbers | None = None,
        scenario_text: str = "",
        plan_text: str | None = None,
        scenario_fingerprint: str | None = None,
        rotate_seconds: float = 5.0,
        keep_seconds: float | None = None,
    ) -> None:
        self._numbers = numbers or Numbers()
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
        self._directory = directory
        self._changes = RowChanges(enabled=False)
        # Stored rows by number; how many rows the run must show before those up to a number are superfluous.
        self._first_stored = self._next_stored = 0
        self._superfluous: deque[tuple[int, int]] = deque()

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
        self, copy: Copy, outcome: Outcome, flow: tuple[int, int], delivery: Delivery | None, now_ns: int
    ) -> None:
        """A copy has been delivered, or never will be."""
        session, subscription, publication = copy
        enqueued_ns = dequeued_ns = -1
        if delivery is not None:
            enqueued_ns, dequeued_ns = delivery.enqueued_ns, delivery.dequeued_ns
        delivered_ns = -1
        if outcome is Outcome.delivered:
            at_qos_0 = delivery is None or delivery.qos == 0
            delivered_ns = dequeued_ns if at_qos_0 and dequeued_ns >= 0 else now_ns
        numbers = self._numbers
        row = (
            publication.publication_id,
            numbers.subscription(session.subscriber, subscription.topic_filter, publication.topic),
            numbers.subscribers.number(session.subscriber),
            numbers.topics.number(publication.topic),
            *flow,
            publication.published_ns,
            enqueued_ns,
            dequeued_ns,
            delivered_ns,
            len(publication.payload),
            int(outcome),
        )
        self._single.append(row)
        if delivery is not None and delivery.qos and outcome not in (Outcome.delivered, Outcome.in_flight):
            columns = np.array(row, dtype=np.int64).tobytes()
            self._changes.put("outcomes", (self._directory.name, self._next_stored, columns))
            self._next_stored += 1

    def store_outcomes_in(self, changes: RowChanges, outcomes: Sequence[tuple[str, int, bytes]]) -> None:
        """What is given up is stored here until the run shows it; `outcomes` of killed runs are added to them."""
        self._changes = changes
        recover(self._directory.parent, [row for row in outcomes if row[0] != self._directory.name])
        for run, number, _ in outcomes:
            changes.remove("outcomes", (run, number))

    def set_trace_window(self, from_ns: int, classes: Sequence[int]) -> None:
        """Figures of this run count what was published from then on, by these classes."""
        self._measured_from_ns, self._classes = from_ns, list(classes)

    def write(self) -> None:
        """Hand over what was collected, before a plan changes at the latest; a thread writes it."""
        if self._publications:
            self._write_publications()
        if self._fanned_out:
            self._write_fanned_out()
        if self._single:
            rows, self._single = self._single, []
            self._writer.deliveries(dict(zip(DELIVERY_COLUMNS, _table(rows), strict=True)))
            self._handed_over += len(rows)
            self._superfluous.append((self._handed_over, self._next_stored))
        shown = self._writer.shown("deliveries")
        while self._superfluous and self._superfluous[0][0] <= shown:
            self._forget_until(self._superfluous.popleft()[1])

    def _forget_until(self, number: int) -> None:
        for each in range(self._first_stored, number):
            self._changes.remove("outcomes", (self._directory.name, each))
        self._first_stored = number

    def finish(self, core: GatewayCore) -> Manifest:
        """What is still queued is in flight; then the trace is valid."""
        for session in core.sessions.values():
            for delivery in (
                *session.buffer,
                *session.in_flight.values(),
                *session.unregistered,
                *session.held,
            ):
                copy = session, delivery.subscription, delivery.publication
                flow = core.flow_of(copy, delivery)
                self.settled(copy, Outcome.in_flight, flow, delivery, core.now_ns)
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
        self._forget_until(self._next_stored)
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
        topic, publisher = self._numbers.topics.number, self._numbers.publisher
        rows = [
            (
                one.publication_id,
                topic(one.topic),
                publisher(one.publisher),
                one.published_ns,
                len(one.payload),
            )
            for one in publications
        ]
        self._writer.publications(dict(zip(TABLES["publications"].names, _table(rows), strict=True)))

    def _write_fanned_out(self) -> None:
        fanned_out, self._fanned_out = self._fanned_out, []
        topic = self._numbers.topics.number
        messages = [
            (one.publication_id, topic(one.topic), one.published_ns, now_ns, len(one.payload))
            for _, one, now_ns in fanned_out
        ]
        members = [self._members(group, one.topic) for group, one, _ in fanned_out]
        copies = [each.shape[1] for each in members]
        ids, topics, published, delivered, sizes = np.repeat(_table(messages), copies, axis=1)
        subscriptions, subscribers, flows, classes = np.concatenate(members, axis=1)
        unknown, outcomes = np.full_like(ids, -1), np.full_like(ids, int(Outcome.delivered))
        sent = ids, subscriptions, subscribers, topics, flows, classes, published
        times = unknown, unknown, delivered
        self._handed_over += len(ids)
        self._writer.deliveries(dict(zip(DELIVERY_COLUMNS, (*sent, *times, sizes, outcomes), strict=True)))

    def _members(self, group: Group, topic: str) -> _Table:
        """Subscription, subscriber, flow and class of each member of a group."""
        known: tuple[int, _Table] | None = group.traced
        if known is None or known[0] != group.planned_at:
            numbers = self._numbers
            rows = [
                (
                    numbers.subscription(session.subscriber, subscription.topic_filter, topic),
                    numbers.subscribers.number(session.subscriber),
                    treatment.flow_id,
                    treatment.priority_class,
                )
                for (session, subscription), treatment in zip(group.members, group.treatments, strict=True)
            ]
            known = group.traced = (group.planned_at, _table(rows))
        return known[1]


def _table(rows: Sequence[tuple[int, ...]]) -> _Table:
    """A row for each column."""
    return np.array(rows, dtype=np.int64).T


def recover(directory: Path, outcomes: Iterable[tuple[str, int, bytes]]) -> int:
    """Give killed runs in a directory the stored rows that they do not show; returns how many there were.

    No process may be writing to any of them.
    """
    by_run: dict[str, list[bytes]] = {}
    for run, _, columns in outcomes:
        by_run.setdefault(run, []).append(columns)
    killed = runs(directory).incomplete if by_run else ()
    return sum(_add(run, by_run[run.name]) for run in killed if run.name in by_run)


def _add(run: Path, rows: list[bytes]) -> int:
    table = np.frombuffer(b"".join(rows), dtype=np.int64).reshape(-1, len(DELIVERY_COLUMNS))
    trace = Trace.open(run, allow_incomplete=True)
    shown = trace.table("deliveries", columns=["publication_id", "subscription_id"])
    known = set(zip(*(column.to_pylist() for column in shown.columns), strict=True))
    table = table[[(row[0], row[1]) not in known for row in table.tolist()]]
    if len(table):
        parts = PartFiles(
            run, "deliveries", Rotation(_MOST_ROWS, None, None), first=len(trace.parts["deliveries"])
        )
        columns = dict(zip(DELIVERY_COLUMNS, table.T, strict=True))
        for rows in record_batches("deliveries", columns, _MOST_ROWS):
            parts.add(rows)
        parts.close_part()
    return len(table)
