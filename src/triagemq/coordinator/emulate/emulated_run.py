"""One run of a scenario in a box, from the first namespace to the figures: measured, simulated, forecast."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triagemq.coordinator.control import PlannerSettings, decide
from triagemq.coordinator.control import Situation as ToDecide
from triagemq.coordinator.emulate.merging import merge_trace
from triagemq.coordinator.emulate.rig import Rig, RigOptions
from triagemq.coordinator.up.comparison import Promise, promise
from triagemq.coordinator.up.measured import Measured, measure
from triagemq.network.emulated import play
from triagemq.plan import dump_plan
from triagemq.scenario import Floats, Scenario, load, port_paths
from triagemq.scenario.conditions import Conditions, load_conditions
from triagemq.scenario.situations import Situation, situations
from triagemq.simulate import Change, SimulationResult, simulate
from triagemq.trace import Trace

__all__ = ["EmulationResult", "run_emulation"]

_WARM_UP_SHARE = 0.1
_LONGEST_WARM_UP_SECONDS = 5.0
_MOST_DRAINING_SECONDS = 15.0
_TICK_SECONDS = 1.0

OnTick = Callable[[Rig, float], None]


@dataclass(frozen=True, slots=True)
class EmulationResult:
    """The same classes three times. Latencies of real packets have their own transmission added where it is missing."""

    scenario: Scenario
    measured: Measured
    simulated: SimulationResult
    forecast: Promise
    trace: Path

    def as_json(self) -> dict[str, Any]:
        """What was measured with the keys of `triage simulate --json`, and beside it the other two."""
        simulated = self.simulated.as_json()
        del simulated["subscriptions"]
        return {
            "scenario": self.scenario.name,
            **self.measured.as_json(),
            "simulated": simulated,
            "forecast": self.forecast.figures,
            "trace": str(self.trace),
        }


async def run_emulation(
    options: RigOptions,
    *,
    seconds: float,
    ended: asyncio.Event,
    trace: Path | None = None,
    on_ready: Callable[[Rig], None] = lambda rig: None,
    on_tick: OnTick = lambda rig, elapsed: None,
) -> EmulationResult:
    """Build, run for so long or until `ended`, take everything down again, and compare."""
    scenario, conditions = load(options.file), load_conditions(options.file)
    settings = PlannerSettings(**options.planner, priority_classes=options.classes)
    if options.no_triage:
        settings = PlannerSettings.no_triage()
    expected = promise(scenario, settings, settings)
    start = situations(scenario, conditions)[0]
    async with Rig(scenario, conditions, options) as rig:
        on_ready(rig)
        begun_ns = await rig.start_clients(
            [
                name
                for name, works in zip(scenario.publishers.name, start.publisher_works, strict=True)
                if not works
            ],
            [
                name
                for name, there in zip(scenario.subscribers.name, start.subscriber_present, strict=True)
                if not there
            ],
        )
        await rig.in_force()
        playing = asyncio.get_running_loop().create_task(_play(rig, conditions, begun_ns))
        try:
            await _let_run(rig, begun_ns, seconds, ended, on_tick)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
        until_ns = time.time_ns()
        await rig.stop("publishers")
        await _drained(rig)
        await rig.stop("subscribers")
        if rig.plane is not None:
            rig.samples.append((time.time_ns(), rig.plane.counters()))
    lasted = max(0.0, (until_ns - begun_ns) * 1e-9)
    warm_up = min(_LONGEST_WARM_UP_SECONDS, _WARM_UP_SHARE * lasted)
    from_ns = begun_ns + round(warm_up * 1e9)
    where = (trace or rig.state / "trace").absolute()
    merge_trace(
        rig.state / "gateway-trace",
        rig.receipts,
        rig.samples,
        scenario,
        where,
        scenario_text=options.file.read_text(encoding="utf-8"),
        plan_text=dump_plan(expected.plan),
        measured_from_ns=from_ns,
        behind_gateway=options.dataplane != "embedded",
    )
    measured = measure(
        where,
        scenario,
        from_ns=from_ns,
        until_ns=until_ns,
        planned=expected.level,
        seconds_per_byte=None if options.dataplane == "embedded" else _seconds_per_byte(scenario),
    )
    simulated = simulate(
        scenario,
        expected.plan,
        # The very publications of the box; and as there, what waits at the end still arrives.
        replay=_recorded(where, scenario, begun_ns),
        warmup=_WARM_UP_SHARE,
        seed=options.seed,
        replications=8,
        changes=_changes(scenario, conditions, settings, lasted),
    )
    return EmulationResult(scenario, measured, simulated, expected, where)


async def _let_run(rig: Rig, begun_ns: int, seconds: float, ended: asyncio.Event, on_tick: OnTick) -> None:
    while not ended.is_set():
        elapsed = (time.time_ns() - begun_ns) * 1e-9
        if elapsed >= seconds:
            return
        on_tick(rig, elapsed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds - elapsed, _TICK_SECONDS)):
                await ended.wait()


async def _drained(rig: Rig) -> None:
    """Wait until the queues are empty."""
    deadline = time.monotonic() + _MOST_DRAINING_SECONDS
    await asyncio.sleep(0.5)
    while rig.waiting_packets() and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    await asyncio.sleep(0.2)


def _recorded(trace: Path, scenario: Scenario, begun_ns: int) -> dict[str, Any]:
    """What was published, for the simulator. Who published it the gateway cannot know; any publisher of the topic does."""
    table = Trace.open(trace).table("publications", ["published_ns", "topic_id", "size_bytes"])
    published_ns, topic, size_bytes = (table[name].to_numpy() for name in table.column_names)
    first = np.full(len(scenario.topics) + 1, -1, dtype=np.int64)
    first[scenario.publications.topic[::-1]] = np.arange(len(scenario.publications))[::-1]
    publication = first[np.clip(topic, -1, len(scenario.topics))]
    order = np.argsort(published_ns, kind="stable")
    order = order[(publication[order] >= 0) & (published_ns[order] >= begun_ns)]
    return {
        "published_ns": published_ns[order] - begun_ns,
        "publication": publication[order],
        "size_bytes": size_bytes[order],
    }


def _seconds_per_byte(scenario: Scenario) -> Floats:
    """Of each subscription: what the ports on its way need for a byte. The kernel sends a packet before that time."""
    cost = np.append(8.0 / scenario.ports.bandwidth_bps, 0.0)
    return np.asarray(
        cost[port_paths(scenario)[scenario.subscribers.port[scenario.subscriptions.subscriber]]].sum(axis=1)
    )


def _changes(
    scenario: Scenario, conditions: Conditions, settings: PlannerSettings, lasted: float
) -> tuple[Change, ...]:
    """The conditions as the simulator takes them, with the plan that each of them calls for."""
    changes = []
    for situation in situations(scenario, conditions):
        if not conditions.timeline or situation.at_seconds >= lasted:
            continue
        plan = decide(ToDecide(situation.network(scenario), settings=settings)).plan
        changes.append(
            Change(
                at_seconds=situation.at_seconds,
                plan=replace(plan, scenario_fingerprint=scenario.fingerprint),
                active_subscriptions=situation.active_subscriptions(scenario),
                bandwidth_bps=situation.bandwidth_bps,
            )
        )
    return tuple(changes)


class _Actors:
    """Brings about in the rig what the conditions ask for; the coordinator hears what it has to know."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def set_publisher(self, name: str, *, works: bool) -> None:
        self._rig.tell_publisher(name, works=works)

    async def set_subscriber(self, name: str, *, present: bool) -> None:
        self._rig.tell_subscriber(name, present=present)

    async def set_bandwidth(self, port: str, bandwidth_bps: float) -> None:
        self._rig.set_bandwidth(port, bandwidth_bps)
        await asyncio.to_thread(_put, f"{self._rig.rest}/v1/ports/{port}", {"bandwidth_bps": bandwidth_bps})

    async def situation_changed(self, situation: Situation) -> None:
        """The coordinator has been told, or notices by itself."""


def _put(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=10):
        pass


async def _play(rig: Rig, conditions: Conditions, begun_ns: int) -> None:
    async def sleep_until(seconds: float) -> None:
        await asyncio.sleep(max(0.0, begun_ns * 1e-9 + seconds - time.time()))

    if conditions.timeline:
        await play(rig.scenario, conditions, _Actors(rig), rig.box, sleep_until=sleep_until)
