"""Shi et al. Fig. 6 and 8 with real packets: the same queues of the kernel, at a fiftieth of the paper's bandwidth.

This machine sends no 100 Mbit/s of small packets while it runs broker, gateway and clients. Where delays are to be the
paper's (Fig. 6), buffers are a fiftieth, too: what fills a queue takes as long to leave it. Where packets matter
(Fig. 8: three switches, and a requirement of a few packets' transmission), buffers are the paper's and all times are
fifty times longer, the requirement included. The period of control, 200 ms, is the paper's in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from triagemq.lab.papers.experiment import (
    Claim,
    Difference,
    Effort,
    Experiment,
    Findings,
    Panel,
    PrintedTable,
    Progress,
    Series,
    duration,
    percent,
    tracked,
)
from triagemq.lab.papers.real_packets import emulated
from triagemq.lab.papers.shi.network import (
    BUFFER_PACKETS,
    FLOORS_BPS,
    PACKET_BYTES,
    PORT_BPS,
    QUEUES,
    WIDTHS_BPS,
    window_means,
)
from triagemq.scenario import Floats

SCALE = 50
"""How many times slower ports are."""
OVERHEAD_BYTES = 49
"""Of MQTT-SN, UDP, IP and Ethernet around an event."""
CONTROL = "backlog"
"""The kernel shows what a queue holds."""

CASES: Mapping[str, tuple[float, ...]] = {
    "one": (1.35, 0.0, 0.0),
    "two": (1.08, 1.06, 0.0),
    "three": (1.2, 1.2, 1.2),
}
"""The load of each queue by how many are congested, in parts of its configured width."""

REQUIREMENTS_SECONDS = (0.010, 0.060, 0.150)
IMPOSSIBLE_SECONDS = 0.0002
SURGE = 1.25
"""What queue 7 is offered from a third of the run on, in parts of its configured width: without control too much."""


@dataclass(frozen=True, slots=True, eq=False)
class PacketsRun:
    """One run: by queue the mean delay and the share lost; the delay of every packet of queue 7 and when it was
    published; the queue rates of each port's queues at each sample; and what was decided."""

    delay_seconds: Floats
    lost: Floats
    published_seconds: Floats
    each_seconds: Floats
    queue_rates_bps: dict[str, NDArray[np.int64]]
    decisions: list[dict[str, Any]]
    lost_by_machine: int


def one_port(loads: Sequence[float], arrivals: Any = "poisson", *, borrowing: bool = False) -> dict[str, Any]:
    """The paper's first set-up, as a scenario file holds it: one switch, a publisher for each queue that is loaded."""
    return _document(
        {"SW1": {}},
        {"port": _port("SW1", BUFFER_PACKETS / SCALE) | {"borrowing": borrowing}},
        _publishers(loads, arrivals),
        {"S1": {"port": "port", "subscribes": _subscribes(loads)}},
    )


def three_switches(loads: Sequence[float], seconds: float) -> dict[str, Any]:
    """P1 to S3 over three switches; queue 7 surges, and one requirement is more than any switch can meet."""
    document = _document(
        {"SW1": {}, "SW2": {"fed_by": "to-SW2"}, "SW3": {"fed_by": "to-SW3"}},
        {
            "to-SW2": _port("SW1", BUFFER_PACKETS),
            "to-SW3": _port("SW2", BUFFER_PACKETS),
            "port": _port("SW3", BUFFER_PACKETS),
        },
        _publishers(loads, "poisson"),
        {
            "S3": {
                "port": "port",
                "subscribes": _subscribes(loads, [SCALE * each for each in REQUIREMENTS_SECONDS]),
            },
            "hasty": {
                "port": "port",
                "subscribes": {
                    "rare": {"utility": "log:1e12", "max_latency_seconds": SCALE * IMPOSSIBLE_SECONDS}
                },
            },
        },
    )
    document["publishers"]["P-rare"] = {"publishes": {"rare": {"rate_per_second": 1, "size_bytes": 100}}}
    document["conditions"] = [
        {"at_seconds": seconds / 3, "topic": QUEUES[0], "rate_factor": SURGE / loads[0]},
    ]
    return document


def _document(
    switches: dict[str, Any], ports: dict[str, Any], publishers: dict[str, Any], subscribers: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": "shi",
        "overhead_bytes": OVERHEAD_BYTES,
        "planning": {"priority_classes": len(QUEUES), "flows_per_subscriber": len(QUEUES)},
        "brokers": {"B": {}},
        "switches": switches,
        "ports": ports,
        "publishers": publishers,
        "subscribers": subscribers,
    }


def _port(switch: str, buffer_packets: float) -> dict[str, Any]:
    return {
        "switch": switch,
        "bandwidth_bps": PORT_BPS / SCALE,
        "buffer_packets": round(buffer_packets),
        "discipline": "queue_rates",
        "queue_rates_bps": [width / SCALE for width in WIDTHS_BPS],
        "floors_bps": [floor / SCALE for floor in FLOORS_BPS],
    }


def _publishers(loads: Sequence[float], arrivals: Any) -> dict[str, Any]:
    return {
        f"P{name[-1]}": {
            "publishes": {
                name: {
                    "rate_per_second": load * width / SCALE / (8 * PACKET_BYTES),
                    "size_bytes": PACKET_BYTES - OVERHEAD_BYTES,
                    "sizes": "constant",
                    "arrivals": arrivals,
                }
            }
        }
        for name, load, width in zip(QUEUES, loads, WIDTHS_BPS, strict=True)
        if load > 0
    }


def _subscribes(loads: Sequence[float], max_latency_seconds: Sequence[float] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # Utilities far apart: each topic has a class of its own.
    for queue, weight in enumerate((1e8, 1e4, 1.0)):
        if loads[queue] > 0:
            found[QUEUES[queue]] = {"utility": f"log:{weight:g}"}
            if max_latency_seconds:
                found[QUEUES[queue]]["max_latency_seconds"] = max_latency_seconds[queue]
    return found


def run_packets(
    document: Mapping[str, Any],
    *,
    control: str,
    seconds: float,
    seed: int,
    delay_model: Path | None = None,
    progress: Progress = lambda share: None,
) -> PacketsRun:
    """As `triage emulate --drops none --control ...` runs it."""
    return emulated(
        yaml.safe_dump(dict(document), sort_keys=False),
        _seen,
        seconds=seconds,
        progress=progress,
        seed=seed,
        planner={"drops": "none"},
        control=control,
        delay_model=delay_model,
    )


def _seen(result: Any) -> PacketsRun:
    from triagemq.live.figures import copies_in, of_scenario
    from triagemq.trace import Trace

    scenario, trace = result.scenario, Trace.open(result.trace)
    delay, lost = np.full(len(QUEUES), np.nan), np.full(len(QUEUES), np.nan)
    for row in result.measured.classes:
        queue = row["priority_class"]
        delay[queue] = np.nan if row["mean_latency_seconds"] is None else row["mean_latency_seconds"]
        lost[queue] = 1 - row["success_rate"]
    subscription, stamp, delivered, latency_ns = copies_in(of_scenario(trace.table("deliveries"), scenario))
    topic = scenario.topics.name.index(QUEUES[0])
    mine = delivered & (scenario.subscriptions.topic[subscription] == topic)
    samples = trace.table("queue_samples", ["port_id", "queue", "sampled_ns", "width_bps"]).to_pandas()
    queue_rates = {
        name: samples[samples.port_id == number]
        .pivot(index="sampled_ns", columns="queue", values="width_bps")
        .to_numpy()
        for number, name in enumerate(scenario.ports.name)
    }
    return PacketsRun(
        delay_seconds=delay,
        lost=lost,
        published_seconds=(stamp[mine] - int(stamp.min())) * 1e-9,
        each_seconds=latency_ns[mine] * 1e-9,
        queue_rates_bps=queue_rates,
        decisions=trace.table("decisions").to_pylist(),
        lost_by_machine=result.lost_by_machine,
    )


def _figure_6(effort: Effort, progress: Progress) -> Findings:
    runs: dict[tuple[str, str], list[PacketsRun]] = {}
    plan = product(CASES, ("off", CONTROL), range(effort.seeds))
    for (case, control, seed), part in tracked(plan, progress):
        found = run_packets(
            one_port(CASES[case]),
            control=control,
            seconds=effort.seconds,
            seed=seed,
            progress=part,
        )
        runs.setdefault((case, control), []).append(found)
    delay = {key: np.mean([each.delay_seconds for each in found], axis=0) for key, found in runs.items()}
    lost = {key: np.mean([each.lost for each in found], axis=0) for key, found in runs.items()}
    queue_rates = {
        key: np.mean([each.queue_rates_bps["port"][-1] for each in found], axis=0)
        for key, found in runs.items()
    }
    rows = [(case, queue) for case, loads in CASES.items() for queue in range(len(QUEUES)) if loads[queue]]
    higher = [(case, queue) for case, queue in rows if queue < len(QUEUES) - 1]
    return Findings(
        tables=(
            PrintedTable.of(
                f"before and after adjustment, real packets at 1/{SCALE} of the bandwidth",
                rows,
                ("congested", lambda row: row[0]),
                ("queue", lambda row: QUEUES[row[1]]),
                ("delay before", lambda row: duration(delay[row[0], "off"][row[1]])),
                ("after", lambda row: duration(delay[row[0], CONTROL][row[1]])),
                ("lost before", lambda row: percent(lost[row[0], "off"][row[1]])),
                ("after ", lambda row: percent(lost[row[0], CONTROL][row[1]])),
                (
                    "width at the end",
                    lambda row: f"{queue_rates[row[0], CONTROL][row[1]] * SCALE / 1e6:.0f} Mbit/s",
                ),
                (
                    "printed",
                    lambda row: "125 to 83 ms, 60 to 88 Mbit/s" if row == ("one", 0) else "both fall",
                ),
            ),
        ),
        panels=(
            Panel(
                "share lost",
                "congested queues",
                "%",
                tuple(
                    Series.of(
                        f"{QUEUES[queue]}, {'before' if control == 'off' else 'after'}",
                        list(CASES),
                        [100 * lost[case, control][queue] for case in CASES],
                    )
                    for queue in range(len(QUEUES))
                    for control in ("off", CONTROL)
                ),
                bars=True,
            ),
        ),
        differences=(_scale_difference("buffers, too: delays are the paper's"),),
        claims=(
            Claim(
                "after adjustment less is lost in the higher queues",
                all(lost[case, CONTROL][queue] < lost[case, "off"][queue] for case, queue in higher),
                ", ".join(
                    f"{QUEUES[queue]} of {case} {percent(lost[case, 'off'][queue])} to "
                    f"{percent(lost[case, CONTROL][queue])}"
                    for case, queue in higher
                ),
            ),
            Claim(
                "and what arrives waits less",
                all(delay[case, CONTROL][queue] < delay[case, "off"][queue] for case, queue in higher),
                ", ".join(
                    f"{QUEUES[queue]} of {case} {duration(delay[case, 'off'][queue])} to "
                    f"{duration(delay[case, CONTROL][queue])}"
                    for case, queue in higher
                ),
            ),
            _floor_claim([each for found in runs.values() for each in found]),
            Claim(
                "no queue starves: what is loaded is delivered",
                all(lost[case, CONTROL][queue] < 1 for case, queue in rows),
                percent(max(lost[case, CONTROL][queue] for case, queue in rows)) + " lost at most",
            ),
        ),
        figures={
            "scale": SCALE,
            "control": CONTROL,
            "cases": [
                {
                    "congested": case,
                    "queue": QUEUES[queue],
                    "delay_seconds": [float(delay[case, control][queue]) for control in ("off", CONTROL)],
                    "lost": [float(lost[case, control][queue]) for control in ("off", CONTROL)],
                    "width_bps": float(queue_rates[case, CONTROL][queue]),
                }
                for case, queue in rows
            ],
            "lost_by_machine": sum(each.lost_by_machine for found in runs.values() for each in found),
        },
    )


def _figure_8(effort: Effort, progress: Progress) -> Findings:
    document = three_switches((0.7, 0.5, 0.5), effort.seconds)
    runs = [
        run_packets(document, control=CONTROL, seconds=effort.seconds, seed=seed, progress=part)
        for seed, part in tracked(range(effort.seeds), progress)
    ]
    required = SCALE * REQUIREMENTS_SECONDS[0]
    by_second = [_means_by_second(run) for run in runs]
    worst = max(float(np.nanmax(means)) for means in by_second)
    packet = max(float(run.each_seconds.max()) for run in runs)
    late = sum(int((run.each_seconds > required).sum()) for run in runs)
    count = sum(len(run.each_seconds) for run in runs)
    refused = [
        sum(1 for each in run.decisions if each["kind"] == "delay_refused" and "hasty" in each["subject"])
        for run in runs
    ]
    changed = [sum(1 for each in run.decisions if each["kind"] == "queue_rates") for run in runs]
    first = runs[0]
    seconds = np.arange(len(by_second[0]))
    return Findings(
        tables=(
            PrintedTable.of(
                f"P1 to S3 over three switches, real packets {SCALE} times slower, delays divided by that",
                range(len(runs)),
                ("run", str),
                ("worst second", lambda run: duration(float(np.nanmax(by_second[run])) / SCALE)),
                ("worst packet", lambda run: duration(float(runs[run].each_seconds.max()) / SCALE)),
                ("required", lambda run: duration(REQUIREMENTS_SECONDS[0])),
                ("lost", lambda run: percent(float(runs[run].lost[0]))),
                ("queue rates changed", lambda run: str(changed[run])),
            ),
        ),
        panels=(
            Panel(
                "Fig. 9: end to end, queue 7",
                "seconds",
                "ms",
                (
                    Series.of("mean of a second", seconds, 1e3 * by_second[0] / SCALE),
                    Series.of("required", seconds, [1e3 * REQUIREMENTS_SECONDS[0]] * len(seconds), "dashed"),
                ),
            ),
            Panel(
                "Fig. 10: queue rates of the first switch",
                "samples",
                "Mbit/s",
                tuple(
                    Series.of(
                        name,
                        np.arange(len(first.queue_rates_bps["to-SW2"])),
                        first.queue_rates_bps["to-SW2"][:, queue] * SCALE / 1e6,
                    )
                    for queue, name in enumerate(QUEUES)
                ),
            ),
        ),
        differences=(
            Difference(
                "end to end, for the requirement of 10 ms",
                "below 7 ms",
                f"worst second {duration(worst / SCALE)}, worst packet {duration(packet / SCALE)}, "
                f"{late} of {count:,} packets beyond it",
                f"The traffic is not printed. Ours offers queue 7 {percent(SURGE, 0)} of its configured width from a "
                "third of the run on, more than it could carry without control.",
            ),
            _scale_difference(f"so that all times are {SCALE} times longer; they are divided by that here"),
        ),
        claims=(
            Claim(
                "the requirement is held in every second of every run",
                worst <= required,
                f"worst second {duration(worst / SCALE)} of {duration(REQUIREMENTS_SECONDS[0])}",
            ),
            Claim(
                "a requirement that no switch can meet is refused",
                all(number == 1 for number in refused),
                f"{duration(IMPOSSIBLE_SECONDS)}, times {SCALE}",
            ),
            _floor_claim(runs),
        ),
        figures={
            "scale": SCALE,
            "control": CONTROL,
            "required_seconds": required,
            "worst_second_seconds": worst,
            "worst_packet_seconds": packet,
            "late_packets": late,
            "packets": count,
            "mean_seconds_by_second": [means.tolist() for means in by_second],
            "lost_by_machine": sum(run.lost_by_machine for run in runs),
        },
    )


def _means_by_second(run: PacketsRun) -> Floats:
    second = run.published_seconds.astype(np.int64)
    return window_means(second, run.each_seconds, int(second.max()) + 1)


def _floor_claim(runs: Sequence[PacketsRun]) -> Claim:
    floors, port = np.array(FLOORS_BPS) / SCALE, PORT_BPS / SCALE
    all_queue_rates = [queue_rates for run in runs for queue_rates in run.queue_rates_bps.values()]
    above = min(float((queue_rates / floors).min()) for queue_rates in all_queue_rates)
    off = max(float(np.abs(queue_rates.sum(axis=1) - port).max()) for queue_rates in all_queue_rates)
    # The kernel takes whole bytes per second, and its counters say whole bits.
    return Claim(
        "queue rates are above their floors and add up to the port at all times",
        above >= 1 - 1e-4 and off <= 8 * len(floors),
        f"{above:.3f} of a floor, sums off by {off:.0f} bit/s",
    )


def _scale_difference(how: str) -> Difference:
    return Difference(
        "what was run",
        "switches with 100 Mbit/s, delays from XGBoost",
        f"queues of the kernel with {PORT_BPS / SCALE / 1e6:g} Mbit/s, delays from what they hold",
        f"Bandwidths and rates are 1/{SCALE} of the paper's, {how}. Delays are end to end, with what this "
        "machine adds.",
    )


PACKETS_ADJUSTED = Experiment(
    f"delay and loss before and after bandwidth adjustment, real packets at 1/{SCALE} of the bandwidth",
    _figure_6,
    Effort(seeds=3, seconds=20.0),
    Effort(seeds=1, seconds=8.0),
)
PACKETS_REQUIRED = Experiment(
    f"a delay requirement over three switches, real packets {SCALE} times slower",
    _figure_8,
    Effort(seeds=3, seconds=40.0),
    Effort(seeds=1, seconds=15.0),
)
