"""Whose a directory of output is: a command takes one that is empty or its own, and removes only what bears its mark.

Its own is one with the command's manifest, which holds the mark: a few letters made once for the directory. Every file
that is being made has it in its name, so that what a kill leaves can be told from everything else that lies there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from triagemq.errors import OutputError

__all__ = ["LOCK_NAME", "hold", "new_mark", "refuse_foreign", "refuse_overlap"]

LOCK_NAME = ".lock"


def new_mark() -> str:
    """A mark for a directory that had none.

    >>> len(new_mark())
    10
    """
    return secrets.token_hex(5)


def refuse_overlap(directory: Path, inputs: Iterable[Path]) -> None:
    """An error if the output is an input, holds one or lies in one."""
    out = directory.resolve()
    for each in inputs:
        given = each.resolve()
        if out == given:
            raise OutputError(f"{directory}: is what is read; give the output a directory of its own")
        if out in given.parents:
            raise OutputError(f"{directory}: holds the input {each}; give the output a directory of its own")
        if given in out.parents:
            raise OutputError(
                f"{directory}: lies in the input {each}; give the output a directory of its own"
            )


def refuse_foreign(directory: Path, *, what: str) -> None:
    """An error if a directory without our manifest holds anything at all."""
    try:
        names = sorted(name for name in os.listdir(directory) if name != LOCK_NAME)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise OutputError(f"{directory}: is a file; {what} need a directory") from None
    except OSError as error:
        raise OutputError(f"{directory}: cannot be read: {error.strerror}") from error
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise OutputError(
            f"{directory}: holds other files ({names[0]}{more}); {what} need an empty directory, or one of their own"
        )


@contextlib.contextmanager
def hold(directory: Path, *, what: str) -> Iterator[None]:
    """Make the directory if need be, and keep other commands out of it for as long as this lasts."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Never "w": should somebody else's file have this name, it stays as it is.
        lock = (directory / LOCK_NAME).open("a")
    except OSError as error:
        raise OutputError(f"{directory}: {what} cannot be written there: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OutputError(
                f"{directory}: another command is writing {what} there; wait for it, or choose another directory"
            ) from error
        yield
