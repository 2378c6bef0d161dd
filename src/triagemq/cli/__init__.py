"""The command line: `triage`. One module per command; heavy imports happen inside the command that needs them."""

from triagemq.cli.main import main

__all__ = ["main"]
