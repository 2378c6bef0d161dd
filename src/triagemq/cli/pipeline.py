"""`triage pipeline run|stream|show|scenario|archive|train|models`: tables from what happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triagemq.cli import options, terminal
from triagemq.cli.stopping import on_stop
from triagemq.errors import ModelError, ParameterError, PipelineError

if TYPE_CHECKING:
    from triagemq.pipeline import PipelineResult
    from triagemq.pipeline.streaming import StreamProgress

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
    json: options.Json = False,
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
    directory = Location(out).shown
    page = None if directory is None else directory / "report.html"
    if page is not None and done.tables and (done.started_spark or not page.exists()):
        report_tables(out, page, title=f"What happened: {page.parent.name}")
    written = str(page) if page is not None and page.exists() else None
    facts = {**done.as_json(), "report": written}
    terminal.show(facts, lambda: terminal.print_facts(facts), as_json=json)
    if not json:
        _print_notes(done)
        terminal.screen().print(f"look at a table with: triage pipeline show {out} TABLE", soft_wrap=True)
    _require_complete(done, f"look at them with: triage pipeline show {out} quarantine")


def _print_notes(done: PipelineResult) -> None:
    for note in (*(f"left out: {skipped.reason}" for skipped in done.skipped), *done.notes):
        terminal.screen(stderr=True).print(note, style="yellow", soft_wrap=True)


def _require_complete(done: PipelineResult, advice: str) -> None:
    """An error that names what could not be used, after everything else was."""
    damaged = [each.reason for each in done.skipped if each.is_damaged]
    if damaged:
        raise PipelineError(f"{len(damaged):,} damaged inputs were left out, the first: {damaged[0]}")
    if done.damaged:
        more = f" and of {len(done.damaged) - 1} more" if len(done.damaged) > 1 else ""
        raise PipelineError(
            f"more than a tenth of the rows, or a whole file, of {done.damaged[0]}{more} was set aside; {advice}"
        )


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
        int | None, typer.Option("--keep-days", min=1, help="Days that are older than so many days expire.")
    ] = None,
    master: options.SparkMaster = None,
    conf: options.SparkConf = None,
    json: options.Json = False,
) -> None:
    """Store the events of logs with their payloads, as Parquet, to study an incident afterwards."""
    options.require("pyspark")
    from triagemq.pipeline import load_mapping
    from triagemq.pipeline.archive import EVENTS
    from triagemq.pipeline.archive import archive as archive_logs

    spark = options.spark_options(master, conf)
    done = archive_logs(logs, out, mapping=load_mapping(mapping), keep_days=keep_days, options=spark)
    terminal.show(
        done.as_json(),
        lambda: terminal.screen().print(
            f"{len(done.added) + len(done.replaced)} logs archived, {len(done.unchanged)} unchanged: "
            f"{done.rows_in:,} rows in, {done.quarantined:,} set aside; {done.expired:,} events expired, "
            f"{done.tables.get(EVENTS, 0):,} stored\nlook at them with: triage pipeline show {out} {EVENTS}",
            soft_wrap=True,
        ),
        as_json=json,
    )
    if not json:
        _print_notes(done)
    _require_complete(done, f"their reasons: {', '.join(done.reasons)}; they are stored nowhere")


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
    json: options.Json = False,
) -> None:
    """List the tables, or print the rows of one. Spark is not started."""
    from triagemq.pipeline import Tables

    tables = Tables(directory)
    if table is None:
        listed = [{"table": name, "rows": count} for name, count in tables.rows.items()]
        sources = [{"run_id": run_id, "source": run.source} for run_id, run in tables.manifest.runs.items()]
        columns = {name: name for name in ("table", "rows")}
        found = {"tables": listed, "runs": sources}
        terminal.show(found, lambda: terminal.print_table("", columns, listed), as_json=json)
        return
    most = limit if limit is not None or json else 20
    rows = tables.records(table, where=_where(where or []), limit=most)
    terminal.show({"table": table, "rows": rows}, lambda: _print_rows(table, rows), as_json=json)


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
    json: options.Json = False,
) -> None:
    """Estimate a scenario from what was measured: topics, publishers, rates, sizes, variability."""
    from triagemq.pipeline import Tables, estimate_scenario
    from triagemq.scenario import save

    found = estimate_scenario(Tables(tables), run_id=run_id, bandwidth_bps=bandwidth_bps)
    estimated = found.scenario
    # The user names a file that is to be written; a directory may hold tables that have these names by chance.
    save(estimated, out, overwrite=out.suffix.lower() in (".yaml", ".yml"), conditions=found.conditions)
    facts: dict[str, object] = {"scenario": estimated.name, "out": str(out)}
    facts |= {
        name: len(getattr(estimated, name))
        for name in ("topics", "publishers", "publications", "subscriptions")
    }
    # Outages are no part of the rates, but conditions of the scenario.
    facts |= {"outages": found.outages, "conditions": len(found.conditions.timeline)}
    for name, pairs in (("guessed", found.guessed), ("assumed_poisson", found.assumed)):
        facts[name] = [{"publisher": publisher, "topic": topic} for publisher, topic in pairs]
    terminal.show(facts, lambda: terminal.print_facts(facts), as_json=json)


def _print_rows(table: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        terminal.screen().print(f"{table}: no rows")
        return
    # A run's id is long and mostly the same in all rows; JSON has it.
    hidden = {"run_id"} if len({row.get("run_id") for row in rows}) == 1 else set()
    columns = {column: column for column in rows[0] if column not in hidden}
    texts = [{column: _text(row[column]) for column in columns} for row in rows]
    if (
        sum(max(len(row[column]) for row in (columns, *texts)) + 3 for column in columns)
        < terminal.screen().width
    ):
        terminal.print_table(table, columns, texts)
        return
    # Too wide for the screen: columns become lines, a block for each row.
    longest = max(map(len, columns))
    for row in texts:
        terminal.screen().print(
            "\n".join(f"{column:{longest}}  {text}" for column, text in row.items()) + "\n"
        )


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
    once: Annotated[bool, typer.Option("--once", help="Take what is there, then stop.")] = False,
    until_idle: Annotated[
        float | None, typer.Option(help="Stop when nothing new has come for so many seconds.")
    ] = None,
    broker_ca: options.BrokerAuthority = None,
    master: options.SparkMaster = None,
    conf: options.SparkConf = None,
    json: options.Json = False,
) -> None:
    """Keep a table of rates per topic up to date with a live trace or a broker, until Ctrl-C."""
    from triagemq.pipeline.streaming import stream_pipeline

    with terminal.progress_bar("stream", None, quiet=json) as show:
        show(0.0, "starting Spark")
        done = stream_pipeline(
            source,
            out,
            window_seconds=window,
            slide_seconds=slide,
            watermark_seconds=watermark,
            trigger_seconds=trigger,
            once=once,
            until_idle_seconds=until_idle,
            broker_ca=broker_ca,
            options=options.spark_options(master, conf),
            progress=lambda done: show(0.0, _stream_line(done)),
            on_stop=on_stop,
        )
    facts = done.as_json()
    terminal.show(facts, lambda: terminal.print_facts(facts), as_json=json)
    if not json:
        terminal.screen().print(
            f"look at it with: triage pipeline show {done.out} topic_rates", soft_wrap=True
        )


def _stream_line(progress: StreamProgress) -> str:
    parts = [
        f"{progress.events:,} events",
        f"{progress.events_per_second:,.0f}/s",
        f"{progress.windows:,} windows",
    ]
    if progress.lag_seconds is not None:
        parts.append(f"lag {progress.lag_seconds:,.1f} s")
    return ", ".join(parts)


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
    json: options.Json = False,
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
    json: options.Json = False,
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
        terminal.print_json({"models": listed})
        return
    columns = ("counters", "trained", "in_force", "runs", "rows", "chosen", "errors")
    rows = []
    for model in listed:
        errors = (
            f"{each['traffic']}, {each['part']} {1e3 * each['mean_absolute_seconds']:.3g} ms"
            for each in model["errors"] or ()
        )
        row = model | {"runs": len(model["runs"] or ()), "rows": sum((model["rows"] or {}).values())}
        rows.append(
            row | {"chosen": terminal.in_words("chosen", model["chosen"] or {}), "errors": "; ".join(errors)}
        )
    terminal.print_table("", {name: name.replace("_", " ") for name in columns}, rows)
