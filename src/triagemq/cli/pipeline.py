"""`triage pipeline run|stream|show|scenario|archive|train|models`: tables from what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import SpinnerColumn, TextColumn
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.options import Json, print_json, screen
from triagemq.cli.stopping import on_stop_anywhere
from triagemq.errors import ModelError, ParameterError, PipelineError
from triagemq.progress import Bar

if TYPE_CHECKING:
    from triagemq.pipeline import PipelineResult
    from triagemq.pipeline.run import Processed
    from triagemq.pipeline.streaming import StreamProgress, StreamResult

app = typer.Typer(help="Turn what happened into tables, on Spark, and look at them.", no_args_is_help=True)


@app.command()
def run(
    traces: Annotated[
        list[str],
        typer.Argument(help="Directories with a trace or several; with --mapping, logs.", metavar="TRACE..."),
    ],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="Directory of the tables, a path or URI; new runs are added to it."),
    ],
    mapping: Annotated[
        Path | None, typer.Option("--mapping", help="YAML file that says what the columns of a log mean.")
    ] = None,
    master: options.SparkMaster = None,
    conf: options.SparkConf = None,
    ui: Annotated[bool, typer.Option("--ui", help="Show Spark's web page while it works.")] = False,
    json: Json = False,
) -> None:
    """Make the tables of runs and logs that are new or have changed, and a report of all of them."""
    options.require("pyspark", "pandas", "plotly", "jinja2")
    from triagemq.pipeline import load_mapping, run_pipeline
    from triagemq.pipeline.report import report_tables
    from triagemq.pipeline.store import Location

    spark = options.spark_options(master, conf, ui=ui)
    known = load_mapping(mapping) if mapping is not None else None
    done = run_pipeline(traces, out, mapping=known, options=spark, progress=not json)
    # A page is opened with a browser, which cannot read a cluster's file systems.
    directory = None if Location.needs_spark(out, published=True) else Location(out).shown
    page = None if directory is None else directory / "report.html"
    if page is not None and done.tables and (done.started_spark or not page.exists()):
        report_tables(out, page, title=f"What happened: {page.parent.name}")
    if json:
        print_json({**done.as_json(), "report": str(page) if page is not None and page.exists() else None})
    else:
        _print_run(done, out, page)
    _require_complete(done, f"look at them with: triage pipeline show {out} quarantine")


def _require_complete(done: Processed, advice: str) -> None:
    """An error that names what could not be used, after everything else was."""
    left_out = [each.reason for each in done.skipped if each.is_damaged]
    if left_out:
        raise PipelineError(f"{len(left_out):,} damaged inputs were left out, the first: {left_out[0]}")
    if done.damaged:
        more = f" and of {len(done.damaged) - 1} more" if len(done.damaged) > 1 else ""
        raise PipelineError(
            f"more than a tenth of the rows, or a whole file, of {done.damaged[0]}{more} was set aside; {advice}"
        )


def _print_notes(done: Processed) -> None:
    for note in (*(f"left out: {skipped.reason}" for skipped in done.skipped), *done.notes):
        screen(stderr=True).print(note, style="yellow", soft_wrap=True)


def _print_run(done: PipelineResult, out: str, page: Path | None) -> None:
    console = screen()
    _print_notes(done)
    if not done.started_spark:
        console.print(f"nothing new: {out} has all {len(done.unchanged)} runs already")
        return
    console.print(
        f"{len(done.added)} runs added, {len(done.replaced)} replaced, {len(done.unchanged)} unchanged; "
        f"{done.rows_read:,} rows read = {done.rows_in:,} in + {done.quarantined:,} quarantined"
    )
    for reason, count in done.reasons.items():
        console.print(f"  quarantined: {count:,} {reason}")
    _print_tables(console, done.tables)
    if page is not None:
        console.print(f"report: {page}", soft_wrap=True)
    # A log says what was published, and nothing of what became of it.
    table = "class_performance" if done.tables["class_performance"] else "topic_summary"
    console.print(f"look at a table with: triage pipeline show {out} {table}", soft_wrap=True)


@app.command()
def show(
    directory: Annotated[str, typer.Argument(help="Directory of the tables, a path or URI.")],
    table: Annotated[str | None, typer.Argument(help="A table (default: list them).")] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Only rows with column=value; may be repeated.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, help="At most so many rows (default: 20, JSON all).")
    ] = None,
    json: Json = False,
) -> None:
    """List the tables, or print the rows of one. Spark is not started."""
    from triagemq.pipeline import Tables

    tables = Tables(directory)
    if table is None:
        if json:
            print_json(
                {
                    "tables": [{"table": name, "rows": rows} for name, rows in tables.rows.items()],
                    "runs": [
                        {"run_id": run_id, "source": run.source}
                        for run_id, run in tables.manifest.runs.items()
                    ],
                }
            )
        else:
            _print_tables(screen(), tables.rows)
        return
    most = limit if limit is not None or json else 20
    rows = tables.records(table, where=_where(where or []), limit=most)
    if json:
        print_json({"table": table, "rows": rows})
        return
    _print_rows(screen(), table, rows)


def _where(given: list[str]) -> dict[str, str]:
    """`column=value` as it is typed.

    >>> _where(["priority_class=0", "topic=fire/hall=2"])
    {'priority_class': '0', 'topic': 'fire/hall=2'}
    """
    clauses = {}
    for clause in given:
        column, equals, value = clause.partition("=")
        if not equals or not column:
            raise ParameterError(f"--where {clause!r}", "write column=value")
        clauses[column.strip()] = value
    return clauses


@app.command()
def scenario(
    tables: Annotated[str, typer.Argument(help="Directory of the tables, a path or URI.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A .yaml file, or a directory for the Parquet form.")
    ],
    run_id: Annotated[
        str | None, typer.Option("--run", help="The run, if there are several; its beginning will do.")
    ] = None,
    bandwidth_bps: Annotated[
        float | None, typer.Option("--bandwidth-bps", min=1, help="Bandwidth to the subscriber, for a log.")
    ] = None,
    json: Json = False,
) -> None:
    """Estimate a scenario from what was measured: topics, publishers, rates, sizes, variability."""
    from triagemq.pipeline import Tables, estimate_scenario
    from triagemq.scenario import save

    found = estimate_scenario(Tables(tables), run_id=run_id, bandwidth_bps=bandwidth_bps)
    estimated = found.scenario
    # The user names a file that is to be written; a directory may hold tables that have these names by chance.
    save(estimated, out, overwrite=out.suffix.lower() in (".yaml", ".yml"), conditions=found.conditions)
    counts = {
        "topics": len(estimated.topics),
        "publishers": len(estimated.publishers),
        "publications": len(estimated.publications),
        "subscriptions": len(estimated.subscriptions),
    }
    if json:
        assumptions: dict[str, object] = {
            "outages": found.outages,
            "conditions": len(found.conditions.timeline),
        }
        for name, pairs in (("guessed", found.guessed), ("assumed_poisson", found.assumed)):
            assumptions[name] = [{"publisher": publisher, "topic": topic} for publisher, topic in pairs]
        print_json({"scenario": estimated.name, "out": str(out), **counts, **assumptions})
        return
    text = f"{out}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items())
    if found.outages:
        text += f"\n{found.outages:,} outages are no part of the rates: {len(found.conditions.timeline):,} conditions"
    if found.guessed:
        text += "\nguessed, because the trace does not say who published: " + ", ".join(
            f"{publisher} ({topic})" for publisher, topic in found.guessed
        )
    if found.assumed:
        text += (
            f"\nassumed to be Poisson, because so few events do not tell: {len(found.assumed):,} publications"
        )
    screen().print(text, markup=False, soft_wrap=True)


@app.command()
def archive(
    logs: Annotated[
        list[str], typer.Argument(help="Logs, or directories with their files.", metavar="LOG...")
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", help="Directory of the archive, a path or URI; new logs are added to it."
        ),
    ],
    mapping: Annotated[
        Path, typer.Option("--mapping", help="YAML file that says what the columns of a log mean.")
    ],
    keep_days: Annotated[
        int | None, typer.Option("--keep-days", min=1, help="Give up days that are older than so many days.")
    ] = None,
    master: options.SparkMaster = None,
    conf: options.SparkConf = None,
    json: Json = False,
) -> None:
    """Keep the events of logs with their payloads, as Parquet: for looking at an incident afterwards."""
    options.require("pyspark")
    from triagemq.pipeline import load_mapping
    from triagemq.pipeline.archive import archive as archive_logs

    done = archive_logs(
        logs,
        out,
        mapping=load_mapping(mapping),
        keep_days=keep_days,
        options=options.spark_options(master, conf),
    )
    if json:
        print_json(asdict(done))
    else:
        _print_notes(done)
        console = screen()
        console.print(
            f"{len(done.archived)} logs archived, {len(done.unchanged)} unchanged: {done.rows_in:,} rows in, "
            f"{done.quarantined:,} set aside; {done.expired:,} events given up, {done.events:,} stored",
            soft_wrap=True,
        )
        for reason, count in done.reasons.items():
            console.print(f"  set aside: {count:,} {reason}")
        console.print(f"look at them with: triage pipeline show {out} events", soft_wrap=True)
    _require_complete(done, "their reasons are counted above, and they are stored nowhere")


def _print_tables(console: Console, rows: dict[str, int]) -> None:
    shown = Table("table", title_justify="left")
    shown.add_column("rows", justify="right")
    for name, count in rows.items():
        shown.add_row(name, f"{count:,}")
    console.print(shown)


def _print_rows(console: Console, table: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        console.print(f"{table}: no rows")
        return
    # A run's id is long and mostly the same in all rows; JSON has it.
    hidden = {"run_id"} if len({row.get("run_id") for row in rows}) == 1 else set()
    columns = [column for column in rows[0] if column not in hidden]
    widths = [max(len(column), *(len(_text(row[column])) for row in rows)) + 3 for column in columns]
    if sum(widths) < console.width:
        shown = Table(*columns, title=table, title_justify="left")
        for row in rows:
            shown.add_row(*(_text(row[column]) for column in columns))
        console.print(shown)
        return
    # Too wide for the screen: columns become lines, as many rows side by side as there is room for.
    room = console.width - max(len(column) for column in columns) - 4
    beside = max(1, room // (max(len(_text(row[column])) for row in rows for column in columns) + 3))
    for first in range(0, len(rows), beside):
        block = rows[first : first + beside]
        shown = Table(title=table if first == 0 else None, title_justify="left", show_header=False)
        for column in columns:
            shown.add_row(column, *(_text(row[column]) for row in block))
        console.print(shown)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


@app.command()
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
        _print_stream(done)


@contextmanager
def _progress_line(*, enabled: bool) -> Iterator[Callable[[StreamProgress], None]]:
    """One line on standard error: on a terminal it is written over, elsewhere another comes every few seconds."""
    console = screen(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.fields[news]}", markup=False))
    with Bar(*columns, console=console, quiet=not enabled) as bar:
        task = bar.add_task("stream", total=None, news="starting Spark")
        yield lambda progress: bar.update(task, news=_stream_line(progress))


def _stream_line(progress: StreamProgress) -> str:
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


def _print_stream(done: StreamResult) -> None:
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


@app.command()
def train(
    tables: Annotated[str, typer.Argument(help="Directory of the tables, a path or URI.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory of models; each training adds to it.")],
    counters: Annotated[
        list[str] | None,
        typer.Option(
            "--counters", help="openflow or linux: what switches show; may be repeated (default: both)."
        ),
    ] = None,
    read_errors: Annotated[
        bool,
        typer.Option("--read-errors", help="See every queue also as a switch with read errors shows it."),
    ] = False,
    parameters: Annotated[
        str | None,
        typer.Option("--parameters", help="Sets of the grid to try, with commas between (default: all)."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Tasks that grow trees together (default: all cores)."),
    ] = None,
    seed: options.Seed = 0,
    master: options.SparkMaster = None,
    conf: options.SparkConf = None,
    json: Json = False,
) -> None:
    """Learn from the queues of all runs how long packets wait; the newest model is the one in force."""
    options.require("pyspark", "xgboost", "sklearn")
    from triagemq.delay.learning.training import chosen_sets
    from triagemq.delay.samples import COUNTER_SETS
    from triagemq.lab.queue_delay import ReadErrors
    from triagemq.pipeline.train import train as train_models

    folders = train_models(
        tables,
        out,
        counters=tuple(counters or COUNTER_SETS),
        read_errors=ReadErrors() if read_errors else None,
        sets=chosen_sets(parameters),
        seed=seed,
        workers=workers,
        options=options.spark_options(master, conf),
        progress=not json,
    )
    _show_models([_listed_model(folder) for folder in folders], json=json)


@app.command()
def models(
    folder: Annotated[Path, typer.Argument(help="Directory of models.", metavar="MODELS")],
    json: Json = False,
) -> None:
    """List the models there are, with what they learned from and how far they are from the truth."""
    from triagemq.delay.learning.models import model_folders, newest_model

    found = model_folders(folder)
    if not found:
        newest_model(folder, "openflow")
    listed, damaged = [], []
    for each in found:
        try:
            listed.append(_listed_model(each))
        except ModelError as error:
            damaged.append(error)
    _show_models(listed, json=json)
    if damaged:
        raise damaged[0]


def _listed_model(folder: Path) -> dict[str, Any]:
    """A model as it is shown: the newest of its counters is in force."""
    from triagemq.delay.learning.models import load_model, model_folders

    model = load_model(folder)
    newest = model_folders(folder.parent.parent, model.counters)[-1]
    return {
        "model": str(folder),
        "counters": model.counters,
        "in_force": folder == newest,
        **{name: model.about.get(name) for name in ("trained", "rows", "runs", "chosen", "grid", "errors")},
    }


def _show_models(listed: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json({"models": listed})
        return
    kinds = sorted({(each["part"], each["traffic"]) for model in listed for each in model["errors"] or ()})
    shown = Table(
        "counters", "trained", "in force", "runs", "rows", "parameters", "trees", title_justify="left"
    )
    for part, traffic in kinds:
        shown.add_column(f"{traffic}, {part}", justify="right")
    for model in listed:
        errors = {
            (each["part"], each["traffic"]): f"{1e3 * each['mean_absolute_seconds']:.3g} ms"
            for each in model["errors"] or ()
        }
        chosen = model["chosen"] or {}
        shown.add_row(
            model["counters"],
            str(model["trained"] or "-"),
            "yes" if model["in_force"] else "no",
            str(len(model["runs"] or ())),
            f"{sum((model['rows'] or {}).values()):,}",
            str(chosen.get("parameters", "-")),
            str(chosen.get("trees", "-")),
            *(errors.get(kind, "-") for kind in kinds),
        )
    screen().print(shown)
