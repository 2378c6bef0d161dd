"""Shi et al. Fig. 5 with real packets: estimators and the time that each packet took in its queue by the kernel.

The port is that of Fig. 6 with real packets: a fiftieth of the paper's bandwidth and buffer. Models have learned from
simulated runs of such ports. Counters are the kernel's; read errors are put into them as in simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from triagemq.lab.papers.experiment import Difference, Effort, Experiment, Findings, Progress, part_of
from triagemq.lab.papers.real_packets import emulated
from triagemq.lab.papers.shi.estimators import compared, findings_of
from triagemq.lab.papers.shi.learning import learned_models
from triagemq.lab.papers.shi.network import (
    BUFFER_PACKETS,
    OFF_SECONDS,
    ON_SECONDS,
    PARETO_SHAPE,
    QueueRun,
    queue_run,
)
from triagemq.lab.papers.shi.packets import SCALE, one_port
from triagemq.scenario import ArrivalProcess

_ARRIVALS = {
    ArrivalProcess.PARETO: {"process": "pareto", "shape": PARETO_SHAPE},
    ArrivalProcess.ON_OFF: {"process": "on_off", "on_seconds": ON_SECONDS, "off_seconds": OFF_SECONDS},
}


def _run(
    traffic: ArrivalProcess, borrowing: bool, loads: Sequence[float], seconds: float, seed: int
) -> dict[int, QueueRun]:
    document = one_port(loads, _ARRIVALS[traffic], borrowing=borrowing)
    return emulated(
        yaml.safe_dump(document, sort_keys=False),
        _queues,
        seconds=seconds,
        progress=lambda share: None,
        seed=seed,
        planner={"drops": "none"},
    )


def _queues(result: Any) -> dict[int, QueueRun]:
    """What the trace of a run says of each queue of its only port."""
    from triagemq.lab.queue_delay import of_trace
    from triagemq.trace import Outcome, Trace

    trace = Trace.open(result.trace)
    hops = trace.table("hops", ["queue", "enqueued_ns", "dequeued_ns"]).to_pandas()
    hops["outcome"] = int(Outcome.delivered)
    return {
        queue: queue_run(
            samples, {name: values.to_numpy() for name, values in hops[hops.queue == queue].items()}
        )
        for (_, queue), samples in of_trace(trace, "linux").items()
        if (hops.queue == queue).any()
    }


def _figure_5(effort: Effort, progress: Progress) -> Findings:
    learning = Effort(seeds=2 * effort.seeds, seconds=2 * effort.seconds)
    models = learned_models(learning, part_of(progress, 0, 2), scale=SCALE)
    found = compared(models, _run, effort, part_of(progress, 1, 2), round(BUFFER_PACKETS / SCALE))
    return findings_of(
        found,
        models,
        Difference(
            "what was run",
            "a switch with 100 Mbit/s",
            f"queues of the kernel with 1/{SCALE} of its bandwidth and buffer",
            "The truth is the kernel's: from when a packet is put into its queue until its last bit has left. The "
            "kernel counts a packet as gone when its transmission begins, simulation when it ends: what was learned "
            "there is off by a part of a packet here, and a packet takes 7 to 40 ms.",
        ),
    )


PACKETS_ESTIMATED = Experiment(
    f"estimates of queueing delay against the kernel's times of real packets, at 1/{SCALE} of the bandwidth",
    _figure_5,
    Effort(seeds=1, seconds=30.0),
    Effort(seeds=1, seconds=6.0),
)
