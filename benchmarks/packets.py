"""Real packets beside simulation: random small scenarios through the kernel's queues, class by class.

`triage emulate` sends a scenario's events as packets and simulates the very events that were sent, under the same plan,
with the same copies dropped and lost. A class agrees when its mean latency is within a tenth of the simulated one and
the 95 % interval of that mean; its success stands beside that of the forecast, which knows nothing of the run. Scenario
N is always the same one; `--seed N --scenarios 1` shows it again, and `--keep DIRECTORY` keeps its file and its trace.
It needs root, and a machine that has little else to do: hosts that share a busy processor are slow to send and receive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from fidelity_families import Document, basic, load_ports, publications
from measuring import finish, machine, options

ALLOWED = 0.1
"""Of the simulated mean, beside the interval."""
KINDS = ("plain", "drops", "loss", "drops and loss")
HEADER_BYTES = 49
"""Ethernet, IP, UDP and MQTT-SN before an event: what a packet takes of a port beside its payload."""
FEWEST_SECONDS = 5.0


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--scenarios", type=int, default=10, help="how many (10)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first scenario (0)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic in each (60)")
    parser.add_argument("--keep", type=Path, help="directory for scenario files and traces")
    arguments = parser.parse_args()
    scenarios, seconds = (2, 15.0) if arguments.quick else (arguments.scenarios, arguments.seconds)
    seeds = range(arguments.seed, arguments.seed + scenarios)
    kept = arguments.keep
    found = []
    with nullcontext(kept) if kept is not None else tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            found.append(compare(seed, max(seconds, FEWEST_SECONDS), Path(folder)))
            if not arguments.json:
                print("\n".join(described(found[-1])), file=sys.stderr, flush=True)
    cells = [cell for each in found for cell in each["classes"]]
    outside = sum(not cell["agrees"] for cell in cells)
    result = {
        "machine": machine("triagemq", "numpy"),
        "seeds": [seeds.start, seeds.stop - 1],
        "seconds": seconds,
        "cells": len(cells),
        "outside": outside,
        "scenarios": found,
    }
    lines = [
        f"seeds {seeds.start} to {seeds.stop - 1}, {seconds:g} s each",
        f"{len(cells) - outside} of {len(cells)} classes agree within 10 % and the interval of the simulated mean",
        f"error of the mean latency: {spread([cell['latency_error'] for cell in cells])}",
        f"difference of the success from the forecast: {spread([cell['success_difference'] for cell in cells])}",
    ]
    finish(result, lines, as_json=arguments.json)


def drawn(seed: int) -> tuple[str, Document]:
    """Scenario number `seed`: its kind, and the file as a user writes it."""
    random = np.random.default_rng([6, seed])
    kind = KINDS[seed % len(KINDS)]
    classes = int(random.integers(2, 5))
    document = basic(
        random, topics=(3, 6), subscribers=(2, 4), ports=(1, 2), classes=(classes, classes), wanted=(0.5, 1.0)
    )
    bandwidth_bps = float(np.exp(random.uniform(np.log(1e5), np.log(2e6))))
    load = (1.0, 1.4) if "drops" in kind else (0.4, 0.85)
    # A faster port has larger packets rather than more of them: one machine does the work of all hosts.
    wire_bytes = np.clip(np.mean(load) * bandwidth_bps / 8 / random.uniform(60, 250), 120, 900)
    for _, entry in publications(document):
        entry["size_bytes"] = float(np.clip(wire_bytes * random.lognormal(0.0, 0.3) - HEADER_BYTES, 30, 1000))
    document |= {
        "name": f"packets {seed}: {kind}",
        # The header of a longer message has two octets more.
        "overhead_bytes": HEADER_BYTES if wire_bytes < 300 else HEADER_BYTES + 2,
        "mtu_bytes": 1514,
        "fragmentation": True,
        "planning": {"priority_classes": classes, "flows_per_subscriber": classes},
    }
    load_ports(document, random, load, (bandwidth_bps, bandwidth_bps))
    if "loss" in kind:
        document["publishers"]["publisher"]["error_rate"] = float(random.uniform(0.0, 0.1))
        for subscriber in document["subscribers"].values():
            subscriber["error_rate"] = float(random.uniform(0.0, 0.2))
    # Real copies leave by class, and the simulation beside them does, whatever a file states for others.
    document["sending_order"] = str(random.choice(["by_class", "random"]))
    return kind, document


def compare(seed: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Emulate one scenario, and put its classes beside those of the simulation of the same events."""
    kind, document = drawn(seed)
    file = folder / f"scenario-{seed}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    # JSON is YAML: the document goes the way of a user's file.
    file.write_text(json.dumps(document, indent=1))
    begun, busy = time.monotonic(), os.times()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "triagemq", "emulate", str(file), "--for", str(seconds)),
            *("--seed", str(seed), "--state", str(folder / f"state-{seed}"), "--json"),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"scenario {seed}: {done.stderr.strip().splitlines()[-1]}")
    figures = json.loads(done.stdout)
    after = os.times()
    worked = after.children_user + after.children_system - busy.children_user - busy.children_system
    return {
        "seed": seed,
        "kind": kind,
        "ports_bps": [round(port["bandwidth_bps"]) for port in document["ports"].values()],
        "publications": figures["publications"],
        "copies": figures["copies"],
        "processor_share": worked / (time.monotonic() - begun),
        "classes": cells(figures),
    }


def cells(figures: dict[str, Any]) -> list[dict[str, Any]]:
    simulated = {row["priority_class"]: row for row in figures["simulated"]["classes"]}
    forecast = {row["priority_class"]: row for row in figures["forecast"]["classes"]}
    found = []
    for row in figures["classes"]:
        beside = simulated[row["priority_class"]]
        mean, expected = row["mean_latency_seconds"], beside["mean_latency_seconds"]
        interval = beside["ci95_seconds"] or 0.0
        success = forecast[row["priority_class"]]["success_rate"]
        found.append(
            {
                "priority_class": row["priority_class"],
                "delivered": row["delivered"],
                "measured_seconds": mean,
                "simulated_seconds": expected,
                "interval_seconds": interval,
                "latency_error": mean / expected - 1,
                "success": row["success_rate"],
                "success_forecast": success,
                "success_difference": row["success_rate"] - success,
                "success_interval": row["success_ci95"] or 0.0,
                "agrees": abs(mean - expected) <= ALLOWED * expected + interval,
            }
        )
    return found


def described(found: dict[str, Any]) -> list[str]:
    ports = ", ".join(f"{bps / 1e3:.0f}" for bps in found["ports_bps"])
    return [
        f"scenario {found['seed']} ({found['kind']}): ports of {ports} kbit/s, {found['publications']} events, "
        f"{found['processor_share']:.1f} processors",
        *(
            f"  class {cell['priority_class']}: measured {1e3 * cell['measured_seconds']:8.2f} ms, "
            f"simulated {1e3 * cell['simulated_seconds']:8.2f} ± {1e3 * cell['interval_seconds']:.2f} "
            f"({cell['latency_error']:+.1%}), success {cell['success']:.1%} "
            f"± {cell['success_interval']:.1%}, forecast {cell['success_forecast']:.1%}"
            f"{'' if cell['agrees'] else '  OUTSIDE'}"
            for cell in found["classes"]
        ),
    ]


def spread(values: list[float]) -> str:
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    return f"median {middle:+.1%}, from {low:+.1%} to {high:+.1%}"


if __name__ == "__main__":
    main()
