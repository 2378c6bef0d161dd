"""The direct routes of promised messages, laid out as arrays: publisher, access link, limiter, ports, subscribers.

Switches replicate: a message crosses each port of its tree once, however many subscribers are behind it. So a stream,
one publication's messages, is a tree of nodes, each a port with the level that the stream has there; its legs are the
subscriptions at its ends, numbered so that those behind a node stand together. Access links are ports as well,
numbered after those of the scenario; after these come the queues of ports with queue rates, which send by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.plan.model import Plan
from triagemq.scenario import (
    ArrivalProcess,
    Discipline,
    Floats,
    Integers,
    LimiterKind,
    Scenario,
    SizeDistribution,
)

Positions = NDArray[np.int64]
Flags = NDArray[np.uint8]

LIMITERS = {kind.name.lower(): kind for kind in LimiterKind}


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """How the messages of a publication reach one subscription: the ports in their order and the level in each.

    `access_level` is that on the publisher's access link. `bound_seconds` is what was proven, infinity where nothing
    was.
    """

    publication: int
    subscription: int
    ports: tuple[int, ...]
    levels: tuple[int, ...]
    access_level: int = 0
    bound_seconds: float = np.inf


@dataclass(frozen=True, slots=True)
class Limit:
    """What the first switch lets through of a publication, in octets on the wire.

    A token bucket, `burst_bytes` deep and filled at a rate. Or, with a separation, a window: what passes may come
    again when a separation is over, but for the jitter with which messages may come, and not bit by bit.
    """

    burst_bytes: float
    rate_bytes_per_second: float
    separation_seconds: float = 0.0
    jitter_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DirectRoutes:
    """Everything that takes a direct route while one plan is in force; publications without a limit are not cut."""

    routes: tuple[DirectRoute, ...] = ()
    limits: dict[int, Limit] = field(default_factory=dict)


# One publication's messages: the access link's port and level; the payload of a packet; the seconds from the end of the
# access link to the first port; the bucket; the nodes that it branches into at once, and its legs.
STREAM = np.dtype(
    [
        ("publication", np.int32),
        ("access_port", np.int32),
        ("access_level", np.int32),
        ("payload_bytes", np.float64),
        ("to_first_port", np.float64),
        ("burst_bytes", np.float64),
        ("rate", np.float64),
        ("separation_seconds", np.float64),
        ("jitter_seconds", np.float64),
        ("child_first", np.int32),
        ("child_end", np.int32),
        ("leg_first", np.int32),
        ("legs", np.int32),
    ]
)

# A port of a stream's tree: its level there, the seconds from its end to the next port, the nodes behind it, and its
# legs, counted from the first of the stream: those that end at it, then those behind.
NODE = np.dtype(
    [
        ("port", np.int32),
        ("level", np.int32),
        ("hop", np.int32),
        ("seconds", np.float64),
        ("child_first", np.int32),
        ("child_end", np.int32),
        ("leg", np.int32),
        ("own_end", np.int32),
        ("leg_end", np.int32),
    ]
)

# One subscription of a stream, the level at its own port, and the row of the promise.
LEG_END = np.dtype(
    [
        ("subscription", np.int32),
        ("priority_class", np.int32),
        ("promise", np.int32),
        ("seconds", np.float64),
        ("deadline_ns", np.int64),
    ]
)


class Direct(NamedTuple):
    """What does not change during a run. Four columns have a row per epoch: what is published in it goes there.

    `stream[epoch, publication]` is -1 for those without a direct route, and `brokered` says whether a publication's
    events go to the broker, too. `present` are the subscriptions that are there, on a direct route or not, and `flow`
    is that of brokered ones. From `queue_first` on (-1 where there are none), ports with queue rates have a row of
    `PortQueues` per class, and `fair` ones, which serve flow after flow, one per flow of the plan and per publication;
    `port_of` is the port of every row.
    """

    stream: Integers
    brokered: Flags
    present: Flags
    flow: Integers
    streams: NDArray[np.void]
    nodes: NDArray[np.void]
    leg_ends: NDArray[np.void]
    access_seconds_per_byte: Floats
    fair: Flags
    queue_first: Positions
    borrowing: Flags
    port_of: Positions
    flows: int
    ports: int
    most_legs: int
    most_children: int
    classes: int


@dataclass(frozen=True, slots=True, eq=False)
class PromisedRows:
    """One row per pair of publication and subscription that has a direct route in some epoch."""

    publication: Integers
    subscription: Integers
    bound_seconds: Floats


def promised_routes(scenario: Scenario, plan: Plan, limiter: str | None = None) -> DirectRoutes:
    """What a plan promises: the routes of those admitted, and the limiters of their publications, which are as generous
    as their switch's precision allows, and of its kind unless another is named."""
    promises, hops, limiters = plan.promises, plan.hops, plan.limiters
    routes = []
    for promise in np.flatnonzero(promises.admitted).tolist():
        rows = plan.hops_of(promise)
        port, level = hops.port[rows].tolist(), hops.level[rows].tolist()
        routes.append(
            DirectRoute(
                publication=int(promises.publication[promise]),
                subscription=int(promises.subscription[promise]),
                ports=tuple(port[1:]),
                levels=tuple(level[1:]),
                access_level=level[0],
                bound_seconds=float(promises.bound_seconds[promise]),
            )
        )
    limits = {}
    for row in range(len(limiters)):
        publication = int(limiters.publication[row])
        slack = 1.0 + float(scenario.switches.limiter_precision[limiters.switch[row]])
        rate = float(limiters.rate_bytes_per_second[row]) * slack
        burst, jitter = float(limiters.burst_bytes[row]), float(limiters.jitter_seconds[row])
        own = scenario.switches.limiter[limiters.switch[row]]
        if (own if limiter is None else LIMITERS[limiter]) == LimiterKind.WINDOW:
            limits[publication] = Limit(burst, rate, burst / rate, jitter)
        else:
            limits[publication] = Limit(burst + rate * jitter, rate)
    return DirectRoutes(tuple(routes), limits)


def lay_out(
    scenario: Scenario, plans: Sequence[DirectRoutes], flow: Integers, present: NDArray[Any]
) -> tuple[Direct, PromisedRows]:
    """The arrays of a run with these routes epoch by epoch, and `flow` those of the brokered copies."""
    pairs = sorted({(route.publication, route.subscription) for each in plans for route in each.routes})
    bounds = dict.fromkeys(pairs, 0.0)
    trees = _Trees(scenario, {pair: row for row, pair in enumerate(pairs)})
    stream = np.full((len(plans), len(scenario.publications)), -1, dtype=np.int32)
    brokered = np.ones(stream.shape, dtype=np.uint8)
    known: dict[int, int] = {}
    for epoch, each in enumerate(plans):
        same = known.setdefault(id(each), epoch)
        if same != epoch:
            stream[epoch], brokered[epoch] = stream[same], brokered[same]
            continue
        by_publication: dict[int, list[DirectRoute]] = {}
        for route in each.routes:
            by_publication.setdefault(route.publication, []).append(route)
            pair = route.publication, route.subscription
            bounds[pair] = max(bounds[pair], route.bound_seconds)
        others = np.ones(len(scenario.subscriptions), dtype=bool)
        others[[route.subscription for route in each.routes]] = False
        requested = np.unique(scenario.subscriptions.topic[others])
        for publication, routes in sorted(by_publication.items()):
            stream[epoch, publication] = trees.add(publication, routes, each.limits.get(publication))
            brokered[epoch, publication] = scenario.publications.topic[publication] in requested
    columns = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    promised = PromisedRows(columns[0], columns[1], np.array(list(bounds.values())))
    return trees.arrays(stream, brokered, present.astype(np.uint8), flow), promised


class _Trees:
    """Collects the rows of streams, nodes and legs."""

    def __init__(self, scenario: Scenario, promises: dict[tuple[int, int], int]) -> None:
        self._scenario, self._promises = scenario, promises
        self._streams: list[tuple[float, ...]] = []
        self._nodes: list[tuple[float, ...]] = []
        self._leg_ends: list[tuple[float, ...]] = []

    def add(self, publication: int, routes: Sequence[DirectRoute], limit: Limit | None) -> int:
        scenario = self._scenario
        publisher = int(scenario.publications.publisher[publication])
        first_switch = int(scenario.publishers.access_switch[publisher])
        switches = {
            first_switch,
            *(int(scenario.ports.switch[port]) for route in routes for port in route.ports),
        }
        packet_bytes = min(float(scenario.switches.packet_bytes[switch]) for switch in switches)
        payload_bytes = packet_bytes - scenario.overhead_bytes
        leg_first = len(self._leg_ends)
        branches = self._grow([(route, 0) for route in routes], leg_first)
        self._streams.append(
            (
                publication,
                len(scenario.ports) + publisher,
                min(route.access_level for route in routes),
                payload_bytes,
                scenario.publishers.propagation_seconds[publisher]
                + scenario.switches.multiplexing_seconds[first_switch],
                np.inf if limit is None else limit.burst_bytes,
                0.0 if limit is None else limit.rate_bytes_per_second,
                0.0 if limit is None else limit.separation_seconds,
                0.0 if limit is None else limit.jitter_seconds,
                branches.start,
                branches.stop,
                leg_first,
                len(self._leg_ends) - leg_first,
            )
        )
        return len(self._streams) - 1

    def _grow(self, routes: list[tuple[DirectRoute, int]], leg_first: int) -> range:
        """The nodes that routes branch into at their hop, next to each other, and all that is behind them."""
        scenario = self._scenario
        branches: dict[int, list[tuple[DirectRoute, int]]] = {}
        for route, hop in routes:
            branches.setdefault(route.ports[hop], []).append((route, hop))
        nodes = range(len(self._nodes), len(self._nodes) + len(branches))
        self._nodes += [() for _ in nodes]
        for node, (port, behind) in zip(nodes, sorted(branches.items()), strict=True):
            first = len(self._leg_ends)
            for route, hop in behind:
                if hop + 1 == len(route.ports):
                    self._add_leg(route)
            own_end = len(self._leg_ends)
            onward = [(route, hop + 1) for route, hop in behind if hop + 1 < len(route.ports)]
            children = self._grow(onward, leg_first)
            following = [int(scenario.ports.switch[route.ports[hop]]) for route, hop in onward[:1]]
            self._nodes[node] = (
                port,
                min(route.levels[hop] for route, hop in behind),
                behind[0][1],
                scenario.ports.propagation_seconds[port]
                + scenario.switches.multiplexing_seconds[following].sum(),
                children.start,
                children.stop,
                first - leg_first,
                own_end - leg_first,
                len(self._leg_ends) - leg_first,
            )
        return nodes

    def _add_leg(self, route: DirectRoute) -> None:
        wanted, subscribers = self._scenario.subscriptions, self._scenario.subscribers
        deadline = float(wanted.max_latency_seconds[route.subscription])
        self._leg_ends.append(
            (
                route.subscription,
                route.levels[-1],
                self._promises[route.publication, route.subscription],
                subscribers.propagation_seconds[wanted.subscriber[route.subscription]],
                round(deadline * 1e9) if deadline < 1e9 else np.iinfo(np.int64).max,
            )
        )

    def arrays(self, stream: Integers, brokered: Flags, present: Flags, flow: Integers) -> Direct:
        scenario = self._scenario
        streams, nodes = np.array(self._streams, dtype=STREAM), np.array(self._nodes, dtype=NODE)
        ports = scenario.ports
        fair = np.asarray(ports.discipline == Discipline.FAIR, dtype=np.uint8)
        before = len(ports) + len(scenario.publishers)
        rows = np.arange(len(ports))
        flows = int(flow.max(initial=0)) + 1
        queues = np.array([len(each) for each in ports.queue_rates_bps], dtype=np.int64)
        queues[fair > 0] = flows + len(scenario.publications)
        children = np.concatenate([table["child_end"] - table["child_first"] for table in (streams, nodes)])
        levels = np.concatenate([streams["access_level"], nodes["level"]])
        return Direct(
            stream=stream,
            brokered=brokered,
            present=present,
            flow=np.array(flow, dtype=np.int32, ndmin=2),
            streams=streams,
            nodes=nodes,
            leg_ends=np.array(self._leg_ends, dtype=LEG_END),
            access_seconds_per_byte=np.array(8 / scenario.publishers.access_bps),
            fair=fair,
            queue_first=np.where(queues > 0, before + np.cumsum(queues) - queues, -1),
            borrowing=ports.borrowing.astype(np.uint8),
            port_of=np.concatenate([np.arange(before), np.repeat(rows, queues)]),
            flows=flows,
            ports=len(ports),
            most_legs=int(streams["legs"].max(initial=1)),
            most_children=int(children.max(initial=1)),
            classes=1 + int(levels.max(initial=0)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Releases:
    """The scenario as the source shall draw events from it, the largest size of each publication (empty where none has
    one), and which publications begin at time 0 instead of in a random phase."""

    scenario: Scenario
    largest_bytes: Floats
    at_once: NDArray[np.bool_]


def released(
    scenario: Scenario,
    rates: Floats,
    direct: NDArray[Any],
    *,
    babbling: Sequence[str] = (),
    synchronised: bool = False,
) -> tuple[Floats, Releases]:
    """The rates of all publications, epoch by epoch, and how their events come about.

    `direct` says in which epoch which publication takes a direct route. Such a one is released periodically, at its
    least separation; a condition that changes its rate changes that by the same factor, so that a higher one breaks
    its terms. No message is larger than was declared. A publisher that is `babbling` sends its largest
    messages one after the other, as fast as its access link takes them.
    """
    publications = scenario.publications
    rates = rates.copy()
    ever = np.asarray(direct.any(axis=0))
    periodic = ever & (publications.min_separation_seconds > 0)
    if not (periodic.any() or babbling):
        none = np.zeros(len(publications), dtype=bool)
        return rates, Releases(scenario, np.zeros(0), none)
    declared = publications.rate_per_second
    factor = np.divide(rates, declared, out=np.ones_like(rates), where=declared > 0)
    often = factor / np.where(periodic, publications.min_separation_seconds, 1.0)
    rates = np.where(direct & periodic, often, rates)
    process, size = publications.arrival_process.copy(), publications.size_bytes.copy()
    law = publications.size_distribution.copy()
    process[periodic] = ArrivalProcess.PERIODIC
    for name in babbling:
        rows = _babbling_rows(scenario, name, ever)
        publisher = int(publications.publisher[rows[0]])
        size[rows] = publications.max_size_bytes[rows]
        law[rows], process[rows] = SizeDistribution.CONSTANT, ArrivalProcess.PERIODIC
        seconds = _wire_bytes(scenario, rows).sum() * 8 / scenario.publishers.access_bps[publisher]
        rates[:, rows] = 1 / seconds
    changed = replace(publications, arrival_process=process, size_bytes=size, size_distribution=law)
    largest = np.where(ever, publications.max_size_bytes, np.inf)
    return rates, Releases(replace(scenario, publications=changed), largest, periodic & synchronised)


def _babbling_rows(scenario: Scenario, name: str, direct: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The publications of a publisher that take a direct route."""
    if name not in scenario.publishers.name:
        raise ParameterError("babbling", f"no publisher is called {name!r}")
    publisher = scenario.publishers.name.index(name)
    rows = np.flatnonzero((scenario.publications.publisher == publisher) & direct)
    if not rows.size:
        raise ParameterError(
            "babbling", f"nothing that {name!r} publishes is promised; it has no limiter to meet"
        )
    if not np.isfinite(scenario.publishers.access_bps[publisher]):
        raise ParameterError("babbling", f"the access link of {name!r} has no rate; give it access_bps")
    return rows


def _wire_bytes(scenario: Scenario, rows: NDArray[np.int64]) -> Floats:
    """Of the largest message of each publication, with the overhead of its packets."""
    publications = scenario.publications
    switch = scenario.publishers.access_switch[publications.publisher[rows]]
    payload = scenario.switches.packet_bytes[switch] - scenario.overhead_bytes
    size = publications.max_size_bytes[rows]
    return np.asarray(size + np.maximum(np.ceil(size / payload), 1) * scenario.overhead_bytes)
