"""The direct ways of promised messages, laid out as arrays: publisher, access link, limiter, ports, subscribers.

Switches replicate: a message crosses each port of its tree once, however many subscribers are behind it. So a stream,
one publication's messages, is a tree of nodes, each a port with the level that the stream has there; its legs are the
subscriptions at its ends, numbered so that those behind a node stand together. Access links are ports as well,
numbered after those of the scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Discipline, Floats, Integers, Scenario

Positions = NDArray[np.int64]
Flags = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Way:
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
    """A token bucket at the first switch, in octets on the wire: `burst_bytes` deep, filled at a rate."""

    burst_bytes: float
    rate_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Ways:
    """Everything that takes a direct way while one plan is in force; publications without a limit are not cut."""

    ways: tuple[Way, ...] = ()
    limits: dict[int, Limit] = field(default_factory=dict)


class Direct(NamedTuple):
    """What does not change during a run. Several columns have a row per epoch: what is published in it goes that way.

    `stream[epoch, publication]` is -1 for those without a direct way, and `brokered` says whether a publication's
    events go to the broker, too. `present` are the subscriptions that are there, on a direct way or not. Then columns
    by stream, by node and by leg; those of a node count legs from the first of its stream. `fair` says which ports
    serve flow after flow; theirs have a queue per flow of the plan and per publication, from `fair_first` on.
    """

    stream: Integers
    brokered: Flags
    present: Flags
    flow: Integers
    publication: Integers
    access_port: Integers
    access_level: Integers
    payload_bytes: Floats
    to_first_port: Floats
    burst_bytes: Floats
    rate: Floats
    branch_first: Integers
    branch_end: Integers
    leg_first: Integers
    legs: Integers
    node_port: Integers
    node_level: Integers
    node_hop: Integers
    node_seconds: Floats
    child_first: Integers
    child_end: Integers
    node_leg: Integers
    node_own_end: Integers
    node_leg_end: Integers
    leg_subscription: Integers
    leg_promise: Integers
    leg_seconds: Floats
    leg_deadline_ns: Positions
    access_seconds_per_byte: Floats
    fair: Flags
    fair_first: Positions
    fair_queues: int
    flows: int
    ports: int
    most_legs: int
    most_children: int
    classes: int


@dataclass(frozen=True, slots=True, eq=False)
class Promised:
    """One row per pair of publication and subscription that has a direct way in some epoch."""

    publication: Integers
    subscription: Integers
    bound_seconds: Floats


def needs_event_list(scenario: Scenario, plans: Sequence[Ways]) -> bool:
    """Whether ports cannot be taken one after the other: promises cross them in any order, fair ones serve flows."""
    return any(each.ways for each in plans) or bool((scenario.ports.discipline != Discipline.PRIORITY).any())


def lay_out(
    scenario: Scenario, plans: Sequence[Ways], flow: Integers, present: NDArray[Any]
) -> tuple[Direct, Promised]:
    """The arrays of a run in which these ways are in force epoch by epoch, and `flow` those of the brokered copies."""
    pairs = sorted({(way.publication, way.subscription) for each in plans for way in each.ways})
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
        by_publication: dict[int, list[Way]] = {}
        for way in each.ways:
            by_publication.setdefault(way.publication, []).append(way)
            pair = way.publication, way.subscription
            bounds[pair] = max(bounds[pair], way.bound_seconds)
        others = np.ones(len(scenario.subscriptions), dtype=bool)
        others[[way.subscription for way in each.ways]] = False
        asked = np.unique(scenario.subscriptions.topic[others])
        for publication, ways in sorted(by_publication.items()):
            stream[epoch, publication] = trees.add(publication, ways, each.limits.get(publication))
            brokered[epoch, publication] = scenario.publications.topic[publication] in asked
    columns = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    promised = Promised(columns[0], columns[1], np.array(list(bounds.values())))
    return trees.arrays(stream, brokered, present.astype(np.uint8), flow), promised


class _Trees:
    """Collects the columns of streams, nodes and legs."""

    def __init__(self, scenario: Scenario, promises: dict[tuple[int, int], int]) -> None:
        self._scenario, self._promises = scenario, promises
        self._streams: list[dict[str, float]] = []
        self._nodes: list[dict[str, float]] = []
        self._legs: list[dict[str, float]] = []

    def add(self, publication: int, ways: Sequence[Way], limit: Limit | None) -> int:
        scenario = self._scenario
        publisher = int(scenario.publications.publisher[publication])
        first_switch = int(scenario.publishers.access_switch[publisher])
        switches = {first_switch, *(int(scenario.ports.switch[port]) for way in ways for port in way.ports)}
        packet_bytes = min(float(scenario.switches.packet_bytes[switch]) for switch in switches)
        leg_first = len(self._legs)
        branches = self._grow([(way, 0) for way in ways], leg_first)
        self._streams.append(
            {
                "publication": publication,
                "access_port": len(scenario.ports) + publisher,
                "access_level": min(way.access_level for way in ways),
                "payload_bytes": packet_bytes - scenario.overhead_bytes,
                "to_first_port": scenario.publishers.propagation_seconds[publisher]
                + scenario.switches.multiplexing_seconds[first_switch],
                "burst_bytes": np.inf if limit is None else limit.burst_bytes,
                "rate": 0.0 if limit is None else limit.rate_bytes_per_second,
                "branch_first": branches.start,
                "branch_end": branches.stop,
                "leg_first": leg_first,
                "legs": len(self._legs) - leg_first,
            }
        )
        return len(self._streams) - 1

    def _grow(self, ways: list[tuple[Way, int]], leg_first: int) -> range:
        """The nodes that ways branch into at their hop, next to each other, and all that is behind them."""
        scenario = self._scenario
        branches: dict[int, list[tuple[Way, int]]] = {}
        for way, hop in ways:
            branches.setdefault(way.ports[hop], []).append((way, hop))
        nodes = range(len(self._nodes), len(self._nodes) + len(branches))
        self._nodes += [{} for _ in nodes]
        for node, (port, behind) in zip(nodes, sorted(branches.items()), strict=True):
            first = len(self._legs)
            for way, hop in behind:
                if hop + 1 == len(way.ports):
                    self._add_leg(way)
            own_end = len(self._legs)
            children = self._grow(
                [(way, hop + 1) for way, hop in behind if hop + 1 < len(way.ports)], leg_first
            )
            onward = [
                int(scenario.ports.switch[way.ports[hop + 1]])
                for way, hop in behind
                if hop + 1 < len(way.ports)
            ]
            self._nodes[node] = {
                "node_port": port,
                "node_level": min(way.levels[hop] for way, hop in behind),
                "node_hop": behind[0][1],
                "node_seconds": scenario.ports.propagation_seconds[port]
                + (scenario.switches.multiplexing_seconds[onward[0]] if onward else 0.0),
                "child_first": children.start,
                "child_end": children.stop,
                "node_leg": first - leg_first,
                "node_own_end": own_end - leg_first,
                "node_leg_end": len(self._legs) - leg_first,
            }
        return nodes

    def _add_leg(self, way: Way) -> None:
        wanted, subscribers = self._scenario.subscriptions, self._scenario.subscribers
        deadline = float(wanted.max_latency_seconds[way.subscription])
        self._legs.append(
            {
                "leg_subscription": way.subscription,
                "leg_promise": self._promises[way.publication, way.subscription],
                "leg_seconds": subscribers.propagation_seconds[wanted.subscriber[way.subscription]],
                "leg_deadline_ns": round(deadline * 1e9) if deadline < 1e9 else np.iinfo(np.int64).max,
            }
        )

    def arrays(self, stream: Integers, brokered: Flags, present: Flags, flow: Integers) -> Direct:
        scenario = self._scenario
        columns: dict[str, Any] = {}
        floats = {"payload_bytes", "to_first_port", "burst_bytes", "rate", "node_seconds", "leg_seconds"}
        for rows, names in (
            (self._streams, Direct._fields[4:15]),
            (self._nodes, Direct._fields[15:24]),
            (self._legs, Direct._fields[24:28]),
        ):
            for name in names:
                kind = np.float64 if name in floats else np.int64 if name == "leg_deadline_ns" else np.int32
                columns[name] = np.array([row[name] for row in rows], dtype=kind)
        fair = np.asarray(scenario.ports.discipline != Discipline.PRIORITY, dtype=np.uint8)
        flows = int(flow.max(initial=0)) + 1
        each = flows + len(scenario.publications)
        children = columns["child_end"] - columns["child_first"]
        branches = columns["branch_end"] - columns["branch_first"]
        return Direct(
            stream=stream,
            brokered=brokered,
            present=present,
            flow=np.array(flow, dtype=np.int32, ndmin=2),
            **columns,
            access_seconds_per_byte=np.array(8 / scenario.publishers.access_bps),
            fair=fair,
            fair_first=np.cumsum(fair, dtype=np.int64) * each - each,
            fair_queues=int(fair.sum()) * each,
            flows=flows,
            ports=len(scenario.ports),
            most_legs=int(columns["legs"].max(initial=1)),
            most_children=int(max(children.max(initial=1), branches.max(initial=1))),
            classes=1
            + int(max(columns["node_level"].max(initial=0), columns["access_level"].max(initial=0))),
        )
