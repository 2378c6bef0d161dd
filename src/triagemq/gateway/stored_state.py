"""The desired state in the state directory of a gateway: it starts with that, with or without a coordinator.

One file, a message a line: the first says everything, the others what changed since. To write megabytes anew at every
change would hold up packets. Client ids may hold keys, so only this user may read it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from triagemq.channel.messages import (
    DesiredState,
    decode_line,
    encode_line,
    parse_state,
    shallow,
    state_message,
)
from triagemq.errors import OutputError, TriageError
from triagemq.files import write_durably

# So much of changes may stand behind the whole before everything is written again.
_MOST_CHANGE_BYTES = 1 << 20


class StoredState:
    """The file; `read` it once, then `write` what comes. `damaged`: there was something, and it cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.damaged = False
        self._path = directory / "state.json"
        self._whole_bytes = self._bytes = 0

    def read(self) -> DesiredState:
        """The last state that was written to its end."""
        try:
            return self._fold(self._path.read_bytes().splitlines(keepends=True))
        except FileNotFoundError:
            return DesiredState()
        except (OSError, TriageError) as error:
            # Starting without it is better than not starting.
            print(
                f"{self._path}: cannot be used, going on without it until all is sent again: {error}",
                file=sys.stderr,
                flush=True,
            )
            self.damaged = True
            self._whole_bytes = self._bytes = 0
            return DesiredState()

    def write(self, line: bytes, after: DesiredState, *, whole: bool) -> None:
        """Append a message; a whole state takes the place of everything before it, and so does the state `after` many
        changes. OutputError if that fails."""
        grown = self._bytes - self._whole_bytes > max(self._whole_bytes, _MOST_CHANGE_BYTES)
        try:
            if whole or grown or not self._bytes:
                line = line if whole else encode_line(shallow(state_message(None, after)))
                write_durably(self._path, line, 0o600)
                self._whole_bytes = self._bytes = len(line)
            else:
                self._append(line)
                self._bytes += len(line)
        except OSError as error:
            # The next state takes the place of whatever is there now.
            self._whole_bytes = self._bytes = 0
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

    def _append(self, line: bytes) -> None:
        with self._path.open("r+b") as file:
            # Behind the last whole line: a kill may have left a part of the next.
            file.truncate(self._bytes)
            file.seek(self._bytes)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
