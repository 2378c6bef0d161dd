"""A lease on a directory, where the file system has no locks: a file that its holder renews for as long as it lives.

It needs no more than that files are listed once they are written. A claimant writes its own file before it looks for
others, so that two never hold the lease at once; of two that claim at the same moment each may see the other, and
neither holds it. How old a lease is, is the difference between the modification times of two files: both are of the
file system's clock, and no other clock matters.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

from triagemq.errors import OutputError, TriageError
from triagemq.pipeline.store.places import Location

LEASE_SECONDS = 60.0
"""A command that was killed, or does not answer for so long, has lost its lease."""

LEASE_NAME = re.compile(r"\.lease-[0-9a-f]{16}(-\d+)?")
"""With a number those of an earlier version."""


@contextlib.contextmanager
def leased(place: Location) -> Iterator[Callable[[], None]]:
    """Hold the directory; OutputError while another command does.

    Gives what confirms the lease: an error if this process has not renewed it in time, and another may hold it.
    """
    lease = _Lease(place)
    lease.claim()
    ended = threading.Event()
    renewing = threading.Thread(target=lease.renew_until, args=(ended,), name="lease", daemon=True)
    renewing.start()
    try:
        yield lease.renew
    finally:
        ended.set()
        renewing.join()
        lease.release()


class _Lease:
    def __init__(self, place: Location) -> None:
        self._place = place
        self._name = f".lease-{secrets.token_hex(8)}"
        self._file = place / self._name
        self._is_lost = False
        self._renewing = threading.Lock()

    def claim(self) -> None:
        self._write()
        written = {
            entry.name: entry.modified_ns
            for entry in self._place.entries()
            if LEASE_NAME.fullmatch(entry.name)
        }
        now_ns = written.pop(self._name)
        for name, at_ns in written.items():
            if now_ns - at_ns < LEASE_SECONDS * 1e9:
                holder = ""
                with contextlib.suppress(OSError, TriageError):
                    holder = f" ({(self._place / name).read().decode()})"
                self.release()
                raise OutputError(
                    f"{self._place.given}: another command is writing tables there{holder}; wait for it, or choose "
                    f"another directory. After a command was killed, wait for {LEASE_SECONDS:.0f} s"
                )
        for name in written:
            (self._place / name).remove()

    def renew(self) -> None:
        """Write the file again; an error if it was too old, or is gone."""
        with self._renewing:
            if not self._is_lost:
                before_ns = self._file.file().modified_ns
                self._write()
                self._is_lost = self._file.file().modified_ns - before_ns >= LEASE_SECONDS * 1e9
                if self._is_lost:
                    self.release()
            if self._is_lost:
                raise OutputError(
                    f"{self._place.given}: this command stood still for {LEASE_SECONDS:.0f} s, and another may have "
                    "written there meanwhile; nothing more is published, run again"
                )

    def renew_until(self, ended: threading.Event) -> None:
        while not ended.wait(LEASE_SECONDS / 4):
            # What goes on for too long is an error when something is to be published.
            with contextlib.suppress(OSError, TriageError):
                self.renew()

    def release(self) -> None:
        # Where the file system does not answer the lease ends by its age.
        with contextlib.suppress(OSError, TriageError):
            self._file.remove()

    def _write(self) -> None:
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            self._file.write(holder.encode())
        except OSError as error:
            raise OutputError(f"{self._place.given}: tables cannot be written there: {error}") from error
