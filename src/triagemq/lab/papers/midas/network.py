"""MIDAS's three topics (Table II) as a scenario, and one window of observation of it: best effort or managed.

Other observations, with real packets at scaled rates, are an Observed, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.lab.papers.experiment import Effort
from triagemq.lab.papers.runs import RecordedRun
from triagemq.lab.unmanaged import unmanaged_routes
from triagemq.plan import make_plan
from triagemq.scenario import (
    Brokers,
    Discipline,
    Floats,
    LimiterKind,
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
from triagemq.scenario.files.models import figures, known_models
from triagemq.scenario.model import filled
from triagemq.simulate import PromiseResults, simulate
from triagemq.trace import Outcome

TOPICS = ("T1", "T2", "T3")
PUBLISHERS = ("P1", "P2", "P3")
SEPARATION_SECONDS = (0.003, 0.003, 0.011)
MAX_LATENCY_SECONDS = (0.002, 0.003, 0.008)
MESSAGE_BYTES = (192_192.0, 96_000.0, 64_000.0)
GIGABIT_BPS = 1e9
MODEL = "pica8-p3290"

OVERHEAD_BYTES = 66.0
"""Of a frame of 1500 bytes of IP: 20 of IP, 8 of UDP, 18 of Ethernet, 20 of preamble and gap."""

BUFFER_BYTES = 4 * 2**20
SWITCH_PORTS = 52
BUFFER_FRAMES = BUFFER_BYTES // SWITCH_PORTS // 1518
"""The switch has 4 MB for its 52 ports; which share one port may take is not known, and an equal one is assumed."""


def midas_scenario(discipline: Discipline, buffer_frames: float = np.inf, *, slower: float = 1.0) -> Scenario:
    """Table II: a publisher with an access link of its own for each topic, one host that subscribes to all three.

    `slower` by a factor are all links, and so are all times longer.
    """
    separation = np.array(SEPARATION_SECONDS) * slower
    return Scenario.of(
        name="midas",
        topics=Topics(TOPICS),
        brokers=filled(Brokers, 1, name=("none",)),
        # Its limiters are token buckets, and MIDAS counts as if they were windows: it proves nothing else.
        switches=filled(
            Switches,
            1,
            name=("pica8",),
            model=(MODEL,),
            **figures(known_models()[MODEL]) | {"limiter": LimiterKind.WINDOW},
        ),
        ports=filled(
            OutputPorts,
            1,
            name=("to the subscriber",),
            switch=0,
            bandwidth_bps=GIGABIT_BPS / slower,
            queues=8,
            buffer_packets=buffer_frames,
            discipline=discipline,
        ),
        publishers=filled(
            Publishers, 3, name=PUBLISHERS, broker=0, access_switch=0, access_bps=GIGABIT_BPS / slower
        ),
        publications=filled(
            Publications,
            3,
            publisher=range(3),
            topic=range(3),
            rate_per_second=1 / separation,
            min_separation_seconds=separation,
            size_bytes=MESSAGE_BYTES,
            max_size_bytes=MESSAGE_BYTES,
            size_distribution=SizeDistribution.CONSTANT,
        ),
        subscribers=filled(Subscribers, 1, name=("A",), broker=0, port=0),
        subscriptions=filled(
            Subscriptions,
            3,
            subscriber=0,
            topic=range(3),
            utility_weight=0.0,
            max_latency_seconds=np.array(MAX_LATENCY_SECONDS) * slower,
            guaranteed=1,
        ),
        overhead_bytes=OVERHEAD_BYTES,
        planning=PlanningSettings(priority_classes=4),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """One window of observation. By topic: the share of messages lost (cut ones included) and, of those that arrived,
    the share that was late; the worst latency; and of every message when it was published and its latency."""

    lost: Floats
    late: Floats
    worst_seconds: Floats
    bound_seconds: Floats
    published_seconds: tuple[Floats, ...]
    latency_seconds: tuple[Floats, ...]

    @property
    def missed(self) -> Floats:
        """The share of all messages that was lost or late."""
        return self.lost + (1 - self.lost) * self.late


def best_effort(
    effort: Effort, seed: int, frames: float = BUFFER_FRAMES, babbling: tuple[str, ...] = ()
) -> Observed:
    """Fair queueing over frames, without limiters."""
    scenario = midas_scenario(Discipline.FAIR, float(frames))
    return _observed(scenario, effort, seed, babbling=babbling, routes=unmanaged_routes(scenario))


def managed(
    effort: Effort, seed: int, babbling: tuple[str, ...] = (), limiter: str = "bucket", together: bool = False
) -> Observed:
    """Promised by a plan; `together`: all begin at the same moment."""
    scenario = midas_scenario(Discipline.PRIORITY)
    return _observed(scenario, effort, seed, babbling=babbling, limiter=limiter, synchronised=together)


def _observed(scenario: Scenario, effort: Effort, seed: int, **options: Any) -> Observed:
    run = RecordedRun(with_hops=False)
    found: PromiseResults = simulate(
        scenario,
        make_plan(scenario),
        duration_seconds=effort.seconds,
        warmup=0.0,
        seed=seed,
        sink=run,
        **options,
    ).promises
    ended = np.maximum(found.messages - found.in_flight, 1)
    published, latency = _by_topic(run.table("deliveries"))
    return Observed(
        lost=(found.lost + found.limited) / ended,
        late=found.late / np.maximum(found.delivered, 1),
        worst_seconds=found.worst_latency_seconds,
        bound_seconds=found.bound_seconds,
        published_seconds=published,
        latency_seconds=latency,
    )


def _by_topic(deliveries: Mapping[str, NDArray[Any]]) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """When messages were published, and how long they took: NaN for those that never came."""
    names = ("topic_id", "published_ns", "delivered_ns", "outcome")
    topic, published, delivered, outcome = (deliveries[name] for name in names)
    latency = np.where(outcome == Outcome.delivered, (delivered - published) * 1e-9, np.nan)
    rows = [np.flatnonzero(topic == each)[np.argsort(published[topic == each])] for each in range(3)]
    return tuple(published[each] * 1e-9 for each in rows), tuple(latency[each] for each in rows)
