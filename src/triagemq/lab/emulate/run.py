"""One run of a scenario in a box, from the first namespace to the figures: measured, simulated, forecast."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.decide import Question, decide
from triagemq.errors import NetworkError, OutputError
from triagemq.lab.box import packets_lost_by_machine
from triagemq.lab.emulate.boxed import BoxedExchange, BoxedOptions, let_run
from triagemq.lab.emulate.conditions import play_conditions
from triagemq.lab.emulate.merging import Present, merge_trace
from triagemq.lab.emulate.promises import MeasuredPromise, PromisedRun, cut_packets, promised_run
from triagemq.lab.emulate.wire import Transmission, wire_bytes
from triagemq.lab.recordings import recording
from triagemq.live.figures import LiveFigures, measure
from triagemq.live.rig import planner_settings
from triagemq.live.up.run import (
    PlannedFigures,
    as_sent,
    expected_figures,
    measured_from,
    stop_publishing,
)
from triagemq.plain import plain
from triagemq.plan import dump_plan
from triagemq.scenario import Floats, Scenario, dumps, load_with_conditions, port_paths
from triagemq.scenario.conditions import Conditions, Situation, situations
from triagemq.simulate import SimulationResult, simulate
from triagemq.simulate.changes import condition_changes
from triagemq.simulate.replay import recorded_publications
from triagemq.trace import add_forecast

_REPLICATIONS = 8
"""They differ in the order in which copies of one event and class leave, and in what the scenario's queues before the
ports draw: what was dropped and lost is the same in all."""

OnTick = Callable[[BoxedExchange, float], None]
Meanwhile = Callable[[BoxedExchange], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class EmulationResult:
    """The same classes three times. Latencies of real packets have their own transmission added where it is missing.

    `simulated` is None for a run that the user has ended: simulating it would take longer than he wants to wait. Others
    may do without, too.
    `promised` is what became of promised messages. `lost_by_machine` are packets for which the kernel had no room
    between links, of this box or of another: no network lost them.
    """

    scenario: Scenario
    measured: LiveFigures
    simulated: SimulationResult | None
    forecast: PlannedFigures
    trace: Path
    promised: PromisedRun
    lost_by_machine: int

    def as_json(self) -> dict[str, Any]:
        """What was measured with the keys of `triage simulate --json`, and the other two."""
        simulated = None if self.simulated is None else self.simulated.as_json()
        if simulated is not None:
            del simulated["subscriptions"]
        return {
            "scenario": self.scenario.name,
            **self.measured.as_json(),
            "promises": self.promise_rows,
            "decisions": [asdict(each) for each in self.promised.decisions],
            **self.promised.as_json(),
            "simulated": simulated,
            "forecast": self.forecast.figures,
            "packets_lost_by_machine": self.lost_by_machine,
            "trace": str(self.trace),
        }

    @property
    def promise_rows(self) -> list[dict[str, Any]]:
        """One row per promise, with the keys that a simulation's have."""
        table = self.promised.results
        columns = {name: list(getattr(table, name)) for name in (each.name for each in fields(table))}
        return [plain(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


async def run_emulation(
    options: BoxedOptions,
    *,
    seconds: float,
    ended: asyncio.Event,
    trace: Path | None = None,
    on_ready: Callable[[BoxedExchange], None] = lambda rig: None,
    on_tick: OnTick = lambda rig, elapsed: None,
    meanwhile: Meanwhile | None = None,
    compared: bool = True,
) -> EmulationResult:
    """Build, run for so long or until `ended`, take everything down again, and compare with a simulation of it. What
    happens `meanwhile` begins with the first event, and is given up at the end."""
    scenario, conditions = load_with_conditions(options.scenario)
    where = (trace or options.state / "trace").absolute()
    if where.is_dir() and any(where.iterdir()):
        raise OutputError(f"{where}: exists and is not empty; choose another directory or remove it")
    if options.replay is not None:
        recorded_publications(options.replay, scenario)
    course = situations(scenario, conditions)
    settings, _ = planner_settings(options)
    expected = expected_figures(scenario, settings, settings)
    lost_before = packets_lost_by_machine()
    if len(scenario.brokers) != 1:
        raise NetworkError(
            f"a box has one broker; {scenario.name!r} has {len(scenario.brokers)}: run it with `triage up`"
        )
    async with BoxedExchange(scenario, conditions, options) as rig:
        on_ready(rig)
        absent = _absent(scenario.subscribers.name, course[0].subscriber_present)
        await rig.start_clients(_absent(scenario.publishers.name, course[0].publisher_works), absent)
        begun_ns = await rig.begin_publishing(absent)
        playing = asyncio.get_running_loop().create_task(_play(rig, conditions, begun_ns, meanwhile))

        async def tick(elapsed: float) -> None:
            rig.require_alive()
            on_tick(rig, elapsed)

        try:
            await let_run(begun_ns, seconds, ended, tick)
        finally:
            if not playing.cancel():
                playing.result()
            await asyncio.gather(playing, return_exceptions=True)
        hurry = ended.is_set()
        until_ns = await stop_publishing(rig, hurry=hurry)
        await rig.stop("subscribers", hurry=hurry)
        rig.sample()
    lost_by_machine = packets_lost_by_machine() - lost_before
    from_ns = measured_from(begun_ns, until_ns)
    promised = promised_run(
        scenario,
        rig.promised.intervals,
        rig.promised_sent,
        rig.promised_receipts,
        cut_packets(rig.samples, rig.limited),
    )
    merge_trace(
        rig.state / "gateway-trace",
        rig.sent,
        rig.receipts,
        rig.samples,
        _lost(rig),
        scenario,
        where,
        scenario_text=options.scenario.read_text(encoding="utf-8")
        if options.scenario.is_file()
        else dumps(scenario),
        plan_text=dump_plan(expected.plan),
        measured_from_ns=from_ns,
        behind_gateway=options.dataplane != "embedded",
        present=_present(scenario, begun_ns, course),
        promised=promised,
        passed=np.concatenate(rig.passed) if rig.passed else None,
        times_missed=rig.times_missed,
        addresses=[rig.layout.subscribers[name].ipv4 for name in scenario.subscribers.name],
    )
    if not conditions.timeline:
        add_forecast(where, expected.stored(scenario).dump())
    measured = measure(
        where,
        scenario,
        from_ns=from_ns,
        until_ns=until_ns,
        planned=expected.level,
        weights=_worth(begun_ns, course),
        wire_seconds=None
        if options.dataplane == "embedded"
        else _transmission(
            scenario,
            [(begun_ns + round(each.at_seconds * 1e9), each.carried_bps(scenario)) for each in course],
            [each.promise for each in rig.promised.intervals],
        ).seconds,
    )
    if not measured.publications:
        raise NetworkError("the run ended before anything was published; let it run for longer")
    if hurry or not compared:
        return EmulationResult(scenario, measured, None, expected, where, promised, lost_by_machine)
    happened = recording(where, scenario, from_ns=begun_ns)
    sent = happened.publications
    if options.dataplane != "embedded":
        direct = np.isin(sent["publication"], [each.promise.publication for each in rig.promised.intervals])
        taken = as_long_as_packets(scenario, sent["size_bytes"])
        sent = sent | {"size_bytes": np.where(direct, sent["size_bytes"], taken)}
    model, plan = as_sent(_behind_hosts(scenario), expected.plan)
    simulated = simulate(
        model,
        plan,
        # The very publications of the box, and the same copies dropped and lost; and as there, what waits at the end
        # still arrives, and counts.
        replay=sent,
        losses=happened.losses,
        late_counts=True,
        warmup=min(0.99, (from_ns - begun_ns) / max(1, int(sent["under_way_ns"][-1]))),
        seed=options.seed,
        replications=_REPLICATIONS,
        changes=condition_changes(
            model,
            conditions,
            lambda network: decide(Question(network, settings=settings)).plan,
            until_seconds=max(0.0, (until_ns - begun_ns) * 1e-9),
            with_rates=False,
        ),
    )
    return EmulationResult(scenario, measured, simulated, expected, where, promised, lost_by_machine)


async def _play(
    rig: BoxedExchange, conditions: Conditions, begun_ns: int, meanwhile: Meanwhile | None
) -> None:
    await play_conditions(rig, conditions, begun_ns)
    if meanwhile is not None:
        await meanwhile(rig)


def _lost(rig: BoxedExchange) -> set[tuple[int, int]]:
    """The copies that links behind the gateway lost: subscriber, and the time that the event carries."""
    row = {rig.layout.subscribers[name].ipv4: row for row, name in enumerate(rig.scenario.subscribers.name)}
    return {(row[address], published_ns) for address, published_ns in rig.lost if address in row}


def _absent(names: Sequence[str], there: NDArray[np.bool_]) -> list[str]:
    return [name for name, present in zip(names, there, strict=True) if not present]


def _behind_hosts(scenario: Scenario) -> Scenario:
    """A scenario as its box is from where the gateway sends: no switch is before publishers, links have no length."""
    publishers, ports, subscribers = scenario.publishers, scenario.ports, scenario.subscribers
    return replace(
        scenario,
        publishers=replace(
            publishers,
            unmanaged_switch=np.full_like(publishers.unmanaged_switch, -1),
            propagation_seconds=np.zeros(len(publishers)),
        ),
        ports=replace(ports, propagation_seconds=np.zeros(len(ports))),
        subscribers=replace(subscribers, propagation_seconds=np.zeros(len(subscribers))),
    )


def as_long_as_packets(scenario: Scenario, size_bytes: NDArray[np.int64]) -> Floats:
    """How long events are that take, with the overhead and the MTU of a scenario, what real ones take of a port.

    A scenario has one overhead for all packets; a short message has two octets less, and fragments after the first have
    neither UDP nor MQTT-SN. It is little, but near overload a queue grows by much more than that.
    """
    taken = wire_bytes(size_bytes)
    packets = np.maximum(1.0, np.ceil(taken / scenario.mtu_bytes))
    return np.asarray(np.maximum(0.0, taken - packets * scenario.overhead_bytes))


def _worth(begun_ns: int, course: Sequence[Situation]) -> list[tuple[int, Floats]]:
    """What subscriptions are worth from each time on at which that changes."""
    found: list[tuple[int, Floats]] = []
    for each in course:
        if not found or (each.utility_weight != found[-1][1]).any():
            found.append((begun_ns + round(each.at_seconds * 1e9), each.utility_weight))
    return found


def _present(scenario: Scenario, begun_ns: int, course: Sequence[Situation]) -> Present:
    """Which subscriptions were there at a time, by the conditions."""
    since_ns = [begun_ns + round(each.at_seconds * 1e9) for each in course]
    there = [each.subscriber_present[scenario.subscriptions.subscriber] for each in course]
    return lambda at_ns: there[max(0, bisect_right(since_ns, at_ns) - 1)]


def _transmission(
    scenario: Scenario, queue_rates: Sequence[tuple[int, Floats]], promises: Sequence[MeasuredPromise]
) -> Transmission:
    """What the ports on the path of each subscription need for a byte, from each time on; of promised messages their
    access link, too."""
    paths = port_paths(scenario)[scenario.subscribers.port[scenario.subscriptions.subscriber]]
    found = np.stack([np.append(8.0 / bps, 0.0)[paths].sum(axis=1) for _, bps in queue_rates])
    for each in promises:
        access = scenario.publishers.access_bps[scenario.publications.publisher[each.publication]]
        for number, (_, bps) in enumerate(queue_rates):
            found[number, each.subscription] = (8.0 / bps)[list(each.ports)].sum() + 8.0 / access
    return Transmission(since_ns=np.array([since_ns for since_ns, _ in queue_rates]), seconds_per_byte=found)
