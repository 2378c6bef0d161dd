"""Ctrl-C and SIGTERM: one is enough at any moment, and nothing that a command has started stays behind.

Python handles a signal between two instructions of its main thread. A compiled kernel keeps it waiting, and the
exception that it raises is lost when it falls into a callback of the compiler. So there are three stages, one
behind the other. Heavy imports are late: until this module is loaded, Python ends by itself and with a traceback.

1. A command asks for `stop_on_signals` (or `on_stop`): it gets the signal and ends by itself.
2. Every other command gets a KeyboardInterrupt.
3. If the main thread has done neither after `GRACE_SECONDS`, a thread that the signal wakes without Python's help ends
   the program, with the same exit code and whatever it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

INTERRUPTED = 130
"""What a shell expects of a program ended by Ctrl-C."""

GRACE_SECONDS = 1.4
"""How long the main thread has to acknowledge a signal."""

LEAVING_SECONDS = 1.0
"""What a client gets to take leave of a gateway that may not answer, when the user waits."""

PATIENCE_SECONDS = 10.0
"""Time of a command that has acknowledged it to end its processes and print its figures; two are enough."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_CHILD_SUBREAPER = 36
_SHOW_CURSOR = b"\x1b[?25h"

_listening: Listening | None = None


def stop_on_signals() -> asyncio.Event:
    """Set when the user wants the command to end; belongs to the running loop."""
    import asyncio

    stop = asyncio.Event()
    on_stop(stop.set)
    return stop


def on_stop(callback: Callable[[], None]) -> None:
    """Call this when the user wants the command to end, at once if that has been before: in the running loop; without
    one from any thread, and then the command looks often whether it has been called."""
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if _listening is not None:
        _listening.notify(loop, callback)
        return
    # Not run by `triage`: the program that runs it sees to the rest.
    for number in _SIGNALS:
        if loop is None:
            signal.signal(number, lambda *_: callback())
        else:
            loop.add_signal_handler(number, callback)


class Listening:
    """From the first moment of `triage` to its last; made in the main thread.

    `number` is the signal that has come; with `ends_well` it is the usual end of this command, with exit code 0.
    """

    def __init__(self, *, ends_well: bool) -> None:
        global _listening
        self.number: int | None = None
        self.acknowledged = False
        self._finished = False
        self._ends_well = ends_well
        self._notify: Callable[[], None] | None = None
        self._raised = False
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # The handler in C writes there at once, whatever Python is doing.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._signalled)
        threading.Thread(target=self._watch, args=(reading,), name="stopping", daemon=True).start()
        _listening = self

    @property
    def exit_code(self) -> int:
        """Of a command that the signal ends."""
        return 0 if self._ends_well else 128 + (self.number or signal.SIGINT)

    @property
    def words(self) -> str:
        """The last line of a command that the signal ends."""
        if self.acknowledged:
            return f"did not end within {PATIENCE_SECONDS:g} s; what was left of it is ended now"
        if self._ends_well:
            return "ended before it was ready"
        return "terminated" if self.number == signal.SIGTERM else "interrupted"

    def notify(self, loop: asyncio.AbstractEventLoop | None, callback: Callable[[], None]) -> None:
        """The command ends by itself when `callback` has been called, in its loop if it has one."""

        def acknowledge() -> None:
            self.acknowledged = True
            callback()

        def in_loop(loop: asyncio.AbstractEventLoop) -> None:
            # The loop may have been closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(acknowledge)

        self._notify = acknowledge if loop is None else partial(in_loop, loop)
        if self.number is not None:
            self._notify()

    def finish(self) -> None:
        """The command is over. Python will give signals back to the system, which would end by them what has ended."""
        self._finished = True
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def end_children(self) -> None:
        """Kill whatever this program has started, and what those have started."""
        _adopt_orphans()
        while left := _descendants():
            for process in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
        if self._notify is None and not self._raised and not self._finished:
            self._raised = True
            _be_quiet()
            raise KeyboardInterrupt

    def _watch(self, reading: int) -> None:
        while not (stops := [number for number in os.read(reading, 64) if number in _SIGNALS]):
            pass
        _adopt_orphans()
        self.number = self.number or stops[0]
        if self._notify is None:
            _be_quiet()
        else:
            self._notify()
        time.sleep(GRACE_SECONDS)
        if self.acknowledged:
            time.sleep(PATIENCE_SECONDS - GRACE_SECONDS)
        self._last_resort()

    def _last_resort(self) -> None:
        self.end_children()
        with contextlib.suppress(OSError):
            if sys.stderr.isatty():
                os.write(2, _SHOW_CURSOR)
            os.write(2, f"triage: {self.words}\n".encode())
        os._exit(self.exit_code)


def _adopt_orphans() -> None:
    """From now on whatever loses its parent is a child of this program: none escapes `end_children`."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _be_quiet() -> None:
    """Do not print where in a library the interruption was raised or lost."""
    sys.unraisablehook = lambda _: None
    # Nothing has logged where it is not loaded.
    if logging := sys.modules.get("logging"):
        logging.disable()


def _descendants() -> set[int]:
    """Processes that this one has started, and theirs; not those that have ended and are only waited for."""
    parents: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(directory.name)] = int(parent)
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {process for process, parent in parents.items() if parent in new} - found
        found |= new
    return found
