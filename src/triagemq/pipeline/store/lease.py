"""A lease on a directory, where the file system has no locks: a file that its holder renews for as long as it lives.

Only what every file system of Hadoop's can do is needed: new files are listed once they are written. A claimant writes
its own file before it looks for others, so that two never hold the lease at once. How old a lease is, is the difference
between the modification times of two files: both are of the file system's clock, and no other clock matters.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

from triagemq.errors import OutputError, TriageError
from triagemq.pipeline.store.places import Location

LEASE_SECONDS = 60.0
"""A command that was killed, or does not answer for so long, has lost its lease."""

LEASE_NAME = re.compile(r"\.lease-([0-9a-f]{16})-\d+")

_CLAIMS = 5
"""Of two commands that claim at the same moment each sees the other and tries again after a random time."""


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
        self._owner = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._name = ""
        """The newest file; none if the lease is lost."""
        self._renewing = threading.Lock()

    def claim(self) -> None:
        for _ in range(_CLAIMS):
            self._name = self._write()
            others = {name: age for name, age in self._ages().items() if self._owner not in name}
            live = [name for name, age in others.items() if age < LEASE_SECONDS]
            if not live:
                for name in others:
                    (self._place / name).remove()
                return
            self.release()
            time.sleep(random.random())
        holder = ""
        with contextlib.suppress(OSError, TriageError):
            holder = f" ({(self._place / live[0]).read().decode()})"
        raise OutputError(
            f"{self._place.given}: another command is writing tables there{holder}; wait for it, or choose another "
            f"directory. After a command was killed, wait for {LEASE_SECONDS:.0f} s"
        )

    def renew(self) -> None:
        """Write a new file, then remove the one before; an error if that was too old, or is gone."""
        with self._renewing:
            before = self._name
            if before:
                self._name = self._write()
                if self._ages().get(before, LEASE_SECONDS) >= LEASE_SECONDS:
                    self.release()
                    self._name = ""
                (self._place / before).remove()
            if not self._name:
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
        # Java may be gone: then the lease ends by its age.
        with contextlib.suppress(OSError, TriageError):
            for name in self._ages():
                if self._owner in name:
                    (self._place / name).remove()

    def _write(self) -> str:
        name = f".lease-{self._owner}-{next(self._numbers)}"
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            (self._place / name).write(holder.encode())
        except OSError as error:
            raise OutputError(f"{self._place.given}: tables cannot be written there: {error}") from error
        return name

    def _ages(self) -> dict[str, float]:
        """By how many seconds every lease in the directory is older than the newest of this process."""
        written = {
            entry.name: entry.modified_ns
            for entry in self._place.entries()
            if LEASE_NAME.fullmatch(entry.name)
        }
        now = max((at for name, at in written.items() if self._owner in name), default=0)
        return {name: (now - at) / 1e9 for name, at in written.items()}
