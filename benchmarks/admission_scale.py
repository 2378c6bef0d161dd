"""One more promise beside 10,000 over 100 switches, and beside working out everything again."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from measuring import finish, machine, options, peak_memory_bytes
from triagemq.plan.admission.ledger import Admitted, Ledger
from triagemq.plan.admission.promises import PromiseNetwork, PromiseRequest, matching, promise_request
from triagemq.scenario import (
    Brokers,
    OutputPorts,
    Publications,
    Publishers,
    Scenario,
    SizeDistribution,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
)
from triagemq.scenario.model import filled

LIMIT_SECONDS = 0.05
TOO_SOON_SECONDS = 1e-4
CORE = 10
PORTS_PER_EDGE = 10


def network(flows: int, switches: int, seed: int, trunk_bps: float = 1e9) -> Scenario:
    """A core of switches that are all linked, and edge switches with a link to one of them and back, all of a rate, and
    ports of 100 Mb/s; one topic, one publisher and one subscriber for each flow, plugged in anywhere at the edge."""
    draw = np.random.default_rng(seed)
    edges = np.arange(CORE, switches)
    links = [(one, other) for one in range(CORE) for other in range(CORE) if one != other]
    links += [pair for edge in edges.tolist() for pair in ((edge, edge % CORE), (edge % CORE, edge))]
    outlets = np.repeat(edges, PORTS_PER_EDGE)
    names = [f"s{one:03}-s{other:03}" for one, other in links]
    names += [f"out{number:04}" for number in range(len(outlets))]
    separation = draw.choice([0.01, 0.02, 0.05, 0.1], flows)
    size = draw.integers(50, 4_000, flows).astype(np.float64)
    everyone = np.arange(flows)
    return Scenario.of(
        name=f"{flows} promises over {switches} switches",
        topics=Topics(tuple(f"topic-{number:05}" for number in range(flows))),
        brokers=filled(Brokers, 1, name=("broker",)),
        switches=filled(
            Switches,
            switches,
            name=tuple(f"s{number:03}" for number in range(switches)),
            multiplexing_seconds=5e-6,
        ),
        ports=filled(
            OutputPorts,
            len(names),
            name=tuple(names),
            switch=[one for one, _ in links] + outlets.tolist(),
            to_switch=[other for _, other in links] + [-1] * len(outlets),
            bandwidth_bps=[trunk_bps] * len(links) + [1e8] * len(outlets),
            queues=8,
        ),
        publishers=filled(
            Publishers,
            flows,
            name=tuple(f"publisher-{number:05}" for number in range(flows)),
            broker=0,
            access_switch=draw.choice(edges, flows),
            access_bps=1e8,
        ),
        publications=filled(
            Publications,
            flows,
            publisher=everyone,
            topic=everyone,
            rate_per_second=1 / separation,
            size_bytes=size,
            size_distribution=SizeDistribution.CONSTANT,
            min_separation_seconds=separation,
            max_size_bytes=size,
        ),
        subscribers=filled(
            Subscribers,
            flows,
            name=tuple(f"subscriber-{number:05}" for number in range(flows)),
            broker=0,
            port=len(links) + draw.integers(0, len(outlets), flows),
        ),
        subscriptions=filled(
            Subscriptions,
            flows,
            subscriber=everyone,
            topic=everyone,
            utility_weight=0.0,
            max_latency_seconds=draw.uniform(0.005, 0.1, flows),
            guaranteed=1,
        ),
        overhead_bytes=46.0,
        mtu_bytes=1500.0,
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--trunk-mbps", type=float, default=1000.0, help="of links between switches (default: %(default)s)"
    )
    arguments = parser.parse_args()
    wanted, switches = (1_000, 40) if arguments.quick else (10_000, 100)
    further = 200
    scenario = network(round(wanted * 1.1) + further, switches, 1, arguments.trunk_mbps * 1e6)
    publication, subscription, _ = matching(scenario)
    wishes = iter(
        found
        for key in zip(publication.tolist(), subscription.tolist(), strict=True)
        if isinstance(found := promise_request(scenario, *key), PromiseRequest)
    )
    ledger = Ledger(PromiseNetwork(scenario))
    started, asked_for = time.perf_counter(), 0
    while len(ledger.entries) < wanted:
        ledger.admit(next(wishes))
        asked_for += 1
    filled_in = time.perf_counter() - started
    seconds: dict[bool, list[float]] = {True: [], False: []}
    asking = [next(wishes) for _ in range(further)]
    # Each as it is, and once more so that it has to be refused with an offer.
    asking += [replace(wish, max_latency_seconds=TOO_SOON_SECONDS) for wish in asking]
    for wish in asking:
        began = time.perf_counter()
        decided = ledger.decide(wish)
        seconds[isinstance(decided, Admitted)].append(time.perf_counter() - began)
    began = time.perf_counter()
    bounds = {
        link: flows.bounds(ledger.network.link(link), flows.level) for link, flows in ledger.links.items()
    }
    recomputed = time.perf_counter() - began
    late = sum(int((bound > ledger.links[link].deadline).sum()) for link, bound in bounds.items())
    decisions = np.array(seconds[True] + seconds[False])
    sharing = [
        len(flows.publication) for link, flows in ledger.links.items() if ledger.network.port(link) >= 0
    ]
    result = {
        "promises": len(ledger.entries),
        "asked_for": asked_for,
        "switches": switches,
        "flows_at_a_port": {"median": float(np.median(sharing)), "most": max(sharing)},
        "levels": max(int(flows.level.max(initial=-1)) + 1 for flows in ledger.links.values()),
        "decisions": len(decisions),
        "admitted": len(seconds[True]),
        "refused": len(seconds[False]),
        "decision_seconds": {
            "median": float(np.median(decisions)),
            "p99": float(np.quantile(decisions, 0.99)),
            "most": float(decisions.max()),
        },
        "refusal_seconds_most": max(seconds[False], default=None),
        "all_bounds_again_seconds": recomputed,
        "all_decisions_again_seconds": filled_in,
        "bounds_beyond_their_deadlines": late,
        "limit_seconds": LIMIT_SECONDS,
        "peak_memory_bytes": peak_memory_bytes(),
        "machine": machine("triagemq", "numpy", "numba"),
    }
    lines = [
        f"{len(ledger.entries):,} promises over {switches} switches, {np.median(sharing):.0f} flows at a port (at most "
        f"{max(sharing)}), {late} bounds beyond their deadlines",
        f"one more decision: median {1e3 * np.median(decisions):.1f} ms, slowest of {len(decisions)} "
        f"{1e3 * decisions.max():.1f} ms, limit {1e3 * LIMIT_SECONDS:.0f}",
        f"{len(seconds[False])} of them refused with an offer: median {1e3 * np.median(seconds[False]):.1f} ms",
        f"everything again: all bounds {1e3 * recomputed:.0f} ms, all decisions {filled_in:.1f} s",
    ]
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
