"""Worst delays beside simulation: random sets of flows, whose releases are searched for the worst.

Each set is a chain of ports that flows enter and leave anywhere, with jitter, and messages of one or several packets
that come at once or through an access link. All times are whole ticks, so nothing is rounded. For every flow and every
port of its path, flows are released as the bound takes them to be: a lower packet has just started, all others come
together, the delayed ones late and the next ones early; the flow itself at one of the moments that the bound looks at.
Then all at once, and at random. No delay may exceed `exact`, at a port or along the path; how often MIDAS eq. (4) is
exceeded is counted.

Every set (of many, every fourth) is tried once more with token buckets in the place of windows before some flows, which
babble: a full bucket at once, then small and large packets as soon as there are tokens. No delay of others may exceed
the bounds then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from measuring import finish, machine, options
from triagemq.compiled import compiled
from triagemq.theory import delay_bounds, path_arrivals
from triagemq.theory.busy_period import Floats, Integers

PACKET_TICKS = 1500
MOST_MOMENTS = 16
RANDOM_RELEASES = 4


@dataclass(frozen=True)
class FlowSet:
    """A chain of ports and the flows that cross it, from port `enters` to port `leaves`, both included."""

    slowness: Integers
    """Per port: ticks per unit of length."""
    units: Integers
    packet_units: Integers
    packets: Integers
    separation: Integers
    jitter: Integers
    """Of the release."""
    access: Integers
    """Ticks per unit of the flow's own access link; 0: it has none, and all packets come at once."""
    classes: Integers
    enters: Integers
    leaves: Integers
    bucket: NDArray[np.bool_]
    """Let in by a token bucket, and babbling; the others keep to their terms."""

    def last_units(self, flow: int) -> int:
        return int(self.units[flow] - (self.packets[flow] - 1) * self.packet_units[flow])

    def lengths(self, flow: int) -> Integers:
        """Units of each packet."""
        units = np.full(self.packets[flow], self.packet_units[flow])
        units[-1] = self.last_units(flow)
        return units

    def path(self, flow: int) -> range:
        return range(int(self.enters[flow]), int(self.leaves[flow]) + 1)


@dataclass(frozen=True)
class Bounds:
    """Per flow and port (NaN where it does not come): the bounds, the `exact` one of any packet let through, and
    jitter and spread of what arrives."""

    exact: Floats
    calculus: Floats
    paper: Floats
    any_packet: Floats
    jitter: Floats
    spread: Floats


def random_set(draw: np.random.Generator) -> FlowSet:
    """One to thirty flows, one to eight classes, one to four ports, the busiest loaded with 0.3 to 0.95."""
    count, ports = int(draw.integers(1, 31)), int(draw.integers(1, 5))
    several = draw.random(count) < draw.choice([0.0, 0.5, 1.0])
    packet = np.where(
        several, draw.integers(200, PACKET_TICKS + 1, count), draw.integers(60, PACKET_TICKS + 1, count)
    )
    packets = np.where(several, draw.integers(2, 13, count), 1)
    units = (packets - 1) * packet + np.where(several, draw.integers(1, packet + 1), packet)
    slowness = draw.integers(1, 4, ports)
    ends = np.sort(draw.integers(0, ports, (count, 2)), axis=1)
    crosses = (ends[:, :1] <= np.arange(ports)) & (np.arange(ports) <= ends[:, 1:])
    share = draw.exponential(size=count)
    share *= draw.uniform(0.3, 0.95) / (share[:, None] * crosses * slowness).sum(axis=0).max()
    separation = np.ceil(units / share).astype(np.int64)
    access = np.where(draw.random(count) < draw.choice([0.0, 0.5, 1.0]), draw.integers(1, 4, count), 0)
    # An access link that is slower than its flow would be a queue that only grows.
    access = np.minimum(access, separation // units)
    late = separation * draw.random(count) * (draw.random(count) < draw.choice([0.0, 0.5, 1.0]))
    return FlowSet(
        slowness=slowness,
        units=units,
        packet_units=packet,
        packets=packets,
        separation=separation,
        jitter=late.astype(np.int64),
        access=access,
        classes=draw.integers(0, draw.integers(1, 9), count),
        enters=ends[:, 0],
        leaves=ends[:, 1],
        bucket=np.zeros(count, dtype=np.bool_),
    )


def bounds_of(flows: FlowSet) -> Bounds:
    """Port by port: what is left of a budget, here the bound itself, becomes jitter at the next."""
    count, ports = flows.units.size, flows.slowness.size
    found = Bounds(*(np.full((count, ports), np.nan) for _ in range(6)))
    for port in range(ports):
        here = [flow for flow in range(count) if port in flows.path(flow)]
        for flow in here:
            found.jitter[flow, port], found.spread[flow, port] = arrives(flows, flow, port, found.any_packet)
        if not here:
            continue
        for method, bounds, passing in (
            ("exact", found.exact, False),
            ("calculus", found.calculus, False),
            ("paper", found.paper, False),
            ("exact", found.any_packet, True),
        ):
            bounds[here, port] = delay_bounds(
                flows.units[here] * flows.slowness[port],
                flows.separation[here],
                found.jitter[here, port],
                flows.classes[here],
                packet=flows.packet_units[here] * flows.slowness[port],
                spread=found.spread[here, port],
                bucket=flows.bucket[here],
                passing=passing,
                method=method,  # type: ignore[arg-type]
            )
    return found


def arrives(flows: FlowSet, flow: int, port: int, bounds: Floats) -> tuple[float, float]:
    """Jitter and spread of a flow at one port of its path."""
    rates = [flows.slowness[before] for before in range(int(flows.enters[flow]), port + 1)]
    budgets = [*bounds[flow, flows.enters[flow] : port], 0.0]
    late = float(flows.jitter[flow])
    if flows.access[flow]:
        rates.insert(0, flows.access[flow])
        ticks = float(flows.access[flow])
        packet = [flows.packet_units[flow] * ticks]
        alone = delay_bounds(
            [flows.units[flow] * ticks], [flows.separation[flow]], [late], [0], packet=packet
        )
        budgets.insert(0, float(alone[0]))
    speeds = np.array(rates, dtype=np.float64)
    along = path_arrivals(flows.units[flow] * speeds, flows.packet_units[flow] * speeds, budgets)
    if flows.bucket[flow] and port > flows.enters[flow]:
        # A packet may be as quick as one of no length.
        first = -1 - (port - int(flows.enters[flow]))
        return late + float(along.jitter[first]) + sum(budgets[first:-1]), float(along.spread[-1])
    return late + float(along.jitter[-1]), float(along.spread[-1])


@compiled
def serve(arrival: Integers, lengths: Integers, classes: Integers) -> Integers:
    """When each packet's transmission ends: arrivals in order, the lowest class first, nothing interrupted."""
    size = arrival.size
    ends = np.empty(size, dtype=np.int64)
    most = classes.max() + 1
    following = np.full(size, size, dtype=np.int64)
    heads = np.full(most, size, dtype=np.int64)
    for packet in range(size - 1, -1, -1):
        following[packet] = heads[classes[packet]]
        heads[classes[packet]] = packet
    now = arrival[0] if size else 0
    for _ in range(size):
        chosen = earliest = size
        for level in range(most):
            head = heads[level]
            if head < size:
                if arrival[head] <= now:
                    chosen = head
                    break
                if earliest == size or arrival[head] < arrival[earliest]:
                    earliest = head
        if chosen == size:
            chosen = earliest
            now = arrival[chosen]
        now += lengths[chosen]
        ends[chosen] = now
        heads[classes[chosen]] = following[chosen]
    return ends


@dataclass(frozen=True)
class Babble:
    """Packets that a token bucket lets through to a flow's first port."""

    arrival: Integers
    units: Integers


Releases = list[Integers | Babble]
"""Of each flow the moments at which its messages come to its first link, or what it babbles."""


def babbled(flows: FlowSet, flow: int, jitter: float, begin: int, horizon: int, small: int) -> Babble:
    """All that a full bucket holds at `begin`, and then packets of two lengths in turn, as soon as they can pass."""
    share = int(flows.units[flow]), int(flows.separation[flow])
    depth = int(share[0] * (share[1] + jitter) // share[1])
    full = int(flows.packet_units[flow])
    lengths = [full] * (depth // full) + ([depth % full] if depth % full else [])
    arrival = [0] * len(lengths)
    passed, held = depth, share[0] * (share[1] + jitter) / share[1]
    while len(lengths) < 2000:
        length = min(small, full) if len(lengths) % 2 else full
        passed += length
        moment = int(np.ceil((passed - held) * share[1] / share[0] + 1e-6))
        if moment > horizon:
            break
        lengths.append(length)
        arrival.append(moment)
    return Babble(np.array(arrival, dtype=np.int64) + begin, np.array(lengths, dtype=np.int64))


def simulate(flows: FlowSet, releases: Releases, unlucky: int) -> tuple[Integers, Integers]:
    """The largest delays per flow and port, and per flow from its first port to its last (-1: none came).

    The packets of the flow `unlucky` come behind all others that come at the same moment.
    """
    count, ports = flows.units.size, flows.slowness.size
    worst = np.full((count, ports), -1)
    along = np.full(count, -1)
    times: list[Integers] = []
    sizes: list[Integers] = []
    first: list[Integers] = []
    for flow, moments in enumerate(releases):
        if isinstance(moments, Babble):
            times.append(moments.arrival)
            sizes.append(moments.units)
            first.append(np.empty(0, dtype=np.int64))
            continue
        arrival = np.repeat(moments, flows.packets[flow])
        sizes.append(np.tile(flows.lengths(flow), moments.size))
        if flows.access[flow] and arrival.size:
            arrival = serve(arrival, sizes[flow] * flows.access[flow], np.zeros_like(arrival))
        times.append(arrival)
        first.append(arrival[flows.packets[flow] - 1 :: flows.packets[flow]])
    for port in range(ports):
        here = [flow for flow in range(count) if port in flows.path(flow) and times[flow].size]
        if not here:
            continue
        here.sort(key=lambda flow: flow == unlucky)
        arrival = np.concatenate([times[flow] for flow in here])
        owner = np.concatenate([np.full(times[flow].size, flow) for flow in here])
        lengths = np.concatenate([sizes[flow] for flow in here])
        order = np.argsort(arrival, kind="stable")
        ends = np.empty_like(arrival)
        ends[order] = serve(
            arrival[order], lengths[order] * flows.slowness[port], flows.classes[owner[order]]
        )
        for flow in here:
            mine = ends[owner == flow]
            every = flows.packets[flow]
            if first[flow].size:
                worst[flow, port] = (mine - times[flow])[every - 1 :: every].max()
            times[flow] = mine
            if port == flows.leaves[flow] and first[flow].size:
                along[flow] = (mine[every - 1 :: every] - first[flow]).max()
    return worst, along


def quickest(flows: FlowSet, flow: int, port: int) -> int:
    """From release until the first packet can be at `port`."""
    speed = int(flows.access[flow]) + int(flows.slowness[flows.enters[flow] : port].sum())
    return speed * int(flows.lengths(flow)[0])


def critical(
    flows: FlowSet, target: int, port: int, moment: int, found: Bounds, small: int = PACKET_TICKS
) -> Releases:
    """The target's last packet comes to `port` at `moment`, all others begin at 0 after a lower packet has started."""
    releases: Releases = []
    bound = found.exact[target, port]
    lower = max(
        (
            flow
            for flow in range(flows.units.size)
            if port in flows.path(flow) and flows.classes[flow] > flows.classes[target]
        ),
        key=lambda flow: int(flows.packet_units[flow]),
        default=-1,
    )
    horizon = moment + int(bound)
    for flow in range(flows.units.size):
        apart, late = int(flows.separation[flow]), int(flows.jitter[flow])
        before = quickest(flows, flow, port) if port in flows.path(flow) else 0
        if flow == target:
            spread = int(flows.units[flow] - flows.lengths(flow)[0])
            rate = int(flows.slowness[port - 1]) if port > flows.enters[flow] else int(flows.access[flow])
            tagged = moment - spread * rate - before
            back = np.arange(max(0, (moment + late) // apart) + 1)
            releases.append(np.sort(tagged - np.maximum(back * apart - late, 0)))
        elif port in flows.path(flow) and flows.classes[flow] <= flows.classes[target] and flows.bucket[flow]:
            jitter = float(found.jitter[flow, flows.enters[flow]])
            begin = quickest(flows, flow, int(flows.enters[flow])) - before
            releases.append(babbled(flows, flow, jitter, begin, horizon, small))
        elif port in flows.path(flow) and flows.classes[flow] <= flows.classes[target]:
            ahead = np.arange((horizon + late) // apart + 1)
            releases.append(np.maximum(ahead * apart - late, 0) - before)
        elif flow == lower:
            releases.append(np.array([-1 - before]))
        else:
            releases.append(np.empty(0, dtype=np.int64))
    return releases


def moments(flows: FlowSet, target: int, port: int, found: Bounds, draw: np.random.Generator) -> list[int]:
    """When the target's last packet may come: when packets of its class, its own or others', have just come."""
    own = flows.classes[target]
    tried = {0, int(found.spread[target, port])}
    longest = found.exact[target, port]
    for flow in range(flows.units.size):
        if port in flows.path(flow) and flows.classes[flow] == own:
            spread = found.spread[flow, port]
            apart, late = int(flows.separation[flow]), int(flows.jitter[flow])
            for message in range(int(min(4, (longest + late) // apart + 1))):
                begin = max(0, message * apart - late)
                tried |= {begin, int(begin + spread)}
    sorted_moments = sorted(
        moment for moment in tried if moment <= max(2 * longest, found.spread[target, port])
    )
    if len(sorted_moments) <= MOST_MOMENTS:
        return sorted_moments
    some = draw.choice(sorted_moments[4:], MOST_MOMENTS - 4, replace=False)
    return [*sorted_moments[:4], *(int(moment) for moment in some)]


def at_random(flows: FlowSet, found: Bounds, draw: np.random.Generator, *, together: bool) -> Releases:
    """Messages as close as they may be, all beginning at once or anywhere, delayed as the jitter lets them."""
    releases: Releases = []
    horizon = 3 * int(np.median(flows.separation))
    for flow in range(flows.units.size):
        apart, late = int(flows.separation[flow]), int(flows.jitter[flow])
        nominal = np.arange(min(400, horizon // apart + 2)) * apart
        if not together:
            nominal += int(draw.integers(0, apart))
        delays = draw.integers(0, late + 1, nominal.size)
        if draw.random() < 0.5:
            delays = late * draw.integers(0, 2, nominal.size)
        if together:
            delays[0] = late
            nominal -= late
        if flows.bucket[flow] and draw.random() < 0.5:
            begin, small = int(draw.integers(0, horizon)), int(draw.integers(1, PACKET_TICKS))
            jitter = float(found.jitter[flow, flows.enters[flow]])
            releases.append(babbled(flows, flow, jitter, begin, horizon, small))
            continue
        releases.append(np.maximum.accumulate(nominal + delays))
    return releases


def search(flows: FlowSet, found: Bounds, draw: np.random.Generator) -> tuple[Integers, Integers]:
    """The largest delays that any of the releases tried leads to, per flow and port, and per flow along its path."""
    worst, along = simulate(flows, at_random(flows, found, draw, together=True), -1)
    tries = [(at_random(flows, found, draw, together=index < 2), -1) for index in range(RANDOM_RELEASES)]
    for flow in range(flows.units.size):
        for port in flows.path(flow):
            tries += [
                (critical(flows, flow, port, moment, found, small), flow)
                for small in ((PACKET_TICKS, 64) if flows.bucket.any() else (PACKET_TICKS,))
                for moment in moments(flows, flow, port, found, draw)
                if moment + found.exact[flow, port] < np.inf
            ]
    for releases, unlucky in tries:
        seen, ended = simulate(flows, releases, unlucky)
        worst, along = np.maximum(worst, seen), np.maximum(along, ended)
    return worst, along


def judge(seed: int, *, babbling: bool = False) -> dict[str, Any]:
    """One set: what was exceeded, and how close the search came to `exact`."""
    draw = np.random.default_rng([16, seed])
    flows = random_set(draw)
    if babbling:
        flows = replace(flows, bucket=draw.random(flows.units.size) < draw.choice([0.3, 0.7, 1.0]))
    found = bounds_of(flows)
    worst, along = search(flows, found, draw)
    here = ~np.isnan(found.exact)
    windows_exceeded = 0
    if babbling:
        counted = bounds_of(replace(flows, bucket=np.zeros_like(flows.bucket)))
        windows_exceeded = int((worst[here] > counted.exact[here]).sum())
    ends = np.nansum(found.exact, axis=1)
    return {
        "messages_above_exact": int((worst[here] > found.exact[here]).sum() + (along > ends).sum()),
        "exact_above_calculus": int((found.exact[here] > found.calculus[here]).sum()),
        "paper_exceeded": int((worst[here] > found.paper[here]).sum()),
        "windows_exceeded": windows_exceeded,
        "one_port": flows.slowness.size == 1,
        # Of a flow that babbles nothing was seen; some of a set may bring more than a port can carry.
        "ratios": [
            float(ratio)
            for ratio in (found.exact / np.where(worst > 0, worst, np.nan))[here]
            if np.isfinite(ratio)
        ],
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sets", type=int, default=1000, help="how many random sets (default: %(default)s)")
    arguments = parser.parse_args()
    seeds = range(30 if arguments.quick else arguments.sets)
    judged = [judge(seed) for seed in seeds]
    beside = [judge(seed, babbling=True) for seed in seeds[:: 1 if len(seeds) <= 100 else 4]]
    buckets = np.concatenate([[], *(case["ratios"] for case in beside if case["one_port"])])
    one_port = np.concatenate([[], *(case["ratios"] for case in judged if case["one_port"])])
    several = np.concatenate([[], *(case["ratios"] for case in judged if not case["one_port"])])
    result = {
        "machine": machine("numpy", "numba"),
        "sets": len(judged),
        "messages_above_exact": sum(case["messages_above_exact"] for case in judged),
        "exact_above_calculus": sum(case["exact_above_calculus"] for case in judged),
        "sets_where_paper_is_exceeded": sum(case["paper_exceeded"] > 0 for case in judged),
        "one_port_flows": one_port.size,
        "one_port_median_over_worst_seen": float(np.median(one_port)),
        "several_ports_median_over_worst_seen": float(np.median(several)),
        "behind_buckets": {
            "sets": len(beside),
            "messages_above_exact": sum(case["messages_above_exact"] for case in beside),
            "exact_above_calculus": sum(case["exact_above_calculus"] for case in beside),
            "above_what_windows_would_do": sum(case["windows_exceeded"] > 0 for case in beside),
            "one_port_median_over_worst_seen": float(np.median(buckets)),
        },
    }
    lines = [
        f"{result['sets']} sets: {result['messages_above_exact']} delays above exact, "
        f"{result['exact_above_calculus']} bounds above calculus",
        f"exact over the worst seen, median: {result['one_port_median_over_worst_seen']:.3f} on one port "
        f"({one_port.size} flows), {result['several_ports_median_over_worst_seen']:.3f} at ports of longer paths",
        f"MIDAS eq. (4) is exceeded in {result['sets_where_paper_is_exceeded']} sets",
        f"babbling behind token buckets: {result['behind_buckets']['messages_above_exact']} delays above exact, median "
        f"{result['behind_buckets']['one_port_median_over_worst_seen']:.3f} on one port; bounds for windows are "
        f"exceeded in {result['behind_buckets']['above_what_windows_would_do']} sets",
    ]
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
