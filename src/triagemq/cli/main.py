"""The `triage` program: collects the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys

import typer
from rich.console import Console

from triagemq import __version__
from triagemq.cli import (
    check,
    demo,
    doctor,
    emulate,
    forecast,
    gateway,
    generate,
    network,
    pipeline,
    plan,
    publish,
    reproduce,
    simulate,
    subscribe,
    sweep,
    token,
    up,
)
from triagemq.errors import MissingDependencyError, TriageError

__all__ = ["main"]

INTERRUPTED = 130
"""What a shell expects of a program ended by Ctrl-C."""

INSTALL_GROUPS = {
    "numpy": "coordinator",
    "scipy": "coordinator",
    "numba": "coordinator",
    "pydantic": "coordinator",
    "yaml": "coordinator",
    "pyarrow": "coordinator",
    "amqtt": "coordinator",
    "fastapi": "coordinator",
    "uvicorn": "coordinator",
    "websockets": "coordinator",
    "sqlalchemy": "coordinator",
    "pyroute2": "network",
    "os_ken": "network",
    "matplotlib": "lab",
    "plotly": "pipeline",
    "pandas": "pipeline",
    "pyspark": "pipeline",
}

app = typer.Typer(
    name="triage",
    help="Decides, when a network cannot carry everything, which IoT events go first and which not at all.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check")(check.check)
app.add_typer(generate.app, name="generate")
app.command("plan")(plan.plan)
app.command("forecast")(forecast.forecast)
app.command("simulate")(simulate.simulate)
app.command("reproduce")(reproduce.reproduce)
app.command("sweep")(sweep.sweep)
app.add_typer(pipeline.app, name="pipeline")
app.command("up")(up.up)
app.command("pub")(publish.pub)
app.command("sub")(subscribe.sub)
app.add_typer(token.app, name="token")
app.command("emulate")(emulate.emulate)
app.add_typer(network.app, name="network")
app.command("gateway")(gateway.gateway)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"triage {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Options of every command."""


def main() -> None:
    """Run a command; every error a user can cause ends as one line on standard error."""
    # Accepted anywhere on the line, because it is typed after the command has already failed.
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments, prog_name="triage")
    except TriageError as error:
        if debug:
            raise
        _say(str(error))
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if debug or package not in INSTALL_GROUPS:
            raise
        _say(str(MissingDependencyError(package, INSTALL_GROUPS[package])))
        sys.exit(MissingDependencyError.exit_code)
    except KeyboardInterrupt:
        if debug:
            raise
        _say("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): not an error, but Python must not try to flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _say(message: str) -> None:
    for line in message.splitlines():
        Console(stderr=True).print(
            f"triage: {line}", style="red", markup=False, highlight=False, soft_wrap=True
        )
