"""The Scenario: what exists and what is wanted. Frozen, columnar, in one canonical order.

Every table is a set of equally long columns. Rows refer to rows of other tables by index; -1 is "none" and
infinity is "no limit". Tables are sorted by name (publications and subscriptions by the names they join), so
the order in which a file lists things never changes a decision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.scenario.kinds import (
    ArrivalProcess,
    Discipline,
    LimiterKind,
    SendingOrder,
    SizeDistribution,
    UtilityShape,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]
Codes = NDArray[np.int8]
Names = tuple[str, ...]
Lists = tuple[Floats, ...]

DEFAULT_SERVICE_RATE = 1e6
"""Packets a second of a broker or switch whose scenario names no rate (theory.md section 1)."""

FLOOR_SHARE = 0.1
"""The part of its width that a queue keeps at least where the scenario names no floors."""

WIDTH_ROUNDING = 1e-6
"""Queue rates may miss the bandwidth of their port by this part of it: thirds have no end."""


class Table:
    """Base of all tables: equally long columns, made read-only."""

    def __post_init__(self) -> None:
        lengths = {}
        for column in fields(self):  # type: ignore[arg-type]
            values = getattr(self, column.name)
            lengths[column.name] = len(values)
            if isinstance(values, np.ndarray):
                values.setflags(write=False)
        if len(set(lengths.values())) > 1:
            raise ParameterError(type(self).__name__, f"columns of unequal length {lengths}")

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]


SomeTable = TypeVar("SomeTable", bound=Table)

DEFAULTS: dict[str, Any] = {
    "inbound_rate_per_second": DEFAULT_SERVICE_RATE,
    "outbound_rate_per_second": DEFAULT_SERVICE_RATE,
    "bandwidth_bps": np.inf,
    "buffer_packets": np.inf,
    "queues": 0,
    "error_rate": 0.0,
    "propagation_seconds": 0.0,
    "fed_by_port": -1,
    "unmanaged_switch": -1,
    "size_distribution": SizeDistribution.EXPONENTIAL,
    "size_samples": -1,
    "arrival_process": ArrivalProcess.POISSON,
    "pareto_shape": 0.0,
    "on_seconds": 0.0,
    "off_seconds": 0.0,
    "min_separation_seconds": 0.0,
    "max_separation_seconds": np.inf,
    "utility_shape": UtilityShape.LOG,
    "utility_threshold": 0.0,
    "freshness_seconds": np.inf,
    "max_latency_seconds": np.inf,
    "max_latency_share": 0.0,
    "max_size_bytes": np.inf,
    "guaranteed": 0,
    "min_share": 0.0,
    "max_rate_per_second": np.inf,
    "newest_only": 0,
    "expires_seconds": np.inf,
    "role_rank": 0.0,
    "access_switch": -1,
    "access_bps": np.inf,
    "to_switch": -1,
    "discipline": Discipline.PRIORITY,
    "queue_rates_bps": np.empty(0),
    "floors_bps": np.empty(0),
    "borrowing": 0,
    "model": "",
    "multiplexing_seconds": 0.0,
    "packet_bytes": 1500.0,
    "rate_limiters": np.inf,
    "limiter": LimiterKind.WINDOW,
    "limiter_step_seconds": 0.0,
    "limiter_tolerance_seconds": 0.0,
    "limiter_precision": 0.0,
    "rules": np.inf,
    "cluster": "",
    "head": 0,
    "downlink_bps": np.inf,
    "uplink_bps": np.inf,
}
"""What a column holds where nothing is stated: 0 for numbers, -1 for references, infinity for limits."""

LATER_COLUMNS = frozenset(
    (
        # Of ports with queue rates.
        *("queue_rates_bps", "floors_bps", "borrowing"),
        # Of promises.
        *("max_size_bytes", "guaranteed", "access_switch", "access_bps", "to_switch", "discipline"),
        # Of subscriptions.
        *("min_share", "max_rate_per_second", "newest_only", "expires_seconds", "role_rank"),
        *("model", "multiplexing_seconds", "packet_bytes", "rate_limiters", "limiter", "limiter_precision"),
        *("limiter_step_seconds", "limiter_tolerance_seconds", "rules"),
        # Of clusters of brokers.
        *("cluster", "head", "downlink_bps", "uplink_bps"),
    )
)
"""A scenario that states nothing in one of these has the fingerprint that it had without the column."""

TYPES: dict[str, type[np.generic]] = {"Floats": np.float64, "Integers": np.int32, "Codes": np.int8}


def filled(kind: type[SomeTable], rows: int, **columns: Any) -> SomeTable:
    """A table of so many rows. A single value stands for a whole column, and DEFAULTS for columns that are not given.

    >>> filled(Switches, 2, name=("core", "floor")).fed_by_port
    array([-1, -1], dtype=int32)
    """
    found: dict[str, Any] = {}
    for column in fields(kind):  # type: ignore[arg-type]
        values = columns.pop(column.name, DEFAULTS.get(column.name))
        dtype = TYPES.get(str(column.type))
        if dtype is None:
            alone = isinstance(values, str | np.ndarray)
            found[column.name] = (values,) * rows if alone else tuple(values)
        else:
            found[column.name] = np.array(np.broadcast_to(np.asarray(values, dtype=dtype), rows))
    return kind(**found, **columns)


def take(table: SomeTable, rows: NDArray[np.int64]) -> SomeTable:
    """The given rows of a table, in the given order."""
    columns: dict[str, Any] = {}
    for column in fields(table):  # type: ignore[arg-type]
        values = getattr(table, column.name)
        columns[column.name] = (
            values[rows] if isinstance(values, np.ndarray) else tuple(values[row] for row in rows)
        )
    return replace(table, **columns)  # type: ignore[type-var]


def joined(one: SomeTable, other: SomeTable) -> SomeTable:
    """The rows of both."""
    columns = {}
    for each in fields(one):  # type: ignore[arg-type]
        first, second = getattr(one, each.name), getattr(other, each.name)
        columns[each.name] = first + second if isinstance(first, tuple) else np.concatenate([first, second])
    return replace(one, **columns)  # type: ignore[type-var]


def with_columns(table: SomeTable, rows: NDArray[np.int64], **columns: Any) -> SomeTable:
    """The given rows of a table, with DEFAULTS in those of number -1, and with other columns in the place of some."""
    for column in fields(table):  # type: ignore[arg-type]
        if column.name not in columns:
            values = getattr(table, column.name)
            columns[column.name] = np.append(values, values.dtype.type(DEFAULTS.get(column.name, 0)))[rows]
    return replace(table, **columns)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True, eq=False)
class Topics(Table):
    name: Names


@dataclass(frozen=True, slots=True, eq=False)
class Brokers(Table):
    """An inbound queue that matches events, and one outbound queue per subscriber (PrioDeX Fig. 3).

    A broker of a `cluster` is its head, which serves publishers, or one of its edges, which serve subscribers; what it
    gets comes over a downlink and what it sends goes over an uplink (PEER-WD Fig. 1).
    """

    name: Names
    inbound_rate_per_second: Floats
    outbound_rate_per_second: Floats
    cluster: Names
    head: Codes
    downlink_bps: Floats
    uplink_bps: Floats


@dataclass(frozen=True, slots=True, eq=False)
class BrokerLinks(Table):
    """One direction of a link between brokers: a FIFO transmitter, then a propagation delay."""

    source_broker: Integers
    target_broker: Integers
    bandwidth_bps: Floats
    error_rate: Floats
    propagation_seconds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class UnmanagedSwitches(Table):
    """The publishers' side of the network: one FIFO towards the broker that TriageMQ does not control."""

    name: Names
    bandwidth_bps: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Switches(Table):
    """Managed switches. `fed_by_port` is the output port of the switch upstream; -1 hangs at the brokers.

    The others are what a switch of this `model` is built like: the time from a packet's arrival to its place in a
    queue, the longest packet, the rate limiters, of which kind they are, in which steps of time token buckets are
    filled, how much sooner than declared messages may come there and by which share limiters may miss their rate, and
    room for rules.
    """

    name: Names
    inbound_rate_per_second: Floats
    fed_by_port: Integers
    model: Names
    multiplexing_seconds: Floats
    packet_bytes: Floats
    rate_limiters: Floats
    limiter: Codes
    limiter_step_seconds: Floats
    limiter_tolerance_seconds: Floats
    limiter_precision: Floats
    rules: Floats


@dataclass(frozen=True, slots=True, eq=False)
class OutputPorts(Table):
    """The unit of contention: one transmitter, one buffer, one set of queues, one for each class.

    `error_rate` and `propagation_seconds` are those of the link to the next switch; a subscriber's own link
    is in its row. `queues` is 0 where the scenario does not state it. `to_switch` is the switch at the other end of
    a link that is not one of the tree that `fed_by_port` makes; only promises use it.

    Where the discipline is QUEUE_RATES, `queue_rates_bps` is the bandwidth of each queue, class 0 first; together they
    are the port's. With `borrowing` a queue also gets what others leave. Queue rates that are changed during a run stay
    above `floors_bps`. All other ports have empty lists.
    """

    name: Names
    switch: Integers
    bandwidth_bps: Floats
    buffer_packets: Floats
    queues: Integers
    error_rate: Floats
    propagation_seconds: Floats
    to_switch: Integers
    discipline: Codes
    queue_rates_bps: Lists
    floors_bps: Lists
    borrowing: Codes

    def with_bandwidths(self, bandwidth_bps: Floats) -> OutputPorts:
        """With other bandwidths; the rates of queues are the same shares of them as before."""

        def scaled(lists: Lists) -> Lists:
            rows = zip(lists, bandwidth_bps, self.bandwidth_bps, strict=True)
            return tuple(each * (now / before) if len(each) else each for each, now, before in rows)

        return replace(
            self,
            bandwidth_bps=bandwidth_bps,
            queue_rates_bps=scaled(self.queue_rates_bps),
            floors_bps=scaled(self.floors_bps),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Publishers(Table):
    """Publishers and their paths to a broker; `access_switch` is the managed switch that they are plugged into."""

    name: Names
    broker: Integers
    unmanaged_switch: Integers
    error_rate: Floats
    propagation_seconds: Floats
    access_switch: Integers
    access_bps: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Publications(Table):
    """One publisher's events on one topic. Sizes are of the event, without the scenario's overhead."""

    publisher: Integers
    topic: Integers
    rate_per_second: Floats
    size_bytes: Floats
    size_distribution: Codes
    size_samples: Integers
    arrival_process: Codes
    pareto_shape: Floats
    on_seconds: Floats
    off_seconds: Floats
    min_separation_seconds: Floats
    max_separation_seconds: Floats
    max_size_bytes: Floats

    def times(self, factor: float | Floats) -> Publications:
        """So many times as often: rates are higher and separations shorter; on and off periods stay as long."""
        return replace(
            self,
            rate_per_second=self.rate_per_second * factor,
            min_separation_seconds=self.min_separation_seconds / factor,
            max_separation_seconds=self.max_separation_seconds / factor,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SizeSamples(Table):
    """Empirical size distributions, one row each: the sizes seen and how often."""

    size_bytes: Lists
    weight: Lists


@dataclass(frozen=True, slots=True, eq=False)
class Subscribers(Table):
    name: Names
    broker: Integers
    port: Integers
    error_rate: Floats
    propagation_seconds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Subscriptions(Table):
    """What one topic is worth to one subscriber, and how late or how rarely it may come.

    Where `max_latency_share` is above 0, this share of what arrives shall come within `max_latency_seconds`; where
    `guaranteed` is 1, all of it shall, and a subscription of which that cannot be proven is refused.

    Of what is published, at most `max_rate_per_second` is sent, the newest of each interval; of that, the share
    `min_share` arrives before anything is given for worth, lower `role_rank` first where not all minima fit. With
    `newest_only` a newer event takes the place of the one that waits, and what is older than `expires_seconds` when its
    turn comes is not sent.
    """

    subscriber: Integers
    topic: Integers
    utility_shape: Codes
    utility_weight: Floats
    utility_threshold: Floats
    freshness_seconds: Floats
    max_latency_seconds: Floats
    max_separation_seconds: Floats
    max_latency_share: Floats
    guaranteed: Codes
    min_share: Floats
    max_rate_per_second: Floats
    newest_only: Codes
    expires_seconds: Floats
    role_rank: Floats


@dataclass(frozen=True, slots=True)
class PlanningSettings:
    """What planners may use: flows a subscriber can open, classes, and the share of a port left free.

    `judged_over_seconds` is the period over which a success rate is judged: a share of few events scatters, and a step
    that is to be reached in such a period is planned with a margin.
    """

    flows_per_subscriber: int = 9
    priority_classes: int = 9
    rho_tolerance: float = 0.1
    judged_over_seconds: float = 60.0


NO_INTEGERS: Integers = np.empty(0, dtype=np.int32)
NO_FLOATS: Floats = np.empty(0)
NO_LINKS = BrokerLinks(NO_INTEGERS, NO_INTEGERS, NO_FLOATS, NO_FLOATS, NO_FLOATS)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scenario:
    """All tables of one situation. Make one with `Scenario.of`, which puts them into canonical order."""

    name: str
    topics: Topics
    brokers: Brokers
    broker_links: BrokerLinks = NO_LINKS
    unmanaged_switches: UnmanagedSwitches = UnmanagedSwitches((), NO_FLOATS)
    switches: Switches
    ports: OutputPorts
    publishers: Publishers
    publications: Publications
    size_samples: SizeSamples = SizeSamples((), ())
    subscribers: Subscribers
    subscriptions: Subscriptions
    planning: PlanningSettings = PlanningSettings()
    mtu_bytes: float = np.inf
    overhead_bytes: float = 0.0
    sending_order: SendingOrder = SendingOrder.BY_CLASS

    @classmethod
    def of(cls, **parts: Any) -> Scenario:
        """A Scenario in canonical order, whatever order the rows are given in."""
        return _canonical(cls(**parts))

    def with_tables(self, **tables: Any) -> Scenario:
        """The same with other tables in the place of its own, in canonical order."""
        return _canonical(replace(self, **tables))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that influences a decision; plans and traces carry it."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.planning, float(self.mtu_bytes), float(self.overhead_bytes))).encode())
        if self.sending_order is not SendingOrder.BY_CLASS:
            digest.update(self.sending_order.name.encode())
        for table_field in fields(self):
            table = getattr(self, table_field.name)
            if isinstance(table, Table):
                for column in fields(table):  # type: ignore[arg-type]
                    values = getattr(table, column.name)
                    if column.name in LATER_COLUMNS and _says_nothing(column.name, values):
                        continue
                    digest.update(f"{table_field.name}.{column.name}".encode())
                    _digest_column(digest, values)
        return digest.hexdigest()


def _says_nothing(column: str, values: Any) -> bool:
    """Whether nothing is stated; the name of a model decides nothing, its figures do."""
    if isinstance(values, tuple):
        return column == "model" or not any(map(len, values))
    return bool((values == DEFAULTS[column]).all())


def _digest_column(digest: Any, values: Any) -> None:
    if isinstance(values, np.ndarray):
        # Minus zero is zero, and a file does not distinguish them.
        digest.update(np.ascontiguousarray(values + 0.0 if values.dtype.kind == "f" else values).data)
    elif values and isinstance(values[0], np.ndarray):
        for part in values:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(part).data)
    else:
        encoded = [name.encode() for name in values]
        digest.update(b"".join(part for each in encoded for part in (len(each).to_bytes(8, "little"), each)))


REFERENCES = {
    "broker_links": {"source_broker": "brokers", "target_broker": "brokers"},
    "switches": {"fed_by_port": "ports"},
    "ports": {"switch": "switches", "to_switch": "switches"},
    "publishers": {
        "broker": "brokers",
        "unmanaged_switch": "unmanaged_switches",
        "access_switch": "switches",
    },
    "publications": {"publisher": "publishers", "topic": "topics"},
    "subscribers": {"broker": "brokers", "port": "ports"},
    "subscriptions": {"subscriber": "subscribers", "topic": "topics"},
}
"""The columns that refer to rows of other tables, and which tables these are."""


def _canonical(scenario: Scenario) -> Scenario:
    tables = {each.name: getattr(scenario, each.name) for each in fields(scenario)}
    tables = {title: table for title, table in tables.items() if isinstance(table, Table)}
    order = {title: _order_by_name(table.name) for title, table in tables.items() if hasattr(table, "name")}
    # The rows of each table after they have moved; -1, "none", stays -1.
    moved = {title: np.append(_inverse(rows), np.int32(-1)) for title, rows in order.items()}
    for title, columns in REFERENCES.items():
        table = tables[title]
        references = {column: moved[target][getattr(table, column)] for column, target in columns.items()}
        tables[title] = replace(table, **references)
        if title not in order:
            order[title] = _order_by_pair(*references.values())
    tables |= {title: take(tables[title], rows) for title, rows in order.items()}
    publications, samples = _renumber_samples(tables["publications"], tables["size_samples"])
    return replace(scenario, **{**tables, "publications": publications, "size_samples": samples})


def _renumber_samples(publications: Publications, samples: SizeSamples) -> tuple[Publications, SizeSamples]:
    """Sample rows in the order of their first use by publications; equal ones become one, unused ones go."""
    used = publications.size_samples[publications.size_samples >= 0]
    first_use = np.sort(np.unique(used, return_index=True)[1])
    new_index = np.full(len(samples) + 1, -1, dtype=np.int32)
    numbers: dict[tuple[bytes, bytes], int] = {}
    rows: list[int] = []
    for row in used[first_use].tolist():
        content = samples.size_bytes[row].tobytes(), samples.weight[row].tobytes()
        if content not in numbers:
            rows.append(row)
        new_index[row] = numbers.setdefault(content, len(numbers))
    return (
        replace(publications, size_samples=new_index[publications.size_samples]),
        take(samples, np.array(rows, dtype=np.int64)),
    )


def _order_by_name(names: Sequence[str]) -> NDArray[np.int64]:
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)


def _order_by_pair(first: Integers, second: Integers) -> NDArray[np.int64]:
    return np.argsort(first.astype(np.int64) << 32 | second.astype(np.int64), kind="stable")


def _inverse(rows: NDArray[np.int64]) -> Integers:
    inverse = np.empty(len(rows), dtype=np.int32)
    inverse[rows] = np.arange(len(rows), dtype=np.int32)
    return inverse
