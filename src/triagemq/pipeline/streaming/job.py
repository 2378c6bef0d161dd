"""`triage pipeline stream`: a Structured Streaming query over live traces, from its start to its clean end."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any

from triagemq.clock import UNIX_TIMES_FROM_NS
from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline.causes import cause_of
from triagemq.pipeline.session import SMALL_ROWS, SparkOptions, abandon, spark_session
from triagemq.pipeline.store import Location, Store
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.table import StreamTable
from triagemq.pipeline.streaming.windows import StreamSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from triagemq.pipeline.streaming.batches import Batches

__all__ = ["StreamProgress", "StreamResult", "stream_pipeline"]

MOST_ROWS = 3_000_000
"""Of one batch, unless a single row group has more."""

_POLL_SECONDS = 0.1
_HURRIED_SECONDS = 0.6
"""What the batch that is being made gets when the user waits; if it takes longer, the next stream makes it again."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How a stream is doing: events since its start, and how old the latest of them is, if its clock is ours."""

    events: int
    batches: int
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
            "out": self.out,
            "events": self.events,
            "batches": self.batches,
            "windows": self.windows,
            "seconds": round(self.seconds, 3),
            "start_seconds": round(self.start_seconds, 3),
            "busy_seconds": round(self.busy_seconds, 3),
            "runs": self.runs,
            "post": self.post,
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
    options: SparkOptions | None = None,
    spark: SparkSession | None = None,
    progress: Callable[[StreamProgress], None] | None = None,
    on_stop: Callable[[Callable[[], None]], None] | None = None,
) -> StreamResult:
    """Keep the table of rates in `out` up to date with the live trace, or the traces, in `source`.

    It ends when SIGINT or SIGTERM asks it to, when nothing new came for `until_idle_seconds`, or, with `once`, when
    all that was there at the start is in the table. Called again, it goes on where it ended or was killed. A session
    of Spark is made, unless one is given. Who hears signals himself gives `on_stop`: it is called with what ends the
    stream.
    """
    for name, value in (
        ("trigger_seconds", trigger_seconds),
        ("until_idle_seconds", until_idle_seconds),
        ("most_rows", most_rows),
    ):
        if value is not None and not value > 0:
            raise ParameterError(name, f"must be positive, is {value}")
    given = Location(source)
    if not given.is_directory():
        raise ParameterError(str(source), "is a file; a live trace is a directory")
    plain_source = given.url if given.local is None else str(given.local)
    settings = StreamSettings(plain_source, window_seconds, slide_seconds, watermark_seconds)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        poster = None if post is None else Poster(post, post_token)
        if poster is not None:
            stack.callback(poster.close)
        # A stream is there to stay: the time that Java spends on compiling it well comes back.
        wanted = replace(options or SparkOptions(), rows=SMALL_ROWS)
        if Location.needs_spark(out, published=True):
            spark = spark or stack.enter_context(spark_session(wanted))
        table = StreamTable(stack.enter_context(Store.open(out, [source], kind="stream")), settings)
        session = spark or stack.enter_context(spark_session(wanted))
        from triagemq.pipeline.streaming.batches import Batches

        checkpoint = Path(stack.enter_context(TemporaryDirectory(prefix="triagemq-"))) / "checkpoint"
        batches = Batches(table, settings, checkpoint, poster)
        stopped = threading.Event()
        if on_stop is None:
            stack.enter_context(_stop_signals(stopped))
        began = time.monotonic()
        reader = _reader(session, given, table, most_rows)
        writer = reader.writeStream.foreachBatch(batches).option("checkpointLocation", f"file://{checkpoint}")
        trigger: dict[str, Any] = {"processingTime": f"{round(trigger_seconds * 1000)} milliseconds"}
        if once:
            trigger = {"availableNow": True}
        query = writer.trigger(**trigger).start()
        if on_stop is not None:
            # Not before: until the query runs, there is nothing to finish.
            on_stop(stopped.set)

        quiet = _Quiet(query, batches)

        def is_over() -> bool:
            if progress is not None:
                progress(_progress(batches, poster, began))
            return stopped.is_set() or (
                until_idle_seconds is not None and quiet.seconds() >= until_idle_seconds
            )

        _follow(query, batches, session, is_over, stopped)
        seconds = time.monotonic() - began
    runs = {
        run_id: {"events": run.rows_in, "late": run.reasons["late"], "duplicates": run.reasons["duplicate"]}
        for run_id, run in table.runs.items()
    }
    return StreamResult(
        out=str(out),
        events=batches.events,
        batches=batches.batches,
        windows=batches.windows,
        seconds=seconds,
        start_seconds=began - started,
        busy_seconds=batches.busy_seconds,
        runs=runs,
        post=None if poster is None else poster.as_json(),
    )


def _reader(session: SparkSession, source: Location, table: StreamTable, most_rows: int) -> DataFrame:
    from pyspark.cloudpickle import register_pickle_by_value

    from triagemq.pipeline.streaming import events, publications, reduction

    # Workers get the code instead of importing it: they start sooner, and a cluster needs no triagemq.
    for module in (events, publications, reduction):
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    session.dataSource.register(publications.PublicationsSource)
    return (
        session.readStream.format(publications.PublicationsSource.name())
        .option("url", source.url if source.local is None else source.local.as_uri())
        .option("rows", str(most_rows))
        .option("start", json.dumps(table.offset))
        .load()
    )


def _follow(
    query: StreamingQuery,
    batches: Batches,
    session: SparkSession,
    is_over: Callable[[], bool],
    stopped: threading.Event,
) -> None:
    """Until the query ends by itself, fails, or is over; then the batch that is being made is finished first."""
    from pyspark.errors import StreamingQueryException

    over = False
    try:
        while not over and not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
            over = is_over()
    except StreamingQueryException as error:
        if batches.failure is not None:
            raise batches.failure from error
        raise PipelineError(f"the stream failed: {cause_of(error)}") from error
    finally:
        if stopped.is_set():
            # Spark would take its time to come down; whatever is not in the table was never there.
            batches.end(_HURRIED_SECONDS)
            abandon(session)
        else:
            batches.end()
            if query.isActive:
                _stop(query, session)


class _Quiet:
    """For how long a stream has looked for new data and found none."""

    def __init__(self, query: StreamingQuery, batches: Batches) -> None:
        self._query = query
        self._batches = batches
        self._since: float | None = None
        self._seen = 0

    def seconds(self) -> float:
        """0 while Spark is still starting the query or works on a batch."""
        now, done = time.monotonic(), self._batches.batches
        waits = self._query.status["message"].startswith("Waiting")
        if done != self._seen or (self._since is None and not waits):
            self._since, self._seen = (now if waits else None), done
        elif self._since is None or self._batches.busy:
            self._since = now
        return 0.0 if self._since is None else now - self._since


def _stop(query: StreamingQuery, session: SparkSession) -> None:
    # Spark reports on standard error that it was interrupted, which is what was asked for.
    with contextlib.suppress(Exception):
        session.sparkContext.setLogLevel("OFF")
    with contextlib.suppress(Exception):
        query.stop()
    with contextlib.suppress(Exception):
        session.sparkContext.setLogLevel("ERROR")


def _progress(batches: Batches, poster: Poster | None, began: float) -> StreamProgress:
    latest_ns = batches.latest_ns
    return StreamProgress(
        events=batches.events,
        batches=batches.batches,
        windows=batches.windows,
        events_per_second=batches.events / max(time.monotonic() - began, 1e-9),
        lag_seconds=time.time() - latest_ns * 1e-9 if latest_ns > UNIX_TIMES_FROM_NS else None,
        failed_posts=0 if poster is None else poster.failed,
    )


@contextlib.contextmanager
def _stop_signals(asked: threading.Event) -> Iterator[None]:
    """Set when SIGINT or SIGTERM asks the stream to stop; a second one does what it usually does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def stop(number: int, _frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
