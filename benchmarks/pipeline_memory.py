"""A log of a year, twenty million rows on two thousand topics, to all tables and the report: how much memory it takes.

What counts is what all processes of the command have together: Java, Python and its workers; what they share counts
once (PSS). Afterwards a small log is added to the same tables, which is to cost what a small log costs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from measuring import finish, machine, options
from pipeline_speed import Meter

TOPICS = 2000
YEAR_SECONDS = 365 * 24 * 3600
BEGIN_2025 = 1_735_689_600
FILES = 20
MAPPING = {
    "time": {"column": "time", "unit": "s"},
    "topic": "sensor/{sensor}",
    "publisher": "{sensor}",
    "value": "reading",
}


def write_log(directory: Path, rows: int) -> None:
    """Sensors that report about every hour, each by its own clock; one file for each part of the year."""
    random = np.random.default_rng(1)
    names = pa.array([f"{number:04d}" for number in range(TOPICS)])
    directory.mkdir()
    for part in range(FILES):
        count = rows // FILES
        seconds = (part + np.sort(random.random(count))) * YEAR_SECONDS / FILES
        sensor = pa.DictionaryArray.from_arrays(
            pa.array(random.integers(0, TOPICS, count, dtype=np.int32)), names
        )
        reading = pa.array(random.integers(0, 10_000, count) / 100).cast(pa.string())
        columns = {"time": pa.array(BEGIN_2025 + np.round(seconds, 3)), "sensor": sensor, "reading": reading}
        pq.write_table(pa.table(columns), directory / f"part-{part:02d}.parquet")


def ingest(log: Path, mapping: Path, out: Path) -> dict[str, Any]:
    """`triage pipeline run` with all that it starts."""
    meter, begun = Meter(of_others=True), time.perf_counter()
    command = [sys.executable, "-c", "from triagemq.cli import main; main()", "pipeline", "run", str(log)]
    with meter.watching():
        done = subprocess.run(
            [*command, "--mapping", str(mapping), "--out", str(out), "--json"],
            stdout=subprocess.PIPE,
            check=True,
        )
    told = json.loads(done.stdout)
    return {
        "rows_in": told["rows_in"],
        "quarantined": told["quarantined"],
        "tables": told["tables"],
        "wall_seconds": time.perf_counter() - begun,
        "cpu_seconds": meter.most_cpu_seconds,
        "peak_memory_bytes": meter.peak_bytes,
        "report_bytes": (out / "report.html").stat().st_size,
    }


def main() -> None:
    arguments = options(__doc__).parse_args()
    rows = 1_000_000 if arguments.quick else 20_000_000
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "mapping.yaml").write_text(json.dumps(MAPPING))
        write_log(place / "year", rows)
        write_log(place / "small", 20_000)
        year = ingest(place / "year", place / "mapping.yaml", place / "tables")
        added = ingest(place / "small", place / "mapping.yaml", place / "tables")
        alone = ingest(place / "small", place / "mapping.yaml", place / "alone")
    result = {
        "rows": rows,
        "topics": TOPICS,
        "year": year,
        "small_added": added,
        "small_alone": alone,
        "machine": machine("triagemq", "pyspark", "pyarrow"),
    }
    lines = [f"{rows:,} rows of a year on {TOPICS:,} topics"]
    lines += [
        f"{name:22} {each['wall_seconds']:7.1f} s wall {each['cpu_seconds']:7.1f} s CPU "
        f"{each['peak_memory_bytes'] / 2**30:5.2f} GiB, report {each['report_bytes'] / 1e6:.1f} MB"
        for name, each in (("the year", year), ("a small log added", added), ("a small log alone", alone))
    ]
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
