"""Shi et al. (Sensors 2019) Fig. 13 and 14 in simulation: throughput and loss of four flows, second by second.

The paper's port has 10 Gbit/s and its flows up to a million packets a second. Ours is a hundredth of that for constant
rates. The Pareto flows as printed are a few thousand packets a second, 0.4 % of that port: ours is one of which the
third is the same part as the third of the constant ones. All are in queue 7; for the fourth, queue rates are adjusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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
    percent,
    tracked,
)
from triagemq.lab.papers.shi.adjustment import ADJUSTED
from triagemq.lab.papers.shi.network import (
    PARETO_SHAPE,
    PORT_BPS,
    QUEUES,
    recorded,
    shi_scenario,
)
from triagemq.lab.queue_delay import by_queue
from triagemq.scenario import ArrivalProcess, Floats

PACKET_BYTES = 1024.0
FLOWS = ("no congestion", "mild", "severe", "severe, adjusted")
CONSTANT_RATES = (1_000.0, 2_000.0, 10_000.0, 10_000.0)
"""A hundredth of the paper's."""

PARETO_RATES = tuple((PARETO_SHAPE - 1) / PARETO_SHAPE / scale for scale in (0.01, 0.001, 0.0001, 0.0001))
"""Packets a second at the printed scales; the mean interval is scale * shape / (shape - 1)."""

PARETO_PORT_BPS = float(round(PORT_BPS * PARETO_RATES[2] / CONSTANT_RATES[2]))


@dataclass(frozen=True, slots=True, eq=False)
class FlowSeconds:
    """By second: bits that left, and the share of what came that was dropped."""

    throughput_bps: Floats
    lost: Floats

    @property
    def mean_lost(self) -> float:
        return float(self.lost.mean())


MEASURES: tuple[tuple[str, Callable[[FlowSeconds], Floats]], ...] = (
    ("throughput, Mbit/s", lambda flow: flow.throughput_bps / 1e6),
    ("share lost", lambda flow: flow.lost),
)


def _flow(
    traffic: ArrivalProcess, rate: float, port_bps: float, seconds: float, *, adjusted: bool
) -> FlowSeconds:
    scenario = shi_scenario([rate, 0, 0], traffic, port_bps=port_bps, packet_bytes=PACKET_BYTES)
    seen = recorded(scenario, seconds, control=ADJUSTED if adjusted else None, with_hops=False)
    samples = by_queue(seen.table("queue_samples"), "linux")[0, 0].take(slice(4, None, 5))
    came, dropped = np.diff(samples.packets_in), np.diff(samples.drops)
    return FlowSeconds(8.0 * np.diff(samples.bytes_out), dropped / np.maximum(came, 1))


def _findings(
    traffic: ArrivalProcess,
    rates: Sequence[float],
    port_bps: float,
    printed_peak: str,
    printed_least: str,
    effort: Effort,
    progress: Progress,
) -> Findings:
    flows = [
        _flow(traffic, rate, port_bps, effort.seconds, adjusted=name == FLOWS[-1])
        for (name, rate), _ in tracked(zip(FLOWS, rates, strict=True), progress)
    ]
    severe, adjusted = flows[2], flows[3]
    printed = ("none", "below 8 %", printed_peak, "gone")
    return Findings(
        tables=(
            PrintedTable.of(
                f"{QUEUES[0]} of a port of {port_bps / 1e6:.4g} Mbit/s, seconds of {effort.seconds:g} s",
                range(len(FLOWS)),
                ("flow", lambda flow: FLOWS[flow]),
                ("packets/s", lambda flow: f"{rates[flow]:,.0f}"),
                ("throughput, Mbit/s", lambda flow: f"{flows[flow].throughput_bps.mean() / 1e6:.2f}"),
                ("least second", lambda flow: f"{flows[flow].throughput_bps.min() / 1e6:.2f}"),
                ("lost", lambda flow: percent(flows[flow].mean_lost)),
                ("worst second", lambda flow: percent(float(flows[flow].lost.max()))),
                ("printed", lambda flow: printed[flow]),
            ),
        ),
        panels=tuple(
            Panel(
                what,
                "s",
                what,
                tuple(
                    Series.of(name, np.arange(len(value(flow))).tolist(), value(flow))
                    for name, flow in zip(FLOWS, flows, strict=True)
                ),
            )
            for what, value in MEASURES
        ),
        differences=(
            Difference(
                "scale",
                "10 Gbit/s, then no limit (about 20)",
                f"{port_bps / 1e6:.4g} Mbit/s; the fourth flow on the same port with queue rates that are adjusted",
                "A million packets a second are 8.2 Gbit/s: a limit of 10 Gbit/s does not explain the loss, and "
                "without it there is nothing left to adjust. A queue with 60 % of the port does explain it.",
            ),
            Difference(
                "loss of the third flow",
                printed_peak,
                f"{percent(severe.mean_lost)} on average, {percent(float(severe.lost.max()))} in the worst second",
                "Ours is what comes beyond the width once the buffer is full. The paper's hosts generate, switch and "
                "receive a million packets a second on one machine, and lose some of them on their own.",
            ),
            Difference(
                "throughput of the third flow in its worst second",
                printed_least,
                f"{severe.throughput_bps.min() / 1e6:.2f} Mbit/s of a port of {port_bps / 1e6:.4g}; adjusted "
                f"{adjusted.throughput_bps.min() / 1e6:.2f}",
                "A queue that is offered more than its width sends its width in every second. A throughput "
                "near 0 with that load is not what a port does; the paper gives no reason.",
            ),
            Difference(
                "loss of the second flow",
                "a little, below 8 %",
                f"{percent(float(flows[1].lost.max()))} in the worst second",
                f"It is {rates[1] / rates[2]:.0%} of the third flow, and fits its queue several times. The paper does "
                "not say where its packets are lost.",
            ),
        ),
        claims=(
            Claim(
                "the third flow loses packets; adjusted it loses less, and its throughput is larger",
                severe.mean_lost > 0
                and adjusted.mean_lost < 0.5 * severe.mean_lost
                and bool(adjusted.throughput_bps.mean() > severe.throughput_bps.mean()),
                f"from {percent(severe.mean_lost)} to {percent(adjusted.mean_lost)}",
            ),
            Claim(
                "the first two flows lose less than 8 % in any second",
                max(float(flow.lost.max()) for flow in flows[:2]) < 0.08,
                percent(max(float(flow.lost.max()) for flow in flows[:2])),
            ),
        ),
        figures={
            name: {"throughput_bps": flow.throughput_bps.tolist(), "lost": flow.lost.tolist()}
            for name, flow in zip(FLOWS, flows, strict=True)
        },
    )


def _figure_13(effort: Effort, progress: Progress) -> Findings:
    return _findings(
        ArrivalProcess.PERIODIC, CONSTANT_RATES, PORT_BPS, "up to 54.9 %", "low", effort, progress
    )


def _figure_14(effort: Effort, progress: Progress) -> Findings:
    return _findings(
        ArrivalProcess.PARETO, PARETO_RATES, PARETO_PORT_BPS, "up to 66.2 %", "17.54 Mbit/s", effort, progress
    )


SHI_CONSTANT_RATES = Experiment(
    "throughput and loss of four constant flows", _figure_13, Effort(seconds=200.0), Effort(seconds=12.0)
)
SHI_PARETO = Experiment(
    "throughput and loss of four Pareto flows", _figure_14, Effort(seconds=200.0), Effort(seconds=12.0)
)
