"""`triage pipeline stream`: how soon a window can be read at 10,000 events/s, how fast a backlog drains, what it needs.

The same backlog is drained by bare Structured Streaming: Spark's file source, watermark, duplicates dropped, sliding
windows and 10 s windows with burstiness, the same session and state store, into Parquet files. What that needs for
the counts of the sliding windows alone, duplicates and all, is told too.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from measuring import finish, machine, options
from pipeline_speed import Meter
from triagemq.pipeline import Tables
from triagemq.pipeline.store import Location
from triagemq.pipeline.store.store import versions
from triagemq.trace import TraceWriter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOPICS = 400
RATE = 10_000
WATERMARK_SECONDS = 2.0
WINDOW_SECONDS = 2.0
GOAL_SECONDS = 2.0
GOAL_RATIO = 1.5
GOAL_BYTES = 2 << 30
PATIENCE = 4.0
"""Bare Structured Streaming is stopped after so many times what the stream took: its time is then only a bound."""
STEP_SECONDS = 0.05
SETTLE_SECONDS = 5.0
LONGEST_START_SECONDS = 90.0
COMMAND = "import typer; from triagemq.cli.pipeline import stream; typer.run(stream)"


def publish(writer: TraceWriter, random: np.random.Generator, first_id: int, published_ns: Any) -> None:
    count = len(published_ns)
    writer.publications(
        {
            "publication_id": np.arange(first_id, first_id + count),
            "topic_id": random.integers(0, TOPICS, count),
            "publisher_id": np.zeros(count, dtype=np.int64),
            "published_ns": published_ns,
            "size_bytes": random.integers(50, 500, count),
        }
    )


def start_stream(source: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMAND, str(source), "--out", str(out), "--json", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    answer, _ = process.communicate(timeout=600)
    if process.returncode != 0:
        raise SystemExit(f"the stream ended with {process.returncode}")
    return dict(json.loads(answer))


class Watcher(threading.Thread):
    """Reads the table as a user would and notes when each window is there for the first time."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self._out = out
        self.seen: dict[tuple[float, int], float] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        before = 0
        while not self.ended.wait(0.05):
            changed = max(versions(Location(self._out)), default=0)
            if changed == before:
                continue
            before = changed
            tables = Tables(self._out)
            if "topic_rates" not in tables.rows:
                continue
            table = tables.table("topic_rates")
            now = time.time()
            keys = set(
                zip(table["window_seconds"].to_pylist(), table["window_start_ns"].to_pylist(), strict=True)
            )
            for key in keys - self.seen.keys():
                self.seen[key] = now


def live(seconds: int, work: Path) -> dict[str, Any]:
    """Events at a steady rate into a live trace whose parts are closed every second."""
    random = np.random.default_rng(1)
    source, out = work / "live", work / "live-table"
    writer = TraceWriter(source, scenario_text="", plan_text=None, producer="benchmark", rotate_seconds=1.0)
    process = start_stream(
        source, out, "--watermark", str(WATERMARK_SECONDS), "--window", str(WINDOW_SECONDS)
    )
    watcher = Watcher(out)
    watcher.start()
    began = time.time()
    number = count = 0
    events = int(RATE * STEP_SECONDS)
    measured_from = last = began + LONGEST_START_SECONDS
    while (now := time.time()) < measured_from + seconds:
        if watcher.seen:
            # What comes while Spark starts is a backlog, not a delay of its windows.
            measured_from = min(measured_from, now + SETTLE_SECONDS)
        last = began + (number + 1) * STEP_SECONDS
        time.sleep(max(0.0, last - now))
        published = np.sort(random.integers(int((last - STEP_SECONDS) * 1e9), int(last * 1e9), events))
        publish(writer, random, count, published)
        number, count = number + 1, count + events
    time.sleep(GOAL_SECONDS + WATERMARK_SECONDS)
    watcher.ended.set()
    watcher.join()
    process.send_signal(signal.SIGINT)
    done = result_of(process)
    writer.finish(measured_from_ns=0)
    dues = {key: key[1] * 1e-9 + key[0] + WATERMARK_SECONDS for key in watcher.seen}
    delays = [watcher.seen[key] - due for key, due in dues.items() if measured_from <= due <= last]
    if not delays:
        raise SystemExit(f"no window was visible within {LONGEST_START_SECONDS} s")
    return {
        "events": count,
        "events_per_second": count / (last - began),
        "counted": done["events"],
        "windows_measured": len(delays),
        "delay_seconds_median": statistics.median(delays),
        "delay_seconds_p95": float(np.quantile(delays, 0.95)),
        "delay_seconds_max": max(delays),
        "batches": done["batches"],
        "busy_seconds": done["busy_seconds"],
        "files": len(list(out.rglob("*.parquet"))),
    }


def write_backlog(source: Path, events: int, rotate_rows: int | None) -> None:
    random = np.random.default_rng(2)
    with TraceWriter(
        source, scenario_text="", plan_text=None, producer="benchmark", rotate_rows=rotate_rows
    ) as writer:
        published_ns = 1_760_000_000_000_000_000
        for first_id in range(0, events, 500_000):
            gaps = random.exponential(1e9 / RATE, min(500_000, events - first_id)).astype(np.int64)
            times = published_ns + np.cumsum(gaps)
            published_ns = int(times[-1])
            publish(writer, random, first_id, times)
        writer.finish(measured_from_ns=0)


def backlog(events: int, rotate_rows: int | None, work: Path) -> dict[str, Any]:
    """A trace that is there already, drained once; the start of Java is apart, that of the query is not."""
    name = f"backlog-{rotate_rows}"
    source, out = work / name, work / f"{name}-table"
    write_backlog(source, events, rotate_rows)
    meter = Meter()
    before = meter.cpu_seconds()
    with meter.watching():
        done = result_of(start_stream(source, out, "--once"))
    if done["events"] != events:
        raise SystemExit(f"{events} events were written, and {done['events']} are in the table")
    used = meter.most_cpu_seconds - before
    longest = PATIENCE * done["seconds"]
    bare = {kind: bare_seconds(source, work / f"{name}-{kind}", kind, longest) for kind in ("same", "counts")}
    return {
        "events": events,
        "parts": len(list((source / "publications").glob("*.parquet"))),
        "windows": done["windows"],
        "seconds": done["seconds"],
        "events_per_second": done["events"] / done["seconds"],
        "start_seconds": done["start_seconds"],
        "processor_seconds": used,
        "peak_bytes": meter.peak_bytes,
        "bare_seconds": bare["same"],
        "bare_ended": bare["same"] < longest,
        "ratio": done["seconds"] / bare["same"],
        "bare_counts_seconds": bare["counts"],
        "ratio_to_counts": done["seconds"] / bare["counts"],
    }


def bare_seconds(source: Path, out: Path, kind: str, longest: float) -> float:
    """In a process of its own, as the stream is."""
    command = [sys.executable, __file__, "--bare", kind, str(source / "publications"), str(out), str(longest)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def drain_bare(kind: str, source: str, out: str, longest: str) -> None:
    """Print how long bare Structured Streaming takes, from its first call to its end, but no more than the longest."""
    from pyspark.sql import functions as F  # noqa: N812

    from triagemq.pipeline.session import SMALL_ROWS, SparkOptions, spark_session
    from triagemq.pipeline.streaming.job import DISK_CHECKPOINT, MEMORY, STATE_STORE

    with spark_session(SparkOptions(rows=SMALL_ROWS, memory=MEMORY)) as spark:
        for name, value in (STATE_STORE | DISK_CHECKPOINT).items():
            spark.conf.set(name, value)
        spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
        began = time.monotonic()
        rows = (
            spark.readStream.schema(spark.read.parquet(source).schema)
            # About as many events a batch as the stream takes.
            .option("maxFilesPerTrigger", "300")
            .parquet(source)
            .withColumn("published_at", F.expr("timestamp_micros(published_ns div 1000)"))
            .withWatermark("published_at", f"{WATERMARK_SECONDS} seconds")
        )
        if kind == "same":
            rows = rows.dropDuplicatesWithinWatermark(["topic_id", "publication_id"])
        windows = rows.groupBy(
            F.window("published_at", f"{WINDOW_SECONDS} seconds", "1 second"), "topic_id"
        ).agg(F.count("*").alias("publications"), F.sum(F.col("size_bytes").cast("bigint")).alias("bytes"))
        if kind == "same":
            windows = windows.unionByName(bursts(rows), allowMissingColumns=True)
        query = (
            windows.writeStream.format("parquet")
            .option("path", out)
            .option("checkpointLocation", f"{out}-checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        ended = query.awaitTermination(int(float(longest)))
        print(time.monotonic() - began if ended else longest, flush=True)
        if not ended:
            os._exit(0)  # A batch of minutes does not let itself be stopped.


def bursts(publications: DataFrame) -> DataFrame:
    """Events, bytes and burstiness in 10 s windows, as `topic_rates` has them, in Spark's own expressions."""
    from pyspark.sql import functions as F  # noqa: N812

    count, mean, gaps = F.col("publications"), F.col("publications") / 50, F.col("publications") - 1
    mean_gap = F.col("seconds") / gaps
    known = (count >= 3) & (F.col("seconds") > 0)
    return (
        publications.groupBy(F.window("published_at", "10 seconds"), "topic_id")
        .agg(
            F.count("*").alias("publications"),
            F.sum(F.col("size_bytes").cast("bigint")).alias("bytes"),
            F.sort_array(F.collect_list("published_ns")).alias("times"),
        )
        .withColumn("squares", _squares(F.col("times")))
        .withColumn("seconds", (F.element_at("times", -1) - F.col("times")[0]) * 1e-9)
        .withColumn("index_of_dispersion", (F.col("squares.counts") - count * mean) / 49 / mean)
        .withColumn("ca2", F.when(known, F.col("squares.gaps") / gaps / (mean_gap * mean_gap) - 1))
        .withColumn("window_start_ns", F.unix_micros("window.start") * 1000)
        .drop("window", "times", "squares", "seconds")
    )


def _squares(sorted_times: Column) -> Column:
    """Sum of the squared counts of the 200 ms windows, and of the squared gaps in seconds, in one walk."""
    from pyspark.sql import functions as F  # noqa: N812

    def add(state: Column, time: Column) -> Column:
        window = F.call_function("div", time, F.lit(200_000_000))
        in_same = F.when(window == state["window"], state["in_window"]).otherwise(0)
        gap = (time - state["time"]) * 1e-9
        return F.struct(
            time.alias("time"),
            window.alias("window"),
            (in_same + 1).alias("in_window"),
            # (n + 1)^2 = n^2 + 2 n + 1
            (state["counts"] + 2 * in_same + 1).alias("counts"),
            (state["gaps"] + gap * gap).alias("gaps"),
        )

    nothing = F.struct(
        sorted_times[0].alias("time"),
        F.lit(-1).cast("bigint").alias("window"),
        F.lit(0).alias("in_window"),
        F.lit(0).cast("bigint").alias("counts"),
        F.lit(0.0).alias("gaps"),
    )
    return F.aggregate(sorted_times, nothing, add)


def long_and_overlapping(work: Path, seconds: int) -> dict[str, Any]:
    """Windows of 600 s, every second, on 1,000 topics: the memory of all processes, what they share once."""
    random = np.random.default_rng(3)
    source, out = work / "long", work / "long-table"
    topics, rate = 1000, 5000
    with TraceWriter(source, scenario_text="", plan_text=None, producer="benchmark") as writer:
        for second in range(seconds):
            times = np.sort(random.integers(0, 10**9, rate)) + (1_760_000_000 + second) * 10**9
            writer.publications(
                {
                    "publication_id": np.arange(second * rate, (second + 1) * rate),
                    "topic_id": random.integers(0, topics, rate),
                    "publisher_id": np.zeros(rate, dtype=np.int64),
                    "published_ns": times,
                    "size_bytes": random.integers(50, 500, rate),
                }
            )
        writer.finish(measured_from_ns=0)
    meter = Meter(of_others=True)
    with meter.watching():
        done = result_of(start_stream(source, out, "--once", "--window", "600", "--slide", "1"))
    return {
        "topics": topics,
        "events": done["events"],
        "windows": done["windows"],
        "seconds": done["seconds"],
        "peak_bytes": meter.peak_bytes,
    }


def main() -> None:
    if sys.argv[1:2] == ["--bare"]:
        drain_bare(*sys.argv[2:])
        return
    parser = options(__doc__)
    parts = ("live", "one-part", "many-parts", "memory")
    parser.add_argument("--only", choices=parts, action="append", help="some of the figures")
    arguments = parser.parse_args()
    wanted = arguments.only or parts
    result: dict[str, Any] = {
        "machine": machine("pyspark", "pyarrow", "numpy"),
        "load_average_before": os.getloadavg()[0],
        "goal": {"delay_seconds_median": GOAL_SECONDS, "ratio": GOAL_RATIO, "peak_bytes": GOAL_BYTES},
    }
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        if "live" in wanted:
            found = result["live"] = live(8 if arguments.quick else 120, work)
            lines.append(
                f"live: {found['events_per_second']:,.0f} events/s, {found['windows_measured']} windows visible "
                f"{found['delay_seconds_median']:.2f} s after their end and the watermark (median; 95 % within "
                f"{found['delay_seconds_p95']:.2f} s; goal {GOAL_SECONDS:.0f} s)"
            )
        events = 1_000_000 if arguments.quick else 15_000_000
        rotate_rows = {"one-part": None, "many-parts": RATE}
        result["backlog"] = [
            backlog(events, rotate_rows[part], work) for part in rotate_rows if part in wanted
        ]
        lines += [
            f"backlog: {row['events']:,} events in {row['parts']:,} parts drained in {row['seconds']:.1f} s = "
            f"{row['events_per_second']:,.0f}/s; bare Structured Streaming "
            f"{'' if row['bare_ended'] else 'not after '}{row['bare_seconds']:.1f} s, ratio "
            f"{'' if row['bare_ended'] else 'below '}{row['ratio']:.2f} (goal {GOAL_RATIO}); "
            f"its counts alone {row['bare_counts_seconds']:.1f} s, "
            f"ratio {row['ratio_to_counts']:.2f}; {row['peak_bytes'] / 2**20:,.0f} MiB"
            for row in result["backlog"]
        ]
        if "memory" in wanted:
            memory = result["long_windows"] = long_and_overlapping(work, 120 if arguments.quick else 1800)
            lines.append(
                f"600 s windows every second on {memory['topics']:,} topics: {memory['windows']:,} windows in "
                f"{memory['seconds']:.1f} s, {memory['peak_bytes'] / 2**20:,.0f} MiB of all processes "
                f"(goal {GOAL_BYTES / 2**20:,.0f} MiB)"
            )
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
