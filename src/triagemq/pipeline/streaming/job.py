"""`triage pipeline stream`: a Structured Streaming query over live traces, from its start to its clean end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triagemq.clock import UNIX_TIMES_FROM_NS
from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline.session import SMALL_ROWS, SparkOptions, abandon, spark_session
from triagemq.pipeline.store import Location, TableStore
from triagemq.pipeline.streaming.events import StreamSettings
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.runs import BrokerRuns, TraceRuns
from triagemq.pipeline.streaming.windows import CELLS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from triagemq.pipeline.streaming.queries import Queries

MOST_ROWS = 1_000_000
"""Of one batch, unless a single row group has more."""

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

_POLL_SECONDS = 0.1
_HURRIED_SECONDS = 0.6
"""What the batch that is being made gets when the user waits; if it takes longer, the next stream makes it again."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How a stream is doing: events since its start, and how old the latest of them is, if its clock is ours."""

    events: int
    windows: int
    events_per_second: float
    lag_seconds: float | None
    failed_posts: int


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What a stream did until it ended. Counts by run are of the whole table, the others of this stream."""

    out: str
    events: int
    batches: int
    windows: int
    seconds: float
    start_seconds: float
    busy_seconds: float
    runs: dict[str, dict[str, int]]
    post: dict[str, Any] | None

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
    most_rows: int = MOST_ROWS,
    once: bool = False,
    until_idle_seconds: float | None = None,
    post: str | None = None,
    post_token: str | None = None,
    broker_ca: Path | None = None,
    options: SparkOptions | None = None,
    progress: Callable[[StreamProgress], None] | None = None,
    on_stop: Callable[[Callable[[], None]], None] | None = None,
) -> StreamResult:
    """Keep the table of rates in `out` up to date with the live trace, or the traces, in `source`, or with a broker.

    It ends when SIGINT or SIGTERM asks it to, when nothing new came for `until_idle_seconds`, or, with `once`, when
    all that was there at the start is in the table. Called again, it goes on where it ended or was killed. Inside
    a `spark_session` that session is used. Who hears signals himself gives `on_stop`: it is called with what ends the
    stream.
    """
    positive = {"trigger_seconds": trigger_seconds, "until_idle_seconds": until_idle_seconds}
    for name, value in (positive | {"most_rows": most_rows}).items():
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
        poster = None if post is None else Poster(post, post_token)
        if poster is not None:
            stack.callback(poster.close)
        # A stream is there to stay: the time that Java spends on compiling it well comes back.
        wanted = options or SparkOptions()
        wanted = replace(wanted, rows=SMALL_ROWS, memory=wanted.memory or MEMORY)
        if Location.needs_spark(out, published=True):
            stack.enter_context(spark_session(wanted))
        store = stack.enter_context(TableStore.open(out, runs.inputs, kind="stream"))
        _refuse_other(store, settings)
        session = stack.enter_context(spark_session(wanted))
        from triagemq.pipeline.streaming.queries import Queries

        stopped = threading.Event()
        began = time.monotonic()
        trigger: dict[str, Any] = {"processingTime": f"{round(trigger_seconds * 1000)} milliseconds"}
        if once:
            trigger = {"availableNow": True}
        own = _own_session(session, wanted, STATE_STORE | (DISK_CHECKPOINT if store.place.local else {}))
        queries = Queries(own, store, settings, runs, poster, trigger, most_rows)
        if on_stop is not None:
            # Not before: until there are queries, there is nothing to finish.
            on_stop(stopped.set)
        try:
            while not stopped.is_set() and queries.follow(until_idle_seconds):
                if progress is not None:
                    progress(_progress(queries, poster, began))
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            stopped.set()
        finally:
            if stopped.is_set():
                # Spark would take its time to come down; whatever is not in the table was never there.
                queries.end(_HURRIED_SECONDS)
                # A batch that is being made would report at length that Java has gone.
                logging.disable()
                abandon(session)
                queries.end(_HURRIED_SECONDS)
                logging.disable(logging.NOTSET)
            else:
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
        post=None if poster is None else poster.as_json(),
    )


def _own_session(session: SparkSession, wanted: SparkOptions, settings: Mapping[str, str]) -> SparkSession:
    """With Spark's state in RocksDB, which does not need to fit into Java's memory."""
    own = session.newSession()
    for name, value in settings.items():
        if name not in wanted.conf:
            own.conf.set(name, value)
    partitions = "spark.sql.shuffle.partitions"
    if partitions not in wanted.conf and str(session.sparkContext.master).startswith("local"):
        # Every partition has a state store, which costs time in every batch.
        most = session.sparkContext.defaultParallelism
        own.conf.set(partitions, str(max(2, min(int(own.conf.get(partitions) or most), most))))
    return own


def _refuse_other(store: TableStore, settings: StreamSettings) -> None:
    """A table goes on as it was begun."""
    wanted, stated = asdict(settings), store.manifest.extra.get("settings")
    if stated is None:
        return
    if store.manifest.extra.get("cells") != CELLS:
        raise PipelineError(
            f"{store.place.given}: another version of triage has begun it; choose another directory"
        )
    different = [f"{name} {stated.get(name)}" for name, value in wanted.items() if stated.get(name) != value]
    if different:
        raise PipelineError(
            f"{store.place.given}: holds the table of a stream with {', '.join(different)}; "
            "go on with that, or choose another directory"
        )


def _progress(queries: Queries, poster: Poster | None, began: float) -> StreamProgress:
    events, latest_ns = queries.total("events"), queries.latest_ns
    return StreamProgress(
        events=events,
        windows=queries.total("windows"),
        events_per_second=events / max(time.monotonic() - began, 1e-9),
        lag_seconds=time.time() - latest_ns * 1e-9 if latest_ns > UNIX_TIMES_FROM_NS else None,
        failed_posts=0 if poster is None else poster.failed,
    )
