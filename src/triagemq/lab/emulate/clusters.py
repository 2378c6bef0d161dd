"""Clusters of brokers in a box: each a real one with its gateway, clients that are moved, looked at every second.

What is measured is what balancing itself sees, by REST, and what clients note of every event.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.client.coordinator import Coordinator
from triagemq.errors import CoordinatorError
from triagemq.lab.box import packets_lost_by_machine
from triagemq.lab.emulate.boxed import BoxedExchange, BoxedOptions, let_run
from triagemq.lab.emulate.conditions import play_conditions
from triagemq.lab.emulate.receipts import SENT, read_receipts
from triagemq.live.up.run import moved_clients, stop_publishing
from triagemq.scenario import Scenario, load_with_conditions
from triagemq.scenario.conditions import situations
from triagemq.waiting import end


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """All brokers at one moment: bits that left for subscribers in the second before, and packets that wait for them by
    subscriber."""

    at_seconds: float
    uplink_bps: Mapping[str, float]
    waiting: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, eq=False)
class BoxedClustersRun:
    """One run from its first event on. `moved` are the decisions about clients, with their times; `sent` and `receipts`
    what clients noted (see live.receipts)."""

    scenario: Scenario
    begun_ns: int
    until_ns: int
    samples: list[ClusterSample]
    moved: list[dict[str, Any]]
    sent: NDArray[np.void]
    receipts: NDArray[np.void]
    lost_by_machine: int

    def seconds(self, moments_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Since the first event."""
        return np.asarray((moments_ns - self.begun_ns) * 1e-9)


async def run_clusters(
    options: BoxedOptions,
    *,
    seconds: float,
    ended: asyncio.Event,
    on_tick: Callable[[float], None] = lambda elapsed: None,
) -> BoxedClustersRun:
    """Build, let the scenario's clients work for so long or until `ended`, and take everything down again."""
    scenario, conditions = load_with_conditions(options.scenario)
    there = situations(scenario, conditions)[0].subscriber_present
    absent = [
        name for name, present in zip(scenario.subscribers.name, there.tolist(), strict=True) if not present
    ]
    samples: list[ClusterSample] = []
    lost_before = packets_lost_by_machine()
    async with BoxedExchange(scenario, conditions, options) as rig:
        await rig.start_clients([], absent)
        begun_ns = await rig.begin_publishing(absent)
        playing = asyncio.get_running_loop().create_task(play_conditions(rig, conditions, begun_ns))
        coordinator = Coordinator(rig.coordinator)

        async def tick(elapsed: float) -> None:
            rig.require_alive()
            with contextlib.suppress(CoordinatorError):
                samples.append(_sample(await coordinator.answer("GET", "/v1/gateways"), begun_ns))
            on_tick(elapsed)

        try:
            await let_run(begun_ns, seconds, ended, tick)
            until_ns = await stop_publishing(rig, hurry=ended.is_set())
            await rig.stop("subscribers", hurry=ended.is_set())
            moved = await moved_clients(coordinator)
        finally:
            await end(playing)
            await coordinator.close()
    return BoxedClustersRun(
        scenario,
        begun_ns,
        until_ns,
        samples,
        moved,
        read_receipts(rig.sent, SENT),
        read_receipts(rig.receipts),
        packets_lost_by_machine() - lost_before,
    )


def _sample(gateways: list[dict[str, Any]], begun_ns: int) -> ClusterSample:
    return ClusterSample(
        (time.time_ns() - begun_ns) * 1e-9,
        {each["name"]: each["uplink_bps"] or 0.0 for each in gateways},
        {
            each["name"]: {queue["subscriber"]: queue["packets"] for queue in each["queues"]}
            for each in gateways
        },
    )
