"""`triage pipeline stream`: a Structured Streaming query over live traces, from its start to its clean end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triagemq.clock import UNIX_TIMES_FROM_NS
from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline.session import SMALL_ROWS, SparkOptions, spark_session
from triagemq.pipeline.store import Location, TableStore
from triagemq.pipeline.streaming.runs import BrokerRuns, TraceRuns
from triagemq.pipeline.streaming.windows import CELLS, StreamSettings

if TYPE_CHECKING:
    from triagemq.pipeline.streaming.queries import Queries

_BROKERS = ("mqtt://", "mqtts://")
MEMORY = "640m"
_STREAMING = "org.apache.spark.sql.execution.streaming"
STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "128",
}
_BY_RENAMING = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
DISK_CHECKPOINT = {"spark.sql.streaming.checkpointFileManagerClass": _BY_RENAMING}
"""On a disk, where the store's lock keeps others out: Spark's own manager takes five times as long for every file."""

_PARTITIONS = "spark.sql.shuffle.partitions"
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How a stream is doing: events since its start, and how old the latest of them is, if its clock is ours."""

    events: int
    windows: int
    events_per_second: float
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The result of a stream. Counts by run are of the whole table, the others of this stream."""

    out: str
    events: int
    batches: int
    windows: int
    seconds: float
    start_seconds: float
    busy_seconds: float
    runs: dict[str, dict[str, int]]

    def as_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def stream_pipeline(
    source: str | Path,
    out: str | Path,
    *,
    window_seconds: float = 2.0,
    slide_seconds: float = 1.0,
    watermark_seconds: float = 2.0,
    trigger_seconds: float = 0.5,
    once: bool = False,
    until_idle_seconds: float | None = None,
    broker_ca: Path | None = None,
    options: SparkOptions | None = None,
    progress: Callable[[StreamProgress], None] | None = None,
    on_stop: Callable[[Callable[[], None]], None] | None = None,
) -> StreamResult:
    """Keep the table of rates in `out` up to date with the live trace, or the traces, in `source`, or with a broker.

    It ends with SIGINT or SIGTERM, when nothing new came for `until_idle_seconds`, or, with `once`, when
    all that was there at the start is in the table. Called again, it goes on where it ended or was killed. Inside
    a `spark_session` that session is used. A caller with signal handlers of its own gives `on_stop`, which gets the
    function that ends the stream.
    """
    positive = {"trigger_seconds": trigger_seconds, "until_idle_seconds": until_idle_seconds}
    for name, value in positive.items():
        if value is not None and not value > 0:
            raise ParameterError(name, f"must be positive, is {value}")
    runs: TraceRuns | BrokerRuns
    if str(source).startswith(_BROKERS):
        runs = BrokerRuns(str(source), broker_ca)
        if once:
            raise ParameterError(
                "once", "a broker has nothing that is there already; --until-idle ends a stream"
            )
    else:
        runs = TraceRuns(Location(source))
    settings = StreamSettings(runs.source, window_seconds, slide_seconds, watermark_seconds)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        # A stream is there to stay: the time that Java spends on compiling it well comes back.
        spark_options = options or SparkOptions()
        spark_options = replace(spark_options, rows=SMALL_ROWS, memory=spark_options.memory or MEMORY)
        store = stack.enter_context(TableStore.open(out, runs.inputs, kind="stream"))
        _refuse_other(store, settings)
        session = stack.enter_context(spark_session(spark_options))
        from triagemq.pipeline.streaming.queries import Queries

        stopped = threading.Event()
        began = time.monotonic()
        trigger: dict[str, Any] = {"processingTime": f"{round(trigger_seconds * 1000)} milliseconds"}
        if once:
            trigger = {"availableNow": True}
        own = session.newSession()
        # Every partition has a state store, which costs time in every batch.
        partitions = min(int(own.conf.get(_PARTITIONS) or 2), session.sparkContext.defaultParallelism)
        conf = STATE_STORE | {_PARTITIONS: str(max(2, partitions))}
        for name, setting in (conf | (DISK_CHECKPOINT if store.place.local else {})).items():
            if name not in spark_options.conf:
                own.conf.set(name, setting)
        queries = Queries(own, store, settings, runs, trigger)
        if on_stop is not None:
            # Not before: until there are queries, there is nothing to finish.
            on_stop(stopped.set)
        try:
            while not stopped.is_set() and queries.follow(until_idle_seconds):
                if progress is not None:
                    progress(_progress(queries, began))
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            stopped.set()
        finally:
            queries.end()
        seconds = time.monotonic() - began
    counts = {
        run_id: {"events": run.rows_in, "late": run.reasons["late"], "duplicates": run.reasons["duplicate"]}
        | {name: run.reasons[name] for name in ("lost", "queued") if name in run.reasons}
        for run_id, run in store.manifest.runs.items()
    }
    return StreamResult(
        out=str(out),
        events=queries.total("events"),
        batches=queries.total("batches"),
        windows=queries.total("windows"),
        seconds=seconds,
        start_seconds=began - started,
        busy_seconds=queries.total("busy_seconds"),
        runs=counts,
    )


def _refuse_other(store: TableStore, settings: StreamSettings) -> None:
    """A table goes on as it was begun."""
    given, begun = asdict(settings), store.manifest.extra.get("settings")
    if begun is None:
        return
    if store.manifest.extra.get("cells") != CELLS:
        raise PipelineError(
            f"{store.place.given}: another version of triage has begun it; choose another directory"
        )
    different = [f"{name} {begun.get(name)}" for name, value in given.items() if begun.get(name) != value]
    if different:
        raise PipelineError(
            f"{store.place.given}: holds the table of a stream with {', '.join(different)}; "
            "go on with that, or choose another directory"
        )


def _progress(queries: Queries, began: float) -> StreamProgress:
    events, latest_ns = queries.total("events"), queries.latest_ns
    return StreamProgress(
        events=events,
        windows=queries.total("windows"),
        events_per_second=events / max(time.monotonic() - began, 1e-9),
        lag_seconds=time.time() - latest_ns * 1e-9 if latest_ns > UNIX_TIMES_FROM_NS else None,
    )
