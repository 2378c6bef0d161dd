"""`triage network restore`: undo what a killed run left on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from triagemq.cli import options
from triagemq.cli.options import print_json
from triagemq.errors import NetworkError

app = typer.Typer(help="The network of this machine.", no_args_is_help=True)


@app.callback()
def _network() -> None:
    """The network of this machine."""


@app.command()
def restore(
    everything: Annotated[
        bool, typer.Option("--all", help="Also what belongs to runs that are still going on.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Remove the namespaces, interfaces, queues and processes that killed runs left behind."""
    from triagemq.lab.box.restore import restore as undo
    from triagemq.network.linux.port import restore_queues

    queues = restore_queues()
    done = undo(everything=everything)
    removed = [*(f"interface {name}: queues removed" for name in queues.removed), *done.removed]
    failed = [*(f"interface {each}" for each in queues.failed), *done.failed]
    if everything:
        failed += [f"interface {name}: a running process uses its queues" for name in queues.in_use]
    in_use = done.in_use + (0 if everything else len(queues.in_use))
    if json:
        print_json({"removed": removed, "failed": failed, "in_use": in_use})
    else:
        for line in removed:
            typer.echo(f"removed {line}")
        if in_use:
            typer.echo(f"left alone: {in_use} things of runs that are still going on (--all takes them, too)")
        if not (removed or failed or in_use):
            typer.echo("nothing was left behind")
    if failed:
        raise NetworkError(f"could not be undone: {'; '.join(failed)}")
