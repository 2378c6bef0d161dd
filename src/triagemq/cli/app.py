"""All commands of `triage`, as one Typer application."""

from triagemq.cli.commands import COMMANDS, application

app = application(*COMMANDS)
