"""Files that are replaced as a whole, also through a kill or a power cut; and those that no other user may read."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from triagemq.errors import ParameterError

PRIVATE_UMASK = 0o077
"""Of every process that keeps state: whatever it makes, by whatever library, is this user's alone."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
# By these an earlier start is known: a directory with other people's things in it is not ours to close.
_MARKS = frozenset({"lock", "coordinator.sqlite", "gateway.sqlite", "mosquitto.conf"})


def write_durably(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Put a file in place or leave what was there: hidden file, fsync, rename, fsync of the names."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.unlink(missing_ok=True)
    try:
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_directory(path: Path, parameter: str = "state") -> Path:
    """Make it, or see that it is ours alone; ParameterError if it is another user's or shared.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     oct(private_directory(Path(folder) / "new" / "state").stat().st_mode & 0o777)
    '0o700'
    """
    try:
        path.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        _check(path, parameter)
    except OSError as error:
        raise ParameterError(parameter, f"{path}: {error.strerror or error}") from None
    return path


def private_file(path: Path) -> None:
    """Make it (empty) unless it is there, and take it from others if it is; SQLite gives its mode to -wal and -shm."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    only_ours(path)


def write_private(path: Path, text: str) -> Path:
    """Put a file in the place of what was there: a reader finds the old one or the new one, whole."""
    write_durably(path, text, 0o600)
    return path


def only_ours(path: Path) -> None:
    """Take a file or directory of ours from everyone else."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        path.chmod(mode & ~_OTHERS)


def _check(path: Path, parameter: str) -> None:
    try:
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise ParameterError(parameter, f"{path} is a file; give a directory")
        if found.st_uid != os.geteuid():
            raise ParameterError(
                parameter,
                f"{path} belongs to another user, who could read its keys; give a directory of your own",
            )
        if not found.st_mode & _OTHERS:
            return
        names = set(os.listdir(path))
        if names and not names & _MARKS:
            raise ParameterError(
                parameter,
                f"{path} may be read by others and holds other things; give a directory of its own, or chmod 700 it",
            )
        only_ours(path)
    except OSError as error:
        raise ParameterError(parameter, f"{path}: {error.strerror or error}") from None
