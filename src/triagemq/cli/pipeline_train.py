"""`triage pipeline train|models`: models of queueing delay, learned from tables, and how they compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from triagemq.cli import options
from triagemq.cli.options import Json, print_json, screen
from triagemq.errors import ModelError


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
    _show([_listed(folder) for folder in folders], json=json)


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
            listed.append(_listed(each))
        except ModelError as error:
            damaged.append(error)
    _show(listed, json=json)
    if damaged:
        raise damaged[0]


def _listed(folder: Path) -> dict[str, Any]:
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


def _show(listed: list[dict[str, Any]], *, json: bool) -> None:
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
