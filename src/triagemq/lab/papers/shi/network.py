"""Shi et al. (Sensors 2019), section 7: ports of 100 Mbit/s with three queues, and what is seen in a run of them.

Their queues 7, 6 and 5 are classes 0, 1 and 2 here: the lowest number is served best. Packets have 1 KB on the wire.
The buffer is not printed; the delays that are (125 ms at 60 Mbit/s, 83 ms at 88 Mbit/s) mean 0.92 MB for a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.samples import Samples
from triagemq.lab.papers.runs import RecordedRun
from triagemq.lab.queue_delay import by_queue
from triagemq.lab.simulated_control import ControlSettings, SimulatedControl
from triagemq.plan import Plan, make_plan
from triagemq.scenario import (
    ArrivalProcess,
    Brokers,
    Discipline,
    Floats,
    OutputPorts,
    PlanningSettings,
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
from triagemq.simulate import Change, simulate
from triagemq.trace import Outcome

QUEUES = ("queue 7", "queue 6", "queue 5")
PUBLISHERS = ("P0", "P1", "P2", "background")
PORT_BPS = 100_000_000
WIDTHS_BPS = (60e6, 30e6, 10e6)
FLOORS_BPS = (30e6, 10e6, 2e6)
PACKET_BYTES = 1000.0
BUFFER_PACKETS = 920.0

PARETO_SHAPE = 1.75
ON_SECONDS, OFF_SECONDS = 0.5, 0.5
"""Of on-off sources: half of the time at twice the rate."""
_OF_TRAFFIC: Mapping[ArrivalProcess, dict[str, float]] = {
    ArrivalProcess.PARETO: {"pareto_shape": PARETO_SHAPE},
    ArrivalProcess.ON_OFF: {"on_seconds": ON_SECONDS, "off_seconds": OFF_SECONDS},
}


def shi_scenario(
    rates: Sequence[float],
    traffic: ArrivalProcess = ArrivalProcess.POISSON,
    *,
    switches: int = 1,
    max_latency_seconds: Sequence[float] = (np.inf,) * len(QUEUES),
    background_rate: float = 0.0,
    port_bps: float = PORT_BPS,
    packet_bytes: float = PACKET_BYTES,
    queue_rates_bps: Sequence[float] = WIDTHS_BPS,
    buffer_packets: float = BUFFER_PACKETS,
    borrowing: bool = False,
) -> Scenario:
    """A publisher, a topic and a queue for each rate (packets per second); 0 leaves a queue idle.

    Switches are in a line, each with a port to the next, the last with one to the subscriber, which requires
    `max_latency_seconds` of each queue. `background_rate` are Poisson packets into queue 7 besides. `queue_rates_bps`
    are those of a port of PORT_BPS, and the same shares of any other.
    """
    sent = [(queue, queue, rate, traffic) for queue, rate in enumerate(rates) if rate > 0]
    if background_rate > 0:
        sent.append((len(QUEUES), 0, background_rate, ArrivalProcess.POISSON))
    publishers, topics, rate, processes = zip(*sent, strict=True)
    share = port_bps / PORT_BPS
    names = tuple(f"SW{number}" for number in range(1, switches + 1))
    return Scenario.of(
        name="shi",
        topics=Topics(QUEUES),
        brokers=filled(Brokers, 1, name=("none",)),
        switches=filled(Switches, switches, name=names, fed_by_port=range(-1, switches - 1)),
        ports=filled(
            OutputPorts,
            switches,
            name=("port",) if switches == 1 else tuple(map(str.lower, names)),
            switch=range(switches),
            bandwidth_bps=float(port_bps),
            buffer_packets=buffer_packets,
            discipline=Discipline.QUEUE_RATES,
            queue_rates_bps=(share * np.array(queue_rates_bps),) * switches,
            floors_bps=(share * np.minimum(FLOORS_BPS, queue_rates_bps),) * switches,
            borrowing=int(borrowing),
        ),
        publishers=filled(Publishers, len(PUBLISHERS), name=PUBLISHERS, broker=0),
        publications=filled(
            Publications,
            len(sent),
            publisher=publishers,
            topic=topics,
            rate_per_second=rate,
            size_bytes=packet_bytes,
            size_distribution=SizeDistribution.CONSTANT,
            arrival_process=[int(process) for process in processes],
            **_OF_TRAFFIC.get(traffic, {}),
        ),
        subscribers=filled(Subscribers, 1, name=(f"S{switches}",), broker=0, port=switches - 1),
        subscriptions=filled(
            Subscriptions,
            len(QUEUES),
            subscriber=0,
            topic=range(len(QUEUES)),
            utility_weight=(1e8, 1e4, 1.0),
            max_latency_seconds=np.asarray(max_latency_seconds, dtype=np.float64),
        ),
        overhead_bytes=0.0,
        planning=PlanningSettings(flows_per_subscriber=len(QUEUES), priority_classes=len(QUEUES)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class QueueRun:
    """One queue in one run: its counters every 200 ms; the mean delay, from coming to the last bit sent, of what left
    in the window that ends with each sample (NaN where nothing did), and of what came in the one that begins with it;
    and the share of packets that were lost."""

    samples: Samples
    delay_seconds: Floats
    next_delay_seconds: Floats
    lost: float

    @property
    def mean_delay_seconds(self) -> float:
        """Over windows in which something left; 0 if nothing ever did."""
        return float(np.nanmean(self.delay_seconds)) if np.isfinite(self.delay_seconds).any() else 0.0


def shi_plan(scenario: Scenario) -> Plan:
    """Queue 7 is class 0, and nothing is dropped on purpose."""
    return make_plan(scenario, drops="none")


def recorded(
    scenario: Scenario,
    seconds: float,
    seed: int = 0,
    control: ControlSettings | None = None,
    changes: Sequence[Change] = (),
    *,
    with_hops: bool = True,
) -> RecordedRun:
    """Simulate it, with its queues controlled if there are settings for that."""
    plan, run = shi_plan(scenario), RecordedRun(with_hops=with_hops)
    simulate(
        scenario,
        plan,
        duration_seconds=seconds,
        warmup=0.0,
        seed=seed,
        changes=changes,
        sink=run,
        threads=1,
        control=None
        if control is None
        else lambda replication: SimulatedControl(scenario, plan, control, seed + replication),
    )
    return run


def observe(
    scenario: Scenario,
    seconds: float,
    seed: int,
    control: ControlSettings | None = None,
    changes: Sequence[Change] = (),
) -> dict[int, QueueRun]:
    """Run it; what was seen of each queue."""
    run = recorded(scenario, seconds, seed, control, changes)
    hops, columns = run.table("hops"), run.table("queue_samples")
    return {
        queue: queue_run(samples, {name: values[hops["queue"] == queue] for name, values in hops.items()})
        for (_, queue), samples in by_queue(columns, "linux").items()
    }


def queue_run(samples: Samples, hops: Mapping[str, NDArray[Any]]) -> QueueRun:
    """What was seen of one queue, from its samples and the packets that passed it."""
    left = hops["outcome"] == Outcome.delivered
    enqueued, dequeued = hops["enqueued_ns"][left], hops["dequeued_ns"][left]
    taken = (dequeued - enqueued) * 1e-9
    ends = samples.sampled_ns
    return QueueRun(
        samples,
        window_means(np.searchsorted(ends, dequeued), taken, len(ends)),
        window_means(np.searchsorted(ends, enqueued, side="right") - 1, taken, len(ends)),
        float((~left).mean()) if len(left) else 0.0,
    )


def window_means(window: NDArray[np.int64], taken: Floats, windows: int) -> Floats:
    """The mean of each window; NaN where it has nothing."""
    inside = (window >= 0) & (window < windows)
    count = np.bincount(window[inside], minlength=windows)
    total = np.bincount(window[inside], taken[inside], minlength=windows)
    means: Floats = np.divide(total, count, out=np.full(windows, np.nan), where=count > 0)
    return means
