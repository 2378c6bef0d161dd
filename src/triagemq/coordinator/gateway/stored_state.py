"""The desired state in the state directory of a gateway: it starts with that, with or without a coordinator.

One file, a message a line, as each came: the first says everything, the others what changed since. To write megabytes
anew at every change would hold up packets. Client ids may hold keys, so only this user may read it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from triagemq.coordinator.channel.messages import DesiredState, decode_line, parse_state
from triagemq.errors import OutputError, TriageError

# So much of changes may stand behind the whole before everything is wanted again.
_MOST_CHANGE_BYTES = 1 << 20


class StoredState:
    """The file; `read` it once, then `write` what comes. `damaged`: there was something, and it cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.damaged = False
        self._path = directory / "state.json"
        self._whole_bytes = self._bytes = 0

    @property
    def wants_whole(self) -> bool:
        """Has so much been added that it is time to replace it?"""
        return self._bytes - self._whole_bytes > max(self._whole_bytes, _MOST_CHANGE_BYTES)

    def read(self) -> DesiredState:
        """The last state that was written to its end."""
        try:
            return self._fold(self._path.read_bytes().splitlines(keepends=True))
        except FileNotFoundError:
            return DesiredState()
        except (OSError, TriageError) as error:
            # Starting without it is better than not starting.
            print(
                f"{self._path}: cannot be used, going on without it until all is told again: {error}",
                file=sys.stderr,
                flush=True,
            )
            self.damaged = True
            self._whole_bytes = self._bytes = 0
            return DesiredState()

    def write(self, line: bytes, *, whole: bool) -> None:
        """Keep a message in place of everything before it, or behind it; OutputError if that fails."""
        try:
            if whole:
                self._replace(line)
                self._whole_bytes = self._bytes = len(line)
            else:
                self._add(line)
                self._bytes += len(line)
        except OSError as error:
            raise OutputError(
                f"{self._path}: {error.strerror or error}; make room, or choose another directory"
            ) from error

    def _fold(self, lines: list[bytes]) -> DesiredState:
        if len(lines) > 1 and not lines[-1].endswith(b"\n"):
            lines.pop()  # it was being written when the gateway was killed
        state = DesiredState()
        for line in lines or [b""]:
            state = parse_state(decode_line(line)).after(state)
            self._bytes += len(line)
            self._whole_bytes = self._whole_bytes or len(line)
        return state

    def _replace(self, line: bytes) -> None:
        new = self._path.with_suffix(".new")
        with _opened(new, os.O_TRUNC) as file:
            _write(file, line)
        new.replace(self._path)

    def _add(self, line: bytes) -> None:
        with _opened(self._path) as file:
            # Behind the last whole line: something may have been written in part.
            os.ftruncate(file, self._bytes)
            os.lseek(file, self._bytes, os.SEEK_SET)
            _write(file, line)


@contextlib.contextmanager
def _opened(path: Path, how: int = 0) -> Iterator[int]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _write(file: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[os.write(file, left) :]
    os.fsync(file)
