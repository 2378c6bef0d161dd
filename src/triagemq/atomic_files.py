"""Replaces files as a whole: a reader finds the old content or the new, also after a kill or a power cut."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
