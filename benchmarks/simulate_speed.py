"""How fast the simulator is: the full path of Table 2, a single queue beside simpy and Ciw, a trace, and memory.

Everything is measured in one run on one machine, so that ratios mean something even when the machine is busy. The
best of several runs counts. A copy is one event on its way to one subscription; deliveries are the copies that arrive.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ciw
import simpy

from measuring import finish, machine, options, peak_memory_bytes
from triagemq.lab.generators import table2
from triagemq.plan import make_plan
from triagemq.scenario import Scenario, loads
from triagemq.simulate import simulate
from triagemq.trace import TraceWriter

CLASSES = 9
LOAD = 0.9


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--memory-of", type=int, metavar="PUBLICATIONS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(json.dumps(memory_of(arguments.memory_of)))
        return
    found = measure(arguments.quick)
    finish(found, described(found), as_json=arguments.json)


def measure(quick: bool) -> dict[str, Any]:
    tries = 3 if quick else 5
    full = best(lambda: full_path(1_000_000 if quick else 3_000_000), tries)
    queues = single_queues(quick)
    sizes = (200_000, 1_000_000, 3_000_000) if quick else (1_000_000, 10_000_000, 50_000_000)
    return {
        "machine": machine("triagemq", "numba", "numpy", "simpy", "ciw"),
        "full_path": full,
        "single_queue": queues,
        "trace": traced(500_000 if quick else 2_000_000),
        "memory": [in_own_process(size) for size in sizes],
    }


def best(run: Callable[[], dict[str, Any]], tries: int) -> dict[str, Any]:
    return max((run() for _ in range(tries)), key=lambda found: float(found["copies_per_second"]))


def full_path(publications: int) -> dict[str, Any]:
    """Table 2, ten subscribers, greedy priorities and exponential drops, statistics on, one thread."""
    scenario = table2(seed=1)
    plan = make_plan(scenario, drops="exponential")
    found = simulate(scenario, plan, publications=publications, warmup=0.0, threads=1)
    return {
        "publications": found.publications,
        "copies": found.copies,
        "deliveries": found.deliveries,
        "wall_seconds": found.wall_seconds,
        "copies_per_second": found.copies / found.wall_seconds,
        "deliveries_per_second": found.deliveries / found.wall_seconds,
    }


def single_queues(quick: bool) -> dict[str, Any]:
    """One non-preemptive priority queue of nine classes, exponential service, the same for all three."""
    rates = [LOAD / CLASSES] * CLASSES

    scenario = one_port(rates)
    plan = make_plan(scenario, drops="none")

    def ours() -> float:
        found = simulate(scenario, plan, publications=3_000_000, warmup=0.0, threads=1)
        return found.publications / found.wall_seconds

    ours()
    speeds = {
        "ours": max(ours() for _ in range(3)),
        "simpy": max(simpy_speed(rates, 20_000 if quick else 100_000) for _ in range(3)),
        "ciw": max(ciw_speed(rates, 10_000 if quick else 50_000) for _ in range(3)),
    }
    return {
        "customers_per_second": speeds,
        "times_simpy": speeds["ours"] / speeds["simpy"],
        "times_ciw": speeds["ours"] / speeds["ciw"],
    }


def one_port(rates: list[float]) -> Scenario:
    """A port that sends one mean event a second, and a topic of each class."""
    topics = [f"topic-{number}" for number in range(len(rates))]
    document = {
        "name": "one port",
        "overhead_bytes": 0,
        "planning": {"priority_classes": len(rates), "flows_per_subscriber": len(rates)},
        "brokers": {"broker": {}},
        "switches": {"switch": {}},
        "ports": {"port": {"switch": "switch", "bandwidth_bps": 8_000}},
        "publishers": {
            "publisher": {
                "publishes": {
                    topic: {"rate_per_second": rate, "size_bytes": 1_000}
                    for topic, rate in zip(topics, rates, strict=True)
                }
            }
        },
        "subscribers": {
            "subscriber": {
                "port": "port",
                "subscribes": {topic: f"log:{len(rates) - level}" for level, topic in enumerate(topics)},
            }
        },
    }
    return loads(json.dumps(document))


def simpy_speed(rates: list[float], customers: int) -> float:
    """As in simpy's own examples: a PriorityResource, a process per customer, numbers drawn on the way."""
    draw = random.Random(1)
    environment = simpy.Environment()
    server = simpy.PriorityResource(environment, capacity=1)
    waits, served = [0.0] * len(rates), [0] * len(rates)

    def customer(priority_class: int) -> Any:
        arrived = environment.now
        with server.request(priority=priority_class) as turn:
            yield turn
            waits[priority_class] += environment.now - arrived
            yield environment.timeout(draw.expovariate(1.0))
            served[priority_class] += 1

    def stream(priority_class: int) -> Any:
        while True:
            yield environment.timeout(draw.expovariate(rates[priority_class]))
            environment.process(customer(priority_class))

    for priority_class in range(len(rates)):
        environment.process(stream(priority_class))
    started = time.perf_counter()
    environment.run(until=customers / sum(rates))
    return sum(served) / (time.perf_counter() - started)


def ciw_speed(rates: list[float], customers: int) -> float:
    names = [f"class {number}" for number in range(len(rates))]
    network = ciw.create_network(
        arrival_distributions={
            name: [ciw.dists.Exponential(rate)] for name, rate in zip(names, rates, strict=True)
        },
        service_distributions={name: [ciw.dists.Exponential(1.0)] for name in names},
        number_of_servers=[1],
        priority_classes={name: number for number, name in enumerate(names)},
        routing={name: ciw.routing.NetworkRouting([ciw.routing.Leave()]) for name in names},
    )
    ciw.seed(1)
    run = ciw.Simulation(network)
    started = time.perf_counter()
    run.simulate_until_max_time(customers / sum(rates))
    records = run.get_all_records()
    return len(records) / (time.perf_counter() - started)


def traced(publications: int) -> dict[str, Any]:
    """The full path again with everything written as Parquet; the time includes the last byte."""
    scenario = table2(seed=1)
    plan = make_plan(scenario, drops="exponential")
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        writer = TraceWriter(Path(directory) / "run", scenario_text="", plan_text=None, producer="benchmark")
        with writer as trace:
            found = simulate(scenario, plan, publications=publications, warmup=0.0, sink=trace)
            trace.finish(measured_from_ns=found.measured_from_ns)
        elapsed = time.perf_counter() - started
        size = sum(file.stat().st_size for file in Path(directory).rglob("*.parquet"))
    return {
        "rows": found.copies,
        "rows_per_second": found.copies / elapsed,
        "wall_seconds": elapsed,
        "megabytes": size / 1e6,
        "peak_megabytes": peak_memory_bytes() / 1e6,
    }


def in_own_process(publications: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--memory-of", str(publications)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def memory_of(publications: int) -> dict[str, Any]:
    found = full_path(publications)
    return {
        "publications": publications,
        "peak_megabytes": peak_memory_bytes() / 1e6,
        "copies_per_second": found["copies_per_second"],
    }


def described(found: dict[str, Any]) -> list[str]:
    facts, full, queue, trace = found["machine"], found["full_path"], found["single_queue"], found["trace"]
    peers = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return [
        f"{facts['processors']} processors, Python {facts['python']}, {peers}",
        "",
        "full path, Table 2, exponential drops, one thread",
        f"  {full['copies_per_second'] / 1e6:8.2f} million copies/s",
        f"  {full['deliveries_per_second'] / 1e6:8.2f} million deliveries/s",
        "",
        "single queue, nine priority classes, load 0.9",
        *(f"  {speed:14,.0f} customers/s   {name}" for name, speed in queue["customers_per_second"].items()),
        f"  {queue['times_simpy']:.0f} times simpy, {queue['times_ciw']:.0f} times Ciw",
        "",
        "with a trace",
        f"  {trace['rows_per_second'] / 1e6:8.2f} million rows of deliveries/s, peak {trace['peak_megabytes']:.0f} MB",
        "",
        "memory",
        *(
            f"  {row['publications']:12,} publications: peak {row['peak_megabytes']:.0f} MB"
            for row in found["memory"]
        ),
    ]


if __name__ == "__main__":
    main()
