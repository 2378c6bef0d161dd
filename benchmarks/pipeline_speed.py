"""Fifty million deliveries to three tables: Spark on two cores beside DuckDB, same tables and percentiles, row by row.

Both read the same Parquet files. The percentiles of both come from a histogram with 64 bins to each doubling of the
latency (triagemq.trace.latency_bins). CPU seconds are those of all processes of an engine; what it takes to start
the Java process is told apart. Beside it the whole command on a small trace, where there is hardly anything to compute.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from measuring import finish, machine, memory_bytes, options
from triagemq.trace import TraceWriter

SMALL_PUBLICATIONS = 2000
SMALL_REPETITIONS = 3
SUBSCRIPTIONS = 11_200
TOPICS = 200
FAN_OUT = SUBSCRIPTIONS // TOPICS
KEYS = {
    "subscription_performance": ["subscription_id"],
    "class_performance": ["priority_class"],
    "topic_rates": ["topic_id", "window_seconds", "window_start_ns"],
}
COMPARED = {
    "subscription_performance": ["count", "delivered", "mean_latency_seconds", "p50", "p95", "p99", "max"],
    "class_performance": ["count", "delivered", "mean_latency_seconds", "p50", "p95", "p99", "max"],
    "topic_rates": ["publications", "rate_per_second", "bytes", "index_of_dispersion", "ca2"],
}


def write_deliveries(directory: Path, deliveries: int) -> int:
    """A run of 11,200 subscriptions: 200 topics with 56 subscriptions each, nine classes; returns measured_from_ns."""
    random = np.random.default_rng(1)
    publications = deliveries // FAN_OUT
    class_of = random.integers(0, 9, SUBSCRIPTIONS)
    published = np.cumsum(random.exponential(1e6, publications)).astype(np.int64)
    topic = random.integers(0, TOPICS, publications)
    size = np.maximum(1, random.exponential(400, publications)).astype(np.int32)
    measured_from_ns = int(published[publications // 50])
    with TraceWriter(directory, scenario_text="", plan_text=None, producer="benchmark") as writer:
        for first in range(0, publications, 20_000):
            ids = np.arange(first, min(first + 20_000, publications))
            writer.publications(
                {
                    "publication_id": ids,
                    "topic_id": topic[ids],
                    "publisher_id": topic[ids] % 160,
                    "published_ns": published[ids],
                    "size_bytes": size[ids],
                }
            )
            event = np.repeat(ids, FAN_OUT)
            subscription = (topic[event] * FAN_OUT + np.tile(np.arange(FAN_OUT), len(ids))).astype(np.int32)
            latency = (random.exponential(2e6 * 2.0 ** class_of[subscription]) + 1e5).astype(np.int64)
            outcome = random.choice(np.array([0, 1, 2]), len(event), p=[0.9, 0.05, 0.05])
            arrived = outcome == 0
            writer.deliveries(
                {
                    "publication_id": event,
                    "subscription_id": subscription,
                    "subscriber_id": subscription % 100,
                    "topic_id": topic[event],
                    "flow_id": subscription % 900,
                    "priority_class": class_of[subscription],
                    "published_ns": published[event],
                    "enqueued_ns": np.where(outcome == 1, -1, published[event] + 50_000),
                    "dequeued_ns": np.where(arrived, published[event] + latency - 20_000, -1),
                    "delivered_ns": np.where(arrived, published[event] + latency, -1),
                    "size_bytes": size[event],
                    "outcome": outcome,
                }
            )
        writer.finish(measured_from_ns=measured_from_ns)
    return measured_from_ns


class Meter:
    """CPU seconds of this process and all below it, and the largest memory they had together.

    Resident sizes count what processes share once for each of them. `of_others` has it counted once, and without this
    process; Linux goes through all pages for that.
    """

    def __init__(self, *, of_others: bool = False) -> None:
        self.peak_bytes = 0
        self._of_others = of_others
        self.most_cpu_seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def cpu_seconds(self) -> float:
        return _cpu_seconds(_stats())

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            stats = _stats()
            if self._of_others:
                now = sum(memory_bytes(process) for process in stats if process != os.getpid())
            else:
                now = sum(int(stat[21]) for stat in stats.values()) * os.sysconf("SC_PAGE_SIZE")
            self.peak_bytes = max(self.peak_bytes, now)
            # Python workers that outlive their Java process are counted by nobody afterwards.
            self.most_cpu_seconds = max(self.most_cpu_seconds, _cpu_seconds(stats))


def _cpu_seconds(stats: dict[int, list[str]]) -> float:
    return sum(int(number) for stat in stats.values() for number in stat[11:15]) / os.sysconf("SC_CLK_TCK")


def _stats() -> dict[int, list[str]]:
    """/proc/PID/stat after the name, of this process and its descendants; ended children are in their parents'."""
    found, parents = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry)], parents[int(entry)] = stat, int(stat[1])

    def is_ours(process: int) -> bool:
        while process > 1:
            if process == os.getpid():
                return True
            process = parents.get(process, 0)
        return False

    return {process: stat for process, stat in found.items() if is_ours(process)}


def run_spark(trace: Path, measured_from_ns: int, out: Path, rows: int) -> dict[str, Any]:
    """The product's own transforms, from the trace's files to the three tables."""
    meter = Meter()
    with meter.watching():
        from triagemq.pipeline.session import SparkOptions, spark_session

        begun = time.perf_counter()
        with spark_session(SparkOptions(master="local[2]", rows=rows)) as spark:
            from pyspark.sql import functions as F  # noqa: N812

            from triagemq.pipeline.partitions import table_of
            from triagemq.pipeline.tables import latency_histogram, performance, topic_rates

            spark.range(1000).groupBy((F.col("id") % 7).alias("key")).count().collect()
            started, cpu = time.perf_counter(), meter.cpu_seconds()
            measured = (F.col("published_ns") >= measured_from_ns).alias("measured")
            tables = {
                name: spark.read.parquet(str(trace / name)).select("*", F.lit(0).alias("run"), measured)
                for name in ("deliveries", "publications")
            }
            partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
            wanted = table_of(
                [],
                "run int, subscription_id int, subscriber_id int, topic_id int, utility_shape int, "
                "utility_weight double, utility_threshold double, freshness_seconds double, "
                "max_latency_seconds double, max_latency_share double",
            )
            promised = table_of([], "run int, priority_class int")
            classes = table_of([], "run int, subscription_id int, counted_class int")
            place = str(out / "latency_histogram")
            counted = latency_histogram.transform(tables["deliveries"], wanted, classes, partitions)
            counted.write.parquet(place)
            histogram = spark.read.parquet(place)
            made = {
                "subscription_performance": performance.by_subscription(histogram, wanted),
                "class_performance": performance.by_class(histogram, promised),
                "topic_rates": topic_rates.transform(tables["publications"]),
            }
            for name, frame in made.items():
                frame.select(*KEYS[name], *COMPARED[name]).write.parquet(str(out / name))
            ended, used = time.perf_counter(), meter.cpu_seconds() - cpu
        return {
            "start_seconds": started - begun,
            "wall_seconds": ended - started,
            "cpu_seconds": used,
            "peak_memory_bytes": meter.peak_bytes,
        }


HISTOGRAM = """
create temp table histogram as
select subscription_id, priority_class,
       case when latency is null then -1 when latency < 1 then 0
            else exponent * 64 + ((latency << 6) >> exponent) - 63 end as bin,
       count(*) as n, sum(latency) as latency_sum, max(latency) as latency_max
from (select subscription_id, priority_class,
             case when outcome = 'delivered' then delivered_ns - published_ns end as latency,
             cast(floor(log2(greatest(1, case when outcome = 'delivered' then delivered_ns - published_ns end))) as int)
                 as exponent
      from read_parquet('{trace}/deliveries/*.parquet') where published_ns >= {measured_from_ns})
group by all
"""
PERFORMANCE = """
with merged as (
    select {key}, bin, sum(n) as n, sum(latency_sum) as latency_sum, max(latency_max) as latency_max
    from histogram group by {key}, bin),
ranked as (
    select *, sum(n) filter (bin >= 0) over (partition by {key} order by bin) as reached,
              sum(n) filter (bin >= 0) over (partition by {key}) as delivered
    from merged),
placed as (
    select {key}, sum(n) as count, coalesce(max(delivered), 0) as delivered, sum(latency_sum) as total,
           max(latency_max) as longest,
           min(bin) filter (bin >= 0 and reached >= 0.5 * delivered) as b50,
           min(bin) filter (bin >= 0 and reached >= 0.95 * delivered) as b95,
           min(bin) filter (bin >= 0 and reached >= 0.99 * delivered) as b99
    from ranked group by {key})
select {key}, count, delivered, total / delivered * 1e-9 as mean_latency_seconds,
       {middles}, longest * 1e-9 as max
from placed
"""
RATES = """
with measured as (
    select topic_id, published_ns, size_bytes, published_ns // 10000000000 as long, published_ns // 200000000 as short
    from read_parquet('{trace}/publications/*.parquet') where published_ns >= {measured_from_ns}),
short as (
    select topic_id, short, any_value(long) as long, count(*) as n, sum(size_bytes) as bytes
    from measured group by topic_id, short),
counted as (
    select topic_id, long, sum(n) as n, sum(n * n) as squares, sum(bytes) as bytes from short group by topic_id, long),
gaps as (
    select topic_id, long, (published_ns - lag(published_ns) over (partition by topic_id, long order by published_ns))
        * 1e-9 as gap from measured),
variability as (
    select topic_id, long, case when count(gap) >= 2 then var_pop(gap) / (avg(gap) * avg(gap)) end as ca2
    from gaps group by topic_id, long)
select short.topic_id, 0.2::double as window_seconds, short * 200000000 as window_start_ns, short.n as publications,
       short.n / 0.2 as rate_per_second, short.bytes, null::double as index_of_dispersion, null::double as ca2
from short join counted using (topic_id, long) where counted.n >= {dense}
union all
select topic_id, 10.0::double, long * 10000000000, n, n / 10.0, bytes,
       (squares - n * n / 50.0) / 49 / (n / 50.0), ca2
from counted join variability using (topic_id, long)
"""


def run_duckdb(trace: Path, measured_from_ns: int, out: Path) -> dict[str, Any]:
    """The same tables as DuckDB would be asked for them, from a histogram too; it shares that between two tables."""
    import duckdb

    from triagemq.pipeline.tables.topic_rates import DENSE

    meter = Meter()
    with meter.watching():
        database = duckdb.connect()
        database.execute("set threads = 2")
        started, cpu = time.perf_counter(), meter.cpu_seconds()
        given = {"trace": trace, "measured_from_ns": measured_from_ns, "dense": DENSE}
        database.execute(HISTOGRAM.format(**given))
        middle = (
            "case when b{0} < 1 then 0 else (pow(2, (b{0} - 1) // 64) * (1 + ((b{0} - 1) % 64) / 64.0)"
            " + pow(2, (b{0} - 1) // 64) / 64 / 2) * 1e-9 end as p{0}"
        )
        middles = ", ".join(middle.format(share) for share in (50, 95, 99))
        queries = {
            "subscription_performance": PERFORMANCE.format(key="subscription_id", middles=middles),
            "class_performance": PERFORMANCE.format(key="priority_class", middles=middles),
            "topic_rates": RATES.format(**given),
        }
        for name, query in queries.items():
            (out / name).mkdir(parents=True)
            database.execute(f"copy ({query}) to '{out / name}/part-0.parquet' (format parquet)")
        ended, used = time.perf_counter(), meter.cpu_seconds() - cpu
        database.close()
    return {"wall_seconds": ended - started, "cpu_seconds": used, "peak_memory_bytes": meter.peak_bytes}


def run_small(place: Path) -> dict[str, float]:
    """`triage pipeline run` with all tables and the report on a trace of 2,000 publications, once it has been used."""

    def triage(*arguments: str) -> tuple[float, float]:
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", "from triagemq.cli import main; main()", *arguments]
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return time.perf_counter() - begun, used

    scenario, trace = str(place / "table2.yaml"), str(place / "small")
    triage("generate", "table2", "-o", scenario)
    triage("simulate", scenario, "--publications", str(SMALL_PUBLICATIONS), "--trace", trace)
    # The first command reads Spark's classes from the disk.
    triage("pipeline", "run", trace, "--out", str(place / "first"))
    measured = []
    for number in range(SMALL_REPETITIONS):
        begun = time.perf_counter()
        in_its_own_process("start", place, place, 0, SMALL_PUBLICATIONS)
        bare = time.perf_counter() - begun
        wall, cpu = triage("pipeline", "run", trace, "--out", str(place / f"again-{number}"))
        measured.append({"wall_seconds": wall, "cpu_seconds": cpu, "bare_seconds": bare})
    middle = {name: float(np.median([each[name] for each in measured])) for name in measured[0]}
    over = [each["wall_seconds"] - each["bare_seconds"] for each in measured]
    return {**middle, "over_bare_seconds": float(np.median(over))}


def start_spark(rows: int) -> dict[str, float]:
    """A session for so many rows that answers two queries."""
    from triagemq.pipeline.session import SparkOptions, spark_session

    begun = time.perf_counter()
    with spark_session(SparkOptions(master="local[2]", rows=rows)) as spark:
        spark.range(1000).count()
        spark.range(1000).selectExpr("id % 7 AS key").groupBy("key").count().collect()
        return {"two_queries_seconds": time.perf_counter() - begun}


def compare(one: Path, other: Path) -> dict[str, dict[str, float]]:
    """Rows of every table, and the largest relative difference of any figure in them."""
    compared = {}
    for name, keys in KEYS.items():
        tables = [_sorted(place / name, [*keys, *COMPARED[name]], keys) for place in (one, other)]
        if tables[0].num_rows != tables[1].num_rows:
            raise SystemExit(f"{name}: {tables[0].num_rows} rows and {tables[1].num_rows}")
        worst = 0.0
        for column in [*keys, *COMPARED[name]]:
            first, second = (_numbers(table, column) for table in tables)
            if (np.isnan(first) != np.isnan(second)).any():
                raise SystemExit(f"{name}.{column}: unknown in one and known in the other")
            scale = np.maximum(np.abs(second), 1e-9)
            worst = max(worst, float(np.nanmax(np.abs(first - second) / scale, initial=0.0)))
        compared[name] = {"rows": tables[0].num_rows, "largest_difference": worst}
    return compared


def _sorted(place: Path, columns: list[str], keys: list[str]) -> pa.Table:
    return pq.read_table(place, columns=columns).sort_by([(key, "ascending") for key in keys])


def _numbers(table: pa.Table, column: str) -> Any:
    return table.column(column).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def in_its_own_process(engine: str, *arguments: Any) -> dict[str, Any]:
    """Memory and CPU seconds of one engine must not count for the other."""
    import json

    done = subprocess.run(
        [sys.executable, __file__, "--engine", engine, *map(str, arguments)],
        stdout=subprocess.PIPE,
        check=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def main() -> None:
    if sys.argv[1:2] == ["--engine"]:
        engine, trace, out, since, rows = sys.argv[2:7]
        places = Path(trace), int(since), Path(out)
        engines: dict[str, Callable[[], dict[str, Any]]] = {
            "spark": lambda: run_spark(*places, int(rows)),
            "duckdb": lambda: run_duckdb(*places),
            "start": lambda: start_spark(int(rows)),
        }
        finish(engines[engine](), [], as_json=True)
        return
    arguments = options(__doc__).parse_args()
    deliveries = 5_000_000 if arguments.quick else 50_000_000
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        measured_from_ns = write_deliveries(place / "trace", deliveries)
        small = run_small(place)
        spark = in_its_own_process("spark", place / "trace", place / "spark", measured_from_ns, deliveries)
        duckdb = in_its_own_process("duckdb", place / "trace", place / "duckdb", measured_from_ns, deliveries)
        tables = compare(place / "spark", place / "duckdb")
    ratio = spark["cpu_seconds"] / duckdb["cpu_seconds"]
    result = {
        "deliveries": deliveries,
        "subscriptions": SUBSCRIPTIONS,
        "spark": spark,
        "duckdb": duckdb,
        "cpu_ratio": ratio,
        "small_trace": small,
        "tables": tables,
        "machine": machine("triagemq", "pyspark", "duckdb", "pyarrow"),
    }
    lines = [f"{deliveries:,} deliveries of {SUBSCRIPTIONS:,} subscriptions, two cores"]
    lines += [
        f"{name:7} {used['wall_seconds']:7.1f} s wall {used['cpu_seconds']:7.1f} s CPU "
        f"{used['peak_memory_bytes'] / 2**30:5.2f} GiB"
        for name, used in (("Spark", spark), ("DuckDB", duckdb))
    ]
    lines.append(
        f"Spark uses {ratio:.2f} times DuckDB's CPU; starting it took {spark['start_seconds']:.1f} s more"
    )
    lines += [
        f"{name}: {each['rows']:,} rows in both, largest relative difference {each['largest_difference']:.1e}"
        for name, each in tables.items()
    ]
    lines.append(
        f"small trace ({SMALL_PUBLICATIONS:,} publications): triage pipeline run takes {small['wall_seconds']:.1f} s "
        f"wall, {small['cpu_seconds']:.1f} s CPU; {small['over_bare_seconds']:.1f} s more than a bare session with two "
        f"queries ({small['bare_seconds']:.1f} s)"
    )
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
