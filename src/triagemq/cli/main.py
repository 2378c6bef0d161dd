"""The `triage` program: handles signals from the first moment, runs a command, turns errors into a line and a code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triagemq.cli.stopping import INTERRUPTED, Listening

if TYPE_CHECKING:
    from typer import Typer

UNTIL_ENDED = (("up",), ("gateway",), ("sub",), ("pipeline", "stream"))
"""Commands that run until Ctrl-C: for them it is no failure."""


def main() -> None:
    """The program: one command, one exit code."""
    arguments = sys.argv[1:]
    # A user's own algorithm, given as module:function, lies where the command is typed.
    sys.path.append("")
    # Read in triagemq.compiled, which takes too long to load here.
    os.environ["TRIAGE_SAY_COMPILING"] = "1"
    listening = Listening(ends_well=_runs_until_ended(arguments))
    try:
        code = run(arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        # Python may wrap an interruption: in the making of a class it becomes a RuntimeError.
        if listening.number is None or listening.acknowledged:
            raise
        code = INTERRUPTED
    listening.finish()
    if listening.number is not None:
        _leave(listening, code)
    # Else Python goes through all that was loaded once more, for a tenth of a second, before it forgets it.
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command; every error a user can cause ends as one line on standard error. Returns the exit code."""
    # Late, here and below: until they are loaded, signals would not be noticed.
    from triagemq.errors import MissingDependencyError, TriageError

    # Accepted anywhere on the line, because it is typed after the command has already failed.
    debug = "--debug" in arguments
    try:
        _application(arguments)([each for each in arguments if each != "--debug"], prog_name="triage")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    except TriageError as error:
        if debug:
            raise
        _say(str(error))
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if debug or package not in MissingDependencyError.GROUPS:
            raise
        _say(str(MissingDependencyError(package, MissingDependencyError.GROUPS[package])))
        return MissingDependencyError.exit_code
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): not an error, but Python must not try to flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _application(arguments: Sequence[str]) -> Typer:
    """With nothing but the command of this line, if it names one."""
    from triagemq.cli import app

    known = arguments and arguments[0] in app.COMMANDS
    return app.application(arguments[0]) if known else app.app


def _runs_until_ended(arguments: Sequence[str]) -> bool:
    """Known from the words alone, before anything else is loaded.

    >>> _runs_until_ended(["pipeline", "stream", "trace"]), _runs_until_ended(["simulate", "up"])
    (True, False)
    """
    words = tuple(argument for argument in arguments if not argument.startswith("-"))
    ends_by_itself = any(argument.partition("=")[0] == "--backup" for argument in arguments)
    return not ends_by_itself and any(words[: len(command)] == command for command in UNTIL_ENDED)


def _leave(listening: Listening, code: int) -> None:
    """End now, without waiting for threads that still compile or compute."""
    if not listening.acknowledged:
        _say(listening.words)
    if code == INTERRUPTED or not listening.acknowledged:
        code = listening.exit_code
    listening.end_children()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _say(message: str) -> None:
    is_coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    red, plain = ("\x1b[31m", "\x1b[0m") if is_coloured else ("", "")
    for line in message.splitlines():
        print(f"{red}triage: {line}{plain}", file=sys.stderr)
