"""The commands of `triage`, and an application of all of them or of one: the others need not be loaded for it."""

from __future__ import annotations

from importlib import import_module

import typer

from triagemq import __version__

COMMANDS = {
    "check": "check",
    "generate": "generate",
    "plan": "plan",
    "forecast": "forecast",
    "simulate": "simulate",
    "validate": "validate",
    "reproduce": "reproduce",
    "sweep": "sweep",
    "pipeline": "pipeline",
    "up": "up",
    "pub": "publish",
    "sub": "subscribe",
    "token": "token",
    "topics": "topics",
    "emulate": "emulate",
    "network": "network",
    "gateway": "gateway",
    "demo": "demo",
    "doctor": "doctor",
}
"""In which module each is, in the order of the help: a group of commands as its `app`, another by its own name."""


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
        if hasattr(module, "app"):
            made.add_typer(module.app, name=name)
        else:
            made.command(name)(getattr(module, name))
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
