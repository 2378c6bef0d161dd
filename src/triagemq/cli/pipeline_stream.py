"""`triage pipeline stream SOURCE`: rates and burstiness of a live trace, or of a broker's topics, as they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import SpinnerColumn, TextColumn

from triagemq.cli import options
from triagemq.cli.options import Json, print_json, screen
from triagemq.cli.stopping import on_stop_anywhere
from triagemq.progress import Bar

if TYPE_CHECKING:
    from triagemq.pipeline.streaming import StreamProgress, StreamResult


def stream(
    source: Annotated[
        str,
        typer.Argument(
            # Typer takes "[/" for the end of a style unless it is escaped.
            help=r"A live trace, a directory with several, or mqtt://[USER:PASSWORD@]HOST[:PORT]\[/FILTER].",
            metavar="SOURCE",
        ),
    ],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="Directory of the table, a path or URI; a stopped stream goes on."),
    ],
    window: Annotated[float, typer.Option(help="Length of the sliding windows in seconds.")] = 2.0,
    slide: Annotated[float, typer.Option(help="Seconds from one sliding window to the next.")] = 1.0,
    watermark: Annotated[
        float, typer.Option(help="Seconds that an event may come behind the latest one of its run.")
    ] = 2.0,
    trigger: Annotated[float, typer.Option(help="Seconds between looks at the directory.")] = 0.5,
    post: Annotated[str | None, typer.Option(help="Send new windows as JSON to this URL, too.")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="TRIAGE_TOKEN", help="With --post: what is known there, as a bearer token."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Take what is there, then stop.")] = False,
    until_idle: Annotated[
        float | None, typer.Option(help="Stop when nothing new has come for so many seconds.")
    ] = None,
    broker_ca: options.BrokerAuthority = None,
    master: options.SparkMaster = None,
    conf: options.SparkConf = None,
    json: Json = False,
) -> None:
    """Keep a table of rates per topic up to date with a live trace or a broker, until Ctrl-C."""
    from triagemq.pipeline.streaming import stream_pipeline

    with _progress_line(enabled=not json) as progress:
        done = stream_pipeline(
            source,
            out,
            window_seconds=window,
            slide_seconds=slide,
            watermark_seconds=watermark,
            trigger_seconds=trigger,
            once=once,
            until_idle_seconds=until_idle,
            post=post,
            post_token=token,
            broker_ca=broker_ca,
            options=options.spark_options(master, conf),
            progress=progress,
            on_stop=on_stop_anywhere,
        )
    if json:
        print_json(done.as_json())
    else:
        _print(done)


@contextmanager
def _progress_line(*, enabled: bool) -> Iterator[Callable[[StreamProgress], None]]:
    """One line on standard error: on a terminal it is written over, elsewhere another comes every few seconds."""
    console = screen(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.fields[news]}", markup=False))
    with Bar(*columns, console=console, quiet=not enabled) as bar:
        task = bar.add_task("stream", total=None, news="starting Spark")
        yield lambda progress: bar.update(task, news=_line(progress))


def _line(progress: StreamProgress) -> str:
    parts = [
        f"{progress.events:,} events",
        f"{progress.events_per_second:,.0f}/s",
        f"{progress.windows:,} windows",
    ]
    if progress.lag_seconds is not None:
        parts.append(f"lag {progress.lag_seconds:,.1f} s")
    if progress.failed_posts:
        parts.append(f"{progress.failed_posts:,} posts failed")
    return ", ".join(parts)


def _print(done: StreamResult) -> None:
    console = screen()
    console.print(
        f"{done.events:,} events in {done.batches:,} batches, {done.windows:,} windows in {done.seconds:.1f} s "
        f"(and {done.start_seconds:.1f} s to start Spark)"
    )
    for run_id, counts in done.runs.items():
        console.print(
            f"  {run_id}: {counts['events']:,} events in windows, {counts['late']:,} late, "
            f"{counts['duplicates']:,} duplicates"
            + "".join(f", {counts[name]:,} {name}" for name in ("lost", "queued") if name in counts),
            markup=False,
            soft_wrap=True,
        )
    if done.post is not None:
        failure = f"; last: {done.post['last_failure']}" if done.post["last_failure"] else ""
        console.print(
            f"posts: {done.post['sent']:,} sent, {done.post['failed']:,} failed{failure}",
            markup=False,
            soft_wrap=True,
        )
    console.print(f"look at it with: triage pipeline show {done.out} topic_rates", soft_wrap=True)
