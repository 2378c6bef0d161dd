"""Shi et al. (Sensors 2019), section 7: one port of 100 Mbit/s with three queues, and one run of it.

Their queues 7, 6 and 5 are classes 0, 1 and 2 here: the lowest number is served best. Packets have 1 KB on the wire.
The buffer is not printed; the delays that are (125 ms at 60 Mbit/s, 83 ms at 88 Mbit/s) mean 0.92 MB for a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.samples import Samples, by_queue
from triagemq.plan import make_plan
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
    traffic: ArrivalProcess,
    *,
    widths_bps: Sequence[float] = WIDTHS_BPS,
    buffer_packets: float = BUFFER_PACKETS,
    borrowing: bool = False,
) -> Scenario:
    """A publisher, a topic and a queue for each rate (packets per second); 0 leaves a queue idle."""
    sends = np.flatnonzero(np.asarray(rates) > 0)
    rate = np.asarray(rates, dtype=np.float64)[sends]
    return Scenario.of(
        name="shi",
        topics=Topics(QUEUES),
        brokers=filled(Brokers, 1, name=("none",)),
        switches=filled(Switches, 1, name=("SW1",)),
        ports=filled(
            OutputPorts,
            1,
            name=("port",),
            switch=0,
            bandwidth_bps=float(PORT_BPS),
            buffer_packets=buffer_packets,
            discipline=Discipline.WIDTHS,
            widths_bps=(np.array(widths_bps),),
            floors_bps=(np.minimum(FLOORS_BPS, widths_bps),),
            borrowing=int(borrowing),
        ),
        publishers=filled(
            Publishers, len(QUEUES), name=tuple(f"P{queue}" for queue in range(len(QUEUES))), broker=0
        ),
        publications=filled(
            Publications,
            len(sends),
            publisher=sends,
            topic=sends,
            rate_per_second=rate,
            size_bytes=PACKET_BYTES,
            size_distribution=SizeDistribution.CONSTANT,
            arrival_process=int(traffic),
            **_OF_TRAFFIC.get(traffic, {}),
        ),
        subscribers=filled(Subscribers, 1, name=("S1",), broker=0, port=0),
        subscriptions=filled(
            Subscriptions, len(QUEUES), subscriber=0, topic=range(len(QUEUES)), utility_weight=(1e8, 1e4, 1.0)
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


def observe(
    scenario: Scenario, seconds: float, seed: int, changes: Sequence[Change] = ()
) -> dict[int, QueueRun]:
    """Run it; what was seen of each queue."""
    seen = _Seen()
    plan = make_plan(scenario, drops="none")
    simulate(
        scenario,
        plan,
        duration_seconds=seconds,
        warmup=0.0,
        seed=seed,
        changes=changes,
        sink=seen,
        threads=1,
    )
    hops, columns = seen.table("hops"), seen.table("queue_samples")
    return {
        queue: _queue_run(samples, {name: values[hops["queue"] == queue] for name, values in hops.items()})
        for (_, queue), samples in by_queue(columns, "linux").items()
    }


def _queue_run(samples: Samples, hops: Mapping[str, NDArray[Any]]) -> QueueRun:
    left = hops["outcome"] == Outcome.delivered
    enqueued, dequeued = hops["enqueued_ns"][left], hops["dequeued_ns"][left]
    taken = (dequeued - enqueued) * 1e-9
    ends = samples.sampled_ns
    return QueueRun(
        samples,
        _means(np.searchsorted(ends, dequeued), taken, len(ends)),
        _means(np.searchsorted(ends, enqueued, side="right") - 1, taken, len(ends)),
        float((~left).mean()) if len(left) else 0.0,
    )


def _means(window: NDArray[np.int64], taken: Floats, windows: int) -> Floats:
    """The mean of each window; NaN where it has nothing."""
    inside = (window >= 0) & (window < windows)
    count = np.bincount(window[inside], minlength=windows)
    total = np.bincount(window[inside], taken[inside], minlength=windows)
    means: Floats = np.divide(total, count, out=np.full(windows, np.nan), where=count > 0)
    return means


class _Seen:
    """A Sink that keeps hops and samples."""

    with_hops = True

    def __init__(self) -> None:
        self._parts: dict[str, list[Mapping[str, NDArray[Any]]]] = {"hops": [], "queue_samples": []}

    def hops(self, columns: Mapping[str, NDArray[Any]], /) -> None:
        self._parts["hops"].append({name: np.array(values) for name, values in columns.items()})

    def queue_samples(self, columns: Mapping[str, NDArray[Any]], /) -> None:
        self._parts["queue_samples"].append({name: np.array(values) for name, values in columns.items()})

    def publications(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...
    def deliveries(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...
    def decisions(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...

    def table(self, name: str) -> dict[str, NDArray[Any]]:
        parts = self._parts[name]
        return {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
