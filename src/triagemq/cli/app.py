"""The commands of `triage`: an application of all (`app`), or of one, for which the others are not loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from triagemq import __version__

COMMANDS = {
    "check": "triagemq.cli.plan",
    "generate": "triagemq.lab.commands.generate",
    "plan": "triagemq.cli.plan",
    "forecast": "triagemq.cli.plan",
    "simulate": "triagemq.cli.simulate",
    "validate": "triagemq.lab.commands.validate",
    "reproduce": "triagemq.lab.commands.reproduce",
    "sweep": "triagemq.lab.commands.sweep",
    "pipeline": "triagemq.cli.pipeline",
    "up": "triagemq.cli.up",
    "pub": "triagemq.cli.publish",
    "sub": "triagemq.cli.subscribe",
    "phase": "triagemq.cli.clients",
    "token": "triagemq.cli.token",
    "topics": "triagemq.cli.topics",
    "emulate": "triagemq.lab.commands.emulate",
    "network": "triagemq.cli.doctor",
    "gateway": "triagemq.cli.gateway",
    "demo": "triagemq.cli.demo",
    "doctor": "triagemq.cli.doctor",
}
"""In which module each is, in the order of the help: by its own name, or a group of commands as `app`."""


def application(*names: str) -> typer.Typer:
    """The commands of these names as one Typer application."""
    made = typer.Typer(
        name="triage",
        help="Decides, when a network cannot carry everything, which IoT events go first and which not at all.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for name in names:
        module = import_module(COMMANDS[name])
        command = getattr(module, name, None) or module.app
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name)(command)
    return made


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"triage {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Options of every command."""


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    made = globals()["app"] = application(*COMMANDS)
    return made
