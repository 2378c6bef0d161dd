"""Closed loop beside static queue rates on the same real packets: does delay times loss fall?

`triage emulate` runs the paper's port of three queues (Shi et al., 10/30/60 Mbit/s) at a fiftieth of its bandwidth and
buffer, twice with each seed: with the queue rates as configured, and with control of them. Traffic is the same in both,
and queue 7 is offered more than its configured width. Of each run stands the mean over queues of mean delay times share
lost, as in the paper's Fig. 7. Without a model, `--control learned` is given one that has learned from simulated runs
of this port with constant and Poisson traffic. It needs root, and a machine that has little else to do.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from measuring import finish, machine, options
from triagemq.delay.learning.models import save_model
from triagemq.delay.learning.training import GRID, learning_rows, switch_constants, together
from triagemq.lab.papers.shi.network import FLOORS_BPS, QUEUES, WIDTHS_BPS, observe
from triagemq.lab.papers.shi.packets import SCALE, PacketsRun, one_port, run_packets
from triagemq.lab.queue_delay import best_of, ranges_of
from triagemq.scenario import loads
from triagemq.theory.interval import half_width

LOADS = (1.15, 0.6, 0.6)
"""Configured: 69, 18 and 6 Mbit/s of 100, times the scale: the port could carry all of it, queue 7 cannot."""
LEAST_LOST = 0.01
TRAINING_RUNS, TRAINING_SECONDS = 24, 40.0


def delay_times_loss(run: PacketsRun) -> float:
    """The mean over queues, in seconds; a queue of which nothing arrived has no delay, and counts with none."""
    return float(np.nan_to_num(run.delay_seconds * run.lost).mean())


def train(folder: Path) -> None:
    """A model for the counters of these queues: of queue rates between floors and port, with loads of all kinds."""
    rows, counters = [], "linux"
    floors, configured = np.array(FLOORS_BPS) / SCALE, np.array(WIDTHS_BPS) / SCALE
    for seed in range(TRAINING_RUNS):
        random = np.random.default_rng(1000 + seed)
        queue_rates = floors + (configured.sum() - floors.sum()) * random.dirichlet(np.ones(len(floors)))
        queue_rates[0] += configured.sum() - queue_rates.sum()
        offered = random.uniform(0.1, 1.6, len(floors)) * queue_rates
        document = one_port((offered / configured).tolist(), "poisson" if seed % 2 else "periodic")
        document["ports"]["port"]["queue_rates_bps"] = queue_rates.tolist()
        scenario = loads(yaml.safe_dump(document, sort_keys=False), "port.yaml")
        observed = observe(scenario, TRAINING_SECONDS, seed).values()
        known = switch_constants(scenario, 0)
        rows += [learning_rows(run.samples, run.next_delay_seconds, switch=known) for run in observed]
    learned = together(rows, counters)
    best, _ = best_of(learned, counters, GRID[-1:])
    about = {"rows": len(learned), "validation_seconds": best.validation_seconds}
    save_model(folder, best.trees_json, counters=counters, ranges=ranges_of(learned.features), about=about)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--control", default="backlog", help="idm, backlog or learned (default: %(default)s)")
    parser.add_argument("--delay-model", type=Path, help="the directory of the model, for learned")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--for", dest="seconds", type=float, default=12.0, help="seconds of traffic in each run"
    )
    chosen = parser.parse_args()
    seeds, seconds = (2, 6.0) if chosen.quick else (chosen.seeds, chosen.seconds)
    with tempfile.TemporaryDirectory() as folder:
        model = chosen.delay_model
        if chosen.control == "learned" and model is None:
            model = Path(folder) / "model"
            train(model)
        return compare(chosen.control, model, seeds, seconds, as_json=chosen.json)


def compare(chosen: str, delay_model: Path | None, seeds: int, seconds: float, *, as_json: bool) -> int:
    """Both with each seed; 0 if it is lower."""
    static: list[PacketsRun] = []
    controlled: list[PacketsRun] = []
    for seed in range(seeds):
        for found, control in ((static, "off"), (controlled, chosen)):
            model = delay_model if control == "learned" else None
            found.append(
                run_packets(one_port(LOADS), control=control, seconds=seconds, seed=seed, delay_model=model)
            )
        print(
            f"seed {seed}: delay times loss {1e3 * delay_times_loss(static[-1]):.3f} ms static, "
            f"{1e3 * delay_times_loss(controlled[-1]):.3f} ms controlled",
            file=sys.stderr,
            flush=True,
        )
    gained = np.array(
        [
            delay_times_loss(before) - delay_times_loss(after)
            for before, after in zip(static, controlled, strict=True)
        ]
    )
    either = float(half_width(gained))
    lost = float(np.mean([each.lost for each in static]))
    holds = bool(gained.mean() - either > 0)
    rows: list[dict[str, Any]] = [
        {
            "queue": name,
            "load": LOADS[queue],
            **{
                f"{what}_{figure}": float(np.nanmean([getattr(each, figure)[queue] for each in runs]))
                for what, runs in (("static", static), ("controlled", controlled))
                for figure in ("delay_seconds", "lost")
            },
        }
        for queue, name in enumerate(QUEUES)
    ]
    result = {
        "machine": machine("numpy"),
        "control": chosen,
        "scale": SCALE,
        "seconds": seconds,
        "seeds": seeds,
        "queues": rows,
        "static_lost": lost,
        "static_delay_times_loss_seconds": [delay_times_loss(each) for each in static],
        "controlled_delay_times_loss_seconds": [delay_times_loss(each) for each in controlled],
        "gained_seconds": float(gained.mean()),
        "gained_ci95_seconds": either,
        "lower_with_control": holds,
        "model_drifted": sum(each["kind"] == "model_drifted" for run in controlled for each in run.decisions),
        "packets_lost_by_machine": sum(each.lost_by_machine for each in (*static, *controlled)),
    }
    lines = [
        f"{seeds} seeds, {seconds:g} s each, control by {chosen}, 1/{SCALE} of the paper's port",
        *(
            f"{row['queue']}: load {row['load']:g}; static {1e3 * row['static_delay_seconds']:.1f} ms, "
            f"{100 * row['static_lost']:.2f} % lost; controlled {1e3 * row['controlled_delay_seconds']:.1f} ms, "
            f"{100 * row['controlled_lost']:.2f} % lost"
            for row in rows
        ),
        f"static loses {100 * lost:.2f} % (at least {100 * LEAST_LOST:g} % is wanted)",
        f"delay times loss: {1e3 * gained.mean():.3f} ms less with control, paired 95 % interval "
        f"+- {1e3 * either:.3f} ms: {'lower' if holds else 'NOT lower'}",
    ]
    finish(result, lines, as_json=as_json)
    return 0 if holds and lost >= LEAST_LOST else 1


if __name__ == "__main__":
    sys.exit(main())
