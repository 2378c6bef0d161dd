"""The commands of `triage`: an application of all (`app`), or of one, for which the others are not loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from triagemq import __version__

COMMANDS = {
    "check": "plan",
    "generate": "lab.generate",
    "plan": "plan",
    "forecast": "plan",
    "simulate": "simulate",
    "validate": "lab.validate",
    "reproduce": "lab.reproduce",
    "sweep": "lab.sweep",
    "pipeline": "pipeline",
    "up": "up",
    "pub": "publish",
    "sub": "subscribe",
    "token": "token",
    "topics": "topics",
    "emulate": "lab.emulate",
    "network": "doctor",
    "gateway": "gateway",
    "demo": "demo",
    "doctor": "doctor",
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
        module = import_module(f"triagemq.cli.{COMMANDS[name]}")
        command = getattr(module, name, None) or module.app
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name)(command)
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
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
