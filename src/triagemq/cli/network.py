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
    from triagemq.network.restore import restore as undo

    done = undo(everything=everything)
    if json:
        print_json({"removed": list(done.removed), "failed": list(done.failed), "in_use": done.in_use})
    else:
        for line in done.removed:
            typer.echo(f"removed {line}")
        if done.in_use:
            typer.echo(
                f"left alone: {done.in_use} things of runs that are still going on (--all takes them, too)"
            )
        if not (done.removed or done.failed or done.in_use):
            typer.echo("nothing was left behind")
    if done.failed:
        raise NetworkError(f"could not be undone: {'; '.join(map(str, done.failed))}")
