"""Training on five million rows of features, on local[2]: how long it takes, and how much memory all processes have.

Queues are simulated, and repeated with other sizes: bytes and queue rates times a factor, by which no delay changes.
What counts is what all processes of the command have together: Java, Python and its workers; what they share counts
once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from measuring import finish, machine, options
from pipeline_speed import Meter
from triagemq.lab.papers.shi.network import WIDTHS_BPS, QueueRun, observe, shi_scenario
from triagemq.pipeline.store import PublishedRun, TableStore
from triagemq.scenario import ArrivalProcess, dumps

SECONDS = 120.0
LOADS = (0.5, 0.8, 0.95, 1.1, 1.5)
LIMIT_BYTES = 8 * 2**30
PARAMETERS = "absolute-8"


def simulated() -> list[tuple[str, dict[int, QueueRun]]]:
    """Runs of two kinds of traffic, with their scenarios."""
    found: list[tuple[str, dict[int, QueueRun]]] = []
    for traffic in (ArrivalProcess.POISSON, ArrivalProcess.PERIODIC):
        for load in LOADS:
            scenario = shi_scenario([load * width / 8_000 for width in WIDTHS_BPS], traffic)
            found.append((dumps(scenario), observe(scenario, SECONDS, seed=len(found))))
    return found


def repeated(queues: dict[int, QueueRun], factor: float, run_id: str) -> Iterator[pa.Table]:
    """The rows of queue_features of one run whose packets and queue rates are so many times as large."""
    for queue, run in queues.items():
        samples = run.samples
        columns: dict[str, Any] = {
            name: getattr(samples, name)
            for name in ("sampled_ns", "packets_in", "packets_out", "drops", "backlog_packets")
        }
        for name in ("bytes_in", "bytes_out", "backlog_bytes", "width_bps"):
            columns[name] = np.rint(getattr(samples, name) * factor).astype(np.int64)
        target = pa.array(run.next_delay_seconds, from_pandas=True)
        count = len(samples)
        yield pa.table(
            {
                "run_id": pa.array([run_id] * count),
                "port_id": np.zeros(count, np.int32),
                "queue": np.full(count, queue, np.int32),
                **columns,
                "next_queueing_delay_seconds": target,
            }
        )


def write_tables(folder: Path, rows: int) -> int:
    """Tables as the pipeline publishes them, with so many rows to learn from; how many there are."""
    random, made, number = np.random.default_rng(1), 0, 0
    runs = simulated()
    published = {}
    with TableStore.open(folder, kind="run") as store:
        store.begin()
        while made < rows:
            text, queues = runs[number % len(runs)]
            run_id = f"run-{number:05d}"
            table = pa.concat_tables(repeated(queues, float(random.uniform(0.2, 5.0)), run_id))
            files = {
                "queue_features": (store.write("queue_features", table, run=number),),
                "scenarios": (
                    store.write("scenarios", pa.table({"run_id": [run_id], "text": [text]}), run=number),
                ),
            }
            published[run_id] = PublishedRun(run_id, "simulated", len(table), len(table), 0, {}, files)
            made += int(np.isfinite(table["next_queueing_delay_seconds"].to_numpy()).sum())
            number += 1
        store.publish(published)
    return made


def train(tables: Path, out: Path, counters: str) -> dict[str, Any]:
    """`triage pipeline train` with all that it starts."""
    meter, begun = Meter(of_others=True), time.perf_counter()
    command = [
        sys.executable,
        "-c",
        "from triagemq.cli import main; main()",
        "pipeline",
        "train",
        str(tables),
    ]
    command += ["--out", str(out), "--counters", counters, "--parameters", PARAMETERS, "--workers", "2"]
    with meter.watching():
        done = subprocess.run(
            [*command, "--master", "local[2]", "--json"], stdout=subprocess.PIPE, check=True
        )
    (model,) = json.loads(done.stdout)["models"]
    return {
        "rows": sum(model["rows"].values()),
        "trees": model["chosen"]["trees"],
        "validation_seconds": model["chosen"]["validation_seconds"],
        "wall_seconds": time.perf_counter() - begun,
        "cpu_seconds": meter.most_cpu_seconds,
        "peak_memory_bytes": meter.peak_bytes,
    }


def main() -> None:
    arguments = options(__doc__).parse_args()
    rows = 100_000 if arguments.quick else 5_000_000
    with tempfile.TemporaryDirectory() as folder:
        made = write_tables(Path(folder) / "tables", rows)
        found = train(Path(folder) / "tables", Path(folder) / "models", "linux")
    result = {"made": made, **found, "machine": machine("triagemq", "pyspark", "xgboost-cpu")}
    lines = [
        f"{made:,} rows, {found['rows']:,} of them for training and validation, the others held out",
        f"{found['trees']} trees in {found['wall_seconds']:.0f} s wall, {found['cpu_seconds']:.0f} s CPU",
        f"{found['peak_memory_bytes'] / 2**30:.2f} GiB at most, of {LIMIT_BYTES / 2**30:.0f}",
    ]
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
